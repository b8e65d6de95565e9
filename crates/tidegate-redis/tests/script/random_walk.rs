//! # A long random walk, script and core side by side
//!
//! Sequences of two hundred requests on a few rules: every algorithm, every operation, costs from nothing to
//! more than can ever pass, a clock that does not advance, moves to where something happens, and steps back. Every
//! number of every reply must be the core's. A sequence runs on the core first and is then sent to the server
//! in one pipeline. The seed is fixed, so that a failure is reproducible; `TIDEGATE_STEPS` makes the walk
//! longer or shorter, `TIDEGATE_SEED` selects another walk.

use std::env;

use tidegate_core::{Micros, Rule};

use crate::mock_clock::MockClockScript;
use crate::reference::Reference;
use crate::scripted::limit;
use crate::server::Kind;
use crate::wire::{Reply, RuleArgs, call, call_at};

const STEPS_PER_SCENARIO: u64 = 200;

/// The earliest instant of the walk: one interval of the slowest rule. Just after 1970 the script cannot
/// store that a token was used before, which matters only if the clock steps back twice there.
const EARLIEST: Micros = Micros::new(86_400_000_000);

pub(crate) const RULES: &[&str] = &[
    "1/day",
    "7/s",
    "999983/s",
    "1500000/s",
    "100000000/s",
    "3/s burst 7",
    "1 per 200ms",
    "10/s burst 3",
    "1000/min burst 20",
    "leaky_queue 10/s queue 5",
    "leaky_queue 7/s queue 3 delay 1",
    "leaky_queue 3/s queue 4 max_wait 500ms",
    "leaky_queue 999983/s queue 9 delay 2 max_wait 3us",
    "leaky_queue 5/s queue 4 nodelay",
    "leaky_queue 10/s queue 5 nginx",
    "leaky_queue 1/min queue 3 delay 1 nginx",
    "leaky_queue 700/s queue 30 nodelay nginx",
    "stepped_bucket 20/min burst 50 offset 10s",
    "stepped_bucket 3/s burst 7",
    "stepped_bucket 5 per 7s burst 3",
    "fixed_window 5/min",
    "fixed_window 3 per 7s offset 2s",
    "fixed_window 1000000/s",
    "fixed_window 4 per 5s from first hit",
    "fixed_window 2/s from first hit",
    "sliding_log 5/s",
    "sliding_log 20 per 3s",
    "sliding_window 5/s cells 5",
    "sliding_window 7 per 3s cells 7 interpolated",
    "sliding_window 10/min cells 10 plain",
    "sliding_window 100/min cells 60",
    "sliding_window 50 per 1000003us cells 7 interpolated",
    "sliding_window 9 per 1000003us cells 11 plain",
    "sliding_window 1000/s cells 1 interpolated",
    "sliding_window 4000000000/day cells 1 interpolated",
    "sliding_window 4000000000 per 1w cells 3 interpolated",
];

/// A small generator of random numbers with a fixed seed, so that a failure is reproducible.
#[derive(Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// A number below `end`; 0 if there is none.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11).checked_rem(end).unwrap_or(0)
    }

    pub(crate) fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::try_from(self.below(choices.len() as u64)).expect("below the length")]
    }
}

/// Requests on one key, with the core's reply to each.
struct Scenario {
    number: u64,
    rules: Vec<Rule>,
    texts: Vec<&'static str>,
    reference: Reference,
    steps: Vec<Step>,
}

#[derive(Debug)]
struct Step {
    at: Micros,
    operation: &'static str,
    costs: Vec<u32>,
    want: Reply,
}

impl Scenario {
    fn generate(number: u64, forgets: bool, random: &mut Random) -> Self {
        let count = random.one_of(&[1, 1, 1, 1, 2, 3, 4]);
        // Every other sequence uses only buckets, which have fast paths of their own in the script.
        let choices = if random.below(2) == 0 { &RULES[..9] } else { RULES };
        let texts: Vec<&'static str> = (0..count).map(|_| random.one_of(choices)).collect();
        let rules: Vec<Rule> = texts.iter().map(|text| text.parse().expect("a rule")).collect();
        let mut scenario =
            Scenario { number, reference: Reference::new(&rules, forgets), rules, texts, steps: Vec::new() };
        let start = random.one_of(&[1_700_000_000_000_000, 1_484_551_710_123_456, EARLIEST.get()]);
        let mut at = Micros::new(start + random.below(3_000_000));
        for _ in 0..STEPS_PER_SCENARIO {
            at = scenario.next_instant(at, random).max(EARLIEST);
            let (operation, costs) = scenario.request(at, random);
            let want = scenario.reference.call(at, operation, &costs);
            scenario.steps.push(Step { at, operation, costs, want });
        }
        scenario
    }

