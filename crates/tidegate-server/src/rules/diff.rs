//! # What stays over a reload
//!
//! A file is read again, and nobody is to get a fresh burst for it. Counts belong to a limit as long as it is *the
//! same limit*: of the same name, for the same kind of key, by the same algorithm. Its numbers may change; then what
//! was used stays used.

use std::collections::HashMap;
use std::fmt;

use super::compiled::{Compiled, Numbered};
use super::key::KeyPart;
use super::rule::{Limit, Rule};

/// What distinguishes a limit from all others, over reloads too.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The rule's name; from the second on, the place among several quotas; and its override's: `per user/2@gold`.
    pub name: String,
    /// What its keys are made of.
    pub key: String,
    /// The letter of its algorithm, as in `Rule::setting`; `n` for those who are at work at once.
    pub algorithm: char,
}

/// What became of the limits of an older set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diff {
    /// The same as before: the old number and the new one.
    pub kept: Vec<(u16, u16)>,
    /// The same limit with other numbers: the old number and the new one.
    pub changed: Vec<(u16, u16)>,
    /// New: the new number.
    pub added: Vec<u16>,
    /// Gone: the old number.
    pub removed: Vec<u16>,
}

impl Identity {
    pub(crate) fn new(rule: &Rule, label: Option<&str>, place: usize, limit: &Limit) -> Self {
        let mut name = rule.name.clone();
        if place > 0 {
            name.push_str(&format!("/{}", place + 1));
        }
        if let Some(label) = label {
            name.push('@'); // neither it nor `/` can be in the name of a rule, and the label is last: no two are alike
            name.push_str(&short(label));
        }
        let key = rule.key.iter().map(shape).collect::<Vec<_>>().join(",");
        Identity { name, key, algorithm: letter(limit) }
    }
}

fn shape(part: &KeyPart) -> String {
    match part {
        KeyPart::Value(name) => format!("{name:?}"),
        KeyPart::Network { name, v4, v6 } => format!("{name:?}/{v4}/{v6}"),
    }
}

fn letter(limit: &Limit) -> char {
    match limit {
        Limit::Rate(rate) => char::from(rate.encode().letter()),
        Limit::AtOnce { .. } => 'n',
    }
}

/// The longest label that is part of a name as it is, in bytes.
const LONGEST_LABEL: usize = 40;

/// A label of bounded length: names are part of keys in Redis.
fn short(label: &str) -> String {
    if label.len() <= LONGEST_LABEL {
        return label.to_owned();
    }
    let cut = label.floor_char_boundary(LONGEST_LABEL - 17);
    format!("{}~{:016x}", &label[..cut], fnv(label.as_bytes()))
}

/// FNV-1a, which is the same on every machine and in every version. Labels come from the file, not from strangers.
fn fnv(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

impl Compiled {
    /// What became of the limits of `old`: which of them are here, the same or changed, which are new, and which are
    /// gone.
    #[must_use]
    pub fn diff(&self, old: &Compiled) -> Diff {
        let mut before: HashMap<_, _> =
            numbers(old.limits()).map(|(number, limit)| (&limit.identity, (number, limit))).collect();
        let mut diff = Diff::default();
        for (new, limit) in numbers(self.limits()) {
            match before.remove(&limit.identity) {
                Some((old, earlier)) if earlier.limit == limit.limit => diff.kept.push((old, new)),
                Some((old, _)) => diff.changed.push((old, new)),
                None => diff.added.push(new),
            }
        }
        diff.removed = before.into_values().map(|(number, _)| number).collect();
        diff.removed.sort_unstable();
        diff
    }
}

fn numbers(limits: &[Numbered]) -> impl Iterator<Item = (u16, &Numbered)> {
    limits.iter().enumerate().map(|(number, limit)| (u16::try_from(number).unwrap_or(u16::MAX), limit))
}

impl fmt::Display for Diff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kept, changed) = (self.kept.len(), self.changed.len());
        write!(
            f,
            "{kept} kept, {changed} changed, {} added, {} removed",
            self.added.len(),
            self.removed.len()
        )
    }
}
