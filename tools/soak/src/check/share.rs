//! Checks what one node admits while it decides without the store.
//!
//! A node that cannot reach Redis decides by its share: a token bucket of limit ÷ nodes per period that is empty at the
//! instant the outage began, whatever the algorithm of the rule. The contract has two parts, for one node and one key:
//!
//! * from the beginning of an outage to any instant, no more than what the share has supplied since;
//! * in any interval, no more than the share's burst and what it supplies in that interval.
//!
//! When an outage begins is not visible. It begins after the last success of the store, and every reply labelled
//! `strict` is one. So for a local decision `e`, let `since(e)` be the latest `sent` of the node's strict replies that
//! were received before `e` was sent. The store answered that reply at or after `since(e)`, and `e` was decided later,
//! so the outage of `e` began at or after `since(e)`, and the share has supplied no more than from there on.
//!
//! All decisions with the same `since` are counted together. Some may belong to different outages with a success in
//! between that no reply shows. Each of these outages began empty, so together they admit no more than one outage that
//! lasts all the time, and the check stays sound.

use super::curve::{Curve, CurveCheck, OnLoss};
use super::{Admitted, Nanos, Worst};

/// A node's share of a rule: `tokens` in each `period` of the whole rule, divided by `nodes`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    pub(crate) tokens: i64,
    pub(crate) period: Nanos,
    pub(crate) nodes: i64,
    /// How many tokens one node can save.
    pub(crate) burst: i64,
}

/// A local decision that admitted a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalAdmitted {
    pub(crate) admitted: Admitted,
    /// The outage began at this instant or later.
    pub(crate) since: Nanos,
}

/// Checks the local decisions of one node on one key.
#[derive(Debug)]
pub(crate) struct ShareCheck {
    share: Share,
    /// The outage that is counted, and what was admitted in it.
    since: Nanos,
    admitted: i64,
    from_empty: Option<Worst>,
    any_interval: CurveCheck,
    most_used: Option<Worst>,
}

impl Share {
    /// The most that comes in from an outage's beginning until `after` later. One token is for the clocks, which may differ
    /// in pace.
    fn supplied(&self, after: Nanos) -> i64 {
        (self.tokens * after).div_euclid(self.period * self.nodes) + 1
    }

    fn any_interval(&self) -> CurveCheck {
        let curve = Curve { slack: 1, ..Curve::bucket(self.tokens, self.period * self.nodes, self.burst) };
        CurveCheck::new(curve, OnLoss::AllowBurst)
    }
}

impl ShareCheck {
    pub(crate) fn new(share: Share) -> Self {
        ShareCheck {
            share,
            since: Nanos::MIN,
            admitted: 0,
            from_empty: None,
            any_interval: share.any_interval(),
            most_used: None,
        }
    }

    /// The interval that comes closest to a bound of the share, or exceeds it by most.
    pub(crate) fn worst(&self) -> Option<Worst> {
        let mut worst = self.from_empty;
        self.any_interval.worst().into_iter().for_each(|any| Worst::keep_larger(&mut worst, any));
        worst
    }

    /// The outage in which most was admitted.
    pub(crate) fn most_used(&self) -> Option<Worst> {
        self.most_used
    }

    /// Checks another round of decisions, in the order of `received`. No later decision was sent before `watermark`.
    pub(crate) fn round(&mut self, local: &[LocalAdmitted], watermark: Nanos) {
        for decision in local {
            self.count(*decision);
        }
        let admitted: Vec<_> = local.iter().map(|decision| decision.admitted).collect();
        self.any_interval.round(&admitted, &[], watermark);
    }

    fn count(&mut self, decision: LocalAdmitted) {
        if decision.since > self.since {
            (self.since, self.admitted) = (decision.since, 0);
        }
        if decision.since < self.since {
            return; // a late reply of an outage before; leaving it out is sound
        }
        self.admitted += decision.admitted.cost;
        let to = decision.admitted.received;
        let bound = self.share.supplied(to - self.since);
        let worst = Worst { from: self.since, to, admitted: self.admitted, bound };
        Worst::keep_larger(&mut self.from_empty, worst);
        if self.most_used.is_none_or(|most| worst.admitted > most.admitted) {
            self.most_used = Some(worst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::SECOND;
    use super::*;

    const MS: Nanos = 1_000_000;
    /// A fourth of 40/s burst 20.
    const BUCKET: Share = Share { tokens: 40, period: SECOND, nodes: 4, burst: 5 };

    fn excess_of(share: Share, since: Nanos, instants: impl IntoIterator<Item = Nanos>) -> i64 {
        let mut check = ShareCheck::new(share);
        let local: Vec<_> = instants
            .into_iter()
            .map(|at| at * MS)
            .map(|at| LocalAdmitted {
                admitted: Admitted { sent: at, received: at, cost: 1 },
                since: since * MS,
            })
            .collect();
        check.round(&local, Nanos::MAX);
        check.worst().expect("something was admitted").excess()
    }

    #[test]
    fn a_share_that_starts_empty_is_accepted() {
        assert_eq!(
            excess_of(BUCKET, 7_000, (1..60).map(|n| 7_000 + n * 100)),
            -1,
            "a token is left for the clocks"
        );
    }

    #[test]
    fn a_share_that_starts_with_tokens_is_found() {
        assert_eq!(excess_of(BUCKET, 7_000, [7_000, 7_001]), 1);
        assert_eq!(excess_of(BUCKET, 7_000, (1..60).flat_map(|n| [7_000 + n * 100; 2])), 58);
    }

    #[test]
    fn no_more_than_the_burst_is_saved() {
        assert_eq!(excess_of(BUCKET, 0, [60_000; 6]), 0);
        assert_eq!(excess_of(BUCKET, 0, [60_000; 7]), 1);
    }

    #[test]
    fn every_outage_starts_empty() {
        let mut check = ShareCheck::new(BUCKET);
        let local =
            [(0, 1_000), (0, 1_000), (2_000, 2_010), (2_000, 2_020)].map(|(since, at)| LocalAdmitted {
                admitted: Admitted { sent: at * MS, received: at * MS, cost: 1 },
                since: since * MS,
            });
        check.round(&local, Nanos::MAX);
        let worst = check.worst().expect("something was admitted");
        assert_eq!((worst.excess(), worst.from, worst.admitted), (1, 2_000 * MS, 2));
    }
}
