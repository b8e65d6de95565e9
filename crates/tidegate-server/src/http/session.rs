//! # A client's conversation, by HTTP
//!
//! As one of a client of Redis: it takes the bytes that have arrived, answers every whole request among them, and says
//! what it needs to go on. Here are the rules of the protocol, and nothing of what is asked.
//!
//! ```text
//!   POST /v1/check ⏎ … ⏎⏎ {…}  POST /v1/ch       run ──► HTTP/1.1 200 OK ⏎ … ⏎⏎ {…}     then: Needs(13)
//!   └─── head ──────┘└ body ┘
//! ```
//!
//! What cannot be answered is told, and the connection goes on if it is known where the next request begins. Whoever
//! may not ask, or asks for what is not there, is told so before the body is read.

use std::fmt;
use std::sync::Arc;

use super::chunks::{Chunks, Took};
use super::guard::Guard;
use super::head::{Head, LONGEST, Length};
use super::problem::Problem;
use super::reply::{BODY, LAST_CHUNK, Manner, Pieces, Said, chunk, too_long, write};
use super::routes::{Route, find};
use crate::engine::Answer;
use crate::engine::meter::DoorMeter;
use crate::resp::{Account, Later, Places, Ran, Then};
use crate::serve::Talk;

/// Whoever is asked by HTTP.
pub(crate) trait Answers: Send + Sync + 'static {
    /// What can be asked for.
    type Verb: Copy + Send + 'static;

    /// Every path there is.
    const ROUTES: &'static [Route<Self::Verb>];

    /// What callers have to know, if anything.
    fn token(&self) -> Option<&Account>;

    /// What they have to know to change what others have used, where they have to know a token at all.
    fn change_token(&self) -> Option<&Account> {
        self.token()
    }

    /// Which requests pass where nothing has to be known.
    fn guard(&self) -> &Guard;

    /// Answers what is asked with this body.
    fn answer(self: &Arc<Self>, verb: Self::Verb, body: &[u8]) -> Told;

    /// What is counted here.
    fn door(&self) -> &DoorMeter;
}

/// What is said to a request, now or later.
pub(crate) type Told = Answer<Result<Said, Problem>>;

/// One client.
pub(crate) struct Session<S: Answers> {
    service: Arc<S>,
    /// So many bytes were looked at, and are no whole head.
    seen: usize,
    /// What is asked with a body that comes in chunks, and what has come of it.
    chunked: Option<(S::Verb, Manner, Chunks)>,
    /// What is still to be sent of an answer. It comes before all else.
    pieces: Option<Pieces>,
    /// What the next answer, or the one before, is to this conversation.
    end: End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    No,
    /// The next answer is the last.
    Near,
    /// Nothing is answered any more.
    Here,
}

/// What became of some bytes.
enum Step {
    /// So many of them are not needed any more.
    Took(usize),
    /// The same, and an answer comes later.
    Later(usize, Later),
    /// There must be so many bytes at least.
    Needs(usize),
}

/// When so many bytes of answers are waiting they go out before anything else is answered.
const ENOUGH: usize = 16 << 10;
const GO_ON: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

impl<S: Answers> Talk for Session<S> {
    fn run(&mut self, bytes: &[u8], _: &mut Places, out: &mut Vec<u8>) -> Ran {
        let mut consumed = 0;
        let then = loop {
            if out.len() >= ENOUGH {
                break Then::Flush;
            }
            if let Some(pieces) = &mut self.pieces {
                match pieces.next() {
                    Some(piece) => chunk(&piece, out),
                    None => {
                        self.pieces = None;
                        out.extend_from_slice(LAST_CHUNK);
                    }
                }
                continue;
            }
            if self.end == End::Here {
                break Then::Close;
            }
            match self.step(&bytes[consumed..], out) {
                Step::Took(length) => consumed += length,
                Step::Needs(needs) => break Then::Needs(needs),
                Step::Later(length, later) => {
                    consumed += length;
                    break Then::Later(later.into());
                }
            }
        };
        Ran { consumed, then }
    }

    fn door(&self) -> &DoorMeter {
        self.service.door()
    }

    fn finish(&mut self) {
        if self.end == End::No {
            self.end = End::Near;
        }
    }

    fn kept(&self) -> usize {
        self.chunked.as_ref().map_or(0, |(_, _, chunks)| chunks.body.capacity())
    }

    /// Who has begun a request has to finish it in time.
    fn has_begun(&self, left: &[u8]) -> bool {
        !left.is_empty() || self.chunked.is_some()
    }
}

