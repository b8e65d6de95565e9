//! Random sequences of waits, reservations and plain checks, compared with a slow model.
//!
//! The model keeps a list of all charges and replays it from an empty state for every query. A cancellation
//! removes an entry from that list. Every step is applied to a limiter, to one key of a keyed limiter, and
//! to the list, and then all three are queried for every cost.
//!
//! In a leaky queue an entry is charged at one instant and becomes ready at a later one. Once such a ready
//! instant is promised for good, all entries before it stay in the list: a cancelled one stays until the
//! promised one is gone.

#[allow(dead_code, reason = "written for the core's tests, which use all of it")]
#[path = "../../tidegate-core/tests/random/mod.rs"]
mod random;

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use random::Random;
use tidegate::algorithm::{
    Algorithm, FixedWindow, LeakyQueue, NginxQueue, SlidingLog, SlidingWindow, SteppedBucket, TokenBucket,
};
use tidegate::clock::{Clock, ClockKind, Micros};
use tidegate::{
    AcquireError, Decision, KeyedLimiter, Limiter, ManualClock, Outcome, Quota, Reservation, Wait,
};

const STEPS: u32 = 400;
const WALKS: u64 = 60;
const KEY: u64 = 7;

type Answer = Result<Decision, AcquireError>;
type WaitFuture<'a> = Pin<Box<dyn Future<Output = Answer> + 'a>>;

fn poll_once(wait: &mut WaitFuture<'_>) -> Option<Answer> {
    match wait.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Some(answer),
        Poll::Pending => None,
    }
}

// --- the model

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Waits; moves up, and can be cancelled.
    Waits,
    /// Waits, but later charges depend on it since it became ready: it can no longer be cancelled.
    Counted,
    /// Keeps its instant, and can be cancelled before it.
    Reserved,
    /// Cancelled, while a later entry has a ready instant in the queue that is promised for good.
    Cancelled,
    /// Final.
    Charged,
    Refunded,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    id: u64,
    kind: Kind,
    cost: u32,
    /// When it is charged, and when it is ready.
    at: Micros,
    ready: Micros,
    /// Settled, as are all entries before it.
    settled: bool,
}

struct Ledger<A> {
    algorithm: A,
    entries: Vec<Entry>,
}

impl<A: Algorithm> Ledger<A> {
    /// Replays all entries from an empty state; returns the state and the latest instant in it.
    fn replayed(&self) -> (Vec<u64>, Micros) {
        let (mut state, mut latest) = (vec![0; self.algorithm.words()], Micros::ZERO);
        for entry in &self.entries {
            latest = entry.at;
            match entry.kind {
                Kind::Refunded => self.algorithm.refund(state.as_mut_slice(), entry.at, entry.cost),
                _ => drop(self.algorithm.force(state.as_mut_slice(), entry.at, entry.cost)),
            }
        }
        (state, latest)
    }

    /// Returns the outcome at `now`, and the instant at which it is decided.
    fn peek(&self, now: Micros, cost: u32) -> (Outcome, Micros) {
        let (state, latest) = self.replayed();
        let at = now.max(latest).max(self.algorithm.last_seen(state.as_slice()));
        (self.algorithm.peek(state.as_slice(), at, cost).outcome, at)
    }

    /// Returns the outcome of a check at `now`.
    fn outcome(&self, now: Micros, cost: u32) -> Outcome {
        let (outcome, at) = self.peek(now, cost);
        let until_then = at.since(now);
        match outcome {
            Outcome::Allowed | Outcome::AllowedAfter(_) if at > now && cost > 0 => {
                Outcome::RetryAfter(Wait::micros(until_then))
            }
            Outcome::RetryAfter(wait) => Outcome::RetryAfter(Wait::micros(wait.as_micros() + until_then)),
            other => other,
        }
    }

    /// Returns when `cost` is charged, and when it is ready.
    fn schedule(&self, now: Micros, cost: u32) -> (Micros, Micros) {
        match self.peek(now, cost) {
            (Outcome::Allowed, at) => (at, at),
            (Outcome::AllowedAfter(wait), at) => (at, at.plus(wait.as_micros())),
            (Outcome::RetryAfter(wait), at) => self.schedule(at.plus(wait.as_micros()), cost),
            (other, _) => panic!("{other:?}: costs are small"),
        }
    }

