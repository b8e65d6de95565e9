//! Checks a supply curve: what is admitted in any interval is at most a burst and what the supply adds meanwhile.
//!
//! A token bucket adds `rate · t`, a fixed window adds the limit at each start of a window. With `S(t)` for what was
//! added up to `t`, the contract for every interval from `x` to `y` is
//!
//! ```text
//!   admitted in [x, y]  ≤  burst + S(y) − S(x)                                                    (contract)
//! ```
//!
//! Decisions have bounds instead of instants, so the check counts only decisions that lie in the interval for certain:
//!
//! ```text
//!           x                                   y
//!     ──────┼───────────────────────────────────┼──────► t
//!           │  ├── counts ──┤  ├── counts ──┤   │
//!        ├── may lie before x ──┤            ├── may lie after y ──┤
//! ```
//!
//! *Soundness.* Assume that the decisions have instants within their bounds that satisfy the contract. A decision whose
//! bounds lie in `[x, y]` has its instant there, so the number of such decisions is at most the number of instants in
//! `[x, y]`, which the contract bounds. A count above the bound therefore proves that there are no such instants.
//!
//! *Enough intervals.* Moving `x` up to the next `sent` or `y` down to the last `received` of the decisions that count
//! loses none of them, and `S` never decreases. So it suffices to try every `sent` as `x` and every `received` as `y`.
//!
//! *One pass.* Decisions are taken in the order of `received`. Each start `x` has a value, `S(x)` plus the cost of the
//! decisions so far with `sent ≥ x`. A decision adds its cost to all starts up to its own `sent`; then `y` is its
//! `received`, and the contract is broken if the largest value of a start up to `y` is more than `burst + S(y)`. A tree
//! with "add to a prefix" and "largest of a prefix" does both in logarithmic time.
//!
//! *Bounded memory.* Decisions come in rounds. All decisions after a round have `sent` at or after its watermark, so
//! they add the same to every start before it. Of these starts, only the one with the largest value can ever be the
//! worst, and only it is kept (one for each side of the last data loss, see below).
//!
//! *Data loss.* When Redis loses a key, the bucket is full again: one more burst in every interval that may contain the
//! loss. An interval may contain it if `x ≤ loss.to` and `y ≥ loss.from`. So once `y` reaches `loss.from`, the
//! allowance is subtracted from the value of all starts up to `loss.to`.

use super::{Admitted, DataLoss, Nanos, Worst};

/// What is admitted at once, and how it is supplied again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Curve {
    pub(crate) burst: i64,
    /// Tokens that the bound is higher, because clocks may differ in pace.
    pub(crate) slack: i64,
    pub(crate) supply: Supply,
}

/// What comes in with time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Supply {
    /// `tokens` in each `period`, evenly.
    Rate { tokens: i64, period: Nanos },
    /// `tokens` at each start of a window. Windows are aligned to a clock that is `offset` ahead of the soak's, give or
    /// take `slack`.
    Steps { tokens: i64, period: Nanos, offset: Nanos, slack: Nanos },
}

/// What a data loss does to the starts before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnLoss {
    /// Intervals with the loss may hold one more burst.
    AllowBurst,
    /// Intervals with two losses or more are not looked at, and no loss adds to the bound. The worst interval then
    /// tells how much of the burst of a single loss was used.
    Measure,
}

/// Checks the decisions on one key, round by round.
#[derive(Debug)]
pub(crate) struct CurveCheck {
    curve: Curve,
    on_loss: OnLoss,
    /// The best starts before the watermark, with the decisions since added: one from before the last loss was over,
    /// and one from after it.
    before: Vec<Start>,
    /// Decisions of earlier rounds that were sent at or after the watermark.
    recent: Vec<Admitted>,
    /// How many losses have begun.
    begun: usize,
    worst: Option<Worst>,
}

#[derive(Clone, Copy, Debug)]
struct Start {
    at: Nanos,
    /// In units of the supply.
    value: i64,
}

/// More than any interval admits, and small enough to be subtracted a few times.
const NEVER: i64 = 1 << 58;

