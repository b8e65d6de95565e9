//! # A server that runs
//!
//! A server that was started to be put to the test, by `tidegate serve --conformance`, lets its clients set the time
//! and the rules by `TG.CASE`. All the rest goes the way that every request goes: a case becomes rules of a
//! configuration, and a row a command.
//!
//! | of a vector file | is said |
//! |---|---|
//! | the rules of a case | `TG.CASE RULES`, each rule with a name of its own and a key |
//! | an instant | `TG.CASE AT`, in front of the command |
//! | `check`, `peek`, `refund`, `reset` | `TG.CHECK`, `TG.PEEK`, `TG.REFUND`, `TG.RESET`, all rules of a policy in one |
//! | `change` | `TG.CASE CHANGE`, which is a reload |
//! | what each rule of a policy holds | `TG.PEEK` of each, after the answer |
//!
//! Waits and resets are told in microseconds and all figures are exact, so nothing is compared less strictly than
//! elsewhere. There is no word for `force` and `take`, nor for a pacer, at which callers wait; and a rule that changes
//! its algorithm is another rule to a server, and begins anew. A case is played up to the first row that cannot be
//! said, for the rest depends on it.

use std::fs;

use serde_json::json;
use tidegate::clock::Micros;
use tidegate::gate::RuleId;
use tidegate::{Decision, Outcome, Rule, Wait};

use super::format::{Act, Case, Step};
use super::report::{Played, Report};
use super::row::Verb;
use super::run::{Difference, run_on};
use super::subject::{Answer, Subject};
use super::wire::{Target, Value, Wire, Words, words};

const KEY: &str = "key";
const NO_PACER: &str = "the protocol has no word for a pacer, at which callers wait";
const NO_FORCE: &str = "the protocol has no word for force, and what follows depends on it";
const NO_TAKE: &str = "the protocol has no word for take, and what follows depends on it";
const ANOTHER_RULE: &str =
    "to a server a rule with another algorithm is another rule, of which nothing has been used";

/// A server that is put to the test.
struct Server {
    wire: Wire,
    /// What its clock was last set to.
    at: Option<Micros>,
}

/// Runs files on this server.
pub(super) fn test(target: &Target, files: &[String]) -> Result<Report, String> {
    let mut wire = Wire::connect(target)?;
    wire.ask(&at(Micros::ZERO)).map_err(not_for_testing)?;
    let (mut server, mut report) = (Server { wire, at: None }, Report::default());
    for file in files {
        report.played(file, fs::read(file), |case| server.play(case));
    }
    server.wire.end().map(|()| report)
}

/// Why the first command of all was refused: a server that is not for testing says it itself.
fn not_for_testing(trouble: String) -> String {
    if trouble.contains("unknown command") {
        return format!(
            "{trouble}; this is no Tidegate, or an older one: use `redis://…` for the script on a Redis"
        );
    }
    trouble
}

impl Server {
    fn play(&mut self, case: &Case) -> Played {
        let (steps, because) = playable(case);
        if steps == 0 {
            return Played { differences: Vec::new(), steps, because };
        }
        let mut subject = Served { server: self, case, rules: case.rules.clone() };
        subject.set("RULES");
        let named = |difference| Difference { subject: "server".to_owned(), ..difference };
        let differences = run_on(case, &case.steps[..steps], &mut subject).into_iter().map(named).collect();
        Played { differences, steps, because }
    }

    /// Asks, at an instant; there are no answers if there was trouble.
    fn ask(&mut self, instant: Micros, commands: Vec<Words>) -> Option<Vec<Value>> {
        if self.at == Some(instant) {
            return self.wire.ask_all(&commands);
        }
        let all: Vec<Words> = std::iter::once(at(instant)).chain(commands).collect();
        let mut answers = self.wire.ask_all(&all)?;
        self.at = Some(instant);
        answers.remove(0);
        Some(answers)
    }
}

/// How many steps of a case can be said, and why not the next.
fn playable(case: &Case) -> (usize, &'static str) {
    if case.pacing.is_some() {
        return (0, NO_PACER);
    }
    let unsaid = case.steps.iter().enumerate().find_map(|(index, step)| Some((index, unsaid(case, step)?)));
    unsaid.unwrap_or((case.steps.len(), ""))
}

/// Why a step cannot be said, if it cannot.
fn unsaid(case: &Case, step: &Step) -> Option<&'static str> {
    // No change before it was one of the algorithm, or nobody would have come to this one.
    let is_another = |position: usize, rule: &Rule| {
        case.rules.get(position).is_some_and(|old| old.encode().letter() != rule.encode().letter())
    };
    match &step.act {
        Act::Ask(row) if row.verb == Verb::Force => Some(NO_FORCE),
        Act::Ask(row) if row.verb == Verb::Take => Some(NO_TAKE),
        Act::Change { position, rule } if is_another(*position, rule) => Some(ANOTHER_RULE),
        _ => None,
    }
}

fn at(instant: Micros) -> Words {
    words(["TG.CASE", "AT", &instant.get().to_string()])
}

/// The rules of a case, in a server that has no others.
struct Served<'s> {
    server: &'s mut Server,
    case: &'s Case,
    rules: Vec<Rule>,
}

