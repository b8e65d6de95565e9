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
use std::time::{Duration, Instant};

use tidegate::{Admission, Answer, Awaited, Gate, InvalidRequest, Part, Permits, WaitingGate, validate};
use tidegate_core::{Decision, Rule, RuleId, Taken};
use tokio::runtime::Handle;
use tokio::time::Instant as Deadline;

use crate::breaker::Breaker;
use crate::build::Builder;
use crate::connection::{Connection, Transport};
use crate::error::{Error, is_no_script, is_redirection};
use crate::health::{Counts, Health};
use crate::keys::{BEFORE_THE_TAG, Keys};
use crate::lease::LeaseTerms;
use crate::outage::Outage;
use crate::permits::{Entry, HeldPermit, HeldPermits};
use crate::prober::Canary;
use crate::wait::Until;
use crate::wait_queue::WaitQueues;
use crate::wire::{self, Call, Described, Line, Payload, Reply, Terms, Verb};

/// Rules with their states in Redis or Valkey, shared by all gates that use the same server.
///
/// ```no_run
/// use tidegate::{Part, Quota};
/// use tidegate_redis::{RedisGate, OnOutage};
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let gate = RedisGate::builder("redis://127.0.0.1/")
///     .rule("everybody", Quota::per_second(5_000)).on_outage(OnOutage::Open)
///     .rule("user", Quota::per_second(10))
///     .connect()
///     .await?;
/// let [everybody, user] = ["everybody", "user"].map(|name| gate.id(name).unwrap());
///
/// let admission = gate.check(&[Part::of(everybody), Part::of(user).key("alice")]).await?;
/// if !admission.is_allowed() {
///     println!("{} says: {}", gate.name(admission.decision.rule).unwrap(), admission.decision);
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
    pub(crate) sha: String,
    /// The hash of the other script, for ad-hoc limits.
    pub(crate) sha_of_brought: String,
    pub(crate) connections: Box<[Arc<Connection>]>,
    pub(crate) is_cluster: bool,
    pub(crate) breaker: Arc<Breaker>,
    pub(crate) in_flight: InFlight,
    pub(crate) deadline: Duration,
    /// The number of gates that share the limits.
    pub(crate) nodes: u32,
    pub(crate) outage: Outage,
    pub(crate) counts: Counts,
    pub(crate) canary: Canary,
    pub(crate) runtime: Handle,
    pub(crate) waiting: WaitQueues,
    pub(crate) ids: Ids,
}

/// A rule as it was configured.
#[derive(Debug)]
pub(crate) struct RuleSpec {
    pub(crate) name: String,
    pub(crate) described: Described,
    /// For a concurrency rule: how long a permit is held without being renewed.
    pub(crate) lease: Duration,
    pub(crate) is_places: bool,
    /// How the rule is leased, if it is.
    pub(crate) terms: Option<LeaseTerms>,
}

/// How many times a call is sent again because the script was not loaded.
const NO_SCRIPT_RETRIES: usize = 3;

/// An owned copy of a request, which outlives the caller's borrow.
pub(crate) struct OwnedRequest(Vec<(RuleId, Vec<u8>, u32)>);

/// The number of requests in flight, and its maximum.
#[derive(Debug)]
pub(crate) struct InFlight {
    count: AtomicUsize,
    most: usize,
}

