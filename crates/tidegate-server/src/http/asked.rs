//! # What is asked, in JSON
//!
//! Texts are borrowed from the body wherever JSON allows it. Whatever is wrong is said with its line and column; what
//! is not known is an error, for a field that is misspelt would otherwise be a limit that is not there.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use tidegate::clock::Clock;

use super::problem::Problem;
use crate::engine::{GrantId, InForce, LONGEST_VALUE, PlaceId, Question};
use crate::rules::{Call, Descriptor};

/// One request.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Asked<'a> {
    #[serde(borrow)]
    descriptors: Option<Descriptors<'a>>,
    #[serde(borrow)]
    domain: Option<Text<'a>>,
    /// A rule by its name, in the place of descriptors.
    #[serde(borrow)]
    rule: Option<Text<'a>>,
    /// Its key.
    #[serde(borrow)]
    key: Option<Key<'a>>,
    cost: Option<Whole<u32>>,
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Held<'a> {
    #[serde(borrow)]
    place: Text<'a>,
}

/// A rule and a key, for administrators.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Named<'a> {
    #[serde(borrow)]
    rule: Text<'a>,
    #[serde(borrow)]
    key: Option<Key<'a>>,
    /// For how many seconds.
    #[serde(rename = "for")]
    lasting: Option<Whole<u64>>,
}

/// Tokens that are to be spent elsewhere.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Leasing<'a> {
    #[serde(borrow)]
    rule: Text<'a>,
    #[serde(borrow)]
    key: Option<Key<'a>>,
    amount: Whole<u32>,
    /// For how many seconds.
    ttl: Option<f64>,
}

/// What is unspent of a grant.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Returned<'a> {
    #[serde(borrow)]
    rule: Text<'a>,
    #[serde(borrow)]
    key: Option<Key<'a>>,
    #[serde(borrow)]
    grant: Text<'a>,
    unspent: Whole<u32>,
}

/// A text, as it stands in the body if nothing in it is escaped.
#[derive(Debug)]
struct Text<'a>(Cow<'a, str>);

/// A number, told in words if it is none: callers need not know what a `u32` is.
#[derive(Debug)]
struct Whole<T>(T);

/// Names and values, in their order; a name may have several values.
#[derive(Debug)]
struct Descriptors<'a>(Vec<(Text<'a>, Text<'a>)>);

/// A key, or the values of a name: one, or a list of them.
#[derive(Debug)]
enum Key<'a> {
    One(Text<'a>),
    Many(Vec<Text<'a>>),
}

/// So long may a loan last.
const TTLS: std::ops::RangeInclusive<Duration> = Duration::from_millis(20)..=Duration::from_secs(3_600);
/// So many requests may be in a batch.
const MOST_ASKED: usize = 256;
/// So many values may a request have.
const MOST_VALUES: usize = 128;

/// Whether many are asked for together.
pub(crate) fn is_batch(body: &[u8]) -> bool {
    body.trim_ascii_start().first() == Some(&b'[')
}

/// What is asked.
pub(crate) fn one(body: &[u8]) -> Result<Asked<'_>, Problem> {
    serde_json::from_slice(body).map_err(|error| match body.trim_ascii() {
        b"" => Problem::bad("the body is empty; send JSON, such as {\"descriptors\": {\"user\": \"alice\"}}"),
        _ => no_json(error),
    })
}

/// The same of a batch.
pub(crate) fn many(body: &[u8]) -> Result<Vec<Asked<'_>>, Problem> {
    serde_json::from_slice(body).map(|Many(many)| many).map_err(no_json)
}

/// The place that is meant.
pub(crate) fn place(body: &[u8]) -> Result<PlaceId, Problem> {
    let held: Held<'_> = serde_json::from_slice(body).map_err(no_json)?;
    held.place.0.parse().map_err(|error| Problem::bad(format!("place {:?}: {error}", held.place.0)))
}

/// The rule and the key that are meant.
pub(crate) fn named(body: &[u8]) -> Result<Named<'_>, Problem> {
    serde_json::from_slice(body).map_err(no_json)
}

/// What is to be lent.
pub(crate) fn lease(body: &[u8]) -> Result<Leasing<'_>, Problem> {
    let asked: Leasing<'_> = serde_json::from_slice(body).map_err(no_json)?;
    match asked.amount() {
        0 => Err(Problem::bad("`amount` is 0, and nothing would be lent; ask for 1 or more")),
        _ => Ok(asked),
    }
}

/// What is given back.
pub(crate) fn returned(body: &[u8]) -> Result<Returned<'_>, Problem> {
    serde_json::from_slice(body).map_err(no_json)
}

