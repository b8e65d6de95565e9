//! Many at work at once: random walks of a concurrency limiter beside a plain model of it, and crowds of threads.

#[allow(dead_code, reason = "written for the core's tests, which use all of it")]
#[path = "../../tidegate-core/tests/random/mod.rs"]
mod random;
#[allow(dead_code, reason = "shared by several files of tests, each of which uses a part")]
mod slots;

use std::collections::VecDeque;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use random::Random;
use slots::{AtWork, Task, assert_at_rest, number, one_of};
use tidegate::{ConcurrencyLimiter, ManualClock, Permit, Refused};

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