/// Counts one request in flight until it is dropped.
struct UnderWay<'a>(&'a InFlight);

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

    /// Returns the name of a rule, for example of the binding one.
    #[must_use]
    pub fn name(&self, rule: RuleId) -> Option<&str> {
        self.shared.rules.get(usize::from(rule.0)).map(|rule| rule.name.as_str())
    }

    /// Decides whether all parts of `request` may pass now; charges all of them or none.
    ///
    /// # Errors
    ///
    /// [`InvalidRequest`] if the request is empty, names an unknown rule, or names the same rule and key twice. Neither
    /// a refusal nor an outage of Redis is an error.
    pub async fn check(&self, request: &[Part<'_>]) -> Result<Admission, InvalidRequest> {
        self.shared.validate(request)?;
        Ok(self.shared.check(request, self.shared.until()).await)
    }

    /// As [`check`](RedisGate::check), with the decision of each part in [`Admission::rules`].
    ///
    /// The list is empty if these decisions are unknown: because Redis did not decide, or because parts with different
    /// keys were decided one after another in a cluster.
    ///
    /// # Errors
    ///
    /// As [`check`](RedisGate::check).
    pub async fn check_each(&self, request: &[Part<'_>]) -> Result<Admission, InvalidRequest> {
        self.shared.validate(request)?;
        Ok(self.shared.check_each(request, self.shared.until()).await)
    }

    /// As [`check`](RedisGate::check), but waits until the request may pass.
    ///
    /// Refuses only what can never pass.
    ///
    /// Waiters of this process queue for the state that refused them, first come, first served, and only the first
    /// waiter of a queue sends requests to Redis. There is no order between waiters of different processes, nor between
    /// waiters and plain checks.
    ///
    /// # Errors
    ///
    /// As [`check`](RedisGate::check).
    pub async fn acquire(&self, request: &[Part<'_>]) -> Result<Admission, InvalidRequest> {
        self.acquire_in(request, Until(None)).await
    }

    /// As [`acquire`](RedisGate::acquire), but waits at most `timeout`.
    ///
    /// Refuses immediately if that cannot suffice.
    ///
    /// # Errors
    ///
    /// As [`check`](RedisGate::check).
    pub async fn acquire_timeout(
        &self,
        request: &[Part<'_>],
        timeout: Duration,
    ) -> Result<Admission, InvalidRequest> {
        self.acquire_in(request, Until::after(timeout)).await
    }

    /// As [`acquire`](RedisGate::acquire), but waits at most until `deadline`.
    ///
    /// Refuses immediately if that cannot suffice.
    ///
    /// # Errors
    ///
    /// As [`check`](RedisGate::check).
    pub async fn acquire_until(
        &self,
        request: &[Part<'_>],
        deadline: Instant,
    ) -> Result<Admission, InvalidRequest> {
        self.acquire_in(request, Until(Some(deadline.into()))).await
    }

    async fn acquire_in(&self, request: &[Part<'_>], until: Until) -> Result<Admission, InvalidRequest> {
        self.shared.validate(request)?;
        Ok(crate::wait::acquire(&self.shared, request, until).await)
    }

    /// Decides as [`check`](RedisGate::check) would, but charges nothing.
    ///
    /// # Errors
    ///
    /// As [`check`](RedisGate::check).
    pub async fn peek(&self, request: &[Part<'_>]) -> Result<Result<Decision, Error>, InvalidRequest> {
        self.shared.validate(request)?;
        Ok(self.shared.ask_each(Verb::Peek, request).await.map(|reply| reply.0))
    }

    /// Takes as much of `most` as all parts have left, which may be 0.
    ///
    /// The costs of the parts are ignored, and concurrency rules are left out. In a cluster, different amounts may be
    /// taken from parts with different keys; the result is the smallest.
    ///
    /// # Errors
    ///
    /// As [`check`](RedisGate::check); the inner error says why Redis did not decide.
    pub async fn take(
        &self,
        request: &[Part<'_>],
        most: u32,
    ) -> Result<Result<Taken, Error>, InvalidRequest> {
        self.shared.validate(request)?;
        let request: Vec<Part<'_>> = self.shared.rates(request).map(|part| part.cost(most)).collect();
        if request.is_empty() {
            return Err(InvalidRequest::Empty);
        }
        let answer = self.shared.ask_each(Verb::Take, &request).await;
        Ok(answer.map(|(decision, amount)| Taken { amount: amount.unwrap_or(0), decision }))
    }

    /// Refunds what a recent charge took from each part, never above the limit.
    ///
    /// Permits of concurrency rules are returned by dropping them.
    ///
    /// # Errors
    ///
    /// As [`check`](RedisGate::check); the inner error says why Redis did not do it.
    pub async fn refund(&self, request: &[Part<'_>]) -> Result<Result<(), Error>, InvalidRequest> {
        self.shared.validate(request)?;
        let request: Vec<Part<'_>> = self.shared.rates(request).collect();
        if request.is_empty() {
            return Ok(Ok(()));
        }
        Ok(self.shared.ask_each(Verb::Refund, &request).await.map(|_| ()))
    }

    /// Clears the recorded usage of each part's key under its rule, and every permit held on it.
    ///
    /// # Errors
    ///
    /// As [`refund`](RedisGate::refund).
    pub async fn reset(&self, request: &[Part<'_>]) -> Result<Result<(), Error>, InvalidRequest> {
        self.shared.validate(request)?;
        Ok(self.shared.ask_each(Verb::Reset, request).await.map(|_| ()))
    }

    /// Returns the name of the string in Redis that holds the state of this part.
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
            while self.shared.counts.enforced() != Some(true) || self.shared.breaker.is_open() {
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
/// Once `decide` has returned, Redis is asked even if the caller stops waiting for the answer. Otherwise a client that
/// resets its request quickly enough would not be counted.
impl Gate for RedisGate {
    fn decide<'a>(&'a self, request: &'a [Part<'a>]) -> Answer<'a> {
        self.decide_in_task(request, Tell::Binding)
    }

    fn decide_each<'a>(&'a self, request: &'a [Part<'a>]) -> Answer<'a> {
        self.decide_in_task(request, Tell::Each)
    }

    fn rule(&self, name: &str) -> Option<RuleId> {
        self.id(name)
    }
}

impl RedisGate {
    fn decide_in_task<'a>(&'a self, request: &'a [Part<'a>], tell: Tell) -> Answer<'a> {
        if let Err(invalid) = self.shared.validate(request) {
            return Answer::Ready(Err(invalid));
        }
        if self.shared.breaker.is_open() {
            return Answer::Ready(Ok(self.shared.without_redis(request, &Error::NotAsked)));
        }
        let (shared, kept, until) = (self.shared.clone(), OwnedRequest::of(request), self.shared.until());
        let asking = self.shared.runtime.spawn(async move {
            match tell {
                Tell::Binding => shared.check(&kept.parts(), until).await,
                Tell::Each => shared.check_each(&kept.parts(), until).await,
            }
        });
        Answer::Pending(Box::pin(async move {
            // The task fails to finish only if the runtime is shutting down.
            let answer = asking.await;
            Ok(answer.unwrap_or_else(|_| self.shared.without_redis(request, &Error::NotAsked)))
        }))
    }
}

impl WaitingGate for RedisGate {
    fn wait_within<'a>(&'a self, request: &'a [Part<'a>], within: Duration) -> Awaited<'a> {
        Box::pin(async move { Ok(self.acquire_timeout(request, within).await?) })
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
pub(crate) enum Tell {
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
    pub(crate) fn until(&self) -> Deadline {
        Deadline::now() + self.deadline
    }

    /// Decides a valid request, by `until` at the latest.
    pub(crate) async fn check(self: &Arc<Self>, request: &[Part<'_>], until: Deadline) -> Admission {
        let decided = if self.is_cluster && spans_keys(request) {
            crate::cross_slot::check(self, request, until).await
        } else {
            self.check_together(request, left(until)).await.map(|(admission, _)| admission)
        };
        match decided {
            Ok(admission) => {
                self.counts.count(admission.decision.source);
                admission
            }
            Err(error) => self.without_redis(request, &error),
        }
    }

    pub(crate) async fn check_each(self: &Arc<Self>, request: &[Part<'_>], until: Deadline) -> Admission {
        if self.is_cluster && spans_keys(request) {
            return self.check(request, until).await;
        }
        match self.check_together(request, left(until)).await {
            Ok((admission, reply)) => {
                self.counts.count(admission.decision.source);
                let rules = reply.decisions.iter().zip(request).map(|(said, part)| said.of_rule(part.rule));
                Admission { rules: rules.collect(), ..admission }
            }
            Err(error) => self.without_redis(request, &error),
        }
    }

    /// Decides all parts in one call. The reply has the decision of each part.
    pub(crate) async fn check_together(
        self: &Arc<Self>,
        request: &[Part<'_>],
        within: Duration,
    ) -> Result<(Admission, Reply), Error> {
        let queues = self.queues(request);
        // Created before the call is sent: if the reply is lost or the caller stops waiting, permits may be held all
        // the same.
        let places = self.id_for(request).map(|id| self.places(id, request, &queues));
        let id = places.as_ref().map(HeldPermits::id);
        let reply = self.ask(Verb::Check, &queues, id.as_deref(), within).await?;
        let decision = bound(&reply, request);
        let permits = match places {
            Some(places) if decision.is_allowed() => Permits::none().with(Box::new(places.held())),
            Some(places) => places.none_taken(),
            None => Permits::none(),
        };
        Ok((Admission { permits, ..Admission::without_permits(decision) }, reply))
    }

    /// Returns a new id for the permits of the request, if it asks for any.
    fn id_for(&self, request: &[Part<'_>]) -> Option<Vec<u8>> {
        request.iter().any(|part| self.spec(part).is_places).then(|| self.ids.next())
    }

    fn places(self: &Arc<Self>, id: Vec<u8>, request: &[Part<'_>], queues: &[Line<'_>]) -> HeldPermits {
        let places = request.iter().zip(queues).filter(|(part, _)| self.spec(part).is_places);
        let places = places.map(|(part, line)| HeldPermit {
            key: line.key.clone(),
            rule: usize::from(part.rule.0),
            cost: line.cost,
        });
        HeldPermits::asked_for(Entry { shared: self.clone(), id, places: places.collect() })
    }

    /// Decides without Redis.
    pub(crate) fn without_redis(&self, request: &[Part<'_>], error: &Error) -> Admission {
        self.counts.saw(error);
        self.counts.fell_back(error);
        let admission = self.outage.check(request);
        self.counts.count(admission.decision.source);
        admission
    }

    /// Runs the same verb for all parts, one part at a time if keys differ in a cluster.
    ///
    /// Only for verbs that change nothing or cannot be refused.
    pub(crate) async fn ask_each(
        &self,
        verb: Verb,
        request: &[Part<'_>],
    ) -> Result<(Decision, Option<u32>), Error> {
        if !(self.is_cluster && spans_keys(request)) {
            let reply = self.ask(verb, &self.queues(request), None, self.deadline).await?;
            return Ok((bound(&reply, request), reply.taken));
        }
        let mut strictest: Option<(Decision, Option<u32>)> = None;
        for part in request {
            let part = std::slice::from_ref(part);
            let reply = self.ask(verb, &self.queues(part), None, self.deadline).await?;
            let decision = bound(&reply, part);
            strictest = Some(match strictest {
                Some((other, taken)) => (other.and(decision), taken.min(reply.taken)),
                None => (decision, reply.taken),
            });
        }
        Ok(strictest.expect("a request has at least one part"))
    }

    /// Returns the parts that are not of concurrency rules.
    pub(crate) fn rates<'a>(&self, request: &[Part<'a>]) -> impl Iterator<Item = Part<'a>> {
        request.iter().copied().filter(|part| !self.spec(part).is_places)
    }

    pub(crate) fn spec(&self, part: &Part<'_>) -> &RuleSpec {
        &self.rules[usize::from(part.rule.0)]
    }

    /// Returns the names of the strings in Redis.
    pub(crate) fn names(&self, request: &[Part<'_>]) -> Vec<Vec<u8>> {
        request.iter().map(|part| self.keys.name(&self.spec(part).name, part.key.bytes())).collect()
    }

    pub(crate) fn queues<'a>(&'a self, request: &[Part<'_>]) -> Vec<Line<'a>> {
        let named = request.iter().zip(self.names(request));
        named
            .map(|(part, key)| Line {
                key,
                cost: part.cost,
                terms: Terms::Plain,
                rule: &self.spec(part).described,
            })
            .collect()
    }

    /// Calls the script unless the breaker is open, and records the result.
    pub(crate) async fn ask(
        &self,
        verb: Verb,
        queues: &[Line<'_>],
        id: Option<&[u8]>,
        within: Duration,
    ) -> Result<Reply, Error> {
        let call = Call { sha: &self.sha, said: Payload::Rules { verb, queues, id } };
        self.put(self.link_of(queues), &call, within, |value| wire::read(value, queues)).await
    }

    /// Makes a call to any script unless the breaker is open, and records the result.
    pub(crate) async fn put<T>(
        &self,
        connection: &Connection,
        call: &Call<'_>,
        within: Duration,
        read: impl FnOnce(&redis::Value) -> Option<T>,
    ) -> Result<T, Error> {
        if self.breaker.is_open() {
            return Err(Error::NotAsked);
        }
        if within.is_zero() {
            return Err(Error::TooLate);
        }
        let _under_way = self.in_flight.enter().ok_or(Error::TooManyInFlight)?;
        let answer = self.send(connection, call, within, read).await;
        match &answer {
            Ok(_) => {
                self.breaker.succeeded();
                self.outage.is_over();
            }
            Err(error) => {
                self.counts.saw(error);
                if error.is_the_servers() {
                    self.breaker.failed();
                }
            }
        }
        answer
    }

    /// Calls the script even while the breaker is open.
    pub(crate) async fn send_in_time(
        &self,
        connection: &Connection,
        verb: Verb,
        queues: &[Line<'_>],
        id: Option<&[u8]>,
    ) -> Result<Reply, Error> {
        let call = Call { sha: &self.sha, said: Payload::Rules { verb, queues, id } };
        self.send(connection, &call, self.deadline, |value| wire::read(value, queues)).await
    }

    async fn send<T>(
        &self,
        connection: &Connection,
        call: &Call<'_>,
        within: Duration,
        read: impl FnOnce(&redis::Value) -> Option<T>,
    ) -> Result<T, Error> {
        let (transport, number) = connection.transport()?;
        self.counts.asked();
        match tokio::time::timeout(within, send(connection, transport, call)).await {
            Ok(Ok(value)) => {
                connection.answered();
                read(&value).ok_or(Error::Nonsense)
            }
            Ok(Err(error)) => {
                connection.failed(number, &error);
                Err(Error::of(&error))
            }
            Err(_) => {
                connection.is_late(number);
                Err(Error::TooLate)
            }
        }
    }

    pub(crate) fn link_of(&self, queues: &[Line<'_>]) -> &Connection {
        self.link_to(queues.last().map_or(&[], |line| &line.key))
    }

    /// Chooses the connection for a key.
    ///
    /// Requests for one key use the same connection, so that they arrive in the order in which they were made. If that
    /// connection is down, another one is used.
    pub(crate) fn link_to(&self, key: &[u8]) -> &Connection {
        let letters = key.iter().skip(BEFORE_THE_TAG).take(2); // of its tag, which is a hash
        let first = letters.map(|letter| usize::from(*letter)).sum::<usize>() % self.connections.len();
        let (before, from) = self.connections.split_at(first);
        let mut in_turn = from.iter().chain(before);
        in_turn.find(|connection| connection.transport().is_ok()).unwrap_or(&self.connections[first])
    }

    fn health(&self) -> Health {
        let found: Vec<_> = self.connections.iter().map(|connection| connection.findings()).collect();
        let mut warnings: Vec<String> = found.iter().flatten().flat_map(|it| it.warnings.clone()).collect();
        warnings.sort();
        warnings.dedup();
        let down = found.iter().find_map(|found| found.as_ref().err().cloned());
        Health {
            enforced: self.counts.enforced(),
            connections: (found.iter().flatten().count(), found.len()),
            not_asked: self.breaker.is_open(),
            openings: self.breaker.openings(),
            server: found.iter().flatten().map(|it| it.server.clone()).next().unwrap_or_default(),
            warnings,
            last_trouble: down.or_else(|| self.counts.last_trouble()),
            decisions: self.counts.decisions(),
            fallbacks: self.counts.fallbacks(),
            commands: self.counts.commands(),
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
        match transport.ask(call).await {
            Err(error) if is_no_script(&error) => connection.load(&mut transport, loads).await?,
            Err(error) if is_redirection(&error) => return transport.ask_as_told(call, &error).await,
            reply => return reply,
        }
    }
    transport.ask(call).await
}

/// Returns the time left until a deadline.
pub(crate) fn left(until: Deadline) -> Duration {
    until.saturating_duration_since(Deadline::now())
}

/// Returns the decision of the binding part.
pub(crate) fn bound(reply: &Reply, request: &[Part<'_>]) -> Decision {
    reply.decisions[reply.binding].of_rule(request[reply.binding].rule)
}

fn spans_keys(request: &[Part<'_>]) -> bool {
    request.iter().any(|part| part.key != request[0].key)
}

// === impl InFlight ===

impl InFlight {
    pub(crate) const fn at_most(most: usize) -> Self {
        InFlight { count: AtomicUsize::new(0), most }
    }

    fn enter(&self) -> Option<UnderWay<'_>> {
        let under_way = UnderWay(self);
        (self.count.fetch_add(1, Ordering::Relaxed) < self.most).then_some(under_way)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl Ids ===

impl Ids {
    pub(crate) fn draw() -> Self {
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
            described: Described::rule(rule),
            lease: Duration::ZERO,
            is_places: false,
            terms: None,
        }
    }

    pub(crate) fn places(name: String, limit: u32, lease: Duration) -> Self {
        RuleSpec { name, described: Described::places(limit, lease), lease, is_places: true, terms: None }
    }
}
