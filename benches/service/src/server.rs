//! The two servers, each a process of its own.

use std::env;
use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tidegate::Quota;
use tidegate_server::engine::{Engine, Rules};
use tidegate_server::resp::Service;
use tidegate_server::serve::{Server as Tidegate, Settings};

/// A server that runs until it is dropped.
pub(crate) struct Server {
    pub(crate) port: u16,
    child: Child,
}

/// What makes this program a server instead.
pub(crate) const SERVE: &str = "--as-server";

impl Server {
    pub(crate) fn tidegate() -> Self {
        let this = env::current_exe().expect("this program");
        Server::start(|port| {
            let mut command = Command::new(&this);
            command.args([SERVE, port]);
            command
        })
    }

    pub(crate) fn redis() -> Self {
        Server::start(|port| {
            let mut command = Command::new("redis-server");
            command.args(["--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
            command
        })
    }

    fn start(command: impl FnOnce(&str) -> Command) -> Self {
        let port =
            TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port").port();
        let child = command(&port.to_string()).stdout(Stdio::null()).spawn().expect("a server");
        let server = Server { port, child };
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let answers = (0..200).any(|_| {
            std::thread::sleep(Duration::from_millis(50));
            TcpStream::connect(address).is_ok()
        });
        assert!(answers, "the server on port {port} never answered");
        server
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
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Serves until it is killed.
pub(crate) fn serve(port: &str) {
    let port: u16 = port.parse().expect("a port");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let rules = Rules::new().rate("user", Quota::per_minute(30).burst(100_000));
        let service = Service::new(Engine::new(rules).expect("rules"));
        let server = Tidegate::new(service, Settings::default()).tcp(([127, 0, 0, 1], port).into()).await;
        server.expect("a port").run(std::future::pending()).await.expect("no end");
    });
}
