//! # What is to come of one state
//!
//! The promises that are pending, in the order they were made, and the state from before the first of them. The state
//! after the last is the one in the limiter: whoever decides next, decides after all that was promised.
//!
//! ```text
//!    base ──► promised for 300 ms ──► for 400 ms ──► for 700 ms ──► end, the state in the limiter
//!      ▲           when its instant has come,            │            ▲
//!      └───────────it is part of the base                └─ horizon     └─ taken back? run from the base again without it
//! ```
//!
//! Each is charged at its own instant, by the algorithm, and these instants never go back. So what is promised is a
//! history that the algorithm itself would have allowed, whatever the algorithm; and to take a promise back is to run
//! the rest again without it. Who waits then moves up. Who was told an instant and went away with it, as a reservation
//! is, keeps that instant.
//!
//! Others may act meanwhile without asking for leave, as `force` and `refund` do. Such deeds stand in the list like
//! promises. There may be many of them, so beyond a few the list is *sealed*: all of it becomes part of the base, and
//! counts whatever becomes of its holders.
//!
//! A queue promises otherwise: it charges now, for a turn later. If such a turn was told to somebody for good, those
//! before it cannot be taken back any more: the queue would give their turns away once more, and the last of them is
//! already somebody's.

use std::collections::BTreeMap;
use std::task::Waker;

use super::WaitRefused;
use crate::operation::{Answer, Mutation, passed};
use tidegate_core::{Algorithm, Decision, Micros, Outcome, Words};

/// The pending promises about one state.
#[derive(Debug)]
pub(super) struct Schedule<A> {
    base: Vec<u64>,
    /// The latest instant in the base.
    base_at: Micros,
    end: Vec<u64>,
    /// The latest instant at which anything in the list is charged; nobody else is before that.
    horizon: Micros,
    items: BTreeMap<u64, Item<A>>,
    /// How many of them are deeds of others.
    deeds: usize,
    /// Some of them are charged now for a turn later, as a queue does.
    queues: bool,
    /// When somebody left a long line, and the rest has not been run again yet.
    stale: Option<Micros>,
}

#[derive(Debug)]
struct Item<A> {
    mutation: Mutation,
    /// What it is charged by, if not by the algorithm in force.
    plan: Option<A>,
    holder: Holder,
    /// When it is charged, and when its holder may go ahead: later than that in a queue.
    at: Micros,
    ready: Micros,
    /// Part of the base already, or never to be.
    counted: bool,
}

/// Whose item it is.
#[derive(Debug)]
enum Holder {
    /// Somebody in line, who moves up when others leave.
    Waiter(Waiter),
    /// Somebody who was told an instant for good.
    Reservation,
    /// Nobody: somebody went ahead with it, or keeps it.
    Nobody,
    /// Somebody who did something else meanwhile.
    Mutation,
    /// It was given back when that could not be done yet.
    GivenBack,
}

#[derive(Debug)]
struct Waiter {
    waker: Waker,
    deadline: Micros,
    told: Result<Decision, WaitRefused>,
}

/// When somebody may go ahead, if nobody else comes before.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScheduledCharge {
    pub(super) at: Micros,
    pub(super) ready: Micros,
    pub(super) decision: Decision,
}

/// What somebody asks for who would wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AcquireRequest {
    pub(crate) cost: u32,
    pub(crate) deadline: Micros,
}

/// What a waiter finds that looks.
pub(crate) type Progress = crate::wait::Progress<Result<Decision, WaitRefused>>;

/// Wakers to be woken and wakers to be dropped when no lock is held any more: both may run anything.
#[derive(Debug, Default)]
pub(super) struct PendingWakes {
    wake: Vec<Waker>,
    spent: Vec<Waker>,
}

/// How those in line are run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Run {
    /// Somebody left: nobody's turn is later than before.
    MovingUp,
    /// By another setting: waiters are judged anew.
    Anew,
}

/// A line longer than this is not run again for everybody who leaves it.
const LONG: usize = 64;
/// So many deeds of others stand in a list before it is sealed.
const MAX_MUTATIONS: usize = 64;

// === impl Calls ===

impl PendingWakes {
    pub(super) fn append(&mut self, more: &mut PendingWakes) {
        self.wake.append(&mut more.wake);
        self.spent.append(&mut more.spent);
    }

    pub(super) fn make(self) {
        self.wake.into_iter().for_each(Waker::wake);
    }

