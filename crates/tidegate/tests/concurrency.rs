//! Those at work at once: days in the life of a concurrency limiter, on a clock that the test moves.

#[allow(dead_code, reason = "written for the core's tests, which use all of it")]
#[path = "../../tidegate-core/tests/random/mod.rs"]
mod random;

use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use random::Random;
use tidegate::{
    ConcurrencyLimiter, KeyedConcurrencyLimiter, KeyedPermit, ManualClock, Permit, Refused, SteadyClock,
};

const SECOND: Duration = Duration::from_secs(1);

// --- tasks, polled by hand

/// How often a task was woken.
#[derive(Default)]
struct Calls(AtomicU32);

impl Wake for Calls {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A future that is polled when the test says so.
struct Task<'a, T> {
    future: Pin<Box<dyn Future<Output = T> + Send + 'a>>,
    calls: Arc<Calls>,
}

impl<'a, T> Task<'a, T> {
    /// Polled once.
    fn begun(future: impl Future<Output = T> + Send + 'a) -> (Self, Poll<T>) {
        let mut task = Task { future: Box::pin(future), calls: Arc::default() };
        let first = task.poll();
        (task, first)
    }

    /// One that has to wait.
    fn waiting(future: impl Future<Output = T> + Send + 'a) -> Self {
        let (task, first) = Task::begun(future);
        assert!(first.is_pending(), "it should have to wait");
        task
    }

    fn poll(&mut self) -> Poll<T> {
        let waker = Waker::from(self.calls.clone());
        self.future.as_mut().poll(&mut Context::from_waker(&waker))
    }

    fn is_woken(&self) -> bool {
        self.calls.0.load(Ordering::Relaxed) > 0
    }

    /// What it was woken for.
    fn done(mut self) -> T {
        assert!(self.is_woken(), "it should have been woken");
        match self.poll() {
            Poll::Ready(output) => output,
            Poll::Pending => panic!("it should have been woken for a reason"),
        }
    }
}

/// Waits until another thread has got so far, without looking at a clock.
fn until(reached: impl Fn() -> bool) {
    while !reached() {
        thread::yield_now();
    }
}

fn number(random: &mut Random, first: u64, last: u64) -> u32 {
    random.between(first, last).try_into().expect("it is small")
}

/// The index of one of so many.
fn one_of(many: usize, random: &mut Random) -> usize {
    random.below(many as u64).try_into().expect("it is less than many")
}

fn assert_at_rest<C>(slots: &ConcurrencyLimiter<C>, limit: u32) {
    let stats = slots.stats();
    assert_eq!((stats.limit, stats.in_use, stats.waiting), (limit, 0, 0));
    assert!(slots.cost(limit).try_acquire().is_ok(), "all of it can be had");
}

// --- at once

#[test]
fn so_many_at_once_and_no_more() {
    let slots = ConcurrencyLimiter::new(3);
    let permits: Vec<_> = (0..3).map(|_| slots.try_acquire().unwrap()).collect();
    assert_eq!(slots.try_acquire().unwrap_err(), Refused::Busy { cost: 1, limit: 3 });
    assert_eq!(slots.clone().stats().in_use, 3, "clones share the slots");
    drop(permits);
    assert_at_rest(&slots, 3);
}

#[test]
fn a_permit_takes_up_what_it_costs() {
    let slots = ConcurrencyLimiter::new(10);
    let large = slots.cost(7).try_acquire().unwrap();
    assert_eq!(large.cost(), 7);
    assert_eq!(slots.cost(4).try_acquire().unwrap_err(), Refused::Busy { cost: 4, limit: 10 });
    let rest = slots.cost(3).try_acquire().unwrap();
    assert_eq!(slots.stats().in_use, 10);
    assert!(slots.cost(0).try_acquire().is_ok(), "nothing can always be had");
    drop((large, rest));
    assert_at_rest(&slots, 10);
}

