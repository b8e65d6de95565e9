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
//! A request may lack a part, and an unsafe default for that case is a common bypass of rate limits. So there is no
//! default. A part that can be missing is a [`KeyPart`] but not a [`RuleKey`]. It becomes a `RuleKey` with a fallback: [`or_skip`](KeyPart::or_skip), [`or_address`](KeyPart::or_address), [`or_share`](KeyPart::or_share) or
//! [`or_refuse`](KeyPart::or_refuse). A rule without a fallback does not compile.

use std::error::Error;
use std::fmt;

use ::http::Extensions;

use super::address::ClientAddress;
use super::by::Address;
use super::head::Head;
use super::key_buf::{InlineKey, KeyBuf, Kind};

/// A part of a key, taken from a request. A request may lack it.
///
/// The module [`by`](super::by) has the parts. Tuples of parts are parts.
pub trait KeyPart: Send + Sync + 'static {
    /// Writes this part of the request's key.
    ///
    /// # Errors
    ///
    /// [`MissingPart`] if the request lacks this part. The caller discards what was written until then.
    fn write(&self, head: &Head<'_>, key: &mut KeyBuf) -> Result<(), MissingPart>;

    /// Returns what [`write`](KeyPart::write) would write, if that fits an [`InlineKey`].
    ///
    /// Reads only the extensions. `None` does not mean that the part is missing.
    #[doc(hidden)]
    fn inline_key(&self, extensions: &Extensions) -> Option<InlineKey> {
        let _ = extensions;
        None
    }

    /// Checks that the part is valid. Called once, when limits are built.
    ///
    /// # Errors
    ///
    /// [`InvalidKey`] if the part is invalid.
    fn check(&self) -> Result<(), InvalidKey> {
        Ok(())
    }

    /// Whether this part is the same for every request.
    fn is_global(&self) -> bool {
        false
    }

    /// Skips the rule for requests without this part.
    fn or_skip(self) -> OrElse<Self>
    where
        Self: Sized,
    {
        OrElse { part: self, on_missing: OnMissing::Skip }
    }

    /// Falls back to the client address when this part is missing.
    ///
    /// Requests from one address without this part share one key.
    fn or_address(self, client: ClientAddress) -> OrElse<Self>
    where
        Self: Sized,
    {
        OrElse { part: self, on_missing: OnMissing::Address(Address(client)) }
    }

    /// Uses one shared key for all requests without this part.
    fn or_share(self) -> OrElse<Self>
    where
        Self: Sized,
    {
        OrElse { part: self, on_missing: OnMissing::Share }
    }

    /// Refuses requests without this part, with status 400.
    fn or_refuse(self) -> OrElse<Self>
    where
        Self: Sized,
    {
        OrElse { part: self, on_missing: OnMissing::Refuse }
    }
}

/// A part that is present in every request.
#[diagnostic::on_unimplemented(
    message = "`{Self}` may be missing from a request and has no fallback",
    label = "may be missing",
    note = "add a fallback to the whole key, as in `(a, b).or_skip()`: `.or_skip()`, `.or_address(client)`, `.or_share()` or `.or_refuse()`"
)]
pub trait TotalKey: KeyPart {}

/// The key of a rule: present in every request, or with a fallback for when it is missing.
#[diagnostic::on_unimplemented(
    message = "`{Self}` may be missing from a request and has no fallback",
    label = "may be missing",
    note = "add a fallback: `.or_skip()`, `.or_address(client)`, `.or_share()` or `.or_refuse()`"
)]
pub trait RuleKey: Send + Sync + 'static {
    /// Writes the key of a request, or returns what to do if the key is missing.
    fn write_key(&self, head: &Head<'_>, key: &mut KeyBuf) -> KeyOutcome;

    /// As [`KeyPart::inline_key`].
    #[doc(hidden)]
    fn inline_rule_key(&self, extensions: &Extensions) -> Option<InlineKey>;

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
    on_missing: OnMissing,
}

