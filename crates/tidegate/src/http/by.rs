//! # Parts of keys
//!
//! Each function returns a part of a key, and a tuple of parts is a part. A part that is present in every request is a
//! complete key. Every other part needs a fallback for requests without it: see [`KeyPart`].
//!
//! | part | always present |
//! |---|---|
//! | [`global`], [`text`], [`method`] | yes |
//! | [`address`] | yes: all clients without an address share one key |
//! | [`header`], and [`secret`](Header::secret) | no |
//! | [`query`], [`route`], [`param`], [`host`] | no |
//! | [`extension`], such as an authenticated user, or axum's `MatchedPath` | no |
//! | [`value`], a closure | no |
//!
//! Limit by a header only if its value has been verified. A client that can invent values gets a fresh limit for each
//! value, and a client that can send the value of another client uses up that client's limit.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use ::http::header::{HOST, HeaderName};
use ::http::{Extensions, Method as HttpMethod};
use sha2::{Digest, Sha256};

use super::address::ClientAddress;
use super::head::Head;
use super::key::{InvalidKey, KeyPart, MissingPart, TotalKey};
use super::key_buf::{InlineKey, KeyBuf, KeyValue, Kind};
use super::route::decode;
pub use super::route::{Param, Route, param, route};

/// One limit for all requests together. Its key is empty.
#[must_use]
pub const fn global() -> Global {
    Global
}

/// A fixed text, which separates this use of a rule from other uses.
pub fn text(text: impl Into<Cow<'static, str>>) -> Text {
    Text(text.into())
}

/// The request method.
///
/// All non-standard methods share one key, because clients can invent any number of them.
#[must_use]
pub const fn method() -> Method {
    Method
}

/// The address of the client, or the prefix of it that [`ClientAddress::by_prefix`] sets.
#[must_use]
pub const fn address(client: ClientAddress) -> Address {
    Address(client)
}

/// The only value of a header. An empty or repeated header counts as missing.
pub fn header(name: impl Into<String>) -> Header {
    let name = name.into();
    Header { parsed: HeaderName::try_from(name.as_str()).ok(), name, is_secret: false }
}

/// The only value of a query parameter, decoded.
///
/// An empty or repeated parameter counts as missing.
pub fn query(name: impl Into<String>) -> Query {
    Query(name.into())
}

/// The requested host, in lower case, without a final dot and without port 80 or 443.
#[must_use]
pub const fn host() -> Host {
    Host
}

/// A value of an extension, such as the id of an authenticated user.
///
/// ```
/// use tidegate::http::{KeyPart, by};
/// #[derive(Clone)]
/// struct User { id: u64 }
/// let key = by::extension(|user: &User| &user.id).or_refuse();
/// ```
pub fn extension<T, V, F>(value: F) -> Extension<T, V, F>
where
    T: Send + Sync + 'static,
    V: KeyValue + ?Sized + 'static,
    F: Fn(&T) -> &V + Send + Sync + 'static,
{
    Extension { value, types: PhantomData }
}

/// A value that a closure computes from the request head.
///
/// ```
/// use std::borrow::Cow;
/// use tidegate::http::{KeyPart, by};
/// let version = by::value(|head| head.uri.path().split('/').nth(1).map(Cow::from)).or_share();
/// ```
pub fn value<F>(value: F) -> Value<F>
where
    F: for<'a> Fn(&Head<'a>) -> Option<Cow<'a, str>> + Send + Sync + 'static,
{
    Value(value)
}

/// See [`global`].
#[derive(Clone, Copy, Debug)]
pub struct Global;

