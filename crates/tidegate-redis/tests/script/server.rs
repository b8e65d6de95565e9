//! # A server for one test
//!
//! Redis unless a test chooses another kind.

use redis::Connection;

pub(crate) use crate::support::Kind;

#[derive(Debug)]
pub(crate) struct Server(crate::support::Server);

impl Server {
    pub(crate) fn start() -> Self {
        Server::of(Kind::Redis)
    }

    pub(crate) fn of(kind: Kind) -> Self {
        Server(crate::support::Server::start(kind, &[]))
    }

    /// A connection, and the hash of the loaded script.
    pub(crate) fn load(&self, script: &str) -> (Connection, String) {
        let client = redis::Client::open(self.0.url()).expect("the address is well-formed");
        let mut connection = client.get_connection().expect("the server is ready");
        let sha = redis::cmd("SCRIPT").arg("LOAD").arg(script).query(&mut connection);
        (connection, sha.expect("the script is Lua"))
    }
}
