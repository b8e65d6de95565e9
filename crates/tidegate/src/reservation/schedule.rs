//! # Schedule: the pending charges of one state
//!
//! A schedule contains the pending charges in the order in which they were made, and the state from before the first of
//! them. The state after the last is the one in the limiter: the next decision comes after all scheduled charges.
//!
//! ```text
//!    base ──► charge at 300 ms ──► at 400 ms ──► at 700 ms ──► end, the state in the limiter
//!      ▲           when its instant has come,            │            ▲
//!      └───────────it is part of the base                └─ horizon     └─ cancelled? replay from the base without it
//! ```
//!
//! Each charge is made at its own instant, by the algorithm, and these instants never decrease. So the schedule is a
//! history that the algorithm itself would have allowed, whatever the algorithm. Cancelling a charge means to replay
//! the rest without it. Waiters then move up. A reservation keeps its instant, because its holder was told that instant
//! and relies on it.
//!
//! Meanwhile, other operations may change the state without asking for quota, as `force` and `refund` do. Such
//! mutations are entered in the list like charges. There may be many of them, so beyond a limit the list is *sealed*:
//! all of it becomes part of the base, and counts even if it is cancelled later.
//!
//! A queue algorithm (`LeakyQueue`, `NginxQueue`) schedules differently: it charges now, for a later instant. If such
//! an instant was given to a reservation, the charges before it cannot be cancelled any more: the queue would assign
//! their instants again, and the last of these is already reserved.
//!
//! The result of a cancellation is the state that would exist if the request had never been made. Random
//! walks compare it with a schedule that is always replayed from the start. In a schedule of up to 64 charges
//! the replay happens immediately. In a longer one the next poll does it, so that a thousand waiters that
//! leave together cost one replay and not a thousand. The list is sealed after 64 mutations.

use std::collections::BTreeMap;
use std::task::Waker;

use crate::error::RefusalKind;
use crate::operation::{Mutation, OperationResult, passed};
use tidegate_core::{Algorithm, Decision, Keep, Micros, Outcome, Words};

/// The pending charges of one state.
#[derive(Debug)]
pub(super) struct Schedule<A> {
    base: Vec<u64>,
    /// The latest instant in the base.
    base_at: Micros,
    end: Vec<u64>,
    /// The latest instant at which an item of the list is charged.
    ///
    /// Other operations are not executed before it.
    horizon: Micros,
    items: BTreeMap<u64, Item<A>>,
    /// The number of items that are mutations by other operations.
    mutations: usize,
    /// Whether some items are charged now for a later instant, as a queue does.
    queues: bool,
    /// When a waiter left a long queue, while the rest has not been replayed yet.
    stale: Option<Micros>,
}

#[derive(Debug)]
struct Item<A> {
    mutation: Mutation,
    /// The algorithm to charge by, if not the current one.
    per_call: Option<A>,
    holder: Holder,
    /// When the item is charged, and when its holder may pass: later than `at` in a queue.
    at: Micros,
    ready: Micros,
    /// Whether the item is part of the base already, or never will be.
    counted: bool,
}

/// The holder of an item.
#[derive(Debug)]
enum Holder {
    /// A waiter, which moves up when other waiters leave.
    Waiter(Waiter),
    /// A reservation with a fixed instant.
    Reservation,
    /// No holder any more: the waiter has passed, or the reservation is kept.
    Nobody,
    /// A mutation by another operation.
    Mutation,
    /// A charge that was cancelled when it could not be removed yet.
    GivenBack,
}

#[derive(Debug)]
struct Waiter {
    waker: Waker,
    deadline: Micros,
    result: Result<Decision, RefusalKind>,
}

/// When a request may pass, if no other request comes before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScheduledCharge {
    pub(super) at: Micros,
    pub(super) ready: Micros,
    pub(super) decision: Decision,
}

/// The parameters of a request that is willing to wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AcquireRequest {
    pub(crate) cost: u32,
    pub(crate) deadline: Micros,
}

