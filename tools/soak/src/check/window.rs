//! Checks a limit in any interval shorter than a period, wherever it begins.
//!
//! A sliding log, and a sliding window with strict cells, admit at most the limit in any half-open stretch of one
//! period. As in [`curve`](super::curve), only decisions whose bounds lie in an interval count, so a report is certain.
//!
//! Decisions are taken in the order of `received`. For `y` equal to a `received`, the interval to try is the longest
//! one that is shorter than the period: it counts the decisions so far with `sent > y − period`. A decision that is too
//! old for one `y` is too old for all later ones, so a heap of `sent` is all there is to keep.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{Admitted, DataLoss, Nanos, Worst};

/// At most `most` in any interval shorter than `period`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) period: Nanos,
    pub(crate) most: i64,
    /// How much more for each data loss that an interval may contain.
    pub(crate) per_loss: i64,
}

/// Checks the decisions on one key.
#[derive(Debug)]
pub(crate) struct WindowCheck {
    window: Window,
    recent: BinaryHeap<Reverse<(Nanos, i64)>>,
    admitted: i64,
    worst: Option<Worst>,
    /// The most admitted beyond the limit in an interval with exactly one loss.
    used_of_loss: i64,
}

impl WindowCheck {
    pub(crate) fn new(window: Window) -> Self {
        WindowCheck { window, recent: BinaryHeap::new(), admitted: 0, worst: None, used_of_loss: 0 }
    }

    pub(crate) fn worst(&self) -> Option<Worst> {
        self.worst
    }

    pub(crate) fn used_of_loss(&self) -> i64 {
        self.used_of_loss
    }

    /// Checks more decisions, in the order of `received`, given all losses so far.
    pub(crate) fn round(&mut self, admitted: &[Admitted], losses: &[DataLoss]) {
        for decision in admitted {
            self.recent.push(Reverse((decision.sent, decision.cost)));
            self.admitted += decision.cost;
            let to = decision.received;
            let too_old = to - self.window.period;
            while let Some(Reverse((sent, cost))) =
                self.recent.peek().copied().filter(|old| old.0.0 <= too_old)
            {
                self.recent.pop();
                self.admitted -= cost;
                debug_assert!(sent <= too_old);
            }
            let Some(Reverse((from, _))) = self.recent.peek().copied() else { continue };
            let lost = losses.iter().filter(|loss| loss.from <= to && loss.to > too_old).count();
            if lost == 1 {
                self.used_of_loss = self.used_of_loss.max(self.admitted - self.window.most);
            }
            let bound = self.window.most + i64::try_from(lost).unwrap_or(0) * self.window.per_loss;
            Worst::keep_larger(&mut self.worst, Worst { from, to, admitted: self.admitted, bound });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::SECOND;
    use super::*;

    const MS: Nanos = 1_000_000;

    /// 3 in any second.
    fn excess_of(admitted: &[(Nanos, Nanos)], losses: &[DataLoss]) -> i64 {
        let mut check = WindowCheck::new(Window { period: SECOND, most: 3, per_loss: 3 });
        let admitted: Vec<_> = admitted
            .iter()
            .map(|(sent, received)| Admitted { sent: sent * MS, received: received * MS, cost: 1 })
            .collect();
        check.round(&admitted, losses);
        check.worst().expect("something was admitted").excess()
    }

    #[test]
    fn tight_legal_trace_of_a_log_is_accepted() {
        let trace: Vec<_> =
            (0..20).flat_map(|n| [n * 1_000, n * 1_000 + 300, n * 1_000 + 900]).map(|ms| (ms, ms)).collect();
        assert_eq!(excess_of(&trace, &[]), 0, "an entry of exactly one period ago does not count");
    }

    #[test]
    fn one_too_many_in_a_window_is_found() {
        assert_eq!(excess_of(&[(0, 0), (300, 300), (900, 900), (999, 999)], &[]), 1);
        assert_eq!(excess_of(&[(0, 0), (900, 900), (950, 950), (1_000, 1_000), (1_899, 1_899)], &[]), 1);
    }

    #[test]
    fn what_may_lie_outside_does_not_count() {
        assert_eq!(excess_of(&[(0, 1), (300, 300), (900, 900), (990, 1_000)], &[]), 0);
        assert_eq!(excess_of(&[(1, 1), (300, 300), (900, 900), (990, 1_000)], &[]), 1);
    }

    #[test]
    fn a_data_loss_allows_one_limit_in_windows_that_may_contain_it() {
        let loss = [DataLoss { from: 500 * MS, to: 510 * MS }];
        let burst = |times: usize, at: Nanos| vec![(at, at); times];
        assert_eq!(excess_of(&[burst(3, 400), burst(3, 520)].concat(), &loss), 0);
        assert_eq!(excess_of(&[burst(3, 400), burst(4, 520)].concat(), &loss), 1);
        assert_eq!(excess_of(&burst(4, 499), &loss), 1);
        assert_eq!(excess_of(&burst(4, 1_510), &loss), 1);
    }
}
