//! A program that does not outlive the test.
//!
//! Killing it on drop is not enough: a test that is aborted or killed drops nothing, and its servers would
//! run until the machine is switched off. So each program has a guard: a shell that reads from a pipe which
//! only the test holds open. However the test ends, the pipe closes, the shell reads end of file and kills
//! the program.

use std::fs;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};

use super::poll::until;

#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    guard: Child,
}

impl Process {
    pub(crate) fn start(mut command: Command) -> Self {
        let shown = format!("{command:?}");
        let child = command.spawn().unwrap_or_else(|error| panic!("{shown} does not start: {error}"));
        let guard = guard(child.id());
        Process { child, guard }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether the process exists, running or stopped.
    pub(crate) fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Its standard output, if that is piped; can be taken once.
    pub(crate) fn output(&mut self) -> ChildStdout {
        self.child.stdout.take().expect("it is piped, and taken once")
    }

    /// Waits until it has exited by itself.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.child.wait().expect("it was started")
    }

    /// Stops it where it is, as if its machine had frozen: its connections stay open and no request is
    /// answered.
    pub(crate) fn pause(&self) {
        signal("STOP", self.pid());
        until("the process is stopped", || (state(self.pid()) == Some('T')).then_some(()));
    }

    /// Continues it after [`pause`](Process::pause).
    pub(crate) fn resume(&self) {
        signal("CONT", self.pid());
    }

    /// Kills it immediately, as a loss of power would. Does nothing if it has exited already.
    pub(crate) fn kill(&mut self) {
        // The guard goes first: once the process is gone, its id may belong to another process.
        for child in [&mut self.guard, &mut self.child] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Kills `pid` when this process is gone, or when a line is written to the guard.
///
/// Signals that a terminal sends to all processes of a group are ignored: a stopped program does not die of
/// them, so the guard has to outlive them.
fn guard(pid: u32) -> Child {
    shell("trap '' HUP INT TERM; read -r nothing; kill -KILL \"$0\" 2>/dev/null", pid)
        .stdin(Stdio::piped())
        .spawn()
        .expect("there is a shell")
}

fn signal(name: &str, pid: u32) {
    let status = shell(&format!("kill -{name} \"$0\""), pid).status().expect("there is a shell");
    assert!(status.success(), "process {pid} cannot be sent SIG{name}");
}

/// The `kill` built into the shell: not every machine has the program.
fn shell(script: &str, pid: u32) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(pid.to_string());
    command
}

/// The state of a process according to Linux, `T` for stopped; `None` if there is no such process.
pub(crate) fn state(pid: u32) -> Option<char> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    text.rsplit_once(") ")?.1.chars().next()
}
