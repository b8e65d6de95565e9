//! # A client's conversation
//!
//! A session remembers what the protocol makes it remember: the dialect, who the client is, its name, and the commands
//! between `MULTI` and `EXEC`. It takes the bytes that have arrived, answers every whole request among them, and says what
//! it needs to go on:
//!
//! ```text
//!   *1..PING..*5..CL.THROTTLE..*2..EC          run ──► +PONG.. *5:0..      Ran { consumed, then: Needs(24) }
//!   └──────── consumed ────────┘└ left ┘
//! ```

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tidegate::SteadyClock;
use tidegate::clock::Clock;

use super::account::Account;
use super::call::{Call, find};
use super::parse::{Bounds, Parsed, Places, Request, parse};
use super::replies::{Later, Replies};
use super::reply::{Dialect, Reply};
use super::transaction::{Queued, Transaction};
use crate::config::Protocol;
use crate::engine::meter::DoorMeter;
use crate::engine::{Answer, Engine, Permit};

/// What all sessions share.
#[derive(Debug)]
pub struct Service<C = SteadyClock> {
    pub(crate) engine: Arc<Engine<C>>,
    pub(crate) bounds: Bounds,
    /// Who may ask; if this is empty, everybody.
    pub(crate) accounts: Vec<Account>,
    pub(crate) started: Instant,
    pub(crate) sessions: AtomicU64,
    pub(crate) open: AtomicU64,
    pub(crate) commands: AtomicU64,
}

/// One client.
#[derive(Debug)]
pub struct Session<C = SteadyClock> {
    pub(crate) service: Arc<Service<C>>,
    pub(crate) id: u64,
    pub(crate) since: Instant,
    pub(crate) peer: String,
    pub(crate) name: Vec<u8>,
    pub(crate) dialect: Dialect,
    /// Who it is, once that is known.
    pub(crate) user: Option<String>,
    /// Whether it may reset keys.
    pub(crate) may_change: bool,
    /// How many passwords it has said that were wrong.
    pub(crate) wrong_passwords: u32,
    pub(crate) transaction: Option<Transaction>,
    /// What is to be done before anything else is read: the commands of a transaction.
    pub(crate) queued: VecDeque<Queued>,
}

/// What came of some bytes.
#[derive(Debug)]
#[must_use = "what was not consumed is to be shown again"]
pub struct Ran {
    /// So many of them were answered, and are not needed any more.
    pub consumed: usize,
    /// What is to happen next.
    pub then: Then,
}

/// What a session needs to go on.
pub enum Then {
    /// So many bytes at least, with those that were not consumed.
    Needs(usize),
    /// The replies are to go out first: there is more to be answered.
    Flush,
    /// Replies come later, and nothing is answered before them.
    Later(Replies),
    /// Nothing: the replies are to go out, and that is the end.
    Close,
}

/// What a command leads to.
pub(crate) enum Flow {
    Next,
    Later(Later),
    Close,
}

impl Flow {
    #[inline]
    fn is_later(&self) -> bool {
        matches!(self, Flow::Later(_))
    }
}

/// When so many bytes of replies are waiting they go out before anything else is answered.
const ENOUGH: usize = 16 << 10;

// === impl Service ===

impl<C> Service<C> {
    /// A service for everybody, with the usual bounds.
    pub fn new(engine: impl Into<Arc<Engine<C>>>) -> Self {
        let engine = engine.into();
        let (sessions, open, commands) = Default::default();
        let bounds = Bounds::default();
        // Whoever sets the rules says all of them at once.
        let bounds = if engine.is_for_testing() { Bounds { arg: bounds.request, ..bounds } } else { bounds };
        let (accounts, started) = (Vec::new(), Instant::now());
        Service { engine, bounds, accounts, started, sessions, open, commands }
    }

    /// The same, for those who have one of these accounts.
    #[must_use]
    pub fn accounts(self, accounts: impl IntoIterator<Item = Account>) -> Self {
        Service { accounts: accounts.into_iter().collect(), ..self }
    }

    /// The same, for requests within other bounds.
    #[must_use]
    pub fn bounds(self, bounds: Bounds) -> Self {
        Service { bounds, ..self }
    }

    /// What answers.
    pub fn engine(&self) -> &Arc<Engine<C>> {
        &self.engine
    }
}

impl<C: Clock> Service<C> {
    /// What is counted at its doors.
    pub(crate) fn door(&self) -> &DoorMeter {
        self.engine.meter().door(Protocol::Resp)
    }
}

// === impl Session ===

