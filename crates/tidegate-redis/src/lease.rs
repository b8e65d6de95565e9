//! # Leases: one round trip for many decisions
//!
//! Sharing a limit costs one round trip per request. A leased rule pays it once per grant: tokens that Redis has
//! already deducted, and that this process spends without a round trip.
//!
//! ```text
//!                        ┌── grant, 60 left ──┐   spend, spend, spend …       no round trip
//!   request ─► account ──┤                    │
//!                        └── 15 left: request the next ──► Redis: ├─ granted, may be unspent ─┼─ used ─┼─ left ─┤
//!                                                                              └─ does not refill beyond this
//! ```
//!
//! Leases never admit more than the limit alone would, whatever message is lost and whichever process dies. The reverse
//! may happen: a node refuses while another node holds tokens that it does not need. Tokens that have been idle for
//! half of their lifetime are returned, and all tokens expire at its end.
//!
//! Setting a stock aside would be simpler: a shared bucket of the burst minus the stock, whether or not
//! anything is granted. A limit of 100 with a stock of 50 then has half of its burst for strict requests. So
//! grants are stored in the string of the bucket, and the bucket refills up to the granted tokens that may be
//! unspent. A node that reports what is left of its grants makes room immediately. A bucket without grants is
//! an ordinary one, byte for byte, so leasing can be switched on and off while the bucket is in use.
//!
//! Why this never admits too much: let *used* be what Redis counts, *unspent* what nodes may still spend, and
//! *exact* what an exact bucket would count. Then *used − unspent ≥ exact* holds for an empty bucket, and
//! stays true. A grant adds to used and to unspent. Spending moves tokens from unspent to exact. A return
//! subtracts from used and from unspent. Expired tokens leave unspent and stay in used. Time lowers exact and
//! used alike, except that used stops at the live grants, where used − unspent is at least zero, and exact
//! cannot be less. Tokens are granted only while *used ≤ burst*, so exact never exceeds the burst.
//!
//! | module | contents |
//! |---|---|
//! | `grant` | granted tokens and when they expire; reserved tokens and when they can be claimed |
//! | `account` | the grants and the reservation of one key, and how many tokens to request |
//! | `accounts` | all accounts |
//! | `token_cache` | tokens that can be spent without locking the shard of an account |
//! | `thread_cache` | the token caches that a thread has used recently |
//! | `refill` | requests grants from Redis and returns them |
//! | `client_grant` | grants for clients, which spend them in another program |
//! | `operations` | peek, refund, reset, and checks with the decision of each part |
//! | `striped` | a counter for many threads |
//! | `clock` | the clock for the expiry of grants |

mod account;
mod accounts;
mod client_grant;
mod clock;
mod grant;
mod operations;
mod refill;
mod striped;
#[cfg(test)]
mod tests;
mod thread_cache;
mod token_cache;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use tidegate::clock::{Clock, Micros};
use tidegate::gate::{Answer, Gate, Part};
use tidegate::{Admission, InvalidRequest, Source};
use tidegate_core::{Decision, Outcome, RuleId, Wait};

use crate::error::Error;
use crate::gate::{OwnedRequest, RedisGate, Scope};
use crate::request::Requests;
pub(crate) use account::LeaseTerms;
use account::{Account, Spend};
use accounts::Accounts;
pub use client_grant::{Granted, Receipt};
use clock::BootClock;
pub(crate) use refill::LeaseCounters;
use refill::{Refill, add};
use thread_cache::AccountId;

/// Settings for taking tokens of a rule in advance, to decide without a round trip.
///
/// ```
/// use std::time::Duration;
/// use tidegate_redis::Lease;
///
/// let default = Lease::new();
/// let careful = Lease::new().stock(50).ttl(Duration::from_millis(500));
/// # let _ = (default, careful);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a lease does nothing until a rule has it"]
pub struct Lease {
    stock: Option<u32>,
    ttl: Duration,
}

