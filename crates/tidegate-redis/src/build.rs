//! # Builder of a gate
//!
//! Validates the settings, and reports everything that is wrong with them together, each as a sentence. An unreachable Redis is
//! not such a mistake: a gate starts without it and reconnects by itself.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::cluster::ClusterClientBuilder;
use redis::io::tcp::TcpSettings;
use redis::{ConnectionInfo, IntoConnectionInfo, RedisError, Script};
use tidegate::SteadyClock;
use tidegate_core::Rule;
use tokio::runtime::Handle;

use crate::adhoc::ADHOC_SCRIPT;
use crate::breaker::Breaker;
use crate::connection::{Connection, NODE_TIMEOUT, SERVER_TIMEOUT, Target};
use crate::error::Error;
use crate::gate::{Ids, InFlight, RedisGate, RuleSpec, Shared};
use crate::health::{Counters, Monitor};
use crate::keys::Keys;
use crate::lease::Lease;
use crate::outage::{OnOutage, Outage, OutageRule, Share};
use crate::prober::{self, Canary, ProbeIntervals};
use crate::wait_queue::WaitQueues;
use crate::wire::SCRIPT;

/// Builds a [`RedisGate`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `connect` or `lazy`"]
pub struct Builder {
    addresses: Addresses,
    rules: Vec<RuleConfig>,
    tenant: String,
    nodes: u32,
    deadline: Duration,
    connections: usize,
    in_flight: usize,
    failures: u32,
    canary: Duration,
    outage_retry_after: Duration,
    connect_timeout: Duration,
    counters: Option<Arc<Counters>>,
    allow_no_rules: bool,
    #[cfg(feature = "tls")]
    root_certificate: Option<Vec<u8>>,
}

#[derive(Clone)]
enum Addresses {
    Single(String),
    Cluster(Vec<String>),
}

#[derive(Clone, Debug)]
struct RuleConfig {
    name: String,
    kind: Kind,
    on_outage: OnOutage,
    lease: Option<Lease>,
}

#[derive(Clone, Debug)]
enum Kind {
    Rate(Rule),
    Concurrency { limit: u32, lease: Duration },
}

/// Why a gate cannot be built: everything that is wrong with its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidGate {
    /// One sentence for each reason.
    pub reasons: Vec<String>,
}

/// Why [`Builder::connect`] failed: invalid settings, or a store that did not reply in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectError(Cause);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Cause {
    Invalid(InvalidGate),
    Unavailable { timeout: Duration, error: Option<Error> },
}

/// The longest name a rule may have in a key.
const MAX_NAME_BYTES: usize = 128;
/// How long [`Builder::connect`] waits for the store by default.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How often the prober sends a canary while the breaker is open.
const PROBE_INTERVAL_WHILE_OPEN: Duration = Duration::from_millis(50);

impl Builder {
    pub(crate) fn single(address: String) -> Self {
        Builder::new(Addresses::Single(address))
    }

    pub(crate) fn cluster(addresses: Vec<String>) -> Self {
        Builder::new(Addresses::Cluster(addresses))
    }

    fn new(addresses: Addresses) -> Self {
        Builder {
            addresses,
            rules: Vec::new(),
            tenant: String::new(),
            nodes: 1,
            deadline: Duration::from_millis(20),
            connections: 2,
            in_flight: 1_024,
            failures: 5,
            canary: Duration::from_secs(5),
            outage_retry_after: Duration::from_secs(1),
            connect_timeout: CONNECT_TIMEOUT,
            counters: None,
            allow_no_rules: false,
            #[cfg(feature = "tls")]
            root_certificate: None,
        }
    }

    /// Adds a rate limit: a quota, or any algorithm.
    ///
    /// The name is part of the keys in Redis, so all gates that share the limit must use the same name. A short name
    /// saves memory.
    pub fn rule(mut self, name: impl Into<String>, rule: impl Into<Rule>) -> Self {
        let kind = Kind::Rate(rule.into());
        self.rules.push(RuleConfig { name: name.into(), kind, on_outage: OnOutage::default(), lease: None });
        self
    }

