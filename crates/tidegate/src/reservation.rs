//! # Reservations: charging a state in advance
//!
//! A caller that may not pass now may prefer to wait. The simplest way is to try again when `retry_after` is over, and
//! it is unfair: a request that arrives at that moment takes the quota for which the other has waited, and a large
//! request starves behind small ones. So the instant is not only predicted, it is *reserved*: the state is charged as
//! of the instant at which the request passes.
//!
//! ```text
//!   10 per second, nothing left            now ─────── 100 ms ────── 200 ms ───── 500 ms ───► t
//!     acquire              passes at 100 ms,  charged    ●             │             │
//!     acquire              passes at 200 ms,  charged                  ●             │
//!     cost(3).acquire      passes at 500 ms,  charged                                ●  the horizon
//!     check, at any time before: refused, retry after 600 ms: it is decided at the horizon, after all reservations
//! ```
//!
//! Until the last reserved instant, the *horizon*, every other request is decided there and not now. That makes a
//! queue, first come, first served, without handing over from one waiter to the next: each waiter knows its own instant
//! from the start and sleeps until then. So a wait that would be too long is refused immediately, even for the
//! thousandth waiter, and the rate does not depend on how fast the waiters wake up. The reservations of one state are
//! kept in a [`Schedule`], which can also cancel them.
//!
//! Most of the time there is no reservation, and then a decision must not pay for the feature. A decision already reads
//! the number of the current version, before and after. That number carries the [slow-path flag](crate::versioned)
//! while there are reservations, and a decision that finds the flag comes here. The order of the steps is essential:
//!
//! ```text
//!   reserve:   lock the shard ► set the flag ► lock the state, read it and charge it in advance ► unlock
//!   decide:    read the number ► decide on a copy ► lock the state ► same number? ► write, unlock
//! ```
//!
//! A decision may lock the state before the reservation does: then the reservation sees what the decision wrote. Or it
//! locks the state afterwards: then the decision sees the flag, writes nothing, and is made again, here. While a shard
//! is locked, no other thread changes the state of a key that has a schedule in it.

mod handle;
mod operations;
mod schedule;
#[cfg(all(test, not(loom)))]
mod tests;
mod waiter;

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;
use std::task::Waker;

use crate::error::RefusalKind;
use crate::operation::{Mutation, Operation, OperationResult};
use crate::state_cell::DecisionTime;
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, lock};
pub use handle::Reservation;
pub(crate) use handle::Reserve;
use operations::{Begin, Put, Stored};
pub(crate) use schedule::{AcquireRequest, Progress, later};
use schedule::{AppliedMutation, PendingWakes, Schedule, ScheduledCharge};
use tidegate_core::{Algorithm, Decision, Keep, Micros, Outcome, Source};
pub(crate) use waiter::{Waiting, when};

/// The default maximum number of waiters and reservations of one state.
pub(crate) const DEFAULT_MAX_WAITING: usize = 1 << 16;
/// How often decisions on the slow path remove expired schedules, in microseconds.
const SWEEP_EVERY: u64 = 1_000_000;

/// All reservations of one limiter.
#[derive(Debug)]
pub(crate) struct Reservations<A> {
    /// Allocated at the first reservation or change of version.
    ///
    /// Most limiters never see either.
    shards: OnceLock<Box<[Mutex<Shard<A>>]>>,
    /// The number of shards.
    count: usize,
    /// The number of states that have a schedule.
    ///
    /// The slow-path flag is changed under this lock: it is set while the number is not 0.
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

/// A limiter with states that can be charged in advance.
///
/// A limiter with a single state ignores the fingerprint.
pub(crate) trait StateStore {
    type Algorithm: Algorithm;