    fn add(&mut self, id: u64, kind: Kind, cost: u32, (at, ready): (Micros, Micros)) {
        self.entries.push(Entry { id, kind, cost, at, ready, settled: false });
    }

    /// Returns when a cost that is charged at `at`, even beyond the limit, is ready.
    fn ready(&self, at: Micros, cost: u32) -> Micros {
        let (mut state, _) = self.replayed();
        match self.algorithm.force(state.as_mut_slice(), at, cost).outcome {
            Outcome::AllowedAfter(wait) => at.plus(wait.as_micros()),
            _ => at,
        }
    }

    /// Applies a charge or refund at `now`, on top of every entry that is ready by then.
    fn act(&mut self, id: u64, kind: Kind, cost: u32, now: Micros) {
        let pending = self.entries.iter_mut().filter(|entry| !entry.settled);
        for entry in pending.take_while(|entry| entry.ready <= now) {
            entry.kind = match entry.kind {
                Kind::Waits | Kind::Counted => Kind::Counted,
                Kind::Refunded => Kind::Refunded,
                Kind::Reserved | Kind::Cancelled | Kind::Charged => Kind::Charged,
            };
        }
        let (_, at) = self.peek(now, 0);
        let ready = if kind == Kind::Refunded { at } else { self.ready(at, cost) };
        let settled = self.entries.iter().all(|entry| entry.settled); // no pending entry
        self.entries.push(Entry { id, kind, cost, at, ready, settled });
    }

    fn finish(&mut self, id: u64) {
        self.entries.iter_mut().filter(|entry| entry.id == id).for_each(|entry| entry.kind = Kind::Charged);
    }

    /// Settles the entries that are ready and have no waiter any more.
    fn settle_ready(&mut self, now: Micros) {
        let waits = |entry: &Entry| matches!(entry.kind, Kind::Waits | Kind::Counted);
        let pending = self.entries.iter_mut().filter(|entry| !entry.settled);
        pending
            .take_while(|entry| entry.ready <= now && !waits(entry))
            .for_each(|entry| entry.settled = true);
    }

    fn cancel(&mut self, id: u64, now: Micros) {
        let index = self.entries.iter().position(|entry| entry.id == id).expect("the entry is in the list");
        match self.entries[index] {
            Entry { kind: Kind::Counted, .. } => return self.finish(id),
            Entry { kind: Kind::Waits, .. } => {}
            Entry { kind: Kind::Reserved, ready, .. } if ready > now => {}
            _ => return,
        }
        let is_final = |entry: &Entry| entry.ready > entry.at && entry.kind != Kind::Waits;
        if self.entries[index + 1..].iter().any(is_final) {
            self.entries[index].kind = Kind::Cancelled;
            return;
        }
        self.entries.remove(index);
        while self.entries.last().is_some_and(|last| last.kind == Kind::Cancelled && !last.settled) {
            self.entries.pop();
        }
        self.move_up(now);
    }

    /// Moves waiters up, one after the other.
    fn move_up(&mut self, now: Micros) {
        for entry in std::mem::take(&mut self.entries) {
            let movable = entry.kind == Kind::Waits && entry.at > now;
            let at = if movable { self.schedule(now, entry.cost).0.min(entry.at) } else { entry.at };
            let (_, latest) = self.replayed();
            let at = at.max(latest);
            let ready = if entry.kind == Kind::Waits { self.ready(at, entry.cost) } else { entry.ready };
            self.entries.push(Entry { at, ready, ..entry });
        }
    }
}

// --- the walk

/// A reservation's number, and its reservations in the limiter and for the key.
type ReservationPair<'a, A> =
    (u64, Reservation<'a, Limiter<A, ManualClock>>, Reservation<'a, KeyedLimiter<u64, A, ManualClock>>);

fn pick(random: &mut Random, len: usize) -> usize {
    usize::try_from(random.below(len as u64)).expect("an index")
}

struct Walk<'a, A: Algorithm> {
    limiter: &'a Limiter<A, ManualClock>,
    keyed: &'a KeyedLimiter<u64, A, ManualClock>,
    clock: &'a ManualClock,
    ledger: Ledger<A>,
    waits: Vec<(u64, WaitFuture<'a>, WaitFuture<'a>)>,
    reserved: Vec<ReservationPair<'a, A>>,
    next: u64,
    most: u32,
}

