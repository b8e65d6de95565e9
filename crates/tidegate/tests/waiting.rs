//! Waiting for a rate: instants are promised and kept, and no request overtakes another. Tests move the
//! clock.

#[allow(dead_code, reason = "shared by several files of tests, each of which uses a part")]
mod polling;

use std::sync::Arc;
use std::time::Duration;

use polling::{
    MS, WaitFuture, WakeCount, assert_refused, exhausted, ms, pending_wait, poll_once, retry, wait,
};
use tidegate::algorithm::LeakyQueue;
use tidegate::clock::{Clock, Micros};
use tidegate::{AcquireError, Decision, KeyedLimiter, Limiter, ManualClock, Outcome, Quota};

const BEYOND_TIME: &str =
    "cost 1 could be allowed only after the year 2255, the end of the time line; use a smaller cost";

#[test]
fn acquire_returns_immediately_when_quota_is_available() {
    let limiter = Limiter::builder(Quota::per_second(10)).clock(ManualClock::new()).build();
    for left in (0..10).rev() {
        let decision = poll_once(&mut wait(&limiter, 1)).expect("ready immediately").expect("allowed");
        assert_eq!((decision.outcome, decision.remaining()), (Outcome::Allowed, left));
    }
    assert!(poll_once(&mut wait(&limiter, 1)).is_none());
}

#[test]
fn waiters_pass_in_order_each_at_its_own_instant() {
    let (limiter, clock) = exhausted();
    let mut waits: Vec<WaitFuture<'_>> = (0..3).map(|_| pending_wait(&limiter, 1)).collect();
    for passed in 1..=3 {
        clock.advance_to(Micros::new(passed * 100 * MS - 1));
        assert_eq!(waits.iter_mut().filter_map(poll_once).count(), 0, "not a microsecond early");
        clock.advance_to(Micros::new(passed * 100 * MS));
        let decision = poll_once(&mut waits[0]).expect("ready").expect("allowed");
        assert_eq!((decision.at(), decision.outcome), (Micros::new(passed * 100 * MS), Outcome::Allowed));
        drop(waits.remove(0));
    }
}

#[test]
fn large_request_is_starved_neither_by_waiters_nor_by_checks() {
    let clock = ManualClock::new();
    let limiter = Limiter::builder(Quota::per_second(10).burst(5)).clock(clock.clone()).build();
    assert!(limiter.request().cost(5).check().is_allowed());
    let mut large = pending_wait(&limiter, 5);
    let mut small = pending_wait(&limiter, 1);
    for tenth in 1..5 {
        clock.advance_to(Micros::new(tenth * 100 * MS));
        assert_eq!(
            retry(limiter.check()),
            700 * MS - tenth * 100 * MS,
            "after the large one and the small one"
        );
        assert!(poll_once(&mut large).is_none() && poll_once(&mut small).is_none());
    }
    clock.advance_to(Micros::new(500 * MS));
    assert!(poll_once(&mut small).is_none());
    assert!(poll_once(&mut large).expect("ready").is_ok());
    clock.advance_to(Micros::new(600 * MS));
    assert!(!limiter.check().is_allowed(), "reserved for the small waiter, which has not polled yet");
    assert!(poll_once(&mut small).expect("ready").is_ok());
}

#[test]
fn check_behind_a_reservation_reports_the_exact_retry_after() {
    let (limiter, clock) = exhausted();
    let reservation = limiter.request().reserve().expect("reserved");
    assert_eq!((reservation.wait().as_micros(), reservation.ready_at()), (100 * MS, Micros::new(100 * MS)));
    clock.advance(ms(30));
    for decision in
        [limiter.check(), limiter.request().peek(), limiter.request().cost(1).check_each().decision]
    {
        assert_eq!(
            (retry(decision), decision.remaining(), decision.at()),
            (170 * MS, 0, Micros::new(30 * MS))
        );
    }
    assert_eq!(limiter.request().cost(2).check().outcome, Outcome::Never);
    assert_eq!(limiter.request().cost(0).check().outcome, Outcome::Allowed);
    assert_eq!(limiter.request().cost(7).take().amount, 0);
    reservation.keep();
    clock.advance_to(Micros::new(200 * MS - 1));
    assert!(!limiter.check().is_allowed());
    clock.advance_to(Micros::new(200 * MS));
    assert!(limiter.check().is_allowed());
}