    /// Lets go of who held an item.
    fn spend(&mut self, holder: Holder) {
        if let Holder::Waiter(waiter) = holder {
            self.spent.push(waiter.waker);
        }
    }
}

// === impl Turn ===

impl ScheduledCharge {
    /// The first turn for `acquire_request` from `from` on.
    pub(super) fn find<A, S>(
        algorithm: &A,
        state: &S,
        from: Micros,
        cost: u32,
    ) -> Result<ScheduledCharge, WaitRefused>
    where
        A: Algorithm,
        S: Words + ?Sized,
    {
        let found = algorithm.peek(state, from, cost);
        match found.outcome {
            Outcome::Allowed | Outcome::AllowedAfter(_) => ScheduledCharge::at(from, found, cost),
            // No algorithm is ever busy; if one were, nobody could say until when.
            Outcome::Busy | Outcome::Never => Err(WaitRefused::Never { cost, limit: found.limit() }),
            Outcome::RetryAfter(wait) => {
                let at = later(from, wait.as_micros()).ok_or(WaitRefused::BeyondTime { cost })?;
                ScheduledCharge::at(at, algorithm.peek(state, at, cost), cost)
            }
        }
    }

    fn at(at: Micros, decision: Decision, cost: u32) -> Result<ScheduledCharge, WaitRefused> {
        let ready = match decision.outcome {
            Outcome::Allowed => Some(at),
            Outcome::AllowedAfter(wait) => later(at, wait.as_micros()),
            Outcome::RetryAfter(_) | Outcome::Busy | Outcome::Never => None, // at the end of the clock nothing passes
        };
        ready.map(|ready| ScheduledCharge { at, ready, decision }).ok_or(WaitRefused::BeyondTime { cost })
    }

    /// The same turn, taken from a state that keys share.
    pub(super) fn sketched(self) -> Self {
        ScheduledCharge { decision: self.decision.sketched(), ..self }
    }

    /// The same turn, if it comes in time. `now` is when it was asked for.
    pub(super) fn in_time(
        self,
        acquire_request: AcquireRequest,
        now: Micros,
    ) -> Result<ScheduledCharge, WaitRefused> {
        if self.ready > acquire_request.deadline {
            return Err(WaitRefused::too_long(now, self.ready, acquire_request.deadline));
        }
        Ok(self)
    }

    /// What its holder is told who has sat it out: nothing is left to be waited for.
    pub(super) fn told(self) -> Decision {
        passed(self.decision)
    }
}

/// So much later, if the clock goes that far.
pub(crate) fn later(instant: Micros, micros: u64) -> Option<Micros> {
    let later = instant.get().checked_add(micros)?;
    (later <= Micros::MAX.get()).then(|| Micros::new(later))
}

/// When one may go ahead who was charged at `at` with this decision.
fn ready(at: Micros, decision: Option<Decision>) -> Micros {
    match decision.map(|decision| decision.outcome) {
        Some(Outcome::AllowedAfter(wait)) => at.plus(wait.as_micros()),
        _ => at,
    }
}

impl Mutation {
    fn run<A: Algorithm>(self, algorithm: &A, state: &mut [u64], at: Micros) -> Option<Decision> {
        match self {
            Mutation::Charge(cost) => return Some(algorithm.force(state, at, cost)),
            Mutation::Refund(cost) => algorithm.refund(state, at, cost),
            Mutation::Reset => algorithm.reset(state),
        }
        None
    }
}

// === impl Agenda ===

impl<A: Algorithm> Schedule<A> {
    /// Nothing promised yet, over a state that was last charged at `base_at`.
    pub(super) fn new(base: Vec<u64>, base_at: Micros) -> Self {
        let end = base.clone();
        let (items, horizon) = (BTreeMap::new(), base_at);
        Schedule { base, base_at, end, horizon, items, deeds: 0, queues: false, stale: None }
    }

    /// The state after everything that is promised.
    pub(super) fn end(&self) -> &[u64] {
        &self.end
    }

    /// The earliest instant to decide at, after everything that is promised.
    pub(super) fn from(&self, algorithm: &A, now: Micros) -> Micros {
        now.max(self.horizon).max(algorithm.last_seen(self.end.as_slice()))
    }

    /// How many hold a promise or wait for one.
    pub(super) fn len(&self) -> usize {
        self.items.len() - self.deeds
    }