impl<C: Clock + Send + Sync + 'static> Session<C> {
    /// A client who has just arrived, from `peer`.
    #[must_use]
    pub fn new(service: Arc<Service<C>>, peer: impl Into<String>) -> Self {
        let id = service.sessions.fetch_add(1, Ordering::Relaxed) + 1;
        service.open.fetch_add(1, Ordering::Relaxed);
        let is_open = service.accounts.is_empty();
        let user = is_open.then(|| super::account::DEFAULT_USER.to_owned());
        let (name, dialect, transaction, queued) = Default::default();
        Session {
            service,
            id,
            since: Instant::now(),
            peer: peer.into(),
            name,
            dialect,
            user,
            may_change: is_open,
            wrong_passwords: 0,
            transaction,
            queued,
        }
    }

    /// Its number, as `CLIENT ID` tells it.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Answers all whole requests in `bytes`, behind what is in `out`. Those that the store answers are sent to it together.
    pub fn run(&mut self, bytes: &[u8], places: &mut Places, out: &mut Vec<u8>) -> Ran {
        let (mut consumed, mut commands) = (0, 0);
        let then = loop {
            if out.len() >= ENOUGH {
                break Then::Flush;
            }
            let (flow, may_overlap) = if let Some(queued) = self.queued.pop_front() {
                let request = queued.request(places);
                let flow = self.execute(request, out);
                let may_overlap = flow.is_later() && overlapping(request).is_some();
                (flow, may_overlap)
            } else {
                match parse(&bytes[consumed..], &self.bounds(), places) {
                    Ok(Parsed::Needs(needs)) => break Then::Needs(needs),
                    Ok(Parsed::Whole(length)) => {
                        let request = places.request(&bytes[consumed..]);
                        consumed += length;
                        commands += 1;
                        let flow = self.answer(request, out);
                        let may_overlap = flow.is_later() && overlapping(request).is_some();
                        (flow, may_overlap)
                    }
                    Err(malformed) => {
                        Reply::new(out, self.dialect).error(format!("ERR Protocol error: {malformed}"));
                        break Then::Close;
                    }
                }
            };
            match flow {
                Flow::Next => {}
                Flow::Later(later) => {
                    let mut replies = Replies::from(later);
                    if may_overlap {
                        let (bytes_more, commands_more) =
                            self.pipeline(&bytes[consumed..], places, &mut replies);
                        consumed += bytes_more;
                        commands += commands_more;
                    }
                    break Then::Later(replies);
                }
                Flow::Close => break Then::Close,
            }
        };
        self.service.commands.fetch_add(commands, Ordering::Relaxed);
        Ran { consumed, then }
    }

    /// Adds the replies to further commands behind those that are pending, as long as these commands may be sent now. Returns
    /// how many bytes and how many commands that were.
    #[cold]
    fn pipeline(&mut self, bytes: &[u8], places: &mut Places, replies: &mut Replies) -> (usize, u64) {
        let (mut consumed, mut commands) = (0, 0);
        while let Some(behind) = replies.behind() {
            let queued = self.queued.pop_front();
            let (request, length) = match &queued {
                Some(queued) => (queued.request(places), 0),
                None => match parse(&bytes[consumed..], &self.bounds(), places) {
                    Ok(Parsed::Whole(length)) => (places.request(&bytes[consumed..]), length),
                    _ => break,
                },
            };
            let Some(permit) = self.permit(request) else {
                queued.into_iter().for_each(|queued| self.queued.push_front(queued));
                break;
            };
            let flow = if queued.is_some() {
                self.execute(request, behind)
            } else {
                consumed += length;
                commands += 1;
                // `answer` has one caller, so that the commands it looks for first are inlined there.
                self.answer_slowly(request, behind)
            };
            if let Flow::Later(later) = flow {
                replies.push(later, Some(permit));
            }
        }
        (consumed, commands)
    }

    /// A permit to send a command before the commands ahead of it are answered.
    fn permit(&self, request: Request<'_>) -> Option<Permit> {
        self.service.engine.permit(overlapping(request)?)
    }

    /// How many bytes it keeps of a transaction.
    pub(crate) fn kept(&self) -> usize {
        self.transaction.as_ref().map_or(0, Transaction::bytes)
    }

    #[inline]
    fn bounds(&self) -> Bounds {
        let bounds = self.service.bounds;
        if self.user.is_some() { bounds } else { bounds.for_strangers() }
    }

    #[inline]
    fn answer(&mut self, request: Request<'_>, out: &mut Vec<u8>) -> Flow {
        // Nearly all requests are one of these.
        if self.transaction.is_none() && self.user.is_some() {
            let reply = &mut Reply::new(out, self.dialect);
            match (request.name(), request.len()) {
                (b"CL.THROTTLE", 5 | 6) => return self.cl_throttle(request, reply),
                (b"TG.CHECK", 3..) => return self.tg_check(request, reply),
                _ => {}
            }
        }
        if request.is_empty() {
            return Flow::Next;
        }
        self.answer_slowly(request, out)
    }

    fn answer_slowly(&mut self, request: Request<'_>, out: &mut Vec<u8>) -> Flow {
        let mut reply = Reply::new(out, self.dialect);
        match self.find(request) {
            // A web page can send this, and would have commands executed that lie in its body.
            Err(_) if request.is_http() => {
                reply.error("ERR this is HTTP; clients of the Redis protocol are answered here");
                Flow::Close
            }
            Err(sentence) => {
                reply.error(sentence);
                self.spoil();
                Flow::Next
            }
            Ok(call) if self.transaction.is_some() && !call.is_immediate() => {
                self.enqueue(request, &mut reply)
            }
            Ok(call) => (call.run)(self, request, &mut reply),
        }
    }

    /// A command that was queued, and found to be one.
    fn execute(&mut self, request: Request<'_>, out: &mut Vec<u8>) -> Flow {
        let mut reply = Reply::new(out, self.dialect);
        match self.find(request) {
            Ok(call) => (call.run)(self, request, &mut reply),
            Err(sentence) => {
                reply.error(sentence);
                Flow::Next
            }
        }
    }

    /// The command that is asked for, if this client may ask for it with so many arguments.
    fn find(&self, request: Request<'_>) -> Result<&'static Call<C>, String> {
        let call = find(request).ok_or_else(|| unknown(request))?;
        if !call.args.contains(&request.len()) {
            let name = call.name.to_ascii_lowercase();
            return Err(format!("ERR wrong number of arguments for '{name}' command"));
        }
        if self.user.is_none() && !call.is_for_strangers() {
            return Err("NOAUTH Authentication required.".to_owned());
        }
        if call.is_change() && !self.may_change {
            let name = call.name.to_ascii_lowercase();
            return Err(format!(
                "NOPERM this password lets clients check and not '{name}'; use the `change_password` of the listener"
            ));
        }
        Ok(call)
    }

    /// Writes an answer of the engine, now or when it comes.
    #[inline]
    pub(crate) fn tell<T: Send + 'static>(
        &self,
        answer: Answer<T>,
        reply: &mut Reply<'_>,
        write: impl FnOnce(T, &mut Reply<'_>) + Send + 'static,
    ) -> Flow {
        match answer {
            Answer::Ready(answer) => {
                write(answer, reply);
                Flow::Next
            }
            Answer::Pending(pending) => {
                let dialect = reply.dialect();
                Flow::Later(Box::pin(async move {
                    let (answer, mut bytes) = (pending.await, Vec::new());
                    write(answer, &mut Reply::new(&mut bytes, dialect));
                    bytes
                }))
            }
        }
    }
}

