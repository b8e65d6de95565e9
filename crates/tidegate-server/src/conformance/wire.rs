//! # A word with a server
//!
//! One connection, and one batch of questions at a time: enough for those who have all the time in the world, and
//! nothing else.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::config::Secret;

/// A server that speaks the Redis protocol, and how to get in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    who: Who,
    address: String,
    account: Option<(String, Secret)>,
    db: Option<String>,
}

/// Who is thought to answer there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    Redis,
    Tidegate,
}

/// A connection to the server that is put to the test.
#[derive(Debug)]
pub(super) struct Wire {
    stream: BufReader<TcpStream>,
    name: &'static str,
    /// What went wrong, if it did; then nothing is asked any more.
    trouble: Option<String>,
}

/// A command: its name, and its arguments.
pub(super) type Words = Vec<Vec<u8>>;

/// What a server answers, as far as it is asked here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Number(i64),
    Text(Vec<u8>),
    List(Vec<Value>),
    Nothing,
}

/// Who does not answer for so long is not there.
const PATIENCE: Duration = Duration::from_secs(10);
/// No answer that is asked for is longer, or has more in it.
const LONGEST: usize = 1 << 16;

// === impl Target ===

impl Who {
    fn port(self) -> u16 {
        match self {
            Who::Redis => 6379,
            Who::Tidegate => 6380,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Who::Redis => "the Redis",
            Who::Tidegate => "the server",
        }
    }

    fn remedy(self) -> &'static str {
        match self {
            Who::Redis => "start a Redis there, or name another",
            Who::Tidegate => "start a server there, by `tidegate serve --conformance`, or name another",
        }
    }
}

impl Target {
    /// What comes after `redis://` or `resp://`: `[user:password@]host[:port]`, and of a Redis `[/db]`.
    pub(super) fn parse(who: Who, text: &str) -> Result<Self, String> {
        let (account, rest) =
            text.rsplit_once('@').map_or((None, text), |(account, rest)| (Some(account), rest));
        let (address, db) = rest.split_once('/').unwrap_or((rest, ""));
        if who == Who::Tidegate && !db.is_empty() {
            return Err(format!("a server has no databases; leave out `/{db}`"));
        }
        let db = Some(db.to_owned()).filter(|db| !db.is_empty());
        Ok(Target { who, address: with_port(address, who.port())?, account: account.map(named), db })
    }
}

/// An address with a port, the usual one if there is none in it.
fn with_port(address: &str, usual: u16) -> Result<String, String> {
    let (host, port) = match address.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (address, None),
    };
    match port {
        _ if host.is_empty() => Err(format!("`{address}` names no host; write host:port")),
        None => Ok(format!("{host}:{usual}")),
        Some(port) if port.parse::<u16>().is_ok() => Ok(address.to_owned()),
        Some(port) => Err(format!("`{port}` is no port; use a number from 1 to 65535")),
    }
}

/// A user and a password, of which the first may be left out.
fn named(account: &str) -> (String, Secret) {
    let (user, password) = account.split_once(':').unwrap_or(("", account));
    let user = if user.is_empty() { "default" } else { user };
    (user.to_owned(), Secret::new(password))
}

// === impl Wire ===

impl Wire {
    pub(super) fn connect(target: &Target) -> Result<Self, String> {
        let Target { who, address, account, db } = target;
        let failed = |error| format!("{address} cannot be reached: {error}; {}", who.remedy());
        let stream = TcpStream::connect(address).map_err(failed)?;
        let patient = stream.set_read_timeout(Some(PATIENCE)).and(stream.set_write_timeout(Some(PATIENCE)));
        patient.and(stream.set_nodelay(true)).map_err(failed)?;
        let mut wire = Wire { stream: BufReader::new(stream), name: who.name(), trouble: None };
        if let Some((user, password)) = account {
            wire.ask(&words(["AUTH", user, password.reveal()]))?;
        }
        if let Some(db) = db {
            wire.ask(&words(["SELECT", db]))?;
        }
        Ok(wire)
    }

    /// Sends a command, and reads the answer; an error of the server is one.
    pub(super) fn ask(&mut self, words: &Words) -> Result<Value, String> {
        self.send(std::slice::from_ref(words))?;
        self.read()
    }

    /// Sends commands all at once, and reads the answers. Whoever asks like this cannot be told of trouble: there are
    /// no answers then, now or later, and [`end`](Wire::end) tells why.
    pub(super) fn ask_all(&mut self, commands: &[Words]) -> Option<Vec<Value>> {
        if self.trouble.is_some() {
            return None;
        }
        let sent = self.send(commands);
        let answers = sent.and_then(|()| commands.iter().map(|_| self.read()).collect());
        answers.map_err(|trouble| self.give_up(trouble)).ok()
    }

