//! Processes of `examples/worker.rs`, and what they say.
#![allow(dead_code, reason = "no test binary uses all of it")]

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};

use crate::support::process::Process;

/// The worker, which is built with the tests.
fn worker() -> PathBuf {
    let test = std::env::current_exe().expect("this is a program");
    let folder = test.ancestors().nth(2).expect("it lies in deps, beside examples");
    folder.join("examples").join("worker")
}

/// Ended when dropped, or when the test is.
pub(crate) struct Worker(pub(crate) Process);

impl Worker {
    pub(crate) fn start(args: &[&str]) -> Self {
        let worker = worker();
        assert!(worker.is_file(), "no {}: build it with `cargo build --examples`", worker.display());
        let mut command = Command::new(worker);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped());
        Worker(Process::start(command))
    }

    pub(crate) fn output(&mut self) -> BufReader<ChildStdout> {
        BufReader::new(self.0.output())
    }

    /// What it prints until it has ended, which it does well.
    pub(crate) fn ends(mut self) -> Vec<String> {
        let lines = self.output().lines().map(|line| line.expect("text")).collect();
        let status = self.0.wait();
        assert!(status.success(), "a worker ends with {status}; what it said is above");
        lines
    }
}

/// What several processes have said, while they say it.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    /// Listens to a worker until it is no more.
    pub(crate) fn hear(&self, worker: &mut Worker) {
        let (output, log) = (worker.output(), self.clone());
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                log.0.lock().expect("no panic").push(line);
            }
        });
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.lock().expect("no panic").clone()
    }
}