    /// The same instant, a moment later, where something happens, back, or the latest instant so far.
    fn next_instant(&self, at: Micros, random: &mut Random) -> Micros {
        let reply = self.steps.last().map(|step| random.one_of(&step.want.rules));
        let (wait, reset) = reply.map_or((0, 0), |reply| (reply.wait, reply.reset));
        let latest = self.steps.iter().map(|step| step.at).max().unwrap_or(at);
        match random.below(42) {
            0..12 => at,
            12..15 => at.plus(1),
            15..17 => at.plus(wait.saturating_sub(1)),
            17..20 => at.plus(wait),
            20..22 => at.plus(reset.saturating_sub(1)),
            22..24 => at.plus(reset),
            24..28 => at.plus(random.below(reset.max(2))),
            28..30 => at.plus(random.below(300_000)),
            30..32 => {
                let period = random.one_of(&[200_000, 1_000_000, 7_000_000, 60_000_000]);
                at.plus(period - at.get() % period)
            }
            32..34 => at.plus(random.below(30_000_000)),
            34 => at.plus(random.below(200_000_000_000)),
            35 => at.minus(1),
            36 => at.minus(random.below(2_000)),
            37 => at.minus(random.below(reset.max(2))),
            38 => at.minus(random.below(5_000_000)),
            39 => latest,
            40 => latest.plus(random.below(3)).minus(1),
            _ => at.minus(random.below(8_000_000_000)),
        }
    }

    fn request(&self, at: Micros, random: &mut Random) -> (&'static str, Vec<u32>) {
        let operation = random.one_of(&[
            "check", "check", "check", "check", "check", "check", "check", "peek", "peek", "take", "take",
            "force", "refund", "refund", "reset",
        ]);
        // A reset every 15 steps would keep states young.
        let operation = if operation == "reset" && random.below(4) > 0 { "check" } else { operation };
        let same = random.below(2) == 0;
        let mut costs: Vec<u32> = (0..self.rules.len()).map(|index| self.cost(index, at, random)).collect();
        // A debt that suits one rule may lie beyond the end of the time line of another.
        if (same && operation != "force") || operation == "take" {
            let first = costs[0];
            costs.fill(first);
        }
        (operation, costs)
    }

    fn cost(&self, index: usize, at: Micros, random: &mut Random) -> u32 {
        let limit = limit(&self.rules[index]);
        let there = self.reference.states[index].peek(at, 0).remaining();
        let cost = match random.below(16) {
            0 => 0,
            1..6 => 1,
            6 => 2,
            7..9 => there,
            9 => there + 1,
            10..14 => random.below(limit + 1),
            14 => limit,
            _ => limit + 1 + random.below(limit),
        };
        u32::try_from(cost).unwrap_or(u32::MAX)
    }

    fn key(&self, index: usize) -> String {
        format!("{}:{index}", self.number)
    }

    /// Sends the sequence to the script and compares the replies.
    fn replay(&self, mock: &mut MockClockScript) {
        let mut pipe = redis::pipe();
        for Step { at, operation, costs, .. } in &self.steps {
            let args_of = |(index, rule)| RuleArgs::rate(&self.key(index), costs[index], rule);
            let args: Vec<RuleArgs> = self.rules.iter().enumerate().map(args_of).collect();
            call_at(&mut pipe, *at, call(&mock.sha, operation, &args, None));
        }
        let replies = mock.replies(&pipe);
        for (index, (got, step)) in replies.iter().zip(&self.steps).enumerate() {
            let before = &self.steps[index.saturating_sub(4)..index];
            assert_eq!(
                *got, step.want,
                "step {index} of scenario {} of {:?}: {} {:?} at {}\nbefore it: {before:#?}",
                self.number, self.texts, step.operation, step.costs, step.at,
            );
        }
    }

    /// Keys in Redis expire exactly when they make no difference any more.
    fn assert_expiries(&self, mock: &mut MockClockScript) {
        for (index, state) in self.reference.states.iter().enumerate() {
            let got = mock.expiry(&self.key(index));
            let (scenario, text) = (self.number, self.texts[index]);
            assert_eq!(got, state.expiry(), "of {text} after scenario {scenario}");
        }
    }
}

pub(crate) fn number_from(variable: &str, default: u64) -> u64 {
    env::var(variable).map_or(default, |text| text.parse().expect("a number of steps, or a seed"))
}

fn walk(kind: Kind, seed: u64, steps: u64) {
    let mut mock = MockClockScript::of(kind);
    let mut random = Random(number_from("TIDEGATE_SEED", seed));
    let scenarios = number_from("TIDEGATE_STEPS", steps).div_ceil(STEPS_PER_SCENARIO);
    for number in 0..scenarios {
        let forgets = number % 2 == 0;
        if number % 2 == 0 || number == 1 {
            mock.clear();
        }
        mock.forget(forgets);
        let scenario = Scenario::generate(number, forgets, &mut random);
        scenario.replay(&mut mock);
        scenario.assert_expiries(&mut mock);
    }
}

#[test]
fn the_script_decides_every_request_as_the_core_does() {
    walk(Kind::Redis, 0x5EED, 100_000);
}

/// Another Lua, with its own library of numbers and bytes; another walk.
#[test]
fn the_script_decides_as_the_core_does_on_valkey() {
    walk(Kind::Valkey, 0x5EA, 20_000);
}

#[test]
fn the_script_decides_as_the_core_does_on_the_oldest_redis() {
    walk(Kind::OldRedis, 0x01D, 20_000);
}
