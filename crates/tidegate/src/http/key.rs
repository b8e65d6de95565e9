//! # Keys of requests
//!
//! The simplest key for two values is their concatenation: `"ab"` and `"c"`. But `"a"` and `"bc"` give the same key, so
//! a client that controls both values can choose which limit it uses. A separator only helps if it cannot occur in a
//! value, and in values that clients send every byte can occur. So each part is written with its kind and its length:
//!
//! ```text
//!   (method, header "x-user")     m 3 GET h 5 alice
//! ```
//!
//! No two different lists of parts have the same encoding, and an address never equals a header with the same text.
//! Long keys are hashed, not truncated: truncated keys collide.
//!
//! A part may be missing from a request, and what happens then is the oldest hole in rate limits. There is no default
//! for it here. A part that can be missing is a [`KeyPart`] but not a [`RuleKey`]. It becomes one by a choice of the
//! fallback: [`or_skip`](KeyPart::or_skip), [`or_address`](KeyPart::or_address), [`or_share`](KeyPart::or_share) or
//! [`or_refuse`](KeyPart::or_refuse). A rule without such a choice does not compile.

use std::error::Error;
use std::fmt;

use ::http::Extensions;

use super::address::ClientAddress;
use super::by::Address;
use super::head::Head;
use super::text::{InlineKey, KeyText, Kind};

/// A part of a key, which is taken from a request and may be missing.
///
/// The module [`by`](super::by) has the parts. Tuples of parts are parts.
pub trait KeyPart: Send + Sync + 'static {
    /// Writes this part of the request's key.
    ///
    /// # Errors
    ///
    /// [`MissingPart`] if the request lacks this part. The caller discards what was written until then.
    fn write(&self, head: &Head<'_>, key: &mut KeyText) -> Result<(), MissingPart>;

    /// Returns what [`write`](KeyPart::write) would write, if it is short.
    ///
    /// Sees only the extensions. `None` does not mean that the part is missing.
    #[doc(hidden)]
    fn inline_key(&self, extensions: &Extensions) -> Option<InlineKey> {
        let _ = extensions;
        None
    }

    /// Checks that the part is valid. Called once, when limits are built.
    ///
    /// # Errors
    ///
    /// [`InvalidKey`] if it is not.
    fn check(&self) -> Result<(), InvalidKey> {
        Ok(())
    }

    /// Whether this part is the same for every request.
    fn is_global(&self) -> bool {
        false
    }

    /// Does not apply the rule to requests that lack this part.
    fn or_skip(self) -> OrElse<Self>
    where
        Self: Sized,
    {
        OrElse { part: self, otherwise: Fallback::Skip }
    }

    /// Falls back to the client address when this part is missing.
    ///
    /// Requests from one address that lack this part share one key.
    fn or_address(self, client: ClientAddress) -> OrElse<Self>
    where
        Self: Sized,
    {
        OrElse { part: self, otherwise: Fallback::Address(Address(client)) }
    }

    /// Uses one shared key for all requests that lack this part.
    fn or_share(self) -> OrElse<Self>
    where
        Self: Sized,
    {
        OrElse { part: self, otherwise: Fallback::Share }
    }

    /// Refuses requests that lack this part.
    fn or_refuse(self) -> OrElse<Self>
    where
        Self: Sized,
    {
        OrElse { part: self, otherwise: Fallback::Refuse }
    }
}

/// A part that every request has.
#[diagnostic::on_unimplemented(
    message = "`{Self}` may be missing from a request, and nothing is said about what happens then",
    label = "may be missing",
    note = "say it of the whole key, as in `(a, b).or_skip()`: `.or_skip()`, `.or_address(client)`, `.or_share()` or `.or_refuse()`"
)]
pub trait TotalKey: KeyPart {}

/// A key for a rule: never missing, or with a fallback for requests that lack it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` may be missing from a request, and nothing is said about what happens then",
    label = "may be missing",
    note = "say it: `.or_skip()`, `.or_address(client)`, `.or_share()` or `.or_refuse()`"
)]
pub trait RuleKey: Send + Sync + 'static {
    /// Writes the key of this request, or returns what to do without one.
    fn write_or(&self, head: &Head<'_>, key: &mut KeyText) -> Written;

    /// As [`KeyPart::inline_key`].
    #[doc(hidden)]
    fn brief_or(&self, extensions: &Extensions) -> Option<InlineKey>;

    /// As [`KeyPart::check`].
    ///
    /// # Errors
    ///
    /// [`InvalidKey`] if the key is invalid.
    fn check_key(&self) -> Result<(), InvalidKey>;

    /// As [`KeyPart::is_global`].
    fn is_global(&self) -> bool;
}

/// A part that may be missing, with its fallback.
#[derive(Clone, Debug)]
pub struct OrElse<P> {
    part: P,
    otherwise: Fallback,
}

