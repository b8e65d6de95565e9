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
//! | `verbs` | peek, refund, reset, and checks with the decision of each part |
//! | `striped` | a counter for many threads |
//! | `clock` | the clock for the expiry of grants |

mod account;
mod accounts;
mod client_grant;
mod clock;
mod grant;
mod refill;
mod striped;
#[cfg(test)]
mod tests;
mod thread_cache;
mod token_cache;
mod verbs;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use tidegate::{Admission, Answer, Clock, Gate, InvalidRequest, Micros, Part, Source};
use tidegate_core::{Decision, Outcome, RuleId, Wait};

use crate::error::Error;
use crate::gate::{OwnedRequest, RedisGate, Tell};
pub(crate) use account::LeaseTerms;
use account::{Account, Spend};
use accounts::Accounts;
pub use client_grant::{Granted, Receipt};
use clock::BootClock;
pub(crate) use refill::Counts;
use refill::{Refill, add};
use thread_cache::Name;

/// The settings of a leased rule.
///
/// ```
/// use std::time::Duration;
/// use tidegate_redis::Lease;
///
/// let usual = Lease::on();
/// let careful = Lease::on().stock(50).ttl(Duration::from_millis(500));
/// # let _ = (usual, careful);
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
/// use tidegate::{Part, Quota, RuleId};
/// use tidegate_redis::{Lease, RedisGate};
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let gate = RedisGate::builder("redis://127.0.0.1/")
///     .rule("everybody", Quota::per_second(50_000)).lease(Lease::on())
///     .rule("user", Quota::per_second(10))
///     .nodes(4)
///     .build()?
///     .leased();
/// let request = [Part::of(RuleId(0)), Part::of(RuleId(1)).key("alice")];
/// if gate.check(&request).await?.is_allowed() { /* one call, for the user; the other rule is decided here */ }
/// # Ok(())
/// # }
/// ```
///
/// Clones share the same gate. Dropping the last clone returns all unspent tokens.
#[derive(Clone)]
pub struct Leased {
    refill: Arc<Refill>,
    _closes: Arc<Closes>,
}

/// Returns all unspent tokens when the last clone is dropped.
struct Closes(Arc<Refill>);

/// The reason why a rule cannot be leased, in one sentence.
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
    /// Commands that leases have sent.
    pub asked: u64,
    /// Tokens that Redis has granted.
    pub granted: u64,
    /// Tokens that were returned unspent.
    pub returned: u64,
    /// Tokens that expired unspent.
    pub expired: u64,
    /// Tokens of commands without a reply: it is unknown whether they were granted or returned. They expire.
    pub stranded: u64,
}

/// A rule is leased only if it may grant at least `WORTH_IT × (nodes + 1)` tokens.
///
/// Below that, grants are too small to be worthwhile.
const WORTH_IT: u64 = 4;
/// The maximum number of keys that are leased at the same time.
const MOST_KEYS: usize = 1 << 20;
/// How many times a request waits for a grant before Redis decides it.
const TRIES: usize = 3;
/// Tokens that arrive within this many microseconds are waited for.
///
/// That takes no longer than a reply of Redis would, so a refusal would be needless.
const SOON: u64 = 1_000;

impl Lease {
    /// The default settings: about 7/8 of the burst may be granted and unspent, for two seconds.
    pub const fn on() -> Self {
        Lease { stock: None, ttl: Duration::from_secs(2) }
    }

    /// How many granted tokens may be unspent, on all nodes together.
    ///
    /// The default is the burst minus the larger of an eighth of it and one per node. The rest of the burst is what the
    /// local shares of the nodes may hold in an outage, so the stock of a bucket is never more than the burst minus one
    /// per node. Windows have no such reserve.
    pub const fn stock(self, stock: u32) -> Self {
        Lease { stock: Some(stock), ..self }
    }

