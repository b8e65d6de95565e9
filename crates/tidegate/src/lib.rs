//! # Tidegate
//!
//! Rate, concurrency and bandwidth limits that are never exceeded: 10 per second, 5,000 per day, for one program or for
//! each of millions of keys. The [`Decision`] says whether a request may pass, and if not, how long to wait, to the
//! microsecond.
//!
//! ```
//! use std::time::Duration;
//! use tidegate::{KeyedLimiter, ManualClock, Outcome, Quota};
//!
//! const API: Quota = Quota::per_second(10).burst(20); // a mistake here does not compile
//!
//! // In a program: KeyedLimiter::<String>::new(API). Here time stands still until it is moved.
//! let clock = ManualClock::new();
//! let limiter = KeyedLimiter::<String>::builder(API).clock(clock.clone()).build();
//!
//! let first = limiter.check("alice"); // looked up by &str; no key is stored, nothing is allocated
//! assert!(first.is_allowed());
//! assert_eq!(first.remaining(), 19);
//!
//! assert!(limiter.request("alice").cost(19).check().is_allowed()); // the burst is used up
//!
//! match limiter.check("alice").outcome {
//!     Outcome::Allowed | Outcome::AllowedAfter(_) => unreachable!("nothing is left"),
//!     Outcome::RetryAfter(wait) => assert_eq!(wait.duration(), Duration::from_millis(100)),
//!     Outcome::Busy => unreachable!("only concurrency limits are busy"),
//!     Outcome::Never => unreachable!("a cost of 1 fits into a burst of 20"),
//! }
//! assert!(limiter.check("bob").is_allowed()); // another key, another bucket
//!
//! clock.advance(Duration::from_micros(99_999));
//! assert!(!limiter.check("alice").is_allowed());
//! clock.advance(Duration::from_micros(1));
//! assert!(limiter.check("alice").is_allowed()); // exactly when it was promised
//! ```
//!
//! # Which type for which limit
//!
//! | you need | use |
//! |---|---|
//! | one limit for the whole program | [`Limiter`] |
//! | a limit for each user, address, API key | [`KeyedLimiter`] |
//! | at most so many operations in progress | [`ConcurrencyLimiter`], [`KeyedConcurrencyLimiter`] with a [`Permit`] |
//! | several limits, all or nothing | [`Policy`]; on a single key also a tuple of algorithms, [`Limiter::with`] |
//! | an even pace for outgoing calls | [`Pacer`] |
//! | limits shared by many machines | the crate `tidegate-redis` |
//! | limits in front of a router or a client | the modules `http` and `tower`, with the features of these names |
//! | a limit on a function | `#[rate_limit("5/s", key = user)]`, with the feature `macros`; the module `attribute` |
//! | a limit from a file | [`Rule`] |
//! | another algorithm than the token bucket | the module [`algorithm`] |
//! | another quota for each request | [`algorithm::PerCallBucket`] with [`Request::quota`] |
//! | time in tests | [`ManualClock`], and the module [`clock`] |
//! | counters for monitoring | the module [`stats`] |
//! | to write middleware | the module [`gate`] |
//!
//! # Requests
//!
//! `check(key)` decides and charges a cost of 1, and never waits. `acquire(key)` waits for it, as a task. Everything else
//! begins with `request(key)` and has the same words on every limiter, pacer and policy:
//!
//! | | |
//! |---|---|
//! | `.cost(5)` | what the request takes; 1 unless set |
//! | `.timeout(d)`, `.deadline(t)` | how long it may wait; refused at once if that cannot suffice |
//! | `.check()` | decides and charges, never waits |
//! | `.acquire().await`, `.acquire_blocking()` | waits, first come, first served |
//! | `.reserve()` | charges now for a later instant, and does not wait |
//! | `.try_acquire()` | as `check`, where a permit comes with it |
//! | `.peek()` | decides and charges nothing |
//! | `.take()`, `.force()`, `.refund()`, `.reset()` | charges what is left; charges in any case; gives back; forgets |
//!
//! A refusal is a value, a [`Decision`]. A wait that ends without success is an [`AcquireError`]. Clones share the state:
//! a clone is another handle on the same limit, never a second limit.
//!
//! # Features
//!
//! All are off by default. `tokio`: timers for tasks on the steady clock, and `TokioClock`, which reads tokio's time so
//! that tests on a paused runtime drive limiters. `macros`: the attribute `#[rate_limit(…)]`. `http` and `tower`: keys
//! and responses for HTTP, and layers for axum, tonic and hyper. `stream`: an adapter that paces the items of a stream.
//!
//! # What it does not do
//!
//! It shares nothing between processes, which `tidegate-redis` does, and it forgets when the process ends.
//! [`_documentation`] says why things are as they are, and what is not promised.

