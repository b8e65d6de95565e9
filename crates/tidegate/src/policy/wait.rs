//! # Waiting for several states
//!
//! A refused request joins the [queue](super::wait_queues) of the state that refused it. When it is first there and the
//! state has enough, it tries all states again, all or nothing. If another state refuses it then, it joins the queue of
//! that state, with the number it began with, so that no later request is before it:
//!
//! ```text
//!   try ──► passed: leave every queue, wake the next waiters
//!    ▲  └─► refused by a state: join its queue ──► sleep until it has enough, a permit is released, or one is first
//!    └────────────────────────────────────────────────┘
//! ```
//!
//! **Between two states.** If a request left the first queue whenever a second state refuses, others could use up the
//! first state meanwhile, and then the second, and so on for ever. If it always stayed, a request of alice would hold up
//! all requests on the global limit while it waits an hour for her own bucket. So a position is kept for as long as the
//! request has waited for it, and not longer: after an hour in the queue of alice's bucket, it is kept during the 10 ms
//! that the global limit takes; after 10 ms in the global queue, it is not kept for an hour. Sooner or later a request
//! has waited for the slowest state, and from then on nothing is lost between two tries.
//!
//! **No wake-up is lost.** A request that joins a queue tries once more *after* it has joined, and after it has
//! registered its waker where permits are released. The try sees everything that happened before; everything that happens
//! later finds the waiter in the queue.

use std::task::Waker;

use super::participant::{Mode, Participant};
use super::wait_queues::QueueId;
use super::{Policy, fast_path, permits};
use crate::clock::Clock;
use crate::concurrency::KeyGuard;
use crate::error::{AcquireError, RefusalKind};
use crate::gate::{Admission, InvalidRequest, Part, is_valid};
use crate::reservation::later;
use crate::wait::{Park, Progress, Sleep, block_on, monotonic_now, wait_on};
use tidegate_core::{Algorithm, Decision, Micros, Outcome, Source, Wait};

/// A request that waits. Dropping it cancels the wait.
struct Waiting<'a, A: Algorithm, C: Clock> {
    policy: &'a Policy<A, C>,
    request: &'a [Part<'a>],
    asked: Micros,
    deadline: Micros,
    /// The last refusal.
    refused: Option<Decision>,
    /// Its number, once it has joined a queue.
    number: Option<u64>,
    positions: Vec<Position>,
}

/// A position in a queue.
struct Position {
    queue_id: QueueId,
    since: Micros,
    /// How long it is kept while the request waits for another state.
    until: Micros,
    /// Where permits are released, if the state is a concurrency limit.
    key_guard: Option<KeyGuard>,
}

/// The state that refused a request, for which it may wait.
struct Blocked {
    decision: Decision,
    queue_id: QueueId,
    key_guard: Option<KeyGuard>,
}

type AcquireResult = Result<Admission, AcquireError>;

