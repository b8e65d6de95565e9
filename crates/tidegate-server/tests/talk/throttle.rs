//! `CL.THROTTLE`, row by row as redis-cell has it, and in long random walks beside its arithmetic written down once more.

use tidegate::clock::Clock;

use crate::support::Talk;

/// The five numbers, or the error.
fn throttle(talk: &mut Talk, words: &str) -> String {
    let reply = talk.say(&format!("CL.THROTTLE {words}"));
    match reply.strip_prefix("*5 ") {
        Some(numbers) => numbers.replace(':', ""),
        None => reply,
    }
}

/// A fresh key each time: what is sent after it, and what comes back.
fn fresh(rows: &[(&str, &str)]) {
    for (words, expected) in rows {
        assert_eq!(throttle(&mut Talk::new(), &format!("k {words}")), *expected, "k {words}");
    }
}

#[test]
fn the_example_of_the_readme() {
    fresh(&[("15 30 60 1", "0 16 15 -1 2"), ("15 30 60", "0 16 15 -1 2")]);
}

#[test]
fn a_burst_runs_out_and_comes_back() {
    let talk = &mut Talk::new();
    let rows = [
        (0, "k 2 1 10 1", "0 3 2 -1 10"),
        (0, "k 2 1 10 1", "0 3 1 -1 20"),
        (0, "k 2 1 10 1", "0 3 0 -1 30"),
        (0, "k 2 1 10 1", "1 3 0 10 30"),
        (9_998, "k 2 1 10 1", "1 3 0 1 21"),
        (1, "k 2 1 10 1", "1 3 0 1 21"),
        (1, "k 2 1 10 1", "0 3 0 -1 30"),
        (0, "k 2 1 10 2", "1 3 0 20 30"),
        (30_000, "k 2 1 10 3", "0 3 0 -1 30"),
    ];
    for (millis, words, expected) in rows {
        talk.advance(millis);
        assert_eq!(throttle(talk, words), expected, "{words}");
    }
}

#[test]
fn a_wait_below_a_millisecond_is_told_as_none() {
    let talk = &mut Talk::new();
    assert_eq!(throttle(talk, "k 0 1 1"), "0 1 0 -1 1");
    talk.clock.advance(std::time::Duration::from_micros(999_001));
    assert_eq!(throttle(talk, "k 0 1 1"), "1 1 0 0 0"); // 999 µs
    talk.clock.advance(std::time::Duration::from_micros(998));
    assert_eq!(throttle(talk, "k 0 1 1"), "1 1 0 0 0");
    talk.clock.advance(std::time::Duration::from_micros(1));
    assert_eq!(throttle(talk, "k 0 1 1"), "0 1 0 -1 1");
}

#[test]
fn quantity_zero_looks_and_writes_nothing() {
    let talk = &mut Talk::new();
    assert_eq!(throttle(talk, "k 4 1 10 0"), "0 5 5 -1 0");
    assert_eq!(talk.say("EXISTS k"), ":0");
    assert_eq!(throttle(talk, "k 4 1 10 2"), "0 5 3 -1 20");
    assert_eq!(throttle(talk, "k 4 1 10 0"), "0 5 3 -1 20");
    assert_eq!(throttle(talk, "k 4 1 10 0"), "0 5 3 -1 20");
    // Filled under a larger limit, the key is beyond the line of this one, as redis-cell says too.
    assert_eq!(throttle(talk, "k 0 1 10 0"), "1 1 0 10 20");
}

#[test]
fn more_than_there_could_ever_be() {
    let talk = &mut Talk::new();
    assert_eq!(throttle(talk, "k 4 1 10 6"), "1 5 5 -1 0");
    assert_eq!(throttle(talk, "k 4 1 10 2"), "0 5 3 -1 20");
    assert_eq!(throttle(talk, "k 4 1 10 6"), "1 5 3 -1 20");
    assert_eq!(throttle(talk, "k 4 1 10 5"), "1 5 3 20 20"); // that could
}