#[test]
fn timeout_one_microsecond_too_short_is_refused_immediately() {
    let (limiter, clock) = exhausted();
    let before = limiter.request().peek();
    let short = limiter
        .request()
        .timeout(Duration::from_micros(100 * MS - 1))
        .acquire_blocking()
        .expect_err("too short");
    assert_eq!(
        short.to_string(),
        "the wait would be 100ms, longer than the timeout of 99.999ms; retry after 100ms"
    );
    assert_eq!(limiter.request().peek(), before, "nothing was charged");
    assert!(limiter.request().timeout(Duration::from_micros(100 * MS - 1)).reserve().is_err());
    assert_eq!(limiter.request().peek(), before);

    let mut first: WaitFuture<'_> = Box::pin(limiter.request().timeout(ms(100)).acquire());
    assert!(poll_once(&mut first).is_none());
    let mut second: WaitFuture<'_> = Box::pin(limiter.request().deadline(Micros::new(200 * MS)).acquire());
    assert!(poll_once(&mut second).is_none());
    let mut deep: WaitFuture<'_> = Box::pin(limiter.request().deadline(Micros::new(300 * MS - 1)).acquire());
    let refused = poll_once(&mut deep).expect("refused immediately, also deep in the queue");
    assert!(refused.expect_err("too short").is_timeout());
    clock.advance(ms(200));
    assert!(
        poll_once(&mut first).expect("in time").is_ok() && poll_once(&mut second).expect("in time").is_ok()
    );
}

#[test]
fn waiters_move_up_when_a_waiter_ahead_is_dropped() {
    let (limiter, clock) = exhausted();
    let first = pending_wait(&limiter, 1);
    let mut second = pending_wait(&limiter, 1);
    let mut third = pending_wait(&limiter, 1);
    drop(first);
    assert_eq!(retry(limiter.check()), 300 * MS, "two waiters are ahead, not three");
    clock.advance(ms(100));
    assert!(poll_once(&mut third).is_none());
    assert!(poll_once(&mut second).expect("moved up").is_ok());
    drop(second);
    clock.advance(ms(100));
    assert_eq!(poll_once(&mut third).expect("moved up").expect("allowed").at(), Micros::new(200 * MS));
}

#[test]
fn waiter_that_moves_up_is_woken() {
    let (limiter, clock) = exhausted();
    let first = pending_wait(&limiter, 1);
    let (wakes, mut second) = (Arc::new(WakeCount::default()), wait(&limiter, 1));
    wakes.poll_pending(&mut second);
    drop(first);
    assert_eq!(wakes.count(), 1);
    wakes.poll_pending(&mut second);
    clock.advance(ms(100));
    assert!(wakes.count() >= 2, "its timer is set for the earlier instant");
    assert!(poll_once(&mut second).expect("ready").is_ok());
}

#[test]
fn waiter_that_does_not_move_up_is_not_woken() {
    let (limiter, _clock) = exhausted();
    let (wakes, mut first) = (Arc::new(WakeCount::default()), wait(&limiter, 1));
    wakes.poll_pending(&mut first);
    drop(pending_wait(&limiter, 1));
    assert_eq!(wakes.count(), 0);
}

#[test]
fn waiter_polled_by_another_task_is_woken_there() {
    let (limiter, _clock) = exhausted();
    let first = pending_wait(&limiter, 1);
    let (before, after, mut second) =
        (Arc::<WakeCount>::default(), Arc::<WakeCount>::default(), wait(&limiter, 1));
    before.poll_pending(&mut second);
    after.poll_pending(&mut second);
    drop(first);
    assert_eq!((before.count(), after.count()), (0, 1));
}

/// Only the waiter right behind the dropped one is woken; its next poll wakes the others.
#[test]
fn in_a_long_queue_only_the_next_waiter_is_woken_first() {
    let (limiter, _clock) = exhausted();
    let wakes: Vec<Arc<WakeCount>> = (0..100).map(|_| Arc::default()).collect();
    let mut waits: Vec<WaitFuture<'_>> = (0..100).map(|_| wait(&limiter, 1)).collect();
    waits.iter_mut().zip(&wakes).for_each(|(wait, wakes)| wakes.poll_pending(wait));
    drop(waits.remove(20));
    let woken: Vec<usize> = (0..100).filter(|index| wakes[*index].count() > 0).collect();
    assert_eq!(woken, [21]);
    wakes[21].poll_pending(&mut waits[20]);
    let woken = (0..100).filter(|index| wakes[*index].count() > 0).count();
    assert_eq!(woken, 79, "all waiters behind it");
}

#[test]
fn reservation_reports_the_wait_as_of_when_it_was_made() {
    let (limiter, clock) = exhausted();
    clock.advance(ms(30));
    let reservation = limiter.request().reserve().expect("reserved");
    clock.advance(ms(30));
    assert_eq!(
        (reservation.wait(), reservation.ready_at()),
        (tidegate::Wait::micros(70 * MS), Micros::new(100 * MS))
    );
}