impl<A: Algorithm> Walk<'_, A> {
    fn step(&mut self, random: &mut Random) -> &'static str {
        let cost = u32::try_from(random.between(1, u64::from(self.most))).expect("small");
        self.next += 1;
        match random.below(12) {
            0 | 1 => self.check(cost),
            2 | 3 => self.reserve(cost),
            4 | 5 => self.acquire(cost),
            6 if !self.waits.is_empty() => self.drop_a_wait(random),
            7 if !self.reserved.is_empty() => self.end_a_reservation(random),
            8 if random.one_in(2) => self.force(cost),
            9 if random.one_in(2) => self.refund(cost),
            _ => self.advance(random),
        }
    }

    fn check(&mut self, cost: u32) -> &'static str {
        let now = self.clock.now();
        let (one, other) =
            (self.limiter.request().cost(cost).check(), self.keyed.request(&KEY).cost(cost).check());
        assert_eq!(one.outcome, other.outcome);
        assert_eq!(one.outcome, self.ledger.outcome(now, cost));
        if one.is_allowed() {
            self.ledger.act(self.next, Kind::Charged, cost, now);
        }
        "check"
    }

    fn reserve(&mut self, cost: u32) -> &'static str {
        let now = self.clock.now();
        let schedule = self.ledger.schedule(now, cost);
        let one = self.limiter.request().cost(cost).reserve().expect("reserved");
        let other = self.keyed.request(&KEY).cost(cost).reserve().expect("reserved");
        assert_eq!((one.ready_at(), other.ready_at()), (schedule.1, schedule.1));
        if schedule.1 == now {
            self.ledger.act(self.next, Kind::Charged, cost, now);
        } else {
            self.ledger.add(self.next, Kind::Reserved, cost, schedule);
        }
        self.reserved.push((self.next, one, other));
        "reserve"
    }

    fn acquire(&mut self, cost: u32) -> &'static str {
        let (limiter, keyed, now) = (self.limiter, self.keyed, self.clock.now());
        let mut one: WaitFuture<'_> = Box::pin(async move { limiter.request().cost(cost).acquire().await });
        let mut other: WaitFuture<'_> =
            Box::pin(async move { keyed.request(&KEY).cost(cost).acquire().await });
        let schedule = self.ledger.schedule(now, cost);
        let outcome = poll_once(&mut one);
        assert_eq!(outcome, poll_once(&mut other));
        assert_eq!(outcome.is_some(), schedule.1 == now);
        if outcome.is_some() {
            self.ledger.act(self.next, Kind::Charged, cost, now);
        } else {
            self.ledger.add(self.next, Kind::Waits, cost, schedule);
            self.waits.push((self.next, one, other));
        }
        "acquire"
    }

    fn drop_a_wait(&mut self, random: &mut Random) -> &'static str {
        let (id, one, other) = self.waits.swap_remove(pick(random, self.waits.len()));
        drop((one, other));
        self.ledger.cancel(id, self.clock.now());
        "drop a wait"
    }

    fn end_a_reservation(&mut self, random: &mut Random) -> &'static str {
        let (id, one, other) = self.reserved.swap_remove(pick(random, self.reserved.len()));
        if random.one_in(3) {
            one.keep();
            other.keep();
            self.ledger.finish(id);
        } else {
            one.cancel();
            other.cancel();
            self.ledger.cancel(id, self.clock.now());
        }
        "end a reservation"
    }

    fn force(&mut self, cost: u32) -> &'static str {
        let _ = (self.limiter.request().cost(cost).force(), self.keyed.request(&KEY).cost(cost).force());
        self.ledger.act(self.next, Kind::Charged, cost, self.clock.now());
        "force"
    }

    fn refund(&mut self, cost: u32) -> &'static str {
        self.limiter.request().cost(cost).refund();
        self.keyed.request(&KEY).cost(cost).refund();
        self.ledger.act(self.next, Kind::Refunded, cost, self.clock.now());
        "refund"
    }

    fn advance(&mut self, random: &mut Random) -> &'static str {
        self.clock.advance(Duration::from_micros(random.below(700_000)));
        self.poll_waiters(random);
        "advance"
    }

    /// Polls a random part of the waiters.
    fn poll_waiters(&mut self, random: &mut Random) {
        let now = self.clock.now();
        for (id, mut one, mut other) in std::mem::take(&mut self.waits) {
            let entry = self
                .ledger
                .entries
                .iter()
                .find(|entry| entry.id == id)
                .copied()
                .expect("the entry is in the list");
            if random.one_in(4) {
                self.waits.push((id, one, other));
                continue;
            }
            let outcome = poll_once(&mut one);
            assert_eq!(outcome, poll_once(&mut other));
            assert_eq!(outcome.is_some(), entry.ready <= now, "{entry:?} at {now}");
            match outcome {
                Some(answer) => {
                    assert_eq!(answer.expect("allowed").at(), entry.at);
                    self.ledger.finish(id);
                }
                None => self.waits.push((id, one, other)),
            }
        }
    }

    /// Asserts that limiter, key and model agree for every cost.
    fn compare(&self, step: u32, what: &str) {
        let now = self.clock.now();
        for cost in 0..=self.most + 2 {
            let expected = self.ledger.outcome(now, cost);
            assert_eq!(
                self.limiter.request().cost(cost).peek().outcome,
                expected,
                "step {step}: {what}, cost {cost}"
            );
            assert_eq!(
                self.keyed.request(&KEY).cost(cost).peek().outcome,
                expected,
                "step {step}: {what}, cost {cost}, keyed"
            );
        }
    }
}

