//! # How many requests of a batch or a pipeline are under way at once
//!
//! A batch, or a pipeline of commands, sends its requests to the store together instead of one round trip after the other.
//! What may be under way at all (`in_flight`) is shared by all clients, and a request beyond it is decided without the
//! store. So batches and pipelines share half of it, and one that finds nothing left goes on one request at a time:
//!
//! ```text
//!   in_flight 1024 ── 512 ── batch of 256 ─── window 256
//!                       ├─── batch of 256 ─── window 256
//!                       └─── batch of 256 ─── window 1, plus whatever is free
//! ```
//!
//! The first request of each client needs no permit, so none waits for another client.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::config::Store;

/// What batches and pipelines may have under way, all of them together. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Budget(Arc<Semaphore>);

/// How many requests of one batch may be under way. Given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Window {
    size: usize,
    _permits: Option<OwnedSemaphorePermit>,
}

/// One request more of a pipeline. Given back when it is dropped.
pub(crate) type Permit = OwnedSemaphorePermit;

impl Budget {
    pub(crate) fn of(store: &Store) -> Self {
        let permits = match store {
            Store::Memory { .. } => 0, // decisions are ready at once
            Store::Redis(redis) => redis.in_flight / 2,
        };
        Budget(Arc::new(Semaphore::new(permits.min(Semaphore::MAX_PERMITS))))
    }

    /// A window for a batch of `wanted` requests, as large as there are permits.
    pub(crate) fn window(&self, wanted: usize) -> Window {
        let more = wanted.saturating_sub(1).min(self.0.available_permits());
        let permits = u32::try_from(more).ok().filter(|more| *more > 0);
        match permits.and_then(|more| self.0.clone().try_acquire_many_owned(more).ok()) {
            Some(permits) => Window { size: 1 + more, _permits: Some(permits) },
            None => Window::one(),
        }
    }

    /// A permit for one request more of a pipeline, beyond its first, that sends so many commands at once.
    pub(crate) fn permit(&self, commands: u32) -> Option<Permit> {
        self.0.clone().try_acquire_many_owned(commands).ok()
    }
}

impl Window {
    /// One request at a time.
    pub(crate) const fn one() -> Self {
        Window { size: 1, _permits: None }
    }

    /// The same window for requests that send two commands at once.
    pub(crate) fn of_two_commands_each(self) -> Self {
        Window { size: self.size.div_ceil(2), ..self }
    }
}

/// The outputs of all futures, in their order. At most a window of them are under way at once.
///
/// The first poll of a future sends its request. Futures are polled in their order, so requests leave in that order.
pub(crate) async fn in_order<F: Future>(futures: impl Iterator<Item = F>, window: Window) -> Vec<F::Output> {
    if window.size > 1 {
        let slots = futures.map(|future| Slot::Pending(Box::pin(future))).collect();
        return InOrder { slots, first: 0, window }.await;
    }
    let mut outputs = Vec::new();
    for future in futures {
        outputs.push(future.await);
    }
    outputs
}

struct InOrder<F: Future> {
    slots: Vec<Slot<F>>,
    /// The first that is still pending.
    first: usize,
    window: Window,
}

enum Slot<F: Future> {
    Pending(Pin<Box<F>>),
    Ready(F::Output),
}

/// The futures are boxed, and an output is never pinned.
impl<F: Future> Unpin for InOrder<F> {}

impl<F: Future> Future for InOrder<F> {
    type Output = Vec<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Vec<F::Output>> {
        let InOrder { slots, first, window } = &mut *self;
        let mut polled = *first;
        loop {
            let end = (*first + window.size).min(slots.len());
            slots[polled..end].iter_mut().for_each(|slot| slot.poll(cx));
            polled = end;
            *first += slots[*first..polled].iter().take_while(|slot| slot.is_ready()).count();
            if *first == slots.len() {
                break;
            }
            if polled == (*first + window.size).min(slots.len()) {
                return Poll::Pending;
            }
        }
        let outputs = std::mem::take(slots).into_iter().filter_map(|slot| match slot {
            Slot::Ready(output) => Some(output),
            Slot::Pending(_) => None,
        });
        Poll::Ready(outputs.collect())
    }
}

impl<F: Future> Slot<F> {
    fn poll(&mut self, cx: &mut Context<'_>) {
        if let Slot::Pending(future) = self
            && let Poll::Ready(output) = future.as_mut().poll(cx)
        {
            *self = Slot::Ready(output);
        }
    }

    fn is_ready(&self) -> bool {
        matches!(self, Slot::Ready(_))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn budget(permits: usize) -> Budget {
        Budget(Arc::new(Semaphore::new(permits)))
    }

    /// How many are under way at once, at most, and the outputs. Each future yields a few times.
    async fn run(count: usize, window: Window) -> (usize, Vec<usize>) {
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let futures = (0..count).map(async |number| {
            most.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            for _ in 0..(count - number) % 3 {
                tokio::task::yield_now().await;
            }
            now.fetch_sub(1, Ordering::Relaxed);
            number
        });
        let outputs = in_order(futures, window).await;
        (most.load(Ordering::Relaxed), outputs)
    }

    #[tokio::test]
    async fn outputs_keep_their_order_and_no_more_than_the_window_is_under_way() {
        let budget = budget(7);
        for count in [0, 1, 2, 8, 100] {
            let (most, outputs) = run(count, budget.window(count)).await;
            assert!(most <= 8 && (count < 8 || most > 1), "{count}: {most}");
            assert_eq!(outputs, (0..count).collect::<Vec<_>>());
        }
        assert_eq!(run(100, Window::one()).await.0, 1);
    }

    #[test]
    fn windows_share_the_budget_and_give_it_back() {
        let budget = budget(10);
        let (first, second, third) = (budget.window(7), budget.window(7), budget.window(7));
        assert_eq!([first.size, second.size, third.size], [7, 5, 1]);
        assert!(budget.permit(1).is_none());
        drop(first);
        assert_eq!(budget.window(100).size, 7);
        assert_eq!(budget.window(100).of_two_commands_each().size, 4);
        assert!(budget.permit(6).is_some() && budget.permit(7).is_none());
    }
}
