//! # HTTP, with JSON
//!
//! For programs that have no client of Redis at hand, and for people with `curl`. `docs/http-api.md` has every field.
//!
//! ```text
//!   POST /v1/check     {"descriptors": {"user": "alice"}}     may it pass? charged if it may
//!   POST /v1/peek      the same                               the same, and nothing is charged
//!   POST /v1/refund    the same                               gives back what a recent charge took
//!   POST /v1/reset     the same                               forgets
//!   POST /v1/acquire   the same                               as check, and holds places at work
//!   POST /v1/renew     {"place": "6b1d…"}                     holds them for another lease
//!   POST /v1/release   {"place": "6b1d…"}                     gives them back
//!   POST /v1/explain   as check                               which rules apply, and why not the others
//!   GET  /livez, /readyz, /metrics, /openapi.json
//! ```
//!
//! A list in the place of one request is a batch: each is decided for itself, and the answers come in the same order.
//!
//! A refusal is an answer, not an error: its status is 200, and it says `"allowed": false`. What cannot be answered
//! is an error, told as `application/problem+json` in a sentence that names the place, the value and the remedy.

pub(crate) mod asked;
mod chunks;
mod guard;
mod head;
pub(crate) mod problem;
pub(crate) mod reply;
mod route;
pub(crate) mod routes;
mod session;
pub(crate) mod told;

use std::fmt;
use std::sync::Arc;

use tidegate::SteadyClock;

use crate::engine::Engine;
use crate::resp::Account;
pub(crate) use guard::Guard;
pub use route::{OPENAPI, routes};
pub(crate) use routes::is_known;
pub(crate) use session::{Answers, Session, Told};

/// What all connections share.
pub struct Service<C = SteadyClock> {
    pub(crate) engine: Arc<Engine<C>>,
    /// What callers have to know; if this is `None`, nothing.
    pub(crate) token: Option<Account>,
    /// What callers have to know who reset keys, where others have to know the token.
    pub(crate) change: Option<Account>,
    pub(crate) guard: Guard,
}

/// Said to whom there is no room for, before anything was asked.
pub(crate) const TOO_MANY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\n\
    retry-after: 1\r\nconnection: close\r\ncontent-length: 107\r\n\r\n\
    {\"title\":\"Service Unavailable\",\"status\":503,\"detail\":\"too many connections; close one, or come back later\"}";

impl<C> Service<C> {
    /// A service for everybody.
    pub fn new(engine: Arc<Engine<C>>) -> Self {
        Service { engine, token: None, change: None, guard: Guard::default() }
    }

    /// The same, for those who know this token.
    #[must_use]
    pub fn token(self, token: &str) -> Self {
        Service { token: Some(Account::password(token)), ..self }
    }

    /// The same, and those who know this one may reset keys, too.
    #[must_use]
    pub fn change_token(self, token: &str) -> Self {
        Service { change: Some(Account::password(token)), ..self }
    }

    /// The same, for requests that a web page cannot have sent, where there is no token.
    #[must_use]
    pub(crate) fn guard(self, guard: Guard) -> Self {
        Service { guard, ..self }
    }
}

impl<C> fmt::Debug for Service<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").field("engine", &self.engine).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_is_said_to_whom_there_is_no_room_for_is_as_long_as_it_says() {
        let said = std::str::from_utf8(super::TOO_MANY).expect("text");
        let (head, body) = said.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.contains(&format!("content-length: {}", body.len())), "{}", body.len());
    }
}
