//! Sends random requests at random instants to an algorithm and to its oracle, and fails if they differ.
//!
//! Chance alone rarely hits an edge, so half of the requests are aimed: at the exact end of a reported wait,
//! one microsecond before it, at exactly what is left and one more. Counters prove that the walk covers
//! enough: every outcome must be frequent.

use std::collections::VecDeque;
use std::fmt;

use tidegate_core::{Algorithm, Decision, Micros, Outcome, Quota, Wait};

use crate::oracle::{Answer, Oracle, Time, Verdict};
use crate::random::Random;

/// The number of steps of each walk, unless the environment sets another.
const STEPS: u64 = 1_000_000;
/// After so many steps another quota is drawn.
const EPISODE: u64 = 500;
/// A report shows so many of the last steps.
const REMEMBERED: usize = 8;
/// No episode goes on beyond this instant: the end of the time line is tested elsewhere.
const LAST: u64 = 1 << 52;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    Forward,
    SometimesBack,
}

#[derive(Clone, Copy, Debug)]
enum Operation {
    Decide,
    Peek,
    Force,
    Refund,
    Take,
    Reset,
}

/// The units of the steps of a walk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    capacity: u64,
    interval: u64,
    period: u64,
}

/// Counts of what happened on a walk.
#[derive(Debug, Default)]
struct Counts {
    steps: u64,
    allowed: u64,
    refused: u64,
    never: u64,
    aimed_at_a_wait: u64,
    back: u64,
    back_after_a_refund: u64,
    returned: u64,
}

/// One step, with both answers.
#[derive(Clone, Copy, Debug)]
struct Exchange {
    operation: Operation,
    now: u64,
    cost: u32,
    got: Answer,
    want: Answer,
}

/// An algorithm, its oracle, and the current instant.
struct Episode<'a, A: ?Sized> {
    about: String,
    algorithm: &'a A,
    oracle: &'a mut dyn Oracle,
    state: Vec<u64>,
    scale: Scale,
    clock: Clock,
    now: u64,
    /// The instant before the last step back of the clock.
    left: u64,
    last: Answer,
    history: VecDeque<Exchange>,
}

/// Walks through as many episodes as it takes; `episode` draws the rules of each one.
pub(crate) fn compare(clock: Clock, seed: u64, mut episode: impl FnMut(&mut Random, &mut Comparison)) {
    let mut random = Random::seeded(seed);
    let mut comparison = Comparison { clock, counts: Counts::default() };
    let steps = steps();
    while comparison.counts.steps < steps {
        episode(&mut random, &mut comparison);
    }
    comparison.counts.assert_that_every_outcome_is_frequent(clock);
}

fn steps() -> u64 {
    let given = std::env::var("TIDEGATE_STEPS").ok();
    given.map_or(STEPS, |text| text.parse().expect("TIDEGATE_STEPS is a number of steps"))
}

pub(crate) struct Comparison {
    clock: Clock,
    counts: Counts,
}

impl Comparison {
    /// Takes some steps with one algorithm. `about` names it in a failure.
    pub(crate) fn run<A: Algorithm + ?Sized>(
        &mut self,
        random: &mut Random,
        about: String,
        algorithm: &A,
        oracle: &mut dyn Oracle,
        scale: Scale,
    ) {
        let now = scale.start(random);
        let last = oracle.peek(i128::from(now), 0);
        let state = vec![0; algorithm.words()];
        let (clock, history) = (self.clock, VecDeque::new());
        let left = now;
        let mut episode = Episode { about, algorithm, oracle, state, scale, clock, now, left, last, history };
        for _ in 0..EPISODE {
            episode.step(random, &mut self.counts);
            if episode.now > LAST {
                break;
            }
        }
    }
}

