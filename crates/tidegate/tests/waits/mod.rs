//! Waits that are looked at by hand, and a limiter that has to be waited for.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tidegate::{Algorithm, Decision, Limiter, ManualClock, Quota, TokenBucket, WaitRefused};

pub(crate) const MS: u64 = 1_000;

pub(crate) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) type Answer = Result<Decision, WaitRefused>;
pub(crate) type Waits<'a> = Pin<Box<dyn Future<Output = Answer> + 'a>>;

/// Looks once at a wait; `None` if it goes on.
pub(crate) fn look(wait: &mut Waits<'_>) -> Option<Answer> {
    match wait.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Some(answer),
        Poll::Pending => None,
    }
}

pub(crate) fn wait<'a, A: Algorithm>(limiter: &'a Limiter<A, ManualClock>, cost: u32) -> Waits<'a> {
    Box::pin(async move { limiter.cost(cost).acquire().await })
}

/// A wait that has begun.
pub(crate) fn begun<'a, A: Algorithm>(limiter: &'a Limiter<A, ManualClock>, cost: u32) -> Waits<'a> {
    let mut wait = wait(limiter, cost);
    assert!(look(&mut wait).is_none(), "there is nothing left for it");
    wait
}

pub(crate) fn retry(decision: Decision) -> u64 {
    decision.retry_after().expect("refused for now").as_micros()
}

/// Ten a second, one at once, and that one is gone.
pub(crate) fn used_up() -> (Limiter<TokenBucket, ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    let limiter = Limiter::new(Quota::per_second(10).burst(1)).with_clock(clock.clone());
    assert!(limiter.check().is_allowed());
    (limiter, clock)
}

/// How often somebody was woken.
#[derive(Default)]
pub(crate) struct Calls(AtomicU32);

impl Wake for Calls {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Calls {
    pub(crate) fn count(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// Looks at a wait that goes on, to be woken here from now on.
    pub(crate) fn await_turn(self: &Arc<Self>, wait: &mut Waits<'_>) {
        let waker = Waker::from(self.clone());
        assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending(), "it is not its turn yet");
    }
}
