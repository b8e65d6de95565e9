//! # Token bucket
//!
//! The simplest limiter stores the time of the last request and makes the next one keep its distance. It
//! forgets idle time: a client that was quiet for an hour is treated like one that was not. A token bucket
//! stores idle time as tokens. Tokens accrue at the pace of the quota, up to `burst`, and each request takes
//! as many as it costs. After a pause a whole burst may pass at one instant.
//!
//! Counting tokens needs two numbers, the tokens and the instant they were counted at, and a division with
//! rounding at each request. This bucket stores the inverse: one number, the instant at which the key owes
//! nothing again.
//!
//! A refill that is counted in tokens has to be rounded. Either its fraction is lost at each request, which
//! costs a busy key up to half of its rate, or the fraction is a third number to store.
//!
//! ```text
//!   now + full ┤─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─   a request that would move the instant past this line is refused
//!              │      ┌──┐    ┌─
//!   owes until │   ┌──┘  └────┘          a charge moves it out by cost × interval; time catches up
//!          now ┼───┘──────────────► t    not in the future = owes nothing = never seen
//! ```
//!
//! A full bucket is an instant in the past, so an idle key equals an absent key and can be evicted.
//! `full` is the time an empty bucket takes to fill, `burst` × interval.
//!
//! Seen upside down, the drawing is a *leaky bucket* used as a meter: water is debt, the leak is time, and
//! overflow is refused. If the instant is called the theoretical arrival time, it is *GCRA*. The three are the
//! same algorithm, and here they are one type: [`Gcra`] and [`LeakyMeter`] are aliases of it.
//!
//! The interval is a fraction p/q of microseconds, and the instant carries its q-ths: 3 per second is exactly
//! 3 per second. In any time span Δ at most `burst` + ⌊rate·Δ⌋ pass. With `burst` = limit that is up to twice
//! the limit within one period. For "never more than the limit in any period", use
//! [`SlidingWindow`](crate::SlidingWindow).
//!
//! # Debt and clocks that step back
//!
//! Debt, from [`force`](Algorithm::force) or a lowered quota, lies beyond the line, and is paid in full before
//! anything passes. A state whose clock has stepped back far lies beyond the line too. To tell the two apart,
//! and to know the debt from before the step, the bucket also stores the instant it was last written at.
//!
//! Pulling every instant beyond the line back to the line would be simpler. But that forgives debt at the
//! first refusal, and after a step back it turns a key that has used one token of a hundred into a key that
//! has used all of them.
//!
//! The bucket rounds the debt up to whole tokens. To keep the same end, it dates them from an instant less than one
//! interval before the write. After a far step back the key owes these whole tokens as of the new time. A step
//! is *small* if it leaves the end of the debt below the line, or ends at or after the instant that the tokens are dated
//! from. Then nothing moves, and the key waits until the old time is reached again. So a key with many tokens left
//! waits out a longer step than a key with few.
//!
//! A clock that stepped back far may return to the old time, and step back again. If the return counted as
//! elapsed time, each return would refill the bucket. So a key whose debt was moved back remembers the
//! instant that the clock stepped back from:
//!
//! ```text
//!   reading ┤  ●┐ stepped back from here   ●───●   from here on time counts again
//!           │   │                        ┌ ┘       this rise does not count: the key owes what it owed at ○
//!           │   │           ●────●────○ ─┘         time counts here: the clock may have been corrected
//!           │   └───────────┘
//!           ┼──────────────────────────────────► requests
//! ```
//!
//! Once that instant is reached again, the key forgets it. On a monotonic clock none of this is needed, and the
//! state is one word.
//!
//! A key remembers one such instant. If the clock steps back again before it reaches that instant, the key would have to
//! remember a second one, and so on. It does not: the readings T, T − 20 s, T − 10 s also fit a clock that was corrected
//! by 20 s and then ran for 10 s. The instant is stored in bits that the three words leave free, so no state
//! is larger for it.
//!
//! A thread may use an old reading of a monotonic clock, because it was interrupted after reading it. A
//! bucket then may refuse a request that the current time would allow; the refusal was correct at the old reading.
//! Windows and logs decide at the latest
//! instant that their state has seen. Neither moves a state back.

