//! # Manual clock
//!
//! Time is data in a test: it moves when the test moves it. A task or thread that waits for an instant is woken when
//! the clock is moved past it. Nothing sleeps.
//!
//! ```text
//!   alarms   ──●────────●───●──────► t        advance: move the clock first,
//!                  │──────────►│              then wake all waiters it has passed
//!                 now         now'
//! ```
//!
//! The order matters. A waiter that sets an alarm reads the clock under the lock on the alarms. A thread that moves the
//! clock takes that lock afterwards. So an alarm is either seen by the thread that moves the clock, or is not set
//! because its instant has come.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::Clock;
use crate::wait::{Park, Sleep, thread_waker};
use tidegate_core::{ClockKind, Micros};

/// A clock that stands still until it is moved. Clones share the time.
///
/// It is monotonic like the real one, so that limiters behave exactly as in production. A task or a blocked thread that
/// waits on it is woken when it is moved far enough.
///
/// ```
/// use std::time::Duration;
/// use tidegate::ManualClock;
/// use tidegate::clock::Clock;
///
/// let clock = ManualClock::new();
/// let same = clock.clone();
/// clock.advance(Duration::from_millis(100));
/// assert_eq!(same.now().get(), 100_000);
/// ```
#[derive(Clone, Debug, Default)]
pub struct ManualClock {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    micros: AtomicU64,
    alarms: Mutex<Alarms>,
}

/// The wakers by instant. A number distinguishes waiters for the same instant.
#[derive(Debug, Default)]
struct Alarms {
    set: BTreeMap<(Micros, u64), Waker>,
    next: u64,
}

/// Ready when its [`ManualClock`] has reached an instant.
#[derive(Debug)]
#[must_use = "a future does nothing until it is polled"]
pub struct ManualSleep {
    clock: ManualClock,
    until: Micros,
    /// The number of the alarm that is set.
    alarm: Option<u64>,
}

impl ManualClock {
    /// A clock at zero.
    #[must_use]
    pub fn new() -> Self {
        ManualClock::default()
    }

    /// Moves the clock forward, and wakes the waiters that are due.
    pub fn advance(&self, by: Duration) {
        self.advance_to(Micros::from(by).plus(self.now().get()));
    }

    /// Moves the clock forward to an instant; it keeps its time if that has passed.
    pub fn advance_to(&self, to: Micros) {
        self.shared.micros.fetch_max(to.get(), Ordering::SeqCst);
        let due = self.alarms().take_due(to);
        due.into_values().for_each(Waker::wake);
    }

    fn alarms(&self) -> MutexGuard<'_, Alarms> {
        self.shared.alarms.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Clock for ManualClock {
    const KIND: ClockKind = ClockKind::Monotonic;

    #[inline]
    fn now(&self) -> Micros {
        Micros::new(self.shared.micros.load(Ordering::SeqCst))
    }
}

impl Park for ManualClock {
    fn park_until(&self, until: Micros) {
        let waker = thread_waker();
        let mut alarm = self.sleep_until(until);
        if Pin::new(&mut alarm).poll(&mut Context::from_waker(&waker)).is_pending() {
            std::thread::park();
        }
    }
}

impl Sleep for ManualClock {
    type Sleeping = ManualSleep;

    fn sleep_until(&self, until: Micros) -> ManualSleep {
        ManualSleep { clock: self.clone(), until, alarm: None }
    }
}

// === impl Alarms ===

impl Alarms {
    fn set(&mut self, until: Micros, waker: Waker) -> u64 {
        let number = self.next;
        self.next += 1;
        self.set.insert((until, number), waker);
        number
    }

    /// Removes all alarms that are due at `now`.
    fn take_due(&mut self, now: Micros) -> BTreeMap<(Micros, u64), Waker> {
        // Split at the last number of this instant, not at the first of the next: the end of the time line has no next.
        let later = self.set.split_off(&(now, u64::MAX));
        std::mem::replace(&mut self.set, later)
    }
}

// === impl ManualSleep ===

impl ManualSleep {
    /// Removes the alarm. The caller drops the waker, without the lock.
    fn cancel(&mut self) -> Option<Waker> {
        let number = self.alarm.take()?;
        self.clock.alarms().set.remove(&(self.until, number))
    }
}

impl Future for ManualSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        drop(self.cancel());
        let waker = cx.waker().clone();
        let number = {
            let mut alarms = self.clock.alarms();
            if self.clock.now() >= self.until {
                return Poll::Ready(());
            }
            alarms.set(self.until, waker)
        };
        self.alarm = Some(number);
        Poll::Pending
    }
}

impl Drop for ManualSleep {
    fn drop(&mut self) {
        drop(self.cancel());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::{Context, Poll, Wake, Waker};
    use std::time::Duration;

    use super::{Clock, ManualClock, Micros, Sleep};

    #[derive(Default)]
    struct Calls(AtomicU32);

    impl Wake for Calls {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn sleeper_is_woken_exactly_at_its_instant() {
        let (clock, calls) = (ManualClock::new(), Arc::new(Calls::default()));
        let waker = Waker::from(calls.clone());
        let mut cx = Context::from_waker(&waker);
        let mut sleep = pin!(clock.sleep_until(Micros::new(10)));
        assert_eq!(sleep.as_mut().poll(&mut cx), Poll::Pending);
        assert_eq!(sleep.as_mut().poll(&mut cx), Poll::Pending);
        clock.advance(Duration::from_micros(9));
        assert_eq!(calls.0.load(Ordering::Relaxed), 0);
        clock.advance(Duration::from_micros(1));
        assert_eq!(calls.0.load(Ordering::Relaxed), 1, "woken once, however often it was polled");
        assert_eq!(sleep.as_mut().poll(&mut cx), Poll::Ready(()));
    }

    #[test]
    fn dropped_sleep_leaves_no_alarm() {
        let clock = ManualClock::new();
        {
            let mut sleep = pin!(clock.sleep_until(Micros::new(10)));
            assert!(sleep.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            assert_eq!(clock.alarms().set.len(), 1);
        }
        assert_eq!(clock.alarms().set.len(), 0);
        assert_eq!(clock.now(), Micros::ZERO);
    }

    #[test]
    fn sleeper_is_woken_at_the_end_of_the_clock() {
        let (clock, calls) = (ManualClock::new(), Arc::new(Calls::default()));
        let waker = Waker::from(calls.clone());
        let mut sleep = pin!(clock.sleep_until(Micros::MAX));
        assert!(sleep.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        clock.advance_to(Micros::MAX);
        assert_eq!(calls.0.load(Ordering::Relaxed), 1);
        assert!(sleep.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
    }
}
