//! # How clients begin, and end
//!
//! `HELLO`, `AUTH`, `SELECT`, `PING` and what else a client says before it asks anything. The answers are those of a Redis,
//! word for word where clients are known to look.

use std::time::Duration;

use tidegate::clock::Clock;

use super::REDIS_VERSION;
use super::account::DEFAULT_USER;
use super::call::whole;
use super::parse::Request;
use super::reply::{Dialect, Reply};
use super::session::{Flow, Session};

const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";
const NO_PASSWORD: &str = "ERR AUTH <password> called without any password configured for the default user. Are you sure \
                           your configuration is correct?";
const STRANGER: &str = "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> \
                        AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol \
                        version at the same time";
/// So long waits who has said a wrong password for the first time; then twice as long each time.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const MOST_DOUBLINGS: u32 = 5;
const BAD_NAME: &str = "ERR Client names cannot contain spaces, newlines or special characters.";

/// What `HELLO` asks for.
#[derive(Default)]
struct Greeting<'a> {
    dialect: Option<Dialect>,
    account: Option<(&'a [u8], &'a [u8])>,
    name: Option<&'a [u8]>,
}

impl<C: Clock + Send + Sync + 'static> Session<C> {
    pub(crate) fn hello(&mut self, request: Request<'_>, reply: &mut Reply<'_>) -> Flow {
        if self.transaction.is_some() {
            reply.error("ERR Command not allowed inside a transaction");
            self.spoil();
            return Flow::Next;
        }
        match greeting(request).and_then(|greeting| self.greet(&greeting)) {
            Err(sentence) => self.refuse(sentence, reply),
            Ok(dialect) => {
                self.dialect = dialect;
                reply.speak(dialect);
                self.introduce(reply);
                Flow::Next
            }
        }
    }

    /// Who says a wrong password waits for the reply, longer each time.
    fn refuse(&mut self, sentence: String, reply: &mut Reply<'_>) -> Flow {
        if sentence != WRONG_PASSWORD {
            reply.error(sentence);
            return Flow::Next;
        }
        let wait = FIRST_WAIT * 2_u32.pow(self.wrong_passwords.min(MOST_DOUBLINGS));
        self.wrong_passwords = self.wrong_passwords.saturating_add(1);
        let dialect = reply.dialect();
        Flow::Later(Box::pin(async move {
            tokio::time::sleep(wait).await;
            let mut bytes = Vec::new();
            Reply::new(&mut bytes, dialect).error(sentence);
            bytes
        }))
    }

    /// All of it or nothing: who is refused keeps the dialect and the name it had.
    fn greet(&mut self, greeting: &Greeting<'_>) -> Result<Dialect, String> {
        if let Some((user, password)) = greeting.account {
            self.authenticate(user, password)?;
        }
        if self.user.is_none() {
            return Err(STRANGER.to_owned());
        }
        if let Some(name) = greeting.name {
            self.take_name(name)?;
        }
        Ok(greeting.dialect.unwrap_or(self.dialect))
    }

    fn introduce(&self, reply: &mut Reply<'_>) {
        reply.map(7);
        let texts = |reply: &mut Reply<'_>, name, text| {
            reply.bytes(name);
            reply.bytes(text);
        };
        let numbers = |reply: &mut Reply<'_>, name, number| {
            reply.bytes(name);
            reply.count(number);
        };
        texts(reply, "server", "redis");
        texts(reply, "version", REDIS_VERSION);
        numbers(reply, "proto", if self.dialect == Dialect::Resp3 { 3 } else { 2 });
        numbers(reply, "id", self.id);
        texts(reply, "mode", "standalone");
        texts(reply, "role", "master");
        reply.bytes("modules");
        reply.array(0);
    }

    pub(crate) fn auth(&mut self, request: Request<'_>, reply: &mut Reply<'_>) -> Flow {
        let done = match (request.arg(1), request.arg(2), request.len()) {
            (Some(_), None, _) if self.service.accounts.is_empty() => Err(NO_PASSWORD.to_owned()),
            (Some(password), None, _) => self.authenticate(DEFAULT_USER.as_bytes(), password),
            (Some(user), Some(password), 3) => self.authenticate(user, password),
            _ => Err("ERR syntax error".to_owned()),
        };
        match done {
            Ok(()) => {
                reply.ok();
                Flow::Next
            }
            Err(sentence) => self.refuse(sentence, reply),
        }
    }

    fn authenticate(&mut self, user: &[u8], password: &[u8]) -> Result<(), String> {
        let accounts = &self.service.accounts;
        if accounts.is_empty() && user == DEFAULT_USER.as_bytes() {
            return Ok(()); // everybody is the default user, whatever the password
        }
        // All are looked at, so that the time does not tell which one it was.
        let found = accounts
            .iter()
            .fold(None, |found, account| if account.is(user, password) { Some(account) } else { found });
        let account = found.ok_or(WRONG_PASSWORD)?;
        (self.user, self.may_change) = (Some(account.user().to_owned()), account.may_change());
        Ok(())
    }

    pub(crate) fn take_name(&mut self, name: &[u8]) -> Result<(), String> {
        if name.iter().any(|byte| !byte.is_ascii_graphic()) {
            return Err(BAD_NAME.to_owned());
        }
        self.name = name.to_vec();
        Ok(())
    }

    pub(crate) fn select(&mut self, request: Request<'_>, reply: &mut Reply<'_>) -> Flow {
        match request.arg(1).and_then(whole) {
            Some(0) => reply.ok(),
            Some(_) => reply.error("ERR DB index is out of range"),
            None => reply.error("ERR value is not an integer or out of range"),
        }
        Flow::Next
    }

    pub(crate) fn ping(&mut self, request: Request<'_>, reply: &mut Reply<'_>) -> Flow {
        match request.arg(1) {
            None => reply.word("PONG"),
            Some(message) => reply.bytes(message),
        }
        Flow::Next
    }

    pub(crate) fn echo(&mut self, request: Request<'_>, reply: &mut Reply<'_>) -> Flow {
        reply.bytes(request.arg(1).unwrap_or_default());
        Flow::Next
    }

    pub(crate) fn quit(&mut self, _: Request<'_>, reply: &mut Reply<'_>) -> Flow {
        reply.ok();
        Flow::Close
    }

    /// As if just connected.
    pub(crate) fn reset(&mut self, _: Request<'_>, reply: &mut Reply<'_>) -> Flow {
        self.transaction = None;
        self.name.clear();
        self.dialect = Dialect::default();
        let is_open = self.service.accounts.is_empty();
        (self.user, self.may_change) = (is_open.then(|| DEFAULT_USER.to_owned()), is_open);
        reply.word("RESET");
        Flow::Next
    }
}

fn greeting(request: Request<'_>) -> Result<Greeting<'_>, String> {
    let mut greeting = Greeting::default();
    let Some(version) = request.arg(1) else { return Ok(greeting) };
    greeting.dialect = Some(match whole(version) {
        Some(2) => Dialect::Resp2,
        Some(3) => Dialect::Resp3,
        Some(_) => return Err("NOPROTO unsupported protocol version".to_owned()),
        None => return Err("ERR Protocol version is not an integer or out of range".to_owned()),
    });
    let mut rest = request.args(2);
    while let Some(option) = rest.next() {
        let syntax = || format!("ERR Syntax error in HELLO option '{}'", String::from_utf8_lossy(option));
        if option.eq_ignore_ascii_case(b"AUTH") {
            greeting.account = Some(rest.next().zip(rest.next()).ok_or_else(syntax)?);
        } else if option.eq_ignore_ascii_case(b"SETNAME") {
            greeting.name = Some(rest.next().ok_or_else(syntax)?);
        } else {
            return Err(syntax());
        }
    }
    Ok(greeting)
}