#[cfg(feature = "macros")]
pub mod attribute;
#[cfg(doctest)]
mod book;
pub mod clock;
mod concurrency;
mod error;
mod fingerprint;
pub mod gate;
#[cfg(feature = "http")]
pub mod http;
mod keyed;
mod limiter;
mod lock_bit;
#[cfg(all(test, loom))]
mod loom;
mod observer;
mod operation;
mod pacer;
mod policy;
mod request;
mod reservation;
mod state_cell;
#[cfg(feature = "stream")]
pub mod stream;
mod sync;
mod table;
#[cfg(feature = "tower")]
pub mod tower;
mod versioned;
mod wait;

#[cfg(feature = "tokio")]
pub use clock::TokioClock;
pub use clock::{ManualClock, SteadyClock};
pub use concurrency::{ConcurrencyLimiter, KeyedConcurrencyLimiter, KeyedPermit, OwnedPermit, Permit};
pub use error::AcquireError;
pub use gate::{Admission, InvalidRequest, Permits};
pub use keyed::KeyedLimiter;
pub use limiter::Limiter;
pub use pacer::Pacer;
pub use policy::{InvalidPolicy, Policy};
pub use request::Request;
pub use reservation::Reservation;
pub use table::OnFull;
pub use tidegate_core::{Decision, Denied, InvalidQuota, Outcome, Quota, Rule, Source, Wait};
#[cfg(feature = "macros")]
pub use tidegate_macros::rate_limit;

/// Algorithms: how a quota is counted. The token bucket is the default.
///
/// [`Limiter::with`] and [`KeyedLimiter::with`] take any of them, and tuples of them; [`Rule`] is any of them, from text.
/// Use the trait [`Algorithm`](algorithm::Algorithm) directly to keep the state yourself.
pub mod algorithm {
    pub use crate::keyed::WrongStateSize;
    pub use crate::operation::Detailed;
    pub use tidegate_core::{
        Algorithm, Bursty, Cells, EncodedRule, FixedWindow, Gcra, Keep, LeakyMeter, LeakyQueue, NginxQueue,
        Pacing, PerCallBucket, Reserved, SlidingLog, SlidingWindow, SteppedBucket, Taken, TokenBucket,
        WarmUp, Words, WordsMut,
    };
}

/// Builders, made by `builder()` of the type that they build.
pub mod builder {
    pub use crate::concurrency::{ConcurrencyLimiterBuilder, KeyedConcurrencyLimiterBuilder};
    pub use crate::keyed::KeyedLimiterBuilder;
    pub use crate::limiter::LimiterBuilder;
    pub use crate::pacer::PacerBuilder;
    pub use crate::policy::PolicyBuilder;
}

/// Counters and observers, for monitoring.
pub mod stats {
    pub use crate::concurrency::{ConcurrencyStats, Endings, KeyedConcurrencyStats};
    pub use crate::observer::{Charge, Observer};
    pub use crate::table::{SketchStats, Stats};
}

/// Why Tidegate is built like this: questions and answers.
#[doc = include_str!("../DESIGN.md")]
pub mod _documentation {}
