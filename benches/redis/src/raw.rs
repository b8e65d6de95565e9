//! Calls as bytes on one connection: what is measured is the script, and hardly the client.

use std::time::{Duration, Instant};

use redis::{Cmd, Connection, ConnectionLike, Script};

use crate::support::Server;

/// A connection, and the scripts that are loaded there.
pub(crate) struct Raw {
    connection: Connection,
    random: u64,
}

/// A script, and what it is given beside the keys.
#[derive(Clone)]
pub(crate) struct Call {
    sha: String,
    /// The name of each key ends with this.
    rules: Vec<&'static str>,
    args: Vec<Vec<u8>>,
}

/// What is sent in one go.
struct Batch {
    bytes: Vec<u8>,
    calls: usize,
}

/// What many calls took.
#[derive(Clone, Copy)]
pub(crate) struct Took {
    pub(crate) wall: Duration,
    /// Of the server's processor.
    pub(crate) cpu: Duration,
}

/// So many keys are asked for.
const KEYS: u64 = 100_000;

impl Raw {
    pub(crate) fn to(server: &Server) -> Self {
        let client = redis::Client::open(server.url()).expect("an address");
        Raw { connection: client.get_connection().expect("a server"), random: 1 }
    }

    pub(crate) fn load(&mut self, script: &str, rules: &[&'static str], args: &[&[u8]]) -> Call {
        let sha = Script::new(script).get_hash().to_owned();
        redis::cmd("SCRIPT").arg("LOAD").arg(script).exec(&mut self.connection).expect("a script");
        Call { sha, rules: rules.to_vec(), args: args.iter().map(|arg| arg.to_vec()).collect() }
    }

    /// Makes `n` requests, so many together, each of some steps with some calls in every step; a step's calls are sent
    /// together. Unless requests go one by one, the next step is under way while the answers to one are awaited, so that
    /// the server is never without work.
    pub(crate) fn run(&mut self, steps: &[Vec<Call>], n: usize, together: usize) -> Took {
        let ahead = usize::from(together > 1);
        let batches: Vec<Batch> = (0..n / together).flat_map(|_| self.batches(steps, together)).collect();
        let (before, started) = (self.cpu(), Instant::now());
        for (number, batch) in batches.iter().enumerate() {
            self.connection.send_packed_command(&batch.bytes).expect("a connection");
            if number >= ahead {
                self.receive(batches[number - ahead].calls);
            }
        }
        batches[batches.len() - ahead..].iter().for_each(|batch| self.receive(batch.calls));
        let wall = started.elapsed();
        Took { wall, cpu: self.cpu().saturating_sub(before) }
    }

    fn receive(&mut self, answers: usize) {
        for _ in 0..answers {
            self.connection.recv_response().expect("an answer").extract_error().expect("no error");
        }
    }

    /// One for each step, of so many requests.
    fn batches(&mut self, steps: &[Vec<Call>], together: usize) -> Vec<Batch> {
        let keys: Vec<String> = (0..together).map(|_| self.key()).collect();
        steps.iter().map(|calls| Batch::of(calls, &keys)).collect()
    }

    /// As long as those of Tidegate are.
    fn key(&mut self) -> String {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        format!("tg1{{{:022}}}", (self.random >> 33) % KEYS)
    }

    fn cpu(&mut self) -> Duration {
        let fields = ["used_cpu_sys_main_thread:", "used_cpu_user_main_thread:"];
        let info: String = redis::cmd("INFO").arg("cpu").query(&mut self.connection).expect("an answer");
        let seconds = fields.map(|field| number(&info, field));
        Duration::from_secs_f64(seconds.iter().sum())
    }

    /// Bytes for each of so many keys that one call each has made.
    pub(crate) fn memory(&mut self, call: &Call, keys: usize) -> f64 {
        redis::cmd("FLUSHALL").exec(&mut self.connection).expect("an answer");
        let before = self.used_memory();
        for n in 0..keys / 100 {
            let mut bytes = Vec::new();
            for key in n * 100..(n + 1) * 100 {
                call.cmd(&format!("tg1{{{key:022}}}")).write_packed_command(&mut bytes);
            }
            self.connection.req_packed_commands(&bytes, 0, 100).expect("answers");
        }
        let bytes = (self.used_memory() - before) / keys as f64;
        redis::cmd("FLUSHALL").exec(&mut self.connection).expect("an answer");
        bytes
    }

    fn used_memory(&mut self) -> f64 {
        let info: String = redis::cmd("INFO").arg("memory").query(&mut self.connection).expect("an answer");
        number(&info, "used_memory:")
    }
}

impl Batch {
    fn of(calls: &[Call], keys: &[String]) -> Self {
        let mut bytes = Vec::new();
        for key in keys {
            calls.iter().for_each(|call| call.cmd(key).write_packed_command(&mut bytes));
        }
        Batch { bytes, calls: calls.len() * keys.len() }
    }
}

fn number(info: &str, field: &str) -> f64 {
    let text = info.lines().find_map(|line| line.strip_prefix(field)).expect("a field of INFO");
    text.trim().parse().expect("a number")
}

impl Call {
    pub(crate) fn sha(&self) -> &str {
        &self.sha
    }

    fn cmd(&self, key: &str) -> Cmd {
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(&self.sha).arg(self.rules.len());
        for rule in &self.rules {
            cmd.arg(format!("{key}{rule}"));
        }
        for arg in &self.args {
            cmd.arg(&arg[..]);
        }
        cmd
    }
}

/// A token bucket, as Tidegate's script reads it.
pub(crate) fn bucket(interval: u64, burst: u64) -> Vec<u8> {
    let numbers = [interval, 1, burst];
    std::iter::once(b'b').chain(numbers.iter().flat_map(|number| number.to_be_bytes())).collect()
}
