//! # Policy: several limits, all or nothing
//!
//! One request often has to pass several limits, each on a key of its own: ten per second for the user, a thousand per
//! second for the user's company, five thousand for all requests together, and at most two hundred in progress. The
//! simplest way asks one limiter after the other. It is wrong twice. Charges of the first limiters are lost when a later
//! one refuses, so a user pays for a request that was refused because of the company; and between two of the checks
//! another thread sees the request half charged.
//!
//! A [`Policy`] decides all of them in one step. Every rule allows the request and every rule is charged, or nothing is:
//!
//! ```text
//!                            global      5000/s      ▓▓▓▓▓▓▓░░░   yes  ┐
//!   request of alice@acme ─► company     1000/s      ▓▓▓░░░░░░░   yes  ├─► no: user, retry after 40ms
//!                            user          10/s      ▓▓▓▓▓▓▓▓▓▓   no   │   and nothing was charged
//!                            in progress    200      ▓▓░░░░░░░░   yes  ┘
//! ```
//!
//! Rules have names, and a decision says which rule was binding. Algorithms can be mixed, and rate limits can be
//! combined with concurrency limits.
//!
//! A request that prefers waiting to a refusal waits in the [queue](wait_queues) of the state that refused it, and tries
//! again from there: [`Request::acquire`].
//!
//! Laws, checked in `tests/policy.rs` and, for every interleaving of two threads, by models: never too many on any rule;
//! a refused request has charged nothing anywhere; a refusal is one that the rule would have given alone; a policy of
//! one rule decides as a limiter does.

mod commit;
mod fast_path;
mod participant;
mod reload;
mod request;
mod wait;
mod wait_queues;

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use crate::clock::{Clock, SteadyClock};
use crate::concurrency::Keys;
use crate::gate::{Admission, Answer, Gate, InvalidRequest, Part, Permits, is_valid, validate};
use crate::keyed::{DEFAULT_MAX_KEYS, Keyed, Settings};
use crate::observer::{Charge, Observer, observe_decision};
use crate::operation::{Refund, Reset};
use crate::request::{Request, Target};
use crate::reservation::DEFAULT_MAX_WAITING;
use crate::state_cell::DecisionTime;
use crate::table::Stats;
use participant::{Mode, Participant};
pub(crate) use request::RequestParts;
use tidegate_core::{Algorithm, Decision, Keep, Rule, RuleId};
use wait_queues::WaitQueues;

/// Named rules that are decided together, each on keys of its own: all or nothing.
///
/// ```
/// use tidegate::{ManualClock, Policy, Quota};
///
/// let policy = Policy::builder()
///     .rule("global", Quota::per_second(1_000))
///     .rule("per user", Quota::per_second(2))
///     .concurrency("in progress", 3)
///     .clock(ManualClock::new()) // in a program: leave this out
///     .build()?;
///
/// let request = || policy.request().rule("global").rule_for("per user", "alice").rule("in progress");
/// let first = request().try_acquire()?;
/// let second = request().try_acquire()?; // each holds a permit
///
/// let refused = request().try_acquire().unwrap_err();
/// assert_eq!(refused.rule(), Some("per user"));
/// assert!(refused.retry_after().is_some());
/// assert_eq!(policy.request().rule("global").cost(0).peek()?.remaining(), 998); // not charged for the refusal
///
/// drop((first, second)); // and with them their permits
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A request need not name every rule, and may name one several times, for different keys. Clones share the states.
pub struct Policy<A = Rule, C = SteadyClock> {
    shared: Arc<RuleStates<A>>,
    clock: C,
    observer: Option<Arc<dyn Observer>>,
}

/// Builds a [`Policy`]. Made by [`Policy::builder`].
#[derive(Clone)]
#[must_use = "a builder does nothing until `build`"]
pub struct PolicyBuilder<A = Rule, C = SteadyClock> {
    rules: Vec<(String, Kind<A>)>,
    bounds: Bounds,
    clock: C,
    observer: Option<Arc<dyn Observer>>,
}

/// The configured bounds of a policy.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    max_keys: usize,
    max_waiting: usize,
}

/// Why rules do not make a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidPolicy {
    /// There are no rules.
    NoRules,
    /// Two rules have the same name.
    SameName {
        /// The name.
        name: String,
    },
    /// There are more rules than can be numbered.
    TooManyRules {
        /// The number of rules.
        rules: usize,
    },
}

#[derive(Clone, Debug)]
enum Kind<A> {
    Rate(A),
    Concurrency(u32),
}