    /// Adds a limit on operations in progress, counted over all processes.
    ///
    /// A permit is renewed while it is held, and is free again at most one `lease` after its holder has died. Without
    /// Redis it is unknown how many permits are held, so such a rule has no local share: [`OnOutage::Local`] refuses.
    pub fn concurrency(mut self, name: impl Into<String>, limit: u32, lease: Duration) -> Self {
        let kind = Kind::Concurrency { limit, lease };
        self.rules.push(RuleConfig { name: name.into(), kind, on_outage: OnOutage::default(), lease: None });
        self
    }

    /// Sets what the rule just added does during an outage; default [`OnOutage::Local`].
    pub fn on_outage(mut self, on_outage: OnOutage) -> Self {
        if let Some(rule) = self.rules.last_mut() {
            rule.on_outage = on_outage;
        }
        self
    }

    /// Lets each gate take tokens of the rule just added in advance.
    ///
    /// [`Leased`](crate::Leased) then decides the rule without a round trip. Each gate that shares the rule may lease
    /// it or not. A rule stays strict if its burst is less than `4 × (nodes + 1)`.
    pub fn lease(mut self, lease: Lease) -> Self {
        if let Some(rule) = self.rules.last_mut() {
            rule.lease = Some(lease);
        }
        self
    }

    /// Separates the keys of this tenant from other tenants in the same Redis.
    pub fn tenant(self, tenant: impl Into<String>) -> Self {
        Builder { tenant: tenant.into(), ..self }
    }

    /// Sets how many gates share the limits, and divide them during an outage; default 1.
    pub fn nodes(self, nodes: u32) -> Self {
        Builder { nodes, ..self }
    }

    /// Sets how long a decision may take; default 20 ms.
    pub fn deadline(self, deadline: Duration) -> Self {
        Builder { deadline, ..self }
    }

    /// Sets how many connections all requests share; default 2.
    ///
    /// A cluster always has one connection per node, regardless of this setting.
    pub fn connections(self, connections: usize) -> Self {
        Builder { connections, ..self }
    }

    /// Sets how many requests may be in flight at the same time; default 1024.
    ///
    /// Further requests are decided without Redis.
    pub fn in_flight(self, in_flight: usize) -> Self {
        Builder { in_flight, ..self }
    }

    /// Sets after how many consecutive failures the breaker opens; default 5.
    ///
    /// While it is open, no requests are sent to Redis until a probe succeeds.
    pub fn failures(self, failures: u32) -> Self {
        Builder { failures, ..self }
    }

    /// Sets how often a canary request checks that limits are enforced; default 5 seconds.
    pub fn canary(self, every: Duration) -> Self {
        Builder { canary: every, ..self }
    }

    /// Sets the longest `retry_after` and `reset_after` reported in an outage; default 1 second.
    ///
    /// Up to a quarter of it is added at random. The outage may be over much sooner than a local share has its next
    /// token.
    pub fn outage_retry_after(self, wait: Duration) -> Self {
        Builder { outage_retry_after: wait, ..self }
    }

    /// Continues the counters of a gate that this gate replaces, so that metrics only grow.
    ///
    /// That covers decisions, fallbacks, commands, openings of the breaker, and the statistics of leases.
    pub fn continue_counters_of(self, before: &RedisGate) -> Self {
        Builder { counters: Some(before.shared.monitor.counters.clone()), ..self }
    }

    /// Allows a gate without rules, for ad-hoc limits only; see [`RedisGate::charge`].
    pub fn without_rules(self) -> Self {
        Builder { allow_no_rules: true, ..self }
    }

    /// Trusts this root certificate, in PEM, instead of the root certificates of the machine.
    ///
    /// Applies to addresses that begin with `rediss`.
    #[cfg(feature = "tls")]
    pub fn root_certificate(self, pem: impl Into<Vec<u8>>) -> Self {
        Builder { root_certificate: Some(pem.into()), ..self }
    }

    /// Sets how long [`connect`](Builder::connect) waits for the store; default 2 seconds.
    pub fn connect_timeout(self, timeout: Duration) -> Self {
        Builder { connect_timeout: timeout, ..self }
    }

