//! # Lending tokens to clients
//!
//! A client takes tokens of one limit with one call, spends them in its own program, and gives the rest back. They are
//! charged when they are granted. That alone is not enough: while they are out the bucket refills, and who spends a
//! whole burst late, just as the bucket is full again, has let two bursts pass at once. So as long as some may be
//! unspent the bucket must not refill beyond them.
//!
//! In Redis the script sees to that. A bucket in memory knows nothing of what is out, so it is made too poor to get
//! there:
//!
//! ```text
//!   burst ┤─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─
//!         │            out: n
//!         ├ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ┬ ─   the bucket must not be above this while they are out
//!         │                        ┌────┘
//!   level │──┐             ┌───────┘ refills by rate × time
//!         │  │ n           │
//!         │  └──┐ e        │                 e: as much as would come in too much by then; charged with the grant
//!         └─────┴──────────┴────────────┴──►
//!             granted                 ends
//! ```
//!
//! With `e = level + rate × (end − now) + out − burst`, if that is more than nothing, the bucket is below the line at
//! the end, and before it too. A busy bucket is low anyway, and nothing is charged beside the grant; a full one gives
//! up what it could hardly have kept. So that it is never more than a quarter of the burst, a grant in memory lasts no
//! longer than a quarter of the time in which the bucket fills.
//!
//! A window is simpler: what is granted of it ends with it.

use std::time::Duration;

use tidegate::clock::{Clock, Micros};
use tidegate::gate::Part;
use tidegate::{Decision, Outcome, Rule as Rate, Source, Wait};
use tidegate_redis::{Granted, Lease, Leased, Receipt};

use super::Answer;
use super::grants::{GrantId, Note, Of, Outstanding};
use super::in_force::Store;
use super::memory::Memory;
use super::question::Question;
use super::verdict::{Decided, Fault, Lent, Loan, Verdict};
use crate::rules::Limit;

/// For how long, unless it is said.
const TTL: Duration = Duration::from_secs(2);
/// Shorter ones are over before they have arrived.
const SHORTEST: u64 = 10_000;
/// Of a smaller burst there would be nothing to lend, however full it is.
const SMALLEST: u64 = 8;
/// Who gives back of a window that ends so soon is not heard: it might have ended when that is done.
const MARGIN: u64 = 1_000_000;
/// How often a bucket is asked that others take from meanwhile.
const TRIES: usize = 4;

impl<C: Clock + Send + Sync + 'static> Question<'_, C> {
    /// Lends up to `amount` of the one limit of the one rule in the question, which the caller spends without asking,
    /// for so long at most, or for as long as the rule says.
    pub fn lend(self, amount: u32, lasting: Option<Duration>) -> Answer<Result<Lent, Fault>> {
        let lasting = lasting.or_else(|| Some(self.rule_lease()?.get_ttl())).unwrap_or(TTL);
        if let Some(verdict) =
            self.settled().or_else(|| self.matched().parts().next().is_none().then_some(Verdict::Unlimited))
        {
            return Answer::Ready(Ok(Lent::without_limit(verdict, amount, lasting)));
        }
        let part = match self.one_limit() {
            Ok(part) => part.cost(amount),
            Err(fault) => return Answer::Ready(Err(fault)),
        };
        match &self.force.store {
            Store::Nothing => Answer::Ready(Ok(Lent::without_limit(Verdict::Unlimited, amount, lasting))),
            Store::Memory(policy) => Answer::Ready(self.lend_now(policy, part, lasting)),
            Store::Redis(gate) => self.lend_later(gate.clone(), part, lasting),
        }
    }