impl<A: Algorithm + ?Sized> Episode<'_, A> {
    fn step(&mut self, random: &mut Random, counts: &mut Counts) {
        self.now = self.next_instant(random, counts);
        let operation = draw_operation(random);
        let cost = self.scale.cost(random, &self.last);
        let (got, want) = self.ask(operation, cost);
        counts.count(&want);
        self.last = want;
        self.remember(Exchange { operation, now: self.now, cost, got, want });
        if got != want {
            self.report();
        }
    }

    fn remember(&mut self, exchange: Exchange) {
        if self.history.len() == REMEMBERED {
            self.history.pop_front();
        }
        self.history.push_back(exchange);
    }

    fn next_instant(&mut self, random: &mut Random, counts: &mut Counts) -> u64 {
        let back = self.clock == Clock::SometimesBack && random.one_in(12);
        if back && self.now < self.left && random.one_in(2) {
            // A clock that flickers: it returns to the instant before the step back.
            counts.returned += 1;
            return (self.left + random.below(3)).saturating_sub(1);
        }
        let refunded = matches!(self.history.back(), Some(Exchange { operation: Operation::Refund, .. }));
        if back || self.clock == Clock::SometimesBack && refunded && random.one_in(3) {
            counts.back += 1;
            counts.back_after_a_refund += u64::from(refunded);
            self.left = self.now;
            return self.now.saturating_sub(self.scale.step_back(random));
        }
        self.now + self.scale.step(random, &self.last, counts)
    }

    fn ask(&mut self, operation: Operation, cost: u32) -> (Answer, Answer) {
        let (state, now, units) = (&mut self.state[..], Micros::new(self.now), i128::from(cost));
        let when = i128::from(self.now);
        match operation {
            Operation::Decide => {
                let got = decide_both_ways(self.algorithm, state, now, cost);
                (plain(got, now), self.oracle.decide(when, units))
            }
            Operation::Peek => {
                (plain(self.algorithm.peek(state, now, cost), now), self.oracle.peek(when, units))
            }
            Operation::Force => {
                let cost = cost.min(self.scale.most_forced(&self.oracle.peek(when, 0)));
                let got = self.algorithm.force(state, now, cost);
                (plain(got, now), self.oracle.force(when, i128::from(cost)))
            }
            Operation::Refund => {
                self.algorithm.refund(state, now, cost);
                self.oracle.refund(when, units);
                (plain(self.algorithm.peek(state, now, 0), now), self.oracle.peek(when, 0))
            }
            Operation::Take => {
                let taken = self.algorithm.take(state, now, cost);
                let (amount, answer) = self.oracle.take(when, units);
                assert_eq!(i128::from(taken.amount), amount, "taken of {cost} at {when}: {}", self.about);
                (plain(taken.decision, now), answer)
            }
            Operation::Reset => {
                self.algorithm.reset(state);
                self.oracle.reset();
                (plain(self.algorithm.peek(state, now, 1), now), self.oracle.peek(when, 1))
            }
        }
    }

    fn report(&self) -> ! {
        let steps: String = self.history.iter().map(Exchange::to_string).collect();
        panic!("{}\n{steps}  state now {:?}", self.about, self.state);
    }
}

impl fmt::Display for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  {:?} of {} at {} us", self.operation, self.cost, self.now)?;
        writeln!(f, "    got  {:?}", self.got)?;
        if self.got == self.want { Ok(()) } else { writeln!(f, "    want {:?}", self.want) }
    }
}

/// Decides, and compares with the fast path where there is one.
fn decide_both_ways<A: Algorithm + ?Sized>(limit: &A, state: &mut [u64], now: Micros, cost: u32) -> Decision {
    let fast_path = if state.len() == 1 { limit.decide_word(state[0], now, cost) } else { None };
    let decision = limit.decide(state, now, cost);
    if let Some(fast) = fast_path {
        assert_eq!(fast, (state[0], decision), "the fast path differs, at {now} with {cost}");
    }
    decision
}

fn draw_operation(random: &mut Random) -> Operation {
    match random.below(200) {
        0..140 => Operation::Decide,
        140..155 => Operation::Peek,
        155..165 => Operation::Force,
        165..180 => Operation::Refund,
        180..199 => Operation::Take,
        _ => Operation::Reset,
    }
}

/// Converts a decision into an answer of the oracle.
fn plain(decision: Decision, now: Micros) -> Answer {
    assert_eq!(decision.at(), now, "a decision has the instant it was made at");
    let micros = |wait: Wait| Time::from(wait.as_micros());
    let verdict = match (decision.outcome, decision.retry_after()) {
        (Outcome::Allowed, None) => Verdict::Allowed,
        (Outcome::AllowedAfter(wait), None) => Verdict::AllowedAfter(micros(wait)),
        (Outcome::RetryAfter(_), Some(wait)) => Verdict::RetryAfter(micros(wait)),
        (Outcome::Never, None) => Verdict::Never,
        _ => panic!("no algorithm here answers {decision:?}"),
    };
    Answer {
        verdict,
        limit: i128::from(decision.limit()),
        remaining: i128::from(decision.remaining()),
        reset_after: micros(decision.reset_after()),
        rule: decision.rule.0,
    }
}