/// See [`text`].
#[derive(Clone, Debug)]
pub struct Text(Cow<'static, str>);

/// See [`method`].
#[derive(Clone, Copy, Debug)]
pub struct Method;

/// See [`address`].
#[derive(Clone, Debug)]
pub struct Address(pub(super) ClientAddress);

/// See [`header`].
#[derive(Clone, Debug)]
pub struct Header {
    name: String,
    parsed: Option<HeaderName>,
    is_secret: bool,
}

/// See [`query`].
#[derive(Clone, Debug)]
pub struct Query(String);

/// See [`host`].
#[derive(Clone, Copy, Debug)]
pub struct Host;

/// See [`extension`].
pub struct Extension<T, V: ?Sized, F> {
    value: F,
    types: PhantomData<fn(&T) -> &V>,
}

/// See [`value`].
pub struct Value<F>(F);

// === impl KeyPart ===

impl KeyPart for Global {
    fn write(&self, _: &Head<'_>, _: &mut KeyBuf) -> Result<(), MissingPart> {
        Ok(())
    }

    fn is_global(&self) -> bool {
        true
    }
}

impl TotalKey for Global {}

impl KeyPart for Text {
    fn write(&self, _: &Head<'_>, key: &mut KeyBuf) -> Result<(), MissingPart> {
        key.part(Kind::Text, |key| self.0.put(key));
        Ok(())
    }

    fn is_global(&self) -> bool {
        true
    }
}

impl TotalKey for Text {}

impl KeyPart for Method {
    fn write(&self, head: &Head<'_>, key: &mut KeyBuf) -> Result<(), MissingPart> {
        let known = [
            HttpMethod::GET,
            HttpMethod::POST,
            HttpMethod::PUT,
            HttpMethod::DELETE,
            HttpMethod::HEAD,
            HttpMethod::OPTIONS,
            HttpMethod::CONNECT,
            HttpMethod::PATCH,
            HttpMethod::TRACE,
        ];
        let method = if known.contains(head.method) { head.method.as_str() } else { "" };
        key.part(Kind::Method, |key| method.put(key));
        Ok(())
    }
}

impl TotalKey for Method {}

impl KeyPart for Address {
    fn write(&self, head: &Head<'_>, key: &mut KeyBuf) -> Result<(), MissingPart> {
        self.0.write(head, key);
        Ok(())
    }

    fn inline_key(&self, extensions: &Extensions) -> Option<InlineKey> {
        self.0.inline_key(extensions)
    }
}

impl TotalKey for Address {}

impl Header {
    /// Hashes the value, so that the secret is neither stored nor sent to a store.
    ///
    /// For API keys, tokens and cookies.
    #[must_use]
    pub fn secret(self) -> Self {
        Header { is_secret: true, ..self }
    }
}

impl KeyPart for Header {
    fn write(&self, head: &Head<'_>, key: &mut KeyBuf) -> Result<(), MissingPart> {
        let name = self.parsed.as_ref().ok_or(MissingPart)?;
        let value = head.only_header(name).ok_or(MissingPart)?;
        if self.is_secret {
            let digest = Sha256::new().chain_update(b"tidegate secret\0").chain_update(value).finalize();
            key.part(Kind::Secret, |key| key.raw(&digest));
        } else {
            key.part(Kind::Header, |key| key.raw(value));
        }
        Ok(())
    }

    fn check(&self) -> Result<(), InvalidKey> {
        match self.parsed {
            Some(_) => Ok(()),
            None => Err(InvalidKey::InvalidHeaderName { name: self.name.clone() }),
        }
    }
}

impl KeyPart for Query {
    fn write(&self, head: &Head<'_>, key: &mut KeyBuf) -> Result<(), MissingPart> {
        let query = head.uri.query().ok_or(MissingPart)?;
        let mut values = query.split('&').filter_map(|pair| {
            let (name, value) = pair.split_once('=')?;
            decode(name, b'+').eq(self.0.bytes()).then_some(value)
        });
        let value = values.next().filter(|value| !value.is_empty()).ok_or(MissingPart)?;
        if values.next().is_some() {
            return Err(MissingPart); // ambiguous: the parameter occurs twice
        }
        key.part(Kind::Query, |key| decode(value, b'+').for_each(|byte| key.raw(&[byte])));
        Ok(())
    }
}

impl KeyPart for Host {
    fn write(&self, head: &Head<'_>, key: &mut KeyBuf) -> Result<(), MissingPart> {
        let in_header = || std::str::from_utf8(head.only_header(&HOST)?).ok();
        let authority = match head.uri.authority() {
            Some(authority) => authority.as_str(),
            None => in_header().ok_or(MissingPart)?,
        };
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let (name, port) = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => (name, port),
            _ => (host, ""),
        };
        key.part(Kind::Host, |key| {
            let name = name.strip_suffix('.').unwrap_or(name);
            name.bytes().for_each(|byte| key.raw(&[byte.to_ascii_lowercase()]));
            if !["", "80", "443"].contains(&port) {
                key.raw(b":");
                key.raw(port.as_bytes());
            }
        });
        Ok(())
    }
}

impl<T, V, F> KeyPart for Extension<T, V, F>
where
    T: Send + Sync + 'static,
    V: KeyValue + ?Sized + 'static,
    F: Fn(&T) -> &V + Send + Sync + 'static,
{
    fn write(&self, head: &Head<'_>, key: &mut KeyBuf) -> Result<(), MissingPart> {
        let extension = head.extensions.get::<T>().ok_or(MissingPart)?;
        key.part(Kind::Extension, |key| (self.value)(extension).put(key));
        Ok(())
    }
}

impl<F> KeyPart for Value<F>
where
    F: for<'a> Fn(&Head<'a>) -> Option<Cow<'a, str>> + Send + Sync + 'static,
{
    fn write(&self, head: &Head<'_>, key: &mut KeyBuf) -> Result<(), MissingPart> {
        let value = (self.0)(head).ok_or(MissingPart)?;
        key.part(Kind::Value, |key| value.put(key));
        Ok(())
    }
}

impl<T, V: ?Sized, F> fmt::Debug for Extension<T, V, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Extension({})", std::any::type_name::<T>())
    }
}

impl<F> fmt::Debug for Value<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Value(..)")
    }
}
