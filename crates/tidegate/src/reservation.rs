//! # Charging ahead
//!
//! Somebody who may not pass now would rather wait. The simplest way is to try again when the promised wait is over,
//! and it is unfair: whoever comes by in that moment takes what the other has waited for, and a large request waits
//! for ever behind small ones. So a turn is not only foretold, it is *taken*: the state is charged as of the instant
//! at which the request passes.
//!
//! ```text
//!   10 per second, nothing left            now ─────── 100 ms ────── 200 ms ───── 500 ms ───► t
//!     acquire              passes at 100 ms,  charged    ●             │             │
//!     acquire              passes at 200 ms,  charged                  ●             │
//!     cost(3).acquire      passes at 500 ms,  charged                                ●  the horizon
//!     check, at any time before: refused, retry after 600 ms: it is judged at the horizon, after all that is promised
//! ```
//!
//! Until the last promised instant, the *floor*, everybody else is judged there and not now. That makes a line, first
//! come, first served, though nobody stands in it: each knows its own instant from the start and sleeps until then,
//! and nobody has to be called by the one before. So a wait that would be too long is refused at once, also the
//! thousandth, and the pace does not depend on how fast anybody wakes up. What is promised lies in an [`Schedule`],
//! which knows how to take it back.
//!
//! Nearly always nobody has reserved anything, and then a decision must not pay for those who might. It already looks
//! at the number of the setting in force, before and after; that number carries a [mark](crate::versioned) while anybody
//! is ahead of the clock, and whoever finds it comes here. The order is what counts:
//!
//! ```text
//!   reserve:   lock ► set the set_slow_path ► lock_bit the state, read it and charge it reservations ► let go
//!   decide:    number? ► decide on a copy ► lock_bit the state ► still that number? ► write, let go
//! ```
//!
//! A decision holds the state either before the reservation does, and then the reservation has seen what it wrote; or
//! after, and then it sees the mark, writes nothing, and is made again, here. Under the lock nobody else changes the
//! state of a key that has an agenda.

mod acquire;
mod operations;
mod refused;
mod schedule;
#[cfg(all(test, not(loom)))]
mod tests;

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;
use std::task::Waker;

use crate::observer::Observer;
use crate::operation::{Answer, Mutation, Operation};
use crate::state_cell::DecisionTime;
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, lock};
pub(crate) use acquire::{Reservation, Waiting, reservation_methods};
use operations::{Begin, Put, Stored};
pub use refused::WaitRefused;
pub(crate) use schedule::{AcquireRequest, Progress, later};
use schedule::{AppliedMutation, PendingWakes, Schedule, ScheduledCharge};
use tidegate_core::{Algorithm, Decision, Micros, Outcome, Source};

/// How many may wait for one state unless said otherwise.
pub(crate) const DEFAULT_MAX_WAITING: usize = 1 << 16;
/// Agendas that nobody asks about any more are looked for as often as this, while decisions come by here.
const SWEEP_EVERY: u64 = 1_000_000;

/// Everything that is promised for later by one limiter.
#[derive(Debug)]
pub(crate) struct Reservations<A> {
    /// Made when somebody first waits, or the setting changes: most limiters never see either.
    shards: OnceLock<Box<[Mutex<Shard<A>>]>>,
    /// How many shards there are.
    count: usize,
    /// How many states have an agenda. The mark is changed under this lock: it is set while there are any.
    schedules: Mutex<usize>,
    max_waiting: usize,
    sweep_at: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct Shard<A> {
    schedules: BTreeMap<u64, Schedule<A>>,
    next: u64,
    wakes: PendingWakes,
}

/// A limiter with states that can be charged ahead. A limiter with one state knows it by any fingerprint.
pub(crate) trait StateStore {
    type Algorithm: Algorithm;

