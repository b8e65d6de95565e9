//! # Limits over several keys
//!
//! One request often has to pass several limits, each on a key of its own: ten a second for the user, a thousand a second
//! for the user's company, five thousand for everybody, and at most two hundred at work. The simplest way asks one
//! limiter after the other. It is wrong twice. What the first ones have charged is lost when a later one refuses, so a
//! user who is refused for the company's sake pays all the same; and between two of the questions somebody else sees the
//! request half charged.
//!
//! A [`Policy`] asks all of them in one step. Every rule agrees and every rule is charged, or nothing is:
//!
//! ```text
//!                            everybody   5000/s      ▓▓▓▓▓▓▓░░░   yes  ┐
//!   request of alice@acme ─► company     1000/s      ▓▓▓░░░░░░░   yes  ├─► no: user, retry after 40ms
//!                            user          10/s      ▓▓▓▓▓▓▓▓▓▓   no   │   and nobody was charged
//!                            at work        200      ▓▓░░░░░░░░   yes  ┘
//! ```
//!
//! Rules have names, and a decision says which of them was binding. Any mix of algorithms will do, and rules that count
//! how many are at work beside those that count what passes.
//!
//! Who would rather wait than be refused stands in [line](wait_queues) at the state that refused it, and tries again from there:
//! [`acquire`](Policy::acquire).
//!
//! Laws, checked in `tests/policy.rs` and, for every interleaving of two threads, by models: never too many on any rule;
//! a refused request has spent nothing anywhere; a refusal is one that the rule would have given if asked alone; what a
//! policy of one rule decides is what a limiter decides.

mod commit;
mod fast_path;
mod participant;
mod refused;
mod reload;
mod wait;
mod wait_queues;

pub use refused::NotAdmitted;

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use crate::clock::{Clock, SteadyClock};
use crate::concurrency::Keys;
use crate::gate::{Admission, Answer, Gate, InvalidRequest, Part, Permits, is_valid, validate};
use crate::keyed::{DEFAULT_MAX_KEYS, Keyed, Settings};
use crate::observer::Observer;
use crate::operation::{Refund, Reset};
use crate::reservation::DEFAULT_MAX_WAITING;
use crate::state_cell::DecisionTime;
use crate::table::Stats;
use participant::{Mode, Participant};
use tidegate_core::{Algorithm, Decision, Rule, RuleId};
use wait_queues::WaitQueues;

/// Rules with names that stand or fall together, each for keys of its own.
///
/// ```
/// use tidegate::{ManualClock, Outcome, Part, Policy, Quota};
///
/// let policy = Policy::builder()
///     .rule("everybody", Quota::per_second(1_000))
///     .rule("user", Quota::per_second(2))
///     .concurrency("at work", 3)
///     .build()?
///     .with_clock(ManualClock::new()); // in a program: leave this out
/// let [everybody, user, at_work] = ["everybody", "user", "at work"].map(|name| policy.id(name).unwrap());
///
/// let request = [Part::of(everybody), Part::of(user).key("alice"), Part::of(at_work)];
/// let first = policy.check(&request)?;
/// let second = policy.check(&request)?;
/// assert!(first.is_allowed() && second.is_allowed());
///
/// let third = policy.check(&request)?;
/// assert_eq!(policy.name(third.decision.rule), Some("user")); // the rule that refused it
/// assert!(matches!(third.decision.outcome, Outcome::RetryAfter(_)));
/// assert_eq!(policy.peek(&[Part::of(everybody).cost(0)])?.remaining(), 998); // which was not charged for it
///
/// drop((first, second)); // and with them their permits
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A request need not name every rule, and may name one several times, for different keys. Clones share the states.
pub struct Policy<A = Rule, C = SteadyClock> {
    shared: Arc<Limits<A>>,
    clock: C,
    observer: Option<Arc<dyn Observer>>,
}

/// Rules on their way to a [`Policy`]: what [`Policy::builder`] returns.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct PolicyBuilder<A = Rule> {
    rules: Vec<(String, Kind<A>)>,
    bounds: Bounds,
}

/// What a policy was told about its bounds.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    max_keys: usize,
    max_waiting: usize,
}

/// Why rules are no policy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidPolicy {
    /// There are none.
    NoRules,
    /// Two of them have one name.
    SameName {
        /// The name.
        name: String,
    },
    /// There are more than can be numbered.
    TooManyRules {
        /// How many there are.
        rules: usize,
    },
}