use crate::algorithm::Algorithm;
use crate::decision::{Decision, Level, Outcome, TokenValue, Wait};
use crate::encoded_rule::{EncodedRule, share_of};
use crate::quota::{gcd, slower};
use crate::{ClockKind, Keep, Micros, Quota, Words, WordsMut};

/// A token bucket: tokens accrue evenly up to a burst, and each request takes its cost.
///
/// ```
/// use tidegate_core::{Algorithm, Micros, Quota, TokenBucket};
///
/// let bucket = TokenBucket::new(Quota::per_second(10).burst(3));
/// let mut state = [0; 3];
/// let noon = Micros::new(0);
/// assert!(bucket.decide(&mut state, noon, 3).is_allowed());
/// assert!(!bucket.decide(&mut state, noon.plus(99_999), 1).is_allowed());
/// assert!(bucket.decide(&mut state, noon.plus(100_000), 1).is_allowed());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    burst: u64,
    p: u64,
    q: u64,
    one: Span,
    full: Span,
    layout: Layout,
    packed: Packed,
    /// The number of bits below the q-ths in the second word of a remembering state.
    below_parts: u32,
    token_value: TokenValue,
}

/// The token bucket under the name of the generic cell rate algorithm.
pub type Gcra = TokenBucket;
/// The token bucket, seen as a leaking bucket that refuses overflow.
pub type LeakyMeter = TokenBucket;

/// A time span: whole microseconds and a number of q-ths below q.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span {
    whole: u64,
    part: u64,
}

/// The content of a state, seen at an instant.
#[derive(Clone, Copy, Debug)]
struct View {
    /// The instant until which the key owes, never before the instant of the view.
    owes_until: Span,
    /// How far ahead the instant lies that the clock stepped back from.
    ///
    /// 0 if that instant has been reached again, or the clock never stepped back far.
    ahead: u64,
}

/// The decoded words of a remembering state.
#[derive(Clone, Copy, Debug)]
struct Remembered {
    instant: Span,
    written: Micros,
    /// Counted from `written`.
    ahead: u64,
}

/// Spans of a narrow layout as one number each, which add and compare as numbers do.
///
/// Microseconds are in the upper bits, q-ths below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Packed {
    one: u64,
    full: u64,
}

/// How the instant at which a key owes nothing again is stored in its words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// Three words: microseconds, q-ths, and the instant of the write.
    ///
    /// After a far step back, the bits left free by these store how far ahead the instant lies that the clock stepped
    /// back from. Until then these bits are clear.
    Remembering,
    /// One word, for a monotonic clock: 53 bits of microseconds, 10 bits of q-ths.
    ///
    /// The topmost bit stays clear.
    Narrow,
    /// Two words, for a monotonic clock and a q above 1024.
    Wide,
}

const NARROW_PARTS: u64 = 1 << PART_BITS;
const PART_BITS: u32 = 10;
pub(crate) const NOTHING: Span = Span { whole: 0, part: 0 };
const END: Span = Span { whole: Micros::MAX.get(), part: 0 };
/// The number of bits of an instant.
const INSTANT_BITS: u32 = 53;

impl TokenBucket {
    /// A bucket of `quota.max_burst()` tokens, filled at the pace of the quota.
    #[inline]
    #[must_use]
    pub const fn new(quota: Quota) -> Self {
        TokenBucket::of(quota.p(), quota.q(), quota.max_burst(), Layout::Remembering)
    }

    const fn of(p: u64, q: u64, burst: u64, layout: Layout) -> Self {
        TokenBucket::of_full(p, q, burst * p, layout)
    }

    /// A bucket that holds `full` q-ths of a microsecond, which may be a fraction of a token.
    const fn of_full(p: u64, q: u64, full: u64, layout: Layout) -> Self {
        let (token_value, burst) = (TokenValue::new(p, q, full), full / p);
        let (one, full) = (Span::of(p, q), Span::of(full, q));
        let packed = Packed { one: one.packed(), full: full.packed() };
        // The q-ths are below q. They get at least one bit, so that the shift by the remaining bits stays below 64.
        let part_bits = u64::BITS - if q > 2 { (q - 1).leading_zeros() } else { u64::BITS - 1 };
        let below_parts = u64::BITS - part_bits;
        TokenBucket { burst, p, q, one, full, layout, packed, below_parts, token_value }
    }

    pub(crate) fn encode(&self) -> EncodedRule {
        EncodedRule::new(b'b', [self.p, self.q, self.burst])
    }