    /// Notes what went wrong; the first counts.
    pub(super) fn give_up(&mut self, trouble: String) {
        self.trouble.get_or_insert(trouble);
    }

    /// What went wrong, if it did.
    pub(super) fn end(&mut self) -> Result<(), String> {
        self.trouble.take().map_or(Ok(()), Err)
    }

    fn send(&mut self, commands: &[Words]) -> Result<(), String> {
        let mut bytes = Vec::new();
        for words in commands {
            bytes.extend(format!("*{}\r\n", words.len()).bytes());
            for word in words {
                bytes.extend(format!("${}\r\n", word.len()).bytes());
                bytes.extend_from_slice(word);
                bytes.extend_from_slice(b"\r\n");
            }
        }
        let sent = self.stream.get_mut().write_all(&bytes);
        sent.map_err(|error| format!("{} has gone: {error}", self.name))
    }

    fn read(&mut self) -> Result<Value, String> {
        let (line, name) = (self.line()?, self.name);
        let (kind, rest) =
            line.split_at_checked(1).ok_or_else(|| format!("{name} answers with an empty line"))?;
        let number =
            || rest.parse::<i64>().map_err(|_| format!("{name} answers {line:?}, which is no number"));
        let length = || {
            let length = usize::try_from(number()?).ok().filter(|length| *length <= LONGEST);
            length.ok_or_else(|| format!("{name} answers with too much"))
        };
        match kind {
            "+" => Ok(Value::Text(rest.as_bytes().to_vec())),
            ":" => Ok(Value::Number(number()?)),
            "-" => Err(format!("{name} says: {rest}")),
            "$" | "*" if rest == "-1" => Ok(Value::Nothing),
            "$" => self.bytes(length()?).map(Value::Text),
            "*" => (0..length()?).map(|_| self.read()).collect::<Result<_, _>>().map(Value::List),
            _ => Err(format!("{line:?} is no answer of the Redis protocol; is there another program?")),
        }
    }

    fn line(&mut self) -> Result<String, String> {
        let mut line = Vec::new();
        let read = self.stream.by_ref().take(LONGEST as u64).read_until(b'\n', &mut line);
        match read.map_err(|error| format!("{} does not answer: {error}", self.name))? {
            0 => Err(format!("{} has closed the connection", self.name)),
            _ => Ok(String::from_utf8_lossy(&line).trim_end().to_owned()),
        }
    }

    fn bytes(&mut self, length: usize) -> Result<Vec<u8>, String> {
        let mut bytes = vec![0; length + 2];
        let read = self.stream.read_exact(&mut bytes);
        read.map_err(|error| format!("{} has gone: {error}", self.name))?;
        bytes.truncate(length);
        Ok(bytes)
    }
}

/// A command.
pub(super) fn words<const N: usize>(words: [&str; N]) -> Words {
    words.map(|word| word.as_bytes().to_vec()).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_wrong_ones_are_told() {
        let of = |who, text| Target::parse(who, text).map(|target| target.address);
        let good = [
            ("localhost", "localhost:6380"),
            ("localhost:7", "localhost:7"),
            ("[::1]", "[::1]:6380"),
            ("[::1]:7", "[::1]:7"),
            ("me:pass:word@host", "host:6380"),
        ];
        for (text, address) in good {
            assert_eq!(of(Who::Tidegate, text).as_deref(), Ok(address));
        }
        assert_eq!(of(Who::Redis, "host/3").as_deref(), Ok("host:6379"));
        let bad = [(":7", "no host"), ("", "no host"), ("host:x", "no port"), ("host:65536", "no port")];
        for (text, why) in bad.into_iter().chain([("host/3", "no databases")]) {
            assert!(of(Who::Tidegate, text).is_err_and(|wrong| wrong.contains(why)), "{text}");
        }
    }

    #[test]
    fn a_password_may_have_a_name_and_is_not_shown() {
        let target = Target::parse(Who::Tidegate, "sesame@host").expect("an address");
        assert_eq!(target.account, Some(("default".to_owned(), Secret::new("sesame"))));
        let target = Target::parse(Who::Tidegate, "me:open:sesame@host").expect("an address");
        assert_eq!(target.account, Some(("me".to_owned(), Secret::new("open:sesame"))));
        assert!(!format!("{target:?}").contains("sesame"));
    }
}
