//! # The vector files, told to the script
//!
//! Every row that every other subject is tested with, on Redis and on Valkey.
//!
//! The others are told of a change in the instant it is made. The script learns of it with the next request, and has
//! of the past what lies in the key: a new pace counts from when that was last written, and cells are counted anew
//! when somebody asks. So in the instant of a change this subject asks for what changes nothing but is written down:
//! under the old rule a unit that is given back, under the new one more than there is.
//!
//! Even so the script does not know how much of a token, or of a step, had come back under the old pace: it counts
//! whole ones, and the time since. [`LEFT_OUT`] has the cases that are about nothing else; what the script makes of
//! them is told in `changes.rs`.

use std::cell::{Cell, RefCell};
use std::fs;
use std::path::Path;

use tidegate::{Micros, Rule};

use crate::clocked::Clocked;
use crate::format::{self, Case};
use crate::report::{Report, Status};
use crate::run::run;
use crate::server;
use crate::subject::{Answer, Kind, Subject};
use crate::wire::{Ask, Reply, limit};

thread_local! {
    /// Subjects are made by plain functions; this is the server that they all speak to.
    static SERVER: RefCell<Option<Clocked>> = const { RefCell::new(None) };
    static KEYS: Cell<u64> = const { Cell::new(0) };
    /// How many cases were run, and how many were left out.
    static RUN: Cell<usize> = const { Cell::new(0) };
    static LEFT: Cell<usize> = const { Cell::new(0) };
}

const SCRIPT: &[Kind] = &[Kind { name: "script", runs: is_for_the_script, make: Shared::boxed }];

const LEFT_OUT: [&str; 3] = [
    "other steps: what was used comes back at theirs",
    "fractions survive a change",
    "what does not come out even in a change is rounded against the key",
];

fn is_for_the_script(case: &Case) -> bool {
    let runs = !LEFT_OUT.contains(&&*case.name);
    let count = if runs { &RUN } else { &LEFT };
    count.with(|count| count.set(count.get() + 1));
    runs
}

/// A key never seen before, in a server that all cases share.
struct Shared {
    rules: Vec<Rule>,
    key: u64,
}

impl Shared {
    fn boxed(rules: &[Rule]) -> Box<dyn Subject> {
        let key = KEYS.get();
        KEYS.set(key + 1);
        Box::new(Shared { rules: rules.to_vec(), key })
    }

    fn ask(&self, at: Micros, verb: char, cost: u32) -> Answer {
        let ask = |(index, rule)| self.ask_of(index, rule, cost);
        let asks: Vec<Ask> = self.rules.iter().enumerate().map(ask).collect();
        self.answer(&reply(at, verb, &asks))
    }

    fn ask_of(&self, index: usize, rule: &Rule, cost: u32) -> Ask {
        Ask::new(&format!("{}:{index}", self.key), cost, rule)
    }

    /// Has written down how the old rule stands.
    fn before_change(&self, at: Micros, index: usize, old: &Rule) {
        if matches!(old, Rule::TokenBucket(_) | Rule::LeakyQueue(_) | Rule::SteppedBucket(_)) {
            for verb in ['f', 'r'] {
                reply(at, verb, &[self.ask_of(index, old, 1)]);
            }
        }
    }

    /// Has written down what the new rule makes of it.
    fn after_change(&self, at: Micros, index: usize, new: &Rule) {
        let Rule::SlidingWindow(_) = new else { return };
        let all = [self.ask_of(index, new, u32::try_from(limit(new)).expect("a small limit"))];
        if reply(at, 'p', &all).rules[0].outcome == 2 {
            reply(at, 'c', &all);
        }
    }

    fn answer(&self, reply: &Reply) -> Answer {
        let each = (1..=self.rules.len() as u64).map(|position| reply.decision(position, &self.rules));
        let took = reply.taken.map(|taken| u32::try_from(taken).expect("no more than was asked for"));
        Answer { decision: reply.decision(reply.binding, &self.rules), took, each: each.collect() }
    }
}

impl Subject for Shared {
    fn check(&mut self, at: Micros, cost: u32) -> Answer {
        self.ask(at, 'c', cost)
    }

    fn peek(&mut self, at: Micros, cost: u32) -> Answer {
        self.ask(at, 'p', cost)
    }

    fn force(&mut self, at: Micros, cost: u32) -> Answer {
        self.ask(at, 'f', cost)
    }

    fn refund(&mut self, at: Micros, cost: u32) -> Answer {
        self.ask(at, 'r', cost)
    }

    fn reset(&mut self, at: Micros) -> Answer {
        self.ask(at, 'x', 0)
    }

    fn take(&mut self, at: Micros, most: u32) -> Answer {
        self.ask(at, 't', most)
    }

    fn change(&mut self, at: Micros, rules: &[Rule]) {
        for (index, (old, new)) in
            self.rules.iter().zip(rules).enumerate().filter(|(_, (old, new))| old != new)
        {
            self.before_change(at, index, old);
            self.after_change(at, index, new);
        }
        self.rules = rules.to_vec();
    }
}

fn reply(at: Micros, verb: char, asks: &[Ask]) -> Reply {
    SERVER
        .with_borrow_mut(|server| server.as_mut().expect("the test has started it").ask(at, verb, asks, None))
}

fn every_vector_holds(kind: server::Kind) {
    SERVER.set(Some(Clocked::of(kind)));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance");
    let entries = fs::read_dir(folder).expect("the folder of vectors is part of the repository");
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "vectors"));
    files.sort();
    assert!(files.len() >= 9, "{files:?}");
    let (mut report, mut limits) = (Report::default(), 0);
    for file in files {
        report.file(&file.to_string_lossy(), SCRIPT);
        let cases = format::parse(&fs::read(&file).expect("it was just read")).expect("it was just parsed");
        limits += cases.iter().filter(|case| case.pacing.is_none()).count();
        let left_out = cases.iter().filter(|case| LEFT_OUT.contains(&&*case.name));
        left_out.for_each(is_left_out_with_reason);
    }
    assert_eq!(report.status(), Status::Equal, "\n{}", report.text);
    let (run, left) = (RUN.take(), LEFT.take());
    println!("{run} cases hold on {kind:?}; {left} are left out: {LEFT_OUT:?}");
    assert_eq!((run + left, left), (limits, LEFT_OUT.len()), "every case about limits is run or named");
    SERVER.take();
}

/// Who holds for the script is not left out.
fn is_left_out_with_reason(case: &Case) {
    assert!(!run(case, &SCRIPT[0]).is_empty(), "{} holds: take it off the list", case.name);
}

#[test]
fn every_vector_holds_for_the_script() {
    every_vector_holds(server::Kind::Redis);
}

#[test]
fn every_vector_holds_for_the_script_on_valkey() {
    every_vector_holds(server::Kind::Valkey);
}

#[test]
fn every_vector_holds_for_the_script_on_the_oldest_redis() {
    every_vector_holds(server::Kind::OldRedis);
}