    /// How long a grant may be spent; default two seconds.
    ///
    /// The tokens of a node that dies are unavailable for that long.
    pub const fn ttl(self, ttl: Duration) -> Self {
        Lease { ttl, ..self }
    }

    /// Returns how long a grant may be spent.
    #[must_use]
    pub const fn lasts(&self) -> Duration {
        self.ttl
    }

    /// Returns the size of the largest grant, for a rule with this limit shared by so many nodes.
    ///
    /// `None` if grants would be too small; the rule then stays strict.
    ///
    /// ```
    /// use tidegate_redis::Lease;
    ///
    /// assert_eq!(Lease::on().grant(300, 2), Some(87));
    /// assert_eq!(Lease::on().stock(30).grant(300, 2), Some(10));
    /// assert_eq!(Lease::on().grant(11, 2), None);
    /// ```
    #[must_use]
    pub fn grant(&self, limit: u64, nodes: u32) -> Option<u32> {
        self.terms(b'b', limit, nodes).map(|terms| terms.most)
    }

    /// Returns the terms for a rule of this kind and limit; `None` if grants would be too small.
    pub(crate) fn terms(&self, letter: u8, limit: u64, nodes: u32) -> Option<LeaseTerms> {
        let at_most = self.stock.map_or(limit, |stock| limit.min(stock.into()));
        let is_worth_it = at_most >= WORTH_IT * (u64::from(nodes.max(1)) + 1);
        is_worth_it.then(|| self.any_terms(letter, limit, nodes))
    }

    /// Returns the terms, however small the grants are.
    pub(crate) fn any_terms(&self, letter: u8, limit: u64, nodes: u32) -> LeaseTerms {
        let (is_window, nodes) = (matches!(letter, b'w' | b'h'), u64::from(nodes.max(1)));
        let reserve = |least: u64| if is_window { 0 } else { least.max(nodes) };
        let stock = match self.stock {
            Some(stock) => limit.saturating_sub(reserve(0)).min(stock.into()),
            None => limit.saturating_sub(reserve(limit / 8)),
        };
        let ttl = u64::try_from(self.ttl.as_micros()).unwrap_or(u64::MAX).min(Micros::MAX.get() / 4);
        let share = |shares: u64| u32::try_from(stock / shares).unwrap_or(u32::MAX);
        let stock = u32::try_from(stock).unwrap_or(u32::MAX);
        let most_if_quick = share(nodes).min(u32::try_from(3 * limit / (2 * nodes + 4)).unwrap_or(u32::MAX));
        LeaseTerms { stock, most: share(nodes + 1), most_if_quick, ttl, is_window }
    }

    /// Returns why a rule with this letter cannot be leased.
    pub(crate) fn validate(&self, name: &str, letter: u8) -> Result<(), CannotLease> {
        if !matches!(letter, b'b' | b'w' | b'h') {
            return Err(CannotLease(format!(
                "rule {name:?} cannot be leased; lease token buckets and fixed windows, and leave others strict"
            )));
        }
        if self.ttl < Duration::from_millis(20) || self.ttl > Duration::from_secs(3_600) {
            let ttl = self.ttl;
            return Err(CannotLease(format!(
                "rule {name:?} is leased for {ttl:?}; say from 20ms to an hour"
            )));
        }
        Ok(())
    }
}

impl RedisGate {
    /// Returns the same gate, with leases for the rules that are [leased](crate::Builder::lease).
    #[must_use]
    pub fn leased(self) -> Leased {
        Leased::over(self)
    }
}

impl Leased {
    fn over(gate: RedisGate) -> Self {
        let deals: Box<[Option<LeaseTerms>]> = gate.shared.rules.iter().map(|rule| rule.terms).collect();
        let shortest = deals.iter().flatten().map(|terms| terms.ttl).min();
        let refill = Arc::new(Refill {
            accounts: Accounts::new(MOST_KEYS),
            clock: BootClock,
            asking: AtomicUsize::new(0),
            is_strict: deals.iter().all(Option::is_none),
            deals,
            gate,
        });
        if let Some(ttl) = shortest {
            let sweep = Refill::sweep(Arc::downgrade(&refill), Duration::from_micros(ttl / 4));
            refill.gate.shared.runtime.spawn(sweep);
        }
        Leased { _closes: Arc::new(Closes(refill.clone())), refill }
    }

