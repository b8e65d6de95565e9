//! # Calls of the script and their replies
//!
//! The types for what `WIRE.md` describes. Calls are encoded and replies are decoded only here, except calls for
//! [ad-hoc limits](crate::adhoc).

use std::time::Duration;

use redis::{Cmd, Value};
use tidegate_core::{Decision, Micros, Outcome, Rule, Wait};

use crate::adhoc::AdhocOperation;

/// The Redis script that decides requests. `WIRE.md` describes its arguments and replies.
///
/// Assembled from the files in `src/script/` by `scripts/lua`.
pub const SCRIPT: &str = include_str!("script.lua");

/// An operation of the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Check,
    Peek,
    Take,
    Refund,
    Rollback,
    Reset,
    Renew,
    Release,
    Lease,
    Return,
}

/// The arguments for one rule of a call.
#[derive(Debug)]
pub(crate) struct RuleArgs<'a> {
    /// The Redis key of the state.
    pub(crate) key: Vec<u8>,
    pub(crate) cost: u32,
    pub(crate) extra: CostExtra,
    pub(crate) rule: &'a WireRule,
}

/// What an operation adds to the cost.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CostExtra {
    None,
    /// For a rollback: the instant at which the charge stops counting.
    ChargeEnds(Micros),
    /// For a lease: how many tokens may be granted and unspent in total, the lease time in microseconds, and how many
    /// tokens may be reserved.
    Lease {
        stock: u32,
        ttl: u64,
        reserve: u32,
    },
}

/// A rule as it is sent to the script, and the limit reported in its decisions.
#[derive(Clone, Debug)]
pub(crate) struct WireRule {
    bytes: Vec<u8>,
    limit: u64,
}

/// A decoded reply.
#[derive(Debug)]
pub(crate) struct Reply {
    /// The index of the strictest decision.
    pub(crate) binding: usize,
    /// One for each rule of the call, in order, at the server's time.
    pub(crate) decisions: Vec<Decision>,
    /// Take and lease: how many tokens were taken or granted.
    pub(crate) taken: Option<u32>,
    /// Lease: how many tokens were reserved, because none was available.
    pub(crate) reserved: u32,
    /// Lease: how many tokens of reservations became a grant.
    pub(crate) claimed: u32,
}

impl Operation {
    /// The first argument of a call: the wire version and the operation.
    const fn argument(self) -> &'static str {
        match self {
            Operation::Check => "1:check",
            Operation::Peek => "1:peek",
            Operation::Take => "1:take",
            Operation::Refund => "1:refund",
            Operation::Rollback => "1:rollback",
            Operation::Reset => "1:reset",
            Operation::Renew => "1:renew",
            Operation::Release => "1:release",
            Operation::Lease => "1:lease",
            Operation::Return => "1:return",
        }
    }
}

impl WireRule {
    pub(crate) fn rate(rule: &Rule) -> Self {
        let encoded = rule.encode();
        let limit = tidegate_core::Algorithm::peek(rule, &Fresh, Micros::ZERO, 0).limit();
        WireRule { bytes: encode(encoded.letter(), encoded.numbers()), limit }
    }

    /// A limit on concurrency: each permit is held for one `lease` at a time.
    pub(crate) fn concurrency(limit: u32, lease: Duration) -> Self {
        let lease = u64::try_from(lease.as_micros()).unwrap_or(u64::MAX).min(Micros::MAX.get());
        WireRule { bytes: encode(b'n', &[limit.into(), lease]), limit: limit.into() }
    }

    pub(crate) const fn limit(&self) -> u64 {
        self.limit
    }

    /// The letter of the algorithm, as in [`Rule::encode`]; `n` for permits.
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

fn encode(letter: u8, numbers: &[u64]) -> Vec<u8> {
    let numbers = numbers.iter().flat_map(|number| number.to_be_bytes());
    std::iter::once(letter).chain(numbers).collect()
}

/// A call of one of the scripts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'a> {
    /// The SHA-1 of the script.
    pub(crate) sha: &'a str,
    pub(crate) payload: Payload<'a>,
}

/// The keys and arguments of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Payload<'a> {
    /// For the script that decides rules.
    Rules {
        operation: Operation,
        rules: &'a [RuleArgs<'a>],
        /// The id of the permits or of the grant.
        id: Option<&'a [u8]>,
    },
    /// For the script that decides ad-hoc limits.
    Adhoc { key: &'a [u8], operation: AdhocOperation },
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
        write_header(bytes, b'*', 3 + self.payload.arguments());
        self.each_argument(|argument| {
            write_header(bytes, b'$', argument.len());
            bytes.extend_from_slice(argument);
            bytes.extend_from_slice(b"\r\n");
        });
    }

    fn each_argument(&self, mut argument: impl FnMut(&[u8])) {
        argument(b"EVALSHA");
        argument(self.sha.as_bytes());
        match self.payload {
            Payload::Rules { operation, rules, id } => each_rule_argument(operation, rules, id, argument),
            Payload::Adhoc { key, operation } => {
                argument(b"1");
                argument(key);
                operation.each_argument(argument);
            }
        }
    }
}

impl Payload<'_> {
    /// The number of keys and arguments.
    fn arguments(&self) -> usize {
        match self {
            Payload::Rules { rules, id, .. } => 1 + 3 * rules.len() + usize::from(id.is_some()),
            Payload::Adhoc { operation, .. } => 1 + operation.arguments(),
        }
    }
}

