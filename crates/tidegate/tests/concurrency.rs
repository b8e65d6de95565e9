//! Concurrency limiters on a manual clock.

#[allow(dead_code, reason = "shared by several files of tests, each of which uses a part")]
mod permit_tasks;
#[allow(dead_code, reason = "written for the core's tests, which use all of it")]
#[path = "../../tidegate-core/tests/random/mod.rs"]
mod random;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::thread;
use std::time::Duration;

use permit_tasks::{SECOND, Task, assert_at_rest, assert_refused, until};
use tidegate::{AcquireError, ConcurrencyLimiter, ManualClock, Permit, SteadyClock};

/// Polls a wait once, which is refused.
fn refused_at_once<'a, T: std::fmt::Debug>(
    wait: impl Future<Output = Result<T, AcquireError>> + Send + 'a,
) -> AcquireError {
    match Task::polled(wait).1 {
        Poll::Ready(refused) => refused.expect_err("refused"),
        Poll::Pending => panic!("the task waits"),
    }
}

// --- without waiting

#[test]
fn no_more_permits_than_the_limit() {
    let slots = ConcurrencyLimiter::new(3);
    let permits: Vec<_> = (0..3).map(|_| slots.try_acquire().unwrap()).collect();
    let message = "1 of 3 permits are not available: too few are free, \
                   or earlier requests wait for them; retry later or wait";
    assert_refused(&slots.try_acquire().unwrap_err(), AcquireError::is_busy, message);
    assert_eq!(slots.clone().stats().in_use, 3, "clones share the permits");
    drop(permits);
    assert_at_rest(&slots, 3);
}

#[test]
fn permit_occupies_its_cost() {
    let slots = ConcurrencyLimiter::new(10);
    let large = slots.request().cost(7).try_acquire().unwrap();
    assert_eq!(large.cost(), 7);
    let message = "4 of 10 permits are not available: too few are free, \
                   or earlier requests wait for them; retry later or wait";
    assert_refused(&slots.request().cost(4).try_acquire().unwrap_err(), AcquireError::is_busy, message);
    let rest = slots.request().cost(3).try_acquire().unwrap();
    assert_eq!(slots.stats().in_use, 10);
    assert!(slots.request().cost(0).try_acquire().is_ok(), "a cost of 0 is always allowed");
    drop((large, rest));
    assert_at_rest(&slots, 10);
}

#[test]
fn cost_above_the_limit_is_refused_as_never() {
    let slots = ConcurrencyLimiter::builder(2).clock(ManualClock::new()).build();
    let never = slots.request().cost(3).try_acquire().unwrap_err();
    let message = "cost 3 exceeds the limit of 2: it can never be allowed; use 2 or less";
    assert_refused(&never, AcquireError::is_never, message);
    assert_eq!(slots.request().cost(3).acquire_blocking().unwrap_err(), never);
    assert_eq!(slots.request().cost(3).timeout(SECOND).acquire_blocking().unwrap_err(), never);
    assert_eq!(slots.request().cost(3).timeout(Duration::ZERO).acquire_blocking().unwrap_err(), never);
    assert!(
        matches!(Task::polled(slots.request().cost(3).acquire()).1, Poll::Ready(Err(refused)) if refused == never)
    );
    assert_at_rest(&slots, 2);
}

#[test]
fn refusal_is_true_if_permits_are_free_but_earlier_requests_wait() {
    let slots = ConcurrencyLimiter::new(8);
    let held = slots.request().cost(5).try_acquire().unwrap();
    let (waiter, polled) = Task::polled(slots.request().cost(5).acquire());
    assert!(polled.is_pending(), "3 of 8 are free");
    let message = "1 of 8 permits are not available: too few are free, or earlier requests wait for them; \
                   retry later or wait";
    assert_refused(&slots.try_acquire().unwrap_err(), AcquireError::is_busy, message);
    drop(waiter);
    assert!(slots.try_acquire().is_ok(), "no request waits any more");
    drop(held);
    assert_at_rest(&slots, 8);
}