#[test]
fn thread_blocks_until_its_reservation_is_ready() {
    let (limiter, clock) = exhausted();
    let reservation = limiter.request().reserve().expect("reserved");
    std::thread::scope(|scope| {
        let blocked = scope.spawn(|| reservation.ready_blocking());
        clock.advance(ms(100));
        assert_eq!(blocked.join().expect("no panic").at(), Micros::new(100 * MS));
    });
    assert_eq!(retry(limiter.check()), 100 * MS);
}

/// In a long queue the waiters behind a dropped one do not move for each drop, but at the next poll or check.
#[test]
fn long_queue_moves_up_after_many_drops() {
    let (limiter, clock) = exhausted();
    let mut waits: Vec<WaitFuture<'_>> = (0..300).map(|_| pending_wait(&limiter, 1)).collect();
    assert_eq!(retry(limiter.check()), 301 * 100 * MS);
    waits.drain(..200).for_each(drop);
    assert_eq!(retry(limiter.check()), 101 * 100 * MS);
    clock.advance(ms(100));
    assert!(poll_once(&mut waits[1]).is_none());
    assert!(poll_once(&mut waits[0]).expect("now the first waiter").is_ok());
    drop(waits.drain(..).rev().collect::<Vec<_>>());
    assert_eq!(retry(limiter.check()), 100 * MS);
}