#[test]
fn more_than_there_is_can_never_be_had() {
    let slots = ConcurrencyLimiter::new(2).with_clock(ManualClock::new());
    let never = Refused::Never { cost: 3, limit: 2 };
    assert_eq!(slots.cost(3).try_acquire().unwrap_err(), never);
    assert_eq!(slots.cost(3).acquire_blocking().unwrap_err(), never);
    assert_eq!(slots.cost(3).acquire_blocking_timeout(SECOND).unwrap_err(), never);
    assert_eq!(slots.cost(3).acquire_blocking_timeout(Duration::ZERO).unwrap_err(), never);
    assert!(matches!(Task::begun(slots.cost(3).acquire()).1, Poll::Ready(Err(refused)) if refused == never));
    let sentence = "3 permits exceed the limit of 2; ask for 2 or fewer";
    assert_eq!(never.to_string(), sentence);
    assert_at_rest(&slots, 2);
}

#[test]
fn a_permit_has_three_endings() {
    let slots = ConcurrencyLimiter::new(9);
    slots.try_acquire().unwrap().succeeded();
    slots.try_acquire().unwrap().into_owned().succeeded();
    slots.try_acquire().unwrap().overloaded();
    for _ in 0..3 {
        drop(slots.try_acquire().unwrap());
    }
    drop(slots.try_acquire().unwrap().into_owned());
    let endings = slots.stats().endings;
    assert_eq!((endings.succeeded, endings.overloaded, endings.dropped), (2, 1, 4));
    assert_at_rest(&slots, 9);
}

#[test]
fn a_panic_gives_the_permit_back() {
    let slots = ConcurrencyLimiter::new(1);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _permit = slots.try_acquire().unwrap();
        panic!("the work went wrong");
    }));
    assert!(panicked.is_err());
    assert_eq!(slots.stats().endings.dropped, 1);
    assert_at_rest(&slots, 1);
}

#[test]
fn an_owned_permit_outlives_its_limiter() {
    let slots = ConcurrencyLimiter::new(1);
    let same = slots.clone();
    let permit = slots.try_acquire().unwrap().into_owned();
    drop(slots);
    assert_eq!(same.stats().in_use, 1);
    thread::spawn(move || drop(permit)).join().unwrap();
    assert_at_rest(&same, 1);
}

// --- in line

#[test]
fn who_came_first_is_served_first() {
    let slots = ConcurrencyLimiter::new(1);
    let held = slots.try_acquire().unwrap();
    let first = Task::waiting(slots.acquire());
    let second = Task::waiting(slots.acquire());
    assert_eq!(slots.stats().waiting, 2);
    drop(held);
    assert!(first.is_woken() && !second.is_woken());
    drop(first.done().unwrap());
    drop(second.done().unwrap());
    assert_at_rest(&slots, 1);
}

/// One after the other of the small ones would do, and three would never be free at once.
#[test]
fn a_large_request_is_not_starved_by_small_ones() {
    let slots = ConcurrencyLimiter::new(4);
    let mut small: VecDeque<_> = (0..4).map(|_| slots.try_acquire().unwrap()).collect();
    let large = Task::waiting(slots.cost(3).acquire());
    let behind = Task::waiting(slots.acquire());
    for freed in 1..3 {
        small.pop_front();
        assert_eq!(slots.try_acquire().unwrap_err(), Refused::Busy { cost: 1, limit: 4 }, "{freed} saved up");
        assert!(!large.is_woken() && !behind.is_woken());
    }
    small.pop_front();
    assert!(large.is_woken() && !behind.is_woken());
    let large = large.done().unwrap();
    small.pop_front();
    drop((behind.done().unwrap(), large));
    assert_at_rest(&slots, 4);
}

#[test]
fn a_release_serves_everybody_it_suffices_for() {
    let slots = ConcurrencyLimiter::new(4);
    let held = slots.cost(4).try_acquire().unwrap();
    let waiting: Vec<_> = [1, 2, 2].map(|cost| Task::waiting(slots.cost(cost).acquire())).into();
    drop(held);
    assert_eq!(waiting.iter().map(Task::is_woken).collect::<Vec<_>>(), [true, true, false]);
}

