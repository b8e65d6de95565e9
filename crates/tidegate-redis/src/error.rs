//! # Errors: why Redis did not decide
//!
//! The message of each kind says what to do about it, for the health report. The requests themselves follow the
//! `on_outage` setting of their rules.

use std::fmt;

use redis::{ErrorKind, RedisError, ServerErrorKind};

/// The reason why Redis did not decide.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// There is no connection; the last attempt failed for this reason.
    NotConnected {
        /// The message of the failed attempt.
        why: String,
    },
    /// Redis did not reply within the deadline.
    TooLate,
    /// The maximum number of requests was already in flight, so this one was not sent.
    TooManyInFlight,
    /// The breaker is open: Redis failed too often, and gets no requests until a probe succeeds.
    NotAsked,
    /// Redis replied with an error.
    Refused {
        /// The error code, such as `READONLY`.
        code: String,
        /// The rest of the message.
        why: String,
    },
    /// The reply is not one of the script.
    Nonsense,
}

const PASSWORD: &str = "check user and password in the address";
const PERMISSIONS: &str = "allow the user EVALSHA, SCRIPT LOAD and the commands of the script on keys tg1*";

impl Error {
    pub(crate) fn of(error: &RedisError) -> Self {
        let why = || error.detail().map_or_else(|| error.to_string(), str::to_owned);
        match (error.kind(), said(error)) {
            (ErrorKind::Io, _) if error.is_timeout() => Error::TooLate,
            (ErrorKind::Parse | ErrorKind::UnexpectedReturnType, _) => Error::Nonsense,
            (ErrorKind::AuthenticationFailed, _) => Error::Refused { code: "WRONGPASS".into(), why: why() },
            (_, Some((code, why))) => Error::Refused { code: code.to_owned(), why: why.to_owned() },
            _ => Error::NotConnected { why: error.to_string() },
        }
    }

    /// Whether the error is about the server and not about this request.
    pub(crate) fn is_the_servers(&self) -> bool {
        !matches!(self, Error::Refused { code, .. } if code == "ERR" || code == "WRONGTYPE")
    }

    /// Advice on how to fix the error, where there is any.
    fn remedy(&self) -> Option<&'static str> {
        let Error::Refused { code, why } = self else { return None };
        Some(match code.as_str() {
            "NOAUTH" | "WRONGPASS" => PASSWORD,
            "NOPERM" => PERMISSIONS,
            "READONLY" => "this is a replica; name the primary, or all nodes of a cluster",
            "MOVED" | "ASK" | "CROSSSLOT" | "CLUSTERDOWN" => "this is a cluster; name it by `cluster`",
            "OOM" => "give it more memory; limits make short-lived keys only",
            "LOADING" => "it is reading its data and will answer soon",
            "BUSY" => "another script takes too long; see SCRIPT KILL",
            "MISCONF" => "it cannot save to disk and takes no writes",
            _ if why.contains("unknown command") => {
                "it knows no scripts; Redis 6.2 or later, or Valkey, is needed"
            }
            // Before authentication, a client may not send as much data as the script is long.
            _ if why.contains("unauthenticated") => PASSWORD,
            // The error of a command inside the script, in the words of Redis and of Valkey.
            _ if why.contains("can't run this command") || why.contains("ACL failure") => PERMISSIONS,
            _ if why.contains("cluster support disabled") => "this is no cluster; name it by `builder`",
            _ => return None,
        })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NotConnected { why } => write!(f, "no connection to Redis: {why}"),
            Error::TooLate => f.write_str("Redis did not answer within the deadline"),
            Error::TooManyInFlight => f.write_str(
                "too many requests are waiting for Redis; it is too slow, or in_flight is too small",
            ),
            Error::NotAsked => f.write_str("Redis failed too often and is not asked until it answers again"),
            Error::Refused { code, why } => write!(f, "Redis answered {code} {why}"),
            Error::Nonsense => f.write_str("what answered is no Redis, or not with this script"),
        }?;
        self.remedy().map_or(Ok(()), |remedy| write!(f, "; {remedy}"))
    }
}

impl std::error::Error for Error {}

/// Returns the code of a server error and the rest of its message.
///
/// Before Redis 7, the error of a command inside the script is wrapped in an error of the script: `ERR Error running
/// script (call to f_…): @user_script:47: @user_script: 47: -READONLY You can't …`.
fn said(error: &RedisError) -> Option<(&str, &str)> {
    let (code, why) = (error.code()?, error.detail().unwrap_or_default());
    let inside = why.starts_with("Error running script").then(|| why.split_once(": -")).flatten();
    Some(inside.and_then(|(_, inside)| inside.split_once(' ')).unwrap_or((code, why)))
}

/// Whether the connection must be replaced after this error.
pub(crate) fn breaks_the_connection(error: &RedisError) -> bool {
    let replica = matches!(said(error), Some(("READONLY" | "MASTERDOWN", _)));
    replica
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