/// The rules of a policy, with their states.
#[derive(Debug)]
struct RuleStates<A> {
    names: Box<[Arc<str>]>,
    limits: Box<[Limit<A>]>,
    queues: WaitQueues,
}

/// The states of one rule.
///
/// Shared with the policy that a [reload](Policy::reload) makes: what either charges, both see.
#[derive(Debug)]
enum Limit<A> {
    Rate(Arc<Keyed<A>>),
    Concurrency(Arc<Keys>),
}

// === impl PolicyBuilder ===

impl Policy {
    /// Starts to build a policy with rules of any algorithm.
    ///
    /// For rules of a single algorithm, which decide a little faster, see [`PolicyBuilder::new`].
    pub fn builder() -> PolicyBuilder {
        PolicyBuilder::new()
    }
}

impl<A: Algorithm> PolicyBuilder<A> {
    /// Starts to build a policy with rules of this algorithm.
    ///
    /// ```
    /// use tidegate::Quota;
    /// use tidegate::algorithm::TokenBucket;
    /// use tidegate::builder::PolicyBuilder;
    ///
    /// let buckets = PolicyBuilder::<TokenBucket>::new().rule("user", Quota::per_second(10)).build()?;
    /// # Ok::<(), tidegate::InvalidPolicy>(())
    /// ```
    pub fn new() -> Self {
        let bounds = Bounds { max_keys: DEFAULT_MAX_KEYS, max_waiting: DEFAULT_MAX_WAITING };
        PolicyBuilder { rules: Vec::new(), bounds, clock: SteadyClock::new(), observer: None }
    }
}

impl<A: Algorithm, C: Clock> PolicyBuilder<A, C> {
    /// Adds a rate limit: a quota, or any algorithm.
    pub fn rule(self, name: impl Into<String>, algorithm: impl Into<A>) -> Self {
        self.with(name, Kind::Rate(algorithm.into()))
    }

    /// Adds a limit on operations in progress. Requests that pass it get a permit.
    pub fn concurrency(self, name: impl Into<String>, limit: u32) -> Self {
        self.with(name, Kind::Concurrency(limit))
    }

    /// The maximum number of keys of each rule, at least 1; four million by default.
    pub fn max_keys(self, max_keys: usize) -> Self {
        PolicyBuilder { bounds: Bounds { max_keys: max_keys.max(1), ..self.bounds }, ..self }
    }

    /// The maximum number of waiters, in all queues together; 65,536 by default. With 0 no request waits.
    pub fn max_waiting(self, max_waiting: usize) -> Self {
        PolicyBuilder { bounds: Bounds { max_waiting, ..self.bounds }, ..self }
    }

    /// Uses another clock.
    pub fn clock<D: Clock>(self, clock: D) -> PolicyBuilder<A, D> {
        let PolicyBuilder { rules, bounds, observer, .. } = self;
        PolicyBuilder { rules, bounds, clock, observer }
    }

    /// Shows every decision to `observer`.
    pub fn observer(self, observer: Arc<dyn Observer>) -> Self {
        PolicyBuilder { observer: Some(observer), ..self }
    }

    fn with(mut self, name: impl Into<String>, kind: Kind<A>) -> Self {
        self.rules.push((name.into(), kind));
        self
    }

    /// Builds the policy. Rules are numbered in the order in which they were added.
    ///
    /// # Errors
    ///
    /// [`InvalidPolicy`] if there are no rules, or two with the same name.
    pub fn build(self) -> Result<Policy<A, C>, InvalidPolicy> {
        self.validate()?;
        let limits = RuleStates::new::<C>(self.rules, self.bounds);
        Ok(Policy { shared: Arc::new(limits), clock: self.clock, observer: self.observer })
    }

    fn validate(&self) -> Result<(), InvalidPolicy> {
        if self.rules.is_empty() {
            return Err(InvalidPolicy::NoRules);
        }
        if u16::try_from(self.rules.len()).is_err() {
            return Err(InvalidPolicy::TooManyRules { rules: self.rules.len() });
        }
        let mut seen = std::collections::HashSet::new();
        match self.rules.iter().find(|(name, _)| !seen.insert(name)) {
            Some((name, _)) => Err(InvalidPolicy::SameName { name: name.clone() }),
            None => Ok(()),
        }
    }
}

impl<A: Algorithm> Default for PolicyBuilder<A> {
    fn default() -> Self {
        PolicyBuilder::new()
    }
}