#[test]
fn permit_endings_are_counted_by_kind() {
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
fn panic_releases_the_permit() {
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
fn owned_permit_outlives_its_limiter() {
    let slots = ConcurrencyLimiter::new(1);
    let same = slots.clone();
    let permit = slots.try_acquire().unwrap().into_owned();
    drop(slots);
    assert_eq!(same.stats().in_use, 1);
    thread::spawn(move || drop(permit)).join().unwrap();
    assert_at_rest(&same, 1);
}

// --- in the queue

#[test]
fn waiters_are_served_in_order() {
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

/// If small requests could overtake, three permits would never be free together.
#[test]
fn large_request_is_not_starved_by_small_ones() {
    let slots = ConcurrencyLimiter::new(4);
    let mut small: VecDeque<_> = (0..4).map(|_| slots.try_acquire().unwrap()).collect();
    let large = Task::waiting(slots.request().cost(3).acquire());
    let behind = Task::waiting(slots.acquire());
    for freed in 1..3 {
        small.pop_front();
        let Err(busy) = slots.try_acquire() else {
            panic!("{freed} free permits are kept for the large waiter");
        };
        let message = "1 of 4 permits are not available: too few are free, \
                       or earlier requests wait for them; retry later or wait";
        assert_refused(&busy, AcquireError::is_busy, message);
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
fn release_wakes_every_waiter_it_suffices_for() {
    let slots = ConcurrencyLimiter::new(4);
    let held = slots.request().cost(4).try_acquire().unwrap();
    let waiting: Vec<_> = [1, 2, 2].map(|cost| Task::waiting(slots.request().cost(cost).acquire())).into();
    drop(held);
    assert_eq!(waiting.iter().map(Task::is_woken).collect::<Vec<_>>(), [true, true, false]);
}

#[test]
fn dropped_waiter_frees_its_queue_position_immediately() {
    let slots = ConcurrencyLimiter::builder(2).max_waiting(2).build();
    let held = slots.try_acquire().unwrap();
    let large = Task::waiting(slots.request().cost(2).acquire());
    let small = Task::waiting(slots.acquire());
    let message = "the queue is full: 2 requests are waiting; retry later";
    assert_refused(&refused_at_once(slots.acquire()), AcquireError::is_queue_full, message);
    drop(large);
    let small = small.done().expect("one permit was free all the time");
    assert_eq!(slots.stats().waiting, 0);
    drop((held, small));
    assert_at_rest(&slots, 2);
}

#[test]
fn permit_granted_to_a_dropped_waiter_goes_to_the_next() {
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
fn future_that_is_never_polled_takes_no_permit() {
    let slots = ConcurrencyLimiter::new(1);
    drop(slots.acquire());
    assert_at_rest(&slots, 1);
}

#[test]
fn waiter_polled_by_another_task_is_woken_there() {
    let slots = ConcurrencyLimiter::new(1);
    let held = slots.try_acquire().unwrap();
    let mut task = Task::waiting(slots.acquire());
    let before = std::mem::take(&mut task.wakes);
    assert!(task.poll().is_pending());
    drop(held);
    assert_eq!(before.0.load(Ordering::Relaxed), 0);
    drop(task.done().unwrap());
}

#[test]
fn max_waiting_of_zero_refuses_every_wait() {
    let slots = ConcurrencyLimiter::builder(1).max_waiting(0).build();
    let held = slots.request().acquire_blocking().unwrap();
    let refused = slots.request().acquire_blocking().unwrap_err();
    let message = "the queue is full: 0 requests are waiting; retry later";
    assert_refused(&refused, AcquireError::is_queue_full, message);
    drop(held);
    assert_at_rest(&slots, 1);
}

// --- timeouts

#[test]
fn task_times_out_exactly_at_its_deadline() {
    let clock = ManualClock::new();
    let slots = ConcurrencyLimiter::builder(1).clock(clock.clone()).build();
    let held = slots.try_acquire().unwrap();
    let mut late = Task::waiting(slots.request().timeout(SECOND).acquire());
    let in_time = Task::waiting(slots.request().timeout(2 * SECOND).acquire());
    clock.advance(SECOND - Duration::from_micros(1));
    assert!(late.poll().is_pending());
    clock.advance(Duration::from_micros(1));
    let message = "timed out after 1s; retry later or use a longer timeout";
    assert_refused(&late.done().unwrap_err(), AcquireError::is_timeout, message);
    assert_eq!(slots.stats().waiting, 1, "it has left the queue");
    drop(held);
    clock.advance(SECOND);
    drop(in_time.done().expect("it was granted before its deadline, although polled later"));
    assert_at_rest(&slots, 1);
}

#[test]
fn zero_timeout_is_refused_immediately_without_queueing() {
    let slots = ConcurrencyLimiter::builder(1).max_waiting(0).clock(ManualClock::new()).build();
    let held = slots.try_acquire().unwrap();
    let request = || slots.request().timeout(Duration::ZERO);
    let message = "timed out after 0ns; retry later or use a longer timeout";
    assert_refused(&request().acquire_blocking().unwrap_err(), AcquireError::is_timeout, message);
    assert_refused(&refused_at_once(request().acquire()), AcquireError::is_timeout, message);
    drop(held);
    assert!(request().acquire_blocking().is_ok(), "a free permit needs no wait");
}

#[test]
fn clock_wakes_a_blocked_thread() {
    let clock = ManualClock::new();
    let slots = ConcurrencyLimiter::builder(1).clock(clock.clone()).build();
    let _held = slots.try_acquire().unwrap();
    thread::scope(|scope| {
        let blocked = scope.spawn(|| slots.request().timeout(SECOND).acquire_blocking().map(drop));
        until(|| slots.stats().waiting == 1);
        clock.advance(SECOND);
        let message = "timed out after 1s; retry later or use a longer timeout";
        assert_refused(&blocked.join().unwrap().unwrap_err(), AcquireError::is_timeout, message);
    });
    assert_eq!(slots.stats().waiting, 0);
}

#[test]
fn release_wakes_a_blocked_thread() {
    let slots = ConcurrencyLimiter::builder(1).clock(ManualClock::new()).build();
    for wait in [
        (|slots| slots.request().acquire_blocking())
            as fn(&ConcurrencyLimiter<ManualClock>) -> Result<Permit<'_>, AcquireError>,
        |slots| slots.request().timeout(SECOND).acquire_blocking(),
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
fn steady_clock_wakes_a_blocked_thread() {
    let slots = ConcurrencyLimiter::builder(1).clock(SteadyClock::new()).build();
    let _held = slots.try_acquire().unwrap();
    let timeout = Duration::from_micros(10);
    let refused = slots.request().timeout(timeout).acquire_blocking().unwrap_err();
    let message = "timed out after 10µs; retry later or use a longer timeout";
    assert_refused(&refused, AcquireError::is_timeout, message);
    assert_eq!(slots.stats().waiting, 0);
}

// --- changed limits

#[test]
fn raising_the_limit_wakes_waiters() {
    let slots = ConcurrencyLimiter::new(1);
    let held = slots.try_acquire().unwrap();
    let waiting: Vec<_> = (0..3).map(|_| Task::waiting(slots.acquire())).collect();
    slots.resize(3);
    assert_eq!(waiting.iter().map(Task::is_woken).collect::<Vec<_>>(), [true, true, false]);
    drop((held, waiting));
    assert_at_rest(&slots, 3);
}

#[test]
fn lowering_the_limit_keeps_held_permits_and_grants_no_new_ones() {
    let slots = ConcurrencyLimiter::new(5);
    let mut held: Vec<_> = (0..5).map(|_| slots.try_acquire().unwrap()).collect();
    slots.resize(2);
    let waiting = Task::waiting(slots.acquire());
    for in_use in [4, 3, 2] {
        held.pop();
        assert_eq!(slots.stats().in_use, in_use);
        assert!(!waiting.is_woken() && slots.try_acquire().is_err(), "with {in_use} in use");
    }
    held.pop();
    held.push(waiting.done().unwrap());
    assert_eq!(slots.stats().in_use, 2);
    drop(held);
    assert_at_rest(&slots, 2);
}

#[test]
fn waiter_above_a_lowered_limit_is_refused_and_blocks_no_other() {
    let slots = ConcurrencyLimiter::new(4);
    let held = slots.request().cost(2).try_acquire().unwrap();
    let large = Task::waiting(slots.request().cost(4).acquire());
    let small = Task::waiting(slots.acquire());
    slots.resize(3);
    let message = "cost 4 exceeds the limit of 3: it can never be allowed; use 3 or less";
    assert_refused(&large.done().unwrap_err(), AcquireError::is_never, message);
    drop((small.done().unwrap(), held));
    assert_at_rest(&slots, 3);
}

#[test]
fn limit_of_zero_pauses_waiters() {
    let slots = ConcurrencyLimiter::new(2);
    let held = slots.try_acquire().unwrap();
    slots.resize(0);
    assert_eq!(
        slots.try_acquire().unwrap_err().to_string(),
        "the limit is 0, so no request is allowed; raise it"
    );
    let large = Task::waiting(slots.request().cost(2).acquire());
    drop(held);
    assert!(!large.is_woken());
    slots.resize(2);
    drop(large.done().unwrap());
    assert_at_rest(&slots, 2);
    assert_eq!(ConcurrencyLimiter::new(0).stats().limit, 0);
}

#[test]
fn limit_can_be_the_largest_u32() {
    let slots = ConcurrencyLimiter::new(u32::MAX);
    let all = slots.request().cost(u32::MAX).try_acquire().unwrap();
    slots.resize(0);
    assert_eq!(slots.stats().in_use, u64::from(u32::MAX));
    slots.resize(u32::MAX);
    assert!(slots.try_acquire().is_err());
    drop(all);
    assert_at_rest(&slots, u32::MAX);
}
