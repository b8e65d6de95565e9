//! # The fast paths decide as the general path does
//!
//! Checks of token buckets are decided at the top of the script, in code of their own. Here the same random calls go to the
//! script as it ships, and to one assembled from the same files without the fast paths. After every call the reply, the stored
//! bytes and the expiry of every key of the call must be equal. Keys change their rules, hold values of other algorithms, debts
//! and garbage; arguments are malformed; clocks step back and come near the last instant.
//!
//! That the test sees a mistake is tested too: every mutant in [`MUTANTS`] must make a difference.

use redis::{Pipeline, RedisResult, Value};
use tidegate_core::Micros;

use crate::mock_clock::MockClockScript;
use crate::random_walk::number_from;
use crate::script_files::{Part, assembled, parts};
use crate::server::Kind;
use crate::wire::encode;

const CALLS_PER_SCENARIO: usize = 200;
const NOON: u64 = 1_700_000_000_000_000;
const END: u64 = Micros::MAX.get();

/// What is written in the fast paths, and a mistake that replaces it. Each occurrence makes one mutant.
const MUTANTS: &[(&str, &str)] = &[
    ("ARGV[1] == '1:check'", "string.sub(ARGV[1], 2) == ':check'"),
    ("#rule == 25", "#rule >= 25"),
    ("(rule) == 98", "(rule) >= 98"),
    ("cost > 0 and", "cost >= 0 and"),
    ("cost <= 4294967295", "cost <= 4294967296"),
    ("cost % 1 == 0", "true"),
    ("part < q and (now", "true and (now"),
    ("(now - since) * q - part", "(now - since) * q"),
    ("elapsed >= 0 and", "true and"),
    ("used <= burst", "used <= burst + 1"),
    ("full > 0", "full >= 0"),
    ("q > 0", "q >= 0"),
    ("now + full + q <= END", "now + full + q <= 2 * END"),
    ("elapsed, used = 0, 0\n      else", "elapsed, used = 0, 1\n      else"),
    ("elapsed, used = rest,", "elapsed, used = 0,"),
    ("taken <= burst", "taken < burst"),
    ("local part = -elapsed % q", "local part = elapsed % q"),
    ("part < 256", "part < 257"),
    ("taken < 4294967296", "taken <= 4294967296"),
    ("+ 999) / 1000", "+ 500) / 1000"),
    ("cost > burst", "cost >= burst"),
    ("burst - used, math.ceil", "burst - used, math.floor"),
    ("math.ceil(((taken - burst)", "math.floor(((taken - burst)"),
    ("(owed + -owed % q) / q", "(owed - owed % q) / q"),
    ("(reset + -reset % q) / q", "(reset - reset % q) / q"),
    ("(wait + -wait % q) / q", "(wait - wait % q) / q"),
    ("KEYS[i] ~= KEYS[j]", "true"),
    ("reply[at] = nil", "reply[at] = reply[at]"),
    ("left < remaining or", "false or"),
    ("back > reset", "back >= reset"),
    ("refused[at] + ARGV[2 * i], 0", "refused[at], 0"),
    ("0, math.ceil(refused", "0, math.floor(refused"),
    ("strictest(refused)", "1"),
    ("refused = plain and refused", "refused = refused"),
];

/// SplitMix64. A linear congruential generator repeats its low bits too soon for choices of choices.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)).checked_rem(end).unwrap_or(0)
    }

    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::try_from(self.below(choices.len() as u64)).expect("below the length")]
    }
}

/// The same script twice, once without its fast paths, and the scenarios that both run.
struct Pair {
    fast: MockClockScript,
    general: MockClockScript,
    random: Random,
    /// Each with the replies of the general path.
    scenarios: Vec<(Vec<Call>, Vec<CallResult>)>,
}

/// The reply to a call, then the value and the expiry of each of its keys.
type CallResult = Vec<RedisResult<Value>>;

impl Pair {
    fn start(kind: Kind, seed: u64, parts: &[Part]) -> Self {
        let general = assembled(parts.iter().filter(|part| !part.is_fast_path()));
        let [fast, general] = [assembled(parts), general].map(|script| MockClockScript::with(kind, &script));
        Pair { fast, general, random: Random(seed), scenarios: Vec::new() }
    }

    fn reload(&mut self, parts: &[Part]) {
        self.fast.load(&assembled(parts));
    }

    /// The first difference within so many scenarios; else how many calls were allowed and refused.
    fn first_difference(&mut self, scenarios: usize) -> Result<[usize; 2], String> {
        let mut outcomes = [0, 0];
        for number in 0..scenarios {
            if number == self.scenarios.len() {
                let scenario = scenario(&mut self.random);
                let replies = replies(&mut self.general, &scenario);
                self.scenarios.push((scenario, replies));
            }
            let (scenario, general) = &self.scenarios[number];
            let fast = replies(&mut self.fast, scenario);
            for (index, (call, (fast, general))) in scenario.iter().zip(fast.iter().zip(general)).enumerate()
            {
                if fast != general {
                    return Err(format!(
                        "scenario {number}, call {index}, {call:?}:\nfast path    {fast:?}\ngeneral path {general:?}"
                    ));
                }
                if let Some(Ok(Value::Array(numbers))) = fast.first() {
                    let refused = numbers.iter().skip(2).step_by(4).any(|number| *number != Value::Int(0));
                    outcomes[usize::from(refused)] += 1;
                }
            }
        }
        Ok(outcomes)
    }
}