    /// The content of a full bucket, in q-ths of a microsecond.
    pub(crate) const fn full_parts(&self) -> u64 {
        self.full.parts(self.q)
    }

    /// The share of one of `nodes`: the rate and the burst divided by `nodes`.
    pub(crate) fn share(&self, nodes: u64) -> Option<Self> {
        let (p, q) = slower(self.p, self.q, nodes)?;
        Some(TokenBucket::of(p, q, share_of(self.burst, nodes)?, self.layout))
    }

    /// A bucket of `limit` tokens per `times` periods that holds `burst` tokens.
    ///
    /// The burst is reduced to what can be counted exactly.
    pub(crate) fn at_pace(limit: u64, period: u64, times: u64, burst: u64) -> Option<Self> {
        let common = gcd(period.into(), limit.into());
        let (period, limit) = (u128::from(period) / common, u128::from(limit) / common);
        let (p, q) = slower(u64::try_from(period).ok()?, u64::try_from(limit).ok()?, times)?;
        Some(TokenBucket::of(p, q, burst.min(Micros::MAX.get() / p).max(1), Layout::Remembering))
    }

    /// The same bucket with its burst lowered to `burst`; a larger value changes nothing.
    ///
    /// A value of 0 counts as 1.
    ///
    /// ```
    /// use tidegate_core::{Quota, TokenBucket};
    /// let bucket = TokenBucket::new(Quota::per_second(10).burst(20));
    /// assert_eq!(bucket.with_smaller_burst(5), TokenBucket::new(Quota::per_second(10).burst(5)));
    /// assert_eq!(bucket.with_smaller_burst(99), bucket);
    /// ```
    #[must_use]
    pub const fn with_smaller_burst(&self, burst: u64) -> Self {
        let burst = if burst == 0 { 1 } else { burst };
        TokenBucket::of(self.p, self.q, if burst < self.burst { burst } else { self.burst }, self.layout)
    }

    /// A bucket of the same pace that holds `full` q-ths of a microsecond.
    pub(crate) const fn filled_to(&self, full: u64) -> Self {
        TokenBucket::of_full(self.p, self.q, full, self.layout)
    }

    /// Returns how long until the debt reported by `decision` has fallen to `free`.
    #[inline]
    pub(crate) fn beyond(&self, decision: Decision, free: Span) -> Wait {
        let Level::Owed { whole, part, .. } = decision.level() else { return Wait::micros(0) };
        let Span { whole, part } = Span { whole, part }.minus(free, self.q);
        Wait::micros(whole + u64::from(part > 0))
    }

    /// A bucket of another pace with the same layout of states.
    pub(crate) const fn with_pace(&self, p: u64, q: u64, burst: u64) -> Self {
        TokenBucket::of(p, q, burst, self.layout)
    }

    /// As [`for_clock`](Algorithm::for_clock), but with the same number of words for every quota.
    pub(crate) const fn for_clock_wide(self, clock: ClockKind) -> Self {
        let layout = match clock {
            ClockKind::MayStepBack => Layout::Remembering,
            ClockKind::Monotonic => Layout::Wide,
        };
        TokenBucket { layout, ..self }
    }

    #[inline(always)]
    fn charged_packed(&self, from: u64, cost: u32) -> u64 {
        let one_or_more =
            if cost == 1 { self.packed.one } else { Span::of(u64::from(cost) * self.p, self.q).packed() };
        if self.q == 1 {
            return from + one_or_more; // most intervals are whole microseconds
        }
        // The q-ths carry over at q, not where their bits end, and the sum of two parts may reach q.
        let parts = from % NARROW_PARTS + one_or_more % NARROW_PARTS;
        from + one_or_more + if parts >= self.q { NARROW_PARTS - self.q } else { 0 }
    }

    /// Returns `from` moved later by a charge of `cost`.
    ///
    /// `cost` is at most the burst.
    #[inline(always)]
    fn charged(&self, from: Span, cost: u32) -> Span {
        let charge = if cost == 1 { self.one } else { Span::of(u64::from(cost) * self.p, self.q) };
        from.plus(charge, self.q)
    }

