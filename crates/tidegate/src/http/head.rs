//! # A request without its body
//!
//! Whatever a limit goes by is in the head of a request. That it is all there is to see keeps every key independent
//! of the body's type, and nobody waits for a body to be sent.

use ::http::{Extensions, HeaderMap, Method, Request, Uri};

/// What is known of a request before its body is read.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Head<'a> {
    /// What is to be done.
    pub method: &'a Method,
    /// With what.
    pub uri: &'a Uri,
    /// What the client says besides.
    pub headers: &'a HeaderMap,
    /// What those who had the request before have found out about it.
    pub extensions: &'a Extensions,
}

impl<'a> Head<'a> {
    /// Of a request.
    #[must_use]
    pub fn of<B>(request: &'a Request<B>) -> Self {
        Head {
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            extensions: request.extensions(),
        }
    }

    /// The only value of a header; `None` if there is none, or more than one, or an empty one.
    ///
    /// Who may send a header twice may have one of them believed and the other counted.
    #[must_use]
    pub fn only_header(&self, name: &::http::HeaderName) -> Option<&'a [u8]> {
        let mut values = self.headers.get_all(name).iter();
        let first = values.next()?.as_bytes();
        let is_only = values.next().is_none() && !first.is_empty();
        is_only.then_some(first)
    }
}
