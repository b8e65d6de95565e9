//! # Rate limits shared by many machines
//!
//! The same rules, requests and decisions as in memory, with the states in Redis or Valkey. A request is one round trip
//! to one script, which uses the clock of Redis, charges all rules or none, and returns the whole decision.
//!
//! | module | contents |
//! |---|---|
//! | `script.lua` | every algorithm, as in the core crate |
//! | `wire` | calls to the script and its replies; `WIRE.md` describes them |
//! | `adhoc`, `adhoc.lua` | [`AdhocLimit`]: limits that come with the call |
//! | `keys` | names of the strings in Redis |
//! | `gate` | [`RedisGate`]: deadline, bound on requests in flight and breaker around one round trip |
//! | `request` | [`RedisLimiter`], [`RedisRequest`]: requests by the names of rules |
//! | `build` | [`Builder`] and its validation |
//! | `pipeline`, `reply` | many requests on one connection, and parsing of replies |
//! | `connection`, `server` | reconnecting connections, and inspection of the server |
//! | `breaker`, `prober`, `health` | stop sending requests to a failing server; check that limits are enforced |
//! | `outage`, `local` | [`OnOutage`]: decisions without Redis |
//! | `lease` | [`Leased`]: many decisions per round trip |
//! | `permits` | permits held in this process and counted in Redis |
//! | `cross_slot` | requests over several keys in a cluster |
//! | `wait`, `wait_queue` | waiting, first come, first served |

#[cfg(doctest)]
mod book {
    #[doc = include_str!("../../../docs/redis.md")]
    struct Redis;
    #[doc = include_str!("../../../docs/leases.md")]
    struct Leases;
}
mod adhoc;
mod breaker;
mod build;
mod connection;
mod cross_slot;
mod error;
mod gate;
mod health;
mod keys;
mod lease;
mod local;
mod outage;
mod permits;
mod pipeline;
mod prober;
mod reply;
mod request;
mod server;
mod wait;
mod wait_queue;
mod wire;

pub use adhoc::{ADHOC_SCRIPT, AdhocDecision, AdhocLimit};
pub use build::{Builder, ConnectError, InvalidGate};
pub use error::Error;
pub use gate::RedisGate;
pub use health::{Decisions, Fallbacks, Health};
pub use lease::{CannotLease, Granted, Lease, LeaseStats, Leased, Receipt};
pub use outage::OnOutage;
pub use request::{KeyRequest, RedisLimiter, RedisRequest};
pub use wire::SCRIPT;
