//! # Tidegate

mod clock;
mod fingerprint;
mod hold;
mod keyed;
mod limiter;
#[cfg(all(test, loom))]
mod loom;
mod observer;
mod regime;
mod shared;
mod sync;
mod table;
mod verb;

pub use clock::{Clock, ManualClock, SettableClock, SteadyClock};
pub use keyed::{KeyedCost, KeyedLimiter};
pub use limiter::{Limiter, LimiterCost};
pub use observer::Observer;
pub use table::Stats;
pub use tidegate_core::*;
pub use verb::Detailed;