impl Curve {
    pub(crate) fn bucket(tokens: i64, period: Nanos, burst: i64) -> Self {
        Curve { burst, slack: 0, supply: Supply::Rate { tokens, period } }
    }

    /// The most that may be admitted from `from` to `to`.
    fn bound(&self, from: Nanos, to: Nanos) -> i64 {
        let supplied = self.supply.until_end(to) - self.supply.until_start(from);
        self.burst + self.slack + supplied.div_euclid(self.supply.unit())
    }
}

impl Supply {
    /// How many units make a token.
    fn unit(&self) -> i64 {
        match self {
            Supply::Rate { period, .. } => *period,
            Supply::Steps { .. } => 1,
        }
    }

    /// What was supplied until `at`, if that is where an interval begins: no more than was supplied in truth.
    fn until_start(&self, at: Nanos) -> i64 {
        match *self {
            Supply::Rate { tokens, .. } => tokens * at,
            Supply::Steps { tokens, period, offset, slack } => {
                tokens * (at + offset - slack).div_euclid(period)
            }
        }
    }

    /// The same where an interval ends: no less than was supplied in truth.
    fn until_end(&self, at: Nanos) -> i64 {
        match *self {
            Supply::Rate { tokens, .. } => tokens * at,
            Supply::Steps { tokens, period, offset, slack } => {
                tokens * (at + offset + slack).div_euclid(period)
            }
        }
    }
}

impl CurveCheck {
    pub(crate) fn new(curve: Curve, on_loss: OnLoss) -> Self {
        CurveCheck { curve, on_loss, before: Vec::new(), recent: Vec::new(), begun: 0, worst: None }
    }

    /// The worst interval so far.
    pub(crate) fn worst(&self) -> Option<Worst> {
        self.worst
    }

    /// Checks another round of decisions, in the order of `received`.
    ///
    /// `losses` are all losses so far, in the order of `from`. No later decision was sent before `watermark`.
    pub(crate) fn round(&mut self, admitted: &[Admitted], losses: &[DataLoss], watermark: Nanos) {
        let recent = std::mem::take(&mut self.recent);
        let starts = self.starts(&recent, admitted, losses);
        let mut tree = Tree::new(starts.iter().map(|start| start.value).collect());
        let first = self.before.len();
        let unit = self.curve.supply.unit();
        for decision in &recent {
            tree.add(first..up_to(&starts, decision.sent), decision.cost * unit);
        }
        for decision in admitted {
            while let Some(loss) = losses.get(self.begun).filter(|loss| loss.from <= decision.received) {
                let (reach, allowance) = self.allowance(losses, self.begun, *loss);
                tree.add(0..up_to(&starts, reach), -allowance);
                self.begun += 1;
            }
            tree.add(0..up_to(&starts, decision.sent), decision.cost * unit);
            let (value, index) = tree.largest(0..up_to(&starts, decision.received));
            self.judge(starts[index].at, value, decision.received, losses);
        }
        self.fold(&starts, &tree, losses, watermark);
        self.recent = recent.into_iter().chain(admitted.iter().copied()).collect();
        self.recent.retain(|decision| decision.sent >= watermark);
    }

    /// The start that stands for all before the last watermark, then every start since, with nothing admitted yet.
    fn starts(&self, recent: &[Admitted], admitted: &[Admitted], losses: &[DataLoss]) -> Vec<Start> {
        let mut instants: Vec<Nanos> = recent.iter().chain(admitted).map(|decision| decision.sent).collect();
        instants.sort_unstable();
        instants.dedup();
        let first = instants.first().copied().unwrap_or(Nanos::MAX);
        let begun = losses[..self.begun].iter().enumerate();
        let allowances: Vec<_> = begun
            .map(|(index, loss)| self.allowance(losses, index, *loss))
            .filter(|(reach, _)| *reach >= first)
            .collect();
        let fresh = instants.into_iter().map(|at| {
            let reaching = allowances.iter().filter(|(reach, _)| *reach >= at);
            let allowed: i64 = reaching.map(|(_, allowance)| allowance).sum();
            Start { at, value: (self.curve.supply.until_start(at) - allowed).max(-NEVER) }
        });
        self.before.iter().copied().chain(fresh).collect()
    }

