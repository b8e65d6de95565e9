//! # How a call ended
//!
//! gRPC tells it in two headers after the answer: a number, and a sentence in which everything but plain ASCII is
//! escaped.

use std::fmt::Write;

use hyper::header::{HeaderMap, HeaderName, HeaderValue};

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Status {
    pub(crate) code: Code,
    pub(crate) message: String,
}

/// The numbers of gRPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    Ok = 0,
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    Unauthenticated = 16,
}

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

impl Status {
    pub(crate) const OK: Status = Status { code: Code::Ok, message: String::new() };

    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Status { code, message: message.into() }
    }

    pub(crate) fn write(&self, headers: &mut HeaderMap) {
        headers.insert(STATUS, HeaderValue::from(self.code as u16));
        if let Ok(message) = HeaderValue::try_from(escaped(&self.message))
            && !message.is_empty()
        {
            headers.insert(MESSAGE, message);
        }
    }
}

fn escaped(text: &str) -> String {
    text.bytes().fold(String::with_capacity(text.len()), |mut escaped, byte| {
        match byte {
            b' '..=b'~' if byte != b'%' => escaped.push(char::from(byte)),
            _ => {
                let _ = write!(escaped, "%{byte:02X}"); // into a string nothing can fail
            }
        }
        escaped
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_is_escaped_and_nothing_is_lost() {
        assert_eq!(escaped("a 100% \"limit\" — \n"), "a 100%25 \"limit\" %E2%80%94 %0A");
    }
}
