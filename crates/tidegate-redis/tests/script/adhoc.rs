//! # Ad-hoc limits: the script and Rust side by side
//!
//! `src/adhoc.lua` has nanoseconds in two numbers, `tidegate-server` has them in one word. Both run the
//! same calls at the same instants, forward and back, and must owe the same to the nanosecond, reply the
//! same, and expire at the same millisecond.

use redis::Cmd;
use tidegate_core::{Algorithm, Decision, Micros, Outcome, Wait};
use tidegate_redis::{ADHOC_SCRIPT, AdhocDecision};

use crate::mock_clock::MockClockScript;
use crate::random_walk::{Random, number_from};
use crate::server::{Kind, Server};
use crate::throttle::Throttle;
use crate::wire::{call_at, script_from};

const STEPS_PER_SCENARIO: u64 = 200;
const NANOS: u64 = 1_000;
/// The longest duration of a full burst.
const LONGEST: u64 = 1 << 62;

/// One of the two operations of the script.
#[derive(Clone, Copy, Debug)]
enum Operation {
    Charge(Throttle, Terms),
    Forget,
}

/// The limit, in nanoseconds, by the test's own arithmetic.
#[derive(Clone, Copy, Debug)]
struct Terms {
    full: i128,
    charge: i128,
}

#[derive(Debug)]
struct Step {
    at: Micros,
    operation: Operation,
    want: Want,
}

/// The expected result.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Want {
    /// `None` for a key that is reset.
    decision: Option<Decision>,
    nanos: u64,
}

/// One key, as Rust has it.
#[derive(Debug, Default)]
struct Reference {
    owes: u64,
    forgets: bool,
}

impl Reference {
    fn call(&mut self, at: Micros, operation: Operation) -> Want {
        if self.forgets && self.expiry().is_some_and(|millis| millis * 1_000 <= at.get()) {
            self.owes = 0;
        }
        match operation {
            Operation::Forget => {
                let nanos = self.nanos(at);
                self.owes = 0;
                Want { decision: None, nanos }
            }
            Operation::Charge(throttle, terms) => {
                let decision = throttle.decide(std::slice::from_mut(&mut self.owes), at, 0);
                let nanos = self.nanos(at);
                if terms.charge != 0 && decision.is_allowed() && nanos == 0 {
                    self.owes = 0; // an instant that has passed is not written
                }
                Want { decision: Some(decision), nanos }
            }
        }
    }

    fn nanos(&self, at: Micros) -> u64 {
        self.owes.saturating_sub(at.get() * NANOS)
    }

    /// The first millisecond at which nothing is owed.
    fn expiry(&self) -> Option<u64> {
        (self.owes > 0).then(|| self.owes.div_ceil(1_000 * NANOS))
    }
}

impl Terms {
    /// Encoded as `WIRE.md` says: each duration in whole microseconds, and the nanoseconds beyond them.
    fn packed(self) -> Vec<u8> {
        let end = (1 << 53) - 1;
        let both = |nanos: i128| {
            let (micros, rest) = (nanos.div_euclid(1_000), nanos.rem_euclid(1_000));
            [
                i64::try_from(micros.clamp(-end, end)).expect("53 bits"),
                i64::try_from(rest).expect("below 1000"),
            ]
        };
        [both(self.full), both(self.charge)]
            .as_flattened()
            .iter()
            .flat_map(|number| number.to_be_bytes())
            .collect()
    }
}

fn call(sha: &str, key: &str, operation: Operation) -> Cmd {
    let mut cmd = redis::cmd("EVALSHA");
    cmd.arg(sha).arg(1).arg(key);
    match operation {
        Operation::Charge(_, terms) => cmd.arg("1:charge").arg(terms.packed()),
        Operation::Forget => cmd.arg("1:forget"),
    };
    cmd
}

/// Decodes the numbers of a reply.
fn decode(operation: Operation, numbers: &[u64]) -> Want {
    let [at, outcome, wait, micros, rest] = *numbers else { panic!("not five numbers: {numbers:?}") };
    assert!(rest < NANOS, "{numbers:?}");
    let outcome = match outcome {
        0 => Outcome::Allowed,
        2 => Outcome::RetryAfter(Wait::micros(wait)),
        4 => Outcome::Never,
        other => panic!("outcome {other} means nothing"),
    };
    let owed = AdhocDecision { outcome, at: Micros::new(at), nanos: micros * NANOS + rest };
    let decision = match operation {
        Operation::Charge(throttle, _) => Some(throttle.told(owed)),
        Operation::Forget => None,
    };
    Want { decision, nanos: owed.nanos }
}

