//! # Blocking a thread
//!
//! A blocked thread acts as a task without an executor: it polls, parks, and is woken by `unpark`. Unrelated code may
//! unpark the thread too, so it polls again after each wake-up.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use super::Park;
use crate::sync::{Thread, current_thread, park};
use tidegate_core::Micros;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

/// Creates a waker that unparks this thread.
pub(crate) fn thread_waker() -> Waker {
    Waker::from(Arc::new(Unpark(current_thread())))
}

/// Blocks this thread until `future` is ready.
pub(crate) fn block<F: Future + Unpin>(mut future: F) -> F::Output {
    let waker = thread_waker();
    let mut cx = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = Pin::new(&mut future).poll(&mut cx) {
            return output;
        }
        park();
    }
}

/// Blocks this thread until `future` is ready; `None` if the clock reaches `deadline` first.
pub(crate) fn block_until<F, C>(mut future: F, clock: &C, deadline: Micros) -> Option<F::Output>
where
    F: Future + Unpin,
    C: Park,
{
    let waker = thread_waker();
    let mut cx = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = Pin::new(&mut future).poll(&mut cx) {
            return Some(output);
        }
        if clock.now() >= deadline {
            return None;
        }
        clock.park_until(deadline);
    }
}
