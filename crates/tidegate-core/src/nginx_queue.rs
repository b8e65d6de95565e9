//! # Leaky queue with nginx's rounding
//!
//! nginx's `limit_req` is a [`LeakyQueue`](crate::LeakyQueue) that counts in thousandths of a request and in
//! milliseconds, and truncates at each request. That seldom matters. But a configuration moved from nginx should
//! produce the same log lines, and `1r/m` there is not one per minute: 1·1000 ÷ 60 is 16 thousandths per second, one in
//! 62.5 seconds. This type reproduces that arithmetic to the digit. For new configurations use the exact queue.
//!
//! ```text
//!   owed ┤ thousandths of a request       each request adds 1000
//!   3000 ┤     ┌─┐
//!   2000 ┤   ┌─┘ └┐  ┌─┐                  each millisecond removes rate ÷ 1000, truncated at each request
//!   1000 ┤ ┌─┘    └──┘ └───
//!      0 ┼─┘─────────────────► ms
//! ```
//!
//! nginx calls the debt beyond the request itself its *excess*. A request is refused if its excess is more than
//! `burst`, passes now if it is at most `delay`, and otherwise passes after (excess − delay) ÷ rate.
//!
//! A clock that steps back by up to a minute removes no debt. A longer step back is taken as the new time. Here this
//! also holds for a refused request, while nginx keeps refusing it until the clock has caught up. When the clock
//! returns, that counts as elapsed time, as in nginx: n steps back of more than a minute, each with a return, admit at
//! most n times `burst` + 1 more.

use crate::algorithm::Algorithm;
use crate::decision::{Decision, Level, Outcome, Wait};
use crate::encoded_rule::{EncodedRule, share_of};
use crate::invalid_quota::{InvalidQuota, Reason};
use crate::{Micros, Quota, Words, WordsMut};

/// nginx's `limit_req`, with its rounding.
///
/// ```
/// use tidegate_core::{Algorithm, Micros, NginxQueue, Outcome, Quota, Wait};
///
/// // limit_req_zone … rate=30r/m;  limit_req … burst=2 delay=1;
/// const QUEUE: NginxQueue = NginxQueue::new(Quota::per_minute(30), 2).delay(1);
/// let (mut state, now) = ([0; 2], Micros::ZERO);
/// assert_eq!(QUEUE.decide(&mut state, now, 1).outcome, Outcome::Allowed);
/// assert_eq!(QUEUE.decide(&mut state, now, 1).outcome, Outcome::Allowed);
/// assert_eq!(QUEUE.decide(&mut state, now, 1).outcome, Outcome::AllowedAfter(Wait::micros(2_000_000)));
/// assert!(!QUEUE.decide(&mut state, now, 1).is_allowed());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NginxQueue {
    /// Thousandths of a request per second.
    rate: u64,
    /// In thousandths of a request, as in nginx.
    burst: u64,
    delay: u64,
}

/// The debt of a key, and the instant it was computed at.
#[derive(Clone, Copy, Debug)]
struct Backlog {
    /// Thousandths of a request. 0 is a key never seen.
    owed: u64,
    /// Milliseconds.
    last: u64,
}

const REQUEST: u64 = 1_000;
const MILLI: u64 = 1_000;
/// A step back by more than this many milliseconds is taken as the new time.
const FAR_BACK: u64 = 60_000;
/// The largest debt; a larger one is stored as this.
const MAX: u64 = 1 << 53;

impl NginxQueue {
    /// A zone with the rate of `quota` and this `burst`. The burst of the quota is ignored.
    ///
    /// # Panics
    /// If the rate is less than a thousandth of a request per second, or too large; in a `const` that is a compile
    /// error.
    #[must_use]
    pub const fn new(quota: Quota, burst: u32) -> Self {
        match Self::checked(quota, burst) {
            Ok(queue) => queue,
            Err(reason) => panic!("{}", reason.sentence()),
        }
    }

