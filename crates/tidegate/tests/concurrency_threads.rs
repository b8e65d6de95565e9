//! Concurrency limiters: random walks compared with a plain model, and many threads.

#[allow(dead_code, reason = "shared by several files of tests, each of which uses a part")]
mod permit_tasks;
#[allow(dead_code, reason = "written for the core's tests, which use all of it")]
#[path = "../../tidegate-core/tests/random/mod.rs"]
mod random;

use std::collections::VecDeque;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use permit_tasks::{InProgress, Task, assert_at_rest, number, one_of};
use random::Random;
use tidegate::{AcquireError, ConcurrencyLimiter, ManualClock, Permit};

// --- against a model

/// A simple model of a limiter.
struct Model {
    limit: u32,
    in_use: u32,
    queue: VecDeque<(usize, u32)>,
}

/// The result of a wait, with the waiter's number.
#[derive(Debug, PartialEq, Eq)]
enum Served {
    Granted(usize),
    Never(usize),
}

impl Model {
    fn try_acquire(&mut self, cost: u32) -> bool {
        let free = self.in_use + cost <= self.limit && self.queue.is_empty();
        self.in_use += if free { cost } else { 0 };
        free
    }

    /// Serves all waiters that are next and can be served.
    fn serve(&mut self) -> Vec<Served> {
        let mut served = Vec::new();
        while let Some(&(waiter, cost)) = self.queue.front() {
            if self.limit > 0 && cost > self.limit {
                served.push(Served::Never(waiter));
            } else if self.in_use + cost <= self.limit {
                self.in_use += cost;
                served.push(Served::Granted(waiter));
            } else {
                break;
            }
            self.queue.pop_front();
        }
        served
    }
}

/// Random walks of tries, waits, dropped waits, releases and resizes: after each step the limiter and the
/// model have served the same waiters.
#[test]
fn limiter_matches_the_model() {
    for seed in 0..300 {
        walk(&mut Random::seeded(seed), 200);
    }
}

fn walk(random: &mut Random, steps: usize) {
    let slots = ConcurrencyLimiter::new(4);
    let mut model = Model { limit: 4, in_use: 0, queue: VecDeque::new() };
    let mut held: Vec<Permit<'_>> = Vec::new();
    let mut waiting: Vec<(usize, Task<'_, Result<Permit<'_>, AcquireError>>)> = Vec::new();
    for step in 0..steps {
        let cost = number(random, 1, 4);
        match random.below(6) {
            0 => {
                let permit = slots.request().cost(cost).try_acquire();
                assert_eq!(permit.is_ok(), model.try_acquire(cost), "step {step}");
                held.extend(permit);
            }
            1 | 2 if model.limit == 0 || cost <= model.limit => {
                let (task, first) = Task::polled(slots.request().cost(cost).acquire());
                assert_eq!(first.is_ready(), model.try_acquire(cost), "step {step}");
                match first {
                    Poll::Ready(permit) => held.push(permit.expect("the cost is within the limit")),
                    Poll::Pending => {
                        model.queue.push_back((step, cost));
                        waiting.push((step, task));
                    }
                }
            }
            3 if !waiting.is_empty() => {
                let (waiter, task) = waiting.swap_remove(one_of(waiting.len(), random));
                drop(task);
                model.queue.retain(|(other, _)| *other != waiter);
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
        for served in model.serve() {
            let (Served::Granted(waiter) | Served::Never(waiter)) = served;
            let index =
                waiting.iter().position(|(other, _)| *other == waiter).expect("the waiter is pending");
            let outcome = waiting.swap_remove(index).1.done();
            assert_eq!(outcome.is_ok(), served == Served::Granted(waiter), "step {step}: {outcome:?}");
            held.extend(outcome);
        }
        assert!(waiting.iter().all(|(_, task)| !task.is_woken()), "step {step}: too many waiters were woken");
        let stats = slots.stats();
        assert_eq!(
            (stats.limit, stats.in_use, stats.waiting),
            (model.limit, model.in_use.into(), model.queue.len())
        );
    }
    drop((held, waiting));
    assert_at_rest(&slots, model.limit);
}

// --- many threads

#[test]
fn hundred_threads_never_exceed_the_limit_and_lose_no_permit() {
    const THREADS: u32 = 100;
    const EACH: u32 = 1_000;
    let (slots, in_progress) = (ConcurrencyLimiter::new(7), InProgress::default());
    let start = Barrier::new(100);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (slots, in_progress, start) = (&slots, &in_progress, &start);
            scope.spawn(move || {
                let mut random = Random::seeded(thread.into());
                start.wait();
                for _ in 0..EACH {
                    let cost = number(&mut random, 1, 3);
                    let permit = match slots.request().cost(cost).try_acquire() {
                        Ok(permit) => permit,
                        Err(_) => slots.request().cost(cost).acquire_blocking().unwrap(),
                    };
                    in_progress.work(cost);
                    permit.succeeded();
                }
            });
        }
    });
    assert!(in_progress.peak.load(Ordering::SeqCst) <= 7);
    assert_eq!(slots.stats().endings.succeeded, u64::from(THREADS * EACH));
    assert_at_rest(&slots, 7);
}

/// Timeouts, dropped tasks and changes of the limit run concurrently. In the end all permits are free.
#[test]
fn no_permit_is_lost_while_waits_are_dropped_and_limits_change() {
    let clock = ManualClock::new();
    let slots = ConcurrencyLimiter::builder(3).clock(clock.clone()).build();
    let in_progress = InProgress::default();
    let busy = AtomicU32::new(8);
    thread::scope(|scope| {
        for thread in 0..8 {
            let (slots, in_progress, busy) = (&slots, &in_progress, &busy);
            scope.spawn(move || {
                let mut random = Random::seeded(thread);
                for _ in 0..2_000 {
                    match random.below(3) {
                        0 => drop(
                            slots
                                .request()
                                .timeout(Duration::from_micros(random.between(1, 5)))
                                .acquire_blocking(),
                        ),
                        1 => drop(Task::polled(slots.request().cost(2).acquire())),
                        _ => {
                            let permit =
                                slots.request().timeout(Duration::from_micros(50)).acquire_blocking();
                            permit.is_ok().then(|| in_progress.work(1));
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
    assert!(in_progress.peak.load(Ordering::SeqCst) <= 3, "the highest limit was 3");
    slots.resize(3);
    assert_at_rest(&slots, 3);
}
