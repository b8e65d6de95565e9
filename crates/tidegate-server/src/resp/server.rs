//! # What clients ask about the server
//!
//! `COMMAND`, `INFO`, `CONFIG`, `CLUSTER`, `MODULE`: little enough that clients go on.

use std::fmt::Write;
use std::sync::atomic::Ordering;

use tidegate::clock::Clock;

use super::REDIS_VERSION;
use super::client::unknown_subcommand;
use super::parse::Request;
use super::reply::Reply;
use super::session::{Flow, Session};

const CONFIG: [(&str, &str); 3] = [("save", ""), ("appendonly", "no"), ("databases", "1")];
const SECTIONS: [&str; 5] = ["server", "clients", "stats", "replication", "keyspace"];

impl<C: Clock + Send + Sync + 'static> Session<C> {
    pub(crate) fn command(&mut self, request: Request<'_>, reply: &mut Reply<'_>) -> Flow {
        match request.arg(1).map(<[u8]>::to_ascii_uppercase).as_deref() {
            None | Some(b"INFO" | b"LIST") => reply.array(0),
            Some(b"DOCS") => reply.map(0),
            Some(b"COUNT") => reply.number(0),
            _ => unknown_subcommand(request, "COMMAND", reply),
        }
        Flow::Next
    }

    pub(crate) fn info(&mut self, request: Request<'_>, reply: &mut Reply<'_>) -> Flow {
        let asked: Vec<String> =
            request.args(1).map(|name| String::from_utf8_lossy(name).to_ascii_lowercase()).collect();
        let is_asked = |section: &str| {
            let all = ["all", "default", "everything", section];
            asked.is_empty() || asked.iter().any(|name| all.contains(&name.as_str()))
        };
        let sections: Vec<String> = SECTIONS
            .iter()
            .filter(|section| is_asked(section))
            .map(|section| self.section(section))
            .collect();
        reply.text(&sections.join("\r\n"));
        Flow::Next
    }

    fn section(&self, name: &str) -> String {
        let (service, mut text) = (&self.service, String::new());
        let mut line = |name: &str, value: &dyn std::fmt::Display| {
            let _ = write!(text, "{name}:{value}\r\n"); // a String takes everything
        };
        match name {
            "server" => {
                line("redis_version", &REDIS_VERSION);
                line("redis_mode", &"standalone");
                line("server_name", &"tidegate");
                line("tidegate_version", &env!("CARGO_PKG_VERSION"));
                line("process_id", &std::process::id());
                line("uptime_in_seconds", &service.started.elapsed().as_secs());
            }
            "clients" => line("connected_clients", &service.open.load(Ordering::Relaxed)),
            "stats" => {
                line("total_connections_received", &service.sessions.load(Ordering::Relaxed));
                line("total_commands_processed", &service.commands.load(Ordering::Relaxed));
            }
            "replication" => {
                line("role", &"master");
                line("connected_slaves", &0);
            }
            _ => {
                line("keys_limited_by_calls", &service.engine.keys());
                line("places_held", &service.engine.places());
            }
        }
        let title = name[..1].to_ascii_uppercase() + &name[1..];
        format!("# {title}\r\n{text}")
    }

    /// Nothing is configured this way. Some clients ask all the same, above all whether anything is written to disk.
    pub(crate) fn config(&mut self, request: Request<'_>, reply: &mut Reply<'_>) -> Flow {
        match request.arg(1).map(<[u8]>::to_ascii_uppercase).as_deref() {
            Some(b"GET") => {
                let is_asked =
                    |name: &str| request.args(2).any(|asked| asked.eq_ignore_ascii_case(name.as_bytes()));
                let found: Vec<_> = CONFIG.iter().filter(|(name, _)| is_asked(name)).collect();
                reply.map(found.len());
                found.iter().flat_map(|(name, value)| [name, value]).for_each(|text| reply.bytes(text));
            }
            Some(b"RESETSTAT") => reply.ok(),
            Some(b"SET") => reply.error("ERR CONFIG SET is not supported; change the configuration file"),
            _ => unknown_subcommand(request, "CONFIG", reply),
        }
        Flow::Next
    }

    pub(crate) fn cluster(&mut self, _: Request<'_>, reply: &mut Reply<'_>) -> Flow {
        reply.error("ERR This instance has cluster support disabled");
        Flow::Next
    }

    pub(crate) fn module(&mut self, request: Request<'_>, reply: &mut Reply<'_>) -> Flow {
        match request.arg(1) {
            Some(name) if name.eq_ignore_ascii_case(b"LIST") => reply.array(0),
            _ => unknown_subcommand(request, "MODULE", reply),
        }
        Flow::Next
    }
}