    /// Takes back what is unspent of a grant, and tells what is left. What is over, or came back before, does not come
    /// back.
    pub fn take_back(self, id: GrantId, unspent: u32) -> Answer<Result<Decided, Fault>> {
        if self.matched().parts().next().is_none() {
            return Answer::Ready(Ok(Decided::by(self.settled().unwrap_or(Verdict::Unlimited))));
        }
        let part = match self.one_limit() {
            Ok(part) => part.cost(unspent),
            Err(fault) => return Answer::Ready(Err(fault)),
        };
        match &self.force.store {
            Store::Nothing => Answer::Ready(Ok(Decided::by(Verdict::Unlimited))),
            Store::Memory(policy) => Answer::Ready(self.take_back_now(policy, part, id)),
            Store::Redis(gate) => self.take_back_later(gate.clone(), part, id),
        }
    }

    fn rule_lease(&self) -> Option<Lease> {
        let part = self.matched().parts().next()?;
        self.force.limit(part.rule)?.lease
    }

    /// The limit that is lent of, if there is one that can be.
    fn one_limit(&self) -> Result<Part<'_>, Fault> {
        let mut parts = self.matched().parts();
        let Some(part) = parts.next() else { return Err(Fault::NoLimitToLend) };
        let rule = || self.force.name(part.rule).to_owned();
        let more = parts.count();
        if more > 0 {
            return Err(Fault::SeveralLimits { rule: rule(), limits: more + 1 });
        }
        match self.force.limit(part.rule).map(|numbered| numbered.limit) {
            Some(Limit::Rate(Rate::TokenBucket(_) | Rate::FixedWindow(_))) => Ok(part),
            _ => Err(Fault::CannotLend { rule: rule() }),
        }
    }

    fn of(&self, part: &Part<'_>) -> Of {
        (self.force.limit_name(part.rule).into(), part.key.bytes().into())
    }

    // === in memory ===

    fn lend_now(&self, policy: &Memory<C>, part: Part<'_>, lasting: Duration) -> Result<Lent, Fault> {
        let rate = match self.force.limit(part.rule).map(|numbered| numbered.limit) {
            Some(Limit::Rate(rate)) => rate,
            _ => return Err(Fault::NoLimitToLend),
        };
        let setting = rate.encode();
        let numbers = setting.numbers();
        let lent = match (setting.letter(), numbers) {
            (b'b', [p, q, burst]) => {
                let pace = Pace { p: *p, q: *q, burst: *burst };
                self.lend_of_bucket(policy, part, micros(lasting).min(pace.longest()), pace)?
            }
            _ => self.lend_of_window(policy, part, micros(lasting))?,
        };
        self.force.meter.lent[0].add(lent.loan.amount.into());
        Ok(lent)
    }

    fn lend_of_bucket(
        &self,
        policy: &Memory<C>,
        part: Part<'_>,
        lasting: u64,
        pace: Pace,
    ) -> Result<Lent, Fault> {
        if lasting < SHORTEST || pace.burst < SMALLEST {
            return Err(Fault::TooSmallToLend { rule: self.force.name(part.rule).to_owned() });
        }
        let (grants, of) = (&self.force.grants, self.of(&part));
        grants.with_out(&of, self.force.clock.now(), |out, add| {
            for _ in 0..TRIES {
                let seen = policy.request().parts(&[part.cost(0)]).peek()?;
                let end = seen.at().plus(lasting);
                // One more than must be: time goes on until it is charged.
                let beside = pace.beside(&seen, end, out.and(1, end));
                let there = seen.remaining().saturating_sub(beside);
                let amount = part.cost.min(u32::try_from(there).unwrap_or(u32::MAX));
                if amount == 0 || seen.source != Source::Strict {
                    break;
                }
                let cost = u32::try_from(u64::from(amount) + beside).unwrap_or(u32::MAX);
                let decision = policy.check_parts(&[part.cost(cost)])?.decision;
                if !decision.is_allowed() {
                    continue; // somebody was faster
                }
                let id = grants.id();
                let note = Note { of: of.clone(), amount, until: end.max(decision.at()), window: None };
                let is_below = pace.beside(&decision, end, out.and(amount, end)) == 0;
                if !is_below || !add(id, note) {
                    // Another client has returned tokens meanwhile, or there is no room.
                    policy.request().parts(&[part.cost(cost)]).refund()?;
                    break;
                }
                return Ok(Lent::of(decision, id, amount, lasting - lasting / 64));
            }
            let decision = policy.request().parts(&[part.cost(1)]).peek()?;
            Ok(Lent::nothing(decision, lasting / 8))
        })
    }

    fn lend_of_window(&self, policy: &Memory<C>, part: Part<'_>, lasting: u64) -> Result<Lent, Fault> {
        for _ in 0..TRIES {
            let seen = policy.request().parts(&[part.cost(0)]).peek()?;
            let amount = part.cost.min(u32::try_from(seen.remaining()).unwrap_or(u32::MAX));
            if amount == 0 || seen.source != Source::Strict {
                break;
            }
            let decision = policy.check_parts(&[part.cost(amount)])?.decision;
            if !decision.is_allowed() {
                continue; // somebody was faster
            }
            let lasts = lasting.min(decision.reset_after().as_micros());
            let (id, until) = (self.force.grants.id(), decision.at().plus(lasts));
            let note = Note { of: self.of(&part), amount, until, window: None };
            self.force.grants.add(id, note, decision.at()); // without a note it is spent, and does not come back
            return Ok(Lent::of(decision, id, amount, lasts - lasts / 64));
        }
        let decision = policy.request().parts(&[part.cost(1)]).peek()?;
        Ok(Lent::nothing(decision, lasting / 8))
    }

    fn take_back_now(&self, policy: &Memory<C>, part: Part<'_>, id: GrantId) -> Result<Decided, Fault> {
        let now = self.force.clock.now();
        let back = self.force.grants.remove(id, &self.of(&part), now, |note| {
            let seen = policy.request().parts(&[part.cost(0)]).peek()?;
            let unspent = part.cost.min(note.amount);
            if !self.is_window(&part) || seen.reset_after().as_micros() > MARGIN {
                policy.request().parts(&[part.cost(unspent)]).refund()?;
                self.force.meter.lent[1].add(unspent.into());
            }
            Ok::<(), Fault>(())
        });
        back.transpose()?;
        Ok(Decided::by(Verdict::Limited(policy.request().parts(&[part.cost(0)]).peek()?)))
    }

    fn is_window(&self, part: &Part<'_>) -> bool {
        let limit = self.force.limit(part.rule).map(|numbered| numbered.limit);
        matches!(limit, Some(Limit::Rate(Rate::FixedWindow(_))))
    }

    // === in Redis ===

    fn lend_later(&self, gate: Leased, part: Part<'_>, lasting: Duration) -> Answer<Result<Lent, Fault>> {
        let lease = self.rule_lease().unwrap_or_default().ttl(lasting);
        let (force, of, rule, amount) = (self.force.clone(), self.of(&part), part.rule, part.cost);
        let id = force.grants.id();
        Answer::Pending(Box::pin(async move {
            let part = Part::of(rule).key(&*of.1).cost(amount);
            let granted = gate.strict().grant(part, id.bytes(), lease).await?;
            force.meter.lent[0].add(granted.amount.into());
            if let (Receipt::Window(ends), 1..) = (granted.receipt, granted.amount) {
                let now = force.clock.now();
                let until = now.plus(micros(granted.ttl));
                let note = Note { of, amount: granted.amount, until, window: Some(ends) };
                force.grants.add(id, note, now); // without a note it is spent, and does not come back
            }
            Ok(Lent::granted(&granted, id))
        }))
    }

    fn take_back_later(&self, gate: Leased, part: Part<'_>, id: GrantId) -> Answer<Result<Decided, Fault>> {
        let (force, of, rule, unspent) = (self.force.clone(), self.of(&part), part.rule, part.cost);
        let note =
            self.is_window(&part).then(|| force.grants.remove(id, &of, force.clock.now(), |note| note));
        Answer::Pending(Box::pin(async move {
            let (receipt, unspent) = match note {
                None => (Receipt::Bucket(id.bytes()), unspent),
                Some(note) => {
                    let note = note.and_then(|note| Some((note.window?, note.amount)));
                    let (ends, amount) = note.unwrap_or((Micros::ZERO, 0));
                    (Receipt::Window(ends), unspent.min(amount))
                }
            };
            let part = Part::of(rule).key(&*of.1).cost(unspent);
            let decision = gate.strict().return_grant(part, receipt).await?;
            force.meter.lent[1].add(unspent.into());
            Ok(Decided::by(Verdict::Limited(decision)))
        }))
    }
}

