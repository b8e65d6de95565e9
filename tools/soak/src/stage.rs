//! The system under test: a Redis behind a failing network, and the services that share it.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::client::Client;
use crate::rules::{NODES, configuration};
use crate::support::process::Process;
use crate::support::{Kind, Proxy, Server, port, until};

/// All processes of a run. They end when it is dropped.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) redis: Server,
    pub(crate) proxy: Proxy,
    pub(crate) nodes: Vec<Node>,
}

/// A service.
#[derive(Debug)]
pub(crate) struct Node {
    program: PathBuf,
    redis: String,
    folder: TempDir,
    pub(crate) port: u16,
    revision: u64,
    process: Process,
}

/// Redis writes every change to its file before it replies, so a killed server loses nothing. It does not wait for the
/// disk, because the operating system keeps running.
const DURABLE: &[&str] = &["--appendonly", "yes", "--appendfsync", "no"];
const DATA_FOLDER: &str = "appendonlydir";

impl Stage {
    pub(crate) fn start(program: &Path) -> io::Result<Self> {
        let redis = Server::start(Kind::Redis, DURABLE);
        let proxy = Proxy::start(redis.port());
        let nodes = (0..NODES).map(|_| Node::start(program, &proxy.url())).collect::<io::Result<_>>()?;
        Ok(Stage { redis, proxy, nodes })
    }

    pub(crate) fn ports(&self) -> [u16; NODES] {
        std::array::from_fn(|node| self.nodes[node].port)
    }

    /// Removes the data of a killed Redis.
    pub(crate) fn remove_data(&self) -> io::Result<()> {
        fs::remove_dir_all(self.redis.folder().join(DATA_FOLDER))
    }

    /// Deletes all strings of one rule.
    pub(crate) fn evict(&self, rule: &str) {
        let names = self.redis.cli(&["KEYS", &format!("tg1*}}{rule}")]);
        let names: Vec<&str> = names.lines().filter(|name| !name.is_empty()).collect();
        if !names.is_empty() {
            self.redis.cli(&[&["DEL"], names.as_slice()].concat());
        }
    }
}

impl Node {
    fn start(program: &Path, redis: &str) -> io::Result<Self> {
        let (folder, port) = (tempfile::tempdir()?, port::free());
        fs::write(folder.path().join("tidegate.yaml"), configuration(redis, 0))?;
        let process = Process::start(command(program, folder.path(), port)?);
        let node =
            Node { program: program.to_owned(), redis: redis.to_owned(), folder, port, revision: 0, process };
        node.wait_until_it_listens();
        Ok(node)
    }

    /// Starts a service that was killed.
    pub(crate) fn restart(&mut self) -> io::Result<()> {
        self.process.kill();
        self.process = Process::start(command(&self.program, self.folder.path(), self.port)?);
        self.wait_until_it_listens();
        Ok(())
    }

    fn wait_until_it_listens(&self) {
        until("the service listens", || Client::connect(self.port).ok());
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }

    pub(crate) fn pause(&self) {
        self.process.pause();
    }

    pub(crate) fn resume(&self) {
        self.process.resume();
    }

    pub(crate) fn is_alive(&mut self) -> bool {
        self.process.is_alive()
    }

    /// Changes the configuration file and signals the service.
    pub(crate) fn reload(&mut self) -> io::Result<()> {
        self.revision += 1;
        let (path, next) = (self.folder.path().join("tidegate.yaml"), self.folder.path().join("next"));
        fs::write(&next, configuration(&self.redis, self.revision))?;
        fs::rename(next, path)?;
        let status =
            Command::new("sh").args(["-c", "kill -HUP \"$0\"", &self.process.pid().to_string()]).status()?;
        if status.success() { Ok(()) } else { Err(io::Error::other("the service cannot be sent SIGHUP")) }
    }

    /// Returns the last lines of the log of the service.
    pub(crate) fn log(&self) -> String {
        let log = fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

fn command(program: &Path, folder: &Path, port: u16) -> io::Result<Command> {
    let log = File::options().append(true).create(true).open(folder.join("log"))?;
    let mut command = Command::new(program);
    command
        .args(["serve", "--config"])
        .arg(folder.join("tidegate.yaml"))
        .args(["--http", "off", "--grpc", "off", "--admin", "off", "--threads", "2", "--resp"])
        .arg(format!("127.0.0.1:{port}"))
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    Ok(command)
}
