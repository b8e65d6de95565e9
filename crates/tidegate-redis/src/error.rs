//! # Errors: why a call failed
//!
//! Either the request is invalid, or Redis did not decide. Each message says what to do, also in the health report.
//! Decisions are made all the same: without Redis they follow the `on_outage` setting of their rules.

use std::fmt;

use redis::{ErrorKind, RedisError, ServerErrorKind};
use tidegate::InvalidRequest;

use crate::lease::CannotLease;

/// Why a call failed: the request is invalid, or Redis did not decide.
///
/// The message names the remedy. A caller that reacts to an error uses the predicates; metrics use
/// [`reason`](Error::reason).
///
/// ```
/// use tidegate_redis::Error;
///
/// let error = Error::timeout();
/// assert!(error.is_timeout() && !error.is_unavailable());
/// assert_eq!(error.reason(), "deadline");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(Kind);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    /// There is no connection; `message` is the error of the last attempt.
    NotConnected { message: String },
    /// Redis did not reply within the deadline.
    Timeout,
    /// The maximum number of requests was already in flight, so this one was not sent.
    TooManyInFlight,
    /// The breaker is open, so the request was not sent.
    BreakerOpen,
    /// Redis replied with an error: a code such as `READONLY`, and the rest of the message.
    ErrorReply { code: String, message: String },
    /// The reply is not one of the script.
    UnexpectedReply,
    /// The request contains a mistake.
    Invalid(InvalidRequest),
    /// The rule cannot be leased.
    CannotLease(CannotLease),
}

const PASSWORD: &str = "check user and password in the address";
const PERMISSIONS: &str = "allow the user EVALSHA, SCRIPT LOAD and the commands of the script on keys tg1*";

impl Error {
    /// The labels of [`reason`](Error::reason).
    pub(crate) const REASONS: [&'static str; 5] =
        ["deadline", "not_connected", "breaker_open", "too_many_in_flight", "error"];

    /// Returns the error of a request that Redis did not answer within the deadline.
    ///
    /// For a caller that has a deadline of its own, and for tests.
    #[must_use]
    pub const fn timeout() -> Self {
        Error(Kind::Timeout)
    }

    pub(crate) fn not_connected(message: impl Into<String>) -> Self {
        Error(Kind::NotConnected { message: message.into() })
    }

    pub(crate) const fn too_many_in_flight() -> Self {
        Error(Kind::TooManyInFlight)
    }

    pub(crate) const fn breaker_open() -> Self {
        Error(Kind::BreakerOpen)
    }

    pub(crate) const fn unexpected_reply() -> Self {
        Error(Kind::UnexpectedReply)
    }

    pub(crate) fn from_redis(error: &RedisError) -> Self {
        let message = || error.detail().map_or_else(|| error.to_string(), str::to_owned);
        let error_reply = |code: &str, message| Error(Kind::ErrorReply { code: code.to_owned(), message });
        match (error.kind(), server_error(error)) {
            (ErrorKind::Io, _) if error.is_timeout() => Error::timeout(),
            (ErrorKind::Parse | ErrorKind::UnexpectedReturnType, _) => Error::unexpected_reply(),
            (ErrorKind::AuthenticationFailed, _) => error_reply("WRONGPASS", message()),
            (_, Some((code, message))) => error_reply(code, message.to_owned()),
            _ => Error::not_connected(error.to_string()),
        }
    }

    /// Whether Redis did not reply within the deadline.
    ///
    /// The request may have been charged all the same.
    #[must_use]
    pub const fn is_timeout(&self) -> bool {
        matches!(self.0, Kind::Timeout)
    }

    /// Whether the request was not sent because there is no connection, or because the breaker is open.
    #[must_use]
    pub const fn is_unavailable(&self) -> bool {
        matches!(self.0, Kind::NotConnected { .. } | Kind::BreakerOpen)
    }

    /// Whether the request was not sent because too many requests were in flight.
    #[must_use]
    pub const fn is_overloaded(&self) -> bool {
        matches!(self.0, Kind::TooManyInFlight)
    }

    /// The mistake in the request, if it could not be decided at all: for example an unknown rule.
    #[must_use]
    pub const fn invalid_request(&self) -> Option<&InvalidRequest> {
        match &self.0 {
            Kind::Invalid(invalid) => Some(invalid),
            _ => None,
        }
    }

    /// Why the rule cannot be leased, if that is the error.
    #[must_use]
    pub const fn cannot_lease(&self) -> Option<&CannotLease> {
        match &self.0 {
            Kind::CannotLease(cannot) => Some(cannot),
            _ => None,
        }
    }

    /// Returns the reason as a label for metrics.
    ///
    /// One of `deadline`, `not_connected`, `breaker_open`, `too_many_in_flight` and `error`, as in
    /// [`Fallbacks::by_reason`](crate::Fallbacks::by_reason). `error` is an error reply, a reply that is not one of
    /// the script, or an invalid request.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        Error::REASONS[self.reason_index()]
    }

