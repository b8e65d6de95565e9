//! Random days of those who wait, those who reserve and those who do neither, held against somebody slow.
//!
//! The slow one keeps a list of all that was ever charged and starts from an empty state for every question. Giving
//! back is taking a line out of that list. Every step is done to a limiter, to a key among others, and to the list,
//! and then all three are asked about every cost.
//!
//! In a queue a line is charged at one instant and has its turn at a later one. What somebody was told for good about
//! such a turn keeps all lines before it in the list: given back, they stay until it is gone.

#[allow(dead_code, reason = "written for the core's tests, which use all of it")]
#[path = "../../tidegate-core/tests/random/mod.rs"]
mod random;

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use random::Random;
use tidegate::{
    Algorithm, Clock, ClockKind, Decision, FixedWindow, KeyedLimiter, KeyedReservation, LeakyQueue, Limiter,
    LimiterReservation, ManualClock, Micros, NginxQueue, Outcome, Quota, SlidingLog, SlidingWindow,
    SteppedBucket, TokenBucket, Wait, WaitRefused,
};

const STEPS: u32 = 400;
const WALKS: u64 = 60;
const KEY: u64 = 7;

type Answer = Result<Decision, WaitRefused>;
type Waits<'a> = Pin<Box<dyn Future<Output = Answer> + 'a>>;

fn look(wait: &mut Waits<'_>) -> Option<Answer> {
    match wait.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Some(answer),
        Poll::Pending => None,
    }
}

// --- the slow one

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Moves up, and can be given back.
    Waits,
    /// Waits, but others have built upon it since its turn came: it cannot be given back any more.
    Counted,
    /// Keeps its instant, and can be given back before.
    Reserved,
    /// Given back, while somebody behind it has been told a turn in the queue for good.
    GivenBack,
    /// Happened.
    Charged,
    Refunded,
}

#[derive(Clone, Copy, Debug)]
struct Line {
    id: u64,
    kind: Kind,
    cost: u32,
    /// When it is charged, and when its turn is.
    at: Micros,
    ready: Micros,
    /// Over, with all before it.
    settled: bool,
}

struct Ledger<A> {
    algorithm: A,
    lines: Vec<Line>,
}

impl<A: Algorithm> Ledger<A> {
    /// The state after everything, from scratch, and the latest instant in it.
    fn replayed(&self) -> (Vec<u64>, Micros) {
        let (mut state, mut latest) = (vec![0; self.algorithm.words()], Micros::ZERO);
        for line in &self.lines {
            latest = line.at;
            match line.kind {
                Kind::Refunded => self.algorithm.refund(state.as_mut_slice(), line.at, line.cost),
                _ => drop(self.algorithm.force(state.as_mut_slice(), line.at, line.cost)),
            }
        }
        (state, latest)
    }

    /// What is to be said at `now`, and the instant at which it is judged.
    fn peek(&self, now: Micros, cost: u32) -> (Outcome, Micros) {
        let (state, latest) = self.replayed();
        let at = now.max(latest).max(self.algorithm.last_seen(state.as_slice()));
        (self.algorithm.peek(state.as_slice(), at, cost).outcome, at)
    }

