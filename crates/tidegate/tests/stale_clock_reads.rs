//! Late threads: a thread reads the clock, is interrupted, and decides after other threads have gone on.
//!
//! Such a reading is old, but no clock has stepped back. Every decision, eviction or change in between
//! happened at a later instant, and the late decision has to be made as of that instant; as of the old
//! reading the same tokens could be taken twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::algorithm::{FixedWindow, SlidingLog, SlidingWindow, TokenBucket};
use tidegate::clock::{Clock, ClockKind, Micros};
use tidegate::{Decision, KeyedLimiter, Limiter, Quota};

/// The clock reading of a thread, which may be older than the current time.
#[derive(Clone, Debug, Default)]
struct Readings(Arc<AtomicU64>);

impl Readings {
    fn read(&self, micros: u64) {
        self.0.store(micros, Ordering::Relaxed);
    }
}

impl Clock for Readings {
    const KIND: ClockKind = ClockKind::Monotonic;

    fn now(&self) -> Micros {
        Micros::new(self.0.load(Ordering::Relaxed))
    }
}

/// All 20 tokens are taken at 100, one refills each microsecond, and at 119 the rate is lowered. Decided as
/// of 100, the remaining debt would seem to have been at the lower rate all along, and seven requests would
/// pass at an instant at which all tokens were taken.
#[test]
fn late_check_is_decided_no_earlier_than_the_last_change() {
    let per = |limit, micros, burst| {
        TokenBucket::new(Quota::per(limit, Duration::from_micros(micros)).burst(burst))
    };
    let fast = per(1, 1, 20);
    for slow in [per(1, 2, 18), per(1_999, 4_000, 18)] {
        let clock = Readings::default();
        let one = Limiter::builder_with(fast).clock(clock.clone()).build();
        let keyed = KeyedLimiter::<u64, _>::builder_with(fast).clock(clock.clone()).build();
        clock.read(100);
        assert!(
            one.request().cost(20).check().is_allowed() && keyed.request(&7).cost(20).check().is_allowed()
        );
        clock.read(119);
        one.change(slow);
        keyed.change(slow);
        clock.read(100);
        for late in [one.check(), keyed.check(&7), keyed.check(&8)] {
            assert_eq!(late.at(), Micros::new(119), "{late:?}");
        }
    }
}

/// The limit was used up in one window, the next has begun, and the key was evicted. A decision as of the
/// window before would let the whole limit pass in it once more.
#[test]
fn late_check_is_decided_no_earlier_than_the_eviction_of_its_key() {
    let quota = Quota::per(5, Duration::from_micros(100));
    let decisions = [
        late_after_eviction(TokenBucket::new(quota)),
        late_after_eviction(FixedWindow::new(quota)),
        late_after_eviction(SlidingLog::new(quota)),
        late_after_eviction(SlidingWindow::new(quota, 1)),
    ];
    for late in decisions {
        assert_eq!((late.at(), late.remaining()), (Micros::new(300), 0), "{late:?}");
    }
}

fn late_after_eviction<A: tidegate::algorithm::Algorithm + Clone>(algorithm: A) -> Decision {
    let clock = Readings::default();
    let limiter = KeyedLimiter::<u64, A>::builder_with(algorithm).max_keys(2).clock(clock.clone()).build();
    clock.read(50);
    assert!([1, 2].iter().all(|key| limiter.request(key).cost(5).check().is_allowed()));
    clock.read(300);
    assert!(limiter.check(&3).is_allowed());
    assert_eq!((limiter.stats().keys, limiter.stats().evicted), (1, 2), "both keys were idle and evicted");
    clock.read(99);
    limiter.request(&1).cost(5).check()
}

/// A window has begun after the late thread's reading. The late charge counts in that window.
#[test]
fn late_check_counts_in_the_window_that_has_begun_meanwhile() {
    let clock = Readings::default();
    let window = FixedWindow::new(Quota::per(5, Duration::from_micros(100)));
    let limiter = Limiter::builder_with(window).clock(clock.clone()).build();
    clock.read(99);
    assert!(limiter.request().cost(5).check().is_allowed());
    clock.read(100);
    assert!(limiter.request().cost(2).check().is_allowed());
    clock.read(99);
    let late = limiter.request().cost(3).check();
    assert_eq!((late.at(), late.remaining()), (Micros::new(100), 0));
    clock.read(101);
    assert!(!limiter.check().is_allowed());
}
