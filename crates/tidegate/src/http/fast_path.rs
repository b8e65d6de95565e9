//! # Fast path of a request
//!
//! Most limits are one rule with a key that the extensions of a request contain: the address of its socket. If such a
//! request has nothing to wait for and no permits to hold, all it needs is one call to the gate, and the code around
//! that call would take as long as the call itself.
//!
//! The types of the key and of the gate are known when limits are built, so the compiler can make one function of both.
//! Afterwards each is behind a pointer of its own, with a call to each.
//!
//! Writing a key to a buffer takes as long as hashing it. So a key that has at most seven bytes with its kind
//! and length, such as an IPv4 address, is passed in a register, and its fingerprint needs no hash. That
//! saves half of what the limit itself took, and is why the length of a part takes one byte and not four.
//!
//! A decision carries everything that a client could be sent. If nothing is sent, `Gate::passes` asks only
//! whether the request passes, and the compiler drops the rest. A request that does not pass this way is
//! decided again on the slow path, so it must not have been charged: the operation `Pass` charges only
//! requests that may pass now. With header fields, `Gate::pass_with` returns three numbers on the same path.
//!
//! What remains for a single hot key is the clock (12 of some 60 ns), one compare-and-swap, the reference
//! count of the limits, and a lookup in the extensions. The lookup of the address is still behind a pointer.

use std::sync::Arc;

use ::http::Extensions;

use super::key::RuleKey;
use crate::gate::{Gate, Part, Remaining};
use tidegate_core::RuleId;

/// The fast path that requests can take to their outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FastPath {
    /// No fast path: every step is needed.
    None,
    /// From the key to the gate, with nothing to report to the client.
    ///
    /// A single rule decides every request immediately.
    Plain,
    /// The same, and all requests cost one, so that the extensions may suffice.
    InlineKey,
    /// As `InlineKey`, but the remaining quota is reported to the client.
    WithQuota,
}

/// Decides a request by its extensions alone, as far as they contain the key.
///
/// If they do not contain it, nothing has happened.
pub(super) trait Shortcut: Send + Sync {
    /// See [`Gate::passes`].
    fn passes(&self, rule: RuleId, extensions: &Extensions) -> bool;

    /// See [`Gate::pass_with`].
    fn pass_with(&self, rule: RuleId, extensions: &Extensions) -> Option<Remaining>;
}

/// A gate and the key of one of its rules.
pub(super) struct Direct<G, K> {
    pub(super) gate: Arc<G>,
    pub(super) key: Arc<K>,
}

impl<G: Gate, K: RuleKey> Shortcut for Direct<G, K> {
    fn passes(&self, rule: RuleId, extensions: &Extensions) -> bool {
        self.evaluate(rule, extensions, |gate, request| gate.passes(request).then_some(())).is_some()
    }

    fn pass_with(&self, rule: RuleId, extensions: &Extensions) -> Option<Remaining> {
        self.evaluate(rule, extensions, G::pass_with)
    }
}

impl<G: Gate, K: RuleKey> Direct<G, K> {
    #[inline(always)]
    fn evaluate<T>(
        &self,
        rule: RuleId,
        extensions: &Extensions,
        evaluate: impl FnOnce(&G, &[Part<'_>]) -> Option<T>,
    ) -> Option<T> {
        let (bytes, length) = self.key.brief_or(extensions)?.bytes();
        evaluate(&self.gate, &[Part::of(rule).key(&bytes[..length])])
    }
}
