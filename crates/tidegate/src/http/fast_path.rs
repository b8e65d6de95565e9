//! # How short the way is
//!
//! Most limits are one rule with a key that the extensions of a request tell: the address of its socket. Where nothing
//! is to be waited for or held, such a request has nothing to do but to ask the gate, and the rest of the way is as
//! long as that.
//!
//! What a key is and who the gate is are known when limits are built, so that the compiler can make one function of
//! both. Afterwards each is behind a pointer of its own, with a call to each.

use std::sync::Arc;

use ::http::Extensions;

use super::key::RuleKey;
use crate::gate::{Gate, Part, Remaining};
use tidegate_core::RuleId;

/// How short the way of a request to its ruling may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FastPath {
    /// All of it has to be gone.
    None,
    /// From the key to the gate: a single rule decides at once on every request, and nobody is told.
    Plain,
    /// The same, and all requests cost one, so that the extensions of a request may tell enough.
    InlineKey,
    /// As brief, but clients are told what is left.
    WithQuota,
}

/// From the extensions of a request to the answer of the gate, as far as those tell the key. Where they do not, nothing
/// has happened.
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