#[test]
fn a_wait_that_is_given_up_frees_its_place_at_once() {
    let slots = ConcurrencyLimiter::new(2).max_waiting(2);
    let held = slots.try_acquire().unwrap();
    let large = Task::waiting(slots.cost(2).acquire());
    let small = Task::waiting(slots.acquire());
    assert!(matches!(Task::begun(slots.acquire()).1, Poll::Ready(Err(Refused::LineFull { max_waiting: 2 }))));
    drop(large);
    let small = small.done().expect("one was free all the time");
    assert_eq!(slots.stats().waiting, 0);
    drop((held, small));
    assert_at_rest(&slots, 2);
}

#[test]
fn a_call_that_nobody_answers_is_passed_on() {
    let slots = ConcurrencyLimiter::new(1);
    let held = slots.try_acquire().unwrap();
    let first = Task::waiting(slots.acquire());
    let second = Task::waiting(slots.acquire());
    drop(held);
    assert!(first.is_woken() && !second.is_woken());
    drop(first);
    drop(second.done().unwrap());
    assert_at_rest(&slots, 1);
}

#[test]
fn a_future_that_is_never_polled_wants_nothing() {
    let slots = ConcurrencyLimiter::new(1);
    drop(slots.acquire());
    assert_at_rest(&slots, 1);
}

#[test]
fn a_task_that_moves_is_woken_where_it_is() {
    let slots = ConcurrencyLimiter::new(1);
    let held = slots.try_acquire().unwrap();
    let mut task = Task::waiting(slots.acquire());
    let before = std::mem::take(&mut task.calls);
    assert!(task.poll().is_pending());
    drop(held);
    assert_eq!(before.0.load(Ordering::Relaxed), 0);
    drop(task.done().unwrap());
}

#[test]
fn with_no_room_to_wait_nobody_waits() {
    let slots = ConcurrencyLimiter::new(1).max_waiting(0);
    let held = slots.acquire_blocking().unwrap();
    let refused = slots.acquire_blocking().unwrap_err();
    assert_eq!(refused, Refused::LineFull { max_waiting: 0 });
    drop(held);
    assert_at_rest(&slots, 1);
}

// --- time-outs

#[test]
fn a_task_waits_so_long_and_no_longer() {
    let clock = ManualClock::new();
    let slots = ConcurrencyLimiter::new(1).with_clock(clock.clone());
    let held = slots.try_acquire().unwrap();
    let mut late = Task::waiting(slots.acquire_timeout(SECOND));
    let in_time = Task::waiting(slots.acquire_timeout(2 * SECOND));
    clock.advance(SECOND - Duration::from_micros(1));
    assert!(late.poll().is_pending());
    clock.advance(Duration::from_micros(1));
    assert_eq!(late.done().unwrap_err(), Refused::TimedOut { timeout: SECOND });
    assert_eq!(slots.stats().waiting, 1, "its place is free");
    drop(held);
    clock.advance(SECOND);
    drop(in_time.done().expect("it was called before its time was up, whenever it noticed"));
    assert_at_rest(&slots, 1);
}

#[test]
fn who_has_no_time_is_refused_at_once_and_takes_no_place_in_line() {
    let slots = ConcurrencyLimiter::new(1).max_waiting(0).with_clock(ManualClock::new());
    let held = slots.try_acquire().unwrap();
    let timeout = Duration::ZERO;
    assert_eq!(slots.acquire_blocking_timeout(timeout).unwrap_err(), Refused::TimedOut { timeout });
    let (_, first) = Task::begun(slots.acquire_timeout(timeout));
    assert!(matches!(first, Poll::Ready(Err(Refused::TimedOut { .. }))));
    drop(held);
    assert!(slots.acquire_blocking_timeout(timeout).is_ok(), "what is free takes no time");
}

#[test]
fn a_blocked_thread_is_woken_by_the_clock() {
    let clock = ManualClock::new();
    let slots = ConcurrencyLimiter::new(1).with_clock(clock.clone());
    let _held = slots.try_acquire().unwrap();
    thread::scope(|scope| {
        let blocked = scope.spawn(|| slots.acquire_blocking_timeout(SECOND).map(drop));
        until(|| slots.stats().waiting == 1);
        clock.advance(SECOND);
        assert_eq!(blocked.join().unwrap(), Err(Refused::TimedOut { timeout: SECOND }));
    });
    assert_eq!(slots.stats().waiting, 0);
}

