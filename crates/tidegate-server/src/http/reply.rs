//! # What is said, and how it is sent

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;
use std::io::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper::StatusCode;

use super::head::{Head, Version};
use super::problem::Problem;

/// What is said to a request.
pub(crate) struct Said {
    status: StatusCode,
    kind: &'static str,
    body: Content,
}

/// The body of an answer.
enum Content {
    Whole(Cow<'static, str>),
    /// Too long to be in memory at once.
    Pieces(Pieces),
}

/// The pieces of a body, each made when the one before was sent.
pub(crate) type Pieces = Box<dyn Iterator<Item = String> + Send>;

/// How an answer is to be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Manner {
    body: Body,
    connection: Connection,
    /// Whether the client reads chunks.
    reads_chunks: bool,
}

#[derive(Clone, Copy, Debug)]
enum Body {
    Sent,
    /// Only how long it would be.
    Measured,
}

/// What is said of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Connection {
    /// Nothing: it stays, as is usual.
    Stays,
    /// That it stays, which is not usual.
    StaysForOnce,
    Ends,
}

/// The longest body, in bytes.
pub(super) const BODY: usize = 256 << 10;

impl Said {
    pub(crate) fn json(json: impl Into<Cow<'static, str>>) -> Self {
        Said { status: StatusCode::OK, kind: "application/json", body: Content::Whole(json.into()) }
    }

    /// In the format that Prometheus reads.
    pub(crate) fn metrics(text: impl Iterator<Item = String> + Send + 'static) -> Self {
        let kind = "text/plain; version=0.0.4; charset=utf-8";
        Said { status: StatusCode::OK, kind, body: Content::Pieces(Box::new(text)) }
    }

    /// That it does not serve, or not much longer.
    pub(crate) fn unavailable(json: String) -> Self {
        Said { status: StatusCode::SERVICE_UNAVAILABLE, ..Said::json(json) }
    }
}

impl Manner {
    /// To somebody of whom nothing is known, and who is not listened to any more.
    pub(super) const LAST: Self =
        Manner { body: Body::Sent, connection: Connection::Ends, reads_chunks: false };

    /// As is asked for.
    pub(super) fn of(head: &Head<'_>) -> Self {
        let body = if head.method == "HEAD" { Body::Measured } else { Body::Sent };
        let connection = match (head.is_last(), head.version) {
            (true, _) => Connection::Ends,
            (false, Version::Http11) => Connection::Stays,
            (false, Version::Http10) => Connection::StaysForOnce,
        };
        Manner { body, connection, reads_chunks: head.version == Version::Http11 }
    }

    /// The same, and nothing comes after it.
    pub(super) fn and_last(self) -> Self {
        Manner { connection: Connection::Ends, ..self }
    }

    pub(super) fn is_last(self) -> bool {
        self.connection == Connection::Ends
    }
}

/// That a body is longer than it may be.
pub(super) fn too_long() -> Problem {
    let detail = format!("the body is too long; send at most {BODY} bytes");
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
}

/// Writes whatever was said, as it is sent. Returns the pieces of a body that is not written yet: each is to be written as
/// a [`chunk`], and then the [`LAST_CHUNK`].
pub(super) fn write(told: Result<Said, Problem>, manner: Manner, out: &mut Vec<u8>) -> Option<Pieces> {
    match told {
        Ok(said) => response(said, manner, |_| (), out),
        Err(problem) => {
            let (kind, body) = ("application/problem+json", Content::Whole(problem.body().into()));
            let said = Said { status: problem.status, kind, body };
            response(said, manner, |out| more_of(&problem, out), out)
        }
    }
}

/// Writes a piece of a body.
pub(super) fn chunk(piece: &str, out: &mut Vec<u8>) {
    if piece.is_empty() {
        return; // a chunk without bytes would be the last
    }
    let _ = write!(out, "{:x}\r\n{piece}\r\n", piece.len()); // into memory nothing can fail
}

pub(super) const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

fn more_of(problem: &Problem, out: &mut Vec<u8>) {
    out.extend_from_slice(b"\r\ncache-control: no-store");
    if let Some(allow) = problem.allow {
        out.extend_from_slice(b"\r\nallow: ");
        out.extend_from_slice(allow.as_bytes());
    }
    if problem.status == StatusCode::UNAUTHORIZED {
        out.extend_from_slice(b"\r\nwww-authenticate: Bearer");
    }
}

fn response(
    said: Said,
    manner: Manner,
    more: impl FnOnce(&mut Vec<u8>),
    out: &mut Vec<u8>,
) -> Option<Pieces> {
    let Said { status, kind, body } = said;
    let body = match body {
        Content::Pieces(pieces) if !manner.reads_chunks => Content::Whole(pieces.collect::<String>().into()),
        body => body,
    };
    match status {
        StatusCode::OK => out.extend_from_slice(b"HTTP/1.1 200 OK"),
        other => {
            let _ = write!(out, "HTTP/1.1 {other}"); // into memory nothing can fail
        }
    }
    out.extend_from_slice(b"\r\ncontent-type: ");
    out.extend_from_slice(kind.as_bytes());
    match &body {
        Content::Whole(body) => {
            out.reserve(256 + body.len());
            out.extend_from_slice(b"\r\ncontent-length: ");
            out.extend_from_slice(itoa::Buffer::new().format(body.len()).as_bytes());
        }
        Content::Pieces(_) => out.extend_from_slice(b"\r\ntransfer-encoding: chunked"),
    }
    out.extend_from_slice(b"\r\ndate: ");
    out.extend_from_slice(&date());
    more(out);
    out.extend_from_slice(match manner.connection {
        Connection::Stays => b"\r\n\r\n",
        Connection::StaysForOnce => b"\r\nconnection: keep-alive\r\n\r\n",
        Connection::Ends => b"\r\nconnection: close\r\n\r\n",
    });
    match (manner.body, body) {
        (Body::Measured, _) => {}
        (Body::Sent, Content::Whole(body)) => out.extend_from_slice(body.as_bytes()),
        (Body::Sent, Content::Pieces(pieces)) => return Some(pieces),
    }
    None
}

impl fmt::Debug for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Said").field("status", &self.status).field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// As long as every date is.
type Date = [u8; 29];

thread_local! {
    /// The date of this second, which is the same for all who are answered in it.
    static DATE: Cell<(u64, Date)> = const { Cell::new((u64::MAX, [0; 29])) };
}

/// What time it is, as it is written in a head.
fn date() -> Date {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (second, date) = DATE.get();
    if second == now {
        return date;
    }
    let written = httpdate::HttpDate::from(UNIX_EPOCH + Duration::from_secs(now)).to_string();
    let date = written.as_bytes().try_into().unwrap_or(date);
    DATE.set((now, date));
    date
}
