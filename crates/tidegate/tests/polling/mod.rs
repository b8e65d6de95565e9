//! Waits that are polled by hand, and a limiter with its quota used up.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tidegate::algorithm::{Algorithm, TokenBucket};
use tidegate::{AcquireError, Decision, Limiter, ManualClock, Quota};

pub(crate) const MS: u64 = 1_000;

pub(crate) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) type Answer = Result<Decision, AcquireError>;
pub(crate) type WaitFuture<'a> = Pin<Box<dyn Future<Output = Answer> + 'a>>;

/// Polls a wait once; `None` while pending.
pub(crate) fn poll_once(wait: &mut WaitFuture<'_>) -> Option<Answer> {
    match wait.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Some(answer),
        Poll::Pending => None,
    }
}

pub(crate) fn wait<'a, A: Algorithm>(limiter: &'a Limiter<A, ManualClock>, cost: u32) -> WaitFuture<'a> {
    Box::pin(async move { limiter.request().cost(cost).acquire().await })
}

/// A wait that was polled once and is pending.
pub(crate) fn pending_wait<'a, A: Algorithm>(
    limiter: &'a Limiter<A, ManualClock>,
    cost: u32,
) -> WaitFuture<'a> {
    let mut wait = wait(limiter, cost);
    assert!(poll_once(&mut wait).is_none(), "no quota is left");
    wait
}

/// Asserts the kind and the message of a refusal.
#[track_caller]
pub(crate) fn assert_refused(error: &AcquireError, kind: fn(&AcquireError) -> bool, message: &str) {
    assert!(kind(error), "{error:?}");
    assert_eq!(error.to_string(), message);
}

/// Asserts that a polled wait was refused because it would take too long.
#[track_caller]
pub(crate) fn assert_too_long(polled: Option<Answer>, message: &str) {
    assert_refused(&polled.expect("ready").expect_err("too long"), AcquireError::is_timeout, message);
}

pub(crate) fn retry(decision: Decision) -> u64 {
    decision.retry_after().expect("denied for now").as_micros()
}

/// Ten per second with a burst of one, which is used up.
pub(crate) fn exhausted() -> (Limiter<TokenBucket, ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    let limiter = Limiter::builder(Quota::per_second(10).burst(1)).clock(clock.clone()).build();
    assert!(limiter.check().is_allowed());
    (limiter, clock)
}

/// Counts the wakes of a task.
#[derive(Default)]
pub(crate) struct WakeCount(AtomicU32);

impl Wake for WakeCount {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl WakeCount {
    pub(crate) fn count(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// Polls a pending wait and registers this waker for it.
    pub(crate) fn poll_pending(self: &Arc<Self>, wait: &mut WaitFuture<'_>) {
        let waker = Waker::from(self.clone());
        assert!(
            wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending(),
            "the wait is not ready yet"
        );
    }
}
