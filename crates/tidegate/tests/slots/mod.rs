//! Tasks that are polled by hand, and a count of those at work: what tests of concurrency limiters share.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use tidegate::ConcurrencyLimiter;

use crate::random::Random;

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// How often a task was woken.
#[derive(Default)]
pub(crate) struct Calls(pub(crate) AtomicU32);

impl Wake for Calls {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A future that is polled when the test says so.
pub(crate) struct Task<'a, T> {
    future: Pin<Box<dyn Future<Output = T> + Send + 'a>>,
    pub(crate) calls: Arc<Calls>,
}

impl<'a, T> Task<'a, T> {
    /// Polled once.
    pub(crate) fn begun(future: impl Future<Output = T> + Send + 'a) -> (Self, Poll<T>) {
        let mut task = Task { future: Box::pin(future), calls: Arc::default() };
        let first = task.poll();
        (task, first)
    }

    /// One that has to wait.
    pub(crate) fn waiting(future: impl Future<Output = T> + Send + 'a) -> Self {
        let (task, first) = Task::begun(future);
        assert!(first.is_pending(), "it should have to wait");
        task
    }

    pub(crate) fn poll(&mut self) -> Poll<T> {
        let waker = Waker::from(self.calls.clone());
        self.future.as_mut().poll(&mut Context::from_waker(&waker))
    }

    pub(crate) fn is_woken(&self) -> bool {
        self.calls.0.load(Ordering::Relaxed) > 0
    }

    /// What it was woken for.
    pub(crate) fn done(mut self) -> T {
        assert!(self.is_woken(), "it should have been woken");
        match self.poll() {
            Poll::Ready(output) => output,
            Poll::Pending => panic!("it should have been woken for a reason"),
        }
    }
}

/// Waits until another thread has got so far, without looking at a clock.
pub(crate) fn until(reached: impl Fn() -> bool) {
    while !reached() {
        thread::yield_now();
    }
}

pub(crate) fn number(random: &mut Random, first: u64, last: u64) -> u32 {
    random.between(first, last).try_into().expect("it is small")
}

/// The index of one of so many.
pub(crate) fn one_of(many: usize, random: &mut Random) -> usize {
    random.below(many as u64).try_into().expect("it is less than many")
}

pub(crate) fn assert_at_rest<C>(slots: &ConcurrencyLimiter<C>, limit: u32) {
    let stats = slots.stats();
    assert_eq!((stats.limit, stats.in_use, stats.waiting), (limit, 0, 0));
    assert!(slots.cost(limit).try_acquire().is_ok(), "all of it can be had");
}

/// Counts those at work, and remembers the most there were.
#[derive(Default)]
pub(crate) struct AtWork {
    now: AtomicU64,
    pub(crate) most: AtomicU64,
}

impl AtWork {
    pub(crate) fn work(&self, cost: u32) {
        let now = self.now.fetch_add(cost.into(), Ordering::SeqCst) + u64::from(cost);
        self.most.fetch_max(now, Ordering::SeqCst);
        thread::yield_now();
        self.now.fetch_sub(cost.into(), Ordering::SeqCst);
    }
}