impl<C> Drop for Session<C> {
    fn drop(&mut self) {
        self.service.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How many commands a command sends to the store at once, if it may be sent before the commands ahead of it are answered: it
/// concerns limits only, and is sent in its order. All others, as those that change the session, wait.
fn overlapping(request: Request<'_>) -> Option<u32> {
    let is = |names: &[&str]| names.iter().any(|name| request.name().eq_ignore_ascii_case(name.as_bytes()));
    if is(&["CL.THROTTLE", "THROTTLE", "GCRA", "TG.CHECK", "TG.PEEK", "TG.RESET"]) {
        Some(1)
    } else {
        is(&["TG.REFUND"]).then_some(2)
    }
}

/// As Redis says it, with the beginning of what was sent.
fn unknown(request: Request<'_>) -> String {
    const MOST: usize = 128;
    let shown = |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(MOST)]).into_owned();
    let mut sentence = format!("ERR unknown command '{}', with args beginning with: ", shown(request.name()));
    let start = sentence.len();
    for arg in request.args(1) {
        if sentence.len() - start >= MOST {
            break;
        }
        sentence.push_str(&format!("'{}' ", shown(arg)));
    }
    sentence
}

impl fmt::Debug for Then {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Then::Needs(bytes) => write!(f, "Needs({bytes})"),
            Then::Flush => f.write_str("Flush"),
            Then::Later(_) => f.write_str("Later(..)"),
            Then::Close => f.write_str("Close"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::engine::Rules;

    #[test]
    fn an_answer_that_comes_later_is_written_when_it_comes() {
        let service = Arc::new(Service::new(Engine::new(Rules::new()).expect("no rules")));
        let (session, mut out) = (Session::new(service, "test"), Vec::new());
        let mut is_there = false;
        let pending = std::future::poll_fn(move |_| {
            let poll = if is_there { Poll::Ready(7) } else { Poll::Pending };
            is_there = true;
            poll
        });
        let answer = Answer::Pending(Box::pin(pending));
        let flow = session.tell(answer, &mut Reply::new(&mut out, Dialect::Resp3), |number, reply| {
            reply.map(0);
            reply.number(number);
        });
        let Flow::Later(mut later) = flow else { panic!("it is not there yet") };
        let cx = &mut Context::from_waker(Waker::noop());
        assert_eq!(later.as_mut().poll(cx), Poll::Pending);
        assert_eq!(later.as_mut().poll(cx), Poll::Ready(b"%0\r\n:7\r\n".to_vec()));
        assert!(out.is_empty());
    }
}
