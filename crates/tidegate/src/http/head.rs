//! # Request head
//!
//! Every key is taken from the head of a request. Because nothing else is visible, keys do not depend on the type of
//! the body, and no limit waits for a body to arrive.
//!
//! A key that reads the body would have to wait for it, so a client that sends slowly would occupy the
//! resource that the limit protects. `Head` is four references, so every key works in front of every service,
//! and a rule is one object behind one pointer.

use ::http::{Extensions, HeaderMap, Method, Request, Uri};

/// The parts of a request that are known before its body is read.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Head<'a> {
    /// The method.
    pub method: &'a Method,
    /// The target.
    pub uri: &'a Uri,
    /// The headers.
    pub headers: &'a HeaderMap,
    /// The extensions, as earlier layers have filled them.
    pub extensions: &'a Extensions,
}

impl<'a> Head<'a> {
    /// Borrows the head of a request.
    #[must_use]
    pub fn of<B>(request: &'a Request<B>) -> Self {
        Head {
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            extensions: request.extensions(),
        }
    }

    /// The only value of a header; `None` if it is missing, repeated or empty.
    ///
    /// With a repeated header, a client could have one value trusted and the other value counted.
    #[must_use]
    pub fn only_header(&self, name: &::http::HeaderName) -> Option<&'a [u8]> {
        let mut values = self.headers.get_all(name).iter();
        let first = values.next()?.as_bytes();
        let is_only = values.next().is_none() && !first.is_empty();
        is_only.then_some(first)
    }
}
