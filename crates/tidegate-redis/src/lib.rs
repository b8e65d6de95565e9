//! # Limits shared by many machines
//!
//! The same rules, requests and decisions as in memory, with the states in Redis or Valkey. A request is one round trip to one
//! script, which decides by Redis's own clock, charges all rules or none, and answers with the whole decision.
//!
//! | room | what is in it |
//! |---|---|
//! | `script.lua` | every algorithm, as the core has them |
//! | `wire` | what is said to the script and what it answers; `WIRE.md` has it in words |
//! | `brought`, `brought.lua` | [`Brought`]: limits that come with the call |
//! | `keys` | how the strings in Redis are named |
//! | `gate` | [`RedisGate`]: deadline, bound, breaker around one round trip |
//! | `build` | [`Builder`], and what can be wrong with it |
//! | `pipe`, `reply` | many requests on one connection, and where an answer ends |
//! | `link`, `server` | connections that heal, and what is at the other end |
//! | `breaker`, `watch`, `health` | not asking who does not answer; seeing that limits are enforced |
//! | `lost`, `local` | [`WhenLost`]: decisions without Redis |
//! | `lease` | [`Leased`]: many decisions for one round trip |
//! | `places` | permits that are held here and counted there |
//! | `spread` | several keys in a cluster |
//! | `wait`, `line` | waiting, first come, first served |

#[cfg(doctest)]
mod book {
    #[doc = include_str!("../../../docs/redis.md")]
    struct Redis;
    #[doc = include_str!("../../../docs/leases.md")]
    struct Leases;
}
mod breaker;
mod brought;
mod build;
mod gate;
mod health;
mod keys;
mod lease;
mod line;
mod link;
mod local;
mod lost;
mod pipe;
mod places;
mod reply;
mod server;
mod spread;
mod trouble;
mod wait;
mod watch;
mod wire;

pub use brought::{Brought, Owed, SCRIPT_OF_BROUGHT};
pub use build::{Builder, ConnectError, InvalidGate};
pub use gate::RedisGate;
pub use health::{Decisions, Fallbacks, Health};
pub use lease::{CannotLease, Granted, Lease, LeaseStats, Leased, Receipt};
pub use lost::WhenLost;
pub use trouble::Trouble;
pub use wire::SCRIPT;