#[test]
fn a_negative_quantity_gives_back_and_never_more_than_was_taken() {
    let talk = &mut Talk::new();
    assert_eq!(throttle(talk, "k 4 1 10 -3"), "0 5 5 -1 0");
    assert_eq!(talk.say("EXISTS k"), ":0");
    assert_eq!(throttle(talk, "k 4 1 10 3"), "0 5 2 -1 30");
    assert_eq!(throttle(talk, "k 4 1 10 -2"), "0 5 4 -1 10");
    assert_eq!(throttle(talk, "k 4 1 10 -9"), "0 5 5 -1 0");
    assert_eq!(throttle(talk, "k 4 1 10 5"), "0 5 0 -1 50");
    assert_eq!(throttle(talk, "k 4 1 10 1"), "1 5 0 10 50");
    assert_eq!(talk.say("TTL k"), ":50"); // a key always ends
}

#[test]
fn a_burst_of_none_is_a_limit_of_one() {
    fresh(&[("0 1 10", "0 1 0 -1 10"), ("0 1 10 2", "1 1 1 -1 0")]);
}

const ZERO: &str =
    "-ERR Cell error: Store error: Zero rates are not supported; use a count and a period of 1 or more";
const LONG: &str = "-ERR value is out of range: the whole burst takes more than 146 years; use a smaller one";
const NUMBER: &str = "-ERR value is not an integer or out of range";

#[test]
fn what_is_no_limit_is_an_error() {
    fresh(&[
        ("-1 1 10", "-ERR max_burst is -1; use 0 or more"),
        ("-9223372036854775808 1 10", "-ERR max_burst is -9223372036854775808; use 0 or more"),
        ("1 0 10", ZERO),
        ("1 1 0", ZERO),
        ("1 1000000001 1", ZERO), // not a nanosecond for each
        ("1 -1 10", "-ERR count is -1; use 1 or more"),
        ("1 1 -10", "-ERR period is -10; use 1 or more"),
    ]);
}

#[test]
fn what_is_no_number_is_an_error() {
    fresh(&[
        ("x 1 10", NUMBER),
        ("1 x 10", NUMBER),
        ("1 1 x", NUMBER),
        ("1 1 10 x", NUMBER),
        ("0x4 1 10", NUMBER),
        ("1.5 1 10", NUMBER),
        ("9223372036854775808 1 10", NUMBER),
        ("+4 1 10", "0 5 4 -1 10"),
        ("004 01 +10 001", "0 5 4 -1 10"),
    ]);
    let talk = &mut Talk::new();
    for odd in [&b""[..], b" 4", b"4 ", b"4\0", b"\xff\xfe"] {
        assert_eq!(talk.send(&[b"CL.THROTTLE", b"k", odd, b"1", b"10"]), NUMBER);
    }
}

#[test]
fn too_few_and_too_many_arguments() {
    let wrong = "-ERR wrong number of arguments for 'cl.throttle' command";
    for words in ["CL.THROTTLE", "CL.THROTTLE k", "cl.throttle k 1 2", "CL.THROTTLE k 1 2 3 4 5"] {
        assert_eq!(Talk::new().say(words), wrong);
    }
    assert_eq!(Talk::new().say("cl.Throttle k 15 30 60"), "*5 :0 :16 :15 :-1 :2");
}

#[test]
fn keys_are_any_bytes() {
    let talk = &mut Talk::new();
    let mut ask = |key: &[u8]| talk.send(&[b"CL.THROTTLE", key, b"1", b"1", b"10"]);
    assert_eq!(ask(b"\xff\x00\r\n"), "*5 :0 :2 :1 :-1 :10");
    assert_eq!(ask(b"\xff\x00\r\n"), "*5 :0 :2 :0 :-1 :20");
    assert_eq!(ask(b"\xff\x00\r"), "*5 :0 :2 :1 :-1 :10");
    assert_eq!(ask(b""), "*5 :0 :2 :1 :-1 :10");
}