/// The result of polling a waiter.
pub(crate) type Progress = crate::wait::Progress<Result<Decision, RefusalKind>>;

/// Wakers to be woken and wakers to be dropped after all locks are released.
///
/// Both may run arbitrary code.
#[derive(Debug, Default)]
pub(super) struct PendingWakes {
    wake: Vec<Waker>,
    spent: Vec<Waker>,
}

/// How the items of a schedule are replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Run {
    /// An item was cancelled: no instant is later than before.
    MovingUp,
    /// Under another version: waiters are scheduled anew.
    Anew,
}

/// A queue longer than this is not replayed for every waiter that leaves.
const LONG: usize = 64;
/// The number of mutations by other operations in a list before it is sealed.
const MAX_MUTATIONS: usize = 64;

// === impl PendingWakes ===

impl PendingWakes {
    pub(super) fn append(&mut self, more: &mut PendingWakes) {
        self.wake.append(&mut more.wake);
        self.spent.append(&mut more.spent);
    }

    pub(super) fn make(self) {
        self.wake.into_iter().for_each(Waker::wake);
    }

    /// Releases the holder of an item.
    fn spend(&mut self, holder: Holder) {
        if let Holder::Waiter(waiter) = holder {
            self.spent.push(waiter.waker);
        }
    }
}

// === impl ScheduledCharge ===

impl ScheduledCharge {
    /// Finds the first instant from `from` on at which `cost` may be charged.
    pub(super) fn find<A, S>(
        algorithm: &A,
        state: &S,
        from: Micros,
        cost: u32,
    ) -> Result<ScheduledCharge, RefusalKind>
    where
        A: Algorithm,
        S: Words + ?Sized,
    {
        let found = algorithm.peek(state, from, cost);
        match found.outcome {
            Outcome::Allowed | Outcome::AllowedAfter(_) => ScheduledCharge::at(from, found, cost),
            // No algorithm returns `Busy`. If one did, the end of the wait would be unknown.
            Outcome::Busy | Outcome::Never => Err(RefusalKind::Never { cost, limit: found.limit() }),
            Outcome::RetryAfter(wait) => {
                let at = later(from, wait.as_micros()).ok_or(RefusalKind::BeyondTime { cost })?;
                ScheduledCharge::at(at, algorithm.peek(state, at, cost), cost)
            }
        }
    }

    fn at(at: Micros, decision: Decision, cost: u32) -> Result<ScheduledCharge, RefusalKind> {
        let ready = match decision.outcome {
            Outcome::Allowed => Some(at),
            Outcome::AllowedAfter(wait) => later(at, wait.as_micros()),
            Outcome::RetryAfter(_) | Outcome::Busy | Outcome::Never => None, // at the end of the time line nothing passes
        };
        ready.map(|ready| ScheduledCharge { at, ready, decision }).ok_or(RefusalKind::BeyondTime { cost })
    }

    /// Marks the decision as taken from a state that several keys share.
    pub(super) fn sketched(self) -> Self {
        ScheduledCharge { decision: self.decision.sketched(), ..self }
    }

    /// Returns the charge if it meets the deadline. `now` is the instant of the request.
    pub(super) fn in_time(
        self,
        acquire_request: AcquireRequest,
        now: Micros,
    ) -> Result<ScheduledCharge, RefusalKind> {
        if self.ready > acquire_request.deadline {
            return Err(RefusalKind::too_long(now, self.ready, acquire_request.deadline));
        }
        Ok(self)
    }

    /// Returns the decision for the holder after the wait: nothing is left to wait for.
    pub(super) fn after_wait(self) -> Decision {
        passed(self.decision)
    }
}

/// Returns `instant` plus `micros`, if the clock reaches that far.
pub(crate) fn later(instant: Micros, micros: u64) -> Option<Micros> {
    let later = instant.get().checked_add(micros)?;
    (later <= Micros::MAX.get()).then(|| Micros::new(later))
}

/// Returns when a request may pass that was charged at `at` with this decision.
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

// === impl Schedule ===

