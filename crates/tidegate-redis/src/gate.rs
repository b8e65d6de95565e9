//! # The gate
//!
//! One round trip per request: the gate names the keys and calls the script, and the reply is the decision. A network
//! needs more around that: a deadline, a bound on requests in flight, a breaker, and a decision without Redis.
//!
//! ```text
//!   request ─► breaker open? ─► too many in flight? ─► call, until the deadline ─► decision: strict
//!                │              │                     │ failed
//!                └──────────────┴─────────────────────┴─► the rules' `on_outage`: open, closed, local
//! ```
//!
//! A request that was sent but not answered is not sent again: it may have been charged. There is one exception: if the
//! script was not loaded, nothing was done, so the gate loads it and sends the request again.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tidegate::algorithm::Taken;
use tidegate::gate::{Answer, BoxFuture, Gate, Part, RuleId, WaitingGate, validate};
use tidegate::{AcquireError, Admission, Decision, InvalidRequest, Permits, Rule, Source};
use tokio::runtime::Handle;
use tokio::time::Instant as Deadline;

use crate::breaker::Breaker;
use crate::build::Builder;
use crate::connection::{Connection, Transport};
use crate::error::{Error, is_no_script, is_redirection};
use crate::health::{Health, Monitor};
use crate::keys::{Keys, TAG_OFFSET};
use crate::lease::LeaseTerms;
use crate::outage::Outage;
use crate::permits::{HeldPermit, HeldPermits, PermitSet};
use crate::prober::Canary;
use crate::request::Requests;
use crate::wait::WaitDeadline;
use crate::wait_queue::WaitQueues;
use crate::wire::{self, Call, CostExtra, Operation, Payload, Reply, RuleArgs, WireRule};

/// A rate limiter whose state is in Redis or Valkey, shared by all processes that use the same server.
///
/// ```no_run
/// use tidegate::Quota;
/// use tidegate_redis::{OnOutage, RedisGate};
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let gate = RedisGate::builder("redis://127.0.0.1/")
///     .rule("global", Quota::per_second(5_000)).on_outage(OnOutage::Open)
///     .rule("user", Quota::per_second(10))
///     .connect()
///     .await?;
///
/// let limiter = gate.limiter("user")?; // one rule, as a KeyedLimiter in memory
/// if limiter.check("alice").await.is_allowed() { /* serve */ }
///
/// // Several rules: all are charged or none.
/// if let Err(refused) = gate.request().rule("global").rule_for("user", "alice").try_acquire().await {
///     println!("{refused}"); // rule "user": limit reached; retry after 40ms
/// }
/// # Ok(())
/// # }
/// ```
///
/// The rules of one request are charged all or none, in one step. In a cluster that holds for rules of the same key.
/// Parts with different keys are charged one after another; if a later part refuses, the earlier charges are refunded a
/// moment later.
///
/// Clones share the same gate.
#[derive(Clone)]
pub struct RedisGate {
    pub(crate) shared: Arc<Shared>,
}

/// The state that all clones share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) rules: Box<[RuleSpec]>,
    pub(crate) keys: Keys,
    /// The SHA-1 of the script for rules.
    pub(crate) sha: String,
    /// The SHA-1 of the script for ad-hoc limits.
    pub(crate) adhoc_sha: String,
    pub(crate) connections: Box<[Arc<Connection>]>,
    pub(crate) is_cluster: bool,
    pub(crate) breaker: Arc<Breaker>,
    pub(crate) in_flight: InFlight,
    pub(crate) deadline: Duration,
    /// The number of gates that share the limits.
    pub(crate) nodes: u32,
    pub(crate) outage: Outage,
    pub(crate) monitor: Monitor,
    pub(crate) canary: Canary,
    pub(crate) runtime: Handle,
    pub(crate) waiting: WaitQueues,
    pub(crate) ids: Ids,
}

