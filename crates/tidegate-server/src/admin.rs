//! # For those who look after the service
//!
//! By HTTP with JSON, at a listener of its own that lets nobody in but this machine, unless there is a token. It never
//! listens elsewhere without one. `docs/operations.md` has every field.
//!
//! ```text
//!   GET  /admin/rules                                          the rules in force, and what they limit
//!   POST /admin/inspect   {"rule": "user", "key": "alice"}     what is left of each limit; whether it is blocked
//!   POST /admin/reset     the same                             forgets what the key has used
//!   POST /admin/block     the same, and "for": 600             refuses the key, for so many seconds
//!   POST /admin/unblock   the same                             lets it be asked for again
//!   GET  /admin/blocks                                         who is blocked
//!   GET  /admin/refused                                        who is refused most
//!   POST /admin/reload                                         reads the file again
//!   GET  /metrics
//! ```

mod route;
mod told;

use std::fmt;
use std::sync::Arc;

use tidegate::SteadyClock;
use tidegate::clock::Clock;

use crate::engine::Engine;
use crate::http::Guard;
use crate::log::Log;
use crate::resp::Account;
use crate::rules::Diff;
use crate::serve::{Reloader, Unread};
pub use route::routes;

/// What all connections of administrators share.
pub struct Service<C = SteadyClock> {
    pub(crate) engine: Arc<Engine<C>>,
    /// What callers have to know; if this is `None`, nothing.
    token: Option<Account>,
    guard: Guard,
    /// Reads the file again, if there is one.
    reload: Option<Reload>,
    /// Where it is said what administrators do.
    log: Log,
}

type Reload = Arc<dyn Fn() -> Result<(Diff, Vec<&'static str>), Unread> + Send + Sync>;

impl<C> Service<C> {
    /// A service for everybody who can reach it.
    pub fn new(engine: Arc<Engine<C>>) -> Self {
        Service { engine, token: None, guard: Guard::default(), reload: None, log: Log::Silent }
    }

    /// The same, for those who know this token.
    #[must_use]
    pub fn token(self, token: &str) -> Self {
        Service { token: Some(Account::password(token)), ..self }
    }

    /// The same, for requests that a web page cannot have sent, where there is no token.
    #[must_use]
    pub(crate) fn guard(self, guard: Guard) -> Self {
        Service { guard, ..self }
    }

    /// The same, and what administrators do is said there.
    #[must_use]
    pub fn log(self, log: Log) -> Self {
        Service { log, ..self }
    }

    /// The same, with somebody who reads the file again, and certificates with it.
    #[must_use]
    pub fn reloader(self, reloader: Arc<Reloader<C>>) -> Self
    where
        C: Clock + Clone + Send + Sync + 'static,
    {
        Service { reload: Some(Arc::new(move || reloader.reload_all())), ..self }
    }

    /// Whether nobody is asked who they are.
    pub(crate) fn is_open(&self) -> bool {
        self.token.is_none()
    }
}

impl<C> fmt::Debug for Service<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").field("engine", &self.engine).finish_non_exhaustive()
    }
}
