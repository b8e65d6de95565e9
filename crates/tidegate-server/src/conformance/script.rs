//! # The script, on a Redis that somebody names
//!
//! The vectors set the time, and the script asks Redis for it. So a few lines go before the script that stand between
//! the two: the time is the last argument of the call, and what is written stays for ten minutes, whatever the script says of
//! instants that are long past. Keys have a name of their own for each run, and are deleted at its end; nothing else in the Redis
//! is touched. How the script is asked for a case is told in `scripted.rs`, which its tests use too.

use std::collections::BTreeSet;
use std::fs;
use std::hash::{BuildHasher, RandomState};

use tidegate::Rule;
use tidegate::clock::Micros;

use super::report::Report;
use super::scripted::{Script, play};
use super::wire::{Target, Value, Wire, Words, words};

/// What stands before the script.
const CLOCK: &str = r"
local at = tonumber(table.remove(ARGV))
local redis = (function(real)
  local function call(command, ...)
    if command == 'TIME' then
      return { string.format('%d', math.floor(at / 1000000)), string.format('%d', at % 1000000) }
    elseif command == 'SET' then
      local key, value = ...
      return real.call('SET', key, value, 'PX', 600000)
    end
    return real.call(command, ...)
  end
  return { call = call, error_reply = real.error_reply }
end)(redis)
";

/// A Redis that has the script.
struct Server {
    wire: Wire,
    sha: Vec<u8>,
    /// The name of this run.
    run: u64,
    /// All that were asked for.
    keys: BTreeSet<Vec<u8>>,
}

/// Runs files on this Redis.
pub(super) fn test(target: &Target, files: &[String]) -> Result<Report, String> {
    let mut server = Server::start(target)?;
    let (mut report, mut key) = (Report::default(), 0);
    for file in files {
        report.played(file, fs::read(file), |case| {
            key += 1;
            play(case, &mut server, key)
        });
    }
    server.end().map(|()| report)
}

impl Server {
    fn start(target: &Target) -> Result<Self, String> {
        let mut wire = Wire::connect(target)?;
        let text = format!("{CLOCK}{}", tidegate_redis::SCRIPT);
        let Value::Text(sha) = wire.ask(&words(["SCRIPT", "LOAD", &text]))? else {
            return Err("the Redis loads no scripts; allow SCRIPT and EVALSHA".to_owned());
        };
        let run = RandomState::new().hash_one(std::process::id());
        Ok(Server { wire, sha, run, keys: BTreeSet::new() })
    }

    /// Leaves nothing behind; or says what went wrong.
    fn end(mut self) -> Result<(), String> {
        let went_wrong = self.wire.end();
        let delete = |key: &Vec<u8>| self.wire.ask(&vec![b"DEL".to_vec(), key.clone()]).map(|_| ());
        let deleted = self.keys.iter().try_for_each(delete);
        went_wrong.and(deleted)
    }

    fn call(&mut self, at: Micros, verb: &str, asked: &[(String, Rule, u32)]) -> Words {
        let mut words = vec![b"EVALSHA".to_vec(), self.sha.clone(), asked.len().to_string().into_bytes()];
        for (name, ..) in asked {
            let name = format!("tidegate:test:{:x}:{name}", self.run).into_bytes();
            self.keys.insert(name.clone());
            words.push(name);
        }
        words.push(format!("1:{verb}").into_bytes());
        for (_, rule, cost) in asked {
            words.extend([cost.to_string().into_bytes(), described(rule)]);
        }
        words.push(at.get().to_string().into_bytes());
        words
    }
}

impl Script for Server {
    fn ask(&mut self, at: Micros, verb: &str, asked: &[(String, Rule, u32)]) -> Vec<u64> {
        let call = self.call(at, verb, asked);
        let Some(answers) = self.wire.ask_all(&[call]) else { return Vec::new() };
        let numbers = match &answers[..] {
            [Value::List(values)] => values.iter().map(number).collect(),
            other => Err(format!("the script answers {other:?}, and not with numbers")),
        };
        numbers.unwrap_or_else(|trouble| {
            self.wire.give_up(trouble);
            Vec::new()
        })
    }
}

fn number(value: &Value) -> Result<u64, String> {
    match value {
        Value::Number(number) => u64::try_from(*number).map_err(|_| format!("the script answers {number}")),
        other => Err(format!("the script answers {other:?}, and not with a number")),
    }
}

/// As `WIRE.md` has it: a letter, and numbers of eight bytes.
fn described(rule: &Rule) -> Vec<u8> {
    let setting = rule.encode();
    let numbers = setting.numbers().iter().flat_map(|number| number.to_be_bytes());
    std::iter::once(setting.letter()).chain(numbers).collect()
}
