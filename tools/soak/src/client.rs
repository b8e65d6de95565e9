//! A client for one command, `TG.CHECK`, with pipelining.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

/// Where a decision comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Strict,
    Lease,
    Local,
    Open,
    Closed,
}

pub(crate) const SOURCES: [(&str, Source); 5] = [
    ("strict", Source::Strict),
    ("lease", Source::Lease),
    ("local", Source::Local),
    ("open", Source::Open),
    ("closed", Source::Closed),
];

/// The reply to a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) is_allowed: bool,
    pub(crate) wait_micros: u64,
    pub(crate) source: Source,
}

/// A connection to a service.
#[derive(Debug)]
pub(crate) struct Client {
    stream: BufReader<TcpStream>,
    requests: Vec<u8>,
}

/// Longer than any fault: a reply that takes longer is lost.
const TIMEOUT: Duration = Duration::from_secs(8);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

impl Client {
    pub(crate) fn connect(port: u16) -> io::Result<Self> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let stream = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(Client { stream: BufReader::new(stream), requests: Vec::new() })
    }

    /// Adds a request to the next batch.
    pub(crate) fn add_check(&mut self, rule: &str, key: &str, cost: i64) {
        let cost = cost.to_string();
        let arguments = ["TG.CHECK", rule, key, "COST", &cost];
        let _ = write!(self.requests, "*{}\r\n", arguments.len());
        for argument in arguments {
            let _ = write!(self.requests, "${}\r\n{argument}\r\n", argument.len());
        }
    }

    pub(crate) fn send(&mut self) -> io::Result<()> {
        let sent = self.stream.get_mut().write_all(&self.requests);
        self.requests.clear();
        sent
    }

    /// Returns the next reply. The inner error is an error reply; the connection is still usable after it.
    pub(crate) fn receive(&mut self) -> io::Result<Result<Reply, String>> {
        match self.value()? {
            Value::Array(values) => Ok(reply(&values).ok_or_else(|| format!("not a decision: {values:?}"))),
            Value::Error(error) => Ok(Err(error)),
            other => Err(invalid(format!("not a reply to a check: {other:?}"))),
        }
    }

    fn value(&mut self) -> io::Result<Value> {
        let line = self.line()?;
        let Some((kind, rest)) = line.split_at_checked(1) else {
            return Err(invalid("an empty line".into()));
        };
        let number = || rest.parse::<i64>().map_err(|_| invalid(format!("not a number: {line:?}")));
        match kind {
            "+" => Ok(Value::Text(rest.to_owned())),
            "-" => Ok(Value::Error(rest.to_owned())),
            ":" => Ok(Value::Number(number()?)),
            "$" => {
                let mut bytes = vec![0; usize::try_from(number()?).unwrap_or(0) + 2];
                self.stream.read_exact(&mut bytes)?;
                bytes.truncate(bytes.len() - 2);
                Ok(Value::Text(String::from_utf8_lossy(&bytes).into_owned()))
            }
            "*" => (0..number()?).map(|_| self.value()).collect::<io::Result<_>>().map(Value::Array),
            _ => Err(invalid(format!("not the Redis protocol: {line:?}"))),
        }
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end().to_owned())
    }
}

#[derive(Debug)]
enum Value {
    Number(i64),
    Text(String),
    Error(String),
    Array(Vec<Value>),
}

fn reply(values: &[Value]) -> Option<Reply> {
    let [Value::Number(allowed), Value::Text(_), Value::Number(wait), .., Value::Text(source)] = values
    else {
        return None;
    };
    let (_, source) = SOURCES.iter().find(|(name, _)| name == source)?;
    Some(Reply { is_allowed: *allowed == 1, wait_micros: u64::try_from(*wait).ok()?, source: *source })
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
