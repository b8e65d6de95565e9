//! # `CLIENT`
//!
//! What libraries say about themselves when they connect, and what people ask to see who is there.

use tidegate::clock::Clock;

use super::parse::Request;
use super::reply::{Dialect, Reply};
use super::session::{Flow, Session};

impl<C: Clock + Send + Sync + 'static> Session<C> {
    pub(crate) fn client(&mut self, request: Request<'_>, reply: &mut Reply<'_>) -> Flow {
        let name = request.arg(1).unwrap_or_default().to_ascii_uppercase();
        let argument = request.arg(2).unwrap_or_default();
        match (name.as_slice(), request.len()) {
            (b"ID", 2) => reply.count(self.id),
            (b"GETNAME", 2) if self.name.is_empty() => reply.null(),
            (b"GETNAME", 2) => reply.bytes(&self.name),
            (b"SETNAME", 3) => match self.take_name(argument) {
                Ok(()) => reply.ok(),
                Err(sentence) => reply.error(sentence),
            },
            (b"SETINFO", 4) => reply.ok(),
            (b"INFO", 2) | (b"LIST", _) => reply.text(&self.description()),
            (b"NO-EVICT" | b"NO-TOUCH", 3) => on_or_off(argument, reply),
            (b"TRACKING", 3..) => tracking(argument, reply),
            (b"REPLY", 3) if argument.eq_ignore_ascii_case(b"ON") => reply.ok(),
            (b"REPLY", 3) => reply.error("ERR only CLIENT REPLY ON is supported"),
            (b"KILL", 3) => reply.error("ERR No such client"),
            (b"KILL", 4..) => reply.number(0),
            (
                b"ID" | b"GETNAME" | b"SETNAME" | b"SETINFO" | b"INFO" | b"NO-EVICT" | b"NO-TOUCH"
                | b"TRACKING" | b"REPLY" | b"KILL",
                _,
            ) => {
                let name = String::from_utf8_lossy(&name).to_ascii_lowercase();
                reply.error(format!("ERR wrong number of arguments for 'client|{name}' command"));
            }
            _ => unknown_subcommand(request, "CLIENT", reply),
        }
        Flow::Next
    }

    fn description(&self) -> String {
        let Session { id, peer, user, .. } = self;
        let (name, age) = (String::from_utf8_lossy(&self.name), self.since.elapsed().as_secs());
        let (user, resp) =
            (user.as_deref().unwrap_or("(none)"), if self.dialect == Dialect::Resp3 { 3 } else { 2 });
        format!(
            "id={id} addr={peer} laddr= fd=-1 name={name} age={age} idle=0 flags=N db=0 sub=0 psub=0 ssub=0 multi=-1 \
             qbuf=0 qbuf-free=0 argv-mem=0 multi-mem=0 rbs=0 rbp=0 obl=0 oll=0 omem=0 tot-mem=0 events=r \
             cmd=client|info user={user} redir=-1 resp={resp} lib-name= lib-ver=\n"
        )
    }
}

fn on_or_off(argument: &[u8], reply: &mut Reply<'_>) {
    if [&b"ON"[..], b"OFF"].iter().any(|word| argument.eq_ignore_ascii_case(word)) {
        reply.ok();
    } else {
        reply.error("ERR syntax error");
    }
}

/// Nothing that could be tracked is kept here.
fn tracking(argument: &[u8], reply: &mut Reply<'_>) {
    if argument.eq_ignore_ascii_case(b"OFF") {
        reply.ok();
    } else {
        reply.error("ERR client-side caching is not supported: there is nothing to cache");
    }
}

pub(crate) fn unknown_subcommand(request: Request<'_>, command: &str, reply: &mut Reply<'_>) {
    let name = String::from_utf8_lossy(request.arg(1).unwrap_or_default()).into_owned();
    let name: String = name.chars().take(128).collect();
    reply.error(format!("ERR unknown subcommand '{name}'. Try {command} HELP."));
}