    /// The state seen at `now`, with the debt moved back after a far step of the clock.
    #[inline(always)]
    fn view<S: Words + ?Sized>(&self, state: &S, now: Micros) -> View {
        // The instant that the clock stepped back from is stored in bits that are otherwise clear. Each such bit in the
        // last word makes that word larger than any instant, so the first comparison finds it.
        if self.layout == Layout::Remembering
            && (now.get() < state.get(2) || state.get(1) & self.ahead_mask() != 0)
        {
            return self.view_after_a_step_back(self.remembered(state), now);
        }
        View { owes_until: self.read(state).max(Span::at(now)), ahead: 0 }
    }

    /// Slow path of `view`: the state was written after `now`, or remembers a step back.
    #[cold]
    fn view_after_a_step_back(&self, state: Remembered, now: Micros) -> View {
        let Remembered { instant, written, ahead } = state;
        let mut from = if ahead > 0 { written.get() + ahead } else { 0 };
        if ahead > 0 && now.get() >= from {
            // The clock has returned. The time in between does not count: the key owes what it owed when last written.
            return View { owes_until: instant.later(ahead).max(Span::at(now)), ahead: 0 };
        }
        let mut owes_until = instant.max(Span::at(now));
        if now < written && instant > self.line(now) {
            let tokens = self.whole_tokens(instant, written);
            let since = instant.minus(tokens, self.q);
            if Span::at(now) < since {
                owes_until = Span::at(now).plus(tokens, self.q).min(END);
                from = from.max(since.rounded_up());
            }
        }
        View { owes_until, ahead: from.saturating_sub(now.get()).min(self.furthest_ahead()) }
    }

    /// The debt until `instant` as of `written`, rounded up to whole tokens.
    fn whole_tokens(&self, instant: Span, written: Micros) -> Span {
        let owed = instant.minus(Span::at(written), self.q);
        let parts = u128::from(owed.whole) * u128::from(self.q) + u128::from(owed.part);
        Span::of_wide(parts.next_multiple_of(u128::from(self.p)), self.q)
    }

    /// The debt of a key that owes `used` under `old`, both in q-ths of a microsecond.
    fn owed_keeping(&self, keep: Keep, old: &Self, used: u128) -> u128 {
        // Debt in q-ths ÷ p is tokens used. Tokens used × the new p is the new debt, rounded up (against the key).
        let converted = |parts: u128| parts.saturating_mul(u128::from(self.p)).div_ceil(u128::from(old.p));
        let (full, old_full) = (u128::from(self.burst * self.p), u128::from(old.burst * old.p));
        match (keep, old_full.checked_sub(used)) {
            (Keep::Used, _) => converted(used),
            (_, None) => full.saturating_add(converted(used - old_full)),
            (Keep::Remaining, Some(left)) => {
                // What is left is rounded down where the debt is rounded up.
                let left = left * u128::from(self.p) / u128::from(old.p);
                full.saturating_sub(left)
            }
            (Keep::Ratio, Some(left)) => {
                let remaining = u64::try_from(left / u128::from(old.p)).unwrap_or(u64::MAX);
                let target = keep.target(remaining, old.burst, self.burst);
                u128::from(self.burst - target) * u128::from(self.p)
            }
        }
    }

    /// After a small step back: the instant that the key's whole tokens are dated from.
    ///
    /// `NOTHING` in all other cases.
    fn dated_from<S: Words + ?Sized>(&self, state: &S, now: Micros, owes_until: Span) -> Span {
        if self.layout != Layout::Remembering {
            return NOTHING;
        }
        let Remembered { instant, written, .. } = self.remembered(state);
        if now >= written || owes_until < instant {
            return NOTHING;
        }
        instant.minus(self.whole_tokens(instant, written), self.q)
    }

    /// The bits of a remembering state's second word that store the lower part of `ahead`.
    #[inline(always)]
    const fn ahead_mask(&self) -> u64 {
        (1 << self.below_parts) - 1
    }

    /// The furthest distance that can be stored: that of any instant, unless q is above 2²².
    const fn furthest_ahead(&self) -> u64 {
        let bits = self.below_parts + (u64::BITS - INSTANT_BITS);
        if bits < INSTANT_BITS { (1 << bits) - 1 } else { Micros::MAX.get() }
    }

    /// Whether the state remembers an instant that the clock stepped back from.
    #[inline]
    fn remembers<S: Words + ?Sized>(&self, state: &S) -> bool {
        self.layout == Layout::Remembering
            && (state.get(1) & self.ahead_mask() != 0 || state.get(2) >> INSTANT_BITS != 0)
    }