    /// Returns the underlying gate, which decides all other rules.
    #[must_use]
    pub fn strict(&self) -> &RedisGate {
        &self.refill.gate
    }

    /// Returns the statistics of leases so far.
    #[must_use]
    pub fn stats(&self) -> LeaseStats {
        let counts = self.refill.counts();
        let (spent, refused) = (counts.spent.sum(), counts.refused.sum());
        let [asked, granted, returned, expired, stranded] =
            [&counts.asked, &counts.granted, &counts.returned, &counts.expired, &counts.stranded]
                .map(|count| count.load(Ordering::Relaxed));
        LeaseStats { spent, refused, asked, granted, returned, expired, stranded }
    }

    /// Decides whether all parts of `request` may pass now; charges all of them or none.
    ///
    /// # Errors
    ///
    /// As [`RedisGate::check`].
    pub async fn check(&self, request: &[Part<'_>]) -> Result<Admission, InvalidRequest> {
        self.check_by(request, self.deadline()).await
    }

    /// As [`check`](Leased::check), but decides by `deadline`, without Redis if need be.
    ///
    /// For requests that arrive together and are decided one after another.
    ///
    /// # Errors
    ///
    /// As [`RedisGate::check`].
    pub async fn check_by(
        &self,
        request: &[Part<'_>],
        deadline: std::time::Instant,
    ) -> Result<Admission, InvalidRequest> {
        match self.try_check(request)? {
            Some(admission) => Ok(admission),
            None if self.refill.is_strict => Ok(self.strict().shared.check(request, deadline.into()).await),
            None => self.check_slowly(request, deadline.into()).await,
        }
    }

    /// Returns the deadline of a decision that begins now.
    #[must_use]
    pub fn deadline(&self) -> std::time::Instant {
        self.strict().shared.until().into()
    }

    /// As [`check`](Leased::check) if no round trip is needed; else `None`, with nothing charged.
    ///
    /// # Errors
    ///
    /// As [`check`](Leased::check).
    pub fn try_check(&self, request: &[Part<'_>]) -> Result<Option<Admission>, InvalidRequest> {
        self.strict().shared.validate(request)?;
        Ok(if self.refill.is_strict {
            None
        } else {
            self.decide_fast(request).map(Admission::without_permits)
        })
    }

    /// Returns all unspent tokens, and waits for grants in flight, which are returned too.
    ///
    /// Later requests take new grants.
    pub async fn give_back(&self) {
        let refill = &self.refill;
        refill.give_back(refill.accounts.close(refill.clock.now())).await;
        let nobody_asks = async {
            while refill.asking.load(Ordering::Relaxed) > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let _ = tokio::time::timeout(self.strict().shared.deadline, nobody_asks).await; // give up after the deadline
    }

    /// Decides the request if all parts are leased and no round trip is needed.
    #[inline]
    fn decide_fast(&self, request: &[Part<'_>]) -> Option<Decision> {
        let now = self.refill.clock.now();
        let [part] = request else { return self.all_at_once(request, now) };
        let Tried::Decided(decision) = self.try_spend(part, now) else { return None };
        self.count(&decision);
        Some(decision)
    }

    fn all_at_once(&self, request: &[Part<'_>], now: Micros) -> Option<Decision> {
        let mut held = Held { leased: self, parts: Vec::new(), now };
        let mut strictest: Option<Decision> = None;
        for part in request {
            let Tried::Decided(decision) = self.try_spend(part, now) else { return None };
            if !decision.is_allowed() {
                self.count(&decision);
                return Some(decision);
            }
            held.parts.push(*part);
            strictest = Some(strictest.map_or(decision, |other| other.and(decision)));
        }
        held.keep();
        strictest.inspect(|decision| self.count(decision))
    }

    /// Decides the request; waits for grants, and asks Redis about parts that are not leased.
    async fn check_slowly(&self, request: &[Part<'_>], until: Instant) -> Result<Admission, InvalidRequest> {
        let now = self.refill.clock.now();
        let mut held = Held { leased: self, parts: Vec::new(), now };
        let (mut strict, mut strictest) = (Vec::new(), None::<Decision>);
        for part in request {
            match self.spend(part, until).await {
                None => strict.push(*part),
                Some(decision) if !decision.is_allowed() => {
                    self.count(&decision);
                    return Ok(Admission::without_permits(decision));
                }
                Some(decision) => {
                    held.parts.push(*part);
                    strictest = Some(strictest.map_or(decision, |other| other.and(decision)));
                }
            }
        }
        let shared = &self.strict().shared;
        let Some(leased) = strictest else { return Ok(shared.check(request, until).await) };
        if strict.is_empty() {
            held.keep();
            self.count(&leased);
            return Ok(Admission::without_permits(leased));
        }
        let admission = shared.check(&strict, until).await;
        if !admission.is_allowed() {
            return Ok(admission);
        }
        held.keep();
        self.count(&leased);
        let decision = leased.and(admission.decision);
        Ok(Admission { decision, ..admission })
    }

    /// Decides a leased part; `None` if Redis has to decide, or if no grant came in time.
    async fn spend(&self, part: &Part<'_>, until: Instant) -> Option<Decision> {
        for _ in 0..TRIES {
            match self.try_spend(part, self.refill.clock.now()) {
                Tried::Decided(decision) => return Some(decision),
                Tried::Strict => return None,
                Tried::Soon(wait) => tokio::time::sleep(wait).await,
                Tried::Wait(bell) => {
                    let rung = bell.notified();
                    if self.is_asking(part) {
                        tokio::time::timeout_at(until, rung).await.ok()?;
                    }
                }
            }
        }
        None
    }

    fn is_asking(&self, part: &Part<'_>) -> bool {
        self.refill.accounts.with_open(self.name(part), |account| account.is_asking()).unwrap_or(false)
    }

    #[inline]
    fn name<'a>(&self, part: &Part<'a>) -> Name<'a> {
        self.refill.accounts.name(usize::from(part.rule.0), part.key.bytes())
    }

    fn try_spend(&self, part: &Part<'_>, now: Micros) -> Tried {
        let (rule, key) = (usize::from(part.rule.0), part.key.bytes());
        if !self.refill.deals[rule].is_some_and(|terms| part.cost > 0 && part.cost <= terms.most) {
            return Tried::Strict;
        }
        match self.refill.accounts.spend_at_hand(rule, key, part.cost, now) {
            Some((left, whole_at)) => {
                let whole_in = Wait::micros(whole_at.saturating_sub(now.get()));
                Tried::Decided(self.decision(part, Outcome::Allowed, now, left, whole_in))
            }
            None => self.try_account(part, self.name(part), now),
        }
    }

    /// Spends from the account, when the thread cache does not have enough.
    fn try_account(&self, part: &Part<'_>, name: Name<'_>, now: Micros) -> Tried {
        let spent = self.refill.accounts.with(name, now, |account| {
            let spent = account.spend(part.cost, now);
            let bell = matches!(spent, Spend::Ask | Spend::Wait).then(|| account.bell.clone());
            (spent, account.whole_in(now), bell, account.take_expired())
        });
        let Some((spent, whole_in, bell, expired)) = spent else { return Tried::Strict };
        if expired > 0 {
            add(&self.refill.counts().expired, expired);
        }
        if matches!(spent, Spend::Ask) && self.strict().shared.breaker.is_open() {
            self.refill.accounts.with_open(name, Account::failed);
            return Tried::Strict;
        }
        if matches!(spent, Spend::Ask | Spend::Spent { ask: true, .. }) {
            self.refill.ask(name.rule, name.key, part.cost);
        }
        let decided =
            |outcome, left| Tried::Decided(self.decision(part, outcome, now, left, Wait::micros(whole_in)));
        match (spent, bell) {
            (Spend::Spent { left, .. }, _) => decided(Outcome::Allowed, left),
            (Spend::NotBefore(then), _) => match then.get().saturating_sub(now.get()).max(1) {
                soon @ ..=SOON => Tried::Soon(Duration::from_micros(soon)),
                later => decided(Outcome::RetryAfter(Wait::micros(later)), 0),
            },
            (_, Some(bell)) => Tried::Wait(bell),
            (_, None) => Tried::Strict,
        }
    }

    fn decision(
        &self,
        part: &Part<'_>,
        outcome: Outcome,
        now: Micros,
        left: u32,
        whole_in: Wait,
    ) -> Decision {
        let limit = self.strict().shared.spec(part).described.limit();
        let mut decision = Decision::counted(outcome, now, limit, left.into(), whole_in);
        decision.source = Source::Lease;
        decision.of_rule(part.rule)
    }

    fn count(&self, decision: &Decision) {
        let counts = self.refill.counts();
        if decision.is_allowed() { &counts.spent } else { &counts.refused }.add(1);
    }
}

/// The result of an attempt to spend.
enum Tried {
    Decided(Decision),
    /// The tokens will be available in a moment.
    Soon(Duration),
    /// A grant is on its way.
    Wait(Arc<tokio::sync::Notify>),
    Strict,
}

/// The tokens spent for a request that may yet be refused. Unless kept, they are put back.
struct Held<'a, 'p> {
    leased: &'a Leased,
    parts: Vec<Part<'p>>,
    now: Micros,
}

impl Held<'_, '_> {
    fn keep(mut self) {
        self.parts.clear();
    }
}

impl Drop for Held<'_, '_> {
    fn drop(&mut self) {
        for part in &self.parts {
            let accounts = &self.leased.refill.accounts;
            accounts.with_open(self.leased.name(part), |account| account.put_back(part.cost, self.now));
        }
    }
}

impl Drop for Closes {
    fn drop(&mut self) {
        let swept = self.0.accounts.close(self.0.clock.now());
        if swept.back.is_empty() && swept.expired == 0 {
            return;
        }
        let refill = self.0.clone();
        self.0.gate.shared.runtime.spawn(async move { refill.give_back(swept).await });
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
        if let Some(decision) = self.decide_fast(request) {
            return Answer::Ready(Ok(Admission::without_permits(decision)));
        }
        self.decide_in_task(request, Tell::Binding)
    }

    fn decide_each<'a>(&'a self, request: &'a [Part<'a>]) -> Answer<'a> {
        if let [_] = request {
            return self.decide(request);
        }
        self.decide_in_task(request, Tell::Each)
    }

    fn rule(&self, name: &str) -> Option<RuleId> {
        self.strict().id(name)
    }
}

impl Leased {
    fn decide_in_task<'a>(&'a self, request: &'a [Part<'a>], tell: Tell) -> Answer<'a> {
        let (leased, kept, until) = (self.clone(), OwnedRequest::of(request), self.strict().shared.until());
        let asking = self.strict().shared.runtime.spawn(async move {
            match tell {
                Tell::Binding => leased.check_slowly(&kept.parts(), until).await,
                Tell::Each => leased.check_each(&kept.parts()).await,
            }
        });
        Answer::Pending(Box::pin(async move {
            let shared = &self.strict().shared;
            asking.await.unwrap_or_else(|_| Ok(shared.without_redis(request, &Error::NotAsked)))
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