/// A value may be as long as in every other protocol.
fn short<E: de::Error>(text: &str) -> Result<(), E> {
    match text.len() {
        ..=LONGEST_VALUE => Ok(()),
        bytes => Err(E::custom(format!("a text of {bytes} bytes; send at most {LONGEST_VALUE}"))),
    }
}

fn no_json(error: serde_json::Error) -> Problem {
    Problem::bad(format!("the body is not what was expected: {error}; docs/http-api.md has the fields"))
}

impl Asked<'_> {
    /// Puts it to the rules.
    pub(crate) fn question<'f, C: Clock + Send + Sync + 'static>(
        &self,
        rules: &'f std::sync::Arc<InForce<C>>,
    ) -> Result<Question<'f, C>, Problem> {
        match (&self.rule, &self.descriptors) {
            (Some(rule), None) => self.by_name(rules, &rule.0),
            (None, Some(descriptors)) if self.key.is_none() => {
                let pairs: Vec<Descriptor<'_>> = descriptors.pairs().collect();
                Ok(rules.ask().call(&self.call(&pairs)))
            }
            (None, Some(_)) => {
                Err(Problem::bad("a `key` belongs to a `rule`; descriptors make keys themselves"))
            }
            (Some(_), Some(_)) => Err(Problem::bad("both `rule` and `descriptors`; send one of them")),
            (None, None) => Err(Problem::bad("neither `descriptors` nor a `rule`; send one of them")),
        }
    }

    fn cost(&self) -> Option<u32> {
        self.cost.as_ref().map(|cost| cost.0)
    }

    fn call<'a>(&'a self, pairs: &'a [Descriptor<'a>]) -> Call<'a> {
        let domain = self.domain.as_ref().map_or("", |domain| &domain.0);
        Call { domain, descriptors: pairs, cost: self.cost() }
    }

    /// What it says, for an explanation.
    pub(crate) fn with_call<R>(&self, then: impl FnOnce(&Call<'_>) -> R) -> Result<R, Problem> {
        let Some(descriptors) = self.descriptors.as_ref().filter(|_| self.rule.is_none()) else {
            return Err(Problem::bad(
                "no `descriptors`; which rules apply is explained by what a request says",
            ));
        };
        let pairs: Vec<Descriptor<'_>> = descriptors.pairs().collect();
        Ok(then(&self.call(&pairs)))
    }

    fn by_name<'f, C: Clock + Send + Sync + 'static>(
        &self,
        rules: &'f std::sync::Arc<InForce<C>>,
        name: &str,
    ) -> Result<Question<'f, C>, Problem> {
        let given = given(self.key.as_ref());
        let number = numbered(rules, name, given)?;
        Ok(rules.ask().rule(number, given.iter().map(|part| part.0.as_bytes()), self.cost()))
    }
}

impl Leasing<'_> {
    /// The rule, by its place in the file.
    pub(crate) fn number<C>(&self, rules: &InForce<C>) -> Result<u32, Problem> {
        numbered(rules, &self.rule.0, given(self.key.as_ref()))
    }

    pub(crate) fn parts(&self) -> impl Iterator<Item = &[u8]> {
        given(self.key.as_ref()).iter().map(|part| part.0.as_bytes())
    }

    pub(crate) fn amount(&self) -> u32 {
        self.amount.0
    }

    pub(crate) fn ttl(&self) -> Result<Option<Duration>, Problem> {
        let Some(seconds) = self.ttl else { return Ok(None) };
        let ttl = Duration::try_from_secs_f64(seconds).ok().filter(|ttl| TTLS.contains(ttl));
        ttl.map(Some)
            .ok_or_else(|| Problem::bad(format!("`ttl` is {seconds}; use seconds from 0.02 to 3600")))
    }
}

impl Returned<'_> {
    /// The rule, by its place in the file.
    pub(crate) fn number<C>(&self, rules: &InForce<C>) -> Result<u32, Problem> {
        numbered(rules, &self.rule.0, given(self.key.as_ref()))
    }

    pub(crate) fn parts(&self) -> impl Iterator<Item = &[u8]> {
        given(self.key.as_ref()).iter().map(|part| part.0.as_bytes())
    }

    pub(crate) fn unspent(&self) -> u32 {
        self.unspent.0
    }

    pub(crate) fn id(&self) -> Result<GrantId, Problem> {
        let text = &self.grant.0;
        text.parse().map_err(|error| Problem::bad(format!("grant {text:?}: {error}")))
    }
}