    /// Whether the end is what it should be.
    pub(super) fn is_fresh(&self) -> bool {
        self.stale.is_none()
    }

    /// Whether the state speaks for itself again.
    pub(super) fn is_over(&self, now: Micros) -> bool {
        self.items.is_empty() && self.horizon <= now && self.is_fresh()
    }

    /// Brings the list up to date; says whether that changed the end. Those whose turn has moved are to be woken.
    pub(super) fn refresh(&mut self, algorithm: &A, now: Micros, wakes: &mut PendingWakes) -> bool {
        self.repair(algorithm, now);
        let left_at = self.stale;
        if let Some(left_at) = left_at {
            self.run(algorithm, left_at, Run::MovingUp, wakes);
        }
        left_at.is_some()
    }

    /// What has had its instant and nobody can give back becomes part of the base.
    fn repair(&mut self, algorithm: &A, now: Micros) {
        while let Some(first) = self.items.first_entry() {
            let item = first.get();
            if item.ready > now || matches!(item.holder, Holder::Waiter(_)) {
                return;
            }
            let item = first.remove();
            self.count(algorithm, &item);
            self.deeds -= usize::from(item.is_mutation());
        }
    }

    /// Everything that has had its instant becomes part of the base, because somebody builds upon it.
    fn seal(&mut self, algorithm: &A, now: Micros) {
        let mut items = std::mem::take(&mut self.items);
        for item in items.values_mut().take_while(|item| item.ready <= now) {
            self.count(algorithm, item);
            item.counted = true;
        }
        let waits = |item: &Item<A>| matches!(item.holder, Holder::Waiter(_));
        items.retain(|_, item| !item.counted || waits(item) || item.is_promise() && item.ready > now);
        self.deeds =
            if self.deeds == 0 { 0 } else { items.values().filter(|item| item.is_mutation()).count() };
        self.items = items;
    }

    fn count(&mut self, algorithm: &A, item: &Item<A>) {
        if !item.counted {
            let _ = item.mutation.run(item.plan.as_ref().unwrap_or(algorithm), &mut self.base, item.at);
            self.base_at = self.base_at.max(item.at);
        }
    }

    /// Promises `turn` to a waiter.
    pub(super) fn add_waiter(
        &mut self,
        ticket: u64,
        acquire_request: AcquireRequest,
        plan: Option<A>,
        turn: ScheduledCharge,
        waker: Waker,
    ) {
        let told = Ok(turn.told());
        let holder = Holder::Waiter(Waiter { waker, deadline: acquire_request.deadline, told });
        self.add(ticket, acquire_request.cost, plan, turn, holder);
    }

    /// Promises `turn` for good.
    pub(super) fn add_reservation(&mut self, ticket: u64, cost: u32, plan: Option<A>, turn: ScheduledCharge) {
        self.add(ticket, cost, plan, turn, Holder::Reservation);
    }

    fn add(&mut self, ticket: u64, cost: u32, plan: Option<A>, turn: ScheduledCharge, holder: Holder) {
        let ScheduledCharge { at, ready, .. } = turn;
        self.horizon = self.horizon.max(at);
        self.queues |= ready > at;
        let item = Item { mutation: Mutation::Charge(cost), plan, holder, at, ready, counted: false };
        self.items.insert(ticket, item);
    }

    /// Charges the end for `turn`, which was found there by `algorithm`.
    pub(super) fn charge(&mut self, algorithm: &A, cost: u32, turn: ScheduledCharge) {
        let _ = algorithm.decide(self.end.as_mut_slice(), turn.at, cost);
    }

    /// Puts the end back to what it was.
    pub(super) fn restore_end(&mut self, end: Vec<u64>) {
        self.end = end;
    }

    /// Notes what somebody did at `at` who did not ask for leave, or who was given it; `end` is what came of it.
    pub(super) fn note(&mut self, algorithm: &A, act: AppliedMutation, end: Vec<u64>, now: Micros) {
        self.end = end;
        self.seal(algorithm, now);
        match act.mutation {
            Some(mutation) if self.deeds < MAX_MUTATIONS => {
                let (at, ready) = (act.at, ready(act.at, act.decision));
                self.horizon = self.horizon.max(at);
                self.queues |= ready > at;
                self.deeds += 1;
                let item = Item { mutation, plan: None, holder: Holder::Mutation, at, ready, counted: false };
                self.items.insert(act.number, item);
            }
            _ => self.seal_all(act.at),
        }
    }

