//! Helpers of the concurrency tests: tasks that are polled by hand, and a count of permits in progress.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use tidegate::clock::Clock;
use tidegate::{AcquireError, ConcurrencyLimiter};

use crate::random::Random;

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// Counts the wakes of a task.
#[derive(Default)]
pub(crate) struct WakeCount(pub(crate) AtomicU32);

impl Wake for WakeCount {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A future that the test polls by hand.
pub(crate) struct Task<'a, T> {
    future: Pin<Box<dyn Future<Output = T> + Send + 'a>>,
    pub(crate) wakes: Arc<WakeCount>,
}

impl<'a, T> Task<'a, T> {
    /// Polls the future once.
    pub(crate) fn polled(future: impl Future<Output = T> + Send + 'a) -> (Self, Poll<T>) {
        let mut task = Task { future: Box::pin(future), wakes: Arc::default() };
        let first = task.poll();
        (task, first)
    }

    /// A task that is pending after its first poll.
    pub(crate) fn waiting(future: impl Future<Output = T> + Send + 'a) -> Self {
        let (task, first) = Task::polled(future);
        assert!(first.is_pending(), "the task has to wait");
        task
    }

    pub(crate) fn poll(&mut self) -> Poll<T> {
        let waker = Waker::from(self.wakes.clone());
        self.future.as_mut().poll(&mut Context::from_waker(&waker))
    }

    pub(crate) fn is_woken(&self) -> bool {
        self.wakes.0.load(Ordering::Relaxed) > 0
    }

    /// Returns the output of a woken task.
    pub(crate) fn done(mut self) -> T {
        assert!(self.is_woken(), "the task was not woken");
        match self.poll() {
            Poll::Ready(output) => output,
            Poll::Pending => panic!("the task was woken but is not ready"),
        }
    }
}

/// Spins until another thread has reached a state, without reading a clock.
pub(crate) fn until(reached: impl Fn() -> bool) {
    while !reached() {
        thread::yield_now();
    }
}

/// Asserts the kind and the message of a refusal.
#[track_caller]
pub(crate) fn assert_refused(error: &AcquireError, kind: fn(&AcquireError) -> bool, message: &str) {
    assert!(kind(error), "{error:?}");
    assert_eq!(error.to_string(), message);
}

pub(crate) fn number(random: &mut Random, first: u64, last: u64) -> u32 {
    random.between(first, last).try_into().expect("a small number")
}

/// A random index below `many`.
pub(crate) fn one_of(many: usize, random: &mut Random) -> usize {
    random.below(many as u64).try_into().expect("below many")
}

pub(crate) fn assert_at_rest<C: Clock>(slots: &ConcurrencyLimiter<C>, limit: u32) {
    let stats = slots.stats();
    assert_eq!((stats.limit, stats.in_use, stats.waiting), (limit, 0, 0));
    assert!(slots.request().cost(limit).try_acquire().is_ok(), "all permits are free");
}

/// Counts the permits in progress, and their peak.
#[derive(Default)]
pub(crate) struct InProgress {
    now: AtomicU64,
    pub(crate) peak: AtomicU64,
}

impl InProgress {
    pub(crate) fn work(&self, cost: u32) {
        let now = self.now.fetch_add(cost.into(), Ordering::SeqCst) + u64::from(cost);
        self.peak.fetch_max(now, Ordering::SeqCst);
        thread::yield_now();
        self.now.fetch_sub(cost.into(), Ordering::SeqCst);
    }
}
