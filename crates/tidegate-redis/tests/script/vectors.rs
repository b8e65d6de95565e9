//! # The vector files, run by the script
//!
//! Every row that every other subject is tested with, on Redis and on Valkey. How a case is translated for
//! the script, and which cases are [left out](LEFT_OUT) because the script lacks information, is written in
//! `scripted.rs`, which other programs can use, too; the script's behaviour in the cases left out is tested
//! in `rule_changes.rs`.

use std::fs;
use std::path::Path;

use tidegate::Rule;
use tidegate::clock::Micros;

use crate::format::{self, Case};
use crate::mock_clock::MockClockScript;
use crate::report::{Report, Status};
use crate::scripted::{LEFT_OUT, Script, differences, play};
use crate::server;
use crate::wire::RuleArgs;

impl Script for MockClockScript {
    fn ask(&mut self, at: Micros, operation: &str, rules: &[(String, Rule, u32)]) -> Vec<u64> {
        let args: Vec<RuleArgs> =
            rules.iter().map(|(name, rule, cost)| RuleArgs::rate(name, *cost, rule)).collect();
        self.numbers(at, operation, &args, None).1
    }
}

fn every_vector_holds(kind: server::Kind) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance");
    let entries = fs::read_dir(folder).expect("the folder of vectors is part of the repository");
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "vectors"));
    files.sort();
    assert!(files.len() >= 9, "{files:?}");
    let (mut script, mut report) = (MockClockScript::of(kind), Report::default());
    let (mut run, mut left, mut limits) = (0, 0, 0);
    for file in files {
        report.played(&file.to_string_lossy(), fs::read(&file), |case| {
            let played = play(case, &mut script, limits);
            limits += u64::from(case.pacing.is_none());
            run += u64::from(played.steps > 0);
            played
        });
        let cases = format::parse(&fs::read(&file).expect("it was just read")).expect("it was just parsed");
        for case in cases.iter().filter(|case| LEFT_OUT.contains(&&*case.name)) {
            left += 1;
            assert_fails_on_the_script(case, &mut script, left);
        }
    }
    assert_eq!(report.status(), Status::Equal, "\n{}", report.text);
    println!("{run} cases hold on {kind:?}; {left} are left out: {LEFT_OUT:?}");
    let named = LEFT_OUT.len() as u64;
    assert_eq!((run + left, left), (limits, named), "every case about limits is run or named");
}

/// A case that passes on the script must not be left out.
fn assert_fails_on_the_script(case: &Case, script: &mut MockClockScript, number: u64) {
    let differences = differences(case, script, u64::MAX - number);
    assert!(!differences.is_empty(), "{} passes: take it off the list", case.name);
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