    /// As [`NginxQueue::new`], for values that have not been validated.
    ///
    /// # Errors
    /// If the rate is less than a thousandth of a request per second, or too large, as that of an
    /// [unlimited](Quota::unlimited) quota.
    pub fn try_new(quota: Quota, burst: u32) -> Result<Self, InvalidQuota> {
        Self::checked(quota, burst).map_err(InvalidQuota::because)
    }

    /// The same zone, in which an excess of up to `delay` requests is not delayed.
    #[must_use]
    pub const fn delay(self, delay: u32) -> Self {
        NginxQueue { delay: delay as u64 * REQUEST, ..self }
    }

    /// The same zone, in which no request is delayed.
    #[must_use]
    pub const fn nodelay(self) -> Self {
        NginxQueue { delay: u64::MAX, ..self }
    }

    const fn checked(quota: Quota, burst: u32) -> Result<Self, Reason> {
        if let Err(reason) = quota.finite() {
            return Err(reason);
        }
        let per_second = quota.limit() as u128 * REQUEST as u128 * 1_000_000_000;
        let rate = per_second / quota.period().as_nanos();
        if rate == 0 || rate > u32::MAX as u128 {
            return Err(Reason::NginxRate { limit: quota.limit(), period: quota.period() });
        }
        #[expect(clippy::cast_possible_truncation, reason = "just checked to fit")]
        Ok(NginxQueue { rate: rate as u64, burst: burst as u64 * REQUEST, delay: 0 })
    }

    pub(crate) fn encode(&self) -> EncodedRule {
        EncodedRule::new(b'g', [self.rate, self.burst, self.delay.min(MAX)])
    }

    pub(crate) fn share(&self, nodes: u64) -> Option<Self> {
        let places = share_of(self.burst / REQUEST + 1, nodes)?;
        let delay = if self.delay == u64::MAX { u64::MAX } else { self.delay / REQUEST / nodes * REQUEST };
        Some(NginxQueue { rate: share_of(self.rate, nodes)?, burst: (places - 1) * REQUEST, delay })
    }

    /// The debt at `now`, as nginx computes it at each request.
    fn backlog<S: Words + ?Sized>(&self, state: &S, now: Micros) -> Backlog {
        let (now, Backlog { owed, last }) = (millis(now), Backlog::read(state));
        match if last > now + FAR_BACK { 1 } else { now.saturating_sub(last) } {
            0 => Backlog { owed, last },
            passed => Backlog { owed: owed.saturating_sub(self.leaked(passed)), last: now },
        }
    }

    /// The debt that leaks out in `passed` milliseconds.
    const fn leaked(&self, passed: u64) -> u64 {
        self.rate.saturating_mul(passed) / MILLI
    }

    /// The instant at which `less` of the debt has leaked out.
    fn leaked_at(&self, backlog: Backlog, less: u64) -> Micros {
        let millis = less.saturating_mul(MILLI).div_ceil(self.rate);
        Micros::new(backlog.last.saturating_add(millis).saturating_mul(MILLI))
    }

    /// The outcome for an excess, with its delay.
    fn delayed(&self, excess: u64) -> Outcome {
        match excess.saturating_sub(self.delay).saturating_mul(MILLI) / self.rate {
            0 => Outcome::Allowed,
            wait => Outcome::AllowedAfter(Wait::micros(wait.saturating_mul(MILLI))),
        }
    }

    /// A decision that leaves a debt of `owed`, which leaks out from `written` on.
    fn decision(&self, outcome: Outcome, now: Micros, owed: u64, written: Backlog) -> Decision {
        let limit = self.burst / REQUEST + 1;
        let remaining = (self.burst + REQUEST).saturating_sub(owed) / REQUEST;
        let reset = if owed == 0 { 0 } else { self.leaked_at(written, written.owed).since(now) };
        Decision::new(outcome, now, Level::Counted { limit, remaining, reset })
    }

