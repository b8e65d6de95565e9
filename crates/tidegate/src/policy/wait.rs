//! # Waiting for several states
//!
//! A request that was refused stands in line at the state that refused it; what a line is, is told [there](super::wait_queues).
//! When its turn has come it asks for everything again, all or nothing. If another state refuses it then, it goes and
//! stands there, by the number it began with, so that nobody who came later is before it:
//!
//! ```text
//!   try ──► passed: leave every wait_queues, call those who are next
//!    ▲  └─► refused by a state: enqueue there ──► rest until it has enough, or a permit came back, or one is first
//!    └────────────────────────────────────────────────┘
//! ```
//!
//! **Between two states.** Were the place at the first state given up whenever a second one refuses, others could use up
//! the first meanwhile, and then the second, and so on for ever. Were it always kept, alice would hold up everybody
//! while she waits an hour for her own bucket. So a place is kept for as long as it was waited for, and not longer: who has
//! waited an hour for alice's bucket keeps others from it during the 10 ms it takes to get through everybody's; who has
//! waited 10 ms for everybody's does not keep it for an hour. Sooner or later one has waited for the slowest state, and
//! from then on nothing is lost between two tries.
//!
//! **No call is lost.** Who goes to stand somewhere tries once more *after* it stands there, and after it has set its bell
//! where permits come back. What happens before that is seen by the try; whoever does something after it finds somebody
//! to call.

use std::task::Waker;
use std::time::Duration;

use super::participant::{Mode, Participant};
use super::wait_queues::QueueId;
use super::{NotAdmitted, Policy, fast_path, permits};
use crate::clock::Clock;
use crate::concurrency::KeyGuard;
use crate::gate::{Admission, InvalidRequest, Part, is_valid};
use crate::reservation::{WaitRefused, later};
use crate::wait::{Park, Progress, Sleep, block_on, steady_now, wait_on};
use tidegate_core::{Algorithm, Decision, Micros, Outcome, Source, Wait};

/// A request that waits, and gives up by being dropped.
struct Waiting<'a, A: Algorithm, C: Clock> {
    policy: &'a Policy<A, C>,
    request: &'a [Part<'a>],
    asked: Micros,
    deadline: Micros,
    /// What it was told last.
    told: Option<Decision>,
    /// Its number, once it stands in line.
    number: Option<u64>,
    places: Vec<Place>,
}

/// A place in line.
struct Place {
    queue_id: QueueId,
    since: Micros,
    /// How long it is kept while another state is waited for.
    until: Micros,
    /// Where permits come back, if it is one for permits.
    key_guard: Option<KeyGuard>,
}

/// What refused a request that may wait for it.
struct Refusal {
    told: Decision,
    queue_id: QueueId,
    key_guard: Option<KeyGuard>,
}

type Answer = Result<Admission, NotAdmitted>;