impl<A: Algorithm, C: Clock> Policy<A, C> {
    /// Waits, as a task, until all parts of `request` may pass, and charges all of them.
    pub(crate) async fn wait(&self, request: &[Part<'_>], deadline: Micros) -> Result<Admission, AcquireError>
    where
        C: Sleep,
    {
        if let Some(admission) = self.pass_fast(request) {
            return Ok(self.observed(request, admission));
        }
        let mut waiting = Waiting::new(self, request, deadline);
        wait_on(&self.clock, |waker| waiting.poll(waker)).await
    }

    /// Blocks this thread until all parts of `request` may pass, and charges all of them.
    pub(crate) fn wait_blocking(
        &self,
        request: &[Part<'_>],
        deadline: Micros,
    ) -> Result<Admission, AcquireError>
    where
        C: Park,
    {
        if let Some(admission) = self.pass_fast(request) {
            return Ok(self.observed(request, admission));
        }
        let mut waiting = Waiting::new(self, request, deadline);
        block_on(&self.clock, |waker| waiting.poll(waker))
    }

    /// The number of waiters.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.shared.queues.waiting()
    }

    /// Tries the fast path: it succeeds if there is nothing to wait for.
    fn pass_fast(&self, request: &[Part<'_>]) -> Option<Admission> {
        match request.len() {
            1 => self.pass_few::<1>(request),
            2 => self.pass_few::<2>(request),
            3 => self.pass_few::<3>(request),
            _ => None,
        }
    }

    fn pass_few<const N: usize>(&self, request: &[Part<'_>]) -> Option<Admission> {
        let few = request.first_chunk::<N>().filter(|few| is_valid(few, self.shared.limits.len()))?;
        let decision = match fast_path::check(&self.shared, few, || self.clock.now()) {
            Ok(passed) => passed.decision(),
            Err(decided) => decided.filter(Decision::is_allowed)?, // contention may have ended in a decision all the same
        };
        Some(Admission::without_permits(decision))
    }

    fn observed(&self, request: &[Part<'_>], admission: Admission) -> Admission {
        if let Some(observer) = &self.observer {
            observer.allowed(&admission.decision, &self.charges(request));
        }
        admission
    }

    /// Tries all states. A request that may not pass now charges nothing, not even a delayed turn in a leaky queue.
    fn try_pass(
        &self,
        request: &[Part<'_>],
        number: Option<u64>,
        deadline: Micros,
    ) -> Result<Tried, InvalidRequest> {
        self.decide_with(request, Mode::Pass { number }, |decision, participants| {
            if decision.outcome == Outcome::Allowed {
                return Tried::Passed(Admission {
                    permits: permits(participants),
                    ..Admission::without_permits(decision)
                });
            }
            match Blocked::new(decision, participants, deadline) {
                Ok(blocked) => Tried::Blocked(blocked),
                Err(error) => Tried::Hopeless { decision, error },
            }
        })
    }
}

/// The result of trying all states.
enum Tried {
    Passed(Admission),
    /// A state refused, and the request may wait for it.
    Blocked(Blocked),
    /// A state refused, and waiting cannot help.
    Hopeless {
        decision: Decision,
        error: AcquireError,
    },
}

impl Blocked {
    /// Returns the state that refused a request, or why waiting for it cannot help.
    fn new<A: Algorithm>(
        decision: Decision,
        participants: &[Participant<'_, A>],
        deadline: Micros,
    ) -> Result<Self, AcquireError> {
        if let Some(hopeless) = participants.iter().find_map(|participant| hopeless(participant, deadline)) {
            return Err(hopeless);
        }
        let binding = participants
            .iter()
            .find(|participant| participant.decision() == decision)
            .expect("one of them was binding");
        let key_guard = binding.key_guard().transpose().map_err(|_| too_many_keys(&decision))?;
        Ok(Blocked { decision, queue_id: binding.queue_id(), key_guard })
    }

    /// When to try again; `None` if that is unknown.
    fn again(&self) -> Option<Micros> {
        match self.decision.outcome {
            Outcome::RetryAfter(wait) | Outcome::AllowedAfter(wait) => {
                Some(self.decision.at().plus(wait.as_micros()))
            }
            Outcome::Allowed | Outcome::Busy | Outcome::Never => None,
        }
    }
}

/// Returns why waiting for this part of a request cannot help, whatever other requests wait.
fn hopeless<A: Algorithm>(participant: &Participant<'_, A>, deadline: Micros) -> Option<AcquireError> {
    let (own, cost) = (participant.own(), participant.cost());
    let refused = |refusal| Some(AcquireError::from(refusal).of_rule(own.rule));
    match own.outcome {
        Outcome::Never => refused(RefusalKind::Never { cost, limit: own.limit() }),
        _ if own.source == Source::Closed => Some(too_many_keys(&own)),
        Outcome::RetryAfter(wait) | Outcome::AllowedAfter(wait) => match later(own.at(), wait.as_micros()) {
            None => refused(RefusalKind::BeyondTime { cost }),
            Some(ready) if ready > deadline => refused(RefusalKind::too_long(own.at(), ready, deadline)),
            Some(_) => None,
        },
        Outcome::Allowed | Outcome::Busy => None,
    }
}

fn too_many_keys(closed: &Decision) -> AcquireError {
    let retry_after = closed.retry_after().unwrap_or_default();
    AcquireError::from(RefusalKind::TooManyKeys { retry_after }).of_rule(closed.rule)
}

// === impl Waiting ===

impl<'a, A: Algorithm, C: Clock> Waiting<'a, A, C> {
    /// Creates a wait that is in no queue yet. The first poll joins one if it has to.
    fn new(policy: &'a Policy<A, C>, request: &'a [Part<'a>], deadline: Micros) -> Self {
        let asked = monotonic_now(&policy.clock);
        Waiting { policy, request, asked, deadline, refused: None, number: None, positions: Vec::new() }
    }

    fn poll(&mut self, waker: &Waker) -> Progress<AcquireResult> {
        match self.advance(waker) {
            Progress::Done(answer) => {
                self.leave_all_queues();
                self.observe(&answer);
                Progress::Done(answer.map_err(|error| self.policy.named(error)))
            }
            until => until,
        }
    }

    fn advance(&mut self, waker: &Waker) -> Progress<AcquireResult> {
        loop {
            self.leave_expired_positions();
            if !self.is_first(waker) {
                return self.sleep(Micros::MAX);
            }
            self.set_wakers(waker);
            let blocked = match self.policy.try_pass(self.request, self.number, self.deadline) {
                Err(invalid) => return Progress::Done(Err(invalid.into())),
                Ok(Tried::Passed(admission)) => return Progress::Done(Ok(admission)),
                Ok(Tried::Hopeless { decision, error }) => {
                    self.refused = Some(decision);
                    return Progress::Done(Err(error));
                }
                Ok(Tried::Blocked(blocked)) => blocked,
            };
            let again = blocked.again().unwrap_or(Micros::MAX);
            match self.enqueue(blocked, waker) {
                Err(queue_full) => return Progress::Done(Err(queue_full)),
                Ok(Enqueued::Already) => return self.sleep(again),
                // Nothing woke this waiter before it joined the queue: try again.
                Ok(Enqueued::Anew) => {}
            }
        }
    }

    /// Returns whether no other waiter is before this one in any of its queues.
    fn is_first(&self, waker: &Waker) -> bool {
        let Some(number) = self.number else { return true };
        let queue_ids = self.positions.iter().map(|position| position.queue_id);
        self.policy.shared.queues.is_first(number, queue_ids, waker)
    }

    fn set_wakers(&self, waker: &Waker) {
        let Some(number) = self.number else { return };
        let key_guards = self.positions.iter().filter_map(|position| position.key_guard.as_ref());
        key_guards.for_each(|key_guard| key_guard.set_waker(number, waker));
    }

    /// Sleeps until `again`, until a position expires, or until the deadline.
    fn sleep(&self, again: Micros) -> Progress<AcquireResult> {
        let now = monotonic_now(&self.policy.clock);
        if now >= self.deadline {
            return Progress::Done(Err(self.timed_out()));
        }
        let expiry = self.positions.iter().map(|position| position.until).min().unwrap_or(Micros::MAX);
        Progress::Until(again.min(expiry).min(self.deadline))
    }

    fn timed_out(&self) -> AcquireError {
        let within = Wait::micros(self.deadline.since(self.asked));
        self.error(RefusalKind::TimedOut { within })
    }

    /// Returns the error of the rule that refused last.
    fn error(&self, refusal: RefusalKind) -> AcquireError {
        let rule = self.refused.map_or_else(Default::default, |refused| refused.rule);
        AcquireError::from(refusal).of_rule(rule)
    }

    /// Joins the queue of the state that refused, and keeps positions in other queues as long as allowed.
    fn enqueue(&mut self, blocked: Blocked, waker: &Waker) -> Result<Enqueued, AcquireError> {
        let (again, now) = (blocked.again(), blocked.decision.at());
        self.refused = Some(blocked.decision);
        let number = self.number(waker)?;
        let limits = &self.policy.shared;
        let known = self.positions.iter().any(|position| position.queue_id == blocked.queue_id);
        for position in &mut self.positions {
            let here = position.queue_id == blocked.queue_id;
            position.until = if here { Micros::MAX } else { position.keep_until(now, again) };
            limits.enqueue(number, position.queue_id, again.unwrap_or(Micros::MAX).min(position.until));
        }
        if !known {
            limits.enqueue(number, blocked.queue_id, again.unwrap_or(Micros::MAX));
            let Blocked { queue_id, key_guard, .. } = blocked;
            self.positions.push(Position { queue_id, since: now, until: Micros::MAX, key_guard });
        }
        self.leave_queues(|position| position.until <= now);
        Ok(if known { Enqueued::Already } else { Enqueued::Anew })
    }

    /// Returns the number of this waiter, and draws one first if it has none.
    fn number(&mut self, waker: &Waker) -> Result<u64, AcquireError> {
        let queues = &self.policy.shared.queues;
        let number = self.number.or_else(|| queues.enter(waker));
        self.number = number;
        number.ok_or_else(|| self.error(RefusalKind::QueueFull { max_waiting: queues.max_waiting() }))
    }

    fn leave_expired_positions(&mut self) {
        if self.positions.iter().any(|position| position.until < Micros::MAX) {
            let now = monotonic_now(&self.policy.clock);
            self.leave_queues(|position| position.until <= now);
        }
    }

    fn leave_queues(&mut self, which: impl Fn(&Position) -> bool) {
        let Some(number) = self.number else { return };
        for position in self.positions.extract_if(.., |position| which(position)) {
            if let Some(key_guard) = &position.key_guard {
                key_guard.take_waker(number);
            }
            self.policy.shared.dequeue(number, position.queue_id);
        }
    }

    /// Leaves every queue, without a trace.
    fn leave_all_queues(&mut self) {
        self.leave_queues(|_| true);
        if let Some(number) = self.number.take() {
            self.policy.shared.queues.exit(number);
        }
    }

    fn observe(&self, answer: &AcquireResult) {
        let Some(observer) = &self.policy.observer else { return };
        let charges = self.policy.charges(self.request);
        match (answer, &self.refused) {
            (Ok(admission), _) => observer.allowed(&admission.decision, &charges),
            (Err(_), Some(refused)) => observer.denied(refused, &charges),
            (Err(_), None) => {}
        }
    }
}

/// Whether a refused request was already in the queue of the state that refused it.
enum Enqueued {
    Already,
    Anew,
}

impl Position {
    /// Returns how long the position may be kept while the request waits for another state until `again`.
    ///
    /// That is as long as the request has waited in this queue, and not at all if that does not suffice.
    fn keep_until(&self, now: Micros, again: Option<Micros>) -> Micros {
        let until = self.until.min(now.plus(now.since(self.since)));
        match again {
            Some(again) if again > until => now,
            _ => until,
        }
    }
}

impl<A: Algorithm, C: Clock> Drop for Waiting<'_, A, C> {
    fn drop(&mut self) {
        self.leave_all_queues();
    }
}