impl<S: Answers> Session<S> {
    pub(crate) fn new(service: Arc<S>) -> Self {
        Session { service, seen: 0, chunked: None, pieces: None, end: End::No }
    }

    fn step(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Step {
        if let Some((verb, manner, chunks)) = self.chunked.take() {
            return self.chunk(bytes, (verb, manner, chunks), out);
        }
        // Who sends a head byte by byte must not have it read for each of them.
        let is_news = self.seen == 0 || bytes.len() >= LONGEST || bytes[self.seen..].contains(&b'\n');
        match if is_news && !bytes.is_empty() { Head::read(bytes) } else { Ok(None) } {
            Ok(Some((head, length))) => self.asked(&head, length, bytes, out),
            Ok(None) => {
                self.seen = bytes.len();
                Step::Needs(bytes.len() + 1)
            }
            Err(problem) => self.give_up(problem, Manner::LAST, out),
        }
    }

    /// A request with this head, which is so long.
    fn asked(&mut self, head: &Head<'_>, length: usize, bytes: &[u8], out: &mut Vec<u8>) -> Step {
        let manner = Manner::of(head);
        let manner = if self.end == End::No { manner } else { manner.and_last() };
        let verb = find(&*self.service, head);
        let body = match head.body {
            Length::Chunked => None,
            Length::Known(body) => usize::try_from(body).ok().filter(|body| *body <= BODY),
        };
        let whole = body.and_then(|body| Some((length + body, bytes.get(length..length + body)?)));
        match (verb, whole) {
            (Ok(verb), Some((end, body))) => {
                let told = self.service.answer(verb, body);
                self.tell(told, manner, end, out)
            }
            (Err(problem), Some((end, _))) => self.tell(Answer::Ready(Err(problem)), manner, end, out),
            (Err(problem), None) => self.give_up(problem, manner, out),
            (Ok(verb), None) => match (head.body, body) {
                (Length::Chunked, _) => {
                    go_on(head, out);
                    self.chunked = Some((verb, manner, Chunks::default()));
                    Step::Took(length)
                }
                (Length::Known(_), Some(body)) => {
                    go_on(head, out);
                    Step::Needs(length + body)
                }
                (Length::Known(_), None) => self.give_up(too_long(), manner, out),
            },
        }
    }

    fn chunk(&mut self, bytes: &[u8], asked: (S::Verb, Manner, Chunks), out: &mut Vec<u8>) -> Step {
        let (verb, manner, mut chunks) = asked;
        let step = match chunks.take(bytes) {
            Ok(Took::All(length)) => {
                let told = self.service.answer(verb, &chunks.body);
                return self.tell(told, manner, length, out);
            }
            Ok(Took::Some(length)) => Step::Took(length),
            Ok(Took::Needs(needs)) => Step::Needs(needs),
            Err(problem) => return self.give_up(problem, manner, out),
        };
        self.chunked = Some((verb, manner, chunks));
        step
    }

    /// Writes an answer, now or when it comes. The request is over with it, of which so many bytes are left.
    fn tell(&mut self, told: Told, manner: Manner, end: usize, out: &mut Vec<u8>) -> Step {
        self.seen = 0;
        if manner.is_last() {
            self.end = End::Here;
        }
        match told {
            Answer::Ready(told) => {
                self.pieces = write(told, manner, out);
                Step::Took(end)
            }
            Answer::Pending(pending) => Step::Later(
                end,
                Box::pin(async move {
                    let (told, mut out) = (pending.await, Vec::new());
                    if let Some(pieces) = write(told, manner, &mut out) {
                        pieces.for_each(|piece| chunk(&piece, &mut out));
                        out.extend_from_slice(LAST_CHUNK);
                    }
                    out
                }),
            ),
        }
    }

    /// Nobody knows where the next request begins, or wants to read so far.
    fn give_up(&mut self, problem: Problem, manner: Manner, out: &mut Vec<u8>) -> Step {
        self.tell(Answer::Ready(Err(problem)), manner.and_last(), 0, out)
    }
}

/// Tells a client that waits for it to send the body. Once, for nothing is run again before that is there.
fn go_on(head: &Head<'_>, out: &mut Vec<u8>) {
    if head.expects {
        out.extend_from_slice(GO_ON);
    }
}

impl<S: Answers> fmt::Debug for Session<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("seen", &self.seen).field("end", &self.end).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
