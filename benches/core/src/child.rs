//! Measurements that need a process to themselves, because memory once touched by another case is neither given back
//! nor touched for the first time again. The suite starts itself anew for each and reads one number.

use std::env;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use crate::ours::{self, TIDEGATE};
use crate::peers::governor::{self, GOVERNOR};
use crate::rounds::Measured;
use crate::{insert, memory};

/// The row of a limiter that does nothing, but takes its time over it.
pub(crate) const NOTHING: &str = "floor: as long, doing nothing";

/// An empty limiter, as a question about a text.
pub(crate) type Empty = Box<dyn FnMut(&String) -> bool>;

/// One figure of one limiter, to be taken by a child.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Errand {
    pub(crate) task: &'static str,
    pub(crate) what: &'static str,
    pub(crate) who: &'static str,
    pub(crate) keys: u32,
}

/// Does what the parent asked for and prints the number.
pub(crate) fn answer(task: &str, who: &str, keys: &str) -> ExitCode {
    let Ok(keys) = keys.parse() else { return ExitCode::FAILURE };
    let figure = match task {
        memory::TASK => memory::bytes_per_key(|| empty(who), keys),
        insert::TASK => Some(insert::worst(empty(who), keys)),
        _ => None,
    };
    let Some(figure) = figure else { return ExitCode::FAILURE };
    println!("{figure}");
    ExitCode::SUCCESS
}

fn empty(who: &str) -> Empty {
    match who {
        GOVERNOR => Box::new(governor::empty()),
        TIDEGATE => Box::new(ours::empty()),
        _ => Box::new(|_| idle()),
    }
}

/// About what an insert takes. Who is done sooner is interrupted less, and would show too little of the machine.
fn idle() -> bool {
    let start = Instant::now();
    while start.elapsed() < Duration::from_nanos(300) {}
    true
}

/// Sends children on all errands, in turns.
pub(crate) fn measure(title: &str, errands: &[Errand], repeats: usize) -> Vec<Measured> {
    eprintln!("{title}: {} cases, {repeats} processes each", errands.len());
    let mut measured: Vec<Measured> = errands.iter().map(Errand::unmeasured).collect();
    for _ in 0..repeats {
        for (errand, measured) in errands.iter().zip(&mut measured) {
            match errand.send() {
                Some(figure) => measured.rounds.push(figure),
                None => {
                    measured.surprise =
                        Some(format!("{}, {}: could not be measured", errand.what, errand.who))
                }
            }
        }
    }
    // Rounds are compared one by one: a case that lacks some is not compared at all.
    measured.iter_mut().filter(|one| one.rounds.len() < repeats).for_each(|one| one.rounds.clear());
    measured
}

impl Errand {
    fn unmeasured(&self) -> Measured {
        Measured { what: self.what, who: self.who, rounds: Vec::new(), surprise: None }
    }

    fn send(&self) -> Option<f64> {
        let mut child = Command::new(env::current_exe().ok()?);
        child.args(["child", self.task, self.who, &self.keys.to_string()]).stderr(Stdio::inherit());
        let output = child.output().ok().filter(|output| output.status.success())?;
        String::from_utf8(output.stdout).ok()?.trim().parse().ok()
    }
}