#[derive(Clone, Debug)]
enum OnMissing {
    Skip,
    Share,
    Refuse,
    Address(Address),
}

/// The result of [`RuleKey::write_key`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyOutcome {
    /// The key is written.
    Key,
    /// The key is missing, and the rule does not apply.
    Skip,
    /// The key is missing, and the request must be refused.
    Refuse,
}

/// A request lacks a part of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingPart;

/// Why a key is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidKey {
    /// The name is not a valid header name.
    InvalidHeaderName {
        /// The name.
        name: String,
    },
    /// The text is not a valid path template.
    InvalidTemplate {
        /// The template.
        template: String,
    },
    /// The template has no such parameter.
    UnknownParam {
        /// The template.
        template: String,
        /// The parameter.
        param: String,
    },
}

/// Returns the key that a rule uses for this request.
///
/// For direct calls to the gate: to reset the key, for instance.
///
/// ```
/// use http::Request;
/// use tidegate::http::{Head, by, key_of};
/// use tidegate::{Policy, Quota};
///
/// let policy = Policy::builder().rule("login", Quota::per_minute(5)).build()?;
/// let request = Request::new(());
/// let key = key_of(&(by::text("login"), by::method()), &Head::of(&request));
/// policy.request().rule_for("login", &key[..]).reset()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn key_of<P: TotalKey>(part: &P, head: &Head<'_>) -> Vec<u8> {
    let mut key = KeyBuf::new();
    let _ = part.write(head, &mut key); // never missing: it is a `TotalKey`
    key.shorten(0);
    key.bytes().to_vec()
}

// === impl RuleKey ===

impl<P: TotalKey> RuleKey for P {
    fn write_key(&self, head: &Head<'_>, key: &mut KeyBuf) -> KeyOutcome {
        match self.write(head, key) {
            Ok(()) => KeyOutcome::Key,
            Err(MissingPart) => KeyOutcome::Refuse,
        }
    }

    fn inline_rule_key(&self, extensions: &Extensions) -> Option<InlineKey> {
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
    fn write_key(&self, head: &Head<'_>, key: &mut KeyBuf) -> KeyOutcome {
        let mark = key.mark();
        if self.part.write(head, key).is_ok() {
            return KeyOutcome::Key;
        }
        key.truncate_to(mark);
        match &self.on_missing {
            OnMissing::Skip => KeyOutcome::Skip,
            OnMissing::Refuse => KeyOutcome::Refuse,
            OnMissing::Address(address) => address.write_key(head, key),
            OnMissing::Share => {
                key.part(Kind::Missing, |_| ());
                KeyOutcome::Key
            }
        }
    }

    fn inline_rule_key(&self, extensions: &Extensions) -> Option<InlineKey> {
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
            #[expect(non_snake_case, reason = "each part is named like its type parameter")]
            fn write(&self, head: &Head<'_>, key: &mut KeyBuf) -> Result<(), MissingPart> {
                let ($($name,)+) = self;
                $($name.write(head, key)?;)+
                Ok(())
            }

            #[expect(non_snake_case, reason = "each part is named like its type parameter")]
            fn check(&self) -> Result<(), InvalidKey> {
                let ($($name,)+) = self;
                $($name.check()?;)+
                Ok(())
            }

            #[expect(non_snake_case, reason = "each part is named like its type parameter")]
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
            InvalidKey::InvalidHeaderName { name } => {
                write!(
                    f,
                    "{name:?} is not a valid header name; use letters, digits and hyphens, as in \"x-api-key\""
                )
            }
            InvalidKey::InvalidTemplate { template } => {
                write!(
                    f,
                    "{template:?} is not a valid path template; use one such as \"/users/{{id}}\": it starts with a slash, \
                     has each name once, and {{*rest}} only at the end"
                )
            }
            InvalidKey::UnknownParam { template, param } => {
                write!(f, "path template {template:?} has no parameter {param:?}; add {{{param}}} to it")
            }
        }
    }
}

impl Error for InvalidKey {}
