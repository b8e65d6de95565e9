//! # The core behind the interface of the script
//!
//! Several rules, each with a cost of its own. The logic of a policy is repeated here by hand, because in the
//! core all costs of a policy are the same.

use tidegate_core::{Algorithm, Decision, Micros, Rule, RuleId};

use crate::wire::{Reply, RuleReply};

/// One rule and its state.
#[derive(Clone, Debug)]
pub(crate) struct RuleState {
    pub(crate) rule: Rule,
    pub(crate) words: Vec<u64>,
}

/// One key under several rules, as the core has it.
#[derive(Clone, Debug)]
pub(crate) struct Reference {
    pub(crate) states: Vec<RuleState>,
    /// Whether states are dropped when they expire, which is at the first whole millisecond at which they
    /// make no difference.
    pub(crate) forgets: bool,
}

impl Reference {
    pub(crate) fn new(rules: &[Rule], forgets: bool) -> Self {
        let states = rules.iter().map(|&rule| RuleState { rule, words: vec![0; rule.words()] }).collect();
        Reference { states, forgets }
    }

    pub(crate) fn call(&mut self, at: Micros, operation: &str, costs: &[u32]) -> Reply {
        if self.forgets {
            self.states.iter_mut().for_each(|state| state.forget_expired(at));
        }
        match operation {
            "check" => self.check(at, costs),
            "peek" => self.clone().check(at, costs),
            "take" => self.take(at, costs),
            "force" => {
                self.each(at, costs, |states, cost| states.rule.force(states.words.as_mut_slice(), at, cost))
            }
            "refund" => self.each(at, costs, |states, cost| states.refund(at, cost)),
            "reset" => self.each(at, costs, |states, _| states.reset(at)),
            other => panic!("{other} is no operation of the core"),
        }
    }

    fn check(&mut self, at: Micros, costs: &[u32]) -> Reply {
        let allows = |(states, &cost): (&RuleState, &u32)| states.peek(at, cost).is_allowed();
        if self.states.iter().zip(costs).all(allows) {
            return self
                .each(at, costs, |states, cost| states.rule.decide(states.words.as_mut_slice(), at, cost));
        }
        self.each(at, costs, |states, cost| {
            let allows = states.peek(at, cost);
            let decision = if allows.is_allowed() { states.peek(at, 0) } else { allows };
            states.repair(at);
            decision
        })
    }

    fn take(&mut self, at: Micros, costs: &[u32]) -> Reply {
        let available = self.states.iter().map(|state| state.peek(at, 0).remaining()).min().unwrap_or(0);
        let amount = costs[0].min(u32::try_from(available).unwrap_or(u32::MAX));
        let reply = self.check(at, &vec![amount; costs.len()]);
        Reply { taken: Some(u64::from(amount)), ..reply }
    }

    fn each(
        &mut self,
        at: Micros,
        costs: &[u32],
        mut f: impl FnMut(&mut RuleState, u32) -> Decision,
    ) -> Reply {
        let decisions: Vec<Decision> = (0..)
            .map(RuleId)
            .zip(self.states.iter_mut().zip(costs))
            .map(|(rule, (states, &cost))| f(states, cost).of_rule(rule))
            .collect();
        let strictest = decisions.iter().copied().reduce(Decision::and).expect("there are rules");
        let rules = decisions.iter().map(RuleReply::of).collect();
        Reply { now: at.get(), binding: u64::from(strictest.rule.0) + 1, rules, taken: None }
    }
}

impl RuleState {
    pub(crate) fn peek(&self, at: Micros, cost: u32) -> Decision {
        self.rule.peek(self.words.as_slice(), at, cost)
    }

    fn refund(&mut self, at: Micros, cost: u32) -> Decision {
        self.rule.refund(self.words.as_mut_slice(), at, cost);
        self.peek(at, 0)
    }

    fn reset(&mut self, at: Micros) -> Decision {
        self.words.fill(0);
        self.peek(at, 0)
    }

    fn repair(&mut self, at: Micros) {
        let before = self.words.clone();
        self.rule.repair(self.words.as_mut_slice(), at);
        if self.words != before && self.idle_at() <= at {
            self.words.fill(0);
        }
    }

    fn forget_expired(&mut self, at: Micros) {
        if self.expiry().is_some_and(|expiry| expiry * 1_000 <= at.get()) {
            self.words.fill(0);
        }
    }

    pub(crate) fn idle_at(&self) -> Micros {
        self.rule.idle_at(self.words.as_slice())
    }

    /// The first whole millisecond at which the state makes no difference; `None` for a key never seen.
    pub(crate) fn expiry(&self) -> Option<u64> {
        let idle_at = self.idle_at();
        (idle_at > Micros::ZERO).then(|| idle_at.get().div_ceil(1_000))
    }
}
