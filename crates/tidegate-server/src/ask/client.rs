//! # One request by HTTP, and its answer
//!
//! As little of HTTP as our own service needs: it always says how long its answer is.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::encrypted::encrypted;

/// A connection to a service.
pub(super) struct Client {
    stream: BufReader<Box<dyn ReadWrite>>,
    host: String,
    token: Option<String>,
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum NoAnswer {
    /// The address is none.
    Address(&'static str),
    /// Its certificate cannot be looked at.
    Certificate(String),
    /// Nobody is there, or they are gone.
    Lost(io::Error),
    /// Somebody else is there.
    NotOurs(String),
    /// The service says why.
    Problem(String),
}

trait ReadWrite: Read + Write {}
impl<T: Read + Write> ReadWrite for T {}

/// Nobody waits longer for a decision.
const PATIENCE: Duration = Duration::from_secs(5);
/// No answer of ours is longer, and no head.
const LONGEST: u64 = 1 << 20;
pub(super) const NO_ADDRESS: &str = "that is no address; write http://127.0.0.1:8080, or unix:PATH";
const NO_CA: &str =
    "who is behind https has to be known; name the root that signs its certificate, by --ca FILE";

impl Client {
    /// `ca` is the root that signs the certificate of the service, if it is encrypted.
    pub(super) fn connect(url: &str, token: Option<&str>, ca: Option<&Path>) -> Result<Self, NoAnswer> {
        let token = token.map(ToOwned::to_owned);
        if token.as_ref().is_some_and(|token| token.contains(char::is_control)) {
            return Err(NoAnswer::Address("a token has no line breaks; check what was given"));
        }
        let (stream, host): (Box<dyn ReadWrite>, &str) = if let Some(path) = url.strip_prefix("unix:") {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            (Box::new(stream), "localhost")
        } else if let Some(host) = url.strip_prefix("https://") {
            let (host, ca) = (host.trim_end_matches('/'), ca.ok_or(NoAnswer::Address(NO_CA))?);
            (Box::new(encrypted(tcp(host)?, host, ca)?), host)
        } else {
            let host = url.strip_prefix("http://").unwrap_or(url).trim_end_matches('/');
            (Box::new(tcp(host)?), host)
        };
        Ok(Client { stream: BufReader::new(stream), host: host.to_owned(), token })
    }

    /// The status and the body of the answer.
    pub(super) fn request(mut self, method: &str, path: &str, body: &str) -> Result<(u16, String), NoAnswer> {
        let token = self.token.as_ref().map(|token| format!("authorization: Bearer {token}\r\n"));
        let (host, token) = (&self.host, token.unwrap_or_default());
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {host}\r\n{token}connection: close\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        self.stream.get_mut().write_all(request.as_bytes())?;
        let mut answer = self.stream.take(LONGEST);
        let mut line = String::new();
        answer.read_line(&mut line)?;
        let status = line.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)?.parse().ok());
        let Some(status) = status else { return Err(NoAnswer::NotOurs("no HTTP".to_owned())) };
        while !line.trim_end().is_empty() {
            line.clear();
            answer.read_line(&mut line)?;
        }
        let mut body = String::new();
        answer.read_to_string(&mut body)?;
        Ok((status, body))
    }
}

fn tcp(host: &str) -> Result<TcpStream, NoAnswer> {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || ".:-[]_".contains(letter);
    if host.is_empty() || !host.chars().all(fits) {
        return Err(NoAnswer::Address(NO_ADDRESS));
    }
    let mut addresses = host.to_socket_addrs().map_err(|_| NoAnswer::Address(NO_ADDRESS))?;
    let address = addresses.next().ok_or(NoAnswer::Address(NO_ADDRESS))?;
    let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

impl NoAnswer {
    pub(super) fn not_ours(status: u16) -> Self {
        NoAnswer::NotOurs(format!("status {status}, and no JSON"))
    }

    /// What the service says is wrong.
    pub(super) fn problem(status: u16, told: &Value) -> Self {
        match told["detail"].as_str() {
            Some(detail) => NoAnswer::Problem(detail.to_owned()),
            None => NoAnswer::NotOurs(format!("status {status}, and no decision")),
        }
    }
}

impl From<io::Error> for NoAnswer {
    fn from(error: io::Error) -> Self {
        NoAnswer::Lost(error)
    }
}

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoAnswer::Address(advice) => f.write_str(advice),
            NoAnswer::Certificate(why) => f.write_str(why),
            NoAnswer::Lost(error) => {
                write!(f, "the service does not answer ({error}); start it, or give its address by --url")
            }
            NoAnswer::NotOurs(what) => {
                write!(
                    f,
                    "somebody else answers there ({what}); give the address of tidegate's HTTP by --url"
                )
            }
            NoAnswer::Problem(detail) => f.write_str(detail),
        }
    }
}