    /// How much is subtracted from the starts up to which instant.
    fn allowance(&self, losses: &[DataLoss], index: usize, loss: DataLoss) -> (Nanos, i64) {
        match self.on_loss {
            OnLoss::AllowBurst => (loss.to, self.curve.burst * self.curve.supply.unit()),
            OnLoss::Measure => match index.checked_sub(1) {
                Some(previous) => (losses[previous].to, NEVER),
                None => (Nanos::MIN, 0),
            },
        }
    }

    fn judge(&mut self, from: Nanos, value: i64, to: Nanos, losses: &[DataLoss]) {
        let unit = self.curve.supply.unit();
        let room = (self.curve.burst + self.curve.slack) * unit + self.curve.supply.until_end(to) - value;
        let excess = (-room).div_euclid(unit) + i64::from((-room).rem_euclid(unit) > 0);
        let lost = losses[..self.begun].iter().filter(|loss| loss.to >= from).count();
        let lost = if self.on_loss == OnLoss::AllowBurst { i64::try_from(lost).unwrap_or(0) } else { 0 };
        let bound = self.curve.bound(from, to) + lost * self.curve.burst;
        Worst::keep_larger(&mut self.worst, Worst { from, to, admitted: bound + excess, bound });
    }

    fn fold(&mut self, starts: &[Start], tree: &Tree, losses: &[DataLoss], watermark: Nanos) {
        let old = starts.partition_point(|start| start.at < watermark).max(self.before.len());
        let last = self.begun.checked_sub(1).map_or(Nanos::MIN, |index| losses[index].to);
        let split = up_to(starts, last).min(old);
        let best = |range: std::ops::Range<usize>| {
            let (value, index) = (!range.is_empty()).then(|| tree.largest(range))?;
            Some(Start { at: starts[index].at, value: value.max(-NEVER) })
        };
        self.before = [best(0..split), best(split..old)].into_iter().flatten().collect();
    }
}

/// How many starts are at or before this instant.
fn up_to(starts: &[Start], at: Nanos) -> usize {
    starts.partition_point(|start| start.at <= at)
}

/// Numbers in a row: adds to a range, and finds the largest of a range.
#[derive(Debug)]
struct Tree {
    leaves: usize,
    largest: Vec<(i64, usize)>,
    /// Added to all below a node, and not yet to their entries.
    pending: Vec<i64>,
}

impl Tree {
    fn new(values: Vec<i64>) -> Self {
        let leaves = values.len().next_power_of_two();
        let mut largest = vec![(i64::MIN / 2, 0); 2 * leaves];
        for (index, value) in values.into_iter().enumerate() {
            largest[leaves + index] = (value, index);
        }
        for node in (1..leaves).rev() {
            largest[node] = larger(largest[2 * node], largest[2 * node + 1]);
        }
        Tree { leaves, largest, pending: vec![0; 2 * leaves] }
    }

    fn add(&mut self, range: std::ops::Range<usize>, amount: i64) {
        self.add_below(1, 0..self.leaves, &range, amount);
    }

    fn add_below(
        &mut self,
        node: usize,
        covers: std::ops::Range<usize>,
        range: &std::ops::Range<usize>,
        amount: i64,
    ) {
        if range.end <= covers.start || covers.end <= range.start {
            return;
        }
        if range.start <= covers.start && covers.end <= range.end {
            self.largest[node].0 += amount;
            self.pending[node] += amount;
            return;
        }
        let middle = usize::midpoint(covers.start, covers.end);
        self.add_below(2 * node, covers.start..middle, range, amount);
        self.add_below(2 * node + 1, middle..covers.end, range, amount);
        let (value, index) = larger(self.largest[2 * node], self.largest[2 * node + 1]);
        self.largest[node] = (value + self.pending[node], index);
    }

    /// The largest number of a range that is not empty, and where it stands.
    fn largest(&self, range: std::ops::Range<usize>) -> (i64, usize) {
        self.largest_below(1, 0..self.leaves, &range)
    }

