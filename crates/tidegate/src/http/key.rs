//! # Keys of requests
//!
//! The simplest way to limit by two things is to write one after the other: `"ab"` and `"c"`. That is the key of
//! `"a"` and `"bc"`, too, and who can choose both can choose whose limit to use. A separator only helps if it cannot
//! occur, and in what clients send everything occurs. So each part says what it is and how long it is:
//!
//! ```text
//!   (method, header "x-user")     m 3 GET h 5 alice
//! ```
//!
//! No two different lists of parts are written alike, and an address never looks like a header that says the same. Keys
//! that would be long are hashed, not cut off: what is cut off collides.
//!
//! A part may be missing, and what happens then is the oldest hole in limits. There is no default for it here. A part
//! that can be missing is a [`KeyPart`] but no [`RuleKey`], and becomes one by saying what then:
//! [`or_skip`](KeyPart::or_skip), [`or_address`](KeyPart::or_address), [`or_share`](KeyPart::or_share) or
//! [`or_refuse`](KeyPart::or_refuse). A rule with no such choice does not compile.

use std::error::Error;
use std::fmt;

use ::http::Extensions;

use super::address::ClientAddress;
use super::by::Address;
use super::head::Head;
use super::text::{InlineKey, KeyText, Kind};

/// Something of a request that it can be limited by, and that may be missing.
///
/// The parts there are come from [`by`](super::by). Tuples of parts are parts.
pub trait KeyPart: Send + Sync + 'static {
    /// Writes what this request has of it.
    ///
    /// # Errors
    ///
    /// [`MissingPart`] if it has none. What was written until then does not count.
    fn write(&self, head: &Head<'_>, key: &mut KeyText) -> Result<(), MissingPart>;

    /// What [`write`](KeyPart::write) would write, if that is short and the extensions suffice to know it. `None` says
    /// nothing.
    #[doc(hidden)]
    fn inline_key(&self, extensions: &Extensions) -> Option<InlineKey> {
        let _ = extensions;
        None
    }

    /// Whether it can be what it was said to be. Asked once, when limits are built.
    ///
    /// # Errors
    ///
    /// [`InvalidKey`] if not.
    fn check(&self) -> Result<(), InvalidKey> {
        Ok(())
    }

    /// Whether it is the same for everybody.
    fn is_global(&self) -> bool {
        false
    }

    /// Who has none is not limited by the rule.
    fn or_skip(self) -> OrElse<Self>
    where
        Self: Sized,
    {
        OrElse { part: self, otherwise: Fallback::Skip }
    }

    /// Who has none is limited by the address, as everybody is at that address who has none.
    fn or_address(self, client: ClientAddress) -> OrElse<Self>
    where
        Self: Sized,
    {
        OrElse { part: self, otherwise: Fallback::Address(Address(client)) }
    }

    /// All who have none share one key.
    fn or_share(self) -> OrElse<Self>
    where
        Self: Sized,
    {
        OrElse { part: self, otherwise: Fallback::Share }
    }

    /// Who has none is refused.
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

/// A key that a rule can go by: one that is never missing, or of which it is said what happens if it is.
#[diagnostic::on_unimplemented(
    message = "`{Self}` may be missing from a request, and nothing is said about what happens then",
    label = "may be missing",
    note = "say it: `.or_skip()`, `.or_address(client)`, `.or_share()` or `.or_refuse()`"
)]
pub trait RuleKey: Send + Sync + 'static {
    /// Writes the key of this request, or says why there is none.
    fn write_or(&self, head: &Head<'_>, key: &mut KeyText) -> Written;

    /// As [`KeyPart::inline_key`].
    #[doc(hidden)]
    fn brief_or(&self, extensions: &Extensions) -> Option<InlineKey>;

    /// As [`KeyPart::check`].
    ///
    /// # Errors
    ///
    /// [`InvalidKey`] if it cannot be a key.
    fn check_key(&self) -> Result<(), InvalidKey>;

    /// As [`KeyPart::is_global`].
    fn is_global(&self) -> bool;
}

/// A part that may be missing, and what happens then.
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

/// What became of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// It is written.
    Key,
    /// There is none, and the rule does not apply.
    Skip,
    /// There is none, and the request is to be refused.
    Refuse,
}

/// That a request lacks what it is to be limited by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingPart;

/// Why something cannot be a key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidKey {
    /// No header can have this name.
    NotAHeaderName {
        /// The name.
        name: String,
    },
    /// It is no template of a path.
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

/// The key that a rule goes by for this request, to ask its gate about it by hand; to reset it, for instance.
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
    let _ = part.write(head, &mut key); // it is always there
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
            #[expect(non_snake_case, reason = "the names of the types serve as those of the parts")]
            fn write(&self, head: &Head<'_>, key: &mut KeyText) -> Result<(), MissingPart> {
                let ($($name,)+) = self;
                $($name.write(head, key)?;)+
                Ok(())
            }

            #[expect(non_snake_case, reason = "the names of the types serve as those of the parts")]
            fn check(&self) -> Result<(), InvalidKey> {
                let ($($name,)+) = self;
                $($name.check()?;)+
                Ok(())
            }

            #[expect(non_snake_case, reason = "the names of the types serve as those of the parts")]
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
