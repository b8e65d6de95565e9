//! Finds refusals of a strict token bucket that certainly had tokens.
//!
//! The debt of a bucket is what was charged and has not come in again. A refusal is needless if the debt at its instant
//! was at most `burst − cost`, wherever the decisions lie within their bounds. So the check computes the largest debt
//! there can have been:
//!
//! * A decision received before the refusal was sent is charged at `received`. Later charges have decayed less, so no
//!   other instant within its bounds leaves more debt.
//! * A decision that may lie on either side of the refusal, because their bounds overlap, is charged in full.
//! * During a fault, charges are made whose replies are lost. A refusal that overlaps a fault is not judged, and when a
//!   fault is over the debt is taken to be the whole burst, for it cannot be more.

use super::{Admitted, Nanos};

/// A time in which there may be charges that are not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Blackout {
    pub(crate) from: Nanos,
    pub(crate) to: Nanos,
}

/// A refused request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) sent: Nanos,
    pub(crate) received: Nanos,
    pub(crate) cost: i64,
}

/// Checks the refusals of one key of a strict token bucket.
#[derive(Debug)]
pub(crate) struct RefusalCheck {
    tokens: i64,
    period: Nanos,
    burst: i64,
    /// In units of a token divided by the period.
    debt: i64,
    debt_at: Nanos,
    /// Not yet charged, in the order of `received`.
    admitted: Vec<Admitted>,
    /// Not yet judged, in the order of `sent`.
    refused: Vec<Refused>,
    pub(crate) judged: u64,
    pub(crate) needless: u64,
    /// The needless refusal with most tokens left, and how many.
    pub(crate) worst: Option<(Refused, i64)>,
}

impl RefusalCheck {
    /// A bucket that begins at `start` with an unknown debt.
    pub(crate) fn new(tokens: i64, period: Nanos, burst: i64, start: Nanos) -> Self {
        RefusalCheck {
            tokens,
            period,
            burst,
            debt: burst * period,
            debt_at: start,
            admitted: Vec::new(),
            refused: Vec::new(),
            judged: 0,
            needless: 0,
            worst: None,
        }
    }

    /// Judges the refusals received before `watermark`; all decisions sent before it are known.
    ///
    /// `blackouts` are merged, in order, and complete up to `watermark`.
    pub(crate) fn round(
        &mut self,
        admitted: &[Admitted],
        refused: &[Refused],
        blackouts: &[Blackout],
        watermark: Nanos,
    ) {
        self.admitted.extend_from_slice(admitted);
        self.admitted.sort_by_key(|decision| decision.received);
        self.refused.extend_from_slice(refused);
        self.refused.sort_by_key(|refusal| refusal.sent);
        let longest =
            self.admitted.iter().map(|decision| decision.received - decision.sent).max().unwrap_or(0);
        let mut later = Vec::new();
        for refusal in std::mem::take(&mut self.refused) {
            if refusal.received >= watermark {
                later.push(refusal);
            } else if !blackouts.iter().any(|dark| dark.from <= refusal.received && refusal.sent <= dark.to) {
                self.advance(refusal.sent, blackouts);
                self.judge(refusal, longest);
            }
        }
        let reached = later.first().map_or(watermark, |refusal| refusal.sent.min(watermark));
        self.advance(reached, blackouts);
        self.refused = later;
    }

    /// Charges everything received up to `to`.
    fn advance(&mut self, to: Nanos, blackouts: &[Blackout]) {
        let due = self.admitted.partition_point(|decision| decision.received <= to);
        for decision in self.admitted.drain(..due).collect::<Vec<_>>() {
            self.decay(decision.received, blackouts);
            self.debt = (self.debt + decision.cost * self.period).min(self.burst * self.period);
        }
        self.decay(to, blackouts);
    }

    fn decay(&mut self, to: Nanos, blackouts: &[Blackout]) {
        if to <= self.debt_at {
            return;
        }
        let dark = blackouts.iter().rfind(|dark| dark.from <= to && dark.to >= self.debt_at);
        if let Some(dark) = dark {
            self.debt = self.burst * self.period;
            self.debt_at = dark.to.clamp(self.debt_at, to);
        }
        self.debt = (self.debt - self.tokens.saturating_mul(to - self.debt_at)).max(0);
        self.debt_at = to;
    }