/// A gate that decides leased rules locally, from tokens that Redis has granted.
///
/// All other rules of a request are decided by Redis, in one call.
///
/// ```no_run
/// use tidegate::Quota;
/// use tidegate_redis::{Lease, RedisGate};
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let gate = RedisGate::builder("redis://127.0.0.1/")
///     .rule("global", Quota::per_second(50_000)).lease(Lease::new())
///     .rule("user", Quota::per_second(10))
///     .nodes(4)
///     .build()?
///     .leased();
/// if gate.limiter("global")?.check("").await.is_allowed() { /* decided locally */ }
///
/// // One call, for the user; the global rule is decided locally.
/// let decision = gate.request().rule("global").rule_for("user", "alice").check().await?;
/// # let _ = decision;
/// # Ok(())
/// # }
/// ```
///
/// Clones share the same gate. Dropping the last clone returns all unspent tokens.
#[derive(Clone)]
pub struct Leased {
    refill: Arc<Refill>,
    _return_on_drop: Arc<ReturnOnDrop>,
}

/// Returns all unspent tokens when the last clone is dropped.
struct ReturnOnDrop(Arc<Refill>);

/// Why a rule cannot be leased, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CannotLease(String);

/// Statistics of leases in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseStats {
    /// Requests that were allowed without a round trip of their own.
    pub spent: u64,
    /// Requests that were refused without a round trip.
    pub refused: u64,
    /// Commands that were sent to Redis to take and return tokens.
    pub commands: u64,
    /// Tokens that Redis has granted.
    pub granted: u64,
    /// Tokens that were returned unspent.
    pub returned: u64,
    /// Tokens that expired unspent.
    pub expired: u64,
    /// Tokens of commands without a reply: it is unknown whether they were granted or returned. They expire.
    pub stranded: u64,
}

/// A rule is leased only if it may grant at least `MIN_GRANT × (nodes + 1)` tokens.
///
/// Below that, grants are too small to be worthwhile.
const MIN_GRANT: u64 = 4;
/// The maximum number of keys that are leased at the same time.
const MAX_KEYS: usize = 1 << 20;
/// How many times a request waits for a grant before Redis decides it.
const MAX_ATTEMPTS: usize = 3;
/// The largest stock. Sums of a few grants still fit in 32 bits.
const MAX_STOCK: u64 = 1 << 30;
/// Tokens that arrive within this many microseconds are waited for.
///
/// That takes no longer than a reply of Redis would, so a refusal would be needless.
const SHORT_WAIT_MICROS: u64 = 1_000;

impl Lease {
    /// Returns the default settings: about 7/8 of the burst may be granted, for two seconds.
    pub const fn new() -> Self {
        Lease { stock: None, ttl: Duration::from_secs(2) }
    }

    /// Sets how many granted tokens may be unspent, on all nodes together.
    ///
    /// The default is the burst minus the larger of an eighth of it and one per node. The rest of the burst is what the
    /// local shares of the nodes may hold in an outage, so the stock of a bucket is never more than the burst minus one
    /// per node. Windows have no such reserve. A stock of more than 2³⁰ counts as 2³⁰.
    pub const fn stock(self, stock: u32) -> Self {
        Lease { stock: Some(stock), ..self }
    }

    /// Sets how long a grant may be spent; default two seconds.
    ///
    /// The tokens of a node that dies are unavailable for that long.
    pub const fn ttl(self, ttl: Duration) -> Self {
        Lease { ttl, ..self }
    }

    /// Returns how long a grant may be spent.
    #[must_use]
    pub const fn get_ttl(&self) -> Duration {
        self.ttl
    }

    /// Returns the size of the largest grant, for a rule with this limit shared by so many nodes.
    ///
    /// `None` if grants would be too small; the rule then stays strict.
    ///
    /// ```
    /// use tidegate_redis::Lease;
    ///
    /// assert_eq!(Lease::new().grant(300, 2), Some(87));
    /// assert_eq!(Lease::new().stock(30).grant(300, 2), Some(10));
    /// assert_eq!(Lease::new().grant(11, 2), None);
    /// ```
    #[must_use]
    pub fn grant(&self, limit: u64, nodes: u32) -> Option<u32> {
        self.terms(b'b', limit, nodes).map(|terms| terms.max_grant)
    }

