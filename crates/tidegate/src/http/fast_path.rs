//! # Fast path of a request
//!
//! The most common limit is one rule with a key that is in the extensions of the request: the address of the socket. If
//! such a request needs neither a wait nor permits, one call to the gate decides it, and the general code around that
//! call would take as long as the call itself.
//!
//! The types of the key and of the gate are known when limits are built, so the compiler can inline both into one
//! function. On the slow path each is a separate trait object, with a virtual call to each.
//!
//! Writing a key to a buffer takes as long as hashing it. So a key that has at most seven bytes with its kind and
//! length, such as an IPv4 address, is passed in a register, and its fingerprint needs no hash. That halves the cost of
//! the limit, and is why the length of a part takes one byte and not four.
//!
//! A decision contains everything that could be reported to a client. If nothing is reported, `Gate::passes` returns
//! only whether the request passes, and the compiler removes the rest. A request that does not pass on this path is
//! decided again on the slow path, so it must not have been charged: the operation `Pass` charges only requests that
//! pass immediately. With header fields, `Gate::pass_with` returns three numbers on the same path.
//!
//! What remains for a single hot key is the clock (12 of about 60 ns), one compare-and-swap, the reference count of the
//! limits, and a lookup in the extensions. The lookup of the address is still a virtual call.

use std::sync::Arc;

use ::http::Extensions;

use super::key::RuleKey;
use crate::gate::{Gate, Part, Remaining};
use tidegate_core::RuleId;

/// The fast path that requests can take to their outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FastPath {
    /// No fast path.
    None,
    /// A single rule decides every request immediately, and nothing is reported to the client.
    Plain,
    /// As `Plain`, and every request costs 1, so that the extensions may be sufficient.
    InlineKey,
    /// As `InlineKey`, but the remaining quota is reported to the client.
    WithQuota,
}

/// Decides a request from its extensions alone, if they contain the key.
///
/// If they do not, nothing is charged.
pub(super) trait FastCheck: Send + Sync {
    /// See [`Gate::passes`].
    fn passes(&self, rule: RuleId, extensions: &Extensions) -> bool;

    /// See [`Gate::pass_with`].
    fn pass_with(&self, rule: RuleId, extensions: &Extensions) -> Option<Remaining>;
}

/// A gate and the key of one of its rules, with static dispatch.
pub(super) struct DirectCheck<G, K> {
    pub(super) gate: Arc<G>,
    pub(super) key: Arc<K>,
}

impl<G: Gate, K: RuleKey> FastCheck for DirectCheck<G, K> {
    fn passes(&self, rule: RuleId, extensions: &Extensions) -> bool {
        self.evaluate(rule, extensions, |gate, request| gate.passes(request).then_some(())).is_some()
    }

    fn pass_with(&self, rule: RuleId, extensions: &Extensions) -> Option<Remaining> {
        self.evaluate(rule, extensions, G::pass_with)
    }
}

impl<G: Gate, K: RuleKey> DirectCheck<G, K> {
    #[inline(always)]
    fn evaluate<T>(
        &self,
        rule: RuleId,
        extensions: &Extensions,
        evaluate: impl FnOnce(&G, &[Part<'_>]) -> Option<T>,
    ) -> Option<T> {
        let (bytes, length) = self.key.inline_rule_key(extensions)?.bytes();
        evaluate(&self.gate, &[Part::of(rule).key(&bytes[..length])])
    }
}