    fn largest_below(
        &self,
        node: usize,
        covers: std::ops::Range<usize>,
        range: &std::ops::Range<usize>,
    ) -> (i64, usize) {
        if range.end <= covers.start || covers.end <= range.start {
            return (i64::MIN / 2, 0);
        }
        if range.start <= covers.start && covers.end <= range.end {
            return self.largest[node];
        }
        let middle = usize::midpoint(covers.start, covers.end);
        let left = self.largest_below(2 * node, covers.start..middle, range);
        let right = self.largest_below(2 * node + 1, middle..covers.end, range);
        let (value, index) = larger(left, right);
        (value + self.pending[node], index)
    }
}

/// The larger number; of equal ones the earlier, which makes the longer interval.
fn larger(left: (i64, usize), right: (i64, usize)) -> (i64, usize) {
    if right.0 > left.0 { right } else { left }
}

#[cfg(test)]
mod tests {
    use super::super::SECOND;
    use super::*;

    const MS: Nanos = 1_000_000;

    fn at(instant: Nanos) -> Admitted {
        within(instant, instant)
    }

    fn within(sent: Nanos, received: Nanos) -> Admitted {
        Admitted { sent, received, cost: 1 }
    }

    /// 10 a second, 5 at once.
    fn bucket() -> CurveCheck {
        CurveCheck::new(Curve::bucket(10, SECOND, 5), OnLoss::AllowBurst)
    }

    fn excess_of(mut check: CurveCheck, admitted: &[Admitted], losses: &[DataLoss]) -> i64 {
        check.round(admitted, losses, Nanos::MAX);
        check.worst().expect("something was admitted").excess()
    }

    /// A burst at once, then one whenever a token has come in.
    fn tight(count: i64) -> Vec<Admitted> {
        (0..5).map(|_| at(0)).chain((1..=count).map(|n| at(n * 100 * MS))).collect()
    }

    #[test]
    fn tight_legal_trace_of_a_bucket_is_accepted() {
        assert_eq!(excess_of(bucket(), &tight(200), &[]), 0);
    }

    #[test]
    fn one_too_many_in_a_bucket_is_found() {
        for planted in [0, 50 * MS, 1_000 * MS, 19_999 * MS] {
            let mut trace = tight(200);
            trace.push(at(planted));
            trace.sort_by_key(|decision| decision.received);
            assert_eq!(excess_of(bucket(), &trace, &[]), 1, "at {planted}");
        }
    }

    #[test]
    fn a_token_taken_a_moment_too_early_is_found() {
        let mut trace = tight(3);
        trace[6].sent -= 1;
        assert_eq!(excess_of(bucket(), &trace, &[]), 0, "it may have been decided in time");
        trace[6].received -= 1;
        assert_eq!(excess_of(bucket(), &trace, &[]), 1, "it was decided too early");
    }

    #[test]
    fn rounds_find_what_one_pass_finds() {
        let mut trace: Vec<_> = (0..300_i64)
            .map(|n| {
                let sent = n * 61 * MS;
                within(sent, sent + (n * 7_919 % 400) * MS)
            })
            .collect();
        trace.sort_by_key(|decision| decision.received);
        let losses =
            [DataLoss { from: 3_000 * MS, to: 3_400 * MS }, DataLoss { from: 9_000 * MS, to: 9_001 * MS }];
        for on_loss in [OnLoss::AllowBurst, OnLoss::Measure] {
            let mut whole = CurveCheck::new(Curve::bucket(10, SECOND, 5), on_loss);
            whole.round(&trace, &losses, Nanos::MAX);
            let mut parts = CurveCheck::new(Curve::bucket(10, SECOND, 5), on_loss);
            for (number, round) in trace.chunks(17).enumerate() {
                let rest = &trace[((number + 1) * 17).min(trace.len())..];
                let watermark = rest.iter().map(|decision| decision.sent).min().unwrap_or(Nanos::MAX);
                parts.round(round, &losses, watermark);
            }
            assert_eq!(whole.worst(), parts.worst(), "{on_loss:?}");
        }
    }