    fn seal_all(&mut self, at: Micros) {
        self.base.clone_from(&self.end);
        self.horizon = self.horizon.max(at);
        self.base_at = self.horizon;
        self.items.values_mut().for_each(|item| item.counted = true);
        // What is promised stays in the list, although it is counted: a reset forgets the count, and not the promise.
        self.items.retain(|_, item| item.is_promise());
        self.deeds = 0;
    }

    /// Forgets everything that was used. What is promised for later stays so.
    pub(super) fn reset(&mut self, algorithm: &A, now: Micros, wakes: &mut PendingWakes) {
        algorithm.reset(self.base.as_mut_slice());
        self.base_at = Micros::ZERO;
        self.items.retain(|_, item| item.is_promise() && (item.ready > now || item.is_held()));
        for item in self.items.values_mut().filter(|item| item.ready > now && !item.is_refused()) {
            item.counted = false;
        }
        self.deeds = 0;
        self.run(algorithm, now, Run::MovingUp, wakes);
    }

    /// Takes everything over that was promised under `old`.
    pub(super) fn migrate_from(&mut self, old: &A, new: &A, now: Micros, wakes: &mut PendingWakes) {
        self.repair(old, now);
        let at = now.max(self.base_at).max(old.last_seen(self.base.as_slice()));
        let mut base = vec![0; new.words()];
        new.migrate_from(old, self.base.as_slice(), base.as_mut_slice(), at);
        (self.base, self.base_at) = (base, at);
        self.run(new, now, Run::Anew, wakes);
    }

    /// Gives a promise back at `now`.
    pub(super) fn cancel(&mut self, algorithm: &A, ticket: u64, now: Micros, wakes: &mut PendingWakes) {
        let Some(item) = self.items.get_mut(&ticket) else { return };
        if matches!(item.holder, Holder::Reservation) && item.ready <= now {
            return; // used, for all we know
        }
        // Whoever holds it, holds it no more.
        wakes.spend(std::mem::replace(&mut item.holder, Holder::GivenBack));
        if item.counted {
            self.items.remove(&ticket);
        } else if !self.is_built_upon(ticket) {
            self.items.remove(&ticket);
            self.drop_given_back();
            self.move_up(algorithm, ticket, now, wakes);
        }
    }

    /// Lets those behind `ticket` move up. In a long line the first of them is left to do it: when many leave at
    /// once, it is done once.
    fn move_up(&mut self, algorithm: &A, ticket: u64, now: Micros, wakes: &mut PendingWakes) {
        if self.items.len() <= LONG {
            return self.run(algorithm, now, Run::MovingUp, wakes);
        }
        self.stale = Some(now);
        self.call_next(ticket, wakes);
    }

    /// Whether somebody behind was told a turn for good that lies in the queue behind this one.
    fn is_built_upon(&self, ticket: u64) -> bool {
        let mut behind = self.items.range(ticket + 1..);
        self.queues
            && behind.any(|(_, item)| {
                !item.counted && item.ready > item.at && !matches!(item.holder, Holder::Waiter(_))
            })
    }

    /// Who gave back while others had built upon it: once those are gone, so is it.
    fn drop_given_back(&mut self) {
        while let Some(last) = self.items.last_entry()
            && matches!(last.get().holder, Holder::GivenBack)
        {
            last.remove();
        }
    }

    /// Wakes the first waiter behind `ticket`, to find out that it has moved up; it will tell the others.
    fn call_next(&self, ticket: u64, wakes: &mut PendingWakes) {
        let waiting = |item: &Item<A>| match &item.holder {
            Holder::Waiter(waiter) if !item.counted => Some(waiter.waker.clone()),
            _ => None,
        };
        wakes.wake.extend(self.items.range(ticket..).find_map(|(_, item)| waiting(item)));
    }

