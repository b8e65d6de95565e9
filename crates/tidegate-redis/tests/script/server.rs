//! # A server of the test's own
//!
//! Started on a free port in a folder of its own, ended when the test lets go of it. `TIDEGATE_REDIS_SERVER` names
//! another program to start, such as `valkey-server`.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::{env, fs, io};

use redis::Connection;

#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    folder: PathBuf,
    port: u16,
}

/// Between finding a free port and using it somebody else may take it.
const TRIES: usize = 5;

impl Server {
    pub(crate) fn start() -> Self {
        let started = (0..TRIES).find_map(|_| Server::try_start());
        started.expect("a Redis server starts; is redis-server installed, or TIDEGATE_REDIS_SERVER set?")
    }

    fn try_start() -> Option<Self> {
        let port = free_port().ok()?;
        let folder = env::temp_dir().join(format!("tidegate-script-{}-{port}", std::process::id()));
        fs::create_dir_all(&folder).ok()?;
        let program = env::var("TIDEGATE_REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
        let child = Command::new(program)
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .arg("--dir")
            .arg(&folder)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let mut server = Server { child, folder, port };
        server.is_ready().then_some(server)
    }

    /// Waits for the line that says so, or for the end of a server that could not start.
    fn is_ready(&mut self) -> bool {
        let Some(output) = self.child.stdout.as_mut() else { return false };
        BufReader::new(output).lines().map_while(Result::ok).any(|line| line.contains("Ready to accept"))
    }

    /// A connection, and the hash of a script that was loaded.
    pub(crate) fn load(&self, script: &str) -> (Connection, String) {
        let address = format!("redis://127.0.0.1:{}/", self.port);
        let client = redis::Client::open(address).expect("the address is well-formed");
        let mut connection = client.get_connection().expect("the server is ready");
        let sha = redis::cmd("SCRIPT").arg("LOAD").arg(script).query(&mut connection);
        (connection, sha.expect("the script is Lua"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