    fn reservations(&self) -> &Reservations<Self::Algorithm>;
    /// Returns the current algorithm. It does not change while a shard is locked.
    fn algorithm(&self) -> &Self::Algorithm;
    fn is_slow_path(&self) -> bool;
    fn set_slow_path(&self);
    fn clear_slow_path(&self);
    /// Tells the store that a charge was refunded.
    ///
    /// A store that tracks when states are idle must check again.
    fn refunded(&self, _fingerprint: u64) {}
    /// Executes an operation on the state itself, regardless of reservations.
    ///
    /// Requires the lock of the state's shard.
    fn apply_under_lock<V: Operation>(
        &self,
        per_call: Option<&Self::Algorithm>,
        fingerprint: u64,
        operation: &V,
        when: DecisionTime,
    ) -> V::Answer;
}

/// The result of [`join`].
#[derive(Debug)]
pub(crate) enum Joined {
    /// Quota was available after all.
    Now(Decision),
    Later(ReservationTicket),
}

/// A handle to a scheduled charge, by its number.
#[derive(Clone, Copy, Debug)]
pub struct ReservationTicket {
    number: u64,
    asked: Micros,
    ready: Micros,
    decision: Decision,
}

impl ReservationTicket {
    /// Returns when the holder asked.
    pub(crate) fn asked(self) -> Micros {
        self.asked
    }

    /// Returns when the holder may pass, as far as it was told.
    pub(crate) fn ready(self) -> Micros {
        self.ready
    }

    /// Returns the decision that will hold then.
    pub(crate) fn decision(self) -> Decision {
        self.decision
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

    fn lock_shard(&self, fingerprint: u64) -> ShardGuard<'_, A> {
        ShardGuard::new(&self.shards()[shard_of(fingerprint, self.count)])
    }

    /// Locks all shards, so that the version can be changed: see [`migrate`].
    pub(crate) fn lock_all_shards(&self) -> Vec<ShardGuard<'_, A>> {
        self.shards().iter().map(ShardGuard::new).collect()
    }

    fn shards(&self) -> &[Mutex<Shard<A>>] {
        let shard = || Shard { schedules: BTreeMap::new(), next: 0, wakes: PendingWakes::default() };
        self.shards.get_or_init(|| (0..self.count).map(|_| Mutex::new(shard())).collect())
    }

    /// Returns the memory of the shards in bytes, without their schedules.
    pub(crate) fn bytes(&self) -> usize {
        self.shards.get().map_or(0, |shards| size_of_val(&**shards))
    }
}

fn shard_of(fingerprint: u64, shards: usize) -> usize {
    // Not the highest bits, by which the table finds a segment, nor the lowest, by which it finds a line.
    ((fingerprint >> 16) % shards as u64) as usize
}

// === impl ShardGuard ===

/// A locked shard. Pending wakers are woken after the lock is released.
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
    /// Returns the schedule of a state, brought up to date, if it still has one.
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

    /// Removes a schedule, or undoes [`begin`](Shard::begin).
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

/// Writes the end of a schedule into the state that every decision reads.
///
/// The key has a slot already, or needs none: a key with reservations is not idle.
fn write_back<H: StateStore>(
    store: &H,
    fingerprint: u64,
    schedule: &Schedule<H::Algorithm>,
    when: DecisionTime,
) -> Stored {
    store.apply_under_lock(None, fingerprint, &Put(schedule.end()), when)
}

// --- operations that do not wait

/// Executes `operation` while there are reservations, perhaps of another key.
///
/// Returns `None` if there are none any more.
pub(crate) fn apply<H: StateStore, V: Operation>(
    store: &H,
    per_call: Option<&H::Algorithm>,
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
        return Some(store.apply_under_lock(per_call, fingerprint, operation, when));
    }
    Some(shard.act(store, per_call, fingerprint, operation, when))
}

