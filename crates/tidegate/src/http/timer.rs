//! # A clock to sleep by
//!
//! Some are let pass only after a while, by a rule that spreads them. Any clock that tasks can wait by will do; its
//! type is left out here, as limits are one type.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::wait::Sleep;
use tidegate_core::Micros;

pub(crate) type Sleeping = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A clock that tells the time and can be slept by.
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
    /// The steady clock, where it can be slept by.
    pub(crate) fn usual() -> Option<Arc<dyn Timer>> {
        #[cfg(feature = "tokio")]
        return Some(Arc::new(crate::clock::SteadyClock::new()));
        #[cfg(not(feature = "tokio"))]
        return None;
    }
}
