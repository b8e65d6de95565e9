//! # Pacer: an even pace for outgoing calls
//!
//! A [`Pacer`] is for calls to other services: it refuses no request, tells each how long to wait, and the calls leave
//! at an even pace. All clones and all threads share one queue. To *refuse* what exceeds a limit, see
//! [`Limiter`](crate::Limiter); the arithmetic of pacing is in [`Pacing`].
//!
//! ```text
//!   reserve ──► Reservation: wait so long ──┬── its instant comes ──► it is used; dropping it changes nothing
//!                                           ├── cancelled, or dropped before ──► refunded, if it is the last one
//!                                           └── keep ──► counts, whatever happens to the handle
//! ```
//!
//! The queue is two or three words and the setting they are read by, under one lock: taking it is a compare-and-swap,
//! the work under it a few additions, and no thread sleeps while it holds the lock. A setting that is replaced leaves
//! nothing behind, so a controller may change the rate as often as it likes.

mod request;

use std::fmt;
use std::sync::{Arc, PoisonError};

use crate::clock::{Clock, SteadyClock};
use crate::error::AcquireError;
use crate::request::{Request, Target};
use crate::reservation::Reserve;
use crate::sync::{Mutex, MutexGuard};
use crate::wait::Sleep;
use tidegate_core::{ClockKind, Decision, InvalidQuota, Micros, Pacing, Quota, Reserved, Wait};

/// Lets every request pass, one after the other at an even pace, and tells each how long to wait.
///
/// ```
/// use std::time::Duration;
/// use tidegate::{ManualClock, Pacer, Quota};
///
/// // In a program: Pacer::new(Quota::per_second(5)). Here time stands still until it is moved.
/// let clock = ManualClock::new();
/// let pacer = Pacer::builder(Quota::per_second(5)).clock(clock.clone()).build();
///
/// assert!(pacer.check().is_allowed());
/// let reservation = pacer.request().timeout(Duration::from_secs(1)).reserve()?; // charged; now wait
/// assert_eq!(reservation.wait(), Duration::from_millis(200));
///
/// let refused = pacer.check(); // charges nothing
/// assert_eq!(refused.retry_after().unwrap(), Duration::from_millis(400));
/// # reservation.keep();
/// # Ok::<(), tidegate::AcquireError>(())
/// ```
///
/// The cost of a request delays the *next* request, not the request itself: see [`Pacing`].
///
/// After a pause, requests may catch up with up to one second of it.
/// [`Bursty::max_burst`](crate::algorithm::Bursty::max_burst) sets another length, and
/// [`WarmUp`](crate::algorithm::WarmUp) makes the pace start cold instead: see [`Pacer::with`].
pub struct Pacer<C = SteadyClock> {
    queue: Arc<Aligned>,
    clock: C,
}

/// Builds a [`Pacer`]. Made by [`Pacer::builder`].
#[derive(Clone, Copy, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct PacerBuilder<C = SteadyClock> {
    pacing: Pacing,
    clock: C,
}

/// A charge of a pacer that can be refunded.
#[derive(Debug)]
pub struct PacerTicket {
    reserved: Reserved,
    /// How often the rate had changed.
    changes: u64,
}

/// What a charge is for, and until when the request may wait.
#[derive(Clone, Copy)]
enum Purpose {
    /// The request does not wait.
    Check,
    /// The request waits, and cannot be refunded once it has passed.
    Acquire(Micros),
    /// The request can be refunded.
    Reserve(Micros),
}

/// The result of a charge.
struct Charged {
    /// The instant of the request.
    now: Micros,
    limit: u64,
    /// `None` if the request passed and cannot be refunded; the wait if it would be too long.
    ticket: Result<Option<PacerTicket>, Wait>,
}

/// A cache line of its own, so that threads of one pacer do not slow down neighbouring data.
#[derive(Debug)]
#[repr(align(128))]
struct Aligned(Mutex<Queue>);

