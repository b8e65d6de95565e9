//! # Keys
//!
//! redis-cell keeps its states under the keys that clients named, so clients delete them and ask how long they live.
//! The same works here, for the keys of limits that come with the call. Where these are in a Redis that does not
//! answer, there is no answer to give but an error.

use tidegate::Wait;
use tidegate::clock::Clock;

use super::parse::Request;
use super::reply::Reply;
use super::rules::tell_fault;
use super::session::{Flow, Session};
use crate::engine::{Answer, Engine, Fault};

/// What Redis says of the time a key has left, if there is none.
const NO_KEY: i64 = -2;

impl<C: Clock + Send + Sync + 'static> Session<C> {
    pub(crate) fn del(&mut self, request: Request<'_>, reply: &mut Reply<'_>) -> Flow {
        self.count(request, reply, |engine, key| engine.forget(key), |was_there| was_there)
    }

    /// A key that is named twice counts twice.
    pub(crate) fn exists(&mut self, request: Request<'_>, reply: &mut Reply<'_>) -> Flow {
        self.count(request, reply, |engine, key| engine.owes(key), |owes| owes.is_some())
    }

    pub(crate) fn ttl(&mut self, request: Request<'_>, reply: &mut Reply<'_>) -> Flow {
        self.owes(request, reply, |owes, reply| {
            reply.number(owes.map_or(NO_KEY, |owes| millis(owes).saturating_add(500) / 1_000));
        })
    }

    pub(crate) fn pttl(&mut self, request: Request<'_>, reply: &mut Reply<'_>) -> Flow {
        self.owes(request, reply, |owes, reply| reply.number(owes.map_or(NO_KEY, millis)))
    }

    pub(crate) fn kind(&mut self, request: Request<'_>, reply: &mut Reply<'_>) -> Flow {
        self.owes(request, reply, |owes, reply| reply.word(if owes.is_some() { "string" } else { "none" }))
    }

    pub(crate) fn dbsize(&mut self, _: Request<'_>, reply: &mut Reply<'_>) -> Flow {
        reply.count(self.service.engine.keys());
        Flow::Next
    }

    fn owes(
        &self,
        request: Request<'_>,
        reply: &mut Reply<'_>,
        write: impl FnOnce(Option<Wait>, &mut Reply<'_>) + Send + 'static,
    ) -> Flow {
        let answer = self.service.engine.owes(request.arg(1).unwrap_or_default());
        self.tell(answer, reply, |owes, reply| match owes {
            Ok(owes) => write(owes, reply),
            Err(fault) => tell_fault(fault, reply),
        })
    }

    /// Of how many keys it is true.
    fn count<T: Send + 'static>(
        &self,
        request: Request<'_>,
        reply: &mut Reply<'_>,
        ask: impl Fn(&Engine<C>, &[u8]) -> Answer<Result<T, Fault>>,
        is_true: impl Fn(T) -> bool + Send + 'static,
    ) -> Flow {
        let window = self.service.engine.in_force().window(request.len().saturating_sub(1));
        let answers = request.args(1).map(|key| ask(&self.service.engine, key)).collect();
        let answers = Answer::all(answers, window);
        self.tell(answers, reply, move |answers, reply| {
            match answers.into_iter().collect::<Result<Vec<T>, Fault>>() {
                Ok(answers) => {
                    let count = answers.into_iter().map(is_true).filter(|is_true| *is_true).count();
                    reply.count(u64::try_from(count).unwrap_or(u64::MAX));
                }
                Err(fault) => tell_fault(fault, reply),
            }
        })
    }
}

/// Rounded up: a key that is there has some time left.
fn millis(wait: Wait) -> i64 {
    i64::try_from(wait.as_micros().div_ceil(1_000)).unwrap_or(i64::MAX)
}