impl<A: Algorithm> Shard<A> {
    /// Executes `operation` on a state that has a schedule.
    fn act<H: StateStore<Algorithm = A>, V: Operation>(
        &mut self,
        store: &H,
        per_call: Option<&A>,
        fingerprint: u64,
        operation: &V,
        when: DecisionTime,
    ) -> V::Answer {
        let number = self.ticket();
        let Shard { schedules, wakes, .. } = self;
        let schedule = schedules.get_mut(&fingerprint).expect("the schedule was just refreshed");
        let algorithm = per_call.unwrap_or(store.algorithm());
        let at = schedule.from(algorithm, when.now);
        if when.now < at
            && let Some(answer) = operation.held_back(algorithm, schedule.end(), at, when.now)
        {
            return answer;
        }
        let mut end = schedule.end().to_vec();
        let answer = operation.apply(algorithm, end.as_mut_slice(), at);
        match operation.mutation(&answer) {
            // Judged by the mutation, not by whether the state differs: a full log does not change with one more
            // charge.
            None | Some(Mutation::Charge(0) | Mutation::Refund(0)) => return answer,
            Some(Mutation::Reset) => schedule.reset(store.algorithm(), when.now, wakes),
            Some(mutation) => {
                // A mutation by a per-call algorithm cannot be replayed by the current one.
                let mutation = Some(mutation).filter(|_| per_call.is_none());
                let act = AppliedMutation { number, mutation, at, decision: answer.decision() };
                schedule.note(store.algorithm(), act, end, when.now);
            }
        }
        let _ = write_back(store, fingerprint, schedule, when);
        answer
    }
}

/// Removes expired schedules from time to time.
///
/// No caller reports the end of a reservation that was kept.
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

// --- operations that wait

/// Classifies a first attempt to pass: it passed, it must wait, or waiting is useless.
///
/// Returns `Ok(Some(decision))` if it passed and `Ok(None)` if it must wait. A request that is refused here has not
/// delayed any other.
pub(crate) fn classify(
    tried: Decision,
    acquire_request: AcquireRequest,
) -> Result<Option<Decision>, RefusalKind> {
    Err(match tried.outcome {
        Outcome::Allowed => return Ok(Some(tried)),
        Outcome::Busy | Outcome::Never => {
            RefusalKind::Never { cost: acquire_request.cost, limit: tried.limit() }
        }
        Outcome::RetryAfter(retry_after) if tried.source == Source::Closed => {
            RefusalKind::TooManyKeys { retry_after }
        }
        Outcome::RetryAfter(wait) | Outcome::AllowedAfter(wait) => {
            match later(tried.at(), wait.as_micros()) {
                None => RefusalKind::BeyondTime { cost: acquire_request.cost },
                Some(ready) if ready > acquire_request.deadline => {
                    RefusalKind::too_long(tried.at(), ready, acquire_request.deadline)
                }
                Some(_) => return Ok(None),
            }
        }
    })
}

/// Schedules `acquire_request` at the first possible instant.
///
/// The charge is made by `per_call` if there is one. With a waker it belongs to a waiter, otherwise to a reservation.
pub(crate) fn join<H: StateStore>(
    store: &H,
    per_call: Option<H::Algorithm>,
    fingerprint: u64,
    acquire_request: AcquireRequest,
    waker: Option<Waker>,
    when: impl FnOnce() -> DecisionTime,
) -> Result<Joined, RefusalKind> {
    let mut shard = store.reservations().lock_shard(fingerprint);
    let when = when();
    if store.reservations().max_waiting == 0 {
        return Err(RefusalKind::QueueFull { max_waiting: 0 });
    }
    let turn = match shard.schedule(store, fingerprint, when) {
        Some(_) => shard.reserve_behind(store, per_call.as_ref(), fingerprint, acquire_request, when)?,
        None => match shard.reserve_first(store, per_call.as_ref(), fingerprint, acquire_request, when)? {
            turn if turn.ready <= when.now => return Ok(Joined::Now(turn.after_wait())),
            turn => turn,
        },
    };
    let number = shard.ticket();
    let schedule = shard.schedules.get_mut(&fingerprint).expect("the charge was just scheduled");
    match waker {
        Some(waker) => schedule.add_waiter(number, acquire_request, per_call, turn, waker),
        None => schedule.add_reservation(number, acquire_request.cost, per_call, turn),
    }
    Ok(Joined::Later(ReservationTicket {
        number,
        asked: when.now,
        ready: turn.ready,
        decision: turn.after_wait(),
    }))
}

