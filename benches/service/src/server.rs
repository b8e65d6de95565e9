//! Servers, each a process of its own: ours as it is built for everybody, and those it is measured beside.

use std::env;
use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::processors::{self, CLIENT, SERVER};

/// A server that runs until it is dropped.
pub(crate) struct Server {
    pub(crate) port: u16,
    child: Child,
    /// What it reads while it runs.
    _files: Option<TempDir>,
}

/// A door of ours.
#[derive(Clone, Copy)]
pub(crate) enum Door {
    Resp,
    Http,
    Grpc,
}

/// Each key may take 24 a day, and 100,000 at once: nobody is refused, every request writes, and nobody who came in the
/// last hour is forgotten.
const RULES: &str = "rules: [{name: user, match: {user: '*'}, key: user, quota: 24/day burst 100000}]\n";
/// As near as there is: a number that is counted up, and compared to what may be at most.
const ENVOY_RULES: &str = "domain: bench\n\
    descriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 100000}}]\n";

impl Server {
    /// Ours, with this door and no other, and the counts in memory.
    pub(crate) fn tidegate(door: Door) -> Self {
        Server::ours(door, "")
    }

    /// Ours, with the counts in that Redis.
    pub(crate) fn tidegate_on(redis: &Server, door: Door) -> Self {
        Server::ours(door, &format!("store: {{redis: {{url: 'redis://127.0.0.1:{}'}}}}\n", redis.port))
    }

    fn ours(door: Door, store: &str) -> Self {
        let program = env::var_os("TIDEGATE_PROGRAM").expect("scripts/bench says where it is");
        let ports = ["--http", "--grpc", "--resp", "--admin"];
        let server = Server::start(SERVER, None, |port| {
            let mut command = Command::new(program);
            command.args(["serve", "--config", "-"]).stdin(Stdio::piped());
            let flag = door.flag();
            for other in ports.iter().filter(|other| **other != flag) {
                command.args([other, "off"]);
            }
            command.args([flag, &format!("127.0.0.1:{port}")]);
            (command, format!("{store}{RULES}"))
        });
        server.expect("our own program starts")
    }

    /// On the processor of clients if it serves a server.
    pub(crate) fn redis(processor: usize) -> Self {
        let server = Server::start(processor, None, |port| {
            let mut command = Command::new("redis-server");
            let port = port.to_string();
            command.args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
            (command, String::new())
        });
        server.expect("redis-server is installed")
    }

    /// The Redis of a server.
    pub(crate) fn redis_beside() -> Self {
        Server::redis(CLIENT)
    }

    pub(crate) fn throttlecrab() -> Result<Self, String> {
        let program = peer("throttlecrab-server")?;
        Server::start(SERVER, None, |port| {
            let mut command = Command::new(program);
            let port = port.to_string();
            command.args([
                "--http",
                "--http-host",
                "127.0.0.1",
                "--http-port",
                &port,
                "--log-level",
                "error",
            ]);
            (command, String::new())
        })
    }

    /// envoyproxy/ratelimit, on that Redis. It tells nobody how it is; all else is as it is by itself.
    pub(crate) fn ratelimit(redis: &Server) -> Result<Self, String> {
        let program = peer("ratelimit")?;
        let files = TempDir::new().map_err(|error| error.to_string())?;
        let folder = files.path().join("config");
        fs::create_dir(&folder)
            .and_then(|()| fs::write(folder.join("bench.yaml"), ENVOY_RULES))
            .expect("files");
        let root = files.path().to_owned();
        Server::start(SERVER, Some(files), |port| {
            let mut command = Command::new(program);
            let variables = [
                ("RUNTIME_ROOT", root.display().to_string()),
                ("RUNTIME_WATCH_ROOT", "false".to_owned()),
                ("USE_STATSD", "false".to_owned()),
                ("REDIS_SOCKET_TYPE", "tcp".to_owned()),
                ("REDIS_URL", format!("127.0.0.1:{}", redis.port)),
                ("GRPC_HOST", "127.0.0.1".to_owned()),
                ("GRPC_PORT", port.to_string()),
                ("HOST", "127.0.0.1".to_owned()),
                ("PORT", free_port().to_string()),
                ("DEBUG_HOST", "127.0.0.1".to_owned()),
                ("DEBUG_PORT", free_port().to_string()),
            ];
            command.envs(variables);
            (command, String::new())
        })
    }

    /// Starts it there and waits until it can be asked. What it is to read is written to it.
    fn start(
        processor: usize,
        files: Option<TempDir>,
        command: impl FnOnce(u16) -> (Command, String),
    ) -> Result<Self, String> {
        let port = free_port();
        let (mut command, read) = command(port);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = processors::on(processor, || command.spawn()).map_err(|error| error.to_string())?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(read.as_bytes()).expect("it reads");
        }
        let server = Server { port, child, _files: files };
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let answers = (0..200).any(|_| {
            std::thread::sleep(Duration::from_millis(50));
            TcpStream::connect(address).is_ok()
        });
        answers.then_some(server).ok_or_else(|| format!("{command:?} never answered on port {port}"))
    }

    /// How long its threads have been at work, in nanoseconds. None of them ends while it is measured.
    pub(crate) fn work(&self) -> u64 {
        let threads = fs::read_dir(format!("/proc/{}/task", self.child.id())).expect("its threads");
        let of_thread = |thread: std::io::Result<fs::DirEntry>| {
            let account = fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
            account.split(' ').next()?.parse::<u64>().ok()
        };
        threads.filter_map(of_thread).sum()
    }

    /// The bytes of memory it really occupies.
    pub(crate) fn resident(&self) -> f64 {
        let account =
            fs::read_to_string(format!("/proc/{}/smaps_rollup", self.child.id())).expect("its memory");
        let line = account.lines().find_map(|line| line.strip_prefix("Rss:")).expect("what is resident");
        line.split_whitespace().next().and_then(|number| number.parse::<f64>().ok()).expect("a number")
            * 1024.0
    }
}

impl Door {
    fn flag(self) -> &'static str {
        match self {
            Door::Resp => "--resp",
            Door::Http => "--http",
            Door::Grpc => "--grpc",
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A peer that was built beside us, or why there is none.
fn peer(name: &str) -> Result<PathBuf, String> {
    let folder = PathBuf::from(env::var_os("PEERS").unwrap_or_default());
    let program = folder.join("bin").join(name);
    if program.is_file() {
        return Ok(program);
    }
    let why = fs::read_to_string(folder.join(format!("{name}.why")));
    Err(why.map_or_else(|_| "scripts/peers.sh has not built it".to_owned(), |why| why.trim().to_owned()))
}

fn free_port() -> u16 {
    let free = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
    free.expect("a free port").port()
}
