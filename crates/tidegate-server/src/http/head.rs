//! # Heads
//!
//! What comes before a body: a method, a path, and headers, of which a few matter here. They are read where they lie,
//! and nothing is kept of them.
//!
//! Where a request ends must not be a matter of opinion. Whoever passes requests on to us and sees an end elsewhere
//! than we do would hand us part of a body as somebody else's request. So a length that is said twice, or in two ways,
//! or in a way that is not known, is no request.

use std::mem::MaybeUninit;

use httparse::{Error, Header, Request, Status};
use hyper::StatusCode;

use super::problem::Problem;

/// The longest head of a request.
pub(super) const LONGEST: usize = 16 << 10;
/// So many headers may it have.
const MOST_HEADERS: usize = 100;

/// What is said before a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head<'a> {
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    /// Who asks; empty if nobody says so.
    pub(crate) authorization: &'a [u8],
    pub(super) host: Option<&'a [u8]>,
    /// The page that a browser sends it for.
    pub(super) origin: Option<&'a [u8]>,
    pub(super) content_type: Option<&'a [u8]>,
    pub(super) body: Length,
    /// Whether the client waits to hear that it should send the body.
    pub(super) expects: bool,
    pub(super) version: Version,
    /// Whether the client wants the connection to stay, if it says so.
    stays: Option<bool>,
}

/// How long a body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Length {
    /// So many bytes.
    Known(u64),
    /// As the chunks say that it comes in.
    Chunked,
}

/// The protocol a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    Http10,
    Http11,
}

impl<'a> Head<'a> {
    /// Reads a head from the beginning of `bytes`, and tells how long it is. `None` if more of it is to come.
    pub(super) fn read(bytes: &'a [u8]) -> Result<Option<(Self, usize)>, Problem> {
        let mut headers = [const { MaybeUninit::uninit() }; MOST_HEADERS];
        let (mut request, within) = (Request::new(&mut []), &bytes[..bytes.len().min(LONGEST)]);
        match request.parse_with_uninit_headers(within, &mut headers) {
            Ok(Status::Complete(length)) => Head::of(&request).map(|head| Some((head, length))),
            Ok(Status::Partial) if bytes.len() < LONGEST => Ok(None),
            Ok(Status::Partial) | Err(Error::TooManyHeaders) => Err(too_long()),
            Err(error) => Err(no_request(&format!("{error}"))),
        }
    }

    fn of(request: &Request<'_, 'a>) -> Result<Self, Problem> {
        let version = if request.version == Some(0) { Version::Http10 } else { Version::Http11 };
        let (method, target) = (request.method.unwrap_or_default(), request.path.unwrap_or_default());
        let mut head = Head {
            method,
            path: path(target),
            authorization: b"",
            host: None,
            origin: None,
            content_type: None,
            body: Length::Known(0),
            expects: false,
            version,
            stays: None,
        };
        let mut length = None;
        for header in request.headers.iter() {
            head.heed(header, &mut length)?;
        }
        if head.host.is_none() && version == Version::Http11 {
            return Err(no_request("it has no Host"));
        }
        head.body = length.unwrap_or(Length::Known(0));
        Ok(head)
    }

    fn heed(&mut self, header: &Header<'a>, length: &mut Option<Length>) -> Result<(), Problem> {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        let value = header.value.trim_ascii();
        if is("content-length") {
            self.ends(length, number(value).map(Length::Known))?;
        } else if is("transfer-encoding") {
            let is_known = self.version == Version::Http11 && value.eq_ignore_ascii_case(b"chunked");
            self.ends(length, is_known.then_some(Length::Chunked))?;
        } else if is("authorization") && self.authorization.is_empty() {
            self.authorization = value;
        } else if is("connection") {
            let has = |word: &[u8]| value.split(|byte| *byte == b',').any(|one| is_word(one, word));
            let stays = has(b"keep-alive").then_some(true);
            self.stays = if has(b"close") { Some(false) } else { self.stays.or(stays) };
        } else if is("host") {
            once(&mut self.host, value, "Host")?;
        } else if is("origin") {
            once(&mut self.origin, value, "Origin")?;
        } else if is("content-type") {
            once(&mut self.content_type, value, "Content-Type")?;
        } else if is("expect") {
            if !is_word(value, b"100-continue") {
                let detail =
                    format!("the Expect {:?} cannot be met; leave it out", value.escape_ascii().to_string());
                return Err(Problem::new(StatusCode::EXPECTATION_FAILED, detail));
            }
            self.expects = self.version == Version::Http11;
        }
        Ok(())
    }

    fn ends(&self, length: &mut Option<Length>, said: Option<Length>) -> Result<(), Problem> {
        match (length.is_some(), said) {
            (false, Some(_)) => *length = said,
            _ => return Err(no_request("where its body ends is said twice, or in a way that is not known")),
        }
        Ok(())
    }

    /// Whether nothing is asked after it on the same connection.
    pub(super) fn is_last(&self) -> bool {
        !self.stays.unwrap_or(self.version == Version::Http11)
    }
}

