//! # Limits shared by many machines
//!
//! The same rules, requests and decisions as in memory, with the states in Redis or Valkey. A request is one round trip to one
//! script, which decides by Redis's own clock, charges all rules or none, and answers with the whole decision.
//!
//! | room | what is in it |
//! |---|---|
//! | `script.lua` | every algorithm, as the core has them |
//! | `wire` | what is said to the script and what it answers; `WIRE.md` has it in words |
//! | `adhoc`, `adhoc.lua` | [`AdhocLimit`]: limits that come with the call |
//! | `keys` | how the strings in Redis are named |
//! | `gate` | [`RedisGate`]: deadline, bound, breaker around one round trip |
//! | `build` | [`Builder`], and what can be wrong with it |
//! | `pipe`, `reply` | many requests on one connection, and where an answer ends |
//! | `connection`, `server` | connections that heal, and what is at the other end |
//! | `breaker`, `watch`, `health` | not asking who does not answer; seeing that limits are enforced |
//! | `outage`, `local` | [`OnOutage`]: decisions without Redis |
//! | `lease` | [`Leased`]: many decisions for one round trip |
//! | `places` | permits that are held here and counted there |
//! | `cross_slot` | several keys in a cluster |
//! | `wait`, `line` | waiting, first come, first served |

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
mod server;
mod wait;
mod wait_queue;
mod wire;

pub use adhoc::{ADHOC_SCRIPT, AdhocLimit, Owed};
pub use build::{Builder, ConnectError, InvalidGate};
pub use error::Error;
pub use gate::RedisGate;
pub use health::{Decisions, Fallbacks, Health};
pub use lease::{CannotLease, Granted, Lease, LeaseStats, Leased, Receipt};
pub use outage::OnOutage;
pub use wire::SCRIPT;
