//! # The examples of `WIRE.md`
//!
//! Implementations in other languages are written from that page, so every byte string in it is checked: the blocks marked
//! `wire` are run against the scripts, and the names of keys in its table are computed.

use std::collections::BTreeSet;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use redis::Value;
use sha2::{Digest, Sha256};
use tidegate_core::Rule;
use tidegate_redis::ADHOC_SCRIPT;

use crate::mock_clock::MockClockScript;
use crate::server::Kind;
use crate::wire::{RuleArgs, encode, script};

const PAGE: &str = include_str!("../../WIRE.md");

/// The blocks marked `wire`, each as lines of a word and the rest.
fn blocks() -> Vec<Vec<(&'static str, &'static str)>> {
    let blocks = PAGE.split("```wire\n").skip(1);
    let lines = |block: &'static str| block.split("```").next().unwrap_or_default().lines();
    let pair =
        |line: &'static str| line.split_once(' ').map(|(word, rest)| (word, rest.trim())).expect("two words");
    blocks.map(|block| lines(block).map(pair).collect()).collect()
}

/// The bytes of `0x01 02`, or of text.
fn bytes(written: &str) -> Vec<u8> {
    let Some(digits) = written.strip_prefix("0x") else { return written.as_bytes().to_vec() };
    let digits: String = digits.split_whitespace().collect();
    assert!(digits.len().is_multiple_of(2), "half a byte in {written}");
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("hexadecimal digits");
    (0..digits.len()).step_by(2).map(byte).collect()
}

/// Runs the lines of one block after the other.
struct Example {
    mock: MockClockScript,
    script: &'static str,
    rule: &'static str,
    at: &'static str,
    keys: Vec<&'static str>,
    arguments: Vec<Vec<u8>>,
    /// Whether the next key begins a new list.
    called: bool,
    /// How many lines of values and of expiries came since the last call.
    lines: [usize; 2],
    calls: usize,
}

impl Example {
    fn start() -> Self {
        Example {
            mock: MockClockScript::of(Kind::Redis),
            script: "rules",
            rule: "",
            at: "1700000000000000",
            keys: Vec::new(),
            arguments: Vec::new(),
            called: false,
            lines: [0, 0],
            calls: 0,
        }
    }

    fn line(&mut self, word: &str, rest: &'static str) {
        match word {
            "rule" => self.rule = rest,
            "bytes" => assert_eq!(bytes(rest), encoded(self.rule), "{}", self.rule),
            "script" => self.script = rest,
            "at" => self.at = rest,
            "key" => {
                if std::mem::take(&mut self.called) {
                    self.keys.clear();
                }
                self.keys.push(rest);
            }
            "argument" => self.arguments.push(bytes(rest)),
            "reply" => {
                let numbers: Vec<String> = rest.split_whitespace().map(str::to_owned).collect();
                assert_eq!(self.call(), Ok(numbers), "at {} with {:?}", self.at, self.keys);
            }
            "error" => assert_eq!(self.call(), Err(rest.to_owned())),
            "value" => {
                let key = self.next_key(0);
                let value: Option<Vec<u8>> = self.query(redis::cmd("GET").arg(key));
                assert_eq!(value, (rest != "none").then(|| bytes(rest)), "{rest} of {key} at {}", self.at);
            }
            "expires" => {
                let key = self.next_key(1);
                let expires: Option<String> = self.query(redis::cmd("HGET").arg("test:expiries").arg(key));
                assert_eq!(expires.as_deref().unwrap_or("none"), rest, "{key}");
            }
            other => panic!("{other} is no word of an example"),
        }
    }

