//! # One part of a request while it is decided
//!
//! A participant is either a state in the table of its rule or a permit of a concurrency limit.
//! [`commit`](super::commit) defines the order of the steps; this module defines what each step does to one part.

use std::sync::Arc;

use super::wait_queues::{QueueId, WaitQueues};
use crate::concurrency::{KeyGuard, KeyedPermit, Keys, refused};
use crate::error::RefusalKind;
use crate::gate::{Key, Part};
use crate::keyed::{Keyed, KeyedStep, Version};
use crate::lock_bit::Backoff;
use crate::operation::{Check, Operation, Peek};
use crate::state_cell::DecisionTime;
use crate::table::{Claim, Locks};
use tidegate_core::{Algorithm, Decision, Micros, Outcome, RuleId, Wait};

/// The purpose of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Charge the request if all parts allow it.
    Charge,
    /// Charge the request if all parts allow it, and record the decision of every part.
    Explain,
    /// Report whether the request would be allowed, without charging.
    Look,
    /// Charge the request only if it may pass now, on behalf of a waiter.
    ///
    /// `AllowedAfter` counts as a refusal until that instant. `number` is the queue number of the waiter, once it is in
    /// a queue.
    Pass { number: Option<u64> },
}

impl Mode {
    /// Whether `decision` satisfies the request.
    pub(super) fn is_met_by(self, decision: &Decision) -> bool {
        match self {
            Mode::Pass { .. } => decision.outcome == Outcome::Allowed,
            Mode::Charge | Mode::Explain | Mode::Look => decision.is_allowed(),
        }
    }

    /// Whether the observer is shown this decision. For a waiter, the observer is shown the final outcome only.
    pub(super) fn is_observed(self) -> bool {
        matches!(self, Mode::Charge | Mode::Explain)
    }

    /// The queue number of a waiter that has one.
    fn number(self) -> Option<u64> {
        match self {
            Mode::Pass { number } => number,
            Mode::Charge | Mode::Explain | Mode::Look => None,
        }
    }
}

/// How often other threads may win the race for a global word before all parts start again.
pub(super) const TRIES: usize = 8;

#[derive(Debug)]
pub(super) struct Participant<'a, A> {
    rule: RuleId,
    cost: u32,
    global_key: bool,
    /// The decision of this part's own state, without regard to queues.
    own: Option<Decision>,
    /// An earlier waiter is in the queue of this state and will try again at this instant.
    behind: Option<Micros>,
    of: ParticipantKind<'a, A>,
}

/// The kind of limit of a part.
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

/// A rate limit as seen by one attempt.
#[derive(Debug)]
struct Attempt<'a, A> {
    version: &'a Version<A>,
    number: usize,
    when: DecisionTime,
    claim: Claim<'a>,
}

impl<'a, A: Algorithm> Participant<'a, A> {
    /// Creates a participant of a rate limit, and prefetches its place in the table.
    #[inline]
    pub(super) fn rate(part: &Part<'_>, keyed: &'a Keyed<A>) -> Self {
        let fingerprint = keyed.fingerprint_of(part.key);
        keyed.current().table.prefetch(fingerprint);
        Participant::new(part, ParticipantKind::Rate { keyed, fingerprint, now: None })
    }

