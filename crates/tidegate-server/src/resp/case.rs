//! # `TG.CASE`: setting the time and the rules of a server that is put to the test
//!
//! ```text
//!   TG.CASE AT     micros       it is so many microseconds after 0; also earlier than it was
//!   TG.CASE RULES  file         these rules are in force, and nobody has used anything
//!   TG.CASE CHANGE file         the same, as after a reload: what was used stays used
//! ```
//!
//! A file is the text of a [configuration](crate::config), read and checked as every other; only its rules count.
//! Servers that are not for testing answer with how to start one that is.

use tidegate::clock::{Clock, Micros};

use super::call::whole;
use super::parse::Request;
use super::reply::Reply;
use super::rules::quoted;
use super::session::{Flow, Session};
use crate::config::{Config, Format};
use crate::engine::Case;
use crate::rules::Compiled;

const NOT_FOR_TESTING: &str = "ERR this server has its own clock and its own rules; \
    start one that is put to the test: tidegate serve --conformance";
const SYNTAX: &str = "ERR syntax error: AT microseconds, RULES file or CHANGE file";

impl<C: Clock + Send + Sync + 'static> Session<C> {
    pub(crate) fn tg_case(&mut self, request: Request<'_>, reply: &mut Reply<'_>) -> Flow {
        match self.set_case(request) {
            Ok(()) => reply.ok(),
            Err(sentence) => reply.error(sentence),
        }
        Flow::Next
    }

    fn set_case(&self, request: Request<'_>) -> Result<(), String> {
        if !self.service.engine.is_for_testing() {
            return Err(NOT_FOR_TESTING.to_owned());
        }
        let text = request.arg(2).unwrap_or_default();
        let case = match request.arg(1).map(<[u8]>::to_ascii_uppercase).as_deref() {
            Some(b"AT") => Case::At(instant(text)?),
            Some(b"RULES") => Case::Rules(rules(text)?),
            Some(b"CHANGE") => Case::Change(rules(text)?),
            _ => return Err(SYNTAX.to_owned()),
        };
        let set = self.service.engine.set(case).unwrap_or(Ok(()));
        set.map_err(|invalid| format!("ERR {invalid}"))
    }
}

fn instant(text: &[u8]) -> Result<Micros, String> {
    let most = Micros::MAX.get();
    let micros = whole(text).and_then(|micros| u64::try_from(micros).ok()).filter(|micros| *micros <= most);
    let wrong = || format!("ERR AT is {}; use a whole number from 0 to {most}", quoted(text));
    micros.map(Micros::new).ok_or_else(wrong)
}

fn rules(text: &[u8]) -> Result<Box<Compiled>, String> {
    let loaded = Config::load("TG.CASE", text, Format::Yaml, &|_| None);
    let faults = || {
        let faults: Vec<_> = loaded.faults.iter().map(|fault| fault.message.as_str()).collect();
        format!("ERR these rules cannot be put in force: {}", faults.join("; "))
    };
    let config = loaded.config.as_ref().ok_or_else(faults)?;
    Ok(Box::new(Compiled::new(config.rules.clone())))
}
