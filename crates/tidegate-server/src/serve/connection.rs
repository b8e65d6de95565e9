//! # One connection
//!
//! Each turn is the same: what waits to go out goes out, then a read, the answers, one write. Whatever cannot be
//! finished now, the beginning of a request or the end of a reply, is kept until the next turn; all else is gone when
//! the turn ends.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use super::farewell::Farewell;
use super::socket::Socket;
use super::talk::Talk;
use super::turns::Turn;
use super::unfinished::Share;
use super::watch::{Told, Watched};
use super::worker::Floor;
use crate::resp::{Places, Replies, Then};

/// What the connections of a thread share.
#[derive(Debug)]
pub(crate) struct Scratch {
    read: Box<[u8]>,
    out: Vec<u8>,
    places: Places,
}

pub(crate) struct Connection<T> {
    socket: Socket,
    session: T,
    /// What arrived and is not answered yet.
    left: Vec<u8>,
    /// It is not worth looking at what is left before there is so much of it.
    needs: usize,
    /// Replies that the system did not take yet, and how much of them it took.
    unsent: Vec<u8>,
    sent: usize,
    then: Next,
    /// When that was asked which is waited for.
    asked: Option<Instant>,
    unfinished: Share,
    turn: Turn,
    /// The tick at which it was accepted, until its first request arrives.
    new_since: Option<u64>,
    watched: Arc<Watched>,
    floor: Arc<Floor>,
}

/// What comes after the replies are sent.
enum Next {
    /// To read.
    Read,
    /// To answer what is left.
    Answer,
    /// To wait for replies.
    Wait(Replies),
    /// To go.
    End,
    /// To go, once the other side has seen the end: see [`Farewell`].
    Leaving(Farewell),
}

/// The most that is read at once.
const READ: usize = 16 << 10;
/// A connection that fills this much with one read is busy and waits for its [`Turn`] before the next read. A pipeline of 256 short
/// commands fits.
const BUSY: usize = 8 << 10;
/// Steps (a read, an answer) before a connection is busy in any case. A busy one has one step per turn.
const STEPS: usize = 8;
/// So much of each connection is not counted as unfinished.
const FREE: usize = 16 << 10;
/// Buffers that have grown beyond this are given back when they are empty.
const KEEP: usize = 16 << 10;

impl Scratch {
    pub(crate) fn new() -> Self {
        Scratch { read: vec![0; READ].into(), out: Vec::new(), places: Places::default() }
    }
}

impl<T: Talk> Connection<T> {
    pub(crate) fn new(socket: Socket, session: T, watched: Arc<Watched>, floor: Arc<Floor>) -> Self {
        let (left, unsent, asked) = Default::default();
        Connection {
            socket,
            session,
            left,
            needs: 1,
            unsent,
            sent: 0,
            then: Next::Read,
            asked,
            unfinished: floor.unfinished.share(),
            turn: Turn::default(),
            new_since: Some(floor.now.load(Ordering::Relaxed)),
            watched,
            floor,
        }
    }

