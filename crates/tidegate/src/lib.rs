//! # Tidegate
//!
//! Decides who may pass: 10 a second, 5,000 a day, for one program or for each of millions of keys. Ask before you do
//! something; the [`Decision`] says whether you may, and if not, how long to wait, to the microsecond.
//!
//! ```
//! use std::time::Duration;
//! use tidegate::{KeyedLimiter, ManualClock, Outcome, Quota};
//!
//! const API: Quota = Quota::per_second(10).burst(20); // a mistake here does not compile
//!
//! // In a program: KeyedLimiter::<String>::new(API). Here time stands still until we move it.
//! let clock = ManualClock::new();
//! let limiter = KeyedLimiter::<String>::new(API).with_clock(clock.clone());
//!
//! let first = limiter.check("alice"); // looked up by &str; no key is stored, nothing is allocated
//! assert!(first.is_allowed());
//! assert_eq!(first.remaining(), 19);
//!
//! assert!(limiter.cost(19).check("alice").is_allowed()); // the burst is used up
//!
//! match limiter.check("alice").outcome {
//!     Outcome::Allowed | Outcome::AllowedAfter(_) => unreachable!("nothing is left"),
//!     Outcome::RetryAfter(wait) => assert_eq!(wait.duration(), Duration::from_millis(100)),
//!     Outcome::Busy => unreachable!("a rate, not a number of permits"),
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
//! # A map of the types
//!
//! | you need | it is |
//! |---|---|
//! | one limit for the whole program | [`Limiter`] |
//! | a limit for each user, address, API key | [`KeyedLimiter`] |
//! | to wait instead of being refused | `acquire` and its kin on both, [`WaitRefused`]; [`LimiterReservation`], [`KeyedReservation`] |
//! | to wait one's turn at an even pace | [`Pacer`] with its [`Reservation`]; [`Bursty`] catches up, [`WarmUp`] starts cold |
//! | so much in so long, and so much at once | [`Quota`], `"100/s burst 20"` |
//! | an even pace with some slack | [`TokenBucket`], the default; also [`Gcra`], [`LeakyMeter`] |
//! | a burst spread out, one after the other | [`LeakyQueue`]; [`NginxQueue`] with nginx's rounding |
//! | a quota that comes with the call, for plans | [`PerCallBucket`] and [`KeyedLimiter::quota`]; for an algorithm of your own, [`KeyedLimiter::by`] |
//! | tokens in lots, by the clock | [`SteppedBucket`] |
//! | a count per minute, hour, day | [`FixedWindow`] |
//! | never more than the limit in any period | [`SlidingWindow`] with [`Cells`], [`SlidingLog`] |
//! | at most so many at work at once | [`ConcurrencyLimiter`], [`KeyedConcurrencyLimiter`]; [`Permit`], [`Refused`] |
//! | several limits on one key, all or nothing | a tuple, an array or a boxed slice of them, as in [`Limiter::with`] |
//! | limits on several keys, all or nothing | [`Policy`] with its [`Part`]s and [`Key`]s; [`Admission`], [`Permits`]; [`NotAdmitted`] for who waited |
//! | a limit on a function | `#[rate_limit("5/s", key = user)]`, with the feature `macros`; the module `attribute` |
//! | whatever can answer | [`Gate`], and its [`Answer`]; [`WaitingGate`] for who would wait |
//! | limits in front of a router or a client | the modules `http` and `tower`, with the features of these names |
//! | a limit read from a file | [`Rule`] |
//! | the answer | [`Decision`] and its [`Outcome`]; [`Denied`] for `?`; [`Detailed`] for each rule |
//! | the time | [`SteadyClock`], the default; [`ManualClock`] and [`SettableClock`] in tests; [`Clock`] for your own |
//! | to wait by it | [`Park`] for threads, [`Sleep`] for tasks |
//! | more keys than there is memory for | [`KeyedLimiter::max_keys`], [`OnFull`] |
//! | to see what is decided | [`Observer`], [`KeyedLimiter::stats`] with [`Stats`] and [`SketchStats`] |
//! | to keep the state yourself | [`Algorithm`] or [`Pacing`] over [`Words`] |
//!
//! # The verbs
//!
//! `check` decides and charges. `peek` decides and charges nothing. `take` charges as much as there is, `force` charges whether or not
//! it fits, `refund` gives back, `reset` forgets. None of these ever waits. A cost other than 1 is said first:
//! `limiter.cost(5).check()`.
//!
//! `acquire` waits in a task and `acquire_blocking` blocks the thread, each also with `_timeout` and `_until`; a wait that
//! cannot suffice is refused at once. `reserve` promises a later instant and does not wait. A [`Policy`] has the same but
//! for `reserve`. A [`Pacer`] has the same, and
//! `try_acquire` and `try_acquire_timeout`, which tell how long to wait. So have permits: `try_acquire` never waits,
//! `acquire` waits in a task, `acquire_blocking` blocks the thread, and each of the two can be given a time-out. Clones
//! share the state: a clone is another handle on the same limit, never a second limit.
//!
//! # Features
//!
//! `tokio`, off by default: waits for a rate and time-outs for tasks on the steady clock, and `TokioClock`, which reads
//! tokio's time so that tests on a paused runtime drive limiters.
//!
//! `macros`, off by default: the attribute `#[rate_limit(…)]`, and the module `attribute`, which it calls.
//!
//! `http` and `tower`, off by default: keys and answers for HTTP, and layers for whatever speaks tower, which are axum,
//! tonic and hyper.
//!
//! # What it does not do
//!
//! It shares nothing between processes, which `tidegate-redis` does, and it forgets when the process ends.
//! [`_documentation`] says why things are as they are, and what is not promised.

#[cfg(feature = "macros")]
pub mod attribute;
#[cfg(doctest)]
mod book;
mod clock;
mod concurrency;
mod fingerprint;
mod gate;
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
mod reservation;
mod state_cell;
mod sync;
mod table;
#[cfg(feature = "tower")]
pub mod tower;
mod versioned;
mod wait;

#[cfg(feature = "tokio")]
pub use clock::TokioClock;
pub use clock::{Clock, ManualClock, ManualSleep, SettableClock, SteadyClock};
pub use concurrency::{
    ConcurrencyCost, ConcurrencyLimiter, ConcurrencyStats, Endings, KeyedConcurrencyCost,
    KeyedConcurrencyLimiter, KeyedConcurrencyStats, KeyedPermit, OwnedPermit, Permit, Refused,
};
pub use gate::{
    Admission, Answer, Awaited, BlockingGate, Decided, Gate, InvalidRequest, Key, Part, Permits, Remaining,
    RemotePermit, WaitingGate, validate,
};
pub use keyed::{KeyedCost, KeyedLimiter, KeyedPlan, KeyedReservation};
pub use limiter::{Limiter, LimiterCost, LimiterReservation};
pub use observer::Observer;
pub use operation::Detailed;
pub use pacer::{Pacer, Reservation};
pub use policy::{InvalidPolicy, NotAdmitted, Policy, PolicyBuilder};
pub use reservation::WaitRefused;
pub use table::{OnFull, SketchStats, Stats};
pub use tidegate_core::*;
#[cfg(feature = "macros")]
pub use tidegate_macros::rate_limit;
pub use wait::{Park, Sleep};

/// Why Tidegate is built like this: questions and answers.
#[doc = include_str!("../DESIGN.md")]
pub mod _documentation {}