impl<A: Algorithm> Schedule<A> {
    /// Creates an empty schedule for a state that was last charged at `base_at`.
    pub(super) fn new(base: Vec<u64>, base_at: Micros) -> Self {
        let end = base.clone();
        let (items, horizon) = (BTreeMap::new(), base_at);
        Schedule { base, base_at, end, horizon, items, mutations: 0, queues: false, stale: None }
    }

    /// Returns the state after all scheduled charges.
    pub(super) fn end(&self) -> &[u64] {
        &self.end
    }

    /// Returns the earliest instant to decide at, after all scheduled charges.
    pub(super) fn from(&self, algorithm: &A, now: Micros) -> Micros {
        now.max(self.horizon).max(algorithm.last_seen(self.end.as_slice()))
    }

    /// Returns the number of waiters and reservations.
    pub(super) fn len(&self) -> usize {
        self.items.len() - self.mutations
    }

    /// Returns whether the end is up to date.
    pub(super) fn is_fresh(&self) -> bool {
        self.stale.is_none()
    }

    /// Returns whether the schedule is over: the state in the limiter is sufficient again.
    pub(super) fn is_over(&self, now: Micros) -> bool {
        self.items.is_empty() && self.horizon <= now && self.is_fresh()
    }

    /// Brings the schedule up to date, and returns whether that changed the end.
    ///
    /// Waiters with a new instant are added to `wakes`.
    pub(super) fn refresh(&mut self, algorithm: &A, now: Micros, wakes: &mut PendingWakes) -> bool {
        self.repair(algorithm, now);
        let left_at = self.stale;
        if let Some(left_at) = left_at {
            self.run(algorithm, left_at, Run::MovingUp, wakes);
        }
        left_at.is_some()
    }

    /// Moves items into the base that are due and cannot be cancelled any more.
    fn repair(&mut self, algorithm: &A, now: Micros) {
        while let Some(first) = self.items.first_entry() {
            let item = first.get();
            if item.ready > now || matches!(item.holder, Holder::Waiter(_)) {
                return;
            }
            let item = first.remove();
            self.count(algorithm, &item);
            self.mutations -= usize::from(item.is_mutation());
        }
    }

    /// Moves all items that are due into the base, because another operation builds on them.
    fn seal(&mut self, algorithm: &A, now: Micros) {
        let mut items = std::mem::take(&mut self.items);
        for item in items.values_mut().take_while(|item| item.ready <= now) {
            self.count(algorithm, item);
            item.counted = true;
        }
        let waits = |item: &Item<A>| matches!(item.holder, Holder::Waiter(_));
        items.retain(|_, item| !item.counted || waits(item) || item.is_promise() && item.ready > now);
        self.mutations =
            if self.mutations == 0 { 0 } else { items.values().filter(|item| item.is_mutation()).count() };
        self.items = items;
    }

    fn count(&mut self, algorithm: &A, item: &Item<A>) {
        if !item.counted {
            let _ = item.mutation.run(item.per_call.as_ref().unwrap_or(algorithm), &mut self.base, item.at);
            self.base_at = self.base_at.max(item.at);
        }
    }

    /// Schedules `turn` for a waiter.
    pub(super) fn add_waiter(
        &mut self,
        ticket: u64,
        acquire_request: AcquireRequest,
        per_call: Option<A>,
        turn: ScheduledCharge,
        waker: Waker,
    ) {
        let result = Ok(turn.after_wait());
        let holder = Holder::Waiter(Waiter { waker, deadline: acquire_request.deadline, result });
        self.add(ticket, acquire_request.cost, per_call, turn, holder);
    }

    /// Schedules `turn` for a reservation, with a fixed instant.
    pub(super) fn add_reservation(
        &mut self,
        ticket: u64,
        cost: u32,
        per_call: Option<A>,
        turn: ScheduledCharge,
    ) {
        self.add(ticket, cost, per_call, turn, Holder::Reservation);
    }

