//! Concurrency limits per key.

#[allow(dead_code, reason = "shared by several files of tests, each of which uses a part")]
mod permit_tasks;
#[allow(dead_code, reason = "written for the core's tests, which use all of it")]
#[path = "../../tidegate-core/tests/random/mod.rs"]
mod random;

use std::sync::atomic::Ordering;
use std::task::Poll;
use std::thread;
use std::time::Duration;

use permit_tasks::{InProgress, SECOND, Task, assert_refused, one_of};
use random::Random;
use tidegate::{AcquireError, KeyedConcurrencyLimiter, KeyedPermit, ManualClock};

#[test]
fn each_key_has_its_own_permits_and_its_entry_ends_with_the_last_one() {
    let slots = KeyedConcurrencyLimiter::<String>::new(2);
    let alice = slots.try_acquire("alice").unwrap();
    let both = slots.request("bob").cost(2).try_acquire().unwrap();
    let message = "1 of 2 permits are not available: too few are free, \
                   or earlier requests wait for them; retry later or wait";
    assert_refused(&slots.try_acquire("bob").unwrap_err(), AcquireError::is_busy, message);
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
fn refused_request_leaves_no_entry() {
    let slots = KeyedConcurrencyLimiter::<u64>::new(2);
    let message = "cost 3 exceeds the limit of 2: it can never be allowed; use 2 or less";
    assert_refused(&slots.request(&1).cost(3).try_acquire().unwrap_err(), AcquireError::is_never, message);
    assert_eq!(slots.stats().keys, 0);
    slots.resize(0);
    let message = "the limit is 0, so no request is allowed; raise it";
    assert_refused(&slots.try_acquire(&1).unwrap_err(), AcquireError::is_busy, message);
    assert_eq!(slots.stats().keys, 0);
}

#[test]
fn number_of_keys_is_bounded() {
    let slots = KeyedConcurrencyLimiter::<u64>::builder(2).max_keys(2).build();
    let (one, two) = (slots.try_acquire(&1).unwrap(), slots.try_acquire(&2).unwrap());
    let message = "the maximum number of keys is in use; retry later";
    assert_refused(&slots.try_acquire(&3).unwrap_err(), AcquireError::is_closed, message);
    let more = slots.try_acquire(&1).expect("a present key takes no new entry");
    drop(one);
    assert!(slots.try_acquire(&3).is_err(), "a permit of key 1 is still held");
    drop(more);
    assert!(slots.try_acquire(&3).is_ok());
    drop(two);
    assert_eq!(slots.stats().keys, 0);
}

#[test]
fn waiter_keeps_the_entry_of_its_key() {
    let slots = KeyedConcurrencyLimiter::<str>::builder(1).max_waiting(1).build();
    let held = slots.try_acquire("alice").unwrap();
    let waiting = Task::waiting(slots.acquire("alice"));
    let (_, full) = Task::polled(slots.acquire("alice"));
    let Poll::Ready(Err(full)) = full else { panic!("the queue is full") };
    let message = "the queue is full: 1 requests are waiting; retry later";
    assert_refused(&full, AcquireError::is_queue_full, message);
    drop(held);
    assert_eq!(slots.stats().keys, 1);
    drop(waiting);
    assert_eq!(slots.stats().keys, 0);
}

#[test]
fn resize_applies_to_present_and_future_keys() {
    let slots = KeyedConcurrencyLimiter::<u64>::new(1);
    let held: Vec<_> = (0..100).map(|key| slots.try_acquire(&key).unwrap()).collect();
    let keys: Vec<u64> = (0..100).collect();
    let waiting: Vec<_> = keys.iter().map(|key| Task::waiting(slots.acquire(key))).collect();
    slots.resize(2);
    let more: Vec<KeyedPermit> = waiting.into_iter().map(|task| task.done().unwrap()).collect();
    assert!(slots.try_acquire(&7).is_err());
    assert!(slots.request(&100).cost(2).try_acquire().is_ok());
    drop((held, more));
    assert_eq!(slots.stats().keys, 0);
}

#[test]
fn wait_for_a_key_times_out() {
    let clock = ManualClock::new();
    let slots = KeyedConcurrencyLimiter::<u64>::builder(1).clock(clock.clone()).build();
    let held = slots.request(&1).acquire_blocking().unwrap();
    let task = Task::waiting(slots.request(&1).timeout(SECOND).acquire());
    clock.advance(SECOND);
    let message = "timed out after 1s; retry later or use a longer timeout";
    assert_refused(&task.done().unwrap_err(), AcquireError::is_timeout, message);
    let refused = slots.request(&1).timeout(Duration::ZERO).acquire_blocking().unwrap_err();
    let message = "timed out after 0ns; retry later or use a longer timeout";
    assert_refused(&refused, AcquireError::is_timeout, message);
    drop(held);
    assert_eq!(slots.stats().keys, 0);
}

#[test]
fn threads_on_few_keys_never_exceed_the_limit_and_leave_no_entry() {
    let slots = KeyedConcurrencyLimiter::<u64>::builder(2).max_keys(4).build();
    let in_progress: [InProgress; 4] = Default::default();
    thread::scope(|scope| {
        for thread in 0..8 {
            let (slots, in_progress) = (&slots, &in_progress);
            scope.spawn(move || {
                let mut random = Random::seeded(thread);
                for _ in 0..3_000 {
                    let key = one_of(4, &mut random);
                    let permit = slots.request(&(key as u64)).acquire_blocking().unwrap();
                    in_progress[key].work(1);
                    permit.succeeded();
                }
            });
        }
    });
    assert!(in_progress.iter().all(|key| key.peak.load(Ordering::SeqCst) <= 2));
    assert_eq!((slots.stats().keys, slots.stats().endings.succeeded), (0, 24_000));
}
