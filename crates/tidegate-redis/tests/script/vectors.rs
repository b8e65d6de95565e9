//! # The vector files, told to the script
//!
//! Every row that every other subject is tested with. Left out are the few cases in which a bucket, a queue or cells
//! change at a later instant than the row above: the script learns of a change only with the next request, and their
//! new pace counts for it from when the key was last written. What is promised of changes is tested in `changes.rs`.

use std::cell::{Cell, RefCell};
use std::fs;
use std::path::Path;

use tidegate::{Micros, Rule};

use crate::clocked::Clocked;
use crate::format::{Act, Case, Step};
use crate::report::{Report, Status};
use crate::subject::{Answer, Kind, Subject};
use crate::wire::{Ask, Reply};

thread_local! {
    /// Subjects are made by plain functions; this is the server that they all speak to.
    static SERVER: RefCell<Option<Clocked>> = const { RefCell::new(None) };
    static KEYS: Cell<u64> = const { Cell::new(0) };
}

const SCRIPT: &[Kind] = &[Kind { name: "script", runs: is_known_in_time, make: Shared::boxed }];

fn is_known_in_time(case: &Case) -> bool {
    let late = |pair: &[Step]| pair[1].at != pair[0].ends() && changes_pace(&pair[1].act);
    !case.steps.windows(2).any(late)
}

fn changes_pace(act: &Act) -> bool {
    match act {
        Act::Change { rule, .. } => !matches!(rule, Rule::FixedWindow(_) | Rule::SlidingLog(_)),
        _ => false,
    }
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
        let ask = |(index, rule)| Ask::new(&format!("{}:{index}", self.key), cost, rule);
        let asks: Vec<Ask> = self.rules.iter().enumerate().map(ask).collect();
        let reply = SERVER.with_borrow_mut(|server| {
            server.as_mut().expect("the test has started it").ask(at, verb, &asks, None)
        });
        self.answer(&reply)
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

    fn change(&mut self, _: Micros, rules: &[Rule]) {
        self.rules = rules.to_vec();
    }
}

#[test]
fn every_vector_holds_for_the_script() {
    SERVER.set(Some(Clocked::start()));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance");
    let entries = fs::read_dir(folder).expect("the folder of vectors is part of the repository");
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "vectors"));
    files.sort();
    assert!(files.len() >= 9, "{files:?}");
    let mut report = Report::default();
    for file in files {
        report.file(&file.to_string_lossy(), SCRIPT);
    }
    assert_eq!(report.status(), Status::Equal, "\n{}", report.text);
    SERVER.take();
}