#[test]
fn what_cannot_be_counted_is_an_error_and_nothing_wraps() {
    fresh(&[
        ("9223372036854775807 1 1", LONG),
        ("9223372036854775807 1000000000 1", LONG),
        ("1 1 9223372036854775807", LONG),
        ("1 1 9223372036", LONG), // 292 years, twice
        ("1 1 1 9223372036854775807", LONG),
        ("1 1 1 -9223372036854775808", LONG),
        ("1 1 1 9223372037", LONG),
        ("1 1 1 9223372036", "1 2 2 -1 0"),
        ("1 9223372036854775807 1", ZERO),
        // 146 years are the most, and still work
        ("0 1 4611686018", "0 1 0 -1 4611686018"),
        ("0 1 4611686019", LONG),
    ]);
}

#[test]
fn intervals_below_a_microsecond_are_exact() {
    // 666.666 µs, cut to nanoseconds: of 1500 there are 1499 left
    fresh(&[("1499 1500 1", "0 1500 1499 -1 0"), ("9999999 10000000 1 1", "0 10000000 9999999 -1 0")]);
    // 1 ns each
    fresh(&[("999999999 1000000000 1 1000000", "0 1000000000 999000000 -1 1")]);
}

#[test]
fn intervals_below_a_millisecond_are_enforced() {
    let talk = &mut Talk::new();
    let passed = (0..100).filter(|_| throttle(talk, "k 9 10000 1").starts_with('0')).count();
    assert_eq!(passed, 10); // and none more, though a key of 1 ms would have vanished in between
    talk.clock.advance(std::time::Duration::from_micros(200));
    let passed = (0..100).filter(|_| throttle(talk, "k 9 10000 1").starts_with('0')).count();
    assert_eq!(passed, 2);
}

#[test]
fn the_same_key_under_another_limit_owes_as_long_as_before() {
    let talk = &mut Talk::new();
    assert_eq!(throttle(talk, "k 9 1 10 5"), "0 10 5 -1 50");
    assert_eq!(throttle(talk, "k 99 1 1 1"), "0 100 49 -1 51");
    assert_eq!(throttle(talk, "k 0 1 10 1"), "1 1 0 51 51");
}

#[test]
fn keys_can_be_asked_about_and_deleted() {
    let talk = &mut Talk::new();
    assert_eq!(talk.say("TTL k"), ":-2");
    assert_eq!(talk.say("TYPE k"), "+none");
    assert_eq!(talk.say("DEL k"), ":0");
    assert_eq!(throttle(talk, "k 4 2 1 3"), "0 5 2 -1 2");
    assert_eq!(talk.say("TTL k"), ":2"); // 1.5 s, as Redis rounds
    assert_eq!(talk.say("PTTL k"), ":1500");
    assert_eq!(talk.say("TYPE k"), "+string");
    assert_eq!(talk.say("EXISTS k other k"), ":2");
    assert_eq!(talk.say("DEL other k k"), ":1");
    assert_eq!(throttle(talk, "k 4 2 1 1"), "0 5 4 -1 1");
    talk.advance(500);
    assert_eq!(talk.say("EXISTS k"), ":0");
    assert_eq!(throttle(talk, "k 4 2 1 1"), "0 5 4 -1 1");
    assert_eq!(talk.say("UNLINK k"), ":1");
}

#[test]
fn gcra_as_redis_has_it() {
    let talk = &mut Talk::new();
    assert_eq!(talk.say("GCRA k 3 5 10"), "*5 :0 :4 :3 :-1 :2");
    assert_eq!(talk.say("GCRA k 3 5 10 TOKENS 3"), "*5 :0 :4 :0 :-1 :8");
    assert_eq!(talk.say("GCRA k 3 5 10"), "*5 :1 :4 :0 :2 :8");
    talk.clock.advance(std::time::Duration::from_micros(1));
    assert_eq!(talk.say("gcra k 3 5 10.0 tokens 1"), "*5 :1 :4 :0 :2 :8"); // up, from 1.999999
    assert_eq!(talk.say("GCRA f 0 1 0.5 NUM_REQUESTS 1"), "*5 :0 :1 :0 :-1 :1");
    assert_eq!(talk.say("GCRA k 3 5 10 TOKENS 0"), "-ERR TOKENS is 0; use 1 or more");
    assert_eq!(talk.say("GCRA k 3 5 10 TOKENS"), "-ERR syntax error");
    assert_eq!(talk.say("GCRA k 3 5 10 MANY 1"), "-ERR syntax error");
    assert_eq!(talk.say("GCRA k 3 5 1e3"), NUMBER);
    assert_eq!(talk.say("GCRA k 3 5 0"), ZERO);
}

