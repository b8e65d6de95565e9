//! # Where one frame ends and the next begins
//!
//! The library tells of a call when its head is whole, and of nothing before that. Who sends the first bytes of a head
//! and then no more would ask nothing, and be let go as somebody who only rests: after minutes, and not after seconds
//! as whoever does that by HTTP/1.1. So whoever reads from the socket has these look along.
//!
//! ```text
//!   PRI * HTTP/2.0 … │ length  kind  flags  stream │ payload │ length  kind  flags  stream │ payload │ …
//!   ╰── greeting ──╯ ╰──────── 9 bytes ───────────╯
//! ```
//!
//! Nothing is checked here and nothing kept: whether it makes sense is for the library to say, which ends the
//! connection if it does not.

/// How far what has arrived goes.
#[derive(Debug)]
pub(super) struct Frames {
    /// Bytes of the greeting that are still to come.
    greeting: usize,
    /// What there is of the start of a frame, and how much that is.
    start: [u8; START],
    length: usize,
    /// Bytes of its payload that are still to come.
    payload: usize,
    /// Whether the head of a call is to go on in the next frame.
    is_in_head: bool,
}

const GREETING: usize = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();
const START: usize = 9;

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

impl Frames {
    /// Of a connection that nothing has come by.
    pub(super) fn new() -> Self {
        Frames { greeting: GREETING, start: [0; START], length: 0, payload: 0, is_in_head: false }
    }

    /// These have arrived.
    pub(super) fn saw(&mut self, bytes: &[u8]) {
        let mut rest = skip(&mut self.greeting, bytes);
        while !rest.is_empty() {
            rest = if self.payload > 0 { skip(&mut self.payload, rest) } else { self.start(rest) };
        }
    }

    /// Whether something has begun that the client has to go on with: the greeting, a frame, or the head of a call.
    pub(super) fn has_begun(&self) -> bool {
        let is_greeting = (1..GREETING).contains(&self.greeting);
        is_greeting || self.length > 0 || self.payload > 0 || self.is_in_head
    }

    /// Takes what belongs to the start of a frame; what is left of the bytes.
    fn start<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let (taken, rest) = bytes.split_at(bytes.len().min(START - self.length));
        self.start[self.length..][..taken.len()].copy_from_slice(taken);
        self.length += taken.len();
        if self.length == START {
            self.begin();
        }
        rest
    }

    fn begin(&mut self) {
        let [a, b, c, kind, flags, ..] = self.start;
        self.length = 0;
        self.payload = u32::from_be_bytes([0, a, b, c]) as usize;
        if kind == HEADERS || kind == CONTINUATION {
            self.is_in_head = flags & END_HEADERS == 0;
        }
    }
}

/// Goes past what is still to come of something; what is left of the bytes.
fn skip<'a>(to_come: &mut usize, bytes: &'a [u8]) -> &'a [u8] {
    let skipped = bytes.len().min(*to_come);
    *to_come -= skipped;
    &bytes[skipped..]
}

#[cfg(test)]
mod tests {
    use super::{CONTINUATION, END_HEADERS, Frames, HEADERS};

    const HELLO: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    const SETTINGS: u8 = 4;
    const PING: u8 = 6;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u8::try_from(payload.len()).expect("it is short");
        [&[0, 0, length, kind, flags, 0, 0, 0, 1], payload].concat()
    }

    /// After each of these, whether something has begun and is not whole.
    fn half(pieces: &[Vec<u8>]) -> Vec<bool> {
        let mut frames = Frames::new();
        let mut saw = |piece: &Vec<u8>| {
            frames.saw(piece);
            frames.has_begun()
        };
        pieces.iter().map(&mut saw).collect()
    }

    #[test]
    fn a_head_ends_where_it_says_so() {
        let head = [
            HELLO.to_vec(),
            frame(SETTINGS, 0, b""),
            frame(HEADERS, 0, b"some"),
            frame(CONTINUATION, 0, b""),
            frame(CONTINUATION, END_HEADERS, b"more"),
            frame(PING, 0, b"12345678"),
        ];
        assert_eq!(half(&head), [false, false, true, true, false, false]);
    }

    #[test]
    fn it_is_the_same_however_it_is_cut() {
        let whole = [HELLO, &frame(SETTINGS, 0, b"abcdef"), &frame(HEADERS, END_HEADERS, b"x")].concat();
        let ends = [HELLO.len(), HELLO.len() + 15, whole.len()];
        let bytes: Vec<_> = whole.iter().map(|byte| vec![*byte]).collect();
        let after: Vec<_> = (1..=whole.len()).map(|length| !ends.contains(&length)).collect();
        assert_eq!(half(&bytes), after);
        for at in 0..whole.len() {
            let (first, second) = whole.split_at(at);
            assert_eq!(half(&[first.to_vec(), second.to_vec()])[1..], [false]);
        }
    }

    #[test]
    fn who_has_said_nothing_has_begun_nothing() {
        assert!(!Frames::new().has_begun());
    }
}