fn once<'a>(header: &mut Option<&'a [u8]>, value: &'a [u8], name: &str) -> Result<(), Problem> {
    match header.replace(value) {
        None => Ok(()),
        Some(_) => Err(no_request(&format!("it has more than one {name}"))),
    }
}

fn too_long() -> Problem {
    let detail =
        format!("the head is too long; send at most {LONGEST} bytes of it, and {MOST_HEADERS} headers");
    Problem::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, detail)
}

pub(super) fn no_request(why: &str) -> Problem {
    Problem::bad(format!("this is no request: {why}; send HTTP/1.1, with one Content-Length or in chunks"))
}

fn is_word(text: &[u8], word: &[u8]) -> bool {
    text.trim_ascii().eq_ignore_ascii_case(word)
}

/// Of digits, and nothing else.
fn number(text: &[u8]) -> Option<u64> {
    let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| is_number)?.parse().ok()
}

/// The path of what is asked for: without whose it is, as proxies are told, and without what comes after a `?`.
fn path(target: &str) -> &str {
    if !target.starts_with('/')
        && let Some((_, rest)) = target.split_once("://")
    {
        return path(rest.find('/').map_or("/", |start| &rest[start..]));
    }
    target.find('?').map_or(target, |end| &target[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Option<(Head<'_>, usize)>, u16> {
        Head::read(text.as_bytes()).map_err(|problem| problem.status.as_u16())
    }

    fn with(headers: &str) -> String {
        format!("POST /v1/check HTTP/1.1\r\nhost: a\r\n{headers}\r\n")
    }

    #[test]
    fn what_matters_is_read_and_the_rest_is_not() {
        let text = with("X: y\r\nCONTENT-length: 5\r\nAuthorization: Bearer b\r\nexpect: 100-Continue\r\n");
        let (head, length) = read(&text).expect("a head").expect("all of it");
        assert_eq!((head.method, head.path, head.body), ("POST", "/v1/check", Length::Known(5)));
        assert_eq!((head.authorization, head.expects, length), (&b"Bearer b"[..], true, text.len()));
        for end in 0..text.len() {
            assert_eq!(read(&text[..end]), Ok(None), "{}", &text[..end]);
        }
    }

    #[test]
    fn an_end_that_is_a_matter_of_opinion_is_none() {
        let rows = [
            "content-length: 5\r\ncontent-length: 5\r\n",
            "content-length: 5\r\ntransfer-encoding: chunked\r\n",
            "transfer-encoding: chunked\r\ncontent-length: 5\r\n",
            "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
            "transfer-encoding: gzip, chunked\r\n",
            "transfer-encoding: identity\r\n",
            "content-length: 5, 5\r\n",
            "content-length: +5\r\n",
            "content-length: 0x5\r\n",
            "content-length:\r\n",
            "content-length : 5\r\n",
            "a: b\r\n content-length: 5\r\n",
            "host: a\r\n",
            "origin: a\r\norigin: b\r\n",
        ];
        for row in rows {
            assert_eq!(read(&with(row)), Err(400), "{row}");
        }
        assert_eq!(read("POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n"), Err(400));
        assert_eq!(read("POST / HTTP/1.1\r\n\r\n"), Err(400));
        assert_eq!(read(&with("expect: 200-ok\r\n")), Err(417));
        let chunked = with("transfer-encoding: Chunked\r\n");
        assert_eq!(read(&chunked).expect("a head").expect("all of it").0.body, Length::Chunked);
    }

    #[test]
    fn who_stays_and_who_goes() {
        let rows = [
            ("1.1", "", false),
            ("1.1", "connection: close\r\n", true),
            ("1.1", "connection: x, Close\r\n", true),
            ("1.1", "connection: close\r\nconnection: keep-alive\r\n", true),
            ("1.1", "connection: closer\r\n", false),
            ("1.0", "", true),
            ("1.0", "connection: Keep-Alive\r\n", false),
        ];
        for (version, headers, is_last) in rows {
            let text = format!("GET / HTTP/{version}\r\nhost: a\r\n{headers}\r\n");
            assert_eq!(read(&text).expect("a head").expect("all").0.is_last(), is_last, "{text}");
        }
    }

    #[test]
    fn a_path_is_a_path_however_it_is_written() {
        let rows = [
            ("/a", "/a"),
            ("/a?b=/c", "/a"),
            ("/a?b=://c", "/a"),
            ("http://x:1/a?b", "/a"),
            ("http://x", "/"),
            ("*", "*"),
        ];
        assert!(rows.iter().all(|(target, expected)| path(target) == *expected));
    }

    #[test]
    fn a_head_has_bounds() {
        let long = with(&format!("x: {}\r\n", "y".repeat(LONGEST)));
        let many = with(&"x: y\r\n".repeat(MOST_HEADERS));
        let most = with(&"x: y\r\n".repeat(MOST_HEADERS - 1));
        assert_eq!((read(&long), read(&long[..LONGEST - 1]), read(&many)), (Err(431), Ok(None), Err(431)));
        assert!(read(&most).is_ok_and(|head| head.is_some()));
    }
}