#[derive(Debug)]
struct Queue {
    pacing: Pacing,
    state: [u64; 3],
    changes: u64,
}

impl Pacer {
    /// Creates a pacer at the pace of `quota`, on the steady clock. The burst of the quota plays no part.
    #[must_use]
    pub fn new(quota: Quota) -> Self {
        Pacer::builder(quota).build()
    }

    /// Creates a pacer with any pacing, on the steady clock.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::algorithm::{Bursty, Pacing, WarmUp};
    /// use tidegate::{Pacer, Quota};
    ///
    /// let bytes = Quota::per_second(10_000_000);
    /// let uploads = Pacer::with(Bursty::new(bytes).max_burst(Duration::from_millis(100)));
    /// let cold_start = Pacer::with(WarmUp::new(Quota::per_second(50), Duration::from_secs(10)).cold_factor(4));
    /// let from_a_file = Pacer::with("50/s warm_up 10s cold_factor 2.5".parse::<Pacing>()?);
    /// # Ok::<(), tidegate::InvalidQuota>(())
    /// ```
    #[must_use]
    pub fn with(pacing: impl Into<Pacing>) -> Self {
        Pacer::builder_with(pacing).build()
    }

    /// Starts to build a pacer at the pace of `quota`, for another clock.
    pub fn builder(quota: Quota) -> PacerBuilder {
        Pacer::builder_with(Pacing::new(quota))
    }

    /// Starts to build a pacer with any pacing, for another clock.
    pub fn builder_with(pacing: impl Into<Pacing>) -> PacerBuilder {
        PacerBuilder { pacing: pacing.into(), clock: SteadyClock::new() }
    }
}

impl<C: Clock> PacerBuilder<C> {
    /// Uses another clock.
    ///
    /// The clock must be [monotonic](Clock::KIND), because a promise is an instant: if the clock were set back by an
    /// hour, every request would wait an hour longer. A pacer on another clock does not compile:
    ///
    /// ```compile_fail
    /// use tidegate::{Pacer, Quota, clock::SettableClock};
    /// let pacer = Pacer::builder(Quota::per_second(5)).clock(SettableClock::new()).build();
    /// ```
    pub fn clock<D: Clock>(self, clock: D) -> PacerBuilder<D> {
        PacerBuilder { pacing: self.pacing, clock }
    }

    /// Builds the pacer.
    #[must_use]
    pub fn build(self) -> Pacer<C> {
        const { assert!(matches!(C::KIND, ClockKind::Monotonic), "a pacer requires a monotonic clock") };
        let PacerBuilder { pacing, clock } = self;
        let mut state = [0; 3];
        pacing.start(&mut state, clock.now());
        let queue = Queue { pacing, state, changes: 0 };
        Pacer { queue: Arc::new(Aligned(Mutex::new(queue))), clock }
    }
}

impl<C: Clock> Pacer<C> {
    /// Lets a request of cost 1 pass if it need not wait; otherwise refuses it and charges nothing.
    #[inline]
    #[must_use]
    pub fn check(&self) -> Decision {
        self.request().check()
    }

    /// Waits, as a task, until a request of cost 1 may pass. See [`Request::acquire`].
    ///
    /// # Errors
    ///
    /// [`AcquireError`] if the wait would end after the end of the time line.
    ///
    /// # Panics
    ///
    /// On the steady clock, if it has to wait outside a tokio runtime with timers.
    #[inline]
    pub async fn acquire(&self) -> Result<Decision, AcquireError>
    where
        C: Sleep,
    {
        self.request().acquire().await
    }