    /// How long until `asked` is no longer refused.
    ///
    /// Computed from the stored backlog, since a refusal writes nothing.
    fn retry_after(&self, now: Micros, written: Backlog, asked: u64) -> Outcome {
        let over = (written.owed + asked).saturating_sub(self.burst + REQUEST);
        Outcome::RetryAfter(Wait::micros(self.leaked_at(written, over).since(now)))
    }
}

impl Algorithm for NginxQueue {
    fn words(&self) -> usize {
        2
    }

    fn peek<S: Words + ?Sized>(&self, state: &S, now: Micros, cost: u32) -> Decision {
        let (written, backlog) = (Backlog::read(state).repaired(now), self.backlog(state, now));
        let asked = u64::from(cost) * REQUEST;
        let charged = backlog.with(asked);
        if cost == 0 {
            self.decision(Outcome::Allowed, now, backlog.owed, written)
        } else if asked > self.burst + REQUEST {
            self.decision(Outcome::Never, now, backlog.owed, written)
        } else if charged.excess() > self.burst {
            self.decision(self.retry_after(now, written, asked), now, backlog.owed, written)
        } else {
            self.decision(self.delayed(charged.excess()), now, charged.owed, charged)
        }
    }

    fn force<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32) -> Decision {
        if cost == 0 {
            return self.peek(state, now, 0);
        }
        let charged = self.backlog(state, now).with(u64::from(cost) * REQUEST);
        charged.write(state);
        self.decision(self.delayed(charged.excess()), now, charged.owed, charged)
    }

    fn force_wide<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u64) {
        if cost > 0 {
            self.backlog(state, now).with(cost.saturating_mul(REQUEST).min(MAX)).write(state);
        }
    }

    fn refund<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32) {
        if cost > 0 {
            let Backlog { owed, last } = self.backlog(state, now);
            if owed > 0 {
                Backlog { owed: owed.saturating_sub(u64::from(cost) * REQUEST), last }.write(state);
            }
        }
    }

    fn repair<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros) {
        Backlog::read(state).repaired(now).write(state);
    }

    fn idle_at<S: Words + ?Sized>(&self, state: &S) -> Micros {
        let backlog = Backlog::read(state);
        if backlog.owed == 0 { Micros::ZERO } else { self.leaked_at(backlog, backlog.owed) }
    }

    fn last_seen<S: Words + ?Sized>(&self, state: &S) -> Micros {
        Micros::new(Backlog::read(state).last * MILLI)
    }

    fn migrate_from<F, S>(&self, old: &Self, from: &F, state: &mut S, now: Micros)
    where
        F: Words + ?Sized,
        S: WordsMut + ?Sized,
    {
        // Another rate leaks from now on. The same rate continues from the stored instant, without rounding once more.
        let backlog = if self.rate == old.rate { Backlog::read(from) } else { old.backlog(from, now) };
        backlog.write(state);
    }
}

const fn millis(now: Micros) -> u64 {
    now.get() / MILLI
}

// === impl Backlog ===

impl Backlog {
    fn read<S: Words + ?Sized>(state: &S) -> Self {
        Backlog { owed: state.get(0), last: state.get(1) }
    }

    fn write<S: WordsMut + ?Sized>(self, state: &mut S) {
        state.set(0, self.owed);
        state.set(1, if self.owed == 0 { 0 } else { self.last });
    }

    /// The debt beyond the request itself.
    fn excess(self) -> u64 {
        self.owed.saturating_sub(REQUEST)
    }

    /// The same backlog, moved to `now` after a far step back of the clock.
    fn repaired(self, now: Micros) -> Self {
        if self.last > millis(now) + FAR_BACK { Backlog { last: millis(now), ..self } } else { self }
    }

    fn with(self, more: u64) -> Self {
        Backlog { owed: (self.owed + more).min(MAX), ..self }
    }
}