fn given<'k, 'a>(key: Option<&'k Key<'a>>) -> &'k [Text<'a>] {
    match key {
        None => &[],
        Some(Key::One(part)) => std::slice::from_ref(part),
        Some(Key::Many(parts)) => parts,
    }
}

impl Named<'_> {
    /// The rule, by its place in the file.
    pub(crate) fn number<C>(&self, rules: &InForce<C>) -> Result<u32, Problem> {
        numbered(rules, &self.rule.0, self.given())
    }

    pub(crate) fn rule(&self) -> &str {
        &self.rule.0
    }

    /// For how many seconds, if it is said.
    pub(crate) fn lasting(&self) -> Option<u64> {
        self.lasting.as_ref().map(|seconds| seconds.0)
    }

    pub(crate) fn parts(&self) -> impl Iterator<Item = &[u8]> {
        self.given().iter().map(|part| part.0.as_bytes())
    }

    fn given(&self) -> &[Text<'_>] {
        given(self.key.as_ref())
    }
}

/// The place of a rule in the file, whose key has as many parts as are given.
fn numbered<C>(rules: &InForce<C>, name: &str, given: &[Text<'_>]) -> Result<u32, Problem> {
    let number = rules
        .rule(name.as_bytes())
        .ok_or_else(|| Problem::bad(format!("there is no rule {name:?}; the configuration has the names")))?;
    let parts = rules.compiled().rule(number as usize).map_or(0, |rule| rule.key.len());
    if parts != given.len() {
        return Err(Problem::bad(format!(
            "`key` has {} parts, and the key of rule {name:?} has {parts}; give all of them, as a list",
            given.len()
        )));
    }
    Ok(number)
}

impl<'a> Descriptors<'a> {
    fn pairs(&self) -> impl Iterator<Item = Descriptor<'_>> {
        self.0.iter().map(|(name, value)| (&*name.0, &*value.0))
    }
}

// === reading ===

#[derive(Debug)]
struct Many<'a>(Vec<Asked<'a>>);

impl<'de: 'a, 'a> Deserialize<'de> for Many<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Many<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of requests")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Many<'de>, A::Error> {
                let mut all = Vec::new();
                while let Some(item) = items.next_element()? {
                    if all.len() == MOST_ASKED {
                        return Err(de::Error::custom(format!("a batch has at most {MOST_ASKED} requests")));
                    }
                    all.push(item);
                }
                Ok(Many(all))
            }
        }
        from.deserialize_seq(Read)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Text<'de>, E> {
                short(text)?;
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Text<'de>, E> {
                short(text)?;
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        from.deserialize_str(Read)
    }
}

impl<'de, T: TryFrom<u64>> Deserialize<'de> for Whole<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Read<T>(PhantomData<T>);
        impl<T: TryFrom<u64>> Visitor<'_> for Read<T> {
            type Value = Whole<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a whole number from 0 to {}", u64::MAX >> (64 - 8 * size_of::<T>()))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Whole<T>, E> {
                let fits = T::try_from(number).map(Whole);
                fits.map_err(|_| E::invalid_value(de::Unexpected::Unsigned(number), &self))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Whole<T>, E> {
                Err(E::invalid_value(de::Unexpected::Signed(number), &self))
            }
        }
        from.deserialize_u64(Read(PhantomData))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Key<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Key<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, or a list of texts")
            }

            fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Key<'de>, E> {
                short(text)?;
                Ok(Key::One(Text(Cow::Borrowed(text))))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Key<'de>, E> {
                short(text)?;
                Ok(Key::One(Text(Cow::Owned(text.to_owned()))))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Key<'de>, A::Error> {
                let mut parts = Vec::new();
                while let Some(part) = items.next_element()? {
                    parts.push(part);
                }
                Ok(Key::Many(parts))
            }
        }
        from.deserialize_any(Read)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Descriptors<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Descriptors<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("names, each with a text or a list of texts")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Descriptors<'de>, A::Error> {
                let mut pairs = Vec::new();
                while let Some(name) = entries.next_key::<Text<'de>>()? {
                    match entries.next_value()? {
                        Key::One(value) => pairs.push((name, value)),
                        Key::Many(values) => {
                            pairs.extend(values.into_iter().map(|value| (Text(name.0.clone()), value)));
                        }
                    }
                    if pairs.len() > MOST_VALUES {
                        return Err(de::Error::custom(format!("a request has at most {MOST_VALUES} values")));
                    }
                }
                Ok(Descriptors(pairs))
            }
        }
        from.deserialize_map(Read)
    }
}
