//! # Whose turn it is
//!
//! A client that sends without end always has something to be answered. A hundred of them, each given its turn as soon as it asks,
//! would make everybody else wait for a hundred turns. So those who have used up their turns wait in a line of their own, and
//! one of them goes on each time the sockets were looked at:
//!
//! ```text
//!   look at sockets ──► all who have just asked ──► one of the line ──► look at sockets ──► …
//! ```
//!
//! Each thread that answers has such a line.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};

thread_local! {
    static LINE: RefCell<Line> = RefCell::default();
}

#[derive(Default)]
struct Line {
    waiting: VecDeque<Waker>,
    /// Gives the turns, and waits for somebody to wait.
    giver: Option<Waker>,
}

/// Waits for another turn: the task is woken when it comes.
pub(super) fn wait(cx: &Context<'_>) {
    LINE.with_borrow_mut(|line| {
        line.waiting.push_back(cx.waker().clone());
        if let Some(giver) = line.giver.take() {
            giver.wake();
        }
    });
}

/// Gives those who wait in this thread their turns, one after the other. Never ends.
pub(super) async fn give() {
    loop {
        poll_fn(|cx| {
            LINE.with_borrow_mut(|line| match line.waiting.pop_front() {
                Some(next) => {
                    next.wake();
                    Poll::Ready(())
                }
                None => {
                    line.giver = Some(cx.waker().clone());
                    Poll::Pending
                }
            })
        })
        .await;
        tokio::task::yield_now().await; // goes on when the sockets were looked at
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Takes so many turns, and notes each.
    async fn greedy(name: char, turns: usize, seen: Arc<Mutex<String>>) {
        for _ in 0..turns {
            seen.lock().expect("no panic").push(name);
            let mut has_waited = false;
            poll_fn(|cx| {
                if std::mem::replace(&mut has_waited, true) {
                    return Poll::Ready(());
                }
                wait(cx);
                Poll::Pending
            })
            .await;
        }
    }

    #[tokio::test]
    async fn one_of_the_line_goes_on_at_a_time_and_others_in_between() {
        let (seen, rounds) = (Arc::new(Mutex::new(String::new())), Arc::new(AtomicUsize::new(0)));
        tokio::spawn(give());
        let greedy: Vec<_> = "abc".chars().map(|name| tokio::spawn(greedy(name, 50, seen.clone()))).collect();
        let counting = rounds.clone();
        let modest = tokio::spawn(async move {
            loop {
                tokio::task::yield_now().await;
                counting.fetch_add(1, Ordering::Relaxed);
            }
        });
        for task in greedy {
            task.await.expect("an end");
        }
        modest.abort();
        assert_eq!(*seen.lock().expect("no panic"), "abc".repeat(50));
        assert!(rounds.load(Ordering::Relaxed) >= 140, "{rounds:?} rounds for 150 turns of others");
    }
}
