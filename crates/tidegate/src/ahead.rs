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
//!     cost(3).acquire      passes at 500 ms,  charged                                ●  the floor
//!     check, at any time before: refused, retry after 600 ms: it is judged at the floor, after all that is promised
//! ```
//!
//! Until the last promised instant, the *floor*, everybody else is judged there and not now. That makes a line, first
//! come, first served, though nobody stands in it: each knows its own instant from the start and sleeps until then,
//! and nobody has to be called by the one before. So a wait that would be too long is refused at once, also the
//! thousandth, and the pace does not depend on how fast anybody wakes up. What is promised lies in an [`Agenda`],
//! which knows how to take it back.
//!
//! Nearly always nobody has reserved anything, and then a decision must not pay for those who might. It already looks
//! at the number of the setting in force, before and after; that number carries a [mark](crate::regime) while anybody
//! is ahead of the clock, and whoever finds it comes here. The order is what counts:
//!
//! ```text
//!   reserve:   lock ► set the mark ► hold the state, read it and charge it ahead ► let go
//!   decide:    number? ► decide on a copy ► hold the state ► still that number? ► write, let go
//! ```
//!
//! A decision holds the state either before the reservation does, and then the reservation has seen what it wrote; or
//! after, and then it sees the mark, writes nothing, and is made again, here. Under the lock nobody else changes the
//! state of a key that has an agenda.

mod agenda;
mod refused;
#[cfg(all(test, not(loom)))]
mod tests;
mod turn;
mod verbs;

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;
use std::task::Waker;

use crate::observer::Observer;
use crate::shared::When;
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, lock};
use crate::verb::{Answer, Deed, Verb};
use agenda::{Act, Agenda, Calls, Turn};
pub(crate) use agenda::{Look, Wish, later};
pub use refused::WaitRefused;
use tidegate_core::{Algorithm, Decision, Micros, Outcome, Source};
pub(crate) use turn::{Promised, Waiting, reservation_verbs};
use verbs::{Begin, Put, Stored};

/// How many may wait for one state unless said otherwise.
pub(crate) const DEFAULT_MAX_WAITING: usize = 1 << 16;
/// Agendas that nobody asks about any more are looked for as often as this, while decisions come by here.
const SWEEP_EVERY: u64 = 1_000_000;

/// Everything that is promised for later by one limiter.
#[derive(Debug)]
pub(crate) struct Ahead<A> {
    /// Made when somebody first waits, or the setting changes: most limiters never see either.
    shards: OnceLock<Box<[Mutex<Shard<A>>]>>,
    /// How many shards there are.
    count: usize,
    /// How many states have an agenda. The mark is changed under this lock: it is set while there are any.
    agendas: Mutex<usize>,
    max_waiting: usize,
    sweep_at: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct Shard<A> {
    agendas: BTreeMap<u64, Agenda<A>>,
    next: u64,
    calls: Calls,
}

/// A limiter with states that can be charged ahead. A limiter with one state knows it by any fingerprint.
pub(crate) trait Home {
    type Algorithm: Algorithm;

    fn ahead(&self) -> &Ahead<Self::Algorithm>;
    /// The algorithm in force. It does not change while a shard is locked.
    fn algorithm(&self) -> &Self::Algorithm;
    fn is_marked(&self) -> bool;
    fn mark(&self);
    fn unmark(&self);
    /// Something was given back: whoever keeps account of when states are idle looks again.
    fn gave_back(&self, _fingerprint: u64) {}
    /// Does it to the state itself, whatever is promised. Only under the lock of the state's shard.
    fn apply_under_lock<V: Verb>(
        &self,
        plan: Option<&Self::Algorithm>,
        fingerprint: u64,
        verb: &V,
        when: When,
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

impl<A> Ahead<A> {
    pub(crate) fn new(shards: usize, max_waiting: usize) -> Self {
        Ahead {
            shards: OnceLock::new(),
            count: shards,
            agendas: Mutex::new(0),
            max_waiting,
            sweep_at: AtomicU64::new(0),
        }
    }

    pub(crate) fn max_waiting(&self) -> usize {
        self.max_waiting
    }

    fn visit(&self, fingerprint: u64) -> Visit<'_, A> {
        Visit::new(&self.shards()[shard_of(fingerprint, self.count)])
    }

    /// Locks everything, so that the setting can be changed: see [`migrate_from`].
    pub(crate) fn visit_all(&self) -> Vec<Visit<'_, A>> {
        self.shards().iter().map(Visit::new).collect()
    }