    #[test]
    fn every_interval_is_tried() {
        let mut trace: Vec<_> = (0..60_i64)
            .map(|n| {
                let sent = (n * 48_271 % 3_000) * MS;
                within(sent, sent + (n * 7_919 % 300) * MS)
            })
            .collect();
        trace.sort_by_key(|decision| decision.received);
        let curve = Curve::bucket(10, SECOND, 5);
        let counted = |from, to| {
            trace.iter().filter(|decision| decision.sent >= from && decision.received <= to).count()
        };
        let pairs = trace.iter().flat_map(|from| trace.iter().map(move |to| (from.sent, to.received)));
        let excess = pairs
            .filter(|(from, to)| from <= to)
            .map(|(from, to)| {
                i64::try_from(counted(from, to)).expect("a small number") - curve.bound(from, to)
            })
            .max();
        assert_eq!(Some(excess_of(CurveCheck::new(curve, OnLoss::AllowBurst), &trace, &[])), excess);
    }

    #[test]
    fn wide_bounds_excuse_what_exact_instants_would_not() {
        let trace: Vec<_> = (0..10).map(|_| within(0, 500 * MS)).collect();
        assert_eq!(excess_of(bucket(), &trace, &[]), 0);
        let eleven: Vec<_> = (0..11).map(|_| within(0, 500 * MS)).collect();
        assert_eq!(excess_of(bucket(), &eleven, &[]), 1);
    }

    #[test]
    fn a_data_loss_allows_one_burst_and_no_more() {
        let loss = [DataLoss { from: 2_000 * MS, to: 2_010 * MS }];
        let again = |more: i64| {
            let mut trace = tight(20);
            trace.extend((0..more).map(|_| at(2_005 * MS)));
            trace
        };
        assert_eq!(excess_of(bucket(), &again(5), &loss), 0);
        assert_eq!(excess_of(bucket(), &again(6), &loss), 1);
        assert_eq!(excess_of(bucket(), &again(5), &[]), 5, "without a loss nothing is allowed");
        let measure = CurveCheck::new(Curve::bucket(10, SECOND, 5), OnLoss::Measure);
        assert_eq!(excess_of(measure, &again(4), &loss), 4, "so much of the burst was used");
    }

    #[test]
    fn a_data_loss_allows_nothing_in_intervals_before_and_after_it() {
        let loss = [DataLoss { from: 2_000 * MS, to: 2_010 * MS }];
        let six_at = |instant: Nanos| (0..6).map(|_| at(instant)).collect::<Vec<_>>();
        assert_eq!(excess_of(bucket(), &six_at(1_999 * MS), &loss), 1);
        assert_eq!(excess_of(bucket(), &six_at(2_011 * MS), &loss), 1);
        assert_eq!(excess_of(bucket(), &six_at(2_005 * MS), &loss), -4);
    }

    /// 3 in each second of a clock that is 250 ms ahead.
    fn fixed_window() -> CurveCheck {
        let supply = Supply::Steps { tokens: 3, period: SECOND, offset: 250 * MS, slack: 0 };
        CurveCheck::new(Curve { burst: 3, slack: 0, supply }, OnLoss::AllowBurst)
    }

    #[test]
    fn a_fixed_window_is_aligned() {
        let legal: Vec<_> = [749, 749, 749, 750, 750, 750].map(|ms| at(ms * MS)).into();
        assert_eq!(excess_of(fixed_window(), &legal, &[]), 0);
        let one_more: Vec<_> = [750, 750, 750, 1_749].map(|ms| at(ms * MS)).into();
        assert_eq!(excess_of(fixed_window(), &one_more, &[]), 1);
        let across = [at(750 * MS), at(750 * MS), at(750 * MS), within(1_749 * MS, 1_750 * MS)];
        assert_eq!(excess_of(fixed_window(), &across, &[]), 0, "it may belong to the next window");
    }

    #[test]
    fn cost_counts_as_many() {
        let decision = Admitted { cost: 6, ..at(0) };
        assert_eq!(excess_of(bucket(), &[decision], &[]), 1);
    }
}