    fn judge(&mut self, refusal: Refused, longest: Nanos) {
        let overlapping: i64 = self
            .admitted
            .iter()
            .take_while(|decision| decision.received <= refusal.received + longest)
            .filter(|decision| decision.sent <= refusal.received)
            .map(|decision| decision.cost)
            .sum();
        self.judged += 1;
        let left = (self.burst * self.period - self.debt).div_euclid(self.period) - overlapping;
        // The clocks of Redis and of the soak may differ in pace by less than a token.
        if left > refusal.cost {
            self.needless += 1;
            if self.worst.is_none_or(|(_, most)| left > most) {
                self.worst = Some((refusal, left));
            }
        }
    }
}

/// Sorts blackouts and joins overlapping ones.
pub(crate) fn merged(mut blackouts: Vec<Blackout>) -> Vec<Blackout> {
    blackouts.sort_by_key(|dark| dark.from);
    let mut merged: Vec<Blackout> = Vec::new();
    for dark in blackouts {
        match merged.last_mut() {
            Some(last) if dark.from <= last.to => last.to = last.to.max(dark.to),
            _ => merged.push(dark),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::super::SECOND;
    use super::*;

    const MS: Nanos = 1_000_000;

    fn admitted(at: Nanos) -> Admitted {
        Admitted { sent: at * MS, received: at * MS, cost: 1 }
    }

    fn refused(at: Nanos) -> Refused {
        Refused { sent: at * MS, received: at * MS, cost: 1 }
    }

    /// 10/s burst 5, full at 10 s at the latest.
    fn needless(admissions: &[Nanos], refusals: &[Nanos], blackouts: &[Blackout]) -> u64 {
        let mut check = RefusalCheck::new(10, SECOND, 5, 0);
        let admitted: Vec<_> = admissions.iter().copied().map(admitted).collect();
        let refused: Vec<_> = refusals.iter().copied().map(refused).collect();
        check.round(&admitted, &refused, blackouts, Nanos::MAX);
        check.needless
    }

    #[test]
    fn a_refusal_of_an_empty_bucket_is_right() {
        assert_eq!(needless(&[10_000; 5], &[10_001, 10_099], &[]), 0);
    }

    #[test]
    fn a_refusal_of_a_full_bucket_is_needless() {
        assert_eq!(needless(&[], &[10_000], &[]), 1);
        assert_eq!(needless(&[10_000; 3], &[10_001], &[]), 1);
        assert_eq!(needless(&[10_000; 5], &[10_200], &[]), 1);
        assert_eq!(needless(&[10_000; 5], &[10_199], &[]), 0, "one token is left for the clocks");
    }

    #[test]
    fn a_decision_that_may_come_before_is_charged() {
        let mut check = RefusalCheck::new(10, SECOND, 5, 0);
        let overlapping = [Admitted { sent: 10_000 * MS, received: 10_100 * MS, cost: 4 }];
        check.round(&overlapping, &[refused(10_050)], &[], Nanos::MAX);
        assert_eq!((check.judged, check.needless), (1, 0));
    }

    #[test]
    fn a_fault_hides_refusals_and_leaves_the_whole_debt() {
        let dark = [Blackout { from: 10_000 * MS, to: 11_000 * MS }];
        assert_eq!(needless(&[], &[10_500], &dark), 0);
        assert_eq!(needless(&[], &[11_199], &dark), 0);
        assert_eq!(needless(&[], &[11_200], &dark), 1);
    }

    #[test]
    fn rounds_find_what_one_pass_finds() {
        let mut check = RefusalCheck::new(10, SECOND, 5, 0);
        check.round(
            &[admitted(10_000), admitted(10_002)],
            &[refused(10_001), refused(10_003)],
            &[],
            10_002 * MS,
        );
        assert_eq!((check.judged, check.needless), (1, 1));
        check.round(&[Admitted { cost: 3, ..admitted(10_002) }], &[], &[], Nanos::MAX);
        assert_eq!((check.judged, check.needless), (2, 1));
    }
}