    /// Returns the index of the reason in [`Error::REASONS`].
    pub(crate) const fn reason_index(&self) -> usize {
        match self.0 {
            Kind::Timeout => 0,
            Kind::NotConnected { .. } => 1,
            Kind::BreakerOpen => 2,
            Kind::TooManyInFlight => 3,
            Kind::ErrorReply { .. } | Kind::UnexpectedReply | Kind::Invalid(_) | Kind::CannotLease(_) => 4,
        }
    }

    pub(crate) const fn is_breaker_open(&self) -> bool {
        matches!(self.0, Kind::BreakerOpen)
    }

    /// Whether the error is about the server and not about this request.
    pub(crate) fn is_server_failure(&self) -> bool {
        !matches!(&self.0, Kind::ErrorReply { code, .. } if code == "ERR" || code == "WRONGTYPE")
    }
}

/// Returns advice on how to fix an error reply, where there is any.
fn remedy(code: &str, message: &str) -> Option<&'static str> {
    Some(match code {
        "NOAUTH" | "WRONGPASS" => PASSWORD,
        "NOPERM" => PERMISSIONS,
        "READONLY" => "this is a replica; use the address of the primary, or all nodes of a cluster",
        "MOVED" | "ASK" | "CROSSSLOT" | "CLUSTERDOWN" => {
            "this is a cluster; build the gate with `RedisGate::cluster`"
        }
        "OOM" => "give the server more memory; rate limits create only short-lived keys",
        "LOADING" => "the server is loading its data and will reply soon",
        "BUSY" => "another script runs for too long; see SCRIPT KILL",
        "MISCONF" => "the server cannot save to disk and refuses writes; see its log",
        _ if message.contains("unknown command") => {
            "this server does not support scripts; use Redis 6.2 or later, or Valkey"
        }
        // Before authentication, a client may not send as much data as the script is long.
        _ if message.contains("unauthenticated") => PASSWORD,
        // The error of a command inside the script, in the words of Redis and of Valkey.
        _ if message.contains("can't run this command") || message.contains("ACL failure") => PERMISSIONS,
        _ if message.contains("cluster support disabled") => {
            "this is not a cluster; build the gate with `RedisGate::builder`"
        }
        _ => return None,
    })
}

impl From<InvalidRequest> for Error {
    fn from(invalid: InvalidRequest) -> Self {
        Error(Kind::Invalid(invalid))
    }
}

impl From<CannotLease> for Error {
    fn from(cannot: CannotLease) -> Self {
        Error(Kind::CannotLease(cannot))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::NotConnected { message } => write!(
                f,
                "no connection to Redis: {message}; check that the server is running and that its address is right"
            ),
            Kind::Timeout => f.write_str(
                "no reply from Redis within the deadline; check the load of the server, or raise `deadline`",
            ),
            Kind::TooManyInFlight => f.write_str(
                "too many requests are in flight; check the load of the server, or raise `in_flight`",
            ),
            Kind::BreakerOpen => f.write_str(
                "the breaker is open after repeated failures of Redis; it closes when a probe succeeds",
            ),
            Kind::ErrorReply { code, message } => {
                write!(f, "Redis replied {code} {message}")?;
                remedy(code, message).map_or(Ok(()), |remedy| write!(f, "; {remedy}"))
            }
            Kind::UnexpectedReply => f.write_str(
                "unexpected reply, from a server that is not Redis or from another script; check the address",
            ),
            Kind::Invalid(invalid) => invalid.fmt(f),
            Kind::CannotLease(cannot) => cannot.fmt(f),
        }
    }
}

impl std::error::Error for Error {}

/// Returns the code of a server error and the rest of its message.
///
/// Before Redis 7, the error of a command inside the script is wrapped in an error of the script: `ERR Error running
/// script (call to f_…): @user_script:47: @user_script: 47: -READONLY You can't …`.
fn server_error(error: &RedisError) -> Option<(&str, &str)> {
    let (code, message) = (error.code()?, error.detail().unwrap_or_default());
    let inner = message.starts_with("Error running script").then(|| message.split_once(": -")).flatten();
    Some(inner.and_then(|(_, inner)| inner.split_once(' ')).unwrap_or((code, message)))
}

/// Whether the connection must be replaced after this error.
pub(crate) fn breaks_connection(error: &RedisError) -> bool {
    let is_replica = matches!(server_error(error), Some(("READONLY" | "MASTERDOWN", _)));
    is_replica
        || error.kind() == ErrorKind::Parse
        || error.is_unrecoverable_error()
        || error.is_connection_dropped()
}

/// Whether the key is on another node of the cluster, so that nothing was done.
pub(crate) fn is_redirection(error: &RedisError) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Server(ServerErrorKind::Moved | ServerErrorKind::Ask | ServerErrorKind::TryAgain)
    )
}

/// Whether the script was not loaded, so that nothing was done.
pub(crate) fn is_no_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}