    fn shards(&self) -> &[Mutex<Shard<A>>] {
        let shard = || Shard { agendas: BTreeMap::new(), next: 0, calls: Calls::default() };
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
pub(crate) struct Visit<'a, A>(Option<MutexGuard<'a, Shard<A>>>);

impl<'a, A> Visit<'a, A> {
    fn new(shard: &'a Mutex<Shard<A>>) -> Self {
        Visit(Some(lock(shard)))
    }
}

impl<A> Deref for Visit<'_, A> {
    type Target = Shard<A>;

    fn deref(&self) -> &Shard<A> {
        self.0.as_ref().expect("locked until dropped")
    }
}

impl<A> DerefMut for Visit<'_, A> {
    fn deref_mut(&mut self) -> &mut Shard<A> {
        self.0.as_mut().expect("locked until dropped")
    }
}

impl<A> Drop for Visit<'_, A> {
    fn drop(&mut self) {
        let calls = std::mem::take(&mut self.calls);
        self.0 = None;
        calls.make();
    }
}

impl<A: Algorithm> Shard<A> {
    /// The agenda of a state, brought up to date, if it still has one.
    fn agenda<H: Home<Algorithm = A>>(
        &mut self,
        home: &H,
        fingerprint: u64,
        when: When,
    ) -> Option<&mut Agenda<A>> {
        let Shard { agendas, calls, .. } = self;
        let agenda = agendas.get_mut(&fingerprint)?;
        if agenda.refresh(home.algorithm(), when.now, calls) {
            let _ = store(home, fingerprint, agenda, when);
            home.gave_back(fingerprint);
        }
        if agenda.is_over(when.now) {
            self.end(home, fingerprint);
            return None;
        }
        self.agendas.get_mut(&fingerprint)
    }

    fn begin<H: Home<Algorithm = A>>(&mut self, home: &H) {
        let mut agendas = lock(&home.ahead().agendas);
        if *agendas == 0 {
            home.mark();
        }
        *agendas += 1;
    }

    /// Lets go of an agenda, or of the attempt to begin one.
    fn end<H: Home<Algorithm = A>>(&mut self, home: &H, fingerprint: u64) {
        self.agendas.remove(&fingerprint);
        let mut agendas = lock(&home.ahead().agendas);
        *agendas -= 1;
        if *agendas == 0 {
            home.unmark();
        }
    }