/// A rule as it was configured.
#[derive(Debug)]
pub(crate) struct RuleSpec {
    pub(crate) name: String,
    pub(crate) encoded: WireRule,
    /// For a concurrency rule: how long a permit is held without being renewed.
    pub(crate) lease: Duration,
    pub(crate) is_concurrency: bool,
    /// How the rule is leased, if it is.
    pub(crate) lease_terms: Option<LeaseTerms>,
}

/// How many times a call is repeated because the script was not loaded.
const NO_SCRIPT_RETRIES: usize = 3;

/// An owned copy of a request, which outlives the caller's borrow.
pub(crate) struct OwnedRequest(Vec<(RuleId, Vec<u8>, u32)>);

/// The number of requests in flight, and its maximum.
#[derive(Debug)]
pub(crate) struct InFlight {
    count: AtomicUsize,
    max: usize,
}

/// Counts one request in flight until it is dropped.
struct InFlightGuard<'a>(&'a InFlight);

/// Generates ids that are unique across processes.
#[derive(Debug)]
pub(crate) struct Ids {
    process: u64,
    next: AtomicU64,
}

impl RedisGate {
    /// Starts to build a gate for the Redis or Valkey at this address.
    ///
    /// Addresses are `redis://[user:password@]host[:port][/db]`, `rediss://…` for TLS, which needs the feature `tls`,
    /// or `unix:///path`.
    pub fn builder(address: impl Into<String>) -> Builder {
        Builder::single(address.into())
    }

    /// Starts to build a gate for a cluster; `addresses` are some of its nodes.
    pub fn cluster<A: Into<String>>(addresses: impl IntoIterator<Item = A>) -> Builder {
        Builder::cluster(addresses.into_iter().map(Into::into).collect())
    }

    /// Returns the id of the rule with this name, for use in a [`Part`].
    #[must_use]
    pub fn id(&self, name: &str) -> Option<RuleId> {
        let index = self.shared.rules.iter().position(|rule| rule.name == name)?;
        u16::try_from(index).ok().map(RuleId)
    }

    /// Returns the name of a rule, for example of the one that refused a request.
    #[must_use]
    pub fn name(&self, rule: RuleId) -> Option<&str> {
        self.shared.rules.get(usize::from(rule.0)).map(|rule| rule.name.as_str())
    }

