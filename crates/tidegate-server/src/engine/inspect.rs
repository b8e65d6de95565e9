//! # What is left of each limit of a rule, for those who look after it

use std::sync::Arc;

use tidegate::Decision;
use tidegate::clock::Clock;

use super::in_force::{InForce, Store};
use super::{Answer, redis};
use crate::rules::Scratch;

/// The name of a limit, and what is left of it; `None` if the store does not tell.
pub type Left = (String, Option<Decision>);

impl<C: Clock + Send + Sync + 'static> InForce<C> {
    /// What is left of each limit of a rule for a key of these parts. Charges nothing. Empty if the rule has none for
    /// it, because the key is on one of its lists.
    pub fn inspect<'k>(
        self: &Arc<Self>,
        rule: u32,
        key: impl Iterator<Item = &'k [u8]>,
    ) -> Answer<Vec<Left>> {
        let mut scratch = Scratch::default();
        self.compiled().find_named(rule, key, None, &mut scratch);
        let matched = scratch.matched();
        let parts = matched.hits().iter().flat_map(|hit| matched.parts_of_hit(hit));
        let parts = parts.map(|part| (self.limit_name(part.rule), part.cost(0)));
        match &self.store {
            Store::Nothing => Answer::Ready(Vec::new()),
            Store::Memory(policy) => Answer::Ready(
                parts.map(|(name, part)| (name, policy.request().parts(&[part]).peek().ok())).collect(),
            ),
            Store::Redis(gate) => redis::left(parts, gate.clone()),
        }
    }
}
