//! # Requests for a permit
//!
//! The same operations for a limiter with and without keys, written once. The limiters differ in where the slots are
//! found, and in the type of the permit.

use super::{ConcurrencyLimiter, KeyedConcurrencyLimiter, KeyedPermit, Keys, Permit, acquire};
use crate::clock::Clock;
use crate::error::AcquireError;
use crate::request::{Deadline, Request, TaskDeadline};
use crate::wait::Park;

/// Defines the operations of a request for a permit. `$source` finds the slots of a `$request`.
macro_rules! permit_operations {
    ([$($generics:tt)*] $limiter:ty, $permit:ident, $type:ty, $request:ident => $source:expr) => {
        impl<'a, $($generics)*> Request<'a, $limiter> {
            /// Takes a permit if the cost is free and no request waits. Never waits.
            ///
            /// # Errors
            ///
            /// [`AcquireError`] with [`is_busy`](AcquireError::is_busy); with [`is_never`](AcquireError::is_never) if the
            /// cost exceeds the limit; with [`is_closed`](AcquireError::is_closed) if there is no room for another key.
            #[inline]
            pub fn try_acquire(self) -> Result<$type, AcquireError> {
                let $request = &self;
                Ok($permit(acquire::try_acquire($source, self.cost)?))
            }
        }

        impl<'a, $($generics)*, D: Deadline> Request<'a, $limiter, D> {
            /// Waits in the queue, as a task, for a permit. Each key has its own queue.
            ///
            /// Works with every runtime; only a timeout on the steady clock uses the timers of tokio (feature `tokio`).
            ///
            /// # Errors
            ///
            /// [`AcquireError`]: the queue is full, the time is over, there is no room for another key, or the cost
            /// exceeds the limit, now or when the request is first in the queue.
            ///
            /// # Panics
            ///
            /// With a timeout on the steady clock, if it has to wait outside a tokio runtime with timers.
            ///
            /// # Cancel safety
            ///
            /// The future may be dropped at any point: it leaves the queue at once, and if it had just been woken, the
            /// next waiter is woken instead. A new request starts at the end of the queue.
            #[inline]
            pub async fn acquire(self) -> Result<$type, AcquireError>
            where
                D: TaskDeadline<C>,
            {
                let $request = &self;
                Ok($permit(acquire::wait($source, self.cost, &self.limiter.clock, self.deadline).await?))
            }

            /// Blocks this thread until there is a permit. For tasks see [`acquire`](Request::acquire).
            ///
            /// ```
            /// use std::time::Duration;
            /// use tidegate::ConcurrencyLimiter;
            ///
            /// let uploads = ConcurrencyLimiter::new(1);
            /// let permit = uploads.request().acquire_blocking()?;
            /// let waited = uploads.request().timeout(Duration::from_millis(1)).acquire_blocking();
            /// assert!(waited.unwrap_err().is_timeout());
            /// # drop(permit);
            /// # Ok::<(), tidegate::AcquireError>(())
            /// ```
            ///
            /// # Errors
            ///
            /// As [`acquire`](Request::acquire).
            pub fn acquire_blocking(self) -> Result<$type, AcquireError>
            where
                C: Park,
            {
                let $request = &self;
                Ok($permit(acquire::wait_blocking($source, self.cost, &self.limiter.clock, self.deadline)?))
            }
        }
    };
}

permit_operations!([C: Clock] ConcurrencyLimiter<C>, Permit, Permit<'a>, request => &request.limiter.slots);
permit_operations!(
    [K: ?Sized, C: Clock] KeyedConcurrencyLimiter<K, C>, KeyedPermit, KeyedPermit,
    request => Keys::guard(&request.limiter.keys, request.key.fingerprint)?
);
