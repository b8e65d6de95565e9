//! # Timer for delayed requests
//!
//! A rule that spaces requests allows some of them only after a wait. The wait needs a clock that tasks can sleep on.
//! Its type is erased here, so that `Limits` need no type parameter for it.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::wait::Sleep;
use tidegate_core::Micros;

pub(crate) type Sleeping = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A clock that tells the time and that tasks can sleep on.
pub(crate) trait Timer: Send + Sync {
    #[cfg(feature = "tower")]
    fn now(&self) -> Micros;
    fn sleep(&self, time: Duration) -> Sleeping;
}

impl<C> Timer for C
where
    C: Sleep + Send + Sync,
    C::Sleeping: 'static,
{
    #[cfg(feature = "tower")]
    fn now(&self) -> Micros {
        Clock::now(self)
    }

    fn sleep(&self, time: Duration) -> Sleeping {
        let until = Clock::now(self).plus(Micros::from(time).get());
        Box::pin(self.sleep_until(until))
    }
}

impl dyn Timer {
    /// The steady clock, with the feature `tokio`. Without it tasks cannot sleep on that clock.
    pub(crate) fn default_timer() -> Option<Arc<dyn Timer>> {
        #[cfg(feature = "tokio")]
        return Some(Arc::new(crate::clock::SteadyClock::new()));
        #[cfg(not(feature = "tokio"))]
        return None;
    }
}
