//! # One part of a request while it is decided
//!
//! Either a state in the table of its rule, or a place among those at work. The order of events is
//! [elsewhere](super::charge); here is what each of them means for one part.

use std::sync::Arc;

use super::line::{Lines, Spot};
use crate::concurrency::{KeyedPermit, Keys, Refused, Visit, refusal};
use crate::gate::{Key, Part};
use crate::hold::Patience;
use crate::keyed::{Keyed, KeyedStep, Regime};
use crate::shared::When;
use crate::table::{Claim, Locks};
use crate::verb::{Check, Peek, Verb};
use tidegate_core::{Algorithm, Decision, Micros, Outcome, RuleId, Wait};

/// What a request is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// To pass.
    Charge,
    /// To pass, and to know of each part what it had to say.
    Explain,
    /// To know whether it would.
    Look,
    /// To pass now: who has a turn later is refused until then. By somebody who waits, with its number if it is in line.
    Pass { number: Option<u64> },
}

impl Wish {
    /// Whether a decision is what was wished for.
    pub(super) fn is_met_by(self, decision: &Decision) -> bool {
        match self {
            Wish::Pass { .. } => decision.outcome == Outcome::Allowed,
            Wish::Charge | Wish::Explain | Wish::Look => decision.is_allowed(),
        }
    }

    /// Whether an observer is shown each decision. Of those who wait it is shown what came of it.
    pub(super) fn is_observed(self) -> bool {
        matches!(self, Wish::Charge | Wish::Explain)
    }

    /// The number in line of whoever has one.
    fn number(self) -> Option<u64> {
        match self {
            Wish::Pass { number } => number,
            Wish::Charge | Wish::Explain | Wish::Look => None,
        }
    }
}

/// How often others may be faster at a word that is everybody's before all must begin again.
pub(super) const TRIES: usize = 8;

#[derive(Debug)]
pub(super) struct Turn<'a, A> {
    rule: RuleId,
    cost: u32,
    everybodys: bool,
    /// What this part alone was told by its state.
    own: Option<Decision>,
    /// Somebody else comes first there, and will try again at this instant.
    behind: Option<Micros>,
    of: Of<'a, A>,
}

/// What kind of limit it is.
#[derive(Debug)]
enum Of<'a, A> {
    Rate { keyed: &'a Keyed<A>, fingerprint: u64, now: Option<Now<'a, A>> },
    AtOnce { keys: &'a Arc<Keys>, fingerprint: u64, visit: Option<Visit>, permit: Option<KeyedPermit> },
}

/// A rate, as it is at this attempt.
#[derive(Debug)]
struct Now<'a, A> {
    regime: &'a Regime<A>,
    number: usize,
    when: When,
    claim: Claim<'a>,
}

impl<'a, A: Algorithm> Turn<'a, A> {
    /// At a rate. Has memory send what will be needed.
    #[inline]
    pub(super) fn rate(part: &Part<'_>, keyed: &'a Keyed<A>) -> Self {
        let fingerprint = keyed.fingerprint_of(part.key);
        keyed.current().table.send_for(fingerprint);
        Turn::new(part, Of::Rate { keyed, fingerprint, now: None })
    }

    /// At a limit on how many are at work.
    pub(super) fn at_once(part: &Part<'_>, keys: &'a Arc<Keys>) -> Self {
        let fingerprint = keys.fingerprint_of(part.key);
        Turn::new(part, Of::AtOnce { keys, fingerprint, visit: None, permit: None })
    }

    #[inline]
    fn new(part: &Part<'_>, of: Of<'a, A>) -> Self {
        let Part { rule, key, cost, .. } = *part;
        Turn { rule, cost, everybodys: Key::is_empty(key), own: None, behind: None, of }
    }

    pub(super) fn is_everybodys(&self) -> bool {
        self.everybodys
    }

    /// What this part alone was told. The binding one's is the request's.
    #[inline]
    pub(super) fn decision(&self) -> Decision {
        match self.behind {
            None => self.own(),
            Some(again) => self.held_back(again),
        }
    }

    /// What its state said, whoever stands in line there.
    #[inline]
    pub(super) fn own(&self) -> Decision {
        self.own.expect("every part is judged before anybody asks")
    }

    pub(super) fn cost(&self) -> u32 {
        self.cost
    }

    #[inline]
    fn told(&mut self, decision: Decision) {
        self.own = Some(decision.of_rule(self.rule));
    }

    /// Where one stands in line for it.
    pub(super) fn spot(&self) -> Spot {
        let (Of::Rate { fingerprint, .. } | Of::AtOnce { fingerprint, .. }) = self.of;
        Spot { rule: self.rule, fingerprint }
    }

    /// Comes to where its permits come back, if it is about permits.
    pub(super) fn visit(&self) -> Option<Result<Visit, Refused>> {
        match &self.of {
            Of::Rate { .. } => None,
            Of::AtOnce { keys, fingerprint, .. } => Some(Keys::visit(keys, *fingerprint)),
        }
    }

