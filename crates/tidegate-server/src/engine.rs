//! # The engine: one answer for every protocol
//!
//! Clients come by different doors, and behind all of them there is one engine. It knows the rules by name, the limits
//! that come with a call, and the places that are held; doors only translate.
//!
//! ```text
//!   RESP ──┐                    ┌─ rules by name: rates and places, all or nothing      (Policy)
//!   HTTP ──┼──►  Engine  ───────┼─ limits that come with the call                        (Throttle)
//!   gRPC ──┘                    └─ who holds which places, until when
//! ```
//!
//! An [`Answer`] is ready, or it comes later. In memory it is always ready, and costs neither an allocation nor a task;
//! doors are written for both, so that states may as well live elsewhere.

mod places;
mod rules;
mod throttle;

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use tidegate::{
    Clock, Decision, InvalidRequest, KeyedLimiter, Part, Policy, Rule, RuleId, SteadyClock, Wait,
};

use places::Places;
pub use places::{NoPlaceId, PlaceId};
use rules::Kind;
pub use rules::{InvalidRules, Rules};
pub use throttle::{InvalidThrottle, Throttle, Throttled};

/// What the engine answers: now, or later.
pub enum Answer<T> {
    /// Already.
    Ready(T),
    /// Later.
    Pending(Pin<Box<dyn Future<Output = T> + Send>>),
}

/// Decides for all clients.
///
/// ```
/// use tidegate::{Part, Quota};
/// use tidegate_server::engine::{Engine, Rules};
///
/// let engine = Engine::new(Rules::new().rate("user", Quota::per_minute(2)))?;
/// let user = engine.rule(b"user").expect("it was just added");
/// let request = [Part::of(user).key("alice")];
/// assert_eq!(engine.check(&request).now().expect("in memory")?.remaining(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Engine<C = SteadyClock> {
    numbers: HashMap<Box<[u8]>, RuleId>,
    /// Of each rule: how long a place is held, if it is about places.
    leases: Box<[Option<Duration>]>,
    /// `None` if there are no rules: clients then bring their own.
    policy: Option<Policy<Rule, C>>,
    throttles: KeyedLimiter<[u8], Throttle, C>,
    places: Places,
    clock: C,
}

/// The decision on a request for places, and the places.
#[derive(Clone, Copy, Debug)]
#[must_use = "a decision protects nothing until you act on it"]
pub struct Acquired {
    /// What was decided.
    pub decision: Decision,
    /// Who holds the places, and for how long unless renewed. `None` if the request was refused.
    pub place: Option<(PlaceId, Duration)>,
}

/// A request that cannot be answered, because it is not one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// It asks for nothing, for an unknown rule, or twice for the same.
    Request(InvalidRequest),
    /// A place is not something to be charged and forgotten.
    NeedsPlace(RuleId),
    /// It asks to hold a place, and names no rule about places.
    NoPlaces,
    /// It asks to hold places, but none of them.
    NothingToHold,
}

impl Engine {
    /// An engine with these rules, in memory, on the steady clock.
    ///
    /// # Errors
    ///
    /// [`InvalidRules`] if the rules are none.
    pub fn new(rules: Rules) -> Result<Self, InvalidRules> {
        Engine::with_clock(rules, SteadyClock::new())
    }
}

impl<C: Clock + Clone> Engine<C> {
    /// The same on another clock.
    ///
    /// # Errors
    ///
    /// As [`new`](Engine::new).
    pub fn with_clock(rules: Rules, clock: C) -> Result<Self, InvalidRules> {
        rules.validate()?;
        let leases = rules.rules.iter().map(|(_, kind)| kind.lease()).collect();
        let throttles = KeyedLimiter::with(Throttle::of_any_limit()).with_clock(clock.clone());
        let throttles = match rules.max_keys {
            Some(max_keys) => throttles.max_keys(max_keys),
            None => throttles,
        };
        let numbers = (0..=u16::MAX)
            .zip(&rules.rules)
            .map(|(number, (name, _))| (name.as_bytes().into(), RuleId(number)));
        let numbers = numbers.collect();
        let policy = policy(rules, &clock)?;
        Ok(Engine { numbers, leases, policy, throttles, places: Places::default(), clock })
    }
}