    /// Decides a request of parts; charges all of them or none. Returns an admission also when it refuses.
    ///
    /// For services that find rules by number. Programs use [`limiter`](RedisGate::limiter) or
    /// [`request`](RedisGate::request).
    ///
    /// # Errors
    ///
    /// [`InvalidRequest`] if the request is empty, has an unknown rule, or has the same rule and key twice. Neither a
    /// refusal nor an outage of Redis is an error.
    pub async fn check_parts(&self, request: &[Part<'_>]) -> Result<Admission, InvalidRequest> {
        self.shared.validate(request)?;
        Ok(self.check_valid(request).await)
    }

    /// As [`check_parts`](RedisGate::check_parts), with the decision of each part in [`Admission::rules`].
    ///
    /// The list is empty if these decisions are unknown: because Redis did not decide, or because parts with different
    /// keys were decided one after another in a cluster.
    ///
    /// # Errors
    ///
    /// As [`check_parts`](RedisGate::check_parts).
    pub async fn check_each_parts(&self, request: &[Part<'_>]) -> Result<Admission, InvalidRequest> {
        self.shared.validate(request)?;
        Ok(self.check_each_valid(request).await)
    }

    pub(crate) async fn acquire_valid(
        &self,
        request: &[Part<'_>],
        deadline: WaitDeadline,
    ) -> Result<Admission, AcquireError> {
        let timeout = deadline.time_left();
        self.allowed(request, crate::wait::acquire(&self.shared, request, deadline).await, timeout)
    }

    pub(crate) async fn take_valid(&self, request: &[Part<'_>]) -> Result<Taken, Error> {
        let request: Vec<Part<'_>> = self.shared.rate_parts(request).collect();
        if request.is_empty() {
            return Err(InvalidRequest::Empty.into());
        }
        let (decision, amount) = self.shared.call_each(Operation::Take, &request).await?;
        Ok(Taken { amount: amount.unwrap_or(0), decision })
    }

    /// Returns the admission if it allows the request, otherwise the error with the name of the rule that refused.
    ///
    /// `timeout` is how long the request would have waited.
    pub(crate) fn allowed(
        &self,
        request: &[Part<'_>],
        admission: Admission,
        timeout: Option<Duration>,
    ) -> Result<Admission, AcquireError> {
        if admission.is_allowed() {
            return Ok(admission);
        }
        let decision = admission.decision;
        let cost = request.iter().find(|part| part.rule == decision.rule).map_or(0, |part| part.cost);
        let error = match timeout {
            _ if decision.source == Source::Closed => AcquireError::outage(&decision),
            Some(timeout) => AcquireError::timed_out(&decision, cost, timeout),
            None => AcquireError::refused(&decision, cost),
        };
        Err(match self.name(decision.rule) {
            Some(name) => error.named(name.into()),
            None => error,
        })
    }

    /// Rejects concurrency limits: `check` would release their permits at once.
    pub(crate) fn without_permits(&self, request: &[Part<'_>]) -> Result<(), InvalidRequest> {
        match request.iter().find(|part| self.shared.spec(part).is_concurrency) {
            None => Ok(()),
            Some(part) => {
                Err(InvalidRequest::NeedsPermit { rule: self.shared.spec(part).name.as_str().into() })
            }
        }
    }

    pub(crate) fn find(&self, name: &str) -> Result<RuleId, InvalidRequest> {
        let names = || self.shared.rules.iter().map(|rule| &rule.name);
        self.id(name).ok_or_else(|| InvalidRequest::no_rule_named(name, names()))
    }

    /// Returns the Redis key that holds the state of this part.
    ///
    /// Useful for `GET`, `PTTL` or `DEL` by hand.
    #[must_use]
    pub fn describe(&self, part: Part<'_>) -> Option<String> {
        let rule = self.shared.rules.get(usize::from(part.rule.0))?;
        Some(String::from_utf8_lossy(&self.shared.keys.name(&rule.name, part.key.bytes())).into_owned())
    }

    /// Waits up to `within` until limits are enforced, and returns whether they are.
    pub async fn ready(&self, within: Duration) -> bool {
        let enforced = async {
            while self.shared.monitor.enforced() != Some(true) || self.shared.breaker.is_open() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(within, enforced).await.is_ok()
    }

    /// Reports whether limits are really enforced, and if not, why.
    #[must_use]
    pub fn health(&self) -> Health {
        self.shared.health()
    }
}

/// Decisions through this trait run in a task of their own.
///
/// Once `decide` has returned, the request is sent to Redis even if the caller stops waiting for the decision. Otherwise a client that
/// resets its request quickly enough would not be counted.
impl Gate for RedisGate {
    fn decide<'a>(&'a self, request: &'a [Part<'a>]) -> Answer<'a> {
        self.decide_in_task(request, Scope::Binding)
    }

    fn decide_each<'a>(&'a self, request: &'a [Part<'a>]) -> Answer<'a> {
        self.decide_in_task(request, Scope::Each)
    }

    fn rule(&self, name: &str) -> Option<RuleId> {
        self.id(name)
    }
}

impl RedisGate {
    fn decide_in_task<'a>(&'a self, request: &'a [Part<'a>], scope: Scope) -> Answer<'a> {
        if let Err(invalid) = self.shared.validate(request) {
            return Answer::Ready(Err(invalid));
        }
        if self.shared.breaker.is_open() {
            return Answer::Ready(Ok(self.shared.without_redis(request, &Error::breaker_open())));
        }
        let (shared, owned, deadline) =
            (self.shared.clone(), OwnedRequest::of(request), self.shared.new_deadline());
        let task = self.shared.runtime.spawn(async move {
            match scope {
                Scope::Binding => shared.check(&owned.parts(), deadline).await,
                Scope::Each => shared.check_each(&owned.parts(), deadline).await,
            }
        });
        Answer::Pending(Box::pin(async move {
            // The task fails to finish only if the runtime is shutting down.
            let reply = task.await;
            Ok(reply.unwrap_or_else(|_| self.shared.without_redis(request, &Error::breaker_open())))
        }))
    }
}