    /// Builds the gate and waits for the first reply of the store.
    ///
    /// So the first decision is already strict.
    ///
    /// Waits at most [`connect_timeout`](Builder::connect_timeout). A program that has to start without the store
    /// builds the gate with [`lazy`](Builder::lazy) and waits with [`RedisGate::ready`], so that it keeps the gate
    /// after a timeout.
    ///
    /// ```no_run
    /// use tidegate::Quota;
    /// use tidegate_redis::RedisGate;
    ///
    /// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
    /// let gate = RedisGate::builder("redis://127.0.0.1/").rule("user", Quota::per_second(10)).connect().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ConnectError`] if the settings are invalid, or if the store did not reply in time.
    pub async fn connect(self) -> Result<RedisGate, ConnectError> {
        let timeout = self.connect_timeout;
        let gate = self.lazy().map_err(|invalid| ConnectError(Cause::Invalid(invalid)))?;
        if gate.ready(timeout).await {
            return Ok(gate);
        }
        let error = gate.health().last_error;
        Err(ConnectError(Cause::Unavailable { timeout, error }))
    }

    /// Builds the gate without waiting; it connects in the background.
    ///
    /// Until it is connected, decisions follow the [`on_outage`](Builder::on_outage) setting of their rules, as in an
    /// outage. [`connect`](Builder::connect) waits.
    ///
    /// # Errors
    ///
    /// [`InvalidGate`], with every reason: an invalid address, no rules, rules with the same name or that cannot be
    /// counted exactly, a zero where at least 1 is needed, no tokio runtime.
    pub fn lazy(self) -> Result<RedisGate, InvalidGate> {
        let mut reasons = self.reasons();
        let target = self.target().map_err(|reason| reasons.push(reason)).ok();
        let runtime = Handle::try_current()
            .map_err(|_| reasons.push("no tokio runtime; build the gate inside one".into()))
            .ok();
        match (target, runtime) {
            (Some(target), Some(runtime)) if reasons.is_empty() => Ok(self.start(&target, runtime)),
            _ => Err(InvalidGate { reasons }),
        }
    }

    /// The same as [`lazy`](Builder::lazy).
    ///
    /// # Errors
    ///
    /// As [`lazy`](Builder::lazy).
    pub fn build(self) -> Result<RedisGate, InvalidGate> {
        self.lazy()
    }

    /// Returns everything that is wrong, apart from the address.
    fn reasons(&self) -> Vec<String> {
        let settings = [
            (
                self.rules.is_empty() && !self.allow_no_rules,
                "a gate without rules limits nothing; add a rule, or call `without_rules` for ad-hoc limits only",
            ),
            (self.rules.len() > usize::from(u16::MAX), "more than 65535 rules; use several gates"),
            (self.deadline.is_zero(), "a deadline of 0 leaves no time for a reply; use 1 ms or more"),
            (self.connections == 0, "0 connections send no requests; use 1 or more"),
            (self.in_flight == 0, "an in_flight of 0 sends no requests; use 1 or more"),
            (self.nodes == 0, "0 nodes share no limits; use 1 or more"),
            (self.canary.is_zero(), "a canary interval of 0 never pauses; use 1 s or more"),
            (
                self.outage_retry_after < Duration::from_millis(1),
                "an outage_retry_after of less than 1 ms makes clients retry immediately; use 1 ms or more",
            ),
        ];
        let settings = settings.iter().filter(|(wrong, _)| *wrong).map(|(_, reason)| (*reason).to_owned());
        let rules = self.rules.iter().filter_map(|rule| rule.validate().err());
        settings.chain(self.duplicate_names()).chain(rules).collect()
    }

    fn duplicate_names(&self) -> impl Iterator<Item = String> {
        let duplicates = self
            .rules
            .iter()
            .enumerate()
            .filter(|(index, rule)| self.rules[..*index].iter().any(|other| other.name == rule.name));
        duplicates.map(|(_, rule)| {
            format!("two rules are named {:?} and would share their state; rename one", rule.name)
        })
    }

    fn target(&self) -> Result<Target, String> {
        let nodelay = TcpSettings::default().set_nodelay(true);
        match &self.addresses {
            Addresses::Single(address) => {
                let info = address
                    .as_str()
                    .into_connection_info()
                    .map_err(|error| invalid_address(address, &error))?;
                let client = self.client(info.set_tcp_settings(nodelay));
                client
                    .map(|client| Target::Single(Box::new(client)))
                    .map_err(|error| invalid_address(address, &error))
            }
            Addresses::Cluster(addresses) => {
                for address in addresses {
                    address
                        .as_str()
                        .into_connection_info()
                        .map_err(|error| invalid_address(address, &error))?;
                }
                let builder = ClusterClientBuilder::new(addresses.iter().map(String::as_str));
                // An unanswered command must not be sent again; the gate itself follows redirections.
                let builder = builder.retries(0).tcp_settings(nodelay);
                let builder = builder.connection_timeout(NODE_TIMEOUT).response_timeout(SERVER_TIMEOUT);
                let client = self.with_tls(builder).build();
                client
                    .map(|client| Target::Cluster(Box::new(client)))
                    .map_err(|error| invalid_address(&addresses.join(", "), &error))
            }
        }
    }