/// How a bucket refills: a token each p/q microseconds, up to `burst`.
#[derive(Clone, Copy, Debug)]
struct Pace {
    p: u64,
    q: u64,
    burst: u64,
}

impl Pace {
    /// A quarter of the time in which the bucket fills.
    fn longest(&self) -> u64 {
        let whole = u128::from(self.burst) * u128::from(self.p) / u128::from(self.q);
        u64::try_from(whole / 4).unwrap_or(u64::MAX)
    }

    /// How much has to be charged beside a grant, of a bucket that was seen like this, so that it stays below what is
    /// out until all of that has ended. Rounded up: of what is left only whole tokens are told.
    fn beside(&self, seen: &Decision, end: Micros, out: Outstanding) -> u64 {
        let time = end.max(out.until).get().saturating_sub(seen.at().get());
        let comes = (u128::from(time) * u128::from(self.q)).div_ceil(u128::from(self.p));
        let full = u128::from(seen.remaining()) + 1 + comes + u128::from(out.amount);
        u64::try_from(full.saturating_sub(self.burst.into())).unwrap_or(u64::MAX)
    }
}

impl Outstanding {
    fn and(self, amount: u32, until: Micros) -> Self {
        Outstanding { amount: self.amount + u64::from(amount), until: self.until.max(until) }
    }
}

