//! # gRPC, for Envoy
//!
//! `envoy.service.ratelimit.v3`, the service that Envoy's rate limit filters ask, with `grpc.health.v1` and reflection
//! beside it. `docs/envoy.md` shows how to set Envoy up.
//!
//! ```text
//!   domain       "edge"                                          overall_code   OVER_LIMIT
//!   descriptors  user=alice                  ──► check_each ──►  statuses       OK, 3 of 5 left, full in 720 s
//!                path=/login, ip=10.1.2.3                                       OVER_LIMIT, 0 of 5 left, in 12 s
//! ```
//!
//! Each descriptor is a request of its own to the rules, and all of them stand or fall together: if one is over its
//! limit, none is charged. That is where this differs from envoyproxy/ratelimit, which charges all of them whatever
//! comes of it. What a store does that does not answer is said by each rule, and is never an error here.
//!
//! The messages are few and simple, so they are read and written by a few lines of our own: their structs are
//! generated of the `.proto` files by `tools/protos`, and there is nothing to install and no crate for it.

mod arriving;
mod asked;
mod brought;
mod connection;
mod frames;
mod generated;
mod health;
mod limit;
mod message;
mod reflection;
mod reply;
mod route;
mod status;
mod told;
mod unit;
mod wire;

use std::fmt;
use std::sync::Arc;

use tidegate::SteadyClock;
use tidegate::clock::Clock;

use crate::config::Protocol;
use crate::engine::Engine;
use crate::engine::meter::DoorMeter;
use crate::resp::Account;
pub(crate) use connection::serve;
pub use route::METHODS;

/// What all connections share.
pub struct Service<C = SteadyClock> {
    pub(crate) engine: Arc<Engine<C>>,
    /// What callers have to know; if this is `None`, nothing.
    token: Option<Account>,
    /// Whether clients are told in headers what is left.
    headers: Headers,
}

/// Whether clients of Envoy are told in headers what is left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Headers {
    /// They are not, unless Envoy does it by itself.
    #[default]
    None,
    /// `RateLimit-Limit`, `RateLimit-Remaining` and `RateLimit-Reset`; if refused, `Retry-After` too.
    RateLimit,
}

/// Said to whom there is no room for: settings, and at once a farewell (enhance your calm).
pub(crate) const TOO_MANY: &[u8] = b"\0\0\0\x04\0\0\0\0\0\
    \0\0\x1c\x07\0\0\0\0\0\0\0\0\0\0\0\0\x0btoo many connections";

impl<C> Service<C> {
    /// A service for everybody.
    pub fn new(engine: Arc<Engine<C>>) -> Self {
        Service { engine, token: None, headers: Headers::None }
    }

    /// The same, for those who know this token.
    #[must_use]
    pub fn token(self, token: &str) -> Self {
        Service { token: Some(Account::password(token)), ..self }
    }

    /// The same, with these headers.
    #[must_use]
    pub fn headers(self, headers: Headers) -> Self {
        Service { headers, ..self }
    }
}

impl<C: Clock> Service<C> {
    /// What is counted here.
    fn door(&self) -> &DoorMeter {
        self.engine.meter().door(Protocol::Grpc)
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
    fn the_farewell_is_as_long_as_it_says() {
        assert_eq!(super::TOO_MANY.len(), 9 + 9 + 8 + "too many connections".len());
        assert_eq!(super::TOO_MANY[11] as usize, 8 + "too many connections".len());
    }
}
