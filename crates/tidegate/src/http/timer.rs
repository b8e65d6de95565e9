//! # Timer for delayed requests
//!
//! A rule that spaces requests allows some of them only after a wait. Any clock that tasks can sleep on will do. Its
//! type is erased here, because limits are one type.

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
    /// The steady clock, if tasks can sleep on it: with the feature `tokio`.
    pub(crate) fn usual() -> Option<Arc<dyn Timer>> {
        #[cfg(feature = "tokio")]
        return Some(Arc::new(crate::clock::SteadyClock::new()));
        #[cfg(not(feature = "tokio"))]
        return None;
    }
}