/// The replies of a script to a scenario, on an empty server.
fn replies(mock: &mut MockClockScript, scenario: &[Call]) -> Vec<CallResult> {
    mock.clear();
    let mut pipe = redis::pipe();
    scenario.iter().for_each(|call| call.add_to(&mut pipe, &mock.sha));
    let replies: CallResult = pipe.ignore_errors().query(&mut mock.connection).expect("the server replies");
    let mut replies = replies.into_iter();
    scenario.iter().map(|call| replies.by_ref().take(1 + 2 * call.keys.len()).collect()).collect()
}

#[derive(Clone, Debug)]
struct Call {
    at: u64,
    operation: &'static str,
    keys: Vec<String>,
    /// The cost and the rule of each key.
    arguments: Vec<(String, Vec<u8>)>,
    /// Written to the first key before the call.
    planted: Option<Vec<u8>>,
}

impl Call {
    fn add_to(&self, pipe: &mut Pipeline, sha: &str) {
        if let Some(value) = &self.planted {
            pipe.cmd("SET").arg(&self.keys[0]).arg(value).ignore();
        }
        pipe.cmd("SET").arg("test:now").arg(self.at).ignore();
        pipe.cmd("EVALSHA").arg(sha).arg(self.keys.len()).arg(&self.keys).arg(self.operation);
        for (cost, rule) in &self.arguments {
            pipe.arg(cost).arg(rule);
        }
        for key in &self.keys {
            pipe.cmd("GET").arg(key);
            pipe.cmd("HGET").arg("test:expiries").arg(key);
        }
    }
}

/// The numbers of a token bucket: mostly one that makes sense, with a numerator of one byte or of more.
fn bucket(random: &mut Random) -> [u64; 3] {
    let p = match random.below(4) {
        0 => random.one_of(&[1, 2, 7, 10_000, 1_000_000]),
        1 => random.below(1 << 20) + 1,
        2 => 3_600_000_000,
        _ => random.below(3_000_000) + 1,
    };
    let q = random.one_of(&[1, 1, 1, 2, 3, 7, 256, 257, 258, 300, 999_983]);
    if random.below(12) == 0 {
        return [1 << 19, 1, 1 << 33]; // a count of more than four bytes
    }
    let burst = match random.below(12) {
        0 => END / p,
        1 => (1 << 33).min(END / p),
        2 => END / p + 1,
        3..6 => 1,
        _ => random.below(12) + 1,
    };
    match random.below(60) {
        0 => [0, q, burst],
        1 => [p, 0, burst],
        2 => [p, q, 0],
        _ => [p, q, burst],
    }
}

fn rule(random: &mut Random) -> Vec<u8> {
    let [p, q, burst] = bucket(random);
    match random.below(40) {
        0 => encode(b'w', &[burst, p + q, q]),
        1 => encode(b'q', &[p, q, p * burst.min(20), p]),
        2 => encode(b'b', &[p, q]),
        3 => encode(b'b', &[p, q, burst, 1]),
        4 => Vec::new(),
        _ => encode(b'b', &[p, q, burst]),
    }
}

fn cost(rule: &[u8], random: &mut Random) -> String {
    let burst = rule.get(17..25).map_or(1, |bytes| u64::from_be_bytes(bytes.try_into().expect("8 bytes")));
    match random.below(40) {
        _ if burst == 1 << 33 => random.one_of(&["4294967295", "1"]).to_owned(),
        0 => "0".to_owned(),
        1 => random
            .one_of(&["-1", "1.5", "1e1", "01", "+1", "nan", "inf", "many", "", "4294967296"])
            .to_owned(),
        2 | 3 => "4294967295".to_owned(),
        4..7 => burst.to_string(),
        7 => burst.saturating_add(1).to_string(),
        8..14 => random.below(burst + 1).to_string(),
        _ => "1".to_owned(),
    }
}

/// A value that this rule would not have written: of another layout, of a future clock, or nothing known.
fn value(at: u64, random: &mut Random) -> Vec<u8> {
    let seven = |number: u64| number.to_be_bytes()[1..].to_vec();
    let number = |random: &mut Random| seven(random.below(5));
    let age = random.one_of(&[1, 3, 1_000, 4_000_000]);
    let since = seven(at.saturating_sub(random.below(age) + 1));
    match random.below(8) {
        0 => [since, vec![200], 3_u32.to_be_bytes().to_vec()].concat(),
        1 | 7 => {
            let part = random.one_of(&[0, 1, 2, 6, 255, 256, 256, 257, 299]);
            [since, seven(part), number(random)].concat()
        }
        2 => [seven(at + random.below(3)), vec![0], vec![0, 0, 0, 1]].concat(),
        3 => [since, number(random), number(random), seven(at + 5), seven(at)].concat(),
        4 => [vec![0x60], since[1..].to_vec(), vec![0, 0, 0, 0, 2]].concat(),
        5 => {
            [since, number(random), number(random), seven(at + 9), vec![0, 0, 0, 1], vec![b'i'; 16]].concat()
        }
        _ => {
            let first = random.one_of(&[0, 5, 31, 32, 64, 96, 127, 128, 160, 161, 192, 193, 255]);
            let rest = (1..random.one_of(&[12, 21, 11, 35])).map(|_| random.below(256).to_be_bytes()[7]);
            std::iter::once(first).chain(rest).collect()
        }
    }
}

