//! # Why Redis did not decide
//!
//! Each kind has a sentence that says what to do, for the health report; the requests themselves go by what their rules say.

use std::fmt;

use redis::{ErrorKind, RedisError, ServerErrorKind};

/// Why Redis did not decide.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trouble {
    /// There is no connection, and the last attempt failed like this.
    NotConnected {
        /// What was said.
        why: String,
    },
    /// There was no answer within the deadline.
    TooLate,
    /// So many requests were waiting for an answer that no more were sent.
    TooManyInFlight,
    /// It failed too often a moment ago, and is not asked until it is seen to answer again.
    NotAsked,
    /// It answered with an error.
    Refused {
        /// The error's code, as in `READONLY`.
        code: String,
        /// The rest of it.
        why: String,
    },
    /// What came was no answer of the script.
    Nonsense,
}

const PASSWORD: &str = "check user and password in the address";
const PERMISSIONS: &str = "allow the user EVALSHA, SCRIPT LOAD and the commands of the script on keys tg1*";

impl Trouble {
    pub(crate) fn of(error: &RedisError) -> Self {
        let why = || error.detail().map_or_else(|| error.to_string(), str::to_owned);
        match (error.kind(), said(error)) {
            (ErrorKind::Io, _) if error.is_timeout() => Trouble::TooLate,
            (ErrorKind::Parse | ErrorKind::UnexpectedReturnType, _) => Trouble::Nonsense,
            (ErrorKind::AuthenticationFailed, _) => Trouble::Refused { code: "WRONGPASS".into(), why: why() },
            (_, Some((code, why))) => Trouble::Refused { code: code.to_owned(), why: why.to_owned() },
            _ => Trouble::NotConnected { why: error.to_string() },
        }
    }

    /// Whether it says something about the server, and not about what was asked.
    pub(crate) fn is_the_servers(&self) -> bool {
        !matches!(self, Trouble::Refused { code, .. } if code == "ERR" || code == "WRONGTYPE")
    }

    /// What to do about it, where there is something.
    fn remedy(&self) -> Option<&'static str> {
        let Trouble::Refused { code, why } = self else { return None };
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
            // Who has not said a password may not send as much as the script is long.
            _ if why.contains("unauthenticated") => PASSWORD,
            // Of a command inside the script, in the words of Redis and of Valkey.
            _ if why.contains("can't run this command") || why.contains("ACL failure") => PERMISSIONS,
            _ if why.contains("cluster support disabled") => "this is no cluster; name it by `builder`",
            _ => return None,
        })
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::NotConnected { why } => write!(f, "no connection to Redis: {why}"),
            Trouble::TooLate => f.write_str("Redis did not answer within the deadline"),
            Trouble::TooManyInFlight => f.write_str(
                "too many requests are waiting for Redis; it is too slow, or in_flight is too small",
            ),
            Trouble::NotAsked => {
                f.write_str("Redis failed too often and is not asked until it answers again")
            }
            Trouble::Refused { code, why } => write!(f, "Redis answered {code} {why}"),
            Trouble::Nonsense => f.write_str("what answered is no Redis, or not with this script"),
        }?;
        self.remedy().map_or(Ok(()), |remedy| write!(f, "; {remedy}"))
    }
}

impl std::error::Error for Trouble {}

/// The code of a server's error, and the rest of it. Before Redis 7 what a command inside the script said was told as an error
/// of the script: `ERR Error running script (call to f_…): @user_script:47: @user_script: 47: -READONLY You can't …`.
fn said(error: &RedisError) -> Option<(&str, &str)> {
    let (code, why) = (error.code()?, error.detail().unwrap_or_default());
    let inside = why.starts_with("Error running script").then(|| why.split_once(": -")).flatten();
    Some(inside.and_then(|(_, inside)| inside.split_once(' ')).unwrap_or((code, why)))
}

/// Whether the connection has to be made anew after this error.
pub(crate) fn breaks_the_connection(error: &RedisError) -> bool {
    let replica = matches!(said(error), Some(("READONLY" | "MASTERDOWN", _)));
    replica
        || error.kind() == ErrorKind::Parse
        || error.is_unrecoverable_error()
        || error.is_connection_dropped()
}

/// Whether the key is elsewhere in the cluster, so that nothing was done.
pub(crate) fn is_redirection(error: &RedisError) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Server(ServerErrorKind::Moved | ServerErrorKind::Ask | ServerErrorKind::TryAgain)
    )
}

/// Whether the script was not there, so that nothing was done.
pub(crate) fn is_no_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}