    /// Takes a turn. Ready when the connection is to be closed.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, scratch: &mut Scratch) -> Poll<()> {
        if matches!(self.then, Next::Read | Next::Answer) {
            ready!(self.turn.poll(cx));
        }
        for _ in 0..STEPS {
            // An error of the socket ends the connection: there is no way to report it to the client.
            let turned = self.step(cx, scratch);
            if !self.has_room() {
                return Poll::Ready(());
            }
            match ready!(turned) {
                Ok(true) if self.turn.is_busy() => break,
                Ok(true) => {}
                Ok(false) | Err(_) => return Poll::Ready(()),
            }
        }
        self.turn.yield_now(cx);
        Poll::Pending
    }

    /// Counts what is kept for this connection until it goes on. `false` if that is more than there is room for.
    fn has_room(&mut self) -> bool {
        let kept = self.left.capacity() + self.unsent.capacity() + self.session.kept();
        self.unfinished.resize(kept.saturating_sub(FREE))
    }

    /// One step; whether another may follow.
    fn step(&mut self, cx: &mut Context<'_>, scratch: &mut Scratch) -> Poll<io::Result<bool>> {
        if self.watched.poll_told(cx) == Told::Leave {
            return Poll::Ready(Ok(false));
        }
        if let Next::Wait(replies) = &mut self.then {
            // Before the replies are sent: a client that does not read must not hold what others could have under way.
            replies.poll_all(cx);
        }
        ready!(self.send_unsent(cx))?;
        match &mut self.then {
            Next::End => {
                self.then = Next::Leaving(Farewell::new());
                self.socket.poll_end(cx).map_ok(|()| true)
            }
            Next::Leaving(farewell) => {
                farewell.poll(cx, &mut self.socket, &mut scratch.read).map(|()| Ok(false))
            }
            Next::Read => self.read(cx, scratch),
            Next::Answer => self.answer_left(cx, scratch),
            Next::Wait(replies) => {
                replies.take_ready(&mut self.unsent);
                if replies.is_empty() {
                    self.answered();
                    self.then = Next::Answer;
                } else if self.unsent.is_empty() {
                    return Poll::Pending;
                }
                Poll::Ready(Ok(true))
            }
        }
    }

    fn read(&mut self, cx: &mut Context<'_>, scratch: &mut Scratch) -> Poll<io::Result<bool>> {
        let mut buffer = std::mem::take(&mut scratch.read);
        if buffer.is_empty() {
            buffer = vec![0; READ].into(); // whoever had it has panicked, which must not be the end of all others
        }
        let share = if self.turn.is_busy() { READ } else { BUSY };
        let read = self.socket.poll_read(cx, &mut buffer[..share]);
        match read {
            Poll::Ready(Ok(length)) if length == share => self.turn.busy(),
            Poll::Pending => self.turn.caught_up(),
            Poll::Ready(_) => {}
        }
        let turned = match read {
            Poll::Pending
                if self.watched.told() == Told::Nothing || self.has_begun() || self.has_just_come() =>
            {
                Poll::Pending
            }
            Poll::Pending => {
                self.then = Next::End; // all that has arrived is answered
                Poll::Ready(Ok(true))
            }
            Poll::Ready(Ok(0)) => Poll::Ready(Ok(false)),
            Poll::Ready(Ok(length)) => self.take_in(cx, &buffer[..length], scratch),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
        };
        scratch.read = buffer;
        turned
    }

    fn take_in(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
        scratch: &mut Scratch,
    ) -> Poll<io::Result<bool>> {
        self.new_since = None;
        if !self.has_begun() {
            self.watched.active(self.now()); // more of the same request does not begin anew
        }
        if self.left.is_empty() {
            return self.answer(cx, bytes, scratch);
        }
        self.left.extend_from_slice(bytes);
        if self.left.len() < self.needs {
            return Poll::Ready(Ok(true));
        }
        self.answer_left(cx, scratch)
    }

    /// Answers what can be answered of these bytes, keeps the rest, and sends the replies.
    fn answer(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
        scratch: &mut Scratch,
    ) -> Poll<io::Result<bool>> {
        self.begin(scratch);
        let ran = self.session.run(bytes, &mut scratch.places, &mut scratch.out);
        self.left.extend_from_slice(&bytes[ran.consumed..]);
        self.went_on(ran.consumed);
        self.go_on(cx, ran.then, scratch)
    }

    /// The same of what was left. If that is still not enough it stays where it is: who sends a large request byte by
    /// byte must not have it copied for each of them.
    fn answer_left(&mut self, cx: &mut Context<'_>, scratch: &mut Scratch) -> Poll<io::Result<bool>> {
        self.begin(scratch);
        let ran = self.session.run(&self.left, &mut scratch.places, &mut scratch.out);
        if ran.consumed == self.left.len() {
            self.left = Vec::new();
        } else {
            self.left.drain(..ran.consumed);
        }
        self.went_on(ran.consumed);
        self.go_on(cx, ran.then, scratch)
    }

    /// Who has finished a request has its time for the next one.
    fn went_on(&self, consumed: usize) {
        if consumed > 0 {
            self.watched.moved(self.now());
        }
    }

    fn begin(&mut self, scratch: &mut Scratch) {
        scratch.out.clear();
        self.asked = Some(Instant::now());
        if self.watched.told() == Told::Finish {
            self.session.finish();
        }
    }

    fn go_on(&mut self, cx: &mut Context<'_>, then: Then, scratch: &mut Scratch) -> Poll<io::Result<bool>> {
        let out = &mut scratch.out;
        self.then = match then {
            Then::Needs(needs) => {
                self.needs = needs;
                Next::Read
            }
            Then::Flush => {
                self.turn.busy();
                Next::Answer
            }
            Then::Later(replies) => Next::Wait(replies),
            Then::Close => Next::End,
        };
        match self.then {
            Next::Wait(_) => {}
            _ if out.is_empty() => self.asked = None,
            _ => self.answered(),
        }
        match self.then {
            Next::Read if self.has_begun() => self.watched.stalled(self.now()),
            _ => self.watched.moved(self.now()),
        }
        let sent = self.send(cx, out);
        if out.capacity() > 2 * READ {
            *out = Vec::new();
        }
        sent
    }

    /// Notes how long all that had arrived together took: a clock is read for each turn, and not for each request.
    fn answered(&mut self) {
        if let Some(asked) = self.asked.take() {
            self.session.door().answers.saw(asked.elapsed());
        }
    }

    /// Whether the client has to finish a request.
    fn has_begun(&self) -> bool {
        self.session.has_begun(&self.left)
    }

    /// Whether it was accepted so short a time ago that its first request may be on its way. The service waits for that request also
    /// while it shuts down, and no longer than it drains.
    fn has_just_come(&self) -> bool {
        self.new_since.is_some_and(|tick| self.now() <= tick + 1)
    }

    /// The number of the thread, by which it is seen who is silent for too long.
    fn now(&self) -> u64 {
        self.floor.now.load(Ordering::Relaxed)
    }

    /// Sends replies; what the system does not take is kept.
    fn send(&mut self, cx: &mut Context<'_>, out: &[u8]) -> Poll<io::Result<bool>> {
        if out.is_empty() {
            return Poll::Ready(Ok(true));
        }
        let taken = match self.socket.poll_write(cx, out) {
            Poll::Ready(taken) => taken?,
            Poll::Pending => 0,
        };
        if taken < out.len() {
            self.unsent.extend_from_slice(&out[taken..]);
        }
        Poll::Ready(Ok(true))
    }

    fn send_unsent(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.unsent.len() {
            match self.socket.poll_write(cx, &self.unsent[self.sent..]) {
                Poll::Ready(taken) => {
                    self.sent += taken?;
                    self.watched.moved(self.now());
                }
                Poll::Pending => {
                    self.watched.stalled(self.now());
                    return Poll::Pending;
                }
            }
        }
        if self.socket.poll_flush(cx)?.is_pending() {
            self.watched.stalled(self.now());
            return Poll::Pending;
        }
        if self.sent > 0 {
            self.sent = 0;
            self.unsent.clear();
            self.unsent.shrink_to(KEEP);
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::task::Waker;

    use super::*;
    use crate::engine::{Engine, Rules};
    use crate::resp::{Later, Service, Session};
    use crate::serve::Stream;

    /// A connection to a service without rules, and the client's end of it.
    fn connected() -> (Connection<Session>, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("two ends");
        [&ours, &theirs].iter().for_each(|end| end.set_nonblocking(true).expect("a setting"));
        let (socket, peer) = Socket::new(Stream::Unix(ours)).expect("a socket");
        let service = Arc::new(Service::new(Engine::new(Rules::new()).expect("no rules")));
        let (watched, floor) = (Arc::new(Watched::new(0)), Arc::new(Floor::default()));
        (Connection::new(socket, Session::new(service, peer), watched, floor), theirs)
    }

    /// Reads what has arrived.
    fn read(stream: &mut UnixStream) -> Vec<u8> {
        let (mut got, mut piece) = (Vec::new(), [0; 4_096]);
        while let Ok(length @ 1..) = stream.read(&mut piece) {
            got.extend_from_slice(&piece[..length]);
        }
        got
    }

    #[tokio::test]
    async fn a_busy_connection_gets_a_share_and_then_waits_for_its_turn() {
        const COMMANDS: usize = 10_000;
        let (mut connection, mut client) = connected();
        client.write_all(&b"PING\r\n".repeat(COMMANDS)).expect("room for 60 kB");
        let (mut scratch, cx) = (Scratch::new(), &mut Context::from_waker(Waker::noop()));
        let mut got = Vec::new();
        for _ in 0..1_000 {
            assert!(connection.poll(cx, &mut scratch).is_pending());
            tokio::task::yield_now().await; // the runtime looks at the sockets
            got.extend(read(&mut client));
        }
        let answered = got.len() / "+PONG\r\n".len();
        assert!((1..=BUSY / 6 + 1).contains(&answered), "{answered} of {COMMANDS} without a turn");
        tokio::spawn(super::super::turns::give());
        while got.len() < COMMANDS * "+PONG\r\n".len() {
            assert!(connection.poll(cx, &mut scratch).is_pending());
            tokio::task::yield_now().await;
            got.extend(read(&mut client));
        }
    }

    #[tokio::test]
    async fn a_reply_that_comes_later_comes_before_all_that_was_asked_after_it() {
        let (mut connection, mut theirs) = connected();
        let (tell, told) = tokio::sync::oneshot::channel();
        let later: Later = Box::pin(async { told.await.expect("an answer") });
        connection.then = Next::Wait(later.into());
        connection.left = b"PING\r\n".to_vec();

        let (mut scratch, mut reply, cx) = (Scratch::new(), [0; 11], &mut Context::from_waker(Waker::noop()));
        assert!(connection.poll(cx, &mut scratch).is_pending());
        assert!(theirs.read(&mut reply).is_err(), "nothing is answered before");
        tell.send(b":1\r\n".to_vec()).expect("somebody who waits");
        let mut got = Vec::new();
        for _ in 0..1_000 {
            assert!(connection.poll(cx, &mut scratch).is_pending());
            tokio::task::yield_now().await; // the runtime has to see that the socket takes something
            while let Ok(length) = theirs.read(&mut reply) {
                got.extend_from_slice(&reply[..length]);
            }
        }
        assert_eq!(got, b":1\r\n+PONG\r\n");
    }
}
