//! A program that does not outlive the test.
//!
//! Ending it when dropped is not enough: a test that is aborted or killed drops nothing, and its servers would run
//! until the machine is switched off. So a guard stands beside each: a shell that reads from a pipe which only the
//! test holds open. However the test ends, the pipe closes, the shell reads its end, and ends the program.

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

    /// Whether it still runs, or is stopped and could.
    pub(crate) fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// What it prints, if that was piped; once.
    pub(crate) fn output(&mut self) -> ChildStdout {
        self.child.stdout.take().expect("it is piped, and taken once")
    }

    /// Waits until it has ended by itself.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.child.wait().expect("it was started")
    }

    /// Stops it where it is, as if its machine had frozen: its connections stay open and nobody answers.
    pub(crate) fn pause(&self) {
        signal("STOP", self.pid());
        until("the process is stopped", || (state(self.pid()) == Some('T')).then_some(()));
    }

    /// Lets it go on.
    pub(crate) fn resume(&self) {
        signal("CONT", self.pid());
    }

    /// Ends it at once, as a loss of power would. Whoever has ended already is left alone.
    pub(crate) fn kill(&mut self) {
        // The guard goes first: once the process is gone, its number may be somebody else's.
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

/// Ends `pid` when this process is gone, or is told to.
///
/// Signals that a terminal sends to all processes at once are ignored: a stopped program does not die of them, so the
/// guard has to outlive them.
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

/// The shell's own `kill`: not every machine has one beside it.
fn shell(script: &str, pid: u32) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(pid.to_string());
    command
}

/// What Linux says a process is doing, `T` for stopped; nothing if there is no such process.
pub(crate) fn state(pid: u32) -> Option<char> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    text.rsplit_once(") ")?.1.chars().next()
}