    /// Looks whether somebody stands in line at its state who came before.
    #[cold]
    pub(super) fn give_way(&mut self, lines: &Lines, wish: Wish) {
        if self.cost > 0 {
            self.behind = lines.first_before(self.spot(), wish.number());
        }
    }

    /// What there is to say to somebody who has to let others pass first, who will try again at `again`.
    fn held_back(&self, again: Micros) -> Decision {
        let own = self.own();
        let own_wait = match own.outcome {
            Outcome::Busy | Outcome::Never => return own,
            Outcome::RetryAfter(wait) | Outcome::AllowedAfter(wait) => wait.as_micros(),
            Outcome::Allowed => 0,
        };
        let outcome = match self.of {
            Of::AtOnce { .. } => Outcome::Busy,
            // At least a moment: the other may be late.
            Of::Rate { .. } => Outcome::RetryAfter(Wait::micros(own_wait.max(again.since(own.at())).max(1))),
        };
        let mut held_back = Decision::counted(outcome, own.at(), own.limit(), 0, own.reset_after());
        held_back.source = own.source;
        held_back.of_rule(self.rule)
    }

    /// Looks at what can be seen without holding anything. `None`: all must begin again.
    #[inline]
    pub(super) fn judge(&mut self, wish: Wish, when: When) -> Option<()> {
        let decision = match &mut self.of {
            Of::Rate { keyed, fingerprint, now } => {
                let number = keyed.regimes.current();
                let regime = keyed.regimes.get(number);
                let claim = Claim::new(&regime.table, *fingerprint);
                let now = now.insert(Now { regime, number, when: when.not_before(regime.since), claim });
                now.judge(keyed, wish, self.cost)?
            }
            Of::AtOnce { keys, fingerprint, visit, .. } => {
                Some(judge_permit(keys, *fingerprint, visit, self.cost, when.now))
            }
        };
        // Whatever was said at an earlier attempt is not so any more.
        self.own = decision.map(|decision| decision.of_rule(self.rule));
        self.behind = None;
        Some(())
    }

    pub(super) fn is_new(&self) -> bool {
        matches!(&self.of, Of::Rate { now: Some(now), .. } if now.claim.is_new())
    }

    /// Whether nothing speaks against it so far.
    pub(super) fn may_pass(&self) -> bool {
        self.behind.is_none() && self.own.is_none_or(|own| own.is_allowed())
    }

    /// Sets a place aside, if there is none yet. `None`: all must begin again.
    pub(super) fn make_room(&mut self, locks: &mut Locks<'a>) -> Option<()> {
        if let Of::Rate { keyed, now: Some(now), .. } = &mut self.of
            && now.claim.is_new()
        {
            let decision = now.make_room(keyed, locks, self.cost)?;
            self.told(decision);
        }
        Some(())
    }

    /// Holds and judges a state that could not be looked at before. `None`: all must begin again.
    #[inline]
    pub(super) fn hold_beside(&mut self) -> Option<()> {
        if let Of::Rate { keyed, now: Some(now), .. } = &mut self.of {
            let found = now.with_step(keyed, &Peek(self.cost), |claim, step| claim.hold_beside(step))?;
            if let Some(found) = found {
                self.told(found);
            }
        }
        Some(())
    }

    /// Holds the word that was judged. `false`: all must begin again.
    #[inline]
    pub(super) fn hold_word(&mut self, wish: Wish) -> bool {
        let (everybodys, cost) = (self.everybodys, self.cost);
        let Of::Rate { keyed, now: Some(now), .. } = &mut self.of else { return true };
        now.with_step(keyed, &Check(cost), |claim, step| claim.hold_word(step))
            || everybodys && now.claim.is_judged() && self.hold_at_last(wish)
    }

    /// Holds a word that others want too and have changed meanwhile, if it still lets the request pass. Beginning again
    /// would lose it again: the other words take longer than it stays the same.
    #[cold]
    fn hold_at_last(&mut self, wish: Wish) -> bool {
        let mut patience = Patience::new();
        for _ in 0..TRIES {
            patience.wait();
            let Of::Rate { keyed, now: Some(now), .. } = &mut self.of else { return false };
            let check = Check(self.cost);
            let Some(decision) = now.with_step(keyed, &check, |claim, step| claim.judge_again(step)) else {
                continue;
            };
            let passes = wish.is_met_by(&decision);
            let held = passes && now.with_step(keyed, &check, |claim, step| claim.hold_word(step));
            let lost = now.claim.is_judged() && passes;
            self.told(decision);
            if !lost {
                return held;
            }
        }
        false
    }

    /// Takes a permit if this is what it is about. `false` if there is none any more, which is then the decision.
    #[inline]
    pub(super) fn take_permit(&mut self) -> bool {
        let Of::AtOnce { visit, permit, .. } = &mut self.of else { return true };
        let Some(visit) = visit.take() else { return false };
        match KeyedPermit::try_of(visit, self.cost) {
            Ok(taken) => {
                *permit = Some(taken);
                true
            }
            Err(refused) => {
                let at = self.decision().at();
                self.told(refusal(refused, at));
                false
            }
        }
    }

