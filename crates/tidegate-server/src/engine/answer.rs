//! # Now, or later

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use super::window::{Window, in_order};

/// What the engine answers: now, or later.
///
/// In memory it is always ready, and costs neither an allocation nor a task. Doors are written for both.
#[must_use = "an answer protects nothing until you act on it"]
pub enum Answer<T> {
    /// Already.
    Ready(T),
    /// Later.
    Pending(Pin<Box<dyn Future<Output = T> + Send>>),
}

impl<T> Answer<T> {
    /// The answer, if it is there already.
    #[must_use]
    pub fn now(self) -> Option<T> {
        match self {
            Answer::Ready(answer) => Some(answer),
            Answer::Pending(_) => None,
        }
    }

    /// Something else made of the answer, as soon as it is there.
    pub fn map<R>(self, make: impl FnOnce(T) -> R + Send + 'static) -> Answer<R>
    where
        T: 'static,
    {
        match self {
            Answer::Ready(answer) => Answer::Ready(make(answer)),
            Answer::Pending(answer) => Answer::Pending(Box::pin(async { make(answer.await) })),
        }
    }

    /// All answers, in this order: now if all are there, else when the last one is.
    ///
    /// At most a window of them are under way at once, and they are started in their order.
    pub(crate) fn all(answers: Vec<Answer<T>>, window: Window) -> Answer<Vec<T>>
    where
        T: Send + 'static,
    {
        if answers.iter().all(|answer| matches!(answer, Answer::Ready(_))) {
            return Answer::Ready(answers.into_iter().filter_map(Answer::now).collect());
        }
        Answer::Pending(Box::pin(in_order(answers.into_iter().map(Answer::wait), window)))
    }

    /// The answer, waited for if it is not there yet.
    pub async fn wait(self) -> T {
        match self {
            Answer::Ready(answer) => answer,
            Answer::Pending(answer) => answer.await,
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Answer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Ready(answer) => f.debug_tuple("Ready").field(answer).finish(),
            Answer::Pending(_) => f.write_str("Pending(..)"),
        }
    }
}