impl<A: Algorithm, C: Clock> Policy<A, C> {
    /// Waits until all parts of `request` may pass at once, and charges all of them.
    ///
    /// Who waits stands in line at the state that refused it, and has charged nothing anywhere. There it is first come,
    /// first served: nobody takes from a state at which somebody waits who came before, nor do those who only
    /// [`check`](Policy::check); they are refused for at least as long as the first in line will wait. Those who name
    /// other keys are not held up. On the [`SteadyClock`](crate::SteadyClock) the timers are tokio's: this needs the
    /// feature `tokio`. A clock that can step back does not do.
    ///
    /// There is no `reserve`: an instant cannot be promised over several states without keeping everybody else from all
    /// of them until then.
    ///
    /// ```
    /// # #[cfg(feature = "tokio")] {
    /// use tidegate::{Part, Policy, Quota, TokioClock};
    ///
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    /// # runtime.block_on(async {
    /// let clock = TokioClock::new();
    /// let policy = Policy::builder()
    ///     .rule("everybody", Quota::per_second(100))
    ///     .rule("user", Quota::per_second(10).burst(1))
    ///     .concurrency("at work", 3)
    ///     .build()?
    ///     .with_clock(clock);
    /// let [everybody, user, at_work] = ["everybody", "user", "at work"].map(|name| policy.id(name).unwrap());
    /// let request = [Part::of(everybody), Part::of(user).key("alice"), Part::of(at_work)];
    /// for _ in 0..3 {
    ///     let admission = policy.acquire(&request).await?; // at 0, 100 and 200 ms
    ///     drop(admission); // and with it the permit
    /// }
    /// # use tidegate::Clock;
    /// # assert_eq!(clock.now().get(), 200_000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`NotAdmitted::Invalid`] as [`check`](Policy::check); else [`NotAdmitted::Refused`], with
    /// [`WaitRefused::LineFull`] if too many wait, [`WaitRefused::Never`] if a cost is more than its rule ever gives,
    /// [`WaitRefused::TooManyKeys`] if there is no room for another key, or [`WaitRefused::BeyondTime`]. Nothing was
    /// charged then.
    ///
    /// # Panics
    ///
    /// On the steady clock, if it has to wait outside a tokio runtime with timers.
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any point. It has charged nothing, and whoever is behind it is called.
    pub async fn acquire(&self, request: &[Part<'_>]) -> Result<Admission, NotAdmitted>
    where
        C: Sleep,
    {
        self.acquire_until(request, Micros::MAX).await
    }

    /// Waits as [`acquire`](Policy::acquire) does, for at most so long. A wait of which it can be seen that it would be
    /// longer is refused at once.
    ///
    /// How long those before it in line will take cannot be seen, nor when permits come back: such a wait may take all the
    /// time there is, and end with [`WaitRefused::TimedOut`].
    ///
    /// # Errors
    ///
    /// As [`acquire`](Policy::acquire), and [`WaitRefused::TooLong`], [`WaitRefused::TimedOut`].
    ///
    /// # Panics
    ///
    /// As [`acquire`](Policy::acquire).
    pub async fn acquire_timeout(
        &self,
        request: &[Part<'_>],
        timeout: Duration,
    ) -> Result<Admission, NotAdmitted>
    where
        C: Sleep,
    {
        self.acquire_until(request, self.after(timeout)).await
    }

    /// Waits as [`acquire`](Policy::acquire) does, until an instant of the policy's clock at the latest.
    ///
    /// # Errors
    ///
    /// As [`acquire_timeout`](Policy::acquire_timeout).
    ///
    /// # Panics
    ///
    /// As [`acquire`](Policy::acquire).
    pub async fn acquire_until(
        &self,
        request: &[Part<'_>],
        deadline: Micros,
    ) -> Result<Admission, NotAdmitted>
    where
        C: Sleep,
    {
        if let Some(admission) = self.pass_fast(request) {
            return Ok(self.shown(admission));
        }
        let mut waiting = Waiting::new(self, request, deadline);
        wait_on(&self.clock, |waker| waiting.look(waker)).await
    }

    /// Blocks this thread until all parts of `request` may pass at once, and charges all of them. Not for tasks: see
    /// [`acquire`](Policy::acquire).
    ///
    /// # Errors
    ///
    /// As [`acquire`](Policy::acquire).
    pub fn acquire_blocking(&self, request: &[Part<'_>]) -> Result<Admission, NotAdmitted>
    where
        C: Park,
    {
        self.acquire_blocking_until(request, Micros::MAX)
    }

    /// Blocks this thread for at most so long, as [`acquire_timeout`](Policy::acquire_timeout) waits.
    ///
    /// # Errors
    ///
    /// As [`acquire_timeout`](Policy::acquire_timeout).
    pub fn acquire_blocking_timeout(
        &self,
        request: &[Part<'_>],
        timeout: Duration,
    ) -> Result<Admission, NotAdmitted>
    where
        C: Park,
    {
        self.acquire_blocking_until(request, self.after(timeout))
    }

    /// Blocks this thread until an instant of the policy's clock at the latest.
    ///
    /// # Errors
    ///
    /// As [`acquire_timeout`](Policy::acquire_timeout).
    pub fn acquire_blocking_until(
        &self,
        request: &[Part<'_>],
        deadline: Micros,
    ) -> Result<Admission, NotAdmitted>
    where
        C: Park,
    {
        if let Some(admission) = self.pass_fast(request) {
            return Ok(self.shown(admission));
        }
        let mut waiting = Waiting::new(self, request, deadline);
        block_on(&self.clock, |waker| waiting.look(waker))
    }

    /// How many wait now.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.shared.queues.waiting()
    }

    fn after(&self, timeout: Duration) -> Micros {
        self.clock.now().plus(Micros::from(timeout).get())
    }

    /// By the short cut, if there is nothing to wait for.
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
            Err(at_last) => at_last.filter(Decision::is_allowed)?, // who was held up may have passed all the same
        };
        Some(Admission::without_permits(decision))
    }

    fn shown(&self, admission: Admission) -> Admission {
        if let Some(observer) = &self.observer {
            observer.allowed(&admission.decision);
        }
        admission
    }

    /// Asks for everything: whoever may not pass now charges nothing, not even a turn in a queue.
    fn try_pass(
        &self,
        request: &[Part<'_>],
        number: Option<u64>,
        deadline: Micros,
    ) -> Result<Tried, InvalidRequest> {
        self.decide_with(request, Mode::Pass { number }, |told, participants| {
            if told.outcome == Outcome::Allowed {
                return Tried::Passed(Admission {
                    permits: permits(participants),
                    ..Admission::without_permits(told)
                });
            }
            match Refusal::new(told, participants, deadline) {
                Ok(refusal) => Tried::Refused(refusal),
                Err(why) => Tried::InVain { told, why },
            }
        })
    }
}

/// What came of asking for everything.
enum Tried {
    Passed(Admission),
    Refused(Refusal),
    InVain { told: Decision, why: NotAdmitted },
}

impl Refusal {
    /// By whom a request was refused, or why waiting for it is in vain.
    fn new<A: Algorithm>(
        told: Decision,
        participants: &[Participant<'_, A>],
        deadline: Micros,
    ) -> Result<Self, NotAdmitted> {
        if let Some(in_vain) = participants.iter().find_map(|participant| in_vain(participant, deadline)) {
            return Err(in_vain);
        }
        let binding = participants
            .iter()
            .find(|participant| participant.decision() == told)
            .expect("one of them was binding");
        let key_guard = binding.key_guard().transpose().map_err(|_| too_many_keys(&told))?;
        Ok(Refusal { told, queue_id: binding.queue_id(), key_guard })
    }

    /// When to try again. `None`: nobody can say.
    fn again(&self) -> Option<Micros> {
        match self.told.outcome {
            Outcome::RetryAfter(wait) | Outcome::AllowedAfter(wait) => {
                Some(self.told.at().plus(wait.as_micros()))
            }
            Outcome::Allowed | Outcome::Busy | Outcome::Never => None,
        }
    }
}

/// Why it is in vain to wait for this part of a request, whoever else waits, if it is.
fn in_vain<A: Algorithm>(participant: &Participant<'_, A>, deadline: Micros) -> Option<NotAdmitted> {
    let (own, cost) = (participant.own(), participant.cost());
    let refused = |why| Some(NotAdmitted::Refused { rule: own.rule, why });
    match own.outcome {
        Outcome::Never => refused(WaitRefused::Never { cost, limit: own.limit() }),
        _ if own.source == Source::Closed => Some(too_many_keys(&own)),
        Outcome::RetryAfter(wait) | Outcome::AllowedAfter(wait) => match later(own.at(), wait.as_micros()) {
            None => refused(WaitRefused::BeyondTime { cost }),
            Some(ready) if ready > deadline => refused(WaitRefused::too_long(own.at(), ready, deadline)),
            Some(_) => None,
        },
        Outcome::Allowed | Outcome::Busy => None,
    }
}

fn too_many_keys(closed: &Decision) -> NotAdmitted {
    let retry_after = closed.retry_after().unwrap_or_default();
    NotAdmitted::Refused { rule: closed.rule, why: WaitRefused::TooManyKeys { retry_after } }
}

// === impl Waiting ===

impl<'a, A: Algorithm, C: Clock> Waiting<'a, A, C> {
    /// Not in line yet; that comes with the first look.
    fn new(policy: &'a Policy<A, C>, request: &'a [Part<'a>], deadline: Micros) -> Self {
        let asked = steady_now(&policy.clock);
        Waiting { policy, request, asked, deadline, told: None, number: None, places: Vec::new() }
    }

    fn look(&mut self, waker: &Waker) -> Progress<Answer> {
        let look = self.find(waker);
        if let Progress::Done(answer) = &look {
            self.leave();
            self.observe(answer);
        }
        look
    }

    fn find(&mut self, waker: &Waker) -> Progress<Answer> {
        loop {
            self.give_up_what_was_kept_long_enough();
            if !self.is_first(waker) {
                return self.rest(Micros::MAX);
            }
            self.set_wakers(waker);
            let refusal = match self.policy.try_pass(self.request, self.number, self.deadline) {
                Err(invalid) => return Progress::Done(Err(invalid.into())),
                Ok(Tried::Passed(admission)) => return Progress::Done(Ok(admission)),
                Ok(Tried::InVain { told, why }) => {
                    self.told = Some(told);
                    return Progress::Done(Err(why));
                }
                Ok(Tried::Refused(refusal)) => refusal,
            };
            let again = refusal.again().unwrap_or(Micros::MAX);
            match self.enqueue(refusal, waker) {
                Err(line_full) => return Progress::Done(Err(line_full)),
                Ok(Stood::Here) => return self.rest(again),
                // Whatever happened before it stood there was told to nobody: look again.
                Ok(Stood::Elsewhere) => {}
            }
        }
    }

    /// Whether nobody is before it, as far as it stands in line.
    fn is_first(&self, waker: &Waker) -> bool {
        let Some(number) = self.number else { return true };
        self.policy.shared.queues.is_first(number, self.places.iter().map(|place| place.queue_id), waker)
    }

    fn set_wakers(&self, waker: &Waker) {
        let Some(number) = self.number else { return };
        let visits = self.places.iter().filter_map(|place| place.key_guard.as_ref());
        visits.for_each(|key_guard| key_guard.set_waker(number, waker));
    }

    /// Nothing to do until `again`, or until a place was kept long enough, or time is up.
    fn rest(&self, again: Micros) -> Progress<Answer> {
        let now = steady_now(&self.policy.clock);
        if now >= self.deadline {
            return Progress::Done(Err(self.timed_out()));
        }
        let kept = self.places.iter().map(|place| place.until).min().unwrap_or(Micros::MAX);
        Progress::Until(again.min(kept).min(self.deadline))
    }

    fn timed_out(&self) -> NotAdmitted {
        let within = Wait::micros(self.deadline.since(self.asked));
        self.refused(WaitRefused::TimedOut { within })
    }

    fn refused(&self, why: WaitRefused) -> NotAdmitted {
        let rule = self.told.map_or_else(Default::default, |told| told.rule);
        NotAdmitted::Refused { rule, why }
    }

    /// Goes to stand where it was refused, and keeps its places elsewhere as long as it may.
    fn enqueue(&mut self, refusal: Refusal, waker: &Waker) -> Result<Stood, NotAdmitted> {
        let (again, now) = (refusal.again(), refusal.told.at());
        self.told = Some(refusal.told);
        let number = self.enter(waker)?;
        let limits = &self.policy.shared;
        let known = self.places.iter().any(|place| place.queue_id == refusal.queue_id);
        for place in &mut self.places {
            let here = place.queue_id == refusal.queue_id;
            place.until = if here { Micros::MAX } else { place.keep_until(now, again) };
            limits.enqueue(number, place.queue_id, again.unwrap_or(Micros::MAX).min(place.until));
        }
        if !known {
            limits.enqueue(number, refusal.queue_id, again.unwrap_or(Micros::MAX));
            let Refusal { queue_id, key_guard, .. } = refusal;
            self.places.push(Place { queue_id, since: now, until: Micros::MAX, key_guard });
        }
        self.give_up(|place| place.until <= now);
        Ok(if known { Stood::Here } else { Stood::Elsewhere })
    }

    fn enter(&mut self, waker: &Waker) -> Result<u64, NotAdmitted> {
        let queues = &self.policy.shared.queues;
        let number = self.number.or_else(|| queues.enter(waker));
        self.number = number;
        number.ok_or_else(|| self.refused(WaitRefused::LineFull { max_waiting: queues.max_waiting() }))
    }

    fn give_up_what_was_kept_long_enough(&mut self) {
        if self.places.iter().any(|place| place.until < Micros::MAX) {
            let now = steady_now(&self.policy.clock);
            self.give_up(|place| place.until <= now);
        }
    }

    fn give_up(&mut self, which: impl Fn(&Place) -> bool) {
        let Some(number) = self.number else { return };
        for place in self.places.extract_if(.., |place| which(place)) {
            if let Some(key_guard) = &place.key_guard {
                key_guard.take_waker(number);
            }
            self.policy.shared.dequeue(number, place.queue_id);
        }
    }

    /// Leaves every line, without a trace.
    fn leave(&mut self) {
        self.give_up(|_| true);
        if let Some(number) = self.number.take() {
            self.policy.shared.queues.exit(number);
        }
    }

    fn observe(&self, answer: &Answer) {
        let Some(observer) = &self.policy.observer else { return };
        match (answer, &self.told) {
            (Ok(admission), _) => observer.allowed(&admission.decision),
            (Err(_), Some(told)) => observer.denied(told),
            (Err(_), None) => {}
        }
    }
}

/// Where somebody stands who was refused.
enum Stood {
    /// Where it stood when it tried.
    Here,
    Elsewhere,
}

impl Place {
    /// How long it may be kept while another state is waited for until `again`: as long as it was waited for, and not at
    /// all if that will not do.
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
        self.leave();
    }
}
