//! # The script, on a Redis that somebody names
//!
//! The vectors set the time, and the script asks Redis for it. So a few lines go before the script that stand between
//! the two: the time is the last argument of the call, and what is written stays for ten minutes, whatever the script says of
//! instants that are long past. Keys have a name of their own for each run, and are deleted at its end; nothing else in the Redis
//! is touched.
//!
//! The script learns of a change of rules with the next request, where others are told in the instant it is made. So in
//! that instant it is asked for what changes nothing but is written down: under the old rule a unit that is given
//! back, under the new one more than there is.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::hash::{BuildHasher, RandomState};

use tidegate::{Algorithm, Decision, Micros, Outcome, Rule, RuleId, Wait};

use super::format::{self, Case};
use super::report::{Report, Status};
use super::run::{Difference, run};
use super::subject::{Answer, Kind, Subject};
use super::table::table;
use super::wire::{Value, Wire};

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

const SCRIPT: Kind = Kind { name: "script", runs: |_| true, make: Shared::boxed };

/// Of these the script does not know enough: it counts whole tokens and steps, and the time since.
const LEFT_OUT: [&str; 3] = [
    "other steps: what was used comes back at theirs",
    "fractions survive a change",
    "what does not come out even in a change is rounded against the key",
];

thread_local! {
    /// Subjects are made by plain functions; this is the server that they all speak to.
    static SERVER: RefCell<Option<Server>> = const { RefCell::new(None) };
    static KEYS: Cell<u64> = const { Cell::new(0) };
}

struct Server {
    wire: Wire,
    sha: Vec<u8>,
    /// The name of this run.
    run: u64,
    /// All that were asked for.
    keys: BTreeSet<Vec<u8>>,
    /// What went wrong, if it did; then no answer is one.
    trouble: Option<String>,
}

/// Runs files on the Redis at this address: what to print, and how to end.
pub(super) fn test(url: &str, files: &[String]) -> Result<(String, Status), String> {
    let mut wire = Wire::connect(url)?;
    let text = format!("{CLOCK}{}", tidegate_redis::SCRIPT);
    let Value::Text(sha) = wire.ask(&[b"SCRIPT", b"LOAD", text.as_bytes()])? else {
        return Err("the Redis loads no scripts; allow SCRIPT and EVALSHA".to_owned());
    };
    let run = RandomState::new().hash_one(std::process::id());
    SERVER.set(Some(Server { wire, sha, run, keys: BTreeSet::new(), trouble: None }));
    let mut told = Told::default();
    files.iter().for_each(|file| told.file(file));
    SERVER.take().map_or(Ok(()), Server::end)?;
    Ok(told.end())
}

/// What came of it.
#[derive(Default)]
struct Told {
    text: String,
    cases: usize,
    rows: usize,
    differences: usize,
    unreadable: usize,
    /// How many cases were not run, by the reason.
    skipped: BTreeMap<&'static str, usize>,
}

impl Told {
    fn file(&mut self, path: &str) {
        let content = fs::read(path);
        let Some(cases) = content.as_ref().ok().and_then(|content| format::parse(content).ok()) else {
            let mut report = Report::default();
            report.content(path, content, &[]);
            self.unreadable += 1;
            self.text += &report.text;
            return;
        };
        let mut differences: Vec<Difference> = Vec::new();
        for case in &cases {
            match reason_to_skip(case) {
                Some(reason) => *self.skipped.entry(reason).or_default() += 1,
                None => {
                    self.cases += 1;
                    self.rows += case.steps.len();
                    let named = |difference| Difference { subject: SCRIPT.name.to_owned(), ..difference };
                    differences.extend(run(case, &SCRIPT).into_iter().map(named));
                }
            }
        }
        self.differences += differences.len();
        self.text += &table(path, &differences);
    }

    fn end(mut self) -> (String, Status) {
        let Told { cases, rows, differences, unreadable, skipped, .. } = &self;
        let mut lines = vec![format!("{cases} cases, {rows} rows, {differences} differences")];
        lines.extend(skipped.iter().map(|(reason, count)| format!("{count} cases skipped: {reason}")));
        if *unreadable > 0 {
            lines.push(format!("{unreadable} files could not be run"));
        }
        let status = match (unreadable, differences) {
            (0, 0) => Status::Equal,
            (0, _) => Status::Different,
            _ => Status::Malformed,
        };
        lines.into_iter().for_each(|line| self.text += &(line + "\n"));
        (self.text, status)
    }
}

fn reason_to_skip(case: &Case) -> Option<&'static str> {
    if case.pacing.is_some() {
        return Some("a pacer holds promises in its process, and the script has none");
    }
    let is_left_out = LEFT_OUT.contains(&case.name.as_str());
    is_left_out.then_some("the script does not know how much of a token had come back when a rule changed")
}

/// A key never seen before, in a server that all cases share.
struct Shared {
    rules: Vec<Rule>,
    key: u64,
}

impl Shared {
    fn boxed(rules: &[Rule]) -> Box<dyn Subject> {
        Box::new(Shared { rules: rules.to_vec(), key: KEYS.replace(KEYS.get() + 1) })
    }