    fn add(&mut self, ticket: u64, cost: u32, per_call: Option<A>, turn: ScheduledCharge, holder: Holder) {
        let ScheduledCharge { at, ready, .. } = turn;
        self.horizon = self.horizon.max(at);
        self.queues |= ready > at;
        let item = Item { mutation: Mutation::Charge(cost), per_call, holder, at, ready, counted: false };
        self.items.insert(ticket, item);
    }

    /// Charges the end for `turn`, which `algorithm` found there.
    pub(super) fn charge(&mut self, algorithm: &A, cost: u32, turn: ScheduledCharge) {
        let _ = algorithm.decide(self.end.as_mut_slice(), turn.at, cost);
    }

    /// Restores the end.
    pub(super) fn restore_end(&mut self, end: Vec<u64>) {
        self.end = end;
    }

    /// Records a mutation by another operation, which did not wait. `end` is its result.
    pub(super) fn note(&mut self, algorithm: &A, act: AppliedMutation, end: Vec<u64>, now: Micros) {
        self.end = end;
        self.seal(algorithm, now);
        match act.mutation {
            Some(mutation) if self.mutations < MAX_MUTATIONS => {
                let (at, ready) = (act.at, ready(act.at, act.decision));
                self.horizon = self.horizon.max(at);
                self.queues |= ready > at;
                self.mutations += 1;
                let item =
                    Item { mutation, per_call: None, holder: Holder::Mutation, at, ready, counted: false };
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
        // A scheduled charge stays in the list, although it is counted: a reset clears the count, but not the
        // reservation.
        self.items.retain(|_, item| item.is_promise());
        self.mutations = 0;
    }

    /// Forgets all used quota. Charges scheduled for later stay scheduled.
    pub(super) fn reset(&mut self, algorithm: &A, now: Micros, wakes: &mut PendingWakes) {
        algorithm.reset(self.base.as_mut_slice());
        self.base_at = Micros::ZERO;
        self.items.retain(|_, item| item.is_promise() && (item.ready > now || item.is_held()));
        for item in self.items.values_mut().filter(|item| item.ready > now && !item.is_refused()) {
            item.counted = false;
        }
        self.mutations = 0;
        self.run(algorithm, now, Run::MovingUp, wakes);
    }

    /// Migrates the schedule from `old` to `new`.
    pub(super) fn migrate(&mut self, keep: Keep, old: &A, new: &A, now: Micros, wakes: &mut PendingWakes) {
        self.repair(old, now);
        let at = now.max(self.base_at).max(old.last_seen(self.base.as_slice()));
        let mut base = vec![0; new.words()];
        keep.migrate(new, old, self.base.as_slice(), base.as_mut_slice(), at);
        (self.base, self.base_at) = (base, at);
        self.run(new, now, Run::Anew, wakes);
    }

    /// Cancels a scheduled charge at `now`.
    pub(super) fn cancel(&mut self, algorithm: &A, ticket: u64, now: Micros, wakes: &mut PendingWakes) {
        let Some(item) = self.items.get_mut(&ticket) else { return };
        if matches!(item.holder, Holder::Reservation) && item.ready <= now {
            return; // its instant has passed, so it may have been used
        }
        // The holder gives the item up.
        wakes.spend(std::mem::replace(&mut item.holder, Holder::GivenBack));
        if item.counted {
            self.items.remove(&ticket);
        } else if !self.is_built_upon(ticket) {
            self.items.remove(&ticket);
            self.drop_given_back();
            self.move_up(algorithm, ticket, now, wakes);
        }
    }

    /// Lets the items behind `ticket` move up.
    ///
    /// In a long queue that is left to the first waiter behind it: when many leave together, it is done once.
    fn move_up(&mut self, algorithm: &A, ticket: u64, now: Micros, wakes: &mut PendingWakes) {
        if self.items.len() <= LONG {
            return self.run(algorithm, now, Run::MovingUp, wakes);
        }
        self.stale = Some(now);
        self.call_next(ticket, wakes);
    }

    /// Returns whether a reservation in the queue behind this item depends on it.
    fn is_built_upon(&self, ticket: u64) -> bool {
        let mut behind = self.items.range(ticket + 1..);
        self.queues
            && behind.any(|(_, item)| {
                !item.counted && item.ready > item.at && !matches!(item.holder, Holder::Waiter(_))
            })
    }

    /// Removes cancelled items at the end of the list: no later item depends on them.
    fn drop_given_back(&mut self) {
        while let Some(last) = self.items.last_entry()
            && matches!(last.get().holder, Holder::GivenBack)
        {
            last.remove();
        }
    }

    /// Wakes the first waiter behind `ticket`.
    ///
    /// It finds that it has moved up, and its poll replays the rest.
    fn call_next(&self, ticket: u64, wakes: &mut PendingWakes) {
        let waiting = |item: &Item<A>| match &item.holder {
            Holder::Waiter(waiter) if !item.counted => Some(waiter.waker.clone()),
            _ => None,
        };
        wakes.wake.extend(self.items.range(ticket..).find_map(|(_, item)| waiting(item)));
    }

    /// Polls a waiter at `now`.
    ///
    /// If it has to wait on, `waker` will be woken. The schedule must be up to date.
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
        if waiter.result.is_ok() && item.ready > now {
            if !waiter.waker.will_wake(waker) {
                wakes.spent.push(std::mem::replace(&mut waiter.waker, waker.clone()));
            }
            return Some(Progress::Until(item.ready));
        }
        let result = waiter.result;
        wakes.spend(std::mem::replace(&mut item.holder, Holder::Nobody));
        if item.counted {
            self.items.remove(&ticket);
        }
        self.repair(algorithm, now);
        Some(Progress::Done(result))
    }

    /// Makes a reservation count even if its handle is dropped.
    pub(super) fn keep(&mut self, ticket: u64) {
        if let Some(item) = self.items.get_mut(&ticket) {
            item.holder = Holder::Nobody;
        }
    }

    /// Replays all items from the base.
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

/// A mutation by another operation while charges were pending.
#[derive(Clone, Copy, Debug)]
pub(super) struct AppliedMutation {
    pub(super) number: u64,
    pub(super) mutation: Option<Mutation>,
    pub(super) at: Micros,
    pub(super) decision: Option<Decision>,
}

// === impl Item ===

impl<A: Algorithm> Item<A> {
    /// Charges `end` again, and returns when the item was ready before.
    fn run(
        &mut self,
        algorithm: &A,
        end: &mut [u64],
        horizon: Micros,
        now: Micros,
        run: Run,
    ) -> Result<Micros, RefusalKind> {
        let (before, algorithm) = (self.ready, self.per_call.as_ref().unwrap_or(algorithm));
        let at = match (&self.holder, self.mutation) {
            // A charge that was already made, for a later instant in a queue, keeps the instant of the charge.
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
                waiter.result = decision.map_or(waiter.result, |decision| Ok(passed(decision)));
            }
            // A reservation keeps its instant. A mutation by another operation keeps its own.
            Holder::Reservation | Holder::Nobody | Holder::Mutation | Holder::GivenBack => {}
        }
        Ok(before)
    }

    fn refuse(&mut self, refused: RefusalKind) {
        self.counted = true;
        if let Holder::Waiter(waiter) = &mut self.holder {
            waiter.result = Err(refused);
        }
    }

    fn is_mutation(&self) -> bool {
        matches!(self.holder, Holder::Mutation)
    }

    /// Returns whether the item is a charge that was promised to a caller and may be used.
    fn is_promise(&self) -> bool {
        self.is_held() || matches!(self.holder, Holder::Nobody)
    }

    /// Returns whether the holder can still wait for the item or cancel it.
    fn is_held(&self) -> bool {
        matches!(self.holder, Holder::Waiter(_) | Holder::Reservation)
    }

    fn is_refused(&self) -> bool {
        matches!(&self.holder, Holder::Waiter(waiter) if waiter.result.is_err())
    }

    fn waker(&self) -> Option<Waker> {
        match &self.holder {
            Holder::Waiter(waiter) => Some(waiter.waker.clone()),
            _ => None,
        }
    }
}
