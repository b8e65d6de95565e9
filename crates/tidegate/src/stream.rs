//! # Streams at an even pace
//!
//! [`Paced`] passes the items of a stream on at the pace of a [`Pacer`]: the first item at once, each
//! further item when the items before it are paid for. Streams that share a pacer share its pace.
//!
//! ```
//! # #[cfg(feature = "tokio")] {
//! use std::pin::Pin;
//! use std::task::{Context, Poll};
//! use tidegate::clock::Clock;
//! use tidegate::stream::PacedExt;
//! use tidegate::{Pacer, Quota, TokioClock};
//!
//! # struct Numbers(u32);
//! # impl futures_core::Stream for Numbers {
//! #     type Item = u32;
//! #     fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<u32>> {
//! #         self.0 += 1;
//! #         Poll::Ready((self.0 <= 3).then_some(self.0))
//! #     }
//! # }
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
//! # runtime.block_on(async {
//! let clock = TokioClock::new();
//! let pacer = Pacer::builder(Quota::per_second(5)).clock(clock).build();
//! let mut numbers = std::pin::pin!(Numbers(0).paced(pacer)); // a stream of 1, 2 and 3
//! let mut next = async || {
//!     std::future::poll_fn(|cx| futures_core::Stream::poll_next(numbers.as_mut(), cx)).await
//! };
//! assert_eq!((next().await, clock.now().get()), (Some(1), 0));
//! assert_eq!((next().await, clock.now().get()), (Some(2), 200_000));
//! assert_eq!((next().await, clock.now().get()), (Some(3), 400_000));
//! assert_eq!(next().await, None);
//! # });
//! # }
//! ```

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use pin_project_lite::pin_project;

use crate::clock::{Micros, Sleep};
use crate::pacer::Pacer;

/// Adds [`paced`](PacedExt::paced) to every stream.
pub trait PacedExt: Stream + Sized {
    /// Passes the items on at the pace of `pacer`, each at a cost of 1.
    fn paced<C: Sleep>(self, pacer: Pacer<C>) -> Paced<Self, C> {
        let cost: fn(&Self::Item) -> u32 = |_| 1;
        self.paced_by(pacer, cost)
    }

    /// Passes the items on at the pace of `pacer`, each at its own cost: for example its length in bytes.
    fn paced_by<C, F>(self, pacer: Pacer<C>, cost: F) -> Paced<Self, C, F>
    where
        C: Sleep,
        F: FnMut(&Self::Item) -> u32,
    {
        Paced { stream: self, pacer, cost, held: None, sleeping: None }
    }
}

impl<S: Stream> PacedExt for S {}

pin_project! {
    /// A stream at the pace of a [`Pacer`]. Made by [`PacedExt::paced`].
    ///
    /// An item is charged when it arrives from the inner stream. Dropping the stream while an item waits does not refund
    /// that item.
    #[must_use = "a stream does nothing until it is polled"]
    pub struct Paced<S: Stream, C: Sleep, F = fn(&<S as Stream>::Item) -> u32> {
        #[pin]
        stream: S,
        pacer: Pacer<C>,
        cost: F,
        // The item that waits, and the instant it waits for.
        held: Option<(S::Item, Micros)>,
        #[pin]
        sleeping: Option<C::Sleeping>,
    }
}

impl<S: Stream, C: Sleep, F: FnMut(&S::Item) -> u32> Stream for Paced<S, C, F> {
    type Item = S::Item;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<S::Item>> {
        let mut this = self.project();
        let ready_at = match this.held.as_ref() {
            Some((_, ready_at)) => *ready_at,
            None => {
                let Some(item) = ready!(this.stream.poll_next(cx)) else { return Poll::Ready(None) };
                let (now, wait) = this.pacer.charge_at((this.cost)(&item));
                // A wait that does not end before the end of the time line is as good as one that ends there.
                let ready_at = now.plus(wait.unwrap_or_else(|wait| wait).as_micros());
                *this.held = Some((item, ready_at));
                ready_at
            }
        };
        // The timer may be early by a little, so the clock decides.
        while this.pacer.now() < ready_at {
            if this.sleeping.is_none() {
                this.sleeping.set(Some(this.pacer.sleep_until(ready_at)));
            }
            if let Some(sleeping) = this.sleeping.as_mut().as_pin_mut() {
                ready!(sleeping.poll(cx));
            }
            this.sleeping.set(None);
        }
        this.sleeping.set(None);
        Poll::Ready(this.held.take().map(|(item, _)| item))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let held = usize::from(self.held.is_some());
        let (lower, upper) = self.stream.size_hint();
        (lower.saturating_add(held), upper.and_then(|upper| upper.checked_add(held)))
    }
}

impl<S: Stream, C: Sleep, F> std::fmt::Debug for Paced<S, C, F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Paced").field("waits", &self.held.is_some()).finish_non_exhaustive()
    }
}