fn policy<C: Clock + Clone>(rules: Rules, clock: &C) -> Result<Option<Policy<Rule, C>>, InvalidRules> {
    if rules.rules.is_empty() {
        return Ok(None);
    }
    let builder = rules.max_keys.map_or(Policy::builder(), |most| Policy::builder().max_keys(most));
    let builder = rules.rules.into_iter().fold(builder, |builder, (name, kind)| match kind {
        Kind::Rate(rule) => builder.rule(name, rule),
        Kind::Places { limit, .. } => builder.at_once(name, limit),
    });
    let policy = builder.build().map_err(InvalidRules::Policy)?;
    Ok(Some(policy.with_clock(clock.clone())))
}

impl<C: Clock> Engine<C> {
    /// The number of the rule with this name.
    #[must_use]
    pub fn rule(&self, name: &[u8]) -> Option<RuleId> {
        self.numbers.get(name).copied()
    }

    /// The name of a rule, such as the one that was binding.
    #[must_use]
    pub fn name(&self, rule: RuleId) -> &str {
        self.policy.as_ref().and_then(|policy| policy.name(rule)).unwrap_or_default()
    }

    /// Decides whether all parts may pass now, and charges all of them if they may, else none.
    pub fn check(&self, request: &[Part<'_>]) -> Answer<Result<Decision, Fault>> {
        if let Some(part) = request.iter().find(|part| self.lease(part).is_some()) {
            return Answer::Ready(Err(Fault::NeedsPlace(part.rule)));
        }
        let admitted = self.ask(request, Policy::check);
        Answer::Ready(admitted.map(|admission| admission.decision))
    }

    /// Decides as [`check`](Engine::check) or [`acquire`](Engine::acquire) would, and charges nothing.
    pub fn peek(&self, request: &[Part<'_>]) -> Answer<Result<Decision, Fault>> {
        self.free_overdue(request);
        Answer::Ready(self.ask(request, Policy::peek))
    }

    /// Gives back what a recent charge took of each part, never above the limit. For places, see
    /// [`release`](Engine::release).
    pub fn refund(&self, request: &[Part<'_>]) -> Answer<Result<Decision, Fault>> {
        self.change(request, Policy::refund)
    }

    /// Forgets what each part's key has used of its rule.
    pub fn reset(&self, request: &[Part<'_>]) -> Answer<Result<Decision, Fault>> {
        self.change(request, Policy::reset)
    }

    /// As [`check`](Engine::check), for a request that asks for places too. They are held by one id, for the shortest lease
    /// of the rules that it names.
    pub fn acquire(&self, request: &[Part<'_>]) -> Answer<Result<Acquired, Fault>> {
        Answer::Ready(self.acquire_now(request))
    }

    /// Holds what `id` holds for another lease, and tells how long that is. `None` if it holds nothing any more: its lease
    /// was over.
    pub fn renew(&self, id: PlaceId) -> Answer<Option<Duration>> {
        Answer::Ready(self.places.renew(id, self.clock.now()))
    }

    /// Gives back what `id` holds; whether it still held anything.
    pub fn release(&self, id: PlaceId) -> Answer<bool> {
        Answer::Ready(self.places.release(id, self.clock.now()))
    }

    /// Decides by a limit that comes with the call.
    #[inline]
    pub fn throttle(&self, key: &[u8], call: Throttle) -> Answer<Throttled> {
        let plan = self.throttles.by(call);
        let decision = if call.is_peek() { plan.peek(key) } else { plan.check(key) };
        Answer::Ready(decision.into())
    }

    /// How long until a key that was limited by the call owes nothing; `None` if it owes nothing.
    pub fn owes(&self, key: &[u8]) -> Answer<Option<Wait>> {
        let owed = self.throttles.by(Throttle::of_any_limit()).peek(key).reset_after();
        Answer::Ready(Some(owed).filter(|owed| owed.as_micros() > 0))
    }

    /// Forgets a key that was limited by the call; whether it owed anything.
    pub fn forget(&self, key: &[u8]) -> Answer<bool> {
        let owed = self.throttles.by(Throttle::of_any_limit()).peek(key).reset_after();
        self.throttles.reset(key);
        Answer::Ready(owed.as_micros() > 0)
    }

    /// How many keys are limited by the call.
    #[must_use]
    pub fn keys(&self) -> u64 {
        u64::try_from(self.throttles.stats().keys).unwrap_or(u64::MAX)
    }

    /// How many requests hold places.
    #[must_use]
    pub fn places(&self) -> usize {
        self.places.len()
    }

    fn lease(&self, part: &Part<'_>) -> Option<Duration> {
        *self.leases.get(usize::from(part.rule.0))?
    }

    fn acquire_now(&self, request: &[Part<'_>]) -> Result<Acquired, Fault> {
        let lease = request.iter().filter_map(|part| self.lease(part)).min().ok_or(Fault::NoPlaces)?;
        // What costs nothing always passes, so there would be no bound on how many hold it.
        if request.iter().all(|part| self.lease(part).is_none() || part.cost == 0) {
            return Err(Fault::NothingToHold);
        }
        self.free_overdue(request);
        let admission = self.ask(request, Policy::check)?;
        let (decision, permits) = (admission.decision, admission.permits);
        let place =
            decision.is_allowed().then(|| (self.places.hold(permits, lease, self.clock.now()), lease));
        Ok(Acquired { decision, place })
    }

    fn change(
        &self,
        request: &[Part<'_>],
        verb: impl FnOnce(&Policy<Rule, C>, &[Part<'_>]) -> Result<(), InvalidRequest>,
    ) -> Answer<Result<Decision, Fault>> {
        if let Some(part) = request.iter().find(|part| self.lease(part).is_some()) {
            return Answer::Ready(Err(Fault::NeedsPlace(part.rule)));
        }
        let looking: Vec<Part<'_>> = request.iter().map(|part| part.cost(0)).collect();
        Answer::Ready(self.ask(request, verb).and_then(|()| self.ask(&looking, Policy::peek)))
    }

    fn ask<R>(
        &self,
        request: &[Part<'_>],
        verb: impl FnOnce(&Policy<Rule, C>, &[Part<'_>]) -> Result<R, InvalidRequest>,
    ) -> Result<R, Fault> {
        let nothing = Fault::Request(InvalidRequest::Empty);
        verb(self.policy.as_ref().ok_or(nothing)?, request).map_err(Fault::Request)
    }

    fn free_overdue(&self, request: &[Part<'_>]) {
        if request.iter().any(|part| self.lease(part).is_some()) {
            self.places.free_overdue(self.clock.now());
        }
    }
}

impl<C> fmt::Debug for Engine<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("rules", &self.leases.len()).finish_non_exhaustive()
    }
}

// === impl Kind ===

impl Kind {
    fn lease(&self) -> Option<Duration> {
        match self {
            Kind::Rate(_) => None,
            Kind::Places { lease, .. } => Some(*lease),
        }
    }
}

// === impl Answer ===

impl<T> Answer<T> {
    /// The answer, if it is there already.
    #[must_use]
    pub fn now(self) -> Option<T> {
        match self {
            Answer::Ready(answer) => Some(answer),
            Answer::Pending(_) => None,
        }
    }

    /// All answers, in this order: now if all are there, else when the last one is.
    #[must_use]
    pub fn all(answers: Vec<Answer<T>>) -> Answer<Vec<T>>
    where
        T: Send + 'static,
    {
        if answers.iter().all(|answer| matches!(answer, Answer::Ready(_))) {
            return Answer::Ready(answers.into_iter().filter_map(Answer::now).collect());
        }
        Answer::Pending(Box::pin(async move {
            let mut all = Vec::with_capacity(answers.len());
            for answer in answers {
                all.push(answer.wait().await);
            }
            all
        }))
    }

    /// The answer, waited for if it is not there yet.
    pub async fn wait(self) -> T {
        match self {
            Answer::Ready(answer) => answer,
            Answer::Pending(answer) => answer.await,
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Answer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Ready(answer) => f.debug_tuple("Ready").field(answer).finish(),
            Answer::Pending(_) => f.write_str("Pending(..)"),
        }
    }
}

// === impl Fault ===

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Request(invalid) => invalid.fmt(f),
            Fault::NeedsPlace(rule) => {
                write!(
                    f,
                    "rule {rule} is about places at work; acquire one, and release it when the work is done"
                )
            }
            Fault::NothingToHold => {
                f.write_str("a cost of 0 holds no place; peek to see what is left, or say a cost")
            }
            Fault::NoPlaces => {
                f.write_str("no rule of the request is about places at work; check it instead")
            }
        }
    }
}

impl std::error::Error for Fault {}