    /// What a waiter finds at `now`; if it is to wait on, `waker` is who will be woken. The list is fresh.
    pub(super) fn poll(
        &mut self,
        algorithm: &A,
        ticket: u64,
        waker: &Waker,
        now: Micros,
        wakes: &mut PendingWakes,
    ) -> Option<Progress> {
        let item = self.items.get_mut(&ticket)?;
        let Holder::Waiter(waiter) = &mut item.holder else { return None };
        if waiter.told.is_ok() && item.ready > now {
            if !waiter.waker.will_wake(waker) {
                wakes.spent.push(std::mem::replace(&mut waiter.waker, waker.clone()));
            }
            return Some(Progress::Until(item.ready));
        }
        let told = waiter.told;
        wakes.spend(std::mem::replace(&mut item.holder, Holder::Nobody));
        if item.counted {
            self.items.remove(&ticket);
        }
        self.repair(algorithm, now);
        Some(Progress::Done(told))
    }

    /// A reservation counts from now on, whatever becomes of its holder.
    pub(super) fn keep(&mut self, ticket: u64) {
        if let Some(item) = self.items.get_mut(&ticket) {
            item.holder = Holder::Nobody;
        }
    }

    /// Runs everything that is promised from the base again.
    fn run(&mut self, algorithm: &A, now: Micros, run: Run, wakes: &mut PendingWakes) {
        let (mut end, mut horizon) = (self.base.clone(), self.base_at);
        for item in self.items.values_mut().filter(|item| !item.counted) {
            match item.run(algorithm, &mut end, horizon, now, run) {
                Ok(before) if before != item.ready => wakes.wake.extend(item.waker()),
                Ok(_) => {}
                Err(refused) => {
                    wakes.wake.extend(item.waker());
                    item.refuse(refused);
                    continue;
                }
            }
            horizon = horizon.max(item.at);
        }
        self.queues &= !self.items.is_empty();
        (self.end, self.horizon, self.stale) = (end, horizon, None);
    }
}

/// What somebody else did while promises were pending.
#[derive(Clone, Copy, Debug)]
pub(super) struct AppliedMutation {
    pub(super) number: u64,
    pub(super) mutation: Option<Mutation>,
    pub(super) at: Micros,
    pub(super) decision: Option<Decision>,
}

// === impl Item ===

impl<A: Algorithm> Item<A> {
    /// Charges `end` once more, and tells when it was ready before.
    fn run(
        &mut self,
        algorithm: &A,
        end: &mut [u64],
        horizon: Micros,
        now: Micros,
        run: Run,
    ) -> Result<Micros, WaitRefused> {
        let (before, algorithm) = (self.ready, self.plan.as_ref().unwrap_or(algorithm));
        let at = match (&self.holder, self.mutation) {
            // What is charged already, for a turn in a queue, is charged when it was.
            (Holder::Waiter(waiter), Mutation::Charge(cost)) if self.at > now => {
                let from = horizon.max(now).max(algorithm.last_seen(&*end));
                let turn = ScheduledCharge::find(algorithm, &*end, from, cost)?;
                let acquire_request = AcquireRequest { cost, deadline: waiter.deadline };
                if run == Run::Anew { turn.in_time(acquire_request, now)?.at } else { turn.at.min(self.at) }
            }
            _ => self.at,
        };
        self.at = at.max(horizon);
        let decision = self.mutation.run(algorithm, end, self.at);
        match &mut self.holder {
            Holder::Waiter(waiter) => {
                self.ready = ready(self.at, decision);
                waiter.told = decision.map_or(waiter.told, |decision| Ok(passed(decision)));
            }
            // A promise keeps its instant; what others did had its own.
            Holder::Reservation | Holder::Nobody | Holder::Mutation | Holder::GivenBack => {}
        }
        Ok(before)
    }

    fn refuse(&mut self, refused: WaitRefused) {
        self.counted = true;
        if let Holder::Waiter(waiter) = &mut self.holder {
            waiter.told = Err(refused);
        }
    }

    fn is_mutation(&self) -> bool {
        matches!(self.holder, Holder::Mutation)
    }

    /// Whether somebody was promised this turn, and may use it.
    fn is_promise(&self) -> bool {
        self.is_held() || matches!(self.holder, Holder::Nobody)
    }

    /// Whether its holder can still be asked about it.
    fn is_held(&self) -> bool {
        matches!(self.holder, Holder::Waiter(_) | Holder::Reservation)
    }

    fn is_refused(&self) -> bool {
        matches!(&self.holder, Holder::Waiter(waiter) if waiter.told.is_err())
    }

    fn waker(&self) -> Option<Waker> {
        match &self.holder {
            Holder::Waiter(waiter) => Some(waiter.waker.clone()),
            _ => None,
        }
    }
}