    /// Begins a request, for everything beyond [`check`](Pacer::check) and [`acquire`](Pacer::acquire).
    #[inline]
    pub fn request(&self) -> Request<'_, Self> {
        Request::new(self, ())
    }

    /// Replaces the rate, for all clones.
    ///
    /// Promised instants are kept; stored idle time and warmth are kept in proportion. Only later requests pay by the
    /// new rate.
    ///
    /// # Errors
    ///
    /// [`InvalidQuota`], with nothing changed, if a warm-up could not be counted exactly at that rate.
    pub fn set_rate(&self, quota: Quota) -> Result<(), InvalidQuota> {
        let mut queue = self.queue();
        let (old, from) = (queue.pacing, queue.state);
        let next = old.with_quota(quota)?;
        next.migrate_from(&old, &from, &mut queue.state);
        queue.pacing = next;
        queue.changes += 1;
        Ok(())
    }

    /// The current rate.
    #[must_use]
    pub fn quota(&self) -> Quota {
        self.queue().pacing.quota()
    }

    /// Charges, however long the wait, and returns from when on to wait.
    pub(crate) fn charge_at(&self, cost: u32) -> (Micros, Result<Wait, Wait>) {
        let now = self.clock.now();
        let queue = &mut *self.queue();
        let reserved = queue.pacing.try_within(&mut queue.state, now, cost.into(), Wait::micros(u64::MAX));
        (now, reserved.map(|reserved| reserved.wait()))
    }

    pub(crate) fn now(&self) -> Micros {
        self.clock.now()
    }

    #[cfg(feature = "stream")]
    pub(crate) fn sleep_until(&self, until: Micros) -> C::Sleeping
    where
        C: Sleep,
    {
        self.clock.sleep_until(until)
    }

    #[inline]
    fn charge(&self, cost: u32, purpose: Purpose) -> Charged {
        // A reading that gets old before the lock is taken does no harm: the wait counts from that reading, too.
        let now = self.clock.now();
        let queue = &mut *self.queue();
        let limit = queue.pacing.quota().max_burst();
        let within = match purpose {
            Purpose::Check => 0,
            Purpose::Acquire(deadline) | Purpose::Reserve(deadline) => deadline.since(now),
        };
        // A reservation that need not wait can still be cancelled, so it needs a ticket.
        let may_pass_now = !matches!(purpose, Purpose::Reserve(_));
        if may_pass_now && queue.pacing.try_now(&mut queue.state, now, cost.into()) {
            return Charged { now, limit, ticket: Ok(None) };
        }
        let reserved = queue.pacing.try_within(&mut queue.state, now, cost.into(), Wait::micros(within));
        let ticket = reserved.map(|reserved| Some(PacerTicket { reserved, changes: queue.changes }));
        Charged { now, limit, ticket }
    }

    fn refund(&self, ticket: PacerTicket) {
        let now = self.clock.now();
        let queue = &mut *self.queue();
        if queue.changes == ticket.changes {
            queue.pacing.cancel(&mut queue.state, now, ticket.reserved);
        }
    }

    #[inline]
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<'a, C> Target<'a> for Pacer<C> {
    type Key = ();
}

impl<C: Clock> Reserve for Pacer<C> {
    type Ticket = PacerTicket;
    type Clock = C;

    fn clock(&self) -> &C {
        &self.clock
    }

    /// Refunds the charge if no later request has reserved after it and the rate has not changed.
    ///
    /// Later requests were promised instants after it, and moving the end of the queue before them would put two
    /// requests where there is room for one.
    fn cancel(&self, ticket: PacerTicket) {
        self.refund(ticket);
    }

    fn keep(&self, _: PacerTicket) {}

    /// Unlike [`cancel`](Reserve::cancel), this cannot know whether the reservation was used at its very instant.
    fn release(&self, ticket: PacerTicket) {
        if self.clock.now() < ticket.reserved.from() {
            self.refund(ticket);
        }
    }
}

impl<C: Clone> Clone for Pacer<C> {
    /// Another handle on the same queue.
    fn clone(&self) -> Self {
        Pacer { queue: self.queue.clone(), clock: self.clock.clone() }
    }
}

impl<C: fmt::Debug> fmt::Debug for Pacer<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pacer").field("queue", &self.queue.0).field("clock", &self.clock).finish()
    }
}