    /// Returns the terms for a rule of this kind and limit; `None` if grants would be too small.
    pub(crate) fn terms(&self, letter: u8, limit: u64, nodes: u32) -> Option<LeaseTerms> {
        let at_most = self.stock.map_or(limit, |stock| limit.min(stock.into()));
        let is_large_enough = at_most >= MIN_GRANT * (u64::from(nodes.max(1)) + 1);
        is_large_enough.then(|| self.any_terms(letter, limit, nodes))
    }

    /// Returns the terms, however small the grants are.
    pub(crate) fn any_terms(&self, letter: u8, limit: u64, nodes: u32) -> LeaseTerms {
        let (is_window, nodes) = (matches!(letter, b'w' | b'h'), u64::from(nodes.max(1)));
        let reserve = |least: u64| if is_window { 0 } else { least.max(nodes) };
        let stock = match self.stock {
            Some(stock) => limit.saturating_sub(reserve(0)).min(stock.into()),
            None => limit.saturating_sub(reserve(limit / 8)),
        };
        let stock = stock.min(MAX_STOCK);
        let ttl = u64::try_from(self.ttl.as_micros()).unwrap_or(u64::MAX).min(Micros::MAX.get() / 4);
        let share = |shares: u64| u32::try_from(stock / shares).unwrap_or(u32::MAX);
        let max_fast_grant = share(nodes).min(u32::try_from(3 * limit / (2 * nodes + 4)).unwrap_or(u32::MAX));
        LeaseTerms { stock: share(1), max_grant: share(nodes + 1), max_fast_grant, ttl, is_window }
    }

    /// Returns why a rule with this letter cannot be leased.
    pub(crate) fn validate(&self, name: &str, letter: u8) -> Result<(), CannotLease> {
        if !matches!(letter, b'b' | b'w' | b'h') {
            return Err(CannotLease(format!(
                "rule {name:?}: only token buckets and fixed windows can be leased; remove the lease"
            )));
        }
        if self.ttl < Duration::from_millis(20) || self.ttl > Duration::from_secs(3_600) {
            let ttl = self.ttl;
            return Err(CannotLease(format!(
                "rule {name:?}: a lease of {ttl:?} is out of range; use 20 ms to 1 h"
            )));
        }
        Ok(())
    }
}

impl Default for Lease {
    fn default() -> Self {
        Lease::new()
    }
}

impl RedisGate {
    /// Returns the gate with leases, for the rules that are [leased](crate::Builder::lease).
    #[must_use]
    pub fn leased(self) -> Leased {
        Leased::new(self)
    }
}

impl Leased {
    fn new(gate: RedisGate) -> Self {
        let lease_terms: Box<[Option<LeaseTerms>]> =
            gate.shared.rules.iter().map(|rule| rule.lease_terms).collect();
        let shortest = lease_terms.iter().flatten().map(|terms| terms.ttl).min();
        let refill = Arc::new(Refill {
            accounts: Accounts::new(MAX_KEYS),
            clock: BootClock,
            fetches_in_flight: AtomicUsize::new(0),
            has_no_leases: lease_terms.iter().all(Option::is_none),
            lease_terms,
            gate,
        });
        if let Some(ttl) = shortest {
            let sweep = Refill::sweep(Arc::downgrade(&refill), Duration::from_micros(ttl / 4));
            refill.gate.shared.runtime.spawn(sweep);
        }
        Leased { _return_on_drop: Arc::new(ReturnOnDrop(refill.clone())), refill }
    }

    /// Returns the underlying gate, which decides all other rules.
    #[must_use]
    pub fn strict(&self) -> &RedisGate {
        &self.refill.gate
    }

    /// Returns the statistics of leases so far.
    #[must_use]
    pub fn stats(&self) -> LeaseStats {
        let counters = self.refill.counters();
        let (spent, refused) = (counters.spent.sum(), counters.refused.sum());
        let [commands, granted, returned, expired, stranded] = [
            &counters.commands,
            &counters.granted,
            &counters.returned,
            &counters.expired,
            &counters.stranded,
        ]
        .map(|count| count.load(Ordering::Relaxed));
        LeaseStats { spent, refused, commands, granted, returned, expired, stranded }
    }