    /// What is told to somebody who asks at `now`.
    fn told(&self, now: Micros, cost: u32) -> Outcome {
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

    /// When `cost` is charged, and when its turn is.
    fn turn(&self, now: Micros, cost: u32) -> (Micros, Micros) {
        match self.peek(now, cost) {
            (Outcome::Allowed, at) => (at, at),
            (Outcome::AllowedAfter(wait), at) => (at, at.plus(wait.as_micros())),
            (Outcome::RetryAfter(wait), at) => self.turn(at.plus(wait.as_micros()), cost),
            (other, _) => panic!("{other:?}: costs are small"),
        }
    }

    fn add(&mut self, id: u64, kind: Kind, cost: u32, (at, ready): (Micros, Micros)) {
        self.lines.push(Line { id, kind, cost, at, ready, settled: false });
    }

    /// When a cost that is charged at `at`, come what may, has its turn.
    fn ready(&self, at: Micros, cost: u32) -> Micros {
        let (mut state, _) = self.replayed();
        match self.algorithm.force(state.as_mut_slice(), at, cost).outcome {
            Outcome::AllowedAfter(wait) => at.plus(wait.as_micros()),
            _ => at,
        }
    }

    /// Somebody else acts at `now`, upon all that has had its turn.
    fn act(&mut self, id: u64, kind: Kind, cost: u32, now: Micros) {
        let pending = self.lines.iter_mut().filter(|line| !line.settled);
        for line in pending.take_while(|line| line.ready <= now) {
            line.kind = match line.kind {
                Kind::Waits | Kind::Counted => Kind::Counted,
                Kind::Refunded => Kind::Refunded,
                Kind::Reserved | Kind::GivenBack | Kind::Charged => Kind::Charged,
            };
        }
        let (_, at) = self.peek(now, 0);
        let ready = if kind == Kind::Refunded { at } else { self.ready(at, cost) };
        let settled = self.lines.iter().all(|line| line.settled); // nobody is ahead
        self.lines.push(Line { id, kind, cost, at, ready, settled });
    }

    fn happened(&mut self, id: u64) {
        self.lines.iter_mut().filter(|line| line.id == id).for_each(|line| line.kind = Kind::Charged);
    }

    /// What has had its turn, and nobody waits for any more, is over.
    fn repair(&mut self, now: Micros) {
        let waits = |line: &Line| matches!(line.kind, Kind::Waits | Kind::Counted);
        let pending = self.lines.iter_mut().filter(|line| !line.settled);
        pending.take_while(|line| line.ready <= now && !waits(line)).for_each(|line| line.settled = true);
    }

    fn take_back(&mut self, id: u64, now: Micros) {
        let index = self.lines.iter().position(|line| line.id == id).expect("in the list");
        match self.lines[index] {
            Line { kind: Kind::Counted, .. } => return self.happened(id),
            Line { kind: Kind::Waits, .. } => {}
            Line { kind: Kind::Reserved, ready, .. } if ready > now => {}
            _ => return,
        }
        let for_good = |line: &Line| line.ready > line.at && line.kind != Kind::Waits;
        if self.lines[index + 1..].iter().any(for_good) {
            self.lines[index].kind = Kind::GivenBack;
            return;
        }
        self.lines.remove(index);
        while self.lines.last().is_some_and(|last| last.kind == Kind::GivenBack && !last.settled) {
            self.lines.pop();
        }
        self.move_up(now);
    }

    /// Who waits moves up, one after the other.
    fn move_up(&mut self, now: Micros) {
        for line in std::mem::take(&mut self.lines) {
            let movable = line.kind == Kind::Waits && line.at > now;
            let at = if movable { self.turn(now, line.cost).0.min(line.at) } else { line.at };
            let (_, latest) = self.replayed();
            let at = at.max(latest);
            let ready = if line.kind == Kind::Waits { self.ready(at, line.cost) } else { line.ready };
            self.lines.push(Line { at, ready, ..line });
        }
    }
}

// --- the walk

/// A reservation's number, and what the limiter and the key have promised for it.
type Twins<'a, A> = (u64, LimiterReservation<'a, A, ManualClock>, KeyedReservation<'a, A, ManualClock>);

fn pick(random: &mut Random, len: usize) -> usize {
    usize::try_from(random.below(len as u64)).expect("an index")
}

struct Walk<'a, A: Algorithm> {
    limiter: &'a Limiter<A, ManualClock>,
    keyed: &'a KeyedLimiter<u64, A, ManualClock>,
    clock: &'a ManualClock,
    ledger: Ledger<A>,
    waits: Vec<(u64, Waits<'a>, Waits<'a>)>,
    reserved: Vec<Twins<'a, A>>,
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
        let (one, other) = (self.limiter.cost(cost).check(), self.keyed.cost(cost).check(&KEY));
        assert_eq!(one.outcome, other.outcome);
        assert_eq!(one.outcome, self.ledger.told(now, cost));
        if one.is_allowed() {
            self.ledger.act(self.next, Kind::Charged, cost, now);
        }
        "check"
    }

    fn reserve(&mut self, cost: u32) -> &'static str {
        let now = self.clock.now();
        let turn = self.ledger.turn(now, cost);
        let one = self.limiter.cost(cost).reserve().expect("promised");
        let other = self.keyed.cost(cost).reserve(&KEY).expect("promised");
        assert_eq!((one.ready_at(), other.ready_at()), (turn.1, turn.1));
        if turn.1 == now {
            self.ledger.act(self.next, Kind::Charged, cost, now);
        } else {
            self.ledger.add(self.next, Kind::Reserved, cost, turn);
        }
        self.reserved.push((self.next, one, other));
        "reserve"
    }

    fn acquire(&mut self, cost: u32) -> &'static str {
        let (limiter, keyed, now) = (self.limiter, self.keyed, self.clock.now());
        let mut one: Waits<'_> = Box::pin(async move { limiter.cost(cost).acquire().await });
        let mut other: Waits<'_> = Box::pin(async move { keyed.cost(cost).acquire(&KEY).await });
        let turn = self.ledger.turn(now, cost);
        let told = look(&mut one);
        assert_eq!(told, look(&mut other));
        assert_eq!(told.is_some(), turn.1 == now);
        if told.is_some() {
            self.ledger.act(self.next, Kind::Charged, cost, now);
        } else {
            self.ledger.add(self.next, Kind::Waits, cost, turn);
            self.waits.push((self.next, one, other));
        }
        "acquire"
    }

    fn drop_a_wait(&mut self, random: &mut Random) -> &'static str {
        let (id, one, other) = self.waits.swap_remove(pick(random, self.waits.len()));
        drop((one, other));
        self.ledger.take_back(id, self.clock.now());
        "drop a wait"
    }

    fn end_a_reservation(&mut self, random: &mut Random) -> &'static str {
        let (id, one, other) = self.reserved.swap_remove(pick(random, self.reserved.len()));
        if random.one_in(3) {
            one.keep();
            other.keep();
            self.ledger.happened(id);
        } else {
            one.cancel();
            other.cancel();
            self.ledger.take_back(id, self.clock.now());
        }
        "end a reservation"
    }

    fn force(&mut self, cost: u32) -> &'static str {
        let _ = (self.limiter.cost(cost).force(), self.keyed.cost(cost).force(&KEY));
        self.ledger.act(self.next, Kind::Charged, cost, self.clock.now());
        "force"
    }

    fn refund(&mut self, cost: u32) -> &'static str {
        self.limiter.cost(cost).refund();
        self.keyed.cost(cost).refund(&KEY);
        self.ledger.act(self.next, Kind::Refunded, cost, self.clock.now());
        "refund"
    }

    fn advance(&mut self, random: &mut Random) -> &'static str {
        self.clock.advance(Duration::from_micros(random.below(700_000)));
        self.look_at_all(random);
        "advance"
    }

    /// Some of those who wait look whether it is their turn.
    fn look_at_all(&mut self, random: &mut Random) {
        let now = self.clock.now();
        for (id, mut one, mut other) in std::mem::take(&mut self.waits) {
            let line = self.ledger.lines.iter().find(|line| line.id == id).copied().expect("in the list");
            if random.one_in(4) {
                self.waits.push((id, one, other));
                continue;
            }
            let told = look(&mut one);
            assert_eq!(told, look(&mut other));
            assert_eq!(told.is_some(), line.ready <= now, "{line:?} at {now}");
            match told {
                Some(answer) => {
                    assert_eq!(answer.expect("allowed").at(), line.at);
                    self.ledger.happened(id);
                }
                None => self.waits.push((id, one, other)),
            }
        }
    }

    /// Everybody says the same about every cost.
    fn compare(&self, step: u32, what: &str) {
        let now = self.clock.now();
        for cost in 0..=self.most + 2 {
            let outcome = self.ledger.told(now, cost);
            assert_eq!(self.limiter.cost(cost).peek().outcome, outcome, "step {step}: {what}, cost {cost}");
            assert_eq!(
                self.keyed.cost(cost).peek(&KEY).outcome,
                outcome,
                "step {step}: {what}, cost {cost}, keyed"
            );
        }
    }
}