#[test]
fn observer_sees_the_outcome_of_a_wait() {
    use std::sync::atomic::{AtomicU64, Ordering};
    use tidegate::stats::{Charge, Observer};
    #[derive(Default)]
    struct Seen(AtomicU64, AtomicU64);
    impl Observer for Seen {
        fn allowed(&self, _: &Decision, _: &[Charge<'_>]) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        fn denied(&self, _: &Decision, _: &[Charge<'_>]) {
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }
    let (clock, seen) = (ManualClock::new(), std::sync::Arc::new(Seen::default()));
    let limiter =
        Limiter::builder(Quota::per_second(10).burst(1)).clock(clock.clone()).observer(seen.clone()).build();
    let counts = || (seen.0.load(Ordering::Relaxed), seen.1.load(Ordering::Relaxed));
    assert!(limiter.request().acquire_blocking().is_ok());
    let mut waits = pending_wait(&limiter, 1);
    assert_eq!(counts(), (1, 0), "a pending wait is not observed yet");
    clock.advance(ms(100));
    assert!(poll_once(&mut waits).is_some());
    assert!(limiter.request().timeout(ms(1)).acquire_blocking().is_err());
    assert_eq!(counts(), (2, 1));
}

#[test]
fn number_of_waiters_is_bounded() {
    let clock = ManualClock::new();
    let limiter =
        Limiter::builder(Quota::per_second(10).burst(1)).max_waiting(2).clock(clock.clone()).build();
    assert!(limiter.check().is_allowed());
    let waits = [pending_wait(&limiter, 1), pending_wait(&limiter, 1)];
    let refused = limiter.request().acquire_blocking().expect_err("full");
    let message = "the queue is full: 2 requests are waiting; retry later";
    assert_refused(&refused, AcquireError::is_queue_full, message);
    assert_eq!(limiter.request().reserve().expect_err("full"), refused);
    drop(waits);
    let first = pending_wait(&limiter, 1);
    let _ = limiter.request().cost(1).force(); // forced charges do not count as waiters
    let _waits = [first, pending_wait(&limiter, 1)];

    let none = Limiter::builder(Quota::per_second(10).burst(1)).max_waiting(0).build();
    assert!(none.request().acquire_blocking().is_ok());
    let refused = none.request().acquire_blocking().expect_err("the queue has no capacity");
    let message = "the queue is full: 0 requests are waiting; retry later";
    assert_refused(&refused, AcquireError::is_queue_full, message);
}

#[test]
fn impossible_cost_is_refused_immediately_also_behind_waiters() {
    let (limiter, _clock) = exhausted();
    let never = limiter.request().cost(2).acquire_blocking().expect_err("never");
    let message = "cost 2 exceeds the limit of 1: it can never be allowed; use 1 or less";
    assert_refused(&never, AcquireError::is_never, message);
    let _ahead = pending_wait(&limiter, 1);
    assert_eq!(limiter.request().cost(2).reserve().expect_err("never"), never);
}

#[test]
fn wait_beyond_the_end_of_the_clock_is_refused() {
    let clock = ManualClock::new();
    let limiter = Limiter::builder(Quota::per_hour(1)).clock(clock.clone()).build();
    clock.advance_to(Micros::MAX.minus(1_000));
    let _ = limiter.request().cost(3).force();
    let refused = limiter.request().acquire_blocking().expect_err("beyond");
    assert_refused(&refused, AcquireError::is_never, BEYOND_TIME);
    assert_eq!(limiter.request().reserve().expect_err("beyond"), refused);
    clock.advance_to(Micros::MAX);
    assert_eq!(limiter.request().reserve().expect_err("beyond"), refused);
    assert!(limiter.request().timeout(Duration::MAX).acquire_blocking().is_err());
}

#[test]
fn reservations_stop_at_the_end_of_the_clock() {
    let clock = ManualClock::new();
    let limiter = Limiter::builder(Quota::per_second(1)).clock(clock.clone()).build();
    clock.advance_to(Micros::MAX.minus(2_500_000));
    assert!(limiter.check().is_allowed());
    let ready: Vec<_> =
        (0..4).map(|_| limiter.request().reserve().map(|reservation| reservation.keep())).collect();
    assert_eq!(
        ready.iter().filter(|reservation| reservation.is_ok()).count(),
        1,
        "each has to be refilled before the end of the time line: {ready:?}"
    );
    let refused = ready[3].as_ref().expect_err("beyond");
    assert_refused(refused, AcquireError::is_never, BEYOND_TIME);
}

#[test]
fn acquire_waits_out_the_delay_of_a_leaky_queue() {
    let clock = ManualClock::new();
    let limiter =
        Limiter::builder_with(LeakyQueue::new(Quota::per_second(10), 2)).clock(clock.clone()).build();
    assert!(poll_once(&mut wait(&limiter, 1)).expect("ready immediately").is_ok());
    let mut first = pending_wait(&limiter, 1); // ready at 100 ms
    let second = pending_wait(&limiter, 1); // 200 ms
    let mut third = pending_wait(&limiter, 1); // the queue is full until 100 ms; ready at 300 ms
    drop(second);
    clock.advance(ms(100));
    let passed = poll_once(&mut first).expect("ready").expect("allowed");
    assert_eq!(passed.outcome, Outcome::Allowed, "no delay is left");
    assert!(poll_once(&mut third).is_none());
    clock.advance(ms(100));
    assert!(poll_once(&mut third).expect("moved up").is_ok());
    assert_eq!(limiter.request().peek().outcome, Outcome::AllowedAfter(tidegate::Wait::micros(100 * MS)));
}

#[test]
fn blocked_threads_pass_at_consecutive_instants() {
    let (limiter, clock) = exhausted();
    std::thread::scope(|scope| {
        let waits: Vec<_> =
            (0..8).map(|_| scope.spawn(|| limiter.request().acquire_blocking().expect("ready"))).collect();
        while retry(limiter.request().peek()) != 900 * MS {
            std::thread::yield_now(); // until all eight wait in the queue
        }
        for tenth in 1..=8 {
            clock.advance_to(Micros::new(tenth * 100 * MS));
        }
        let mut instants: Vec<_> =
            waits.into_iter().map(|wait| wait.join().expect("no panic").at()).collect();
        instants.sort_unstable();
        assert_eq!(instants, (1..=8).map(|tenth| Micros::new(tenth * 100 * MS)).collect::<Vec<_>>());
    });
    assert_eq!(clock.now(), Micros::new(800 * MS));
}

#[cfg(feature = "tokio")]
#[tokio::test(start_paused = true)]
async fn tasks_wait_by_the_clock_of_their_runtime() {
    use tidegate::TokioClock;
    let clock = TokioClock::new();
    let limiter = Limiter::builder(Quota::per_second(10).burst(1)).clock(clock).build();
    for tenth in 0..5 {
        let decision = limiter.acquire().await.expect("allowed");
        assert_eq!((decision.at().get(), clock.now().get()), (tenth * 100 * MS, tenth * 100 * MS));
    }
    let waited = tokio::time::timeout(ms(50), limiter.acquire()).await;
    assert!(waited.is_err(), "dropped by tokio's timeout");
    assert_eq!(retry(limiter.check()), 50 * MS);
    let reservation = limiter.request().reserve().expect("reserved");
    assert!(reservation.ready().await.is_allowed());
    assert_eq!(clock.now().get(), 500 * MS);
}

fn is_send<T: Send>(_: T) {}

#[test]
fn waits_can_be_sent_to_other_threads() {
    let (limiter, _clock) = exhausted();
    is_send(limiter.acquire());
    is_send(limiter.request().reserve());
    let keyed = KeyedLimiter::<str>::builder(Quota::per_second(1)).clock(ManualClock::new()).build();
    is_send(keyed.acquire("alice"));
}