impl Scale {
    pub(crate) fn of(quota: Quota, capacity: u64) -> Self {
        let period = u64::try_from(quota.period().as_micros()).expect("a period that fits").max(1);
        Scale { capacity, interval: (period / quota.limit()).max(1), period }
    }

    /// An instant to begin at: today, at the beginning of time, or in between.
    fn start(&self, random: &mut Random) -> u64 {
        const TODAY: u64 = 1_760_000_000_000_000;
        match random.below(4) {
            0 => 0,
            1 => random.below(self.period.saturating_mul(3)),
            2 => TODAY + random.below(self.period),
            _ => TODAY / self.period * self.period,
        }
    }

    fn step(&self, random: &mut Random, last: &Answer, counts: &mut Counts) -> u64 {
        match random.below(40) {
            0..12 => 0,
            12..15 => 1,
            15..19 => random.below(self.interval + 1),
            19..23 => self.interval * random.between(1, 4) - 1 + random.below(3),
            23..25 => random.below(self.period + 1),
            25..34 => self.aim(random, last, counts),
            34..36 => self.period * random.between(1, 3) - 1 + random.below(3),
            36..39 => random.below(self.period / 4 + 1),
            _ => self.idle(random),
        }
    }

    /// Moves to the end of the wait, one microsecond before it, or to where the quota is full again.
    fn aim(&self, random: &mut Random, last: &Answer, counts: &mut Counts) -> u64 {
        let Verdict::RetryAfter(wait) = last.verdict else {
            let edge = u64::try_from(last.reset_after).expect("a reset that fits");
            return (edge + random.below(3)).saturating_sub(1).min(self.period.saturating_mul(1_000));
        };
        counts.aimed_at_a_wait += 1;
        let wait = u64::try_from(wait).expect("a wait that fits");
        (wait + random.below(3)).saturating_sub(2).min(self.period.saturating_mul(1_000))
    }

    fn idle(&self, random: &mut Random) -> u64 {
        const YEAR: u64 = 365 * 86_400_000_000;
        if random.one_in(10) { random.below(5 * YEAR) } else { self.period * random.below(50) }
    }

    fn step_back(&self, random: &mut Random) -> u64 {
        match random.below(6) {
            0 => 1,
            1 => random.below(self.interval + 1),
            2 => self.interval * random.between(1, 4),
            3 => random.below(self.period + 1),
            4 => self.period * random.between(1, 3) - 1 + random.below(3),
            _ => random.below(self.period * 20),
        }
    }

    fn cost(&self, random: &mut Random, last: &Answer) -> u32 {
        let left = u64::try_from(last.remaining).expect("what remains is not below nothing");
        let cost = match random.below(40) {
            0..14 => 1,
            14..18 => random.between(1, 3),
            18..22 => left,
            22..27 => left + 1,
            27..33 => random.below(self.capacity) + 1,
            33..36 => random.below(left + 2),
            36 => self.capacity,
            37 => self.capacity + 1,
            38 => 0,
            _ => random.below(self.capacity.saturating_mul(3)),
        };
        u32::try_from(cost).unwrap_or(u32::MAX)
    }

    /// Debts of any size are tested elsewhere; here they must be paid while the walk lasts.
    fn most_forced(&self, found: &Answer) -> u32 {
        if found.remaining == 0 { 3 } else { u32::try_from(self.capacity * 2).unwrap_or(u32::MAX) }
    }
}

impl Counts {
    fn count(&mut self, answer: &Answer) {
        self.steps += 1;
        match answer.verdict {
            Verdict::Allowed | Verdict::AllowedAfter(_) => self.allowed += 1,
            Verdict::RetryAfter(_) => self.refused += 1,
            Verdict::Never => self.never += 1,
        }
    }

    fn assert_that_every_outcome_is_frequent(&self, clock: Clock) {
        assert!(self.allowed > self.steps / 5, "{self:?}");
        assert!(self.refused > self.steps / 8, "{self:?}");
        assert!(self.never > self.steps / 100, "{self:?}");
        assert!(self.aimed_at_a_wait > self.steps / 50, "{self:?}");
        assert_eq!(clock == Clock::SometimesBack, self.back > self.steps / 20, "{self:?}");
        assert_eq!(clock == Clock::SometimesBack, self.back_after_a_refund > self.steps / 100, "{self:?}");
        assert_eq!(clock == Clock::SometimesBack, self.returned > self.steps / 200, "{self:?}");
    }
}