fn walk<A: Algorithm + Clone>(algorithm: A, most: u32, seed: u64) {
    let mut random = Random::seeded(seed);
    let clock = ManualClock::new();
    clock.advance(Duration::from_micros(random.below(5_000_000)));
    let limiter = Limiter::with(algorithm.clone()).with_clock(clock.clone());
    let keyed = KeyedLimiter::<u64, A>::with(algorithm.clone()).max_keys(64).with_clock(clock.clone());
    let ledger = Ledger { algorithm: algorithm.for_clock(ClockKind::Monotonic), lines: Vec::new() };
    let (waits, reserved) = (Vec::new(), Vec::new());
    let mut walk =
        Walk { limiter: &limiter, keyed: &keyed, clock: &clock, ledger, waits, reserved, next: 0, most };
    for step in 0..STEPS {
        let what = walk.step(&mut random);
        let _ = keyed.check(&random.between(100, 120)); // others come and go
        walk.compare(step, what);
        walk.ledger.repair(clock.now());
    }
}

fn walks<A: Algorithm + Clone>(algorithm: A, most: u32) {
    for seed in 0..WALKS {
        walk(algorithm.clone(), most, seed);
    }
}

#[test]
fn a_bucket_is_as_if_started_from_scratch() {
    walks(TokenBucket::new(Quota::per_second(3)), 3);
}