fn walk<A: Algorithm + Clone>(algorithm: A, most: u32, seed: u64) {
    let mut random = Random::seeded(seed);
    let clock = ManualClock::new();
    clock.advance(Duration::from_micros(random.below(5_000_000)));
    let limiter = Limiter::builder_with(algorithm.clone()).clock(clock.clone()).build();
    let keyed =
        KeyedLimiter::<u64, A>::builder_with(algorithm.clone()).max_keys(64).clock(clock.clone()).build();
    let ledger = Ledger { algorithm: algorithm.for_clock(ClockKind::Monotonic), entries: Vec::new() };
    let (waits, reserved) = (Vec::new(), Vec::new());
    let mut walk =
        Walk { limiter: &limiter, keyed: &keyed, clock: &clock, ledger, waits, reserved, next: 0, most };
    for step in 0..STEPS {
        let what = walk.step(&mut random);
        let _ = keyed.check(&random.between(100, 120)); // unrelated keys
        walk.compare(step, what);
        walk.ledger.settle_ready(clock.now());
    }
}

fn walks<A: Algorithm + Clone>(algorithm: A, most: u32) {
    for seed in 0..WALKS {
        walk(algorithm.clone(), most, seed);
    }
}

#[test]
fn token_bucket_matches_the_replayed_model() {
    walks(TokenBucket::new(Quota::per_second(3)), 3);
}

#[test]
fn two_word_token_bucket_matches_the_replayed_model() {
    walks(TokenBucket::new(Quota::per(1_021, Duration::from_secs(300)).burst(4)), 4);
    walks(TokenBucket::new(Quota::per(4_001, Duration::from_secs(1_000)).burst(4)), 4);
}

#[test]
fn stepped_bucket_matches_the_replayed_model() {
    walks(SteppedBucket::new(Quota::per_second(3).burst(5)), 5);
}

#[test]
fn fixed_window_matches_the_replayed_model() {
    walks(FixedWindow::new(Quota::per_second(4)), 4);
}

#[test]
fn fixed_window_from_first_hit_matches_the_replayed_model() {
    walks(FixedWindow::new(Quota::per_second(4)).from_first_hit(), 4);
}

#[test]
fn sliding_log_matches_the_replayed_model() {
    walks(SlidingLog::new(Quota::per_second(4)), 4);
}

#[test]
fn sliding_window_matches_the_replayed_model() {
    walks(SlidingWindow::new(Quota::per_second(4), 5), 4);
}

#[test]
fn tuple_of_two_algorithms_matches_the_replayed_model() {
    walks(
        (TokenBucket::new(Quota::per_second(4)), FixedWindow::new(Quota::per(9, Duration::from_secs(4)))),
        4,
    );
}

#[test]
fn leaky_queue_matches_the_replayed_model() {
    walks(LeakyQueue::new(Quota::per_second(4), 3), 4);
}

#[test]
fn leaky_queue_with_delay_matches_the_replayed_model() {
    walks(LeakyQueue::new(Quota::per_second(3), 5).delay(2), 4);
}

#[test]
fn nginx_queue_matches_the_replayed_model() {
    walks(NginxQueue::new(Quota::per_second(4), 3), 4);
}

#[test]
fn nginx_queue_with_delay_matches_the_replayed_model() {
    walks(NginxQueue::new(Quota::per_second(3), 5).delay(2), 4);
}
