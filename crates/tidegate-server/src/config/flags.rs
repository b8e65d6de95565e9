//! # What is said on the command line and in the environment
//!
//! A few settings of the process can be given without a file, for containers and for a quick try: where to listen and
//! which Redis. Each is a flag and a variable of the environment; a flag is stronger than the variable, and both are
//! stronger than the file. Limits are in the file only.

use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args};

use super::listeners::Protocol;
use super::show::Origin;

/// Settings of the process, beside the file.
#[derive(Args, Clone, Debug, Default)]
pub struct Flags {
    /// The configuration file
    #[arg(short, long, env = "TIDEGATE_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where to listen for HTTP: an address and a port, unix:PATH, or off
    #[arg(long, env = "TIDEGATE_HTTP", value_name = "ADDRESS")]
    pub http: Option<String>,
    /// Where to listen for Envoy's gRPC protocol
    #[arg(long, env = "TIDEGATE_GRPC", value_name = "ADDRESS")]
    pub grpc: Option<String>,
    /// Where to listen for the Redis protocol
    #[arg(long, env = "TIDEGATE_RESP", value_name = "ADDRESS")]
    pub resp: Option<String>,
    /// Where to listen for administration
    #[arg(long, env = "TIDEGATE_ADMIN", value_name = "ADDRESS")]
    pub admin: Option<String>,
    /// Keep the counts in this Redis: redis://host:port
    #[arg(long, env = "TIDEGATE_REDIS", value_name = "URL", hide_env_values = true)]
    pub redis: Option<String>,
    /// Be put to the test: clients of the Redis protocol set the time and the rules, as `tidegate conformance --engine
    /// resp://host:port` does. On this machine only, and with the counts in memory
    #[arg(long)]
    pub conformance: bool,
}

/// What was given beside the file, and how.
#[derive(Clone, Debug, Default)]
pub struct Given {
    pub(crate) addresses: Vec<(Protocol, String, Origin)>,
    pub(crate) redis: Option<(String, Origin)>,
    /// Whether it listens at a socket that the file does not know of.
    pub(crate) has_socket: bool,
    /// Whether it is put to the test. There is no variable for it, and no word in the file: what is left lying about in
    /// either would hand the time and the rules to whoever comes.
    pub(crate) conformance: bool,
}

impl Flags {
    /// What was given, and whether by a flag or by the environment.
    #[must_use]
    pub fn given(&self, matches: &ArgMatches) -> Given {
        let addresses = Protocol::ALL.into_iter().filter_map(|protocol| {
            let text = self.address(protocol)?;
            Some((protocol, text.to_owned(), origin(matches, protocol.name())))
        });
        let redis = self.redis.clone().map(|url| (url, origin(matches, "redis")));
        let has_socket = std::env::var_os("TIDEGATE_RESP_SOCKET").is_some();
        Given { addresses: addresses.collect(), redis, has_socket, conformance: self.conformance }
    }

    fn address(&self, protocol: Protocol) -> Option<&str> {
        match protocol {
            Protocol::Http => self.http.as_deref(),
            Protocol::Grpc => self.grpc.as_deref(),
            Protocol::Resp => self.resp.as_deref(),
            Protocol::Admin => self.admin.as_deref(),
        }
    }
}

pub(super) fn origin(matches: &ArgMatches, name: &str) -> Origin {
    match matches.value_source(name) {
        Some(ValueSource::EnvVariable) => Origin::Environment(format!("TIDEGATE_{}", name.to_uppercase())),
        _ => Origin::Flag(format!("--{}", name.replace('_', "-"))),
    }
}

impl Given {
    pub(crate) fn address(&self, protocol: Protocol) -> Option<(&str, &Origin)> {
        let found = self.addresses.iter().find(|(given, ..)| *given == protocol);
        found.map(|(_, text, origin)| (text.as_str(), origin))
    }
}
