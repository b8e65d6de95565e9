//! # One part of a request while it is decided
//!
//! Either a state in the table of its rule, or a place among those at work. The order of events is
//! [elsewhere](super::commit); here is what each of them means for one part.

use std::sync::Arc;

use super::wait_queues::{QueueId, WaitQueues};
use crate::concurrency::{KeyGuard, KeyedPermit, Keys, Refused, refusal};
use crate::gate::{Key, Part};
use crate::keyed::{Keyed, KeyedStep, Version};
use crate::lock_bit::Backoff;
use crate::operation::{Check, Operation, Peek};
use crate::state_cell::DecisionTime;
use crate::table::{Claim, Locks};
use tidegate_core::{Algorithm, Decision, Micros, Outcome, RuleId, Wait};

/// What a request is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// To pass.
    Charge,
    /// To pass, and to know of each part what it had to say.
    Explain,
    /// To know whether it would.
    Look,
    /// To pass now: who has a turn later is refused until then. By somebody who waits, with its number if it is in line.
    Pass { number: Option<u64> },
}

impl Mode {
    /// Whether a decision is what was wished for.
    pub(super) fn is_met_by(self, decision: &Decision) -> bool {
        match self {
            Mode::Pass { .. } => decision.outcome == Outcome::Allowed,
            Mode::Charge | Mode::Explain | Mode::Look => decision.is_allowed(),
        }
    }

    /// Whether an observer is shown each decision. Of those who wait it is shown what came of it.
    pub(super) fn is_observed(self) -> bool {
        matches!(self, Mode::Charge | Mode::Explain)
    }

    /// The number in line of whoever has one.
    fn number(self) -> Option<u64> {
        match self {
            Mode::Pass { number } => number,
            Mode::Charge | Mode::Explain | Mode::Look => None,
        }
    }
}

/// How often others may be faster at a word that is everybody's before all must begin again.
pub(super) const TRIES: usize = 8;

#[derive(Debug)]
pub(super) struct Participant<'a, A> {
    rule: RuleId,
    cost: u32,
    everybodys: bool,
    /// What this part alone was told by its state.
    own: Option<Decision>,
    /// Somebody else comes first there, and will try again at this instant.
    behind: Option<Micros>,
    of: ParticipantKind<'a, A>,
}

/// What kind of limit it is.
#[derive(Debug)]
enum ParticipantKind<'a, A> {
    Rate {
        keyed: &'a Keyed<A>,
        fingerprint: u64,
        now: Option<Attempt<'a, A>>,
    },
    Concurrency {
        keys: &'a Arc<Keys>,
        fingerprint: u64,
        key_guard: Option<KeyGuard>,
        permit: Option<KeyedPermit>,
    },
}

/// A rate, as it is at this attempt.
#[derive(Debug)]
struct Attempt<'a, A> {
    version: &'a Version<A>,
    number: usize,
    when: DecisionTime,
    claim: Claim<'a>,
}

impl<'a, A: Algorithm> Participant<'a, A> {
    /// At a rate. Has memory send what will be needed.
    #[inline]
    pub(super) fn rate(part: &Part<'_>, keyed: &'a Keyed<A>) -> Self {
        let fingerprint = keyed.fingerprint_of(part.key);
        keyed.current().table.prefetch(fingerprint);
        Participant::new(part, ParticipantKind::Rate { keyed, fingerprint, now: None })
    }

    /// At a limit on how many are at work.
    pub(super) fn concurrency(part: &Part<'_>, keys: &'a Arc<Keys>) -> Self {
        let fingerprint = keys.fingerprint_of(part.key);
        Participant::new(
            part,
            ParticipantKind::Concurrency { keys, fingerprint, key_guard: None, permit: None },
        )
    }

    #[inline]
    fn new(part: &Part<'_>, of: ParticipantKind<'a, A>) -> Self {
        let Part { rule, key, cost, .. } = *part;
        Participant { rule, cost, everybodys: Key::is_empty(key), own: None, behind: None, of }
    }