    /// Creates a participant of a concurrency limit.
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
        Participant { rule, cost, global_key: Key::is_empty(key), own: None, behind: None, of }
    }

    pub(super) fn is_global_key(&self) -> bool {
        self.global_key
    }

    /// The decision of this part alone. The decision of the binding part is the decision of the request.
    #[inline]
    pub(super) fn decision(&self) -> Decision {
        match self.behind {
            None => self.own(),
            Some(again) => self.held_back(again),
        }
    }

    /// The decision of the state itself, regardless of waiters in its queue.
    #[inline]
    pub(super) fn own(&self) -> Decision {
        self.own.expect("every part is judged before its decision is read")
    }

    pub(super) fn cost(&self) -> u32 {
        self.cost
    }

    #[inline]
    fn set_decision(&mut self, decision: Decision) {
        self.own = Some(decision.of_rule(self.rule));
    }

    /// Identifies the queue of this part's state.
    pub(super) fn queue_id(&self) -> QueueId {
        let (ParticipantKind::Rate { fingerprint, .. } | ParticipantKind::Concurrency { fingerprint, .. }) =
            self.of;
        QueueId { rule: self.rule, fingerprint }
    }

    /// Pins the key that this part takes its permits from; `None` for a rate limit.
    pub(super) fn key_guard(&self) -> Option<Result<KeyGuard, RefusalKind>> {
        match &self.of {
            ParticipantKind::Rate { .. } => None,
            ParticipantKind::Concurrency { keys, fingerprint, .. } => Some(Keys::guard(keys, *fingerprint)),
        }
    }

    /// Records whether an earlier waiter is in the queue of this state.
    #[cold]
    pub(super) fn yield_to(&mut self, queues: &WaitQueues, mode: Mode) {
        if self.cost > 0 {
            self.behind = queues.first_before(self.queue_id(), mode.number());
        }
    }

    /// The decision for a request behind an earlier waiter, which tries again at `again`.
    fn held_back(&self, again: Micros) -> Decision {
        let own = self.own();
        let own_wait = match own.outcome {
            Outcome::Busy | Outcome::Never => return own,
            Outcome::RetryAfter(wait) | Outcome::AllowedAfter(wait) => wait.as_micros(),
            Outcome::Allowed => 0,
        };
        let outcome = match self.of {
            ParticipantKind::Concurrency { .. } => Outcome::Busy,
            // At least 1 µs: the earlier waiter may be late.
            ParticipantKind::Rate { .. } => {
                Outcome::RetryAfter(Wait::micros(own_wait.max(again.since(own.at())).max(1)))
            }
        };
        let mut held_back = Decision::counted(outcome, own.at(), own.limit(), 0, own.reset_after());
        held_back.source = own.source;
        held_back.of_rule(self.rule)
    }

    /// Judges what can be read without a lock. `None`: all parts must start again.
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
        // Decisions of an earlier attempt are stale.
        self.own = decision.map(|decision| decision.of_rule(self.rule));
        self.behind = None;
        Some(())
    }

    pub(super) fn is_new(&self) -> bool {
        matches!(&self.of, ParticipantKind::Rate { now: Some(now), .. } if now.claim.is_new())
    }

    /// Whether nothing has refused this part so far.
    pub(super) fn may_pass(&self) -> bool {
        self.behind.is_none() && self.own.is_none_or(|own| own.is_allowed())
    }

    /// Reserves a table slot for a new key. `None`: all parts must start again.
    pub(super) fn make_room(&mut self, locks: &mut Locks<'a>) -> Option<()> {
        if let ParticipantKind::Rate { keyed, now: Some(now), .. } = &mut self.of
            && now.claim.is_new()
        {
            let decision = now.make_room(keyed, locks, self.cost)?;
            self.set_decision(decision);
        }
        Some(())
    }

    /// Locks and judges a wide state, which cannot be judged without its lock. `None`: all parts must start again.
    #[inline]
    pub(super) fn lock_wide(&mut self) -> Option<()> {
        if let ParticipantKind::Rate { keyed, now: Some(now), .. } = &mut self.of {
            let found = now.with_step(keyed, &Peek(self.cost), |claim, step| claim.lock_wide(step))?;
            if let Some(found) = found {
                self.set_decision(found);
            }
        }
        Some(())
    }

    /// Locks the word that was judged. `false`: all parts must start again.
    #[inline]
    pub(super) fn lock_word(&mut self, mode: Mode) -> bool {
        let (global_key, cost) = (self.global_key, self.cost);
        let ParticipantKind::Rate { keyed, now: Some(now), .. } = &mut self.of else { return true };
        now.with_step(keyed, &Check(cost), |claim, step| claim.lock_word(step))
            || global_key && now.claim.is_judged() && self.lock_last(mode)
    }

    /// Locks a word that other threads have changed, if it still allows the request.
    ///
    /// Starting again with all parts would lose the race again: the other words take longer than this word stays
    /// unchanged.
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
            self.set_decision(decision);
            if !lost {
                return held;
            }
        }
        false
    }

    /// Takes a permit if this part is a concurrency limit. `false` if none is free; the decision is then that refusal.
    #[inline]
    pub(super) fn take_permit(&mut self) -> bool {
        let ParticipantKind::Concurrency { key_guard, permit, .. } = &mut self.of else { return true };
        let Some(key_guard) = key_guard.take() else { return false };
        match KeyedPermit::try_of(key_guard, self.cost) {
            Ok(taken) => {
                *permit = Some(taken);
                true
            }
            Err(refusal) => {
                let at = self.decision().at();
                self.set_decision(refused(refusal, at));
                false
            }
        }
    }

    pub(super) fn give_permit_back(&mut self) {
        drop(self.permit());
    }

    /// Returns the permit that was taken.
    pub(super) fn permit(&mut self) -> Option<KeyedPermit> {
        match &mut self.of {
            ParticipantKind::Concurrency { permit, .. } => permit.take(),
            ParticipantKind::Rate { .. } => None,
        }
    }

    /// Charges the locked state and unlocks it.
    #[inline]
    pub(super) fn charge(&mut self, locks: &mut Locks<'a>) {
        if let ParticipantKind::Rate { keyed, now: Some(now), .. } = &mut self.of {
            now.with_step(keyed, &Check(self.cost), |claim, step| claim.charge(locks, step));
        }
    }

    /// Finishes a request that charges nothing. `false` if the state that this part was judged by has changed.
    pub(super) fn leave(&mut self, mode: Mode, locks: &mut Locks<'a>) -> bool {
        if self.behind.is_some() {
            return true; // refused by the queue, not by the state
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

    /// Reports the quota of a part that allowed the request while another part refused it.
    ///
    /// This part was not charged. `false`: all parts must start again.
    pub(super) fn tell_as_found(&mut self, locks: &mut Locks<'a>) -> bool {
        let found = match &mut self.of {
            ParticipantKind::Rate { keyed, now: Some(now), .. } => {
                now.with_step(keyed, &Peek(0), |claim, step| claim.look(locks, step))
            }
            ParticipantKind::Concurrency { .. } => {
                let decision = self.decision();
                let left = decision.remaining() + u64::from(self.cost);
                Some(Decision::counted(
                    Outcome::Allowed,
                    decision.at(),
                    decision.limit(),
                    left,
                    Wait::micros(0),
                ))
            }
            ParticipantKind::Rate { now: None, .. } => None,
        };
        let known = found.is_some();
        if let Some(found) = found {
            self.set_decision(found);
        }
        known
    }

    /// Releases all locks and restores the old values.
    #[inline]
    pub(super) fn unlock(&mut self) {
        match &mut self.of {
            ParticipantKind::Rate { now, .. } => *now = None,
            ParticipantKind::Concurrency { key_guard, .. } => *key_guard = None,
        }
    }
}

// === impl Attempt ===

impl<'a, A: Algorithm> Attempt<'a, A> {
    /// Applies `act` to the claim, with a step that carries out `operation`.
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

/// Pins the key and checks whether a permit is free.
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
                Some(refusal) => refused(refusal, at),
                None => allowed(usage.limit, usage.free().saturating_sub(cost.into()), at),
            }
        }
        Err(refusal) => refused(refusal, at),
    }
}

fn allowed(limit: u32, left: u64, at: Micros) -> Decision {
    Decision::counted(Outcome::Allowed, at, limit.into(), left, Wait::micros(0))
}