#[test]
fn a_blocked_thread_is_woken_by_a_release() {
    let slots = ConcurrencyLimiter::new(1).with_clock(ManualClock::new());
    for wait in [
        (|slots| slots.acquire_blocking())
            as fn(&ConcurrencyLimiter<ManualClock>) -> Result<Permit<'_>, Refused>,
        |slots| slots.acquire_blocking_timeout(SECOND),
    ] {
        let held = slots.try_acquire().unwrap();
        thread::scope(|scope| {
            let blocked = scope.spawn(|| wait(&slots).map(Permit::succeeded));
            until(|| slots.stats().waiting == 1);
            drop(held);
            assert_eq!(blocked.join().unwrap(), Ok(()));
        });
    }
    assert_at_rest(&slots, 1);
}

#[test]
fn the_real_clock_wakes_a_blocked_thread_too() {
    let slots = ConcurrencyLimiter::new(1).with_clock(SteadyClock::new());
    let _held = slots.try_acquire().unwrap();
    let timeout = Duration::from_micros(10);
    assert_eq!(slots.acquire_blocking_timeout(timeout).unwrap_err(), Refused::TimedOut { timeout });
    assert_eq!(slots.stats().waiting, 0);
}

// --- another limit

#[test]
fn a_higher_limit_serves_those_who_wait() {
    let slots = ConcurrencyLimiter::new(1);
    let held = slots.try_acquire().unwrap();
    let waiting: Vec<_> = (0..3).map(|_| Task::waiting(slots.acquire())).collect();
    slots.resize(3);
    assert_eq!(waiting.iter().map(Task::is_woken).collect::<Vec<_>>(), [true, true, false]);
    drop((held, waiting));
    assert_at_rest(&slots, 3);
}

#[test]
fn a_lower_limit_stops_nobody_and_lets_nobody_begin() {
    let slots = ConcurrencyLimiter::new(5);
    let mut held: Vec<_> = (0..5).map(|_| slots.try_acquire().unwrap()).collect();
    slots.resize(2);
    let waiting = Task::waiting(slots.acquire());
    for in_use in [4, 3, 2] {
        held.pop();
        assert_eq!(slots.stats().in_use, in_use);
        assert!(!waiting.is_woken() && slots.try_acquire().is_err(), "with {in_use} at work");
    }
    held.pop();
    held.push(waiting.done().unwrap());
    assert_eq!(slots.stats().in_use, 2);
    drop(held);
    assert_at_rest(&slots, 2);
}

#[test]
fn who_waits_for_more_than_a_lowered_limit_is_told_and_blocks_nobody() {
    let slots = ConcurrencyLimiter::new(4);
    let held = slots.cost(2).try_acquire().unwrap();
    let large = Task::waiting(slots.cost(4).acquire());
    let small = Task::waiting(slots.acquire());
    slots.resize(3);
    assert_eq!(large.done().unwrap_err(), Refused::Never { cost: 4, limit: 3 });
    drop((small.done().unwrap(), held));
    assert_at_rest(&slots, 3);
}

#[test]
fn a_limit_of_zero_is_a_pause() {
    let slots = ConcurrencyLimiter::new(2);
    let held = slots.try_acquire().unwrap();
    slots.resize(0);
    assert_eq!(slots.try_acquire().unwrap_err().to_string(), "the limit is 0, so nobody passes; raise it");
    let large = Task::waiting(slots.cost(2).acquire());
    drop(held);
    assert!(!large.is_woken());
    slots.resize(2);
    drop(large.done().unwrap());
    assert_at_rest(&slots, 2);
    assert_eq!(ConcurrencyLimiter::new(0).stats().limit, 0);
}