    #[cfg(not(feature = "tls"))]
    fn client(&self, info: ConnectionInfo) -> Result<redis::Client, RedisError> {
        redis::Client::open(info)
    }

    #[cfg(not(feature = "tls"))]
    fn with_tls(&self, builder: ClusterClientBuilder) -> ClusterClientBuilder {
        builder
    }

    #[cfg(feature = "tls")]
    fn client(&self, info: ConnectionInfo) -> Result<redis::Client, RedisError> {
        if !matches!(info.addr(), redis::ConnectionAddr::TcpTls { .. }) {
            return redis::Client::open(info);
        }
        redis::Client::build_with_tls(info, self.certificates())
    }

    #[cfg(feature = "tls")]
    fn with_tls(&self, builder: ClusterClientBuilder) -> ClusterClientBuilder {
        match &self.addresses {
            Addresses::Cluster(nodes) if nodes.iter().any(|node| node.starts_with("rediss")) => {
                builder.certs(self.certificates())
            }
            _ => builder,
        }
    }

    #[cfg(feature = "tls")]
    fn certificates(&self) -> redis::TlsCertificates {
        // The first caller decides for the whole program; a provider installed earlier is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        redis::TlsCertificates { client_tls: None, root_cert: self.root_certificate.clone() }
    }

    fn outage_rules(&self) -> Box<[OutageRule]> {
        self.rules.iter().map(|rule| rule.outage_rule(self.nodes)).collect()
    }

    fn start(self, target: &Target, runtime: Handle) -> RedisGate {
        let clock = SteadyClock::new();
        let ids = Ids::random();
        let keys = Keys::for_tenant(&self.tenant);
        let counters = self.counters.clone().unwrap_or_default();
        let canary = Canary::new(keys.name("canary", &ids.next()));
        let connections = if target.is_cluster() { 1 } else { self.connections };
        let connections: Box<[_]> =
            (0..connections).map(|_| Arc::new(Connection::new(target.clone()))).collect();
        let shared = Arc::new(Shared {
            rules: self.rules.iter().map(|rule| rule.spec(self.nodes)).collect(),
            keys,
            sha: Script::new(SCRIPT).get_hash().to_owned(),
            adhoc_sha: Script::new(ADHOC_SCRIPT).get_hash().to_owned(),
            is_cluster: target.is_cluster(),
            breaker: Arc::new(Breaker::new(self.failures, counters.openings.clone())),
            in_flight: InFlight::at_most(self.in_flight),
            deadline: self.deadline,
            nodes: self.nodes,
            outage: Outage::new(self.outage_rules(), clock, self.outage_retry_after),
            monitor: Monitor::continuing(counters),
            canary,
            runtime: runtime.clone(),
            waiting: WaitQueues::default(),
            ids,
            connections,
        });
        for connection in &shared.connections {
            runtime.spawn(Connection::keep_connected(Arc::downgrade(connection)));
        }
        runtime.spawn(prober::run(
            Arc::downgrade(&shared),
            ProbeIntervals { healthy: self.canary, unhealthy: PROBE_INTERVAL_WHILE_OPEN.min(self.canary) },
        ));
        RedisGate { shared }
    }
}

fn invalid_address(address: &str, error: &RedisError) -> String {
    // An address may contain a password, which must not appear in a message.
    let shown = match address.rsplit_once('@') {
        Some((_, host)) => format!("…@{host}"),
        None => address.to_owned(),
    };
    format!("invalid address {shown:?}: {error}; expected redis://[user:password@]host[:port][/db]")
}