#[test]
fn a_bucket_of_two_words_is_as_if_started_from_scratch() {
    walks(TokenBucket::new(Quota::per(1_021, Duration::from_secs(300)).burst(4)), 4);
    walks(TokenBucket::new(Quota::per(4_001, Duration::from_secs(1_000)).burst(4)), 4);
}

#[test]
fn a_stepped_bucket_is_as_if_started_from_scratch() {
    walks(SteppedBucket::new(Quota::per_second(3).burst(5)), 5);
}

#[test]
fn a_window_is_as_if_started_from_scratch() {
    walks(FixedWindow::new(Quota::per_second(4)), 4);
}

#[test]
fn a_window_from_the_first_hit_is_as_if_started_from_scratch() {
    walks(FixedWindow::new(Quota::per_second(4)).from_first_hit(), 4);
}

#[test]
fn a_log_is_as_if_started_from_scratch() {
    walks(SlidingLog::new(Quota::per_second(4)), 4);
}

#[test]
fn a_sliding_window_is_as_if_started_from_scratch() {
    walks(SlidingWindow::new(Quota::per_second(4), 5), 4);
}

#[test]
fn a_policy_is_as_if_started_from_scratch() {
    walks(
        (TokenBucket::new(Quota::per_second(4)), FixedWindow::new(Quota::per(9, Duration::from_secs(4)))),
        4,
    );
}

#[test]
fn a_queue_is_as_if_started_from_scratch() {
    walks(LeakyQueue::new(Quota::per_second(4), 3), 4);
}

#[test]
fn a_queue_where_some_pass_at_once_is_as_if_started_from_scratch() {
    walks(LeakyQueue::new(Quota::per_second(3), 5).delay(2), 4);
}

#[test]
fn a_queue_as_nginx_keeps_it_is_as_if_started_from_scratch() {
    walks(NginxQueue::new(Quota::per_second(4), 3), 4);
}

#[test]
fn a_queue_as_nginx_keeps_it_where_some_pass_at_once_is_as_if_started_from_scratch() {
    walks(NginxQueue::new(Quota::per_second(3), 5).delay(2), 4);
}