#[test]
fn limits_reach_as_far_as_numbers_do() {
    let slots = ConcurrencyLimiter::new(u32::MAX);
    let all = slots.cost(u32::MAX).try_acquire().unwrap();
    slots.resize(0);
    assert_eq!(slots.stats().in_use, u64::from(u32::MAX));
    slots.resize(u32::MAX);
    assert!(slots.try_acquire().is_err());
    drop(all);
    assert_at_rest(&slots, u32::MAX);
}

// --- against a model

/// What a limiter does, in the plainest terms.
struct Model {
    limit: u32,
    in_use: u32,
    line: VecDeque<(usize, u32)>,
}

/// One who waits: its number, and what it wants.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    Granted(usize),
    Never(usize),
}

impl Model {
    fn try_acquire(&mut self, cost: u32) -> bool {
        let free = self.in_use + cost <= self.limit && self.line.is_empty();
        self.in_use += if free { cost } else { 0 };
        free
    }

    /// Calls whoever's turn it is.
    fn serve(&mut self) -> Vec<Told> {
        let mut told = Vec::new();
        while let Some(&(who, cost)) = self.line.front() {
            if self.limit > 0 && cost > self.limit {
                told.push(Told::Never(who));
            } else if self.in_use + cost <= self.limit {
                self.in_use += cost;
                told.push(Told::Granted(who));
            } else {
                break;
            }
            self.line.pop_front();
        }
        told
    }
}

/// Random walks of trying, waiting, giving up, giving back and resizing: after each step the same are served, in the
/// limiter and in the model.
#[test]
fn a_limiter_does_what_the_model_does() {
    for seed in 0..300 {
        walk(&mut Random::seeded(seed), 200);
    }
}

fn walk(random: &mut Random, steps: usize) {
    let slots = ConcurrencyLimiter::new(4);
    let mut model = Model { limit: 4, in_use: 0, line: VecDeque::new() };
    let mut held: Vec<Permit<'_>> = Vec::new();
    let mut waiting: Vec<(usize, Task<'_, Result<Permit<'_>, Refused>>)> = Vec::new();
    for step in 0..steps {
        let cost = number(random, 1, 4);
        match random.below(6) {
            0 => {
                let permit = slots.cost(cost).try_acquire();
                assert_eq!(permit.is_ok(), model.try_acquire(cost), "step {step}");
                held.extend(permit);
            }
            1 | 2 if model.limit == 0 || cost <= model.limit => {
                let (task, first) = Task::begun(slots.cost(cost).acquire());
                assert_eq!(first.is_ready(), model.try_acquire(cost), "step {step}");
                match first {
                    Poll::Ready(permit) => held.push(permit.expect("it costs no more than the limit")),
                    Poll::Pending => {
                        model.line.push_back((step, cost));
                        waiting.push((step, task));
                    }
                }
            }
            3 if !waiting.is_empty() => {
                let (who, task) = waiting.swap_remove(one_of(waiting.len(), random));
                drop(task);
                model.line.retain(|(other, _)| *other != who);
            }
            4 if random.one_in(3) => {
                let limit = number(random, 0, 5);
                slots.resize(limit);
                model.limit = limit;
            }
            _ if !held.is_empty() => {
                let permit = held.swap_remove(one_of(held.len(), random));
                model.in_use -= permit.cost();
                drop(permit);
            }
            _ => {}
        }
        for told in model.serve() {
            let (Told::Granted(who) | Told::Never(who)) = told;
            let place = waiting.iter().position(|(other, _)| *other == who).expect("it waits");
            let outcome = waiting.swap_remove(place).1.done();
            assert_eq!(outcome.is_ok(), told == Told::Granted(who), "step {step}: {outcome:?}");
            held.extend(outcome);
        }
        assert!(waiting.iter().all(|(_, task)| !task.is_woken()), "step {step}: too many were called");
        let stats = slots.stats();
        assert_eq!(
            (stats.limit, stats.in_use, stats.waiting),
            (model.limit, model.in_use.into(), model.line.len())
        );
    }
    drop((held, waiting));
    assert_at_rest(&slots, model.limit);
}

// --- many threads

/// Counts those at work, and remembers the most there were.
#[derive(Default)]
struct AtWork {
    now: AtomicU64,
    most: AtomicU64,
}