#[derive(Clone, Debug)]
enum Kind<A> {
    Rate(A),
    Concurrency(u32),
}

#[derive(Debug)]
struct Limits<A> {
    names: Box<[String]>,
    limits: Box<[Limit<A>]>,
    queues: WaitQueues,
    max_keys: usize,
}

/// The states of one rule.
///
/// Shared with the policy that [succeeds](Policy::reload) this one: what either charges, both see.
#[derive(Debug)]
enum Limit<A> {
    Rate(Arc<Keyed<A>>),
    Concurrency(Arc<Keys>),
}

// === impl PolicyBuilder ===

impl Policy {
    /// No rules yet, of any algorithm. For rules of one algorithm only, which decide a little faster, see
    /// [`PolicyBuilder::new`].
    pub fn builder() -> PolicyBuilder {
        PolicyBuilder::new()
    }
}

impl<A: Algorithm> PolicyBuilder<A> {
    /// No rules yet, of this algorithm.
    ///
    /// ```
    /// use tidegate::{PolicyBuilder, Quota, TokenBucket};
    /// let buckets = PolicyBuilder::<TokenBucket>::new().rule("user", Quota::per_second(10)).build()?;
    /// # Ok::<(), tidegate::InvalidPolicy>(())
    /// ```
    pub const fn new() -> Self {
        let bounds = Bounds { max_keys: DEFAULT_MAX_KEYS, max_waiting: DEFAULT_MAX_WAITING };
        PolicyBuilder { rules: Vec::new(), bounds }
    }

    /// Adds a limit on what passes: a quota, or any algorithm.
    pub fn rule(self, name: impl Into<String>, algorithm: impl Into<A>) -> Self {
        self.with(name, Kind::Rate(algorithm.into()))
    }

    /// Adds a limit on how many are at work at once. Requests that pass it are given a permit.
    pub fn concurrency(self, name: impl Into<String>, limit: u32) -> Self {
        self.with(name, Kind::Concurrency(limit))
    }

    /// At most so many keys (at least one) for each rule; four million unless said otherwise.
    pub fn max_keys(self, max_keys: usize) -> Self {
        PolicyBuilder { bounds: Bounds { max_keys: max_keys.max(1), ..self.bounds }, ..self }
    }

    /// At most so many wait, in all lines together; 65,536 unless said otherwise. With 0 nobody waits.
    pub fn max_waiting(self, max_waiting: usize) -> Self {
        PolicyBuilder { bounds: Bounds { max_waiting, ..self.bounds }, ..self }
    }

    fn with(mut self, name: impl Into<String>, kind: Kind<A>) -> Self {
        self.rules.push((name.into(), kind));
        self
    }

    /// The policy, on the steady clock. Rules are numbered in the order in which they were added.
    ///
    /// # Errors
    ///
    /// [`InvalidPolicy`] if there are no rules, or two of one name.
    pub fn build(self) -> Result<Policy<A>, InvalidPolicy> {
        self.build_with_clock(SteadyClock::new())
    }