impl Served<'_> {
    /// Puts the rules in force.
    fn set(&mut self, how: &str) -> Option<()> {
        let written = |rule| self.case.written(rule).unwrap_or_default();
        let rules = (1..)
            .zip(&self.rules)
            .map(|(number, rule)| json!({ "name": name(number), "key": KEY, "quota": written(rule) }));
        let file = json!({ "rules": rules.collect::<Vec<_>>() }).to_string();
        self.server.wire.ask_all(&[words(["TG.CASE", how, &file])]).map(|_| ())
    }

    /// What is answered to a command about all rules, and then to one about each.
    fn ask(&mut self, at: Micros, verb: &str, cost: u32) -> Answer {
        let all = command(verb, 1..=self.rules.len(), cost);
        // A check that would pass leaves less than there is: what each would leave is told by the same question.
        if verb == "TG.PEEK" && self.rules.len() > 1 {
            let decision = self.decisions(at, vec![all])[0];
            let each = self.of_each(if decision.is_allowed() { cost } else { 0 });
            return Answer { decision, took: None, each: self.decisions(at, each) };
        }
        let mut commands = vec![all];
        commands.extend(self.of_each(0));
        let mut decisions = self.decisions(at, commands);
        let decision = decisions.remove(0);
        Answer { decision, took: None, each: decisions }
    }

    /// What is asked to learn what each rule of a policy holds. A lone rule has said it.
    fn of_each(&self, cost: u32) -> Vec<Words> {
        match self.rules.len() {
            1 => Vec::new(),
            rules => (1..=rules).map(|number| command("TG.PEEK", number..=number, cost)).collect(),
        }
    }

    /// One decision for each command; that it never passes, if there was trouble.
    fn decisions(&mut self, at: Micros, commands: Vec<Words>) -> Vec<Decision> {
        let nothing = Decision::counted(Outcome::Never, at, 0, 0, Wait::micros(0));
        let nothing = vec![nothing; commands.len()];
        let Some(answers) = self.server.ask(at, commands) else { return nothing };
        let decisions: Option<Vec<_>> = answers.iter().map(|answer| decision(answer, at)).collect();
        decisions.unwrap_or_else(|| {
            self.server.wire.give_up(format!("the server answers {answers:?}, which is no decision"));
            nothing
        })
    }

    /// For verbs that are never asked for: see [`playable`].
    fn unsaid(&mut self, at: Micros, because: &str) -> Answer {
        self.server.wire.give_up(because.to_owned());
        Answer { decision: self.decisions(at, vec![Words::new()])[0], took: None, each: Vec::new() }
    }
}

impl Subject for Served<'_> {
    fn check(&mut self, at: Micros, cost: u32) -> Answer {
        self.ask(at, "TG.CHECK", cost)
    }

    fn peek(&mut self, at: Micros, cost: u32) -> Answer {
        self.ask(at, "TG.PEEK", cost)
    }

    fn force(&mut self, at: Micros, _: u32) -> Answer {
        self.unsaid(at, NO_FORCE)
    }

    fn refund(&mut self, at: Micros, cost: u32) -> Answer {
        self.ask(at, "TG.REFUND", cost)
    }

    fn reset(&mut self, at: Micros) -> Answer {
        self.ask(at, "TG.RESET", 0)
    }

    fn take(&mut self, at: Micros, _: u32) -> Answer {
        self.unsaid(at, NO_TAKE)
    }

    fn change(&mut self, instant: Micros, rules: &[Rule]) {
        self.rules = rules.to_vec();
        if self.server.ask(instant, Vec::new()).is_some() {
            self.set("CHANGE");
        }
    }
}

fn name(number: usize) -> String {
    format!("rule {number}")
}

/// A command about some rules, each with this cost.
fn command(verb: &str, numbers: impl Iterator<Item = usize>, cost: u32) -> Words {
    let mut command = words([verb]);
    for number in numbers {
        if command.len() > 1 {
            command.extend(words(["AND"]));
        }
        command.extend(words([&name(number), KEY, "COST", &cost.to_string()]));
    }
    command
}

/// The decision that eight values tell.
fn decision(answer: &Value, at: Micros) -> Option<Decision> {
    use Value::{Number, Text};
    let Value::List(values) = answer else { return None };
    let [
        Number(allowed),
        Text(outcome),
        Number(wait),
        Number(limit),
        Number(remaining),
        Number(reset),
        Text(rule),
        Text(_),
    ] = values.as_slice()
    else {
        return None;
    };
    let count = |number: &i64| u64::try_from(*number).ok();
    let wait = Wait::micros(count(wait)?);
    let outcome = match (*allowed, outcome.as_slice()) {
        (1, b"allowed") => Outcome::Allowed,
        (1, b"delayed") => Outcome::AllowedAfter(wait),
        (0, b"refused") => Outcome::RetryAfter(wait),
        (0, b"busy") => Outcome::Busy,
        (0, b"never") => Outcome::Never,
        _ => return None,
    };
    let number: u16 = std::str::from_utf8(rule).ok()?.strip_prefix("rule ")?.parse().ok()?;
    let decision =
        Decision::counted(outcome, at, count(limit)?, count(remaining)?, Wait::micros(count(reset)?));
    Some(decision.of_rule(RuleId(number.checked_sub(1)?)))
}