fn charge(limit: u64, count: i64, period: i64, quantity: i64) -> Option<Operation> {
    let throttle = Throttle::new(limit, count, period, quantity).ok()?;
    let interval = i128::from(period / count);
    let terms = Terms { full: interval * i128::from(limit), charge: interval * i128::from(quantity) };
    Some(Operation::Charge(throttle, terms))
}

struct Scenario {
    key: String,
    reference: Reference,
    steps: Vec<Step>,
    limit: (u64, i64, i64),
}

impl Scenario {
    fn generate(number: u64, random: &mut Random) -> Self {
        let reference = Reference { forgets: number.is_multiple_of(2), ..Reference::default() };
        let mut scenario = Scenario {
            key: format!("scenario {number}"),
            reference,
            steps: Vec::new(),
            limit: (5, 3, 1_000_000_000),
        };
        // Today, at the start of the time line, and where it ends within a few bursts.
        let start = random.one_of(&[
            1_700_000_000_123_456,
            1_700_000_000_123_456,
            0,
            Micros::MAX.get() - 500_000_000,
        ]);
        let mut at = Micros::new(start);
        for _ in 0..STEPS_PER_SCENARIO {
            at = scenario.next_instant(at, random);
            let operation = scenario.request(random);
            let want = scenario.reference.call(at, operation);
            scenario.steps.push(Step { at, operation, want });
        }
        scenario
    }

    fn next_instant(&self, at: Micros, random: &mut Random) -> Micros {
        let decision = self.steps.last().and_then(|step| step.want.decision);
        let wait = decision.and_then(|decision| decision.retry_after()).map_or(0, Wait::as_micros);
        let reset = self.reference.nanos(at) / NANOS;
        match random.below(24) {
            0..8 => at,
            8..10 => at.plus(1),
            10 => at.plus(wait.saturating_sub(1)),
            11 => at.plus(wait),
            12 => at.plus(wait + 1),
            13 => at.plus(reset),
            14 => at.plus(reset + 1),
            15..18 => at.plus(random.below(reset.max(2))),
            18..20 => at.plus(random.below(3_000_000)),
            20 => at.plus(random.below(200_000_000_000)),
            21 => at.minus(1),
            22 => at.minus(random.below(reset.max(2))),
            _ => at.minus(random.below(5_000_000)),
        }
    }

    fn request(&mut self, random: &mut Random) -> Operation {
        if random.below(60) == 0 {
            return Operation::Forget;
        }
        if random.below(12) == 0 {
            self.limit = (
                random.one_of(&[1, 2, 5, 100, 100_001, 4_000_000_000_000_000_000]),
                random.one_of(&[1, 3, 7, 30, 1_000, 999_983, 700_000_001, 1_000_000_000]),
                random.one_of(&[1, 500_000_001, 1_000_000_000, 60_000_000_000, 86_400_000_000_000, 1 << 62]),
            );
        }
        let (limit, count, period) = self.limit;
        let most = i64::try_from(limit).expect("63 bits");
        let below = i64::try_from(random.below(limit.min(1 << 40))).expect("40 bits");
        let quantity =
            random.one_of(&[0, 1, 1, 1, 2, 5, 100, below, most - 1, most, most + 1, i64::MAX, i64::MAX / 7]);
        let quantity = if random.below(6) == 0 { -quantity } else { quantity };
        charge(limit, count, period, quantity).unwrap_or_else(|| {
            self.limit = (5, 3, 1_000_000_000); // an invalid limit never reaches the script
            charge(5, 3, 1_000_000_000, 1).expect("a limit")
        })
    }

    fn replay(&self, mock: &mut MockClockScript) {
        let mut pipe = redis::pipe();
        for step in &self.steps {
            call_at(&mut pipe, step.at, call(&mock.sha, &self.key, step.operation));
        }
        let replies: Vec<Vec<u64>> = pipe.query(&mut mock.connection).expect("the script replies");
        for (index, (numbers, step)) in replies.iter().zip(&self.steps).enumerate() {
            let before = &self.steps[index.saturating_sub(4)..index];
            let Step { at, operation, want } = step;
            assert_eq!(
                decode(*operation, numbers),
                *want,
                "step {index} of {}: {operation:?} at {at}\nbefore it: {before:#?}",
                self.key
            );
        }
        assert_eq!(mock.expiry(&self.key), self.reference.expiry(), "of {}", self.key);
    }
}

