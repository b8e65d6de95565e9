//! # Calls of the script and their replies
//!
//! The types for what `WIRE.md` describes. Calls are encoded and replies are decoded only here; those of ad-hoc limits in
//! [`adhoc`](crate::adhoc).

use std::time::Duration;

use redis::{Cmd, Value};
use tidegate_core::{Decision, Micros, Outcome, Rule, Wait};

use crate::adhoc::Asked;

/// The Redis script that decides requests. `WIRE.md` describes its arguments and replies.
///
/// Assembled from the files in `src/script/` by `scripts/lua`.
pub const SCRIPT: &str = include_str!("script.lua");

/// An operation of the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Check,
    Peek,
    Take,
    Refund,
    GiveBack,
    Reset,
    Renew,
    Release,
    Lease,
    Return,
}

/// One rule of a call, with the key and the cost.
#[derive(Debug)]
pub(crate) struct Line<'a> {
    /// The Redis key of the state.
    pub(crate) key: Vec<u8>,
    pub(crate) cost: u32,
    pub(crate) terms: Terms,
    pub(crate) rule: &'a Described,
}

/// What an operation adds to the cost.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Terms {
    Plain,
    /// Rollback: the instant at which the charge stops counting.
    Til(Micros),
    /// Lease: how many tokens may be granted and unspent in total, the lease time in microseconds, and how many may be
    /// reserved.
    Lease {
        stock: u32,
        ttl: u64,
        ahead: u32,
    },
}

/// A rule encoded for the script, and the limit reported in its decisions.
#[derive(Clone, Debug)]
pub(crate) struct Described {
    bytes: Vec<u8>,
    limit: u64,
}

/// A decoded reply.
#[derive(Debug)]
pub(crate) struct Reply {
    /// The index of the strictest decision.
    pub(crate) binding: usize,
    /// One for each line, in order, at the server's time.
    pub(crate) decisions: Vec<Decision>,
    /// Take and lease: how many tokens were taken or granted.
    pub(crate) taken: Option<u32>,
    /// Lease: how many tokens were reserved, because none was available.
    pub(crate) reserved: u32,
    /// Lease: how many tokens of reservations became a grant.
    pub(crate) claimed: u32,
}

impl Verb {
    /// The first argument of a call: the wire version and the operation.
    const fn argument(self) -> &'static str {
        match self {
            Verb::Check => "1:check",
            Verb::Peek => "1:peek",
            Verb::Take => "1:take",
            Verb::Refund => "1:refund",
            Verb::GiveBack => "1:rollback",
            Verb::Reset => "1:reset",
            Verb::Renew => "1:renew",
            Verb::Release => "1:release",
            Verb::Lease => "1:lease",
            Verb::Return => "1:return",
        }
    }
}

impl Described {
    pub(crate) fn rule(rule: &Rule) -> Self {
        let setting = rule.encode();
        let limit = tidegate_core::Algorithm::peek(rule, &Fresh, Micros::ZERO, 0).limit();
        Described { bytes: described(setting.letter(), setting.numbers()), limit }
    }

    /// A limit on concurrency: permits, each held for a lease at a time.
    pub(crate) fn places(limit: u32, lease: Duration) -> Self {
        let lease = u64::try_from(lease.as_micros()).unwrap_or(u64::MAX).min(Micros::MAX.get());
        Described { bytes: described(b'n', &[limit.into(), lease]), limit: limit.into() }
    }

    pub(crate) const fn limit(&self) -> u64 {
        self.limit
    }

    /// The letter of the rule: that of [`Rule::encode`], or `n` for permits.
    pub(crate) fn letter(&self) -> u8 {
        self.bytes.first().copied().unwrap_or_default()
    }
}

/// The state of an unused key.
struct Fresh;

impl tidegate_core::Words for Fresh {
    fn get(&self, _: usize) -> u64 {
        0
    }
}

fn described(letter: u8, numbers: &[u64]) -> Vec<u8> {
    let numbers = numbers.iter().flat_map(|number| number.to_be_bytes());
    std::iter::once(letter).chain(numbers).collect()
}

/// A call of one of the scripts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'a> {
    /// The SHA-1 of the script.
    pub(crate) sha: &'a str,
    pub(crate) said: Payload<'a>,
}