impl WaitingGate for RedisGate {
    fn wait_within<'a>(
        &'a self,
        request: &'a [Part<'a>],
        within: Duration,
    ) -> BoxFuture<'a, Result<Admission, AcquireError>> {
        Box::pin(async move {
            self.shared.validate(request)?;
            self.acquire_valid(request, WaitDeadline::after(within)).await
        })
    }
}

impl Requests for RedisGate {
    fn gate(&self) -> &RedisGate {
        self
    }

    async fn check_valid(&self, parts: &[Part<'_>]) -> Admission {
        self.shared.check(parts, self.shared.new_deadline()).await
    }

    async fn check_each_valid(&self, parts: &[Part<'_>]) -> Admission {
        self.shared.check_each(parts, self.shared.new_deadline()).await
    }

    async fn peek_valid(&self, parts: &[Part<'_>]) -> Result<Decision, Error> {
        self.shared.call_each(Operation::Peek, parts).await.map(|(decision, _)| decision)
    }

    async fn refund_valid(&self, parts: &[Part<'_>]) -> Result<(), Error> {
        let parts: Vec<Part<'_>> = self.shared.rate_parts(parts).collect();
        if parts.is_empty() {
            return Ok(());
        }
        self.shared.call_each(Operation::Refund, &parts).await.map(|_| ())
    }

    async fn reset_valid(&self, parts: &[Part<'_>]) -> Result<(), Error> {
        self.shared.call_each(Operation::Reset, parts).await.map(|_| ())
    }
}

impl fmt::Debug for RedisGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.shared.rules.iter().map(|rule| &rule.name).collect();
        f.debug_struct("RedisGate").field("rules", &names).field("health", &self.health()).finish()
    }
}

/// Which decisions the caller wants: that of the binding rule, or that of each part.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scope {
    Binding,
    Each,
}

impl OwnedRequest {
    pub(crate) fn of(request: &[Part<'_>]) -> Self {
        OwnedRequest(request.iter().map(|part| (part.rule, part.key.bytes().to_vec(), part.cost)).collect())
    }

    pub(crate) fn parts(&self) -> Vec<Part<'_>> {
        self.0.iter().map(|(rule, key, cost)| Part::of(*rule).key(&key[..]).cost(*cost)).collect()
    }
}

// === impl Shared ===

impl Shared {
    pub(crate) fn validate(&self, request: &[Part<'_>]) -> Result<(), InvalidRequest> {
        validate(request, self.rules.len())
    }

    /// Returns the deadline of a decision that begins now.
    pub(crate) fn new_deadline(&self) -> Deadline {
        Deadline::now() + self.deadline
    }

    /// Decides a valid request, by `deadline` at the latest.
    pub(crate) async fn check(self: &Arc<Self>, request: &[Part<'_>], deadline: Deadline) -> Admission {
        let decided = if self.is_cluster && spans_keys(request) {
            crate::cross_slot::check(self, request, deadline).await
        } else {
            self.check_in_one_call(request, time_left(deadline)).await.map(|(admission, _)| admission)
        };
        match decided {
            Ok(admission) => {
                self.monitor.count_decision(admission.decision.source);
                admission
            }
            Err(error) => self.without_redis(request, &error),
        }
    }

    pub(crate) async fn check_each(self: &Arc<Self>, request: &[Part<'_>], deadline: Deadline) -> Admission {
        if self.is_cluster && spans_keys(request) {
            return self.check(request, deadline).await;
        }
        match self.check_in_one_call(request, time_left(deadline)).await {
            Ok((admission, reply)) => {
                self.monitor.count_decision(admission.decision.source);
                let rules =
                    reply.decisions.iter().zip(request).map(|(decision, part)| decision.of_rule(part.rule));
                Admission { rules: rules.collect(), ..admission }
            }
            Err(error) => self.without_redis(request, &error),
        }
    }

    /// Decides all parts in one call. The reply has the decision of each part.
    pub(crate) async fn check_in_one_call(
        self: &Arc<Self>,
        request: &[Part<'_>],
        within: Duration,
    ) -> Result<(Admission, Reply), Error> {
        let rules = self.rule_args(request);
        // Created before the call is sent: if the reply is lost or the caller stops waiting, permits may be held all
        // the same.
        let requested = self.id_for(request).map(|id| self.requested_permits(id, request, &rules));
        let id = requested.as_ref().map(HeldPermits::id);
        let reply = self.call_rules(Operation::Check, &rules, id.as_deref(), within).await?;
        let decision = binding_decision(&reply, request);
        let permits = match requested {
            Some(requested) if decision.is_allowed() => {
                Permits::none().with(Box::new(requested.start_renewing()))
            }
            Some(requested) => requested.refused(),
            None => Permits::none(),
        };
        Ok((Admission { permits, ..Admission::without_permits(decision) }, reply))
    }

    /// Returns a new id for the permits of the request, if it needs any.
    fn id_for(&self, request: &[Part<'_>]) -> Option<Vec<u8>> {
        request.iter().any(|part| self.spec(part).is_concurrency).then(|| self.ids.next())
    }

    fn requested_permits(
        self: &Arc<Self>,
        id: Vec<u8>,
        request: &[Part<'_>],
        rules: &[RuleArgs<'_>],
    ) -> HeldPermits {
        let permits = request.iter().zip(rules).filter(|(part, _)| self.spec(part).is_concurrency);
        let permits = permits.map(|(part, args)| HeldPermit {
            key: args.key.clone(),
            rule: usize::from(part.rule.0),
            cost: args.cost,
        });
        HeldPermits::requested(PermitSet { shared: self.clone(), id, permits: permits.collect() })
    }

    /// Decides without Redis.
    pub(crate) fn without_redis(&self, request: &[Part<'_>], error: &Error) -> Admission {
        self.monitor.record_error(error);
        self.monitor.count_fallback(error);
        let admission = self.outage.check(request);
        self.monitor.count_decision(admission.decision.source);
        admission
    }

    /// Runs the same operation for all parts, one part at a time if keys differ in a cluster.
    ///
    /// Only for operations that change nothing or cannot be refused.
    pub(crate) async fn call_each(
        &self,
        operation: Operation,
        request: &[Part<'_>],
    ) -> Result<(Decision, Option<u32>), Error> {
        if !(self.is_cluster && spans_keys(request)) {
            let reply = self.call_rules(operation, &self.rule_args(request), None, self.deadline).await?;
            return Ok((binding_decision(&reply, request), reply.taken));
        }
        let mut strictest: Option<(Decision, Option<u32>)> = None;
        for part in request {
            let part = std::slice::from_ref(part);
            let reply = self.call_rules(operation, &self.rule_args(part), None, self.deadline).await?;
            let decision = binding_decision(&reply, part);
            strictest = Some(match strictest {
                Some((other, taken)) => (other.and(decision), taken.min(reply.taken)),
                None => (decision, reply.taken),
            });
        }
        Ok(strictest.expect("a request has at least one part"))
    }

    /// Returns the parts whose rules are rate limits, and not concurrency limits.
    pub(crate) fn rate_parts<'a>(&self, request: &[Part<'a>]) -> impl Iterator<Item = Part<'a>> {
        request.iter().copied().filter(|part| !self.spec(part).is_concurrency)
    }

    pub(crate) fn spec(&self, part: &Part<'_>) -> &RuleSpec {
        &self.rules[usize::from(part.rule.0)]
    }

    /// Returns the Redis key of each part.
    pub(crate) fn key_names(&self, request: &[Part<'_>]) -> Vec<Vec<u8>> {
        request.iter().map(|part| self.keys.name(&self.spec(part).name, part.key.bytes())).collect()
    }

    pub(crate) fn rule_args<'a>(&'a self, request: &[Part<'_>]) -> Vec<RuleArgs<'a>> {
        let named = request.iter().zip(self.key_names(request));
        named
            .map(|(part, key)| RuleArgs {
                key,
                cost: part.cost,
                extra: CostExtra::None,
                rule: &self.spec(part).encoded,
            })
            .collect()
    }

    /// Calls the script for rules unless the breaker is open, and records the result.
    pub(crate) async fn call_rules(
        &self,
        operation: Operation,
        rules: &[RuleArgs<'_>],
        id: Option<&[u8]>,
        within: Duration,
    ) -> Result<Reply, Error> {
        let call = Call { sha: &self.sha, payload: Payload::Rules { operation, rules, id } };
        self.call_script(self.connection_for_rules(rules), &call, within, |value| wire::decode(value, rules))
            .await
    }

    /// Calls any script unless the breaker is open, and records the result.
    pub(crate) async fn call_script<T>(
        &self,
        connection: &Connection,
        call: &Call<'_>,
        within: Duration,
        decode: impl FnOnce(&redis::Value) -> Option<T>,
    ) -> Result<T, Error> {
        if self.breaker.is_open() {
            return Err(Error::breaker_open());
        }
        if within.is_zero() {
            return Err(Error::timeout());
        }
        let _in_flight = self.in_flight.enter().ok_or(Error::too_many_in_flight())?;
        let reply = self.send(connection, call, within, decode).await;
        match &reply {
            Ok(_) => {
                self.breaker.succeeded();
                self.outage.redis_replied();
            }
            Err(error) => {
                self.monitor.record_error(error);
                if error.is_server_failure() {
                    self.breaker.failed();
                }
            }
        }
        reply
    }

    /// Calls the script for rules even while the breaker is open.
    pub(crate) async fn call_despite_breaker(
        &self,
        connection: &Connection,
        operation: Operation,
        rules: &[RuleArgs<'_>],
        id: Option<&[u8]>,
    ) -> Result<Reply, Error> {
        let call = Call { sha: &self.sha, payload: Payload::Rules { operation, rules, id } };
        self.send(connection, &call, self.deadline, |value| wire::decode(value, rules)).await
    }

    async fn send<T>(
        &self,
        connection: &Connection,
        call: &Call<'_>,
        within: Duration,
        decode: impl FnOnce(&redis::Value) -> Option<T>,
    ) -> Result<T, Error> {
        let (transport, number) = connection.transport()?;
        self.monitor.count_command();
        match tokio::time::timeout(within, send(connection, transport, call)).await {
            Ok(Ok(value)) => {
                connection.received_reply();
                decode(&value).ok_or(Error::unexpected_reply())
            }
            Ok(Err(error)) => {
                connection.failed(number, &error);
                Err(Error::from_redis(&error))
            }
            Err(_) => {
                connection.timed_out(number);
                Err(Error::timeout())
            }
        }
    }

    pub(crate) fn connection_for_rules(&self, rules: &[RuleArgs<'_>]) -> &Connection {
        self.connection_for(rules.last().map_or(&[], |args| &args.key))
    }

    /// Chooses the connection for a key.
    ///
    /// Requests for one key use the same connection, so that they arrive in the order in which they were made. If that
    /// connection is down, another one is used.
    pub(crate) fn connection_for(&self, key: &[u8]) -> &Connection {
        let bytes = key.iter().skip(TAG_OFFSET).take(2); // of the tag, which is a hash
        let first = bytes.map(|byte| usize::from(*byte)).sum::<usize>() % self.connections.len();
        let (before, from) = self.connections.split_at(first);
        let mut candidates = from.iter().chain(before);
        candidates.find(|connection| connection.transport().is_ok()).unwrap_or(&self.connections[first])
    }

    fn health(&self) -> Health {
        let found: Vec<_> = self.connections.iter().map(|connection| connection.findings()).collect();
        let mut warnings: Vec<String> = found.iter().flatten().flat_map(|it| it.warnings.clone()).collect();
        warnings.sort();
        warnings.dedup();
        let down = found.iter().find_map(|found| found.as_ref().err().cloned());
        Health {
            enforced: self.monitor.enforced(),
            connections: (found.iter().flatten().count(), found.len()),
            breaker_open: self.breaker.is_open(),
            breaker_openings: self.breaker.openings(),
            server: found.iter().flatten().map(|it| it.server.clone()).next().unwrap_or_default(),
            warnings,
            last_error: down.or_else(|| self.monitor.last_error()),
            decisions: self.monitor.decisions(),
            fallbacks: self.monitor.fallbacks(),
            commands: self.monitor.commands(),
        }
    }
}

/// Sends a call, and sends it again if nothing was done.
///
/// That is so if the script was not loaded, or the key is on another node of the cluster. The script may be flushed
/// once more while another task loads it, so one retry is not enough.
async fn send(
    connection: &Connection,
    mut transport: Transport,
    call: &Call<'_>,
) -> Result<redis::Value, redis::RedisError> {
    for _ in 0..NO_SCRIPT_RETRIES {
        let loads = connection.loads();
        match transport.call(call).await {
            Err(error) if is_no_script(&error) => connection.load(&mut transport, loads).await?,
            Err(error) if is_redirection(&error) => return transport.follow_redirection(call, &error).await,
            reply => return reply,
        }
    }
    transport.call(call).await
}

/// Returns the time left until a deadline.
pub(crate) fn time_left(deadline: Deadline) -> Duration {
    deadline.saturating_duration_since(Deadline::now())
}

/// Returns the decision of the binding part.
pub(crate) fn binding_decision(reply: &Reply, request: &[Part<'_>]) -> Decision {
    reply.decisions[reply.binding].of_rule(request[reply.binding].rule)
}

fn spans_keys(request: &[Part<'_>]) -> bool {
    request.iter().any(|part| part.key != request[0].key)
}

// === impl InFlight ===

impl InFlight {
    pub(crate) const fn at_most(max: usize) -> Self {
        InFlight { count: AtomicUsize::new(0), max }
    }

    fn enter(&self) -> Option<InFlightGuard<'_>> {
        let guard = InFlightGuard(self);
        (self.count.fetch_add(1, Ordering::Relaxed) < self.max).then_some(guard)
    }
}

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl Ids ===

impl Ids {
    pub(crate) fn random() -> Self {
        Ids { process: RandomState::new().hash_one(std::process::id()), next: AtomicU64::new(0) }
    }

    pub(crate) fn next(&self) -> Vec<u8> {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        [self.process.to_be_bytes(), next.to_be_bytes()].concat()
    }
}

impl RuleSpec {
    pub(crate) fn rate(name: String, rule: &Rule) -> Self {
        RuleSpec {
            name,
            encoded: WireRule::rate(rule),
            lease: Duration::ZERO,
            is_concurrency: false,
            lease_terms: None,
        }
    }

    pub(crate) fn concurrency(name: String, limit: u32, lease: Duration) -> Self {
        RuleSpec {
            name,
            encoded: WireRule::concurrency(limit, lease),
            lease,
            is_concurrency: true,
            lease_terms: None,
        }
    }
}