#[test]
fn throttle_as_throttlecrab_has_it() {
    let talk = &mut Talk::new();
    assert_eq!(talk.say("THROTTLE k 2 1 10"), "*5 :1 :2 :1 :10 :0");
    assert_eq!(talk.say("THROTTLE k 2 1 10 1"), "*5 :1 :2 :0 :20 :0");
    assert_eq!(talk.say("THROTTLE k 2 1 10 1"), "*5 :0 :2 :0 :20 :10");
    assert_eq!(talk.say("THROTTLE k 2 1 10 3"), "*5 :0 :2 :0 :20 :-1");
    assert_eq!(talk.say("THROTTLE k 0 1 10"), "-ERR max_burst is 0; use 1 or more");
    assert_eq!(talk.say("THROTTLE k 2 1 10 -1"), "-ERR quantity is -1; use 0 or more");
}

/// redis-cell's arithmetic, with numbers that cannot wrap, its float division done exactly, and refunds that end at now.
#[derive(Default)]
struct Cell {
    owes_until: Option<i128>,
}

impl Cell {
    fn throttle(&mut self, now: i128, burst: i128, count: i128, period: i128, quantity: i128) -> String {
        let interval = period * 1_000_000_000 / count;
        let tolerance = interval * (burst + 1);
        if tolerance > 1 << 62 {
            return LONG.to_owned(); // there redis-cell itself wraps, from 1970 on
        }
        let increment = interval * quantity;
        let until = self.owes_until.filter(|until| *until > now).unwrap_or(now);
        let new = (until + increment).max(now);
        let difference = now - (new - tolerance);
        let (limited, retry, ttl) = if difference < 0 {
            let retry = if increment <= tolerance { seconds(-difference) } else { -1 };
            (1, retry, until - now)
        } else {
            if quantity != 0 {
                self.owes_until = Some(new);
            }
            (0, -1, new - now)
        };
        let remaining = ((tolerance - ttl).max(0)) / interval;
        format!("{limited} {} {remaining} {retry} {}", burst + 1, seconds(ttl))
    }
}

fn seconds(nanos: i128) -> i128 {
    nanos / 1_000_000_000 + i128::from(nanos % 1_000_000_000 >= 1_000_000)
}

struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }

    fn one_of(&mut self, numbers: &[u64]) -> u64 {
        let index = usize::try_from(self.below(numbers.len() as u64)).expect("an index");
        numbers[index]
    }
}

#[test]
fn long_walks_are_those_of_redis_cell() {
    let mut random = Random(88_172_645_463_325_252);
    for _ in 0..200 {
        let (talk, mut cell) = (&mut Talk::new(), Cell::default());
        let mut limit = [5, 3, 1];
        for _ in 0..200 {
            if random.below(20) == 0 {
                limit = [
                    random.one_of(&[0, 1, 4, 99, 100_000]),
                    random.one_of(&[1, 3, 7, 30, 1_000, 999_983, 700_000_001]),
                    random.one_of(&[1, 2, 60, 3_600, 86_400]),
                ];
            }
            let [burst, count, period] = limit;
            let quantity = random.one_of(&[0, 1, 1, 1, 1, 2, 5, 100]);
            let quantity = if random.below(6) == 0 { -i128::from(quantity) } else { quantity.into() };
            let step = random.one_of(&[0, 0, 1, 333, 999, 1_000, 333_333, 1_000_000, 20_000_001]);
            talk.clock.advance(std::time::Duration::from_micros(step));
            let now = i128::from(talk.clock.now().get()) * 1_000;
            let words = format!("k {burst} {count} {period} {quantity}");
            let expected = cell.throttle(now, burst.into(), count.into(), period.into(), quantity);
            assert_eq!(throttle(talk, &words), expected, "{words} at {now} ns");
        }
    }
}
