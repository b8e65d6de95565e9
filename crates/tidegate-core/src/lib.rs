//! # Rate-limiting algorithms as pure functions
//!
//! Nothing in this crate reads a clock, takes a lock or depends on another crate. An [`Algorithm`]
//! takes a few words of state, an instant and a cost, and returns a [`Decision`].
//!
//! Most programs want the `tidegate` crate, which adds clocks, threads and a store for millions of keys. Use this crate
//! to store the state elsewhere, or to verify an implementation: every other implementation of these algorithms, in
//! memory or in Redis, is checked against it.
//!
//! ```
//! use tidegate_core::{Algorithm, Micros, Outcome, Quota, TokenBucket};
//!
//! const QUOTA: Quota = Quota::per_second(10).burst(3);
//! let bucket = TokenBucket::new(QUOTA);
//! let mut state = [0; 3]; // all zero: a key never seen
//!
//! let decision = bucket.decide(&mut state, Micros::new(0), 3);
//! assert_eq!(decision.outcome, Outcome::Allowed);
//! assert_eq!(decision.remaining(), 0);
//! ```
//!
//! | algorithm | most that passes in any time span Δ | words of state |
//! |---|---|---|
//! | [`TokenBucket`] | burst + ⌊rate·Δ⌋ | 3; 1 on a monotonic clock |
//! | [`PerCallBucket`] | as the token bucket, with the quota of each call | 6; 5 on a monotonic clock |
//! | [`LeakyQueue`] | 1 + ⌊rate·Δ⌋ leave the queue | 3; 1 on a monotonic clock |
//! | [`NginxQueue`] | as the leaky queue, rounded as nginx does | 2 |
//! | [`SteppedBucket`] | burst + limit·(⌊Δ/period⌋ + 1) | 1; 2 for periods below 9 s |
//! | [`FixedWindow`] | limit·(⌈Δ/period⌉ + 1) | 1, rarely 2 |
//! | [`SlidingLog`] | limit in any period | 1 + limit |
//! | [`SlidingWindow`] | limit in any period, if strict | about cells ÷ 2 + 2 |
//!
//! [`Pacing`] delays every request and refuses none, so it is not an [`Algorithm`]. Its state takes 2 or 3 words.

#![no_std]

// Only for policies with a length known only at run time: a boxed slice of rules.
extern crate alloc;

mod algorithm;
mod clock_shift;
mod counter;
mod decision;
mod divisor;
mod encoded_rule;
mod fixed_window;
mod invalid_quota;
mod keep;
mod leaky_queue;
mod nginx_queue;
mod pacing;
mod per_call_bucket;
mod policy;
mod quota;
mod rule;
mod sliding_log;
mod sliding_window;
mod stepped_bucket;
mod time;
mod token_bucket;
mod words;

pub use algorithm::{Algorithm, Taken};
pub use decision::{Decision, Denied, Outcome, RuleId, Source, Wait};
pub use encoded_rule::EncodedRule;
pub use fixed_window::FixedWindow;
pub use invalid_quota::InvalidQuota;
pub use keep::Keep;
pub use leaky_queue::LeakyQueue;
pub use nginx_queue::NginxQueue;
pub use pacing::{Bursty, Pacing, Reserved, WarmUp};
pub use per_call_bucket::PerCallBucket;
pub use quota::Quota;
pub use rule::Rule;
pub use sliding_log::SlidingLog;
pub use sliding_window::{Cells, SlidingWindow};
pub use stepped_bucket::SteppedBucket;
pub use time::{ClockKind, Micros};
pub use token_bucket::{Gcra, LeakyMeter, TokenBucket};
pub use words::{Words, WordsMut};