    fn reservations(&self) -> &Reservations<Self::Algorithm>;
    /// The algorithm in force. It does not change while a shard is locked.
    fn algorithm(&self) -> &Self::Algorithm;
    fn is_slow_path(&self) -> bool;
    fn set_slow_path(&self);
    fn clear_slow_path(&self);
    /// Something was given back: whoever keeps account of when states are idle looks again.
    fn refunded(&self, _fingerprint: u64) {}
    /// Does it to the state itself, whatever is promised. Only under the lock of the state's shard.
    fn apply_under_lock<V: Operation>(
        &self,
        plan: Option<&Self::Algorithm>,
        fingerprint: u64,
        operation: &V,
        when: DecisionTime,
    ) -> V::Answer;
}

/// What came of joining those ahead.
#[derive(Debug)]
pub(crate) enum Joined {
    /// There was nothing to wait for after all.
    Now(Decision),
    Later(Ticket),
}

/// A promise, by its number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    number: u64,
    asked: Micros,
    ready: Micros,
    decision: Decision,
}

impl Ticket {
    /// When its holder may go ahead, as far as it was told.
    pub(crate) fn ready(self) -> Micros {
        self.ready
    }
}

impl<A> Reservations<A> {
    pub(crate) fn new(shards: usize, max_waiting: usize) -> Self {
        Reservations {
            shards: OnceLock::new(),
            count: shards,
            schedules: Mutex::new(0),
            max_waiting,
            sweep_at: AtomicU64::new(0),
        }
    }

    pub(crate) fn max_waiting(&self) -> usize {
        self.max_waiting
    }

    fn lock_shard(&self, fingerprint: u64) -> ShardGuard<'_, A> {
        ShardGuard::new(&self.shards()[shard_of(fingerprint, self.count)])
    }

    /// Locks everything, so that the setting can be changed: see [`migrate_from`].
    pub(crate) fn lock_all_shards(&self) -> Vec<ShardGuard<'_, A>> {
        self.shards().iter().map(ShardGuard::new).collect()
    }

    fn shards(&self) -> &[Mutex<Shard<A>>] {
        let shard = || Shard { schedules: BTreeMap::new(), next: 0, wakes: PendingWakes::default() };
        self.shards.get_or_init(|| (0..self.count).map(|_| Mutex::new(shard())).collect())
    }

    /// The memory of the shards, without what is promised in them.
    pub(crate) fn bytes(&self) -> usize {
        self.shards.get().map_or(0, |shards| size_of_val(&**shards))
    }
}

fn shard_of(fingerprint: u64, shards: usize) -> usize {
    // Not the highest bits, by which the table finds a segment, nor the lowest, by which it finds a line.
    ((fingerprint >> 16) % shards as u64) as usize
}

// === impl Visit ===

/// A shard, locked. Whoever was called meanwhile wakes up when the lock is let go.
#[derive(Debug)]
pub(crate) struct ShardGuard<'a, A>(Option<MutexGuard<'a, Shard<A>>>);

impl<'a, A> ShardGuard<'a, A> {
    fn new(shard: &'a Mutex<Shard<A>>) -> Self {
        ShardGuard(Some(lock(shard)))
    }
}

impl<A> Deref for ShardGuard<'_, A> {
    type Target = Shard<A>;

    fn deref(&self) -> &Shard<A> {
        self.0.as_ref().expect("locked until dropped")
    }
}

impl<A> DerefMut for ShardGuard<'_, A> {
    fn deref_mut(&mut self) -> &mut Shard<A> {
        self.0.as_mut().expect("locked until dropped")
    }
}

impl<A> Drop for ShardGuard<'_, A> {
    fn drop(&mut self) {
        let wakes = std::mem::take(&mut self.wakes);
        self.0 = None;
        wakes.make();
    }
}

impl<A: Algorithm> Shard<A> {
    /// The agenda of a state, brought up to date, if it still has one.
    fn schedule<H: StateStore<Algorithm = A>>(
        &mut self,
        store: &H,
        fingerprint: u64,
        when: DecisionTime,
    ) -> Option<&mut Schedule<A>> {
        let Shard { schedules, wakes, .. } = self;
        let schedule = schedules.get_mut(&fingerprint)?;
        if schedule.refresh(store.algorithm(), when.now, wakes) {
            let _ = write_back(store, fingerprint, schedule, when);
            store.refunded(fingerprint);
        }
        if schedule.is_over(when.now) {
            self.end(store, fingerprint);
            return None;
        }
        self.schedules.get_mut(&fingerprint)
    }