impl AtWork {
    fn work(&self, cost: u32) {
        let now = self.now.fetch_add(cost.into(), Ordering::SeqCst) + u64::from(cost);
        self.most.fetch_max(now, Ordering::SeqCst);
        thread::yield_now();
        self.now.fetch_sub(cost.into(), Ordering::SeqCst);
    }
}

#[test]
fn a_hundred_threads_never_exceed_the_limit_and_lose_nothing() {
    const THREADS: u32 = 100;
    const EACH: u32 = 1_000;
    let (slots, at_work) = (ConcurrencyLimiter::new(7), AtWork::default());
    let start = Barrier::new(100);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (slots, at_work, start) = (&slots, &at_work, &start);
            scope.spawn(move || {
                let mut random = Random::seeded(thread.into());
                start.wait();
                for _ in 0..EACH {
                    let cost = number(&mut random, 1, 3);
                    let permit = match slots.cost(cost).try_acquire() {
                        Ok(permit) => permit,
                        Err(_) => slots.cost(cost).acquire_blocking().unwrap(),
                    };
                    at_work.work(cost);
                    permit.succeeded();
                }
            });
        }
    });
    assert!(at_work.most.load(Ordering::SeqCst) <= 7);
    assert_eq!(slots.stats().endings.succeeded, u64::from(THREADS * EACH));
    assert_at_rest(&slots, 7);
}

/// Time-outs, cancelled tasks and changes of the limit, all at once. Whatever happens, in the end everything is there.
#[test]
fn nothing_is_lost_while_waits_are_given_up_and_limits_change() {
    let clock = ManualClock::new();
    let slots = ConcurrencyLimiter::new(3).with_clock(clock.clone());
    let at_work = AtWork::default();
    let busy = AtomicU32::new(8);
    thread::scope(|scope| {
        for thread in 0..8 {
            let (slots, at_work, busy) = (&slots, &at_work, &busy);
            scope.spawn(move || {
                let mut random = Random::seeded(thread);
                for _ in 0..2_000 {
                    match random.below(3) {
                        0 => {
                            drop(slots.acquire_blocking_timeout(Duration::from_micros(random.between(1, 5))))
                        }
                        1 => drop(Task::begun(slots.cost(2).acquire())),
                        _ => {
                            let permit = slots.acquire_blocking_timeout(Duration::from_micros(50));
                            permit.is_ok().then(|| at_work.work(1));
                        }
                    }
                }
                busy.fetch_sub(1, Ordering::SeqCst);
            });
        }
        let mut random = Random::seeded(99);
        while busy.load(Ordering::SeqCst) > 0 {
            clock.advance(Duration::from_micros(1));
            slots.resize(number(&mut random, 1, 3));
            thread::yield_now();
        }
    });
    assert!(at_work.most.load(Ordering::SeqCst) <= 3, "the highest limit there was");
    slots.resize(3);
    assert_at_rest(&slots, 3);
}

// --- keys

#[test]
fn each_key_has_its_own_slots_and_its_entry_goes_with_the_last_permit() {
    let slots = KeyedConcurrencyLimiter::<String>::new(2);
    let alice = slots.try_acquire("alice").unwrap();
    let both = slots.cost(2).try_acquire("bob").unwrap();
    assert_eq!(slots.try_acquire("bob").unwrap_err(), Refused::Busy { cost: 1, limit: 2 });
    assert_eq!(slots.stats().keys, 2);
    let again = slots.try_acquire("alice").unwrap();
    alice.succeeded();
    assert_eq!(slots.stats().keys, 2);
    again.overloaded();
    assert_eq!(slots.stats().keys, 1);
    drop(both);
    let stats = slots.stats();
    assert_eq!((stats.keys, stats.limit), (0, 2));
    assert_eq!((stats.endings.succeeded, stats.endings.overloaded, stats.endings.dropped), (1, 1, 1));
}