/// The keys and arguments of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Payload<'a> {
    /// Of the script for rules.
    Rules {
        verb: Verb,
        queues: &'a [Line<'a>],
        /// The id of the permits or of the grant.
        id: Option<&'a [u8]>,
    },
    /// Of the script for ad-hoc limits.
    AdhocLimit { key: &'a [u8], asked: Asked },
}

impl Call<'_> {
    /// The call as a command of the `redis` crate, which routes it in a cluster.
    pub(crate) fn cmd(&self) -> Cmd {
        let mut cmd = Cmd::new();
        self.each_argument(|argument| {
            cmd.arg(argument);
        });
        cmd
    }

    /// Appends the call as it is sent.
    pub(crate) fn write(&self, bytes: &mut Vec<u8>) {
        head(bytes, b'*', 3 + self.said.arguments());
        self.each_argument(|argument| {
            head(bytes, b'$', argument.len());
            bytes.extend_from_slice(argument);
            bytes.extend_from_slice(b"\r\n");
        });
    }

    fn each_argument(&self, mut argument: impl FnMut(&[u8])) {
        argument(b"EVALSHA");
        argument(self.sha.as_bytes());
        match self.said {
            Payload::Rules { verb, queues, id } => each_of_rules(verb, queues, id, argument),
            Payload::AdhocLimit { key, asked } => {
                argument(b"1");
                argument(key);
                asked.each_argument(argument);
            }
        }
    }
}

impl Payload<'_> {
    /// The number of keys and arguments.
    fn arguments(&self) -> usize {
        match self {
            Payload::Rules { queues, id, .. } => 1 + 3 * queues.len() + usize::from(id.is_some()),
            Payload::AdhocLimit { asked, .. } => 1 + asked.arguments(),
        }
    }
}