/// How long a token takes, in microseconds; 1 for what is no token bucket.
fn interval(rule: &[u8]) -> u64 {
    let number =
        |at: usize| rule.get(at..at + 8).map_or(1, |it| u64::from_be_bytes(it.try_into().expect("8 bytes")));
    number(1).checked_div(number(9)).unwrap_or(1)
}

fn scenario(random: &mut Random) -> Vec<Call> {
    let mut at = random.one_of(&[NOON, NOON, NOON, END - 20_000_000]) + random.below(3_000_000);
    let rules: Vec<Vec<u8>> = (0..4).map(|_| rule(random)).collect();
    let count = random.one_of(&[1, 1, 2, 3, 3, 8, 9]);
    let calls = (0..CALLS_PER_SCENARIO).map(|_| {
        let of = random.one_of(&[0, 1, 2, 3]);
        let interval = interval(&rules[of]);
        at = match random.below(24) {
            0..9 => at,
            9..12 => at + 1,
            12..14 => at + interval,
            14..16 => at + random.below(interval + 1),
            16..18 => at + random.below(20),
            18..20 => at + random.below(2_000_000),
            20 => at - random.below(2),
            21 => at - random.below(500_000),
            22 => at + random.below(interval.saturating_mul(20)),
            _ => at - random.below(7_200_000_000),
        }
        .min(END - 1);
        let operation = match random.below(30) {
            0 | 1 => "1:force",
            2 => "1:refund",
            3 => random.one_of(&["2:check", "c", "1:peek"]),
            _ => "1:check",
        };
        let count = if random.below(5) == 0 { random.one_of(&[1, 2, 3, 8, 9]) } else { count };
        let first = random.below(3);
        let mut keys: Vec<String> = (0..count).map(|index| format!("key {}", first + index)).collect();
        if random.below(40) == 0 && count > 1 {
            keys[0] = keys[1].clone();
        }
        let arguments = keys.iter().map(|key| {
            // Mostly a rule of its own for each key, so that states grow.
            let own = key.bytes().last().map_or(0, usize::from) % rules.len();
            let rule = &rules[if random.below(15) == 0 { of } else { own }];
            (cost(rule, random), rule.clone())
        });
        let arguments = arguments.collect();
        let planted = (random.below(12) == 0).then(|| value(at, random));
        Call { at, operation, keys, arguments, planted }
    });
    calls.collect()
}

fn fast_and_general_agree(kind: Kind, seed: u64, scenarios: u64) {
    let scenarios =
        usize::try_from(number_from("TIDEGATE_SCENARIOS", scenarios)).expect("a number of scenarios");
    let mut pair = Pair::start(kind, number_from("TIDEGATE_SEED", seed), &parts());
    let outcomes = pair.first_difference(scenarios);
    let [allowed, refused] = outcomes.unwrap_or_else(|difference| panic!("{difference}"));
    let least = scenarios * CALLS_PER_SCENARIO / 10;
    assert!(allowed > least && refused > least, "{allowed} allowed and {refused} refused");
}

#[test]
fn every_call_has_the_same_reply_bytes_and_expiry_without_the_fast_paths() {
    fast_and_general_agree(Kind::Redis, 0xFA57, 400);
}

#[test]
fn also_on_valkey() {
    fast_and_general_agree(Kind::Valkey, 0xFA58, 60);
}

/// The files with one occurrence of a text replaced.
fn mutants(text: &str, mistake: &str) -> Vec<Vec<Part>> {
    let parts = parts();
    let mut mutants = Vec::new();
    for index in (0..parts.len()).filter(|index| parts[*index].is_fast_path()) {
        for (at, _) in parts[index].text.match_indices(text) {
            let mut mutant = parts.clone();
            mutant[index].text.replace_range(at..at + text.len(), mistake);
            mutants.push(mutant);
        }
    }
    mutants
}

#[test]
fn every_mistake_in_a_fast_path_is_seen() {
    let mut pair = Pair::start(Kind::Redis, 0xFA57, &parts());
    let mut unseen = Vec::new();
    for (text, mistake) in MUTANTS {
        let mutants = mutants(text, mistake);
        assert!(!mutants.is_empty(), "no fast path contains {text}");
        for (number, mutant) in mutants.iter().enumerate() {
            pair.reload(mutant);
            if pair.first_difference(200).is_ok() {
                unseen.push(format!("{text} → {mistake}, occurrence {number}"));
            }
        }
    }
    assert!(unseen.is_empty(), "{unseen:#?}");
}