#[derive(Clone, Debug)]
enum Fallback {
    Skip,
    Share,
    Refuse,
    Address(Address),
}

/// The result of writing a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// The key is written.
    Key,
    /// The key is missing, and the rule does not apply.
    Skip,
    /// The key is missing, and the request must be refused.
    Refuse,
}

/// The request lacks a part of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingPart;

/// Why a key is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidKey {
    /// No header can have this name.
    NotAHeaderName {
        /// The name.
        name: String,
    },
    /// The text is not a template of a path.
    NotATemplate {
        /// The template.
        template: String,
    },
    /// The template has no such parameter.
    NoSuchParam {
        /// The template.
        template: String,
        /// The parameter.
        param: String,
    },
}

/// Returns the key that a rule uses for this request.
///
/// For calls to the gate by hand; to reset the key, for instance.
///
/// ```
/// use http::Request;
/// use tidegate::http::{Head, by, key_of};
/// use tidegate::{Part, Policy, Quota};
///
/// let policy = Policy::builder().rule("login", Quota::per_minute(5)).build()?;
/// let request = Request::new(());
/// let key = key_of(&(by::text("login"), by::method()), &Head::of(&request));
/// policy.reset(&[Part::of(policy.id("login").unwrap()).key(&key[..])])?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn key_of<P: TotalKey>(part: &P, head: &Head<'_>) -> Vec<u8> {
    let mut key = KeyText::new();
    let _ = part.write(head, &mut key); // never missing: it is a `TotalKey`
    key.shorten(0);
    key.bytes().to_vec()
}

// === impl RuleKey ===

impl<P: TotalKey> RuleKey for P {
    fn write_or(&self, head: &Head<'_>, key: &mut KeyText) -> Written {
        match self.write(head, key) {
            Ok(()) => Written::Key,
            Err(MissingPart) => Written::Refuse,
        }
    }

    fn brief_or(&self, extensions: &Extensions) -> Option<InlineKey> {
        self.inline_key(extensions)
    }

    fn check_key(&self) -> Result<(), InvalidKey> {
        self.check()
    }

    fn is_global(&self) -> bool {
        self.is_global()
    }
}

impl<P: KeyPart> RuleKey for OrElse<P> {
    fn write_or(&self, head: &Head<'_>, key: &mut KeyText) -> Written {
        let mark = key.mark();
        if self.part.write(head, key).is_ok() {
            return Written::Key;
        }
        key.back_to(mark);
        match &self.otherwise {
            Fallback::Skip => Written::Skip,
            Fallback::Refuse => Written::Refuse,
            Fallback::Address(address) => address.write_or(head, key),
            Fallback::Share => {
                key.part(Kind::Missing, |_| ());
                Written::Key
            }
        }
    }

    fn brief_or(&self, extensions: &Extensions) -> Option<InlineKey> {
        self.part.inline_key(extensions)
    }

    fn check_key(&self) -> Result<(), InvalidKey> {
        self.part.check()
    }

    fn is_global(&self) -> bool {
        self.part.is_global()
    }
}

macro_rules! tuples {
    ($(($($name:ident)+)),+ $(,)?) => {$(
        impl<$($name: KeyPart),+> KeyPart for ($($name,)+) {
            #[expect(non_snake_case, reason = "the names of the types are also those of the parts")]
            fn write(&self, head: &Head<'_>, key: &mut KeyText) -> Result<(), MissingPart> {
                let ($($name,)+) = self;
                $($name.write(head, key)?;)+
                Ok(())
            }

            #[expect(non_snake_case, reason = "the names of the types are also those of the parts")]
            fn check(&self) -> Result<(), InvalidKey> {
                let ($($name,)+) = self;
                $($name.check()?;)+
                Ok(())
            }

            #[expect(non_snake_case, reason = "the names of the types are also those of the parts")]
            fn is_global(&self) -> bool {
                let ($($name,)+) = self;
                true $(&& $name.is_global())+
            }
        }

        impl<$($name: TotalKey),+> TotalKey for ($($name,)+) {}
    )+};
}

tuples!((A B), (A B C), (A B C D), (A B C D E));

// === impl InvalidKey ===

impl fmt::Display for InvalidKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InvalidKey::NotAHeaderName { name } => {
                write!(
                    f,
                    "{name:?} is no name of a header; write letters, digits and hyphens, as in \"x-api-key\""
                )
            }
            InvalidKey::NotATemplate { template } => {
                write!(
                    f,
                    "{template:?} is no template of a path; write one such as \"/users/{{id}}\", with a slash first, \
                     each name once, and {{*rest}} only at the end"
                )
            }
            InvalidKey::NoSuchParam { template, param } => {
                write!(f, "{template:?} has no parameter {param:?}; write it as {{{param}}} there")
            }
        }
    }
}

impl Error for InvalidKey {}