fn each_rule_argument(
    operation: Operation,
    rules: &[RuleArgs<'_>],
    id: Option<&[u8]>,
    mut argument: impl FnMut(&[u8]),
) {
    argument(Digits::new(rules.len() as u64).bytes());
    for args in rules {
        argument(&args.key);
    }
    argument(operation.argument().as_bytes());
    for args in rules {
        match args.extra {
            CostExtra::None => argument(Digits::new(args.cost.into()).bytes()),
            CostExtra::ChargeEnds(instant) => argument(format!("{} {}", args.cost, instant.get()).as_bytes()),
            CostExtra::Lease { stock, ttl, reserve } => {
                argument(format!("{} {stock} {ttl} {reserve}", args.cost).as_bytes());
            }
        };
        argument(&args.rule.bytes);
    }
    if let Some(id) = id {
        argument(id);
    }
}

/// Appends the header of an argument or of the array of arguments.
fn write_header(bytes: &mut Vec<u8>, letter: u8, length: usize) {
    bytes.push(letter);
    bytes.extend_from_slice(Digits::new(length as u64).bytes());
    bytes.extend_from_slice(b"\r\n");
}

/// A number in decimal digits, without an allocation.
struct Digits {
    written: [u8; 20],
    from: usize,
}

impl Digits {
    fn new(mut number: u64) -> Self {
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
pub(crate) fn decode(reply: &Value, rules: &[RuleArgs<'_>]) -> Option<Reply> {
    let Value::Array(values) = reply else { return None };
    let mut numbers = values.iter().map(to_u64);
    let now = Micros::new(numbers.next()??);
    let binding = usize::try_from(numbers.next()??).ok()?.checked_sub(1)?;
    let mut decisions = Vec::with_capacity(rules.len());
    for args in rules {
        let [outcome, remaining, wait, reset] =
            [numbers.next()??, numbers.next()??, numbers.next()??, numbers.next()??];
        let outcome = decode_outcome(outcome, Wait::micros(wait))?;
        decisions.push(Decision::counted(outcome, now, args.rule.limit, remaining, Wait::micros(reset)));
    }
    let mut more = || match numbers.next() {
        Some(number) => u32::try_from(number?).ok().map(Some),
        None => Some(None),
    };
    let (taken, reserved, claimed) = (more()?, more()?.unwrap_or(0), more()?.unwrap_or(0));
    (binding < decisions.len()).then_some(Reply { binding, decisions, taken, reserved, claimed })
}

pub(crate) fn to_u64(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}

pub(crate) const fn decode_outcome(number: u64, wait: Wait) -> Option<Outcome> {
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

    fn bucket() -> WireRule {
        WireRule::rate(&"100/s burst 7".parse().expect("a rule"))
    }

    #[test]
    fn a_rule_is_a_letter_and_numbers_of_eight_bytes() {
        let expected =
            [&b"b"[..], &10_000u64.to_be_bytes(), &1u64.to_be_bytes(), &7u64.to_be_bytes()].concat();
        assert_eq!((bucket().bytes, bucket().limit), (expected, 7));
        let permits = WireRule::concurrency(3, Duration::from_secs(2));
        assert_eq!(permits.bytes, [&b"n"[..], &3u64.to_be_bytes(), &2_000_000u64.to_be_bytes()].concat());
        assert_eq!(permits.limit, 3);
    }

    #[test]
    fn a_call_is_keys_then_arguments() {
        let (one, two) = (bucket(), WireRule::concurrency(3, Duration::from_secs(2)));
        let rules = [
            RuleArgs { key: b"a".to_vec(), cost: 5, extra: CostExtra::None, rule: &one },
            RuleArgs {
                key: b"b".to_vec(),
                cost: 1,
                extra: CostExtra::ChargeEnds(Micros::new(7)),
                rule: &two,
            },
        ];
        let payload = Payload::Rules { operation: Operation::Check, rules: &rules, id: Some(b"me") };
        let call = Call { sha: "5ha", payload };
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
            assert_eq!(Digits::new(number).bytes(), number.to_string().as_bytes());
        }
    }

    fn ints(numbers: &[i64]) -> Value {
        Value::Array(numbers.iter().copied().map(Value::Int).collect())
    }

    #[test]
    fn a_reply_is_decoded_completely_or_not_at_all() {
        let rule = bucket();
        let rules = [RuleArgs { key: Vec::new(), cost: 1, extra: CostExtra::None, rule: &rule }];
        let reply = decode(&ints(&[1_000, 1, 2, 0, 30, 70]), &rules).expect("a reply");
        let decision = reply.decisions[0];
        assert_eq!((decision.at(), reply.binding, reply.taken), (Micros::new(1_000), 0, None));
        assert_eq!(decision.outcome, Outcome::RetryAfter(Wait::micros(30)));
        assert_eq!((decision.limit(), decision.remaining()), (7, 0));
        assert_eq!(decision.reset_after(), Wait::micros(70));
        assert_eq!(decode(&ints(&[1_000, 1, 0, 3, 0, 70, 4]), &rules).expect("a reply").taken, Some(4));
        let malformed = [
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
        for value in malformed {
            assert!(decode(&value, &rules).is_none(), "{value:?}");
        }
    }
}
