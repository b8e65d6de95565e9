//! # Which limits a request has to pass
//!
//! A caller sends descriptors, pairs of a name and a value, and perhaps a domain and a cost. Rules say which requests
//! they are for, whose limit it is, and what a request takes. [`Compiled`] brings the two together:
//!
//! ```text
//!   path=/login  ip=10.1.2.3  user=alice          what the caller sends
//!        │            │           │
//!        ▼            ▼           ▼
//!   ┌ login     path is /login, key [ip],   5/min   ──► rule 0, key 10.1.2.3, cost 1
//!   │ per user  key [user],               100/s     ──► rule 1, key alice,    cost 1
//!   └ uploads   path is /upload             2 at once    not for this one: `explain` says why
//! ```
//!
//! All that match are a policy: the request passes all of them, or none is charged. Who decides that is a
//! [`Gate`](tidegate::gate::Gate), for which [`Matched::parts`] are the request.
//!
//! ```
//! use tidegate_server::rules::{Call, Compiled, Condition, KeyPart, Limit, Rule, RuleSet, Scratch, Test};
//!
//! let mut login = Rule::new("login", [Limit::Rate("5/min".parse()?)]);
//! login.conditions = vec![Condition::new("path", Test::is("/login"))];
//! login.key = vec![KeyPart::Value("user".into())];
//! let compiled = Compiled::new(RuleSet { rules: vec![login], ..RuleSet::default() });
//!
//! let mut scratch = Scratch::default(); // one for each thread, used again and again
//! let call = Call::of(&[("path", "/login"), ("user", "alice")]);
//! let matched = compiled.find(&call, &mut scratch);
//! assert_eq!(matched.hits().len(), 1);
//! assert_eq!(matched.key(&matched.hits()[0]), b"\x06alice");
//!
//! let elsewhere = Call::of(&[("path", "/"), ("user", "alice")]);
//! assert_eq!(compiled.find(&elsewhere, &mut scratch).hits(), []);
//! assert_eq!(compiled.explain(&elsewhere).rules[0].to_string(), "`path` is `/`, and not /login");
//! # Ok::<(), tidegate_core::InvalidQuota>(())
//! ```

mod compiled;
mod condition;
mod diff;
mod explain;
mod find;
mod index;
mod key;
mod named;
mod rule;
#[cfg(test)]
mod tests;

pub use compiled::{Compiled, Numbered};
pub use condition::{Condition, Descriptor, Networks, Pattern, Test, Values, all_implied, canonical};
pub use diff::{Diff, Identity};
pub use explain::{Explained, Why};
pub use find::{Call, Hit, Listed, Matched, Refusal, Scratch};
pub(crate) use index::Index;
pub use key::KeyPart;
pub(crate) use key::read_key;
pub use rule::{Cost, Limit, Missing, OnOutage, Override, Rule, RuleSet};