#[test]
fn who_is_refused_leaves_no_entry() {
    let slots = KeyedConcurrencyLimiter::<u64>::new(2);
    assert_eq!(slots.cost(3).try_acquire(&1).unwrap_err(), Refused::Never { cost: 3, limit: 2 });
    assert_eq!(slots.stats().keys, 0);
    slots.resize(0);
    assert_eq!(slots.try_acquire(&1).unwrap_err(), Refused::Busy { cost: 1, limit: 0 });
    assert_eq!(slots.stats().keys, 0);
}

#[test]
fn the_number_of_keys_is_bounded() {
    let slots = KeyedConcurrencyLimiter::<u64>::new(2).max_keys(2);
    let (one, two) = (slots.try_acquire(&1).unwrap(), slots.try_acquire(&2).unwrap());
    assert_eq!(slots.try_acquire(&3).unwrap_err(), Refused::TooManyKeys { max_keys: 2 });
    let more = slots.try_acquire(&1).expect("a key that is there is not another");
    drop(one);
    assert!(slots.try_acquire(&3).is_err(), "somebody is still there");
    drop(more);
    assert!(slots.try_acquire(&3).is_ok());
    drop(two);
    assert_eq!(slots.stats().keys, 0);
}

#[test]
fn who_waits_for_a_key_keeps_its_entry() {
    let slots = KeyedConcurrencyLimiter::<str>::new(1).max_waiting(1);
    let held = slots.try_acquire("alice").unwrap();
    let waiting = Task::waiting(slots.acquire("alice"));
    let (_, full) = Task::begun(slots.acquire("alice"));
    assert!(matches!(full, Poll::Ready(Err(Refused::LineFull { max_waiting: 1 }))));
    drop(held);
    assert_eq!(slots.stats().keys, 1);
    drop(waiting);
    assert_eq!(slots.stats().keys, 0);
}

#[test]
fn another_limit_is_for_all_keys_there_are_and_will_be() {
    let slots = KeyedConcurrencyLimiter::<u64>::new(1);
    let held: Vec<_> = (0..100).map(|key| slots.try_acquire(&key).unwrap()).collect();
    let keys: Vec<u64> = (0..100).collect();
    let waiting: Vec<_> = keys.iter().map(|key| Task::waiting(slots.acquire(key))).collect();
    slots.resize(2);
    let more: Vec<KeyedPermit> = waiting.into_iter().map(|task| task.done().unwrap()).collect();
    assert!(slots.try_acquire(&7).is_err());
    assert!(slots.cost(2).try_acquire(&100).is_ok());
    drop((held, more));
    assert_eq!(slots.stats().keys, 0);
}

#[test]
fn a_key_waits_so_long_and_no_longer() {
    let clock = ManualClock::new();
    let slots = KeyedConcurrencyLimiter::<u64>::new(1).with_clock(clock.clone());
    let held = slots.acquire_blocking(&1).unwrap();
    let task = Task::waiting(slots.acquire_timeout(&1, SECOND));
    clock.advance(SECOND);
    assert_eq!(task.done().unwrap_err(), Refused::TimedOut { timeout: SECOND });
    let timeout = Duration::ZERO;
    assert_eq!(slots.acquire_blocking_timeout(&1, timeout).unwrap_err(), Refused::TimedOut { timeout });
    drop(held);
    assert_eq!(slots.stats().keys, 0);
}

#[test]
fn many_threads_at_few_keys_never_exceed_the_limit_and_leave_nothing() {
    let slots = KeyedConcurrencyLimiter::<u64>::new(2).max_keys(4);
    let at_work: [AtWork; 4] = Default::default();
    thread::scope(|scope| {
        for thread in 0..8 {
            let (slots, at_work) = (&slots, &at_work);
            scope.spawn(move || {
                let mut random = Random::seeded(thread);
                for _ in 0..3_000 {
                    let key = one_of(4, &mut random);
                    let permit = slots.acquire_blocking(&(key as u64)).unwrap();
                    at_work[key].work(1);
                    permit.succeeded();
                }
            });
        }
    });
    assert!(at_work.iter().all(|key| key.most.load(Ordering::SeqCst) <= 2));
    assert_eq!((slots.stats().keys, slots.stats().endings.succeeded), (0, 24_000));
}

// --- on tokio