    fn remembered<S: Words + ?Sized>(&self, state: &S) -> Remembered {
        let last = state.get(2);
        Remembered {
            instant: self.read(state),
            written: Micros::new(last & Micros::MAX.get()),
            ahead: last >> INSTANT_BITS << self.below_parts | state.get(1) & self.ahead_mask(),
        }
    }

    /// The latest instant a charge may reach.
    #[inline(always)]
    fn line(&self, now: Micros) -> Span {
        // At the end of the time line instants can no longer grow, and a bucket that could not fill up
        // would look full for ever. So the line ends there too, and nothing passes any more.
        Span::at(now).plus(self.full, self.q).min(END)
    }

    #[inline(always)]
    fn fits(&self, cost: u32) -> bool {
        u64::from(cost) <= self.burst
    }

    #[inline(always)]
    fn decision(&self, outcome: Outcome, now: Micros, owes_until: Span) -> Decision {
        let Span { whole, part } = Span { whole: owes_until.whole - now.get(), part: owes_until.part };
        Decision::new(outcome, now, Level::Owed { whole, part, token_value: self.token_value })
    }

    /// The refusal of a cost whose charge would end at `due`, which is beyond `line`.
    #[inline(always)]
    fn refused(&self, now: Micros, owes_until: Span, due: Span, line: Span) -> Decision {
        let wait = due.whole - line.whole + u64::from(due.part > line.part);
        self.decision(Outcome::RetryAfter(Wait::micros(wait)), now, owes_until)
    }

    #[inline(always)]
    fn read<S: Words + ?Sized>(&self, state: &S) -> Span {
        match self.layout {
            Layout::Narrow => Span::unpacked(state.get(0)),
            Layout::Wide => Span { whole: state.get(0), part: state.get(1) },
            Layout::Remembering => Span { whole: state.get(0), part: state.get(1) >> self.below_parts },
        }
    }

    #[inline(always)]
    fn write<S: WordsMut + ?Sized>(&self, state: &mut S, instant: Span, now: Micros, ahead: u64) {
        match self.layout {
            Layout::Narrow => state.set(0, instant.packed()),
            Layout::Wide => {
                state.set(0, instant.whole);
                state.set(1, instant.part);
            }
            Layout::Remembering => {
                state.set(0, instant.whole);
                state.set(1, instant.part << self.below_parts | ahead & self.ahead_mask());
                state.set(2, now.get() | ahead >> self.below_parts << INSTANT_BITS);
            }
        }
    }

    /// The decision on `cost` at `now`, regardless of [`ahead`](TokenBucket::ahead).
    #[inline(always)]
    pub(crate) fn peek_ignoring_step<S: Words + ?Sized>(
        &self,
        state: &S,
        now: Micros,
        cost: u32,
    ) -> Decision {
        self.decide_owing(self.view(state, now).owes_until, now, cost)
    }

    /// How long from `now` until the instant that the clock stepped back from; 0 if none.
    #[inline(always)]
    pub(crate) fn ahead<S: Words + ?Sized>(&self, state: &S, now: Micros) -> u64 {
        self.view(state, now).ahead
    }

    #[inline(always)]
    fn decide_owing(&self, owes_until: Span, now: Micros, cost: u32) -> Decision {
        if cost == 0 {
            return self.decision(Outcome::Allowed, now, owes_until);
        }
        if !self.fits(cost) {
            return self.decision(Outcome::Never, now, owes_until);
        }
        let (due, line) = (self.charged(owes_until, cost), self.line(now));
        if due > line {
            self.refused(now, owes_until, due, line)
        } else {
            self.decision(Outcome::Allowed, now, due)
        }
    }

    /// Charges `cost` whether or not it fits, regardless of [`ahead`](TokenBucket::ahead).
    #[inline(always)]
    pub(crate) fn charge<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32) -> Decision {
        let View { owes_until, ahead } = self.view(state, now);
        if cost == 0 {
            return self.decision(Outcome::Allowed, now, owes_until);
        }
        let charge = u128::from(cost) * u128::from(self.p);
        let due = owes_until.plus(Span::of_wide(charge, self.q), self.q).min(END);
        self.write(state, due, now, ahead);
        self.decision(Outcome::Allowed, now, due)
    }
}