    /// Decides a request of parts; charges all of them or none. Returns an admission also when it refuses.
    ///
    /// For services that find rules by number. Programs use [`limiter`](Leased::limiter) or
    /// [`request`](Leased::request).
    ///
    /// # Errors
    ///
    /// As [`RedisGate::check_parts`].
    pub async fn check_parts(&self, request: &[Part<'_>]) -> Result<Admission, InvalidRequest> {
        self.check_parts_by(request, self.deadline()).await
    }

    /// As [`check_parts`](Leased::check_parts), but decides by `deadline`, without Redis if need be.
    ///
    /// For requests that arrive together and are decided one after another.
    ///
    /// # Errors
    ///
    /// As [`RedisGate::check_parts`].
    pub async fn check_parts_by(
        &self,
        request: &[Part<'_>],
        deadline: std::time::Instant,
    ) -> Result<Admission, InvalidRequest> {
        self.strict().shared.validate(request)?;
        Ok(self.check_valid_by(request, deadline.into()).await)
    }

    pub(crate) async fn check_valid_by(&self, request: &[Part<'_>], deadline: Instant) -> Admission {
        match self.decide_leased(request) {
            Some(admission) => admission,
            None if self.refill.has_no_leases => self.strict().shared.check(request, deadline).await,
            None => self.check_slow_path(request, deadline).await,
        }
    }

    /// Returns the deadline of a decision that begins now.
    #[must_use]
    pub fn deadline(&self) -> std::time::Instant {
        self.strict().shared.new_deadline().into()
    }

    /// As [`check_parts`](Leased::check_parts), but returns `None` and charges nothing if a round trip is needed.
    ///
    /// # Errors
    ///
    /// As [`check_parts`](Leased::check_parts).
    pub fn try_check_parts(&self, request: &[Part<'_>]) -> Result<Option<Admission>, InvalidRequest> {
        self.strict().shared.validate(request)?;
        Ok(self.decide_leased(request))
    }

    #[inline]
    fn decide_leased(&self, request: &[Part<'_>]) -> Option<Admission> {
        if self.refill.has_no_leases {
            return None;
        }
        self.decide_fast_path(request).map(Admission::without_permits)
    }

    /// Returns all unspent tokens to Redis, including the tokens of grants in flight.
    ///
    /// Later requests take new grants.
    pub async fn return_grants(&self) {
        let refill = &self.refill;
        refill.return_swept(refill.accounts.close(refill.clock.now())).await;
        let no_fetch_in_flight = async {
            while refill.fetches_in_flight.load(Ordering::Relaxed) > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let _ = tokio::time::timeout(self.strict().shared.deadline, no_fetch_in_flight).await; // give up after the deadline
    }

    /// Decides the request if all parts are leased and no round trip is needed.
    #[inline]
    fn decide_fast_path(&self, request: &[Part<'_>]) -> Option<Decision> {
        let now = self.refill.clock.now();
        let [part] = request else { return self.decide_parts_fast_path(request, now) };
        let Attempt::Decided(decision) = self.try_spend(part, now) else { return None };
        self.count(&decision);
        Some(decision)
    }

    fn decide_parts_fast_path(&self, request: &[Part<'_>], now: Micros) -> Option<Decision> {
        let mut spent_parts = SpentParts { leased: self, parts: Vec::new(), now };
        let mut strictest: Option<Decision> = None;
        for part in request {
            let Attempt::Decided(decision) = self.try_spend(part, now) else { return None };
            if !decision.is_allowed() {
                self.count(&decision);
                return Some(decision);
            }
            spent_parts.parts.push(*part);
            strictest = Some(strictest.map_or(decision, |other| other.and(decision)));
        }
        spent_parts.keep();
        strictest.inspect(|decision| self.count(decision))
    }

    /// Decides the request: waits for grants, and sends parts that are not leased to Redis.
    async fn check_slow_path(&self, request: &[Part<'_>], deadline: Instant) -> Admission {
        let now = self.refill.clock.now();
        let mut spent_parts = SpentParts { leased: self, parts: Vec::new(), now };
        let (mut strict, mut strictest) = (Vec::new(), None::<Decision>);
        for part in request {
            match self.spend(part, deadline).await {
                None => strict.push(*part),
                Some(decision) if !decision.is_allowed() => {
                    self.count(&decision);
                    return Admission::without_permits(decision);
                }
                Some(decision) => {
                    spent_parts.parts.push(*part);
                    strictest = Some(strictest.map_or(decision, |other| other.and(decision)));
                }
            }
        }
        let shared = &self.strict().shared;
        let Some(leased) = strictest else { return shared.check(request, deadline).await };
        if strict.is_empty() {
            spent_parts.keep();
            self.count(&leased);
            return Admission::without_permits(leased);
        }
        let admission = shared.check(&strict, deadline).await;
        if !admission.is_allowed() {
            return admission;
        }
        spent_parts.keep();
        self.count(&leased);
        let decision = leased.and(admission.decision);
        Admission { decision, ..admission }
    }

    /// Decides a leased part; `None` if Redis has to decide, or if no grant came in time.
    async fn spend(&self, part: &Part<'_>, deadline: Instant) -> Option<Decision> {
        for _ in 0..MAX_ATTEMPTS {
            match self.try_spend(part, self.refill.clock.now()) {
                Attempt::Decided(decision) => return Some(decision),
                Attempt::Strict => return None,
                Attempt::Soon(wait) => tokio::time::sleep(wait).await,
                Attempt::Wait(notify) => {
                    let notified = notify.notified();
                    if self.is_fetching(part) {
                        tokio::time::timeout_at(deadline, notified).await.ok()?;
                    }
                }
            }
        }
        None
    }

    fn is_fetching(&self, part: &Part<'_>) -> bool {
        self.refill
            .accounts
            .with_existing(self.account_id(part), |account| account.is_fetching())
            .unwrap_or(false)
    }

    #[inline]
    fn account_id<'a>(&self, part: &Part<'a>) -> AccountId<'a> {
        self.refill.accounts.id(usize::from(part.rule.0), part.key.bytes())
    }

    fn try_spend(&self, part: &Part<'_>, now: Micros) -> Attempt {
        let (rule, key) = (usize::from(part.rule.0), part.key.bytes());
        if !self.refill.lease_terms[rule].is_some_and(|terms| part.cost > 0 && part.cost <= terms.max_grant) {
            return Attempt::Strict;
        }
        match self.refill.accounts.spend_cached(rule, key, part.cost, now) {
            Some((left, full_at)) => {
                let full_in = Wait::micros(full_at.saturating_sub(now.get()));
                Attempt::Decided(self.decision(part, Outcome::Allowed, now, left, full_in))
            }
            None => self.spend_from_account(part, self.account_id(part), now),
        }
    }

    /// Spends from the account, when the thread cache does not have enough.
    fn spend_from_account(&self, part: &Part<'_>, id: AccountId<'_>, now: Micros) -> Attempt {
        let spent = self.refill.accounts.with(id, now, |account| {
            let spent = account.spend(part.cost, now);
            let notify = matches!(spent, Spend::Fetch | Spend::Wait).then(|| account.notify.clone());
            (spent, account.full_in(now), notify, account.take_expired())
        });
        let Some((spent, full_in, notify, expired)) = spent else { return Attempt::Strict };
        if expired > 0 {
            add(&self.refill.counters().expired, expired);
        }
        if matches!(spent, Spend::Fetch) && self.strict().shared.breaker.is_open() {
            self.refill.accounts.with_existing(id, Account::failed);
            return Attempt::Strict;
        }
        if matches!(spent, Spend::Fetch | Spend::Spent { fetch: true, .. }) {
            self.refill.start_fetch(id.rule, id.key, part.cost);
        }
        let decided =
            |outcome, left| Attempt::Decided(self.decision(part, outcome, now, left, Wait::micros(full_in)));
        match (spent, notify) {
            (Spend::Spent { left, .. }, _) => decided(Outcome::Allowed, left),
            (Spend::NotBefore(then), _) => match then.get().saturating_sub(now.get()).max(1) {
                soon @ ..=SHORT_WAIT_MICROS => Attempt::Soon(Duration::from_micros(soon)),
                later => decided(Outcome::RetryAfter(Wait::micros(later)), 0),
            },
            (_, Some(notify)) => Attempt::Wait(notify),
            (_, None) => Attempt::Strict,
        }
    }

    fn decision(&self, part: &Part<'_>, outcome: Outcome, now: Micros, left: u32, full_in: Wait) -> Decision {
        let limit = self.strict().shared.spec(part).encoded.limit();
        let mut decision = Decision::counted(outcome, now, limit, left.into(), full_in);
        decision.source = Source::Lease;
        decision.of_rule(part.rule)
    }

    fn count(&self, decision: &Decision) {
        let counters = self.refill.counters();
        if decision.is_allowed() { &counters.spent } else { &counters.refused }.add(1);
    }
}

/// The result of an attempt to spend.
enum Attempt {
    Decided(Decision),
    /// The tokens will be available in a moment.
    Soon(Duration),
    /// A request for a grant is in flight.
    Wait(Arc<tokio::sync::Notify>),
    Strict,
}

/// The tokens spent for a request that may yet be refused. Unless kept, they are put back.
struct SpentParts<'a, 'p> {
    leased: &'a Leased,
    parts: Vec<Part<'p>>,
    now: Micros,
}

impl SpentParts<'_, '_> {
    fn keep(mut self) {
        self.parts.clear();
    }
}

impl Drop for SpentParts<'_, '_> {
    fn drop(&mut self) {
        for part in &self.parts {
            let accounts = &self.leased.refill.accounts;
            accounts
                .with_existing(self.leased.account_id(part), |account| account.put_back(part.cost, self.now));
        }
    }
}

impl Drop for ReturnOnDrop {
    fn drop(&mut self) {
        let swept = self.0.accounts.close(self.0.clock.now());
        if swept.unspent.is_empty() && swept.expired == 0 {
            return;
        }
        let refill = self.0.clone();
        self.0.gate.shared.runtime.spawn(async move { refill.return_swept(swept).await });
    }
}

/// Decisions that need a round trip run in a task of their own.
///
/// As for a [`RedisGate`], they are finished even if the caller stops waiting for them.
impl Gate for Leased {
    fn decide<'a>(&'a self, request: &'a [Part<'a>]) -> Answer<'a> {
        if let Err(invalid) = self.strict().shared.validate(request) {
            return Answer::Ready(Err(invalid));
        }
        if let Some(decision) = self.decide_fast_path(request) {
            return Answer::Ready(Ok(Admission::without_permits(decision)));
        }
        self.decide_in_task(request, Scope::Binding)
    }

    fn decide_each<'a>(&'a self, request: &'a [Part<'a>]) -> Answer<'a> {
        if let [_] = request {
            return self.decide(request);
        }
        match self.strict().shared.validate(request) {
            Ok(()) => self.decide_in_task(request, Scope::Each),
            Err(invalid) => Answer::Ready(Err(invalid)),
        }
    }

    fn rule(&self, name: &str) -> Option<RuleId> {
        self.strict().id(name)
    }
}

impl Leased {
    fn decide_in_task<'a>(&'a self, request: &'a [Part<'a>], scope: Scope) -> Answer<'a> {
        let (leased, owned, deadline) =
            (self.clone(), OwnedRequest::of(request), self.strict().shared.new_deadline());
        let task = self.strict().shared.runtime.spawn(async move {
            match scope {
                Scope::Binding => leased.check_slow_path(&owned.parts(), deadline).await,
                Scope::Each => leased.check_each_valid(&owned.parts()).await,
            }
        });
        Answer::Pending(Box::pin(async move {
            let shared = &self.strict().shared;
            Ok(task.await.unwrap_or_else(|_| shared.without_redis(request, &Error::breaker_open())))
        }))
    }
}

impl fmt::Debug for Leased {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leased").field("gate", self.strict()).field("stats", &self.stats()).finish()
    }
}

impl fmt::Display for CannotLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CannotLease {}