fn each_of_rules(verb: Verb, queues: &[Line<'_>], id: Option<&[u8]>, mut argument: impl FnMut(&[u8])) {
    argument(Digits::of(queues.len() as u64).bytes());
    for line in queues {
        argument(&line.key);
    }
    argument(verb.argument().as_bytes());
    for line in queues {
        match line.terms {
            Terms::Plain => argument(Digits::of(line.cost.into()).bytes()),
            Terms::Til(til) => argument(format!("{} {}", line.cost, til.get()).as_bytes()),
            Terms::Lease { stock, ttl, ahead } => {
                argument(format!("{} {stock} {ttl} {ahead}", line.cost).as_bytes());
            }
        };
        argument(&line.rule.bytes);
    }
    if let Some(id) = id {
        argument(id);
    }
}

/// Appends the header of an argument or of the array of arguments.
fn head(bytes: &mut Vec<u8>, letter: u8, length: usize) {
    bytes.push(letter);
    bytes.extend_from_slice(Digits::of(length as u64).bytes());
    bytes.extend_from_slice(b"\r\n");
}

/// A number in decimal digits, without an allocation.
struct Digits {
    written: [u8; 20],
    from: usize,
}

impl Digits {
    fn of(mut number: u64) -> Self {
        let mut digits = Digits { written: [b'0'; 20], from: 20 };
        loop {
            digits.from -= 1;
            digits.written[digits.from] = b"0123456789"[(number % 10) as usize];
            number /= 10;
            if number == 0 {
                return digits;
            }
        }
    }

    fn bytes(&self) -> &[u8] {
        &self.written[self.from..]
    }
}

/// Decodes the reply to a call with these rules. `None` if it is malformed.
pub(crate) fn read(reply: &Value, queues: &[Line<'_>]) -> Option<Reply> {
    let Value::Array(values) = reply else { return None };
    let mut numbers = values.iter().map(number);
    let now = Micros::new(numbers.next()??);
    let binding = usize::try_from(numbers.next()??).ok()?.checked_sub(1)?;
    let mut decisions = Vec::with_capacity(queues.len());
    for line in queues {
        let [outcome, remaining, wait, reset] =
            [numbers.next()??, numbers.next()??, numbers.next()??, numbers.next()??];
        let outcome = outcome_of(outcome, Wait::micros(wait))?;
        decisions.push(Decision::counted(outcome, now, line.rule.limit, remaining, Wait::micros(reset)));
    }
    let mut more = || match numbers.next() {
        Some(number) => u32::try_from(number?).ok().map(Some),
        None => Some(None),
    };
    let (taken, reserved, claimed) = (more()?, more()?.unwrap_or(0), more()?.unwrap_or(0));
    (binding < decisions.len()).then_some(Reply { binding, decisions, taken, reserved, claimed })
}

pub(crate) fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}

pub(crate) const fn outcome_of(number: u64, wait: Wait) -> Option<Outcome> {
    Some(match number {
        0 => Outcome::Allowed,
        1 => Outcome::AllowedAfter(wait),
        2 => Outcome::RetryAfter(wait),
        3 => Outcome::Busy,
        4 => Outcome::Never,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket() -> Described {
        Described::rule(&"100/s burst 7".parse().expect("a rule"))
    }

    #[test]
    fn a_rule_is_a_letter_and_numbers_of_eight_bytes() {
        let expected =
            [&b"b"[..], &10_000u64.to_be_bytes(), &1u64.to_be_bytes(), &7u64.to_be_bytes()].concat();
        assert_eq!((bucket().bytes, bucket().limit), (expected, 7));
        let places = Described::places(3, Duration::from_secs(2));
        assert_eq!(places.bytes, [&b"n"[..], &3u64.to_be_bytes(), &2_000_000u64.to_be_bytes()].concat());
        assert_eq!(places.limit, 3);
    }

    #[test]
    fn a_call_is_keys_then_arguments() {
        let (one, two) = (bucket(), Described::places(3, Duration::from_secs(2)));
        let queues = [
            Line { key: b"a".to_vec(), cost: 5, terms: Terms::Plain, rule: &one },
            Line { key: b"b".to_vec(), cost: 1, terms: Terms::Til(Micros::new(7)), rule: &two },
        ];
        let said = Payload::Rules { verb: Verb::Check, queues: &queues, id: Some(b"me") };
        let call = Call { sha: "5ha", said };
        let packed = call.cmd().get_packed_command();
        let mut written = Vec::new();
        call.write(&mut written);
        assert_eq!(written.escape_ascii().to_string(), packed.escape_ascii().to_string());
        let args = |n: usize| format!("*{n}\r\n").into_bytes();
        assert!(packed.starts_with(&args(11)), "{}", packed.escape_ascii());
        let text = packed.escape_ascii().to_string();
        assert!(
            text.contains(
                "EVALSHA\\r\\n$3\\r\\n5ha\\r\\n$1\\r\\n2\\r\\n$1\\r\\na\\r\\n$1\\r\\nb\\r\\n$7\\r\\n1:check"
            ),
            "{text}"
        );
        assert!(text.ends_with("$2\\r\\nme\\r\\n"), "{text}");
        assert!(text.contains("$3\\r\\n1 7\\r\\n"), "{text}");
    }

    #[test]
    fn digits_are_the_decimal_digits_of_the_number() {
        for number in [0, 9, 10, 99, 100, 12_345, u64::from(u32::MAX), u64::MAX] {
            assert_eq!(Digits::of(number).bytes(), number.to_string().as_bytes());
        }
    }

    fn ints(numbers: &[i64]) -> Value {
        Value::Array(numbers.iter().copied().map(Value::Int).collect())
    }

    #[test]
    fn a_reply_is_decoded_completely_or_not_at_all() {
        let rule = bucket();
        let queues = [Line { key: Vec::new(), cost: 1, terms: Terms::Plain, rule: &rule }];
        let reply = read(&ints(&[1_000, 1, 2, 0, 30, 70]), &queues).expect("a reply");
        let decision = reply.decisions[0];
        assert_eq!((decision.at(), reply.binding, reply.taken), (Micros::new(1_000), 0, None));
        assert_eq!(decision.outcome, Outcome::RetryAfter(Wait::micros(30)));
        assert_eq!((decision.limit(), decision.remaining()), (7, 0));
        assert_eq!(decision.reset_after(), Wait::micros(70));
        assert_eq!(read(&ints(&[1_000, 1, 0, 3, 0, 70, 4]), &queues).expect("a reply").taken, Some(4));
        let nonsense = [
            ints(&[]),
            ints(&[1_000]),
            ints(&[1_000, 0, 2, 0, 30, 70]),
            ints(&[1_000, 2, 2, 0, 30, 70]),
            ints(&[1_000, 1, 5, 0, 30, 70]),
            ints(&[1_000, 1, 2, -1, 30, 70]),
            ints(&[1_000, 1, 2, 0, 30]),
            Value::Okay,
            Value::Nil,
        ];
        for value in nonsense {
            assert!(read(&value, &queues).is_none(), "{value:?}");
        }
    }
}