    fn ask(&self, at: Micros, verb: &str, cost: u32) -> Answer {
        let asked: Vec<_> = self.rules.iter().enumerate().map(|(index, rule)| (index, rule, cost)).collect();
        let numbers = ask(self.key, at, verb, &asked);
        let binding = numbers.get(1).map_or(0, |binding| binding.saturating_sub(1));
        let each: Vec<Decision> =
            asked.iter().map(|(index, rule, _)| decision(&numbers, *index, rule)).collect();
        let took = numbers.get(2 + 4 * asked.len()).and_then(|took| u32::try_from(*took).ok());
        let decision = usize::try_from(binding).ok().and_then(|binding| each.get(binding).copied());
        Answer { decision: decision.unwrap_or(each[0]), took, each }
    }

    /// Has written down how the old rule stands.
    fn before_change(&self, at: Micros, index: usize, old: &Rule) {
        if matches!(old, Rule::TokenBucket(_) | Rule::LeakyQueue(_) | Rule::SteppedBucket(_)) {
            for verb in ["f", "r"] {
                ask(self.key, at, verb, &[(index, old, 1)]);
            }
        }
    }

    /// Has written down what the new rule makes of it.
    fn after_change(&self, at: Micros, index: usize, new: &Rule) {
        let Rule::SlidingWindow(_) = new else { return };
        let all = [(index, new, u32::try_from(limit(new)).unwrap_or(u32::MAX))];
        if ask(self.key, at, "p", &all).get(2) == Some(&2) {
            ask(self.key, at, "c", &all);
        }
    }
}

impl Subject for Shared {
    fn check(&mut self, at: Micros, cost: u32) -> Answer {
        self.ask(at, "c", cost)
    }

    fn peek(&mut self, at: Micros, cost: u32) -> Answer {
        self.ask(at, "p", cost)
    }

    fn force(&mut self, at: Micros, cost: u32) -> Answer {
        self.ask(at, "f", cost)
    }

    fn refund(&mut self, at: Micros, cost: u32) -> Answer {
        self.ask(at, "r", cost)
    }

    fn reset(&mut self, at: Micros) -> Answer {
        self.ask(at, "x", 0)
    }

    fn take(&mut self, at: Micros, most: u32) -> Answer {
        self.ask(at, "t", most)
    }

    fn change(&mut self, at: Micros, rules: &[Rule]) {
        let both = self.rules.iter().zip(rules).enumerate();
        for (index, (old, new)) in both.filter(|(_, (old, new))| old != new) {
            self.before_change(at, index, old);
            self.after_change(at, index, new);
        }
        self.rules = rules.to_vec();
    }
}

/// The numbers that the script answers with; none if there was trouble.
fn ask(key: u64, at: Micros, verb: &str, asked: &[(usize, &Rule, u32)]) -> Vec<u64> {
    SERVER.with_borrow_mut(|server| {
        let Some(server) = server.as_mut().filter(|server| server.trouble.is_none()) else {
            return Vec::new();
        };
        server.ask(key, at, verb, asked).unwrap_or_else(|trouble| {
            server.trouble = Some(trouble);
            Vec::new()
        })
    })
}

impl Server {
    /// Leaves nothing behind; or says what went wrong.
    fn end(mut self) -> Result<(), String> {
        let keys = std::mem::take(&mut self.keys);
        let deleted = keys.iter().try_for_each(|key| self.wire.ask(&[b"DEL", key]).map(|_| ()));
        self.trouble.map_or(deleted, Err)
    }

    fn ask(
        &mut self,
        key: u64,
        at: Micros,
        verb: &str,
        asked: &[(usize, &Rule, u32)],
    ) -> Result<Vec<u64>, String> {
        let mut words = vec![b"EVALSHA".to_vec(), self.sha.clone(), asked.len().to_string().into_bytes()];
        for (index, ..) in asked {
            let name = format!("tidegate:test:{:x}:{key}:{index}", self.run).into_bytes();
            self.keys.insert(name.clone());
            words.push(name);
        }
        words.push(verb.as_bytes().to_vec());
        for (_, rule, cost) in asked {
            words.extend([cost.to_string().into_bytes(), described(rule)]);
        }
        words.push(at.get().to_string().into_bytes());
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        match self.wire.ask(&words)? {
            Value::List(values) => values.iter().map(number).collect(),
            other => Err(format!("the script answers {other:?}, and not with numbers")),
        }
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
    let setting = rule.setting();
    let numbers = setting.numbers().iter().flat_map(|number| number.to_be_bytes());
    std::iter::once(setting.letter()).chain(numbers).collect()
}

/// What the script says of one rule; that it never passes, if it says nothing.
fn decision(numbers: &[u64], index: usize, rule: &Rule) -> Decision {
    let told = numbers.get(2 + 4 * index..6 + 4 * index).unwrap_or(&[4, 0, 0, 0]);
    let wait = Wait::micros(told[2]);
    let outcome = match told[0] {
        0 => Outcome::Allowed,
        1 => Outcome::AllowedAfter(wait),
        2 => Outcome::RetryAfter(wait),
        3 => Outcome::Busy,
        _ => Outcome::Never,
    };
    let at = Micros::new(numbers.first().copied().unwrap_or_default());
    let decision = Decision::counted(outcome, at, limit(rule), told[1], Wait::micros(told[3]));
    decision.of_rule(RuleId(u16::try_from(index).unwrap_or(u16::MAX)))
}

fn limit(rule: &Rule) -> u64 {
    rule.peek(vec![0; rule.words()].as_slice(), Micros::ZERO, 0).limit()
}
