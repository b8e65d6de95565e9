//! Clients of Redis: `redis-benchmark`, which both servers understand.

use std::process::{Command, Stdio};

use crate::processors::{self, CLIENT};
use crate::server::Server;

#[derive(Clone, Copy)]
pub(crate) struct Load {
    pub(crate) pipelined: u32,
    pub(crate) requests: u32,
}

impl Load {
    /// Microseconds of the server's work for each request.
    pub(crate) fn micros(self, server: &Server, words: &[&str]) -> f64 {
        let before = server.work();
        let mut command = Command::new("redis-benchmark");
        let numbers =
            [("-p", u32::from(server.port)), ("-c", 50), ("-P", self.pipelined), ("-n", self.requests)];
        for (flag, number) in numbers {
            command.args([flag, &number.to_string()]);
        }
        command.args(["-r", "100000", "-q"]).args(words).stdout(Stdio::null()).stderr(Stdio::null());
        let status = processors::on(CLIENT, || command.status()).expect("redis-benchmark");
        assert!(status.success(), "{command:?}: {status}");
        (server.work() - before) as f64 / 1e3 / f64::from(self.requests)
    }
}