impl<A: Algorithm> Shard<A> {
    /// Schedules the first charge of a state. If it is due immediately, no schedule is kept.
    fn reserve_first<H: StateStore<Algorithm = A>>(
        &mut self,
        store: &H,
        per_call: Option<&A>,
        fingerprint: u64,
        acquire_request: AcquireRequest,
        when: DecisionTime,
    ) -> Result<ScheduledCharge, RefusalKind> {
        self.begin(store);
        match store.apply_under_lock(per_call, fingerprint, &Begin(acquire_request), when) {
            Ok(begun) if begun.turn.ready > when.now => {
                self.schedules.insert(fingerprint, Schedule::new(begun.base, begun.now));
                let schedule = self.schedules.get_mut(&fingerprint).expect("just inserted");
                schedule.charge(per_call.unwrap_or(store.algorithm()), acquire_request.cost, begun.turn);
                Ok(begun.turn)
            }
            at_once_or_refused => {
                self.end(store, fingerprint);
                at_once_or_refused.map(|begun| begun.turn)
            }
        }
    }

    /// Schedules a charge behind others.
    fn reserve_behind<H: StateStore<Algorithm = A>>(
        &mut self,
        store: &H,
        per_call: Option<&A>,
        fingerprint: u64,
        acquire_request: AcquireRequest,
        when: DecisionTime,
    ) -> Result<ScheduledCharge, RefusalKind> {
        let (algorithm, max_waiting) =
            (per_call.unwrap_or(store.algorithm()), store.reservations().max_waiting);
        let schedule = self.schedules.get_mut(&fingerprint).expect("the schedule was just refreshed");
        let from = schedule.from(algorithm, when.now);
        let turn = ScheduledCharge::find(algorithm, schedule.end(), from, acquire_request.cost)?
            .in_time(acquire_request, when.now)?;
        if schedule.len() >= max_waiting {
            return Err(RefusalKind::QueueFull { max_waiting });
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

/// Returns the progress of a waiter. `waker` is woken if its instant changes.
pub(crate) fn poll<H: StateStore>(
    store: &H,
    fingerprint: u64,
    ticket: ReservationTicket,
    waker: &Waker,
    when: impl FnOnce() -> DecisionTime,
) -> Progress {
    let mut shard = store.reservations().lock_shard(fingerprint);
    let when = when();
    if shard.schedule(store, fingerprint, when).is_none() {
        return Progress::Done(Ok(ticket.decision));
    }
    let Shard { schedules, wakes, .. } = &mut *shard;
    let schedule = schedules.get_mut(&fingerprint).expect("the schedule was just refreshed");
    let poll = schedule.poll(store.algorithm(), ticket.number, waker, when.now, wakes);
    if schedule.is_over(when.now) {
        shard.end(store, fingerprint);
    }
    poll.unwrap_or(Progress::Done(Ok(ticket.decision)))
}

/// Cancels a scheduled charge, as far as that cannot admit too much.
pub(crate) fn cancel<H: StateStore>(
    store: &H,
    fingerprint: u64,
    ticket: ReservationTicket,
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

/// Makes a reservation count even if its handle is dropped.
pub(crate) fn keep<H: StateStore>(store: &H, fingerprint: u64, ticket: ReservationTicket) {
    let mut shard = store.reservations().lock_shard(fingerprint);
    if let Some(schedule) = shard.schedules.get_mut(&fingerprint) {
        schedule.keep(ticket.number);
    }
}

// --- change of version

/// Migrates all schedules from `old` to the current algorithm, and unlocks the shards.
pub(crate) fn migrate<H: StateStore>(
    store: &H,
    keep: Keep,
    mut guards: Vec<ShardGuard<'_, H::Algorithm>>,
    old: &H::Algorithm,
    when: DecisionTime,
) {
    let mut all_calls = PendingWakes::default();
    for shard in &mut guards {
        let Shard { schedules, wakes, .. } = &mut **shard;
        for (fingerprint, schedule) in schedules {
            schedule.migrate(keep, old, store.algorithm(), when.now, wakes);
            let _ = write_back(store, *fingerprint, schedule, when);
        }
        all_calls.append(wakes);
    }
    drop(guards); // all of them, before any waiter wakes up
    all_calls.make();
}
