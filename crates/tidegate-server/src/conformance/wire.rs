//! # A word with a Redis
//!
//! One connection, one question at a time: enough for those who have all the time in the world, and nothing else.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A connection to the server that is put to the test.
#[derive(Debug)]
pub(super) struct Wire {
    stream: BufReader<TcpStream>,
}

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

impl Wire {
    /// Connects to `redis://[user:password@]host[:port][/db]`.
    pub(super) fn connect(url: &str) -> Result<Self, String> {
        let rest = url.strip_prefix("redis://").unwrap_or(url);
        let (account, rest) =
            rest.rsplit_once('@').map_or((None, rest), |(account, rest)| (Some(account), rest));
        let (address, db) = rest.split_once('/').unwrap_or((rest, ""));
        let has_port = address.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let address = if has_port { address.to_owned() } else { format!("{address}:6379") };
        let failed =
            |error| format!("{address} cannot be reached: {error}; start a Redis there, or name another");
        let stream = TcpStream::connect(&address).map_err(failed)?;
        let patient = stream.set_read_timeout(Some(PATIENCE)).and(stream.set_write_timeout(Some(PATIENCE)));
        patient.and(stream.set_nodelay(true)).map_err(failed)?;
        let mut wire = Wire { stream: BufReader::new(stream) };
        if let Some(account) = account {
            let (user, password) = account.split_once(':').unwrap_or(("default", account));
            let user = if user.is_empty() { "default" } else { user };
            wire.ask(&[b"AUTH", user.as_bytes(), password.as_bytes()])?;
        }
        if !db.is_empty() {
            wire.ask(&[b"SELECT", db.as_bytes()])?;
        }
        Ok(wire)
    }

    /// Sends a command, and reads the answer; an error of the server is one.
    pub(super) fn ask(&mut self, words: &[&[u8]]) -> Result<Value, String> {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            bytes.extend(format!("${}\r\n", word.len()).bytes());
            bytes.extend_from_slice(word);
            bytes.extend_from_slice(b"\r\n");
        }
        self.stream.get_mut().write_all(&bytes).map_err(|error| format!("the Redis has gone: {error}"))?;
        self.read()
    }

    fn read(&mut self) -> Result<Value, String> {
        let line = self.line()?;
        let (kind, rest) = line.split_at_checked(1).ok_or("the Redis answers with an empty line")?;
        let number =
            || rest.parse::<i64>().map_err(|_| format!("the Redis answers {line:?}, which is no number"));
        let length = |number: i64| usize::try_from(number).ok().filter(|length| *length <= LONGEST);
        match kind {
            "+" => Ok(Value::Text(rest.as_bytes().to_vec())),
            ":" => Ok(Value::Number(number()?)),
            "-" => Err(format!("the Redis says: {rest}")),
            "$" | "*" if rest == "-1" => Ok(Value::Nothing),
            "$" => self.bytes(length(number()?).ok_or("the Redis answers with too much")?).map(Value::Text),
            "*" => {
                let length = length(number()?).ok_or("the Redis answers with too much")?;
                (0..length).map(|_| self.read()).collect::<Result<_, _>>().map(Value::List)
            }
            _ => Err(format!("{line:?} is no answer of a Redis; is there another program?")),
        }
    }

    fn line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        let read = self.stream.by_ref().take(LONGEST as u64).read_line(&mut line);
        match read.map_err(|error| format!("the Redis does not answer: {error}"))? {
            0 => Err("the Redis has closed the connection".to_owned()),
            _ => Ok(line.trim_end().to_owned()),
        }
    }

    fn bytes(&mut self, length: usize) -> Result<Vec<u8>, String> {
        let mut bytes = vec![0; length + 2];
        self.stream.read_exact(&mut bytes).map_err(|error| format!("the Redis has gone: {error}"))?;
        bytes.truncate(length);
        Ok(bytes)
    }
}