fn script() -> String {
    script_from("TIDEGATE_SCRIPT_OF_BROUGHT", ADHOC_SCRIPT)
}

fn walk(kind: Kind, seed: u64, steps: u64) {
    let mut mock = MockClockScript::with(kind, &script());
    let mut random = Random(number_from("TIDEGATE_SEED", seed));
    for number in 0..number_from("TIDEGATE_STEPS", steps).div_ceil(STEPS_PER_SCENARIO) {
        let scenario = Scenario::generate(number, &mut random);
        mock.forget(scenario.reference.forgets);
        scenario.replay(&mut mock);
    }
}

#[test]
fn adhoc_debts_equal_those_of_rust_to_the_nanosecond() {
    walk(Kind::Redis, 0x5EED, 60_000);
}

#[test]
fn adhoc_debts_equal_those_of_rust_on_valkey() {
    walk(Kind::Valkey, 0x5EA, 10_000);
}

#[test]
fn adhoc_debts_equal_those_of_rust_on_the_oldest_redis() {
    walk(Kind::OldRedis, 0x01D, 10_000);
}

/// Where doubles lose precision: every sum here has more than 53 bits.
#[test]
fn the_longest_limits_are_exact() {
    let mut mock = MockClockScript::with(Kind::Redis, &script());
    let longest = i64::try_from(LONGEST).expect("63 bits");
    let mut reference = Reference::default();
    let mut at = Micros::new(1_700_000_000_123_456);
    for (step, limit, count, period, quantity) in [
        (0, LONGEST, 1, 1, 1),           // a nanosecond each
        (0, LONGEST, 1, 1, longest - 1), // up to the limit
        (0, LONGEST, 1, 1, 1),           // and one beyond it
        (1, LONGEST, 1, 1, 1_001),       // a microsecond later, one beyond it as well
        (0, LONGEST, 1, 1, 1_000),
        (0, 1, 1, longest, 0),
        (0, LONGEST, 1, 1, longest + 1), // never
        (0, LONGEST, 1, 1, i64::MAX),
        (7, LONGEST, 1, 1, -i64::MAX), // everything
        (0, LONGEST, 1, 1, longest),
        (0, LONGEST, 1, 1, -longest + 1), // all but one
        (0, 1, 1, 1, 0),
        (4_500_000_000_000_000, LONGEST, 1, 1, longest), // the limit is the end of time
        (0, LONGEST, 1, 1, 2_500_000_000_000_000_007),
        (0, LONGEST, 1, 1, longest),
        (0, LONGEST, 1, 1, 0),
    ] {
        at = at.plus(step);
        let operation = charge(limit, count, period, quantity).expect("a limit");
        let want = reference.call(at, operation);
        let mut pipe = redis::pipe();
        call_at(&mut pipe, at, call(&mock.sha, "k", operation));
        let replies: Vec<Vec<u64>> = pipe.query(&mut mock.connection).expect("the script replies");
        assert_eq!(decode(operation, &replies[0]), want, "{operation:?} at {at}");
    }
    assert!(reference.owes > 1 << 62, "the debt got that large");
}

/// A step back is not forgiven here, so a return creates no tokens either.
#[test]
fn a_clock_that_jumps_back_and_forth_creates_no_adhoc_tokens() {
    let mut mock = MockClockScript::with(Kind::Redis, &script());
    mock.forget(true);
    let at = |seconds: u64| Micros::new(1_700_000_000_000_000 + seconds * 1_000_000);
    for (seconds, quantity, outcome) in [(10, 4, 0), (0, 1, 2), (10, 1, 2), (0, 1, 2), (10, 1, 2), (11, 4, 0)]
    {
        let operation = charge(4, 10, 1_000_000_000, quantity).expect("a limit");
        let mut pipe = redis::pipe();
        call_at(&mut pipe, at(seconds), call(&mock.sha, "k", operation));
        let replies: Vec<Vec<u64>> = pipe.query(&mut mock.connection).expect("the script replies");
        assert_eq!(replies[0][1], outcome, "{quantity} at {seconds} s");
    }
}