    /// The numbers of the reply, or the error.
    fn call(&mut self) -> Result<Vec<String>, String> {
        let script = if self.script == "ad-hoc" { ADHOC_SCRIPT.to_owned() } else { script() };
        self.mock.load(&script);
        let () = self.query(redis::cmd("SET").arg("test:now").arg(self.at));
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(&self.mock.sha).arg(self.keys.len()).arg(&self.keys).arg(std::mem::take(&mut self.arguments));
        (self.called, self.lines, self.calls) = (true, [0, 0], self.calls + 1);
        let number = |value: Value| match value {
            Value::Int(number) => number.to_string(),
            other => panic!("{other:?} is no number"),
        };
        match cmd.query::<Vec<Value>>(&mut self.mock.connection) {
            Ok(numbers) => Ok(numbers.into_iter().map(number).collect()),
            Err(error) => {
                Err(format!("{} {}", error.code().unwrap_or_default(), error.detail().unwrap_or_default()))
            }
        }
    }

    fn next_key(&mut self, of: usize) -> &'static str {
        self.lines[of] += 1;
        self.keys[self.lines[of] - 1]
    }

    fn query<T: redis::FromRedisValue>(&mut self, cmd: &redis::Cmd) -> T {
        cmd.query(&mut self.mock.connection).expect("the server replies")
    }
}

/// A rule of the examples, encoded.
fn encoded(text: &str) -> Vec<u8> {
    if text == "3 concurrent, lease 30 s" {
        return encode(b'n', &[3, 30_000_000]);
    }
    let rule: Rule = text.parse().expect("a rule");
    RuleArgs::rate("", 0, &rule).rule
}

#[test]
fn every_example_is_what_the_scripts_do() {
    let mut example = Example::start();
    let mut rules = 0;
    for block in blocks() {
        let (mock, calls) = (example.mock, example.calls);
        example = Example { mock, calls, ..Example::start() };
        example.mock.clear();
        for (word, rest) in block {
            example.line(word, rest);
            rules += usize::from(word == "rule");
        }
        assert!(example.arguments.is_empty(), "a call without a reply");
    }
    assert!(rules >= 9 && example.calls >= 40, "{rules} rules and {} calls", example.calls);
}

/// The rows of the table of names: tenant, key, rule, input of the hash, name.
fn names() -> Vec<[&'static str; 5]> {
    let after = PAGE.split("| tenant | key | rule | hash input | name |\n").nth(1).expect("a table of names");
    let rows = after.lines().skip(1).take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let mut cells = row.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`'));
        std::array::from_fn(|_| cells.next().expect("five cells"))
    })
    .collect()
}

#[test]
fn every_name_of_a_key_is_computed_as_the_page_says() {
    let names = names();
    assert_eq!(names.len(), 4);
    for [tenant, key, rule, input, name] in names {
        let [tenant, key, rule] =
            [tenant, key, rule].map(|cell| if cell.starts_with('(') { "" } else { cell });
        let mut hashed = Vec::new();
        for text in [tenant, key] {
            hashed.extend(u32::try_from(text.len()).expect("short").to_be_bytes());
            hashed.extend(text.bytes());
        }
        assert_eq!(bytes(input), hashed);
        let tag = URL_SAFE_NO_PAD.encode(&Sha256::digest(&hashed)[..16]);
        assert_eq!(name, format!("tg1{{{tag}}}{rule}"));
    }
}

/// A byte string that no test reads may be wrong.
#[test]
fn every_byte_string_and_key_name_in_the_page_is_checked() {
    let names = names();
    let tags: BTreeSet<&str> = names.iter().map(|row| &row[4][4..26]).collect();
    let prose: Vec<&str> = PAGE
        .split("```")
        .step_by(2)
        .flat_map(str::lines)
        .filter(|line| !line.starts_with("| (empty)"))
        .collect();
    for line in prose.iter().filter(|line| !line.starts_with("| `acme`")) {
        for found in line.split("0x").skip(1) {
            let digits = found.bytes().take_while(u8::is_ascii_hexdigit).count();
            assert!(digits <= 2, "bytes outside of an example: {line}");
        }
    }
    for found in PAGE.split("tg1{").skip(1).filter(|found| !found.starts_with(['…', 't', '\u{60}'])) {
        assert!(tags.contains(&found[..22]), "{}", &found[..30]);
    }
}