    /// The policy, on this clock. As [`build`](PolicyBuilder::build) and [`Policy::with_clock`], but each rule is made
    /// once instead of twice.
    ///
    /// # Errors
    ///
    /// As [`build`](PolicyBuilder::build).
    pub fn build_with_clock<C: Clock>(self, clock: C) -> Result<Policy<A, C>, InvalidPolicy> {
        self.validate()?;
        let limits = Limits::new(self.rules, self.bounds, &clock);
        Ok(Policy { shared: Arc::new(limits), clock, observer: None })
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

// === impl Policy ===

impl<A: Algorithm, C: Clock> Policy<A, C> {
    /// A policy like this one on another clock, as if never used.
    #[must_use]
    pub fn with_clock<D: Clock>(self, clock: D) -> Policy<A, D>
    where
        A: Clone,
    {
        let Limits { names, limits, queues, max_keys } = &*self.shared;
        let rules = names.iter().cloned().zip(limits.iter().map(Limit::kind)).collect();
        let bounds = Bounds { max_keys: *max_keys, max_waiting: queues.max_waiting() };
        let shared = Arc::new(Limits::new(rules, bounds, &clock));
        Policy { shared, clock, observer: self.observer }
    }

    /// The same policy, with somebody watching. Clones made before are not watched.
    #[must_use]
    pub fn with_observer(self, observer: Arc<dyn Observer>) -> Self {
        Policy { observer: Some(observer), ..self }
    }

    /// The number of the rule with this name, to ask for in a [`Part`].
    #[must_use]
    pub fn id(&self, name: &str) -> Option<RuleId> {
        let index = self.shared.names.iter().position(|other| other == name)?;
        u16::try_from(index).ok().map(RuleId)
    }

    /// The name of a rule, such as the one that was binding.
    #[must_use]
    pub fn name(&self, rule: RuleId) -> Option<&str> {
        self.shared.names.get(usize::from(rule.0)).map(String::as_str)
    }

    /// Decides whether all parts of `request` may pass now, and charges all of them if they may, else none. Never waits.
    ///
    /// # Errors
    ///
    /// [`InvalidRequest`] if it names no rule, a rule that is not there, or one rule and key twice. A refusal is no error.
    #[inline]
    pub fn check(&self, request: &[Part<'_>]) -> Result<Admission, InvalidRequest> {
        match request.len() {
            1 => self.check_few::<1>(request),
            2 => self.check_few::<2>(request),
            3 => self.check_few::<3>(request),
            _ => self.check_slow(request),
        }
    }

    /// By the short cut, for requests of a few parts.
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

    /// As [`check`](Policy::check), with what each part had to say in [`Admission::rules`]. Allocates.
    ///
    /// Of a refused request, the parts that would have let it pass are told as they were found.
    ///
    /// # Errors
    ///
    /// As [`check`](Policy::check).
    pub fn check_each(&self, request: &[Part<'_>]) -> Result<Admission, InvalidRequest> {
        self.decide_with(request, Mode::Explain, |decision, participants| Admission {
            decision,
            rules: participants.iter().map(Participant::decision).collect(),
            permits: permits(participants),
        })
    }

    /// Decides as [`check`](Policy::check) would, and charges nothing. A cost of 0 asks what is left.
    ///
    /// # Errors
    ///
    /// As [`check`](Policy::check).
    pub fn peek(&self, request: &[Part<'_>]) -> Result<Decision, InvalidRequest> {
        self.decide_with(request, Mode::Look, |decision, _| decision)
    }

    /// Gives back what a recent charge took of each part, never above the limit. Permits are given back by dropping them.
    ///
    /// # Errors
    ///
    /// As [`check`](Policy::check).
    pub fn refund(&self, request: &[Part<'_>]) -> Result<(), InvalidRequest> {
        validate(request, self.shared.limits.len())?;
        self.return_parts(request, |part, keyed| keyed.apply_to(part.key, &Refund(part.cost), self.when()));
        Ok(())
    }

    /// Forgets what each part's key has used of its rule; the costs do not matter.
    ///
    /// # Errors
    ///
    /// As [`check`](Policy::check).
    pub fn reset(&self, request: &[Part<'_>]) -> Result<(), InvalidRequest> {
        validate(request, self.shared.limits.len())?;
        self.return_parts(request, |part, keyed| keyed.apply_to(part.key, &Reset, self.when()));
        Ok(())
    }

    /// Does it to the rate of each part, and calls whoever waits for it.
    fn return_parts(&self, request: &[Part<'_>], back: impl Fn(&Part<'_>, &Keyed<A>)) {
        for part in request {
            if let Limit::Rate(keyed) = self.shared.limit(part.rule) {
                back(part, keyed);
                self.shared.queues.call(part.rule, Some(keyed.fingerprint_of(part.key)));
            }
        }
    }

    /// Puts another setting of a rule in force, for all keys and all clones. What was used stays used, as with
    /// [`KeyedLimiter::change`](crate::KeyedLimiter::change).
    ///
    /// # Errors
    ///
    /// [`InvalidRequest::UnknownRule`] if there is no such rule, or it counts how many are at work: for that, see
    /// [`resize`](Policy::resize).
    pub fn change(&self, rule: RuleId, algorithm: impl Into<A>) -> Result<(), InvalidRequest> {
        match self.shared.limits.get(usize::from(rule.0)) {
            Some(Limit::Rate(keyed)) => {
                keyed.change(algorithm.into().for_clock(C::KIND), || self.when());
                self.shared.queues.call(rule, None);
                Ok(())
            }
            _ => Err(self.shared.unknown(rule)),
        }
    }

    /// Puts another limit on how many are at work in force, for all keys and all clones. Never waits, and stops nobody, as
    /// with [`ConcurrencyLimiter::resize`](crate::ConcurrencyLimiter::resize).
    ///
    /// # Errors
    ///
    /// [`InvalidRequest::UnknownRule`] if there is no such rule, or it counts what passes: for that, see
    /// [`change`](Policy::change).
    pub fn resize(&self, rule: RuleId, limit: u32) -> Result<(), InvalidRequest> {
        match self.shared.limits.get(usize::from(rule.0)) {
            Some(Limit::Concurrency(keys)) => {
                keys.resize(limit);
                Ok(())
            }
            _ => Err(self.shared.unknown(rule)),
        }
    }

    /// How many keys a rule has, and what became of others. `None` if there is no such rule, or it counts how many are at
    /// work.
    #[must_use]
    pub fn stats(&self, rule: RuleId) -> Option<Stats> {
        match self.shared.limits.get(usize::from(rule.0))? {
            Limit::Rate(keyed) => Some(keyed.stats(self.clock.now())),
            Limit::Concurrency(_) => None,
        }
    }

    #[inline]
    fn when(&self) -> DecisionTime {
        DecisionTime { now: self.clock.now(), clock: C::KIND }
    }

    /// Decides, and makes an answer of it and of what each part has.
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
            [a] => self.run(&mut [participant(a)], mode, answer),
            [a, b] => self.run(&mut [participant(a), participant(b)], mode, answer),
            [a, b, c] => self.run(&mut [participant(a), participant(b), participant(c)], mode, answer),
            [a, b, c, d] => {
                self.run(&mut [participant(a), participant(b), participant(c), participant(d)], mode, answer)
            }
            many => self.run(&mut many.iter().map(participant).collect::<Vec<_>>(), mode, answer),
        })
    }

    #[inline]
    fn run<R>(
        &self,
        participants: &mut [Participant<'_, A>],
        mode: Mode,
        answer: impl FnOnce(Decision, &mut [Participant<'_, A>]) -> R,
    ) -> R {
        let decision = commit::decide(participants, mode, self.when(), &self.shared.queues);
        if let Some(observer) = self.observer.as_deref().filter(|_| mode.is_observed()) {
            crate::observer::observe_decision(observer, decision);
        }
        answer(decision, participants)
    }
}

impl<A, C> Gate for Policy<A, C>
where
    A: Algorithm + Send + Sync,
    C: Clock + Send + Sync,
{
    fn decide<'a>(&'a self, request: &'a [Part<'a>]) -> Answer<'a> {
        Answer::Ready(self.check(request))
    }

    fn decide_each<'a>(&'a self, request: &'a [Part<'a>]) -> Answer<'a> {
        Answer::Ready(self.check_each(request))
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

/// The permits that were taken, if any.
#[inline]
fn permits<A: Algorithm>(participants: &mut [Participant<'_, A>]) -> Permits {
    Permits(participants.iter_mut().filter_map(Participant::permit).map(Into::into).collect())
}

// === impl Limits ===

impl<A: Algorithm> Limits<A> {
    fn new<C: Clock>(rules: Vec<(String, Kind<A>)>, bounds: Bounds, _: &C) -> Self {
        let Bounds { max_keys, max_waiting } = bounds;
        let (names, kinds): (Vec<_>, Vec<_>) = rules.into_iter().unzip();
        let limits = kinds.into_iter().map(|kind| Limit::fresh::<C>(kind, max_keys)).collect();
        Limits { names: names.into(), limits, queues: WaitQueues::new(max_waiting), max_keys }
    }

    /// Of a rule there is.
    #[inline]
    fn limit(&self, rule: RuleId) -> &Limit<A> {
        &self.limits[usize::from(rule.0)]
    }

    fn unknown(&self, rule: RuleId) -> InvalidRequest {
        InvalidRequest::UnknownRule { rule, rules: self.limits.len() }
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

impl<A: Algorithm + Clone> Limit<A> {
    fn kind(&self) -> Kind<A> {
        match self {
            Limit::Rate(keyed) => Kind::Rate(keyed.current().algorithm.clone()),
            Limit::Concurrency(keys) => Kind::Concurrency(keys.limit()),
        }
    }
}

// === impl InvalidPolicy ===

impl fmt::Display for InvalidPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InvalidPolicy::NoRules => f.write_str("a policy without rules limits nothing; add one"),
            InvalidPolicy::SameName { name } => {
                write!(f, "two rules are named {name:?}; decisions could not tell them apart, so rename one")
            }
            InvalidPolicy::TooManyRules { rules } => {
                write!(f, "{rules} rules, and a policy has at most 65535; make two policies")
            }
        }
    }
}

impl Error for InvalidPolicy {}