    pub(super) fn is_global_key(&self) -> bool {
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
    pub(super) fn queue_id(&self) -> QueueId {
        let (ParticipantKind::Rate { fingerprint, .. } | ParticipantKind::Concurrency { fingerprint, .. }) =
            self.of;
        QueueId { rule: self.rule, fingerprint }
    }

    /// Comes to where its permits come back, if it is about permits.
    pub(super) fn key_guard(&self) -> Option<Result<KeyGuard, Refused>> {
        match &self.of {
            ParticipantKind::Rate { .. } => None,
            ParticipantKind::Concurrency { keys, fingerprint, .. } => Some(Keys::guard(keys, *fingerprint)),
        }
    }

    /// Looks whether somebody stands in line at its state who came before.
    #[cold]
    pub(super) fn yield_to(&mut self, queues: &WaitQueues, mode: Mode) {
        if self.cost > 0 {
            self.behind = queues.first_before(self.queue_id(), mode.number());
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
            ParticipantKind::Concurrency { .. } => Outcome::Busy,
            // At least a moment: the other may be late.
            ParticipantKind::Rate { .. } => {
                Outcome::RetryAfter(Wait::micros(own_wait.max(again.since(own.at())).max(1)))
            }
        };
        let mut held_back = Decision::counted(outcome, own.at(), own.limit(), 0, own.reset_after());
        held_back.source = own.source;
        held_back.of_rule(self.rule)
    }

    /// Looks at what can be seen without holding anything. `None`: all must begin again.
    #[inline]
    pub(super) fn judge(&mut self, mode: Mode, when: DecisionTime) -> Option<()> {
        let decision = match &mut self.of {
            ParticipantKind::Rate { keyed, fingerprint, now } => {
                let number = keyed.versions.current();
                let version = keyed.versions.get(number);
                let claim = Claim::new(&version.table, *fingerprint);
                let now =
                    now.insert(Attempt { version, number, when: when.not_before(version.since), claim });
                now.judge(keyed, mode, self.cost)?
            }
            ParticipantKind::Concurrency { keys, fingerprint, key_guard, .. } => {
                Some(judge_permit(keys, *fingerprint, key_guard, self.cost, when.now))
            }
        };
        // Whatever was said at an earlier attempt is not so any more.
        self.own = decision.map(|decision| decision.of_rule(self.rule));
        self.behind = None;
        Some(())
    }

    pub(super) fn is_new(&self) -> bool {
        matches!(&self.of, ParticipantKind::Rate { now: Some(now), .. } if now.claim.is_new())
    }

    /// Whether nothing speaks against it so far.
    pub(super) fn may_pass(&self) -> bool {
        self.behind.is_none() && self.own.is_none_or(|own| own.is_allowed())
    }

    /// Sets a place aside, if there is none yet. `None`: all must begin again.
    pub(super) fn make_room(&mut self, locks: &mut Locks<'a>) -> Option<()> {
        if let ParticipantKind::Rate { keyed, now: Some(now), .. } = &mut self.of
            && now.claim.is_new()
        {
            let decision = now.make_room(keyed, locks, self.cost)?;
            self.told(decision);
        }
        Some(())
    }

    /// Holds and judges a state that could not be looked at before. `None`: all must begin again.
    #[inline]
    pub(super) fn lock_wide(&mut self) -> Option<()> {
        if let ParticipantKind::Rate { keyed, now: Some(now), .. } = &mut self.of {
            let found = now.with_step(keyed, &Peek(self.cost), |claim, step| claim.lock_wide(step))?;
            if let Some(found) = found {
                self.told(found);
            }
        }
        Some(())
    }

    /// Holds the word that was judged. `false`: all must begin again.
    #[inline]
    pub(super) fn lock_word(&mut self, mode: Mode) -> bool {
        let (everybodys, cost) = (self.everybodys, self.cost);
        let ParticipantKind::Rate { keyed, now: Some(now), .. } = &mut self.of else { return true };
        now.with_step(keyed, &Check(cost), |claim, step| claim.lock_word(step))
            || everybodys && now.claim.is_judged() && self.lock_last(mode)
    }

    /// Holds a word that others want too and have changed meanwhile, if it still lets the request pass. Beginning again
    /// would lose it again: the other words take longer than it stays the same.
    #[cold]
    fn lock_last(&mut self, mode: Mode) -> bool {
        let mut backoff = Backoff::new();
        for _ in 0..TRIES {
            backoff.wait();
            let ParticipantKind::Rate { keyed, now: Some(now), .. } = &mut self.of else { return false };
            let check = Check(self.cost);
            let Some(decision) = now.with_step(keyed, &check, |claim, step| claim.judge_again(step)) else {
                continue;
            };
            let passes = mode.is_met_by(&decision);
            let held = passes && now.with_step(keyed, &check, |claim, step| claim.lock_word(step));
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
        let ParticipantKind::Concurrency { key_guard, permit, .. } = &mut self.of else { return true };
        let Some(key_guard) = key_guard.take() else { return false };
        match KeyedPermit::try_of(key_guard, self.cost) {
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
            ParticipantKind::Concurrency { permit, .. } => permit.take(),
            ParticipantKind::Rate { .. } => None,
        }
    }

    /// Charges what is held, and lets go of it.
    #[inline]
    pub(super) fn charge(&mut self, locks: &mut Locks<'a>) {
        if let ParticipantKind::Rate { keyed, now: Some(now), .. } = &mut self.of {
            now.with_step(keyed, &Check(self.cost), |claim, step| claim.charge(locks, step));
        }
    }

    /// Ends a request that charges nothing. `false` if this part was judged by what is not there any more.
    pub(super) fn leave(&mut self, mode: Mode, locks: &mut Locks<'a>) -> bool {
        if self.behind.is_some() {
            return true; // refused by no state
        }
        let refused = !self.may_pass();
        match (&mut self.of, mode) {
            (ParticipantKind::Rate { keyed, now: Some(now), .. }, Mode::Look) => {
                now.with_step(keyed, &Peek(self.cost), |claim, step| claim.repair(locks, step))
            }
            (ParticipantKind::Rate { keyed, now: Some(now), .. }, _) if refused => {
                now.with_step(keyed, &Check(self.cost), |claim, step| claim.repair(locks, step))
            }
            (_, Mode::Explain) if !refused => self.tell_as_found(locks),
            _ => true,
        }
    }

    /// Of a refused request: what there is for a part that would have let it pass, and was not charged. `false`: all must
    /// begin again.
    pub(super) fn tell_as_found(&mut self, locks: &mut Locks<'a>) -> bool {
        let found = match &mut self.of {
            ParticipantKind::Rate { keyed, now: Some(now), .. } => {
                now.with_step(keyed, &Peek(0), |claim, step| claim.look(locks, step))
            }
            ParticipantKind::Concurrency { .. } => {
                let told = self.decision();
                let left = told.remaining() + u64::from(self.cost);
                Some(Decision::counted(Outcome::Allowed, told.at(), told.limit(), left, Wait::micros(0)))
            }
            ParticipantKind::Rate { now: None, .. } => None,
        };
        let known = found.is_some();
        if let Some(found) = found {
            self.told(found);
        }
        known
    }

    /// Lets go of whatever is held, as it was.
    #[inline]
    pub(super) fn unlock(&mut self) {
        match &mut self.of {
            ParticipantKind::Rate { now, .. } => *now = None,
            ParticipantKind::Concurrency { key_guard, .. } => *key_guard = None,
        }
    }
}

// === impl Now ===

impl<'a, A: Algorithm> Attempt<'a, A> {
    /// Does something to the claim by a step that carries out `operation`.
    #[inline]
    fn with_step<V: Operation, R>(
        &mut self,
        keyed: &Keyed<A>,
        operation: &V,
        act: impl FnOnce(&mut Claim<'a>, &KeyedStep<'_, A, V>) -> R,
    ) -> R {
        let (algorithm, versions) = (&self.version.algorithm, &keyed.versions);
        let step = KeyedStep { algorithm, operation, when: self.when, versions, number: self.number };
        act(&mut self.claim, &step)
    }

    #[inline]
    fn judge(&mut self, keyed: &Keyed<A>, mode: Mode, cost: u32) -> Option<Option<Decision>> {
        match mode {
            Mode::Charge | Mode::Explain | Mode::Pass { .. } => {
                self.with_step(keyed, &Check(cost), |claim, step| claim.judge(step))
            }
            Mode::Look => self.with_step(keyed, &Peek(cost), |claim, step| claim.judge(step)),
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
    key_guard: &mut Option<KeyGuard>,
    cost: u32,
    at: Micros,
) -> Decision {
    match Keys::guard(keys, fingerprint) {
        Ok(here) => {
            let usage = here.usage();
            *key_guard = Some(here);
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