    pub(super) fn give_permit_back(&mut self) {
        drop(self.permit());
    }

    /// The permit that was taken.
    pub(super) fn permit(&mut self) -> Option<KeyedPermit> {
        match &mut self.of {
            Of::AtOnce { permit, .. } => permit.take(),
            Of::Rate { .. } => None,
        }
    }

    /// Charges what is held, and lets go of it.
    #[inline]
    pub(super) fn charge(&mut self, locks: &mut Locks<'a>) {
        if let Of::Rate { keyed, now: Some(now), .. } = &mut self.of {
            now.with_step(keyed, &Check(self.cost), |claim, step| claim.charge(locks, step));
        }
    }

    /// Ends a request that charges nothing. `false` if this part was judged by what is not there any more.
    pub(super) fn leave(&mut self, wish: Wish, locks: &mut Locks<'a>) -> bool {
        if self.behind.is_some() {
            return true; // refused by no state
        }
        let refused = !self.may_pass();
        match (&mut self.of, wish) {
            (Of::Rate { keyed, now: Some(now), .. }, Wish::Look) => {
                now.with_step(keyed, &Peek(self.cost), |claim, step| claim.repair(locks, step))
            }
            (Of::Rate { keyed, now: Some(now), .. }, _) if refused => {
                now.with_step(keyed, &Check(self.cost), |claim, step| claim.repair(locks, step))
            }
            (_, Wish::Explain) if !refused => self.tell_as_found(locks),
            _ => true,
        }
    }

    /// Of a refused request: what there is for a part that would have let it pass, and was not charged. `false`: all must
    /// begin again.
    pub(super) fn tell_as_found(&mut self, locks: &mut Locks<'a>) -> bool {
        let found = match &mut self.of {
            Of::Rate { keyed, now: Some(now), .. } => {
                now.with_step(keyed, &Peek(0), |claim, step| claim.look(locks, step))
            }
            Of::AtOnce { .. } => {
                let told = self.decision();
                let left = told.remaining() + u64::from(self.cost);
                Some(Decision::counted(Outcome::Allowed, told.at(), told.limit(), left, Wait::micros(0)))
            }
            Of::Rate { now: None, .. } => None,
        };
        let known = found.is_some();
        if let Some(found) = found {
            self.told(found);
        }
        known
    }

    /// Lets go of whatever is held, as it was.
    #[inline]
    pub(super) fn let_go(&mut self) {
        match &mut self.of {
            Of::Rate { now, .. } => *now = None,
            Of::AtOnce { visit, .. } => *visit = None,
        }
    }
}

// === impl Now ===

impl<'a, A: Algorithm> Now<'a, A> {
    /// Does something to the claim by a step that carries out `verb`.
    #[inline]
    fn with_step<V: Verb, R>(
        &mut self,
        keyed: &Keyed<A>,
        verb: &V,
        act: impl FnOnce(&mut Claim<'a>, &KeyedStep<'_, A, V>) -> R,
    ) -> R {
        let (algorithm, regimes) = (&self.regime.algorithm, &keyed.regimes);
        let step = KeyedStep { algorithm, verb, when: self.when, regimes, number: self.number };
        act(&mut self.claim, &step)
    }

    #[inline]
    fn judge(&mut self, keyed: &Keyed<A>, wish: Wish, cost: u32) -> Option<Option<Decision>> {
        match wish {
            Wish::Charge | Wish::Explain | Wish::Pass { .. } => {
                self.with_step(keyed, &Check(cost), |claim, step| claim.judge(step))
            }
            Wish::Look => self.with_step(keyed, &Peek(cost), |claim, step| claim.judge(step)),
        }
    }

    fn make_room(&mut self, keyed: &Keyed<A>, locks: &mut Locks<'a>, cost: u32) -> Option<Decision> {
        self.with_step(keyed, &Check(cost), |claim, step| claim.make_room(locks, step))
    }
}

// === permits ===

/// Comes to the key, and looks whether there is a permit.
fn judge_permit(
    keys: &Arc<Keys>,
    fingerprint: u64,
    visit: &mut Option<Visit>,
    cost: u32,
    at: Micros,
) -> Decision {
    match Keys::visit(keys, fingerprint) {
        Ok(here) => {
            let usage = here.usage();
            *visit = Some(here);
            match usage.refusal(cost) {
                Some(refused) => refusal(refused, at),
                None => allowed(usage.limit, usage.free().saturating_sub(cost.into()), at),
            }
        }
        Err(refused) => refusal(refused, at),
    }
}

fn allowed(limit: u32, left: u64, at: Micros) -> Decision {
    Decision::counted(Outcome::Allowed, at, limit.into(), left, Wait::micros(0))
}
