//! Concurrency limiters with tokio tasks and tokio's timers.

#![cfg(feature = "tokio")]

#[allow(dead_code, reason = "shared by several files of tests, each of which uses a part")]
mod permit_tasks;
#[allow(dead_code, reason = "written for the core's tests, which use all of it")]
#[path = "../../tidegate-core/tests/random/mod.rs"]
mod random;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use permit_tasks::{SECOND, assert_at_rest, assert_refused, until};
use tidegate::clock::Clock;
use tidegate::{AcquireError, ConcurrencyLimiter, KeyedConcurrencyLimiter, TokioClock};

/// A limit of two, ten holders of 3 s each: one pair every 3 s.
#[tokio::test(start_paused = true)]
async fn ten_holders_of_three_seconds_run_in_five_pairs() {
    let slots = ConcurrencyLimiter::new(2);
    let (clock, started) = (TokioClock::new(), Arc::new(Mutex::new(Vec::new())));
    let holders: Vec<_> = (0..10)
        .map(|_| {
            let (slots, started) = (slots.clone(), started.clone());
            tokio::spawn(async move {
                let permit = slots.acquire().await.unwrap();
                started.lock().unwrap().push(clock.now().get() / 1_000_000);
                tokio::time::sleep(3 * SECOND).await;
                permit.succeeded();
            })
        })
        .collect();
    for holder in holders {
        holder.await.unwrap();
    }
    assert_eq!(*started.lock().unwrap(), [0, 0, 3, 3, 6, 6, 9, 9, 12, 12]);
    assert_at_rest(&slots, 2);
}

#[tokio::test(start_paused = true)]
async fn timeout_follows_the_clock_of_tokio() {
    let slots = ConcurrencyLimiter::builder(1).clock(TokioClock::new()).build();
    let held = slots.acquire().await.unwrap().into_owned();
    let refused = slots.request().timeout(2 * SECOND).acquire().await.unwrap_err();
    let message = "timed out after 2s; retry later or use a longer timeout";
    assert_refused(&refused, AcquireError::is_timeout, message);
    tokio::spawn(async move {
        tokio::time::sleep(SECOND).await;
        drop(held);
    });
    assert!(slots.request().timeout(2 * SECOND).acquire().await.is_ok());
    assert_at_rest(&slots, 1);
}

/// The steady clock gives the deadline, tokio's timers wake the task.
#[tokio::test(start_paused = true)]
async fn steady_clock_uses_the_timers_of_tokio() {
    let slots = KeyedConcurrencyLimiter::<str>::new(1);
    let _held = slots.acquire("alice").await.unwrap();
    let timeout = Duration::from_secs(3_600);
    let refused = slots.request("alice").timeout(timeout).acquire().await.unwrap_err();
    let message = "timed out after 3600s; retry later or use a longer timeout";
    assert_refused(&refused, AcquireError::is_timeout, message);
}

#[tokio::test(start_paused = true)]
async fn aborted_task_releases_its_permit_or_its_queue_position() {
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
fn runtime_shutdown_releases_all_permits() {
    for threads in [1, 4] {
        let slots = ConcurrencyLimiter::new(3);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).build().unwrap();
        for _ in 0..50 {
            let slots = slots.clone();
            runtime.spawn(async move {
                let _permit = slots.request().cost(2).acquire().await.unwrap();
                std::future::pending::<()>().await;
            });
        }
        until(|| slots.stats().waiting == 49);
        drop(runtime);
        assert_at_rest(&slots, 3);
    }
}

#[test]
fn panicking_task_releases_its_permit() {
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