#[test]
fn peeks_and_full_refunds_leave_no_key_behind() {
    let server = Server::start();
    let (mut connection, sha) = server.load(&script());
    let mut charge_key = |quantity| {
        let operation = charge(5, 1, 3_600_000_000_000, quantity).expect("a limit");
        let numbers: Vec<u64> =
            call(&sha, "k", operation).query(&mut connection).expect("the script replies");
        let until: i64 = redis::cmd("PEXPIRETIME").arg("k").query(&mut connection).expect("a reply");
        let value: Option<u64> = redis::cmd("GET").arg("k").query(&mut connection).expect("a reply");
        let encoding: Option<String> =
            redis::cmd("OBJECT").arg("ENCODING").arg("k").query(&mut connection).ok();
        (numbers, until, value, encoding.filter(|_| value.is_some()))
    };
    assert_eq!(
        (charge_key(0).1, charge_key(-1).1, charge_key(6).1),
        (-2, -2, -2),
        "a peek, a refund, a cost never allowed"
    );
    let (numbers, until, value, encoding) = charge_key(2);
    let owes = (numbers[0] + 7_200_000_000) * NANOS;
    assert_eq!((numbers[3], value), (7_200_000_000, Some(owes)), "the instant, in nanoseconds");
    assert_eq!(
        until,
        i64::try_from(owes.div_ceil(1_000_000)).expect("an instant"),
        "expires when nothing is owed"
    );
    assert_eq!(encoding.as_deref(), Some("int"));
    assert_eq!(charge_key(4).1, until, "a refusal changes nothing");
    assert_eq!(charge_key(0).1, until);
    assert_eq!(charge_key(-2).1, -2);
    assert_eq!(charge_key(-2).2, None);
    let stats: String = redis::cmd("INFO").arg("commandstats").query(&mut connection).expect("a reply");
    assert!(stats.contains("cmdstat_set:calls=1,"), "one charge is written once: {stats}");
}

#[test]
fn invalid_calls_are_errors_and_write_nothing() {
    let server = Server::start();
    let (mut connection, sha) = server.load(&script());
    let numbers =
        |numbers: [i64; 4]| numbers.iter().flat_map(|number| number.to_be_bytes()).collect::<Vec<u8>>();
    let mut refuses = |keys: &[&str], arguments: &[&[u8]], sentence: &str| {
        let mut cmd = redis::cmd("EVALSHA");
        let reply: Result<Vec<u64>, _> =
            cmd.arg(&sha).arg(keys.len()).arg(keys).arg(arguments).query(&mut connection);
        let error = reply.expect_err(sentence);
        assert_eq!((error.code(), error.detail()), (Some("ERR"), Some(sentence)));
        let size: u64 = redis::cmd("DBSIZE").query(&mut connection).expect("a reply");
        assert_eq!(size, 0, "written by an invalid call: {sentence}");
    };
    let good = numbers([1, 0, 1, 0]);
    let shape = "expected one key, and as arguments 1:charge and 32 bytes of numbers, or 1:forget";
    for (keys, arguments) in [
        (&[][..], &[b"1:charge", &good[..]][..]),
        (&["k", "l"], &[b"1:charge", &good]),
        (&["k"], &[]),
        (&["k"], &[b"1:charge"]),
        (&["k"], &[b"1:charge", &good[1..]]),
        (&["k"], &[b"1:forget", &good]),
        (&["k"], &[b"1:other", &good]),
    ] {
        let sentence = format!("tidegate: {} keys and {} arguments; {shape}", keys.len(), arguments.len());
        refuses(keys, arguments, &sentence);
    }
    let version = "tidegate: operation without wire version 1; expected 1:charge or 1:forget";
    for other in [&b"c"[..], b"2:charge", b""] {
        refuses(&["k"], &[other, &good], version);
    }
    let ranges = "expected microseconds below 2^53, and nanoseconds below 1000";
    for wrong in
        [[1 << 53, 0, 1, 0], [1, 1_000, 1, 0], [1, 0, 1 << 53, 0], [1, 0, -(1 << 53), 0], [1, 0, 1, 1_000]]
    {
        let [full, full_ns, charge, charge_ns] = wrong;
        let found = format!("full {full} and {full_ns}, charge {charge} and {charge_ns}");
        refuses(&["k"], &[b"1:charge", &numbers(wrong)], &format!("tidegate: {found}; {ranges}"));
    }
    for unknown in ["hello", "", "12", "-5000", "9007199254740992000", "99999999999999999999999"] {
        redis::cmd("SET").arg("k").arg(unknown).exec(&mut connection).expect("a reply");
        let operation = charge(5, 1, 1_000_000_000, 1).expect("a limit");
        let error = call(&sha, "k", operation).query::<Vec<u64>>(&mut connection).expect_err("no state");
        assert!(error.detail().is_some_and(|detail| detail.contains("of unknown content")), "{error}");
        let kept: String = redis::cmd("GET").arg("k").query(&mut connection).expect("a reply");
        assert_eq!(kept, unknown);
    }
}