impl RuleConfig {
    fn validate(&self) -> Result<(), String> {
        let name = &self.name;
        if name.is_empty() || name.len() > MAX_NAME_BYTES {
            return Err(format!(
                "rule {name:?}: a name of {} bytes cannot be part of a key; use 1 to {MAX_NAME_BYTES} bytes",
                name.len()
            ));
        }
        if let Some(lease) = &self.lease {
            lease.validate(name, self.letter()).map_err(|cannot| cannot.to_string())?;
        }
        match &self.kind {
            Kind::Rate(rule) => validate_rule(name, rule),
            Kind::Concurrency { limit: 0, .. } => {
                Err(format!("rule {name:?}: a concurrency limit of 0 refuses every request; use 1 or more"))
            }
            Kind::Concurrency { lease, .. } if lease.as_millis() < 100 => Err(format!(
                "rule {name:?}: a lease of {lease:?} is too short to be renewed four times; use 100 ms or more"
            )),
            Kind::Concurrency { .. } => Ok(()),
        }
    }

    fn spec(&self, nodes: u32) -> RuleSpec {
        let spec = match &self.kind {
            Kind::Rate(rule) => RuleSpec::rate(self.name.clone(), rule),
            Kind::Concurrency { limit, lease } => RuleSpec::concurrency(self.name.clone(), *limit, *lease),
        };
        let limit = spec.encoded.limit();
        RuleSpec {
            lease_terms: self.lease.and_then(|lease| lease.terms(self.letter(), limit, nodes)),
            ..spec
        }
    }

    /// The letter of the rule's kind, as in [`Rule::encode`]; `n` for a concurrency rule.
    fn letter(&self) -> u8 {
        match &self.kind {
            Kind::Rate(rule) => rule.encode().letter(),
            Kind::Concurrency { .. } => b'n',
        }
    }

    fn outage_rule(&self, nodes: u32) -> OutageRule {
        let limit = self.spec(nodes).encoded.limit();
        let share = match &self.kind {
            Kind::Rate(rule) => self.without_stock(rule, nodes).share(nodes),
            Kind::Concurrency { .. } => None,
        };
        let share = share.map_or(Share::None, |share| Share::Rate(Box::new(share)));
        OutageRule { on_outage: self.on_outage, limit, share }
    }

    /// Returns the rule; for a leased bucket, without the part of the burst that grants may hold.
    ///
    /// Grants can still be spent during an outage. Together with the local shares they must not exceed the burst.
    fn without_stock(&self, rule: &Rule, nodes: u32) -> Rule {
        match (rule, self.spec(nodes)) {
            (Rule::TokenBucket(bucket), RuleSpec { lease_terms: Some(terms), encoded, .. }) => {
                bucket.with_smaller_burst(encoded.limit() - u64::from(terms.stock)).into()
            }
            _ => *rule,
        }
    }
}

/// Rejects a rule that the script cannot count exactly in numbers of 53 bits.
fn validate_rule(name: &str, rule: &Rule) -> Result<(), String> {
    let encoded = rule.encode();
    match (encoded.letter(), encoded.numbers()) {
        (b'c', [_, period, cells, _]) if period.saturating_mul(*cells) >= 1 << 53 => Err(format!(
            "rule {name:?}: {cells} cells in {period} µs cannot be counted exactly in Redis; use fewer cells"
        )),
        _ => Ok(()),
    }
}

impl fmt::Debug for Addresses {
    /// Omits the addresses: they may contain passwords.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Addresses::Single(_) => f.write_str("Single(..)"),
            Addresses::Cluster(nodes) => write!(f, "Cluster({} nodes)", nodes.len()),
        }
    }
}

impl fmt::Display for InvalidGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reasons.join("; "))
    }
}

impl std::error::Error for InvalidGate {}

// === impl ConnectError ===

impl ConnectError {
    /// Whether the settings are invalid: a retry fails in the same way.
    #[must_use]
    pub fn is_invalid(&self) -> bool {
        matches!(self.0, Cause::Invalid(_))
    }

    /// Whether the store did not reply in time: a retry may succeed.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        matches!(self.0, Cause::Unavailable { .. })
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Cause::Invalid(invalid) => write!(f, "{invalid}"),
            Cause::Unavailable { timeout, error } => {
                write!(f, "no reply from the store within {timeout:?}")?;
                error.as_ref().map_or(Ok(()), |error| write!(f, ": {error}"))?;
                f.write_str("; to start without the store, build the gate with `lazy`")
            }
        }
    }
}

impl std::error::Error for ConnectError {}
