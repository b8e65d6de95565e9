//! Processes of `examples/worker.rs`, and their output.
#![allow(dead_code, reason = "no test binary uses all of it")]

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};

use crate::support::process::Process;

/// The path of the worker, which is built with the tests.
fn worker() -> PathBuf {
    let test = std::env::current_exe().expect("this is a program");
    let folder = test.ancestors().nth(2).expect("the test is in deps, beside examples");
    folder.join("examples").join("worker")
}

/// A worker process. It is killed when dropped, or when the test ends.
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

    /// Waits until the worker exits with success, and returns its output.
    pub(crate) fn run_to_end(mut self) -> Vec<String> {
        let lines = self.output().lines().map(|line| line.expect("text")).collect();
        let status = self.0.wait();
        assert!(status.success(), "a worker exits with {status}; its output is above");
        lines
    }
}

/// The output of several processes, while they run.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    /// Collects the output of a worker until it exits.
    pub(crate) fn follow(&self, worker: &mut Worker) {
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