    fn ticket(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

/// Writes the end of an agenda where everybody decides. The key has a place already, or needs none: what was promised
/// to it is not idle.
fn store<H: Home>(home: &H, fingerprint: u64, agenda: &Agenda<H::Algorithm>, when: When) -> Stored {
    home.apply_under_lock(None, fingerprint, &Put(agenda.end()), when)
}

// --- those who do not wait

/// Does what `verb` says while somebody, perhaps at another key, has reserved ahead. `None` if nobody has any more.
pub(crate) fn apply<H: Home, V: Verb>(
    home: &H,
    plan: Option<&H::Algorithm>,
    fingerprint: u64,
    verb: &V,
    when: When,
) -> Option<V::Answer> {
    sweep(home, when);
    let mut shard = home.ahead().visit(fingerprint);
    if !home.is_marked() {
        return None;
    }
    if shard.agenda(home, fingerprint, when).is_none() {
        return Some(home.apply_under_lock(plan, fingerprint, verb, when));
    }
    Some(shard.act(home, plan, fingerprint, verb, when))
}

impl<A: Algorithm> Shard<A> {
    /// The same for a state that has an agenda.
    fn act<H: Home<Algorithm = A>, V: Verb>(
        &mut self,
        home: &H,
        plan: Option<&A>,
        fingerprint: u64,
        verb: &V,
        when: When,
    ) -> V::Answer {
        let number = self.ticket();
        let Shard { agendas, calls, .. } = self;
        let agenda = agendas.get_mut(&fingerprint).expect("just brought up to date");
        let algorithm = plan.unwrap_or(home.algorithm());
        let at = agenda.from(algorithm, when.now);
        if when.now < at
            && let Some(answer) = verb.held_back(algorithm, agenda.end(), at, when.now)
        {
            return answer;
        }
        let mut end = agenda.end().to_vec();
        let answer = verb.apply(algorithm, end.as_mut_slice(), at);
        match verb.deed(&answer) {
            // By what it did, not by whether the state is another: a log that is full is not fuller with one more.
            None | Some(Deed::Charge(0) | Deed::Refund(0)) => return answer,
            Some(Deed::Reset) => agenda.reset(home.algorithm(), when.now, calls),
            Some(deed) => {
                // What another plan did cannot be done again by this one.
                let deed = Some(deed).filter(|_| plan.is_none());
                let act = Act { number, deed, at, decision: answer.decision() };
                agenda.note(home.algorithm(), act, end, when.now);
            }
        }
        let _ = store(home, fingerprint, agenda, when);
        answer
    }
}

/// Lets go of all agendas that are over, now and then: of those that were reserved and kept, nobody comes to tell.
fn sweep<H: Home>(home: &H, when: When) {
    let sweep_at = &home.ahead().sweep_at;
    let due = sweep_at.load(Ordering::Relaxed);
    let next = when.now.get().saturating_add(SWEEP_EVERY);
    if when.now.get() < due
        || sweep_at.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_err()
    {
        return;
    }
    for shard in home.ahead().shards() {
        let mut shard = Visit::new(shard);
        let keys: Vec<u64> = shard.agendas.keys().copied().collect();
        for fingerprint in keys {
            shard.agenda(home, fingerprint, when);
        }
    }
}

// --- those who wait

/// What comes of somebody who would wait, by what it was told when it tried to pass: it passed, it would wait in
/// vain, or it has to wait. Who is refused here has not been in the way of others.
pub(crate) fn triage(
    tried: Decision,
    wish: Wish,
    observer: Option<&dyn Observer>,
) -> Result<Option<Decision>, WaitRefused> {
    let refused = match tried.outcome {
        Outcome::Allowed => return Ok(Some(tried)),
        Outcome::Busy | Outcome::Never => WaitRefused::Never { cost: wish.cost, limit: tried.limit() },
        Outcome::RetryAfter(retry_after) if tried.source == Source::Closed => {
            WaitRefused::TooManyKeys { retry_after }
        }
        Outcome::RetryAfter(wait) | Outcome::AllowedAfter(wait) => {
            match later(tried.at(), wait.as_micros()) {
                None => WaitRefused::BeyondTime { cost: wish.cost },
                Some(ready) if ready > wish.deadline => {
                    WaitRefused::too_long(tried.at(), ready, wish.deadline)
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
pub(crate) fn show_wait(
    observer: Option<&dyn Observer>,
    answer: Result<Decision, WaitRefused>,
) -> Result<Decision, WaitRefused> {
    if let (Some(observer), Ok(decision)) = (observer, &answer) {
        observer.allowed(decision);
    }
    answer
}

/// Promises `wish` at its first turn, by `plan` if there is one: to a waiter, if there is a waker, else as a reservation.
pub(crate) fn join<H: Home>(
    home: &H,
    plan: Option<H::Algorithm>,
    fingerprint: u64,
    wish: Wish,
    waker: Option<Waker>,
    when: impl FnOnce() -> When,
) -> Result<Joined, WaitRefused> {
    let mut shard = home.ahead().visit(fingerprint);
    let when = when();
    if home.ahead().max_waiting == 0 {
        return Err(WaitRefused::LineFull { max_waiting: 0 });
    }
    let turn = match shard.agenda(home, fingerprint, when) {
        Some(_) => shard.reserve_behind(home, plan.as_ref(), fingerprint, wish, when)?,
        None => match shard.reserve_first(home, plan.as_ref(), fingerprint, wish, when)? {
            turn if turn.ready <= when.now => return Ok(Joined::Now(turn.told())),
            turn => turn,
        },
    };
    let number = shard.ticket();
    let agenda = shard.agendas.get_mut(&fingerprint).expect("just reserved in");
    match waker {
        Some(waker) => agenda.add_waiter(number, wish, plan, turn, waker),
        None => agenda.add_reservation(number, wish.cost, plan, turn),
    }
    Ok(Joined::Later(Ticket { number, asked: when.now, ready: turn.ready, decision: turn.told() }))
}

impl<A: Algorithm> Shard<A> {
    /// Charges the first promise about a state. If it is due at once, no agenda is left.
    fn reserve_first<H: Home<Algorithm = A>>(
        &mut self,
        home: &H,
        plan: Option<&A>,
        fingerprint: u64,
        wish: Wish,
        when: When,
    ) -> Result<Turn, WaitRefused> {
        self.begin(home);
        match home.apply_under_lock(plan, fingerprint, &Begin(wish), when) {
            Ok(begun) if begun.turn.ready > when.now => {
                self.agendas.insert(fingerprint, Agenda::new(begun.base, begun.now));
                let agenda = self.agendas.get_mut(&fingerprint).expect("just inserted");
                agenda.charge(plan.unwrap_or(home.algorithm()), wish.cost, begun.turn);
                Ok(begun.turn)
            }
            at_once_or_refused => {
                self.end(home, fingerprint);
                at_once_or_refused.map(|begun| begun.turn)
            }
        }
    }

    /// Charges a promise behind others.
    fn reserve_behind<H: Home<Algorithm = A>>(
        &mut self,
        home: &H,
        plan: Option<&A>,
        fingerprint: u64,
        wish: Wish,
        when: When,
    ) -> Result<Turn, WaitRefused> {
        let (algorithm, max_waiting) = (plan.unwrap_or(home.algorithm()), home.ahead().max_waiting);
        let agenda = self.agendas.get_mut(&fingerprint).expect("just brought up to date");
        let from = agenda.from(algorithm, when.now);
        let turn = Turn::find(algorithm, agenda.end(), from, wish.cost)?.in_time(wish, when.now)?;
        if agenda.len() >= max_waiting {
            return Err(WaitRefused::LineFull { max_waiting });
        }
        let before = agenda.end().to_vec();
        agenda.charge(algorithm, wish.cost, turn);
        if let Stored(Err(no_room)) = store(home, fingerprint, agenda, when) {
            agenda.restore_end(before);
            return Err(no_room);
        }
        Ok(turn)
    }
}

/// What the waiter with this ticket finds. `waker` is who will be woken if its turn moves.
pub(crate) fn look<H: Home>(
    home: &H,
    fingerprint: u64,
    ticket: Ticket,
    waker: &Waker,
    when: impl FnOnce() -> When,
) -> Look {
    let mut shard = home.ahead().visit(fingerprint);
    let when = when();
    if shard.agenda(home, fingerprint, when).is_none() {
        return Look::Done(Ok(ticket.decision));
    }
    let Shard { agendas, calls, .. } = &mut *shard;
    let agenda = agendas.get_mut(&fingerprint).expect("just brought up to date");
    let look = agenda.look(home.algorithm(), ticket.number, waker, when.now, calls);
    if agenda.is_over(when.now) {
        shard.end(home, fingerprint);
    }
    look.unwrap_or(Look::Done(Ok(ticket.decision)))
}

/// Gives a promise back, as far as that cannot let too much pass.
pub(crate) fn cancel<H: Home>(home: &H, fingerprint: u64, ticket: Ticket, when: impl FnOnce() -> When) {
    let mut shard = home.ahead().visit(fingerprint);
    let when = when();
    let Shard { agendas, calls, .. } = &mut *shard;
    let Some(agenda) = agendas.get_mut(&fingerprint) else { return };
    agenda.cancel(home.algorithm(), ticket.number, when.now, calls);
    if agenda.is_fresh() {
        let _ = store(home, fingerprint, agenda, when);
        home.gave_back(fingerprint);
        if agenda.is_over(when.now) {
            shard.end(home, fingerprint);
        }
    }
}

/// Makes a reservation count, whatever becomes of its holder.
pub(crate) fn keep<H: Home>(home: &H, fingerprint: u64, ticket: Ticket) {
    let mut shard = home.ahead().visit(fingerprint);
    if let Some(agenda) = shard.agendas.get_mut(&fingerprint) {
        agenda.keep(ticket.number);
    }
}

// --- another setting

/// Takes over what was promised under `old`, now that another setting is in force, and lets others in again.
pub(crate) fn migrate_from<H: Home>(
    home: &H,
    mut visits: Vec<Visit<'_, H::Algorithm>>,
    old: &H::Algorithm,
    when: When,
) {
    let mut all_calls = Calls::default();
    for shard in &mut visits {
        let Shard { agendas, calls, .. } = &mut **shard;
        for (fingerprint, agenda) in agendas {
            agenda.migrate_from(old, home.algorithm(), when.now, calls);
            let _ = store(home, *fingerprint, agenda, when);
        }
        all_calls.append(calls);
    }
    drop(visits); // all of them, before anybody wakes up
    all_calls.make();
}