impl<A: fmt::Debug, C: fmt::Debug> fmt::Debug for PolicyBuilder<A, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicyBuilder")
            .field("rules", &self.rules)
            .field("bounds", &self.bounds)
            .field("clock", &self.clock)
            .finish_non_exhaustive()
    }
}

// === impl Policy ===

impl<A: Algorithm, C: Clock> Policy<A, C> {
    /// Begins a request, which names the rules it has to pass: [`Request::rule`], [`Request::rule_for`].
    #[inline]
    pub fn request(&self) -> Request<'_, Self> {
        Request::new(self, RequestParts::default())
    }

    /// The name of a rule, such as the binding one of a decision.
    #[must_use]
    pub fn name(&self, rule: RuleId) -> Option<&str> {
        self.shared.names.get(usize::from(rule.0)).map(|name| &**name)
    }

    /// The position of the rule with this name, for a [`Part`].
    #[inline]
    #[must_use]
    pub fn id(&self, name: &str) -> Option<RuleId> {
        let index = self.shared.names.iter().position(|other| **other == *name)?;
        u16::try_from(index).ok().map(RuleId)
    }

    /// Decides a request of parts; charges all of them or none. Returns an admission also when it refuses.
    ///
    /// For services that find rules by number. Programs use [`request`](Policy::request).
    ///
    /// ```
    /// use tidegate::gate::Part;
    /// use tidegate::{Policy, Quota};
    ///
    /// let policy = Policy::builder().rule("per user", Quota::per_second(10)).build()?;
    /// let per_user = policy.id("per user").ok_or("no such rule")?;
    /// assert!(policy.check_parts(&[Part::of(per_user).key("alice").cost(2)])?.is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`InvalidRequest`] if the request is empty, has an unknown rule, or has the same rule and key twice. A refusal is
    /// not an error.
    #[inline]
    pub fn check_parts(&self, request: &[Part<'_>]) -> Result<Admission, InvalidRequest> {
        match request.len() {
            1 => self.check_few::<1>(request),
            2 => self.check_few::<2>(request),
            3 => self.check_few::<3>(request),
            _ => self.check_slow(request),
        }
    }

    /// Tries the fast path, for requests of a few parts.
    #[inline]
    fn check_few<const N: usize>(&self, request: &[Part<'_>]) -> Result<Admission, InvalidRequest> {
        let few = request.first_chunk::<N>().filter(|few| is_valid(few, self.shared.limits.len()));
        if let Some(few) = few.filter(|_| self.observer.is_none()) {
            match fast_path::check(&self.shared, few, || self.clock.now()) {
                Ok(binding) => return Ok(Admission::without_permits(binding.decision())),
                Err(Some(refusal)) => return Ok(Admission::without_permits(refusal)),
                Err(None) => {}
            }
        }
        self.check_slow(request)
    }

    #[inline(never)]
    fn check_slow(&self, request: &[Part<'_>]) -> Result<Admission, InvalidRequest> {
        self.decide_with(request, Mode::Charge, |decision, participants| Admission {
            permits: permits(participants),
            ..Admission::without_permits(decision)
        })
    }

    /// As [`check_parts`](Policy::check_parts), with the decision of each part in [`Admission::rules`].
    ///
    /// Of a refused request, the parts that would have allowed it are shown with the state in which they were found.
    ///
    /// # Errors
    ///
    /// As [`check_parts`](Policy::check_parts).
    pub fn check_each_parts(&self, request: &[Part<'_>]) -> Result<Admission, InvalidRequest> {
        self.decide_with(request, Mode::Explain, |decision, participants| Admission {
            decision,
            rules: participants.iter().map(Participant::decision).collect(),
            permits: permits(participants),
        })
    }

    pub(crate) fn peek(&self, request: &[Part<'_>]) -> Result<Decision, InvalidRequest> {
        self.decide_with(request, Mode::Look, |decision, _| decision)
    }

    pub(crate) fn refund(&self, request: &[Part<'_>]) -> Result<(), InvalidRequest> {
        self.apply_each(request, |part, keyed| keyed.apply_to(part.key, &Refund(part.cost), self.when()))
    }

    pub(crate) fn reset(&self, request: &[Part<'_>]) -> Result<(), InvalidRequest> {
        self.apply_each(request, |part, keyed| keyed.apply_to(part.key, &Reset, self.when()))
    }

    /// Applies an operation that frees quota to the rate limit of each part, and wakes its waiters.
    fn apply_each(
        &self,
        request: &[Part<'_>],
        apply: impl Fn(&Part<'_>, &Keyed<A>),
    ) -> Result<(), InvalidRequest> {
        validate(request, self.shared.limits.len())?;
        for part in request {
            if let Limit::Rate(keyed) = self.shared.limit(part.rule) {
                apply(part, keyed);
                self.shared.queues.call(part.rule, Some(keyed.fingerprint_of(part.key)));
            }
        }
        Ok(())
    }

    /// Replaces the setting of a rate limit, for all keys and all clones. Used quota stays used, as with
    /// [`KeyedLimiter::change`](crate::KeyedLimiter::change).
    ///
    /// # Errors
    ///
    /// [`InvalidRequest`] if there is no such rule, or it is a concurrency limit: for that, see
    /// [`resize`](Policy::resize).
    pub fn change(&self, rule: &str, algorithm: impl Into<A>) -> Result<(), InvalidRequest> {
        self.change_keeping(Keep::Used, rule, algorithm)
    }

    /// As [`change`](Policy::change), and keeps what was used, what remains, or their ratio.
    ///
    /// # Errors
    ///
    /// As [`change`](Policy::change).
    pub fn change_keeping(
        &self,
        keep: Keep,
        rule: &str,
        algorithm: impl Into<A>,
    ) -> Result<(), InvalidRequest> {
        let id = self.find(rule)?;
        let Limit::Rate(keyed) = self.shared.limit(id) else {
            return Err(InvalidRequest::WrongKind { rule: rule.into() });
        };
        keyed.change(keep, algorithm.into().for_clock(C::KIND), || self.when());
        self.shared.queues.call(id, None);
        Ok(())
    }

    /// Replaces a concurrency limit, for all keys and all clones. Never waits, and stops no operation, as with
    /// [`ConcurrencyLimiter::resize`](crate::ConcurrencyLimiter::resize).
    ///
    /// # Errors
    ///
    /// [`InvalidRequest`] if there is no such rule, or it is a rate limit: for that, see [`change`](Policy::change).
    pub fn resize(&self, rule: &str, limit: u32) -> Result<(), InvalidRequest> {
        let Limit::Concurrency(keys) = self.shared.limit(self.find(rule)?) else {
            return Err(InvalidRequest::WrongKind { rule: rule.into() });
        };
        keys.resize(limit);
        Ok(())
    }

    /// The number of keys of a rate limit, and how new keys fared. `None` if there is no such rule, or it is a
    /// concurrency limit.
    #[must_use]
    pub fn stats(&self, rule: &str) -> Option<Stats> {
        self.stats_by_id(self.id(rule)?)
    }

    /// As [`stats`](Policy::stats), of the rule at this position. For services that find rules by number: it does not
    /// search the names.
    #[must_use]
    pub fn stats_by_id(&self, rule: RuleId) -> Option<Stats> {
        match self.shared.limits.get(usize::from(rule.0))? {
            Limit::Rate(keyed) => Some(keyed.stats(self.clock.now())),
            Limit::Concurrency(_) => None,
        }
    }

    pub(crate) fn clock(&self) -> &C {
        &self.clock
    }

    fn find(&self, name: &str) -> Result<RuleId, InvalidRequest> {
        self.id(name).ok_or_else(|| self.no_rule_named(name))
    }

    #[cold]
    fn no_rule_named(&self, name: &str) -> InvalidRequest {
        InvalidRequest::no_rule_named(name, self.shared.names.iter())
    }

    #[inline]
    fn when(&self) -> DecisionTime {
        DecisionTime { now: self.clock.now(), clock: C::KIND }
    }

    /// Decides, and makes an answer of the decision and of the participants.
    #[inline]
    fn decide_with<R>(
        &self,
        request: &[Part<'_>],
        mode: Mode,
        answer: impl FnOnce(Decision, &mut [Participant<'_, A>]) -> R,
    ) -> Result<R, InvalidRequest> {
        let limits = &*self.shared;
        validate(request, limits.limits.len())?;
        let participant = |part| limits.participant(part);
        // Any number of parts; a few of them without allocating.
        Ok(match request {
            [a] => self.run(request, &mut [participant(a)], mode, answer),
            [a, b] => self.run(request, &mut [participant(a), participant(b)], mode, answer),
            [a, b, c] => {
                self.run(request, &mut [participant(a), participant(b), participant(c)], mode, answer)
            }
            [a, b, c, d] => {
                let participants = &mut [participant(a), participant(b), participant(c), participant(d)];
                self.run(request, participants, mode, answer)
            }
            many => self.run(request, &mut many.iter().map(participant).collect::<Vec<_>>(), mode, answer),
        })
    }

    #[inline]
    fn run<R>(
        &self,
        request: &[Part<'_>],
        participants: &mut [Participant<'_, A>],
        mode: Mode,
        answer: impl FnOnce(Decision, &mut [Participant<'_, A>]) -> R,
    ) -> R {
        let decision = commit::decide(participants, mode, self.when(), &self.shared.queues);
        if let Some(observer) = self.observer.as_deref().filter(|_| mode.is_observed()) {
            observe_decision(observer, decision, &self.charges(request));
        }
        answer(decision, participants)
    }

    /// Returns what a request takes of each rule, for an observer.
    fn charges(&self, request: &[Part<'_>]) -> Vec<Charge<'_>> {
        let name = |rule| self.name(rule).unwrap_or_default();
        request.iter().map(|part| Charge::new(name(part.rule), part.cost)).collect()
    }
}

impl<'a, A, C> Target<'a> for Policy<A, C> {
    type Key = RequestParts<'a>;
}

impl<A, C> Gate for Policy<A, C>
where
    A: Algorithm + Send + Sync,
    C: Clock + Send + Sync,
{
    fn decide<'a>(&'a self, request: &'a [Part<'a>]) -> Answer<'a> {
        Answer::Ready(self.check_parts(request))
    }

    fn decide_each<'a>(&'a self, request: &'a [Part<'a>]) -> Answer<'a> {
        Answer::Ready(self.check_each_parts(request))
    }

    fn rule(&self, name: &str) -> Option<RuleId> {
        self.id(name)
    }

    fn is_immediate(&self) -> bool {
        true
    }
}

impl<A, C: Clone> Clone for Policy<A, C> {
    /// Another handle on the same limits.
    fn clone(&self) -> Self {
        Policy { shared: self.shared.clone(), clock: self.clock.clone(), observer: self.observer.clone() }
    }
}

impl<A, C: fmt::Debug> fmt::Debug for Policy<A, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy")
            .field("rules", &self.shared.names)
            .field("clock", &self.clock)
            .finish_non_exhaustive()
    }
}

/// Returns the permits that were taken.
#[inline]
fn permits<A: Algorithm>(participants: &mut [Participant<'_, A>]) -> Permits {
    Permits(participants.iter_mut().filter_map(Participant::permit).map(Into::into).collect())
}

// === impl RuleStates ===

impl<A: Algorithm> RuleStates<A> {
    fn new<C: Clock>(rules: Vec<(String, Kind<A>)>, bounds: Bounds) -> Self {
        let Bounds { max_keys, max_waiting } = bounds;
        let (names, kinds): (Vec<Arc<str>>, Vec<_>) =
            rules.into_iter().map(|(name, kind)| (name.into(), kind)).unzip();
        let limits = kinds.into_iter().map(|kind| Limit::fresh::<C>(kind, max_keys)).collect();
        RuleStates { names: names.into(), limits, queues: WaitQueues::new(max_waiting) }
    }

    /// Panics if `rule` is out of range.
    #[inline]
    fn limit(&self, rule: RuleId) -> &Limit<A> {
        &self.limits[usize::from(rule.0)]
    }

    #[inline]
    fn participant(&self, part: &Part<'_>) -> Participant<'_, A> {
        match self.limit(part.rule) {
            Limit::Rate(keyed) => Participant::rate(part, keyed),
            Limit::Concurrency(keys) => Participant::concurrency(part, keys),
        }
    }
}

impl<A: Algorithm> Limit<A> {
    fn fresh<C: Clock>(kind: Kind<A>, max_keys: usize) -> Self {
        let settings = Settings { max_keys, ..Settings::default() };
        match kind {
            Kind::Rate(algorithm) => {
                Limit::Rate(Arc::new(Keyed::new(algorithm.for_clock(C::KIND), settings)))
            }
            Kind::Concurrency(limit) => Limit::Concurrency(Arc::new(Keys::with_limit(limit, max_keys))),
        }
    }
}

// === impl InvalidPolicy ===

impl fmt::Display for InvalidPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InvalidPolicy::NoRules => f.write_str("a policy without rules limits nothing; add a rule"),
            InvalidPolicy::SameName { name } => {
                write!(f, "two rules are named {name:?}; give each rule its own name")
            }
            InvalidPolicy::TooManyRules { rules } => {
                write!(f, "{rules} rules exceed the maximum of 65535 in one policy; use several policies")
            }
        }
    }
}

impl Error for InvalidPolicy {}