#[cfg(feature = "tokio")]
mod on_tokio {
    use super::{
        Arc, ConcurrencyLimiter, Duration, KeyedConcurrencyLimiter, Refused, SECOND, assert_at_rest,
    };
    use std::sync::Mutex;
    use tidegate::{Clock, TokioClock};

    /// Two at a time, ten holders of 3 s each: a pair every 3 s.
    #[tokio::test(start_paused = true)]
    async fn ten_holders_of_three_seconds_run_in_five_pairs() {
        let slots = ConcurrencyLimiter::new(2);
        let (clock, begun) = (TokioClock::new(), Arc::new(Mutex::new(Vec::new())));
        let holders: Vec<_> = (0..10)
            .map(|_| {
                let (slots, begun) = (slots.clone(), begun.clone());
                tokio::spawn(async move {
                    let permit = slots.acquire().await.unwrap();
                    begun.lock().unwrap().push(clock.now().get() / 1_000_000);
                    tokio::time::sleep(3 * SECOND).await;
                    permit.succeeded();
                })
            })
            .collect();
        for holder in holders {
            holder.await.unwrap();
        }
        assert_eq!(*begun.lock().unwrap(), [0, 0, 3, 3, 6, 6, 9, 9, 12, 12]);
        assert_at_rest(&slots, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_time_out_is_up_when_tokio_says_so() {
        let slots = ConcurrencyLimiter::new(1).with_clock(TokioClock::new());
        let held = slots.acquire().await.unwrap().into_owned();
        assert_eq!(
            slots.acquire_timeout(2 * SECOND).await.unwrap_err(),
            Refused::TimedOut { timeout: 2 * SECOND }
        );
        tokio::spawn(async move {
            tokio::time::sleep(SECOND).await;
            drop(held);
        });
        assert!(slots.acquire_timeout(2 * SECOND).await.is_ok());
        assert_at_rest(&slots, 1);
    }

    /// The steady clock says how long, tokio's timers tell when.
    #[tokio::test(start_paused = true)]
    async fn on_the_steady_clock_the_timers_are_tokios() {
        let slots = KeyedConcurrencyLimiter::<str>::new(1);
        let _held = slots.acquire("alice").await.unwrap();
        let timeout = Duration::from_secs(3_600);
        assert_eq!(slots.acquire_timeout("alice", timeout).await.unwrap_err(), Refused::TimedOut { timeout });
    }

    #[tokio::test(start_paused = true)]
    async fn an_aborted_task_gives_back_its_permit_or_its_place() {
        let slots = ConcurrencyLimiter::new(1);
        let task = || {
            let slots = slots.clone();
            tokio::spawn(async move {
                let _permit = slots.acquire().await.unwrap();
                std::future::pending::<()>().await;
            })
        };
        let (holder, waiter) = (task(), task());
        tokio::task::yield_now().await;
        assert_eq!((slots.stats().in_use, slots.stats().waiting), (1, 1));
        waiter.abort();
        assert!(waiter.await.unwrap_err().is_cancelled());
        holder.abort();
        assert!(holder.await.unwrap_err().is_cancelled());
        assert_at_rest(&slots, 1);
    }

    #[test]
    fn a_runtime_that_shuts_down_gives_everything_back() {
        for threads in [1, 4] {
            let slots = ConcurrencyLimiter::new(3);
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(threads).build().unwrap();
            for _ in 0..50 {
                let slots = slots.clone();
                runtime.spawn(async move {
                    let _permit = slots.cost(2).acquire().await.unwrap();
                    std::future::pending::<()>().await;
                });
            }
            super::until(|| slots.stats().waiting == 49);
            drop(runtime);
            assert_at_rest(&slots, 3);
        }
    }

    #[test]
    fn a_task_that_panics_gives_its_permit_back() {
        let slots = ConcurrencyLimiter::new(1);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let same = slots.clone();
        let panicked = runtime.block_on(runtime.spawn(async move {
            let _permit = same.acquire().await.unwrap();
            panic!("the work went wrong");
        }));
        assert!(panicked.unwrap_err().is_panic());
        assert_at_rest(&slots, 1);
    }
}