impl From<Quota> for TokenBucket {
    fn from(quota: Quota) -> Self {
        TokenBucket::new(quota)
    }
}

impl Algorithm for TokenBucket {
    #[inline]
    fn words(&self) -> usize {
        match self.layout {
            Layout::Remembering => 3,
            Layout::Narrow => 1,
            Layout::Wide => 2,
        }
    }

    fn for_clock(self, clock: ClockKind) -> Self {
        let layout = match clock {
            ClockKind::MayStepBack => Layout::Remembering,
            ClockKind::Monotonic if self.q <= NARROW_PARTS => Layout::Narrow,
            ClockKind::Monotonic => Layout::Wide,
        };
        TokenBucket { layout, ..self }
    }

    #[inline]
    fn peek<S: Words + ?Sized>(&self, state: &S, now: Micros, cost: u32) -> Decision {
        match self.ahead(state, now) {
            0 => self.peek_ignoring_step(state, now, cost),
            ahead => while_ahead(self.peek_ignoring_step(state, now, cost), ahead),
        }
    }

    /// Decides for a state of one word with one comparison.
    ///
    /// Returns `None` for a cost of 0 or above the burst.
    #[inline(always)]
    fn decide_word(&self, word: u64, now: Micros, cost: u32) -> Option<(u64, Decision)> {
        debug_assert_eq!(self.layout, Layout::Narrow, "decide_word is called only if the state is one word");
        if cost != 1 && (cost == 0 || !self.fits(cost)) {
            return None; // a cost of 1 fits every bucket
        }
        let now_packed = now.get() << PART_BITS;
        let line = (now_packed + self.packed.full).min(END.packed());
        let from = word.max(now_packed);
        let due = self.charged_packed(from, cost);
        if due <= line {
            return Some((due, self.decision(Outcome::Allowed, now, Span::unpacked(due))));
        }
        Some((word, self.refused(now, Span::unpacked(from), Span::unpacked(due), Span::unpacked(line))))
    }

    fn force<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32) -> Decision {
        match self.ahead(state, now) {
            0 => self.charge(state, now, cost),
            ahead => while_ahead(self.charge(state, now, cost), ahead),
        }
    }

    fn force_wide<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u64) {
        if cost > 0 {
            let View { owes_until, ahead } = self.view(state, now);
            let charge = Span::of_wide(u128::from(cost) * u128::from(self.p), self.q);
            self.write(state, owes_until.plus(charge, self.q).min(END), now, ahead);
        }
    }

    fn refund<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros, cost: u32) {
        if cost == 0 {
            return;
        }
        let View { owes_until, ahead } = self.view(state, now);
        if owes_until <= Span::at(now) {
            return; // nothing is owed, so there is nothing to refund
        }
        let charge = Span::of_wide(u128::from(cost) * u128::from(self.p), self.q);
        let left = owes_until.minus(charge, self.q);
        // A small step back is waited out: the charge is still owed as of the later instant, so it is refunded as of
        // then.
        let owed_since = Span::at(now).max(self.dated_from(state, now, owes_until));
        if left <= owed_since {
            self.reset(state);
        } else if owed_since > Span::at(now) {
            let Remembered { written, ahead, .. } = self.remembered(state);
            self.write(state, left, written, ahead);
        } else {
            self.write(state, left, now, ahead);
        }
    }

    /// Repairs the state. While the clock has not returned from a step back, also records refusals.
    ///
    /// On the return only the time up to the last write counts as elapsed, so every request must be written.
    #[inline]
    fn repair<S: WordsMut + ?Sized>(&self, state: &mut S, now: Micros) {
        let View { owes_until, ahead } = self.view(state, now);
        if owes_until > Span::at(now) && (owes_until < self.read(state) || self.remembers(state)) {
            self.write(state, owes_until, now, ahead);
        }
    }

    #[inline]
    fn idle_at<S: Words + ?Sized>(&self, state: &S) -> Micros {
        let idle_at = Micros::new(self.read(state).rounded_up());
        if self.remembers(state) { idle_at.plus(self.remembered(state).ahead) } else { idle_at }
    }

    /// Always zero: the state does not tell when it was last used.
    ///
    /// A request with an old clock reading may be refused. That is correct, and the instant is not pulled back.
    #[inline]
    fn last_seen<S: Words + ?Sized>(&self, _: &S) -> Micros {
        Micros::ZERO
    }

    /// Always true: a later instant means more usage.
    #[inline]
    fn is_ordered(&self) -> bool {
        true
    }

    fn migrate_from<F, S>(&self, old: &Self, from: &F, state: &mut S, now: Micros)
    where
        F: Words + ?Sized,
        S: WordsMut + ?Sized,
    {
        self.migrate_keeping(Keep::Used, old, from, state, now);
    }

    /// Computes the new debt in q-ths, rounded against the key.
    ///
    /// The rounding is monotonic, so the order of states stays.
    fn migrate_keeping<F, S>(&self, keep: Keep, old: &Self, from: &F, state: &mut S, now: Micros)
    where
        F: Words + ?Sized,
        S: WordsMut + ?Sized,
    {
        let View { owes_until, ahead } = old.view(from, now);
        let owed = owes_until.minus(Span::at(now), old.q);
        if owed == NOTHING {
            return;
        }
        let owed =
            self.owed_keeping(keep, old, u128::from(owed.whole) * u128::from(old.q) + u128::from(owed.part));
        if owed == 0 {
            return;
        }
        let instant = Span::at(now).plus(Span::of_wide(owed, self.q), self.q).min(END);
        self.write(state, instant, now, ahead.min(self.furthest_ahead()));
    }
}