// === impl Lent ===

impl Lent {
    /// All of it, for nobody limits it; or nothing, for it is denied.
    fn without_limit(verdict: Verdict, amount: u32, lasting: Duration) -> Self {
        let amount = if verdict.is_allowed() { amount } else { 0 };
        let lasts = if amount > 0 { lasting } else { Duration::ZERO };
        let loan = Loan { id: None, amount, ready: amount, lasts };
        Lent { decided: Decided::by(verdict), loan }
    }

    fn of(decision: Decision, id: GrantId, amount: u32, lasts: u64) -> Self {
        let loan = Loan { id: Some(id), amount, ready: amount, lasts: Duration::from_micros(lasts) };
        Lent { decided: Decided::by(Verdict::Limited(decision)), loan }
    }

    /// Nothing now: either the limit says when, or somebody holds too much, who may give it back at any time.
    fn nothing(seen: Decision, retry: u64) -> Self {
        let wait = seen.retry_after().unwrap_or(Wait::micros(retry.max(1)));
        let decision = with_outcome(&seen, Outcome::RetryAfter(wait));
        let loan = Loan { id: None, amount: 0, ready: 0, lasts: Duration::ZERO };
        Lent { decided: Decided::by(Verdict::Limited(decision)), loan }
    }

    fn granted(granted: &Granted, id: GrantId) -> Self {
        let Granted { amount, ttl: lasts, .. } = *granted;
        let wait = Wait::micros(micros(granted.wait).max(1));
        let outcome = if amount == 0 { Outcome::RetryAfter(wait) } else { Outcome::Allowed };
        let decision = with_outcome(&granted.decision, outcome);
        let loan = Loan { id: (amount > 0).then_some(id), amount, ready: amount, lasts };
        Lent { decided: Decided::by(Verdict::Limited(decision)), loan }
    }
}

fn with_outcome(seen: &Decision, outcome: Outcome) -> Decision {
    let told = Decision::counted(outcome, seen.at(), seen.limit(), seen.remaining(), seen.reset_after());
    told.of_rule(seen.rule)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