    fn begin<H: StateStore<Algorithm = A>>(&mut self, store: &H) {
        let mut schedules = lock(&store.reservations().schedules);
        if *schedules == 0 {
            store.set_slow_path();
        }
        *schedules += 1;
    }

    /// Lets go of an agenda, or of the attempt to begin one.
    fn end<H: StateStore<Algorithm = A>>(&mut self, store: &H, fingerprint: u64) {
        self.schedules.remove(&fingerprint);
        let mut schedules = lock(&store.reservations().schedules);
        *schedules -= 1;
        if *schedules == 0 {
            store.clear_slow_path();
        }
    }

    fn ticket(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

/// Writes the end of an agenda where everybody decides. The key has a place already, or needs none: what was promised
/// to it is not idle.
fn write_back<H: StateStore>(
    store: &H,
    fingerprint: u64,
    schedule: &Schedule<H::Algorithm>,
    when: DecisionTime,
) -> Stored {
    store.apply_under_lock(None, fingerprint, &Put(schedule.end()), when)
}

// --- those who do not wait

/// Does what `operation` says while somebody, perhaps at another key, has reserved ahead. `None` if nobody has any more.
pub(crate) fn apply<H: StateStore, V: Operation>(
    store: &H,
    plan: Option<&H::Algorithm>,
    fingerprint: u64,
    operation: &V,
    when: DecisionTime,
) -> Option<V::Answer> {
    sweep(store, when);
    let mut shard = store.reservations().lock_shard(fingerprint);
    if !store.is_slow_path() {
        return None;
    }
    if shard.schedule(store, fingerprint, when).is_none() {
        return Some(store.apply_under_lock(plan, fingerprint, operation, when));
    }
    Some(shard.act(store, plan, fingerprint, operation, when))
}

impl<A: Algorithm> Shard<A> {
    /// The same for a state that has an agenda.
    fn act<H: StateStore<Algorithm = A>, V: Operation>(
        &mut self,
        store: &H,
        plan: Option<&A>,
        fingerprint: u64,
        operation: &V,
        when: DecisionTime,
    ) -> V::Answer {
        let number = self.ticket();
        let Shard { schedules, wakes, .. } = self;
        let schedule = schedules.get_mut(&fingerprint).expect("just brought up to date");
        let algorithm = plan.unwrap_or(store.algorithm());
        let at = schedule.from(algorithm, when.now);
        if when.now < at
            && let Some(answer) = operation.held_back(algorithm, schedule.end(), at, when.now)
        {
            return answer;
        }
        let mut end = schedule.end().to_vec();
        let answer = operation.apply(algorithm, end.as_mut_slice(), at);
        match operation.mutation(&answer) {
            // By what it did, not by whether the state is another: a log that is full is not fuller with one more.
            None | Some(Mutation::Charge(0) | Mutation::Refund(0)) => return answer,
            Some(Mutation::Reset) => schedule.reset(store.algorithm(), when.now, wakes),
            Some(mutation) => {
                // What another plan did cannot be done again by this one.
                let mutation = Some(mutation).filter(|_| plan.is_none());
                let act = AppliedMutation { number, mutation, at, decision: answer.decision() };
                schedule.note(store.algorithm(), act, end, when.now);
            }
        }
        let _ = write_back(store, fingerprint, schedule, when);
        answer
    }
}

/// Lets go of all agendas that are over, now and then: of those that were reserved and kept, nobody comes to tell.
fn sweep<H: StateStore>(store: &H, when: DecisionTime) {
    let sweep_at = &store.reservations().sweep_at;
    let due = sweep_at.load(Ordering::Relaxed);
    let next = when.now.get().saturating_add(SWEEP_EVERY);
    if when.now.get() < due
        || sweep_at.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_err()
    {
        return;
    }
    for shard in store.reservations().shards() {
        let mut shard = ShardGuard::new(shard);
        let keys: Vec<u64> = shard.schedules.keys().copied().collect();
        for fingerprint in keys {
            shard.schedule(store, fingerprint, when);
        }
    }
}

// --- those who wait

/// What comes of somebody who would wait, by what it was told when it tried to pass: it passed, it would wait in
/// vain, or it has to wait. Who is refused here has not been in the way of others.
pub(crate) fn classify(
    tried: Decision,
    acquire_request: AcquireRequest,
    observer: Option<&dyn Observer>,
) -> Result<Option<Decision>, WaitRefused> {
    let refused = match tried.outcome {
        Outcome::Allowed => return Ok(Some(tried)),
        Outcome::Busy | Outcome::Never => {
            WaitRefused::Never { cost: acquire_request.cost, limit: tried.limit() }
        }
        Outcome::RetryAfter(retry_after) if tried.source == Source::Closed => {
            WaitRefused::TooManyKeys { retry_after }
        }
        Outcome::RetryAfter(wait) | Outcome::AllowedAfter(wait) => {
            match later(tried.at(), wait.as_micros()) {
                None => WaitRefused::BeyondTime { cost: acquire_request.cost },
                Some(ready) if ready > acquire_request.deadline => {
                    WaitRefused::too_long(tried.at(), ready, acquire_request.deadline)
                }
                Some(_) => return Ok(None),
            }
        }
    };
    if let Some(observer) = observer {
        observer.denied(&tried);
    }
    Err(refused)
}

/// Shows an observer what came of waiting.
pub(crate) fn observe_wait(
    observer: Option<&dyn Observer>,
    answer: Result<Decision, WaitRefused>,
) -> Result<Decision, WaitRefused> {
    if let (Some(observer), Ok(decision)) = (observer, &answer) {
        observer.allowed(decision);
    }
    answer
}

/// Promises `acquire_request` at its first turn, by `plan` if there is one: to a waiter, if there is a waker, else as a reservation.
pub(crate) fn join<H: StateStore>(
    store: &H,
    plan: Option<H::Algorithm>,
    fingerprint: u64,
    acquire_request: AcquireRequest,
    waker: Option<Waker>,
    when: impl FnOnce() -> DecisionTime,
) -> Result<Joined, WaitRefused> {
    let mut shard = store.reservations().lock_shard(fingerprint);
    let when = when();
    if store.reservations().max_waiting == 0 {
        return Err(WaitRefused::LineFull { max_waiting: 0 });
    }
    let turn = match shard.schedule(store, fingerprint, when) {
        Some(_) => shard.reserve_behind(store, plan.as_ref(), fingerprint, acquire_request, when)?,
        None => match shard.reserve_first(store, plan.as_ref(), fingerprint, acquire_request, when)? {
            turn if turn.ready <= when.now => return Ok(Joined::Now(turn.told())),
            turn => turn,
        },
    };
    let number = shard.ticket();
    let schedule = shard.schedules.get_mut(&fingerprint).expect("just reserved in");
    match waker {
        Some(waker) => schedule.add_waiter(number, acquire_request, plan, turn, waker),
        None => schedule.add_reservation(number, acquire_request.cost, plan, turn),
    }
    Ok(Joined::Later(Ticket { number, asked: when.now, ready: turn.ready, decision: turn.told() }))
}

impl<A: Algorithm> Shard<A> {
    /// Charges the first promise about a state. If it is due at once, no agenda is left.
    fn reserve_first<H: StateStore<Algorithm = A>>(
        &mut self,
        store: &H,
        plan: Option<&A>,
        fingerprint: u64,
        acquire_request: AcquireRequest,
        when: DecisionTime,
    ) -> Result<ScheduledCharge, WaitRefused> {
        self.begin(store);
        match store.apply_under_lock(plan, fingerprint, &Begin(acquire_request), when) {
            Ok(begun) if begun.turn.ready > when.now => {
                self.schedules.insert(fingerprint, Schedule::new(begun.base, begun.now));
                let schedule = self.schedules.get_mut(&fingerprint).expect("just inserted");
                schedule.charge(plan.unwrap_or(store.algorithm()), acquire_request.cost, begun.turn);
                Ok(begun.turn)
            }
            at_once_or_refused => {
                self.end(store, fingerprint);
                at_once_or_refused.map(|begun| begun.turn)
            }
        }
    }

    /// Charges a promise behind others.
    fn reserve_behind<H: StateStore<Algorithm = A>>(
        &mut self,
        store: &H,
        plan: Option<&A>,
        fingerprint: u64,
        acquire_request: AcquireRequest,
        when: DecisionTime,
    ) -> Result<ScheduledCharge, WaitRefused> {
        let (algorithm, max_waiting) = (plan.unwrap_or(store.algorithm()), store.reservations().max_waiting);
        let schedule = self.schedules.get_mut(&fingerprint).expect("just brought up to date");
        let from = schedule.from(algorithm, when.now);
        let turn = ScheduledCharge::find(algorithm, schedule.end(), from, acquire_request.cost)?
            .in_time(acquire_request, when.now)?;
        if schedule.len() >= max_waiting {
            return Err(WaitRefused::LineFull { max_waiting });
        }
        let before = schedule.end().to_vec();
        schedule.charge(algorithm, acquire_request.cost, turn);
        if let Stored(Err(no_room)) = write_back(store, fingerprint, schedule, when) {
            schedule.restore_end(before);
            return Err(no_room);
        }
        Ok(turn)
    }
}

/// What the waiter with this ticket finds. `waker` is who will be woken if its turn moves.
pub(crate) fn poll<H: StateStore>(
    store: &H,
    fingerprint: u64,
    ticket: Ticket,
    waker: &Waker,
    when: impl FnOnce() -> DecisionTime,
) -> Progress {
    let mut shard = store.reservations().lock_shard(fingerprint);
    let when = when();
    if shard.schedule(store, fingerprint, when).is_none() {
        return Progress::Done(Ok(ticket.decision));
    }
    let Shard { schedules, wakes, .. } = &mut *shard;
    let schedule = schedules.get_mut(&fingerprint).expect("just brought up to date");
    let poll = schedule.poll(store.algorithm(), ticket.number, waker, when.now, wakes);
    if schedule.is_over(when.now) {
        shard.end(store, fingerprint);
    }
    poll.unwrap_or(Progress::Done(Ok(ticket.decision)))
}

/// Gives a promise back, as far as that cannot let too much pass.
pub(crate) fn cancel<H: StateStore>(
    store: &H,
    fingerprint: u64,
    ticket: Ticket,
    when: impl FnOnce() -> DecisionTime,
) {
    let mut shard = store.reservations().lock_shard(fingerprint);
    let when = when();
    let Shard { schedules, wakes, .. } = &mut *shard;
    let Some(schedule) = schedules.get_mut(&fingerprint) else { return };
    schedule.cancel(store.algorithm(), ticket.number, when.now, wakes);
    if schedule.is_fresh() {
        let _ = write_back(store, fingerprint, schedule, when);
        store.refunded(fingerprint);
        if schedule.is_over(when.now) {
            shard.end(store, fingerprint);
        }
    }
}

/// Makes a reservation count, whatever becomes of its holder.
pub(crate) fn keep<H: StateStore>(store: &H, fingerprint: u64, ticket: Ticket) {
    let mut shard = store.reservations().lock_shard(fingerprint);
    if let Some(schedule) = shard.schedules.get_mut(&fingerprint) {
        schedule.keep(ticket.number);
    }
}

// --- another setting

/// Takes over what was promised under `old`, now that another setting is in force, and lets others in again.
pub(crate) fn migrate_from<H: StateStore>(
    store: &H,
    mut guards: Vec<ShardGuard<'_, H::Algorithm>>,
    old: &H::Algorithm,
    when: DecisionTime,
) {
    let mut all_calls = PendingWakes::default();
    for shard in &mut guards {
        let Shard { schedules, wakes, .. } = &mut **shard;
        for (fingerprint, schedule) in schedules {
            schedule.migrate_from(old, store.algorithm(), when.now, wakes);
            let _ = write_back(store, *fingerprint, schedule, when);
        }
        all_calls.append(wakes);
    }
    drop(guards); // all of them, before anybody wakes up
    all_calls.make();
}