/// Adjusts a decision while the instant that the clock stepped back from lies `ahead`.
///
/// The time up to that instant will not count. So quota that becomes available at that instant or later is
/// delayed by `ahead`.
#[cold]
pub(crate) fn while_ahead(decision: Decision, ahead: u64) -> Decision {
    let shown = |micros: u64| if micros >= ahead { micros + ahead } else { micros };
    let (limit, remaining) = (decision.limit(), decision.remaining());
    let reset = shown(decision.reset_after().as_micros());
    let outcome = match decision.outcome {
        Outcome::RetryAfter(wait) => Outcome::RetryAfter(Wait::micros(shown(wait.as_micros()))),
        outcome => outcome,
    };
    decision.with_outcome(outcome).with_level(Level::Counted { limit, remaining, reset })
}

// === impl Span ===

impl Span {
    /// `parts` q-ths of a microsecond.
    #[inline]
    pub(crate) const fn of(parts: u64, q: u64) -> Self {
        Span { whole: parts / q, part: parts % q }
    }

    /// As [`Span::of`], capped at the end of the time line.
    fn of_wide(parts: u128, q: u64) -> Self {
        let (whole, part) = (parts / u128::from(q), parts % u128::from(q));
        match (u64::try_from(whole), u64::try_from(part)) {
            (Ok(whole), Ok(part)) if whole <= Micros::MAX.get() => Span { whole, part },
            _ => END,
        }
    }

    /// The span in q-ths of a microsecond.
    pub(crate) const fn parts(self, q: u64) -> u64 {
        self.whole * q + self.part
    }

    /// Microseconds in the upper bits, q-ths below. Only for a narrow layout.
    #[inline(always)]
    const fn packed(self) -> u64 {
        self.whole << PART_BITS | self.part
    }

    #[inline(always)]
    const fn unpacked(packed: u64) -> Self {
        Span { whole: packed >> PART_BITS, part: packed % NARROW_PARTS }
    }

    #[inline(always)]
    const fn at(now: Micros) -> Self {
        Span { whole: now.get(), part: 0 }
    }

    #[inline(always)]
    const fn plus(self, other: Span, q: u64) -> Self {
        let parts = self.part + other.part;
        let carry = (parts >= q) as u64;
        Span { whole: self.whole + other.whole + carry, part: parts - carry * q }
    }

    /// This instant moved later by whole microseconds, at most to the end of the time line.
    fn later(self, micros: u64) -> Self {
        Span { whole: self.whole + micros, part: self.part }.min(END)
    }

    /// The first whole microsecond that is not before this instant.
    #[inline]
    const fn rounded_up(self) -> u64 {
        self.whole + (self.part > 0) as u64
    }

    /// The difference, or zero.
    #[inline]
    fn minus(self, other: Span, q: u64) -> Self {
        if self <= other {
            return NOTHING;
        }
        let borrow = u64::from(self.part < other.part);
        Span { whole: self.whole - other.whole - borrow, part: self.part + borrow * q - other.part }
    }
}
