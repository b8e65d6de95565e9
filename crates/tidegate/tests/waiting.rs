//! Waiting for a rate: turns are promised and kept, and nobody overtakes. Time is the test's.

#[allow(dead_code, reason = "shared by several files of tests, each of which uses a part")]
mod waits;

use std::sync::Arc;
use std::time::Duration;

use tidegate::{
    Clock, Decision, KeyedLimiter, LeakyQueue, Limiter, ManualClock, Micros, Outcome, Quota, WaitRefused,
};
use waits::{Calls, MS, Waits, begun, look, ms, retry, used_up, wait};

#[test]
fn who_may_pass_does_not_wait() {
    let limiter = Limiter::new(Quota::per_second(10)).with_clock(ManualClock::new());
    for left in (0..10).rev() {
        let decision = look(&mut wait(&limiter, 1)).expect("at once").expect("allowed");
        assert_eq!((decision.outcome, decision.remaining()), (Outcome::Allowed, left));
    }
    assert!(look(&mut wait(&limiter, 1)).is_none());
}

#[test]
fn first_come_first_served_each_at_its_own_instant() {
    let (limiter, clock) = used_up();
    let mut waits: Vec<Waits<'_>> = (0..3).map(|_| begun(&limiter, 1)).collect();
    for passed in 1..=3 {
        clock.advance_to(Micros::new(passed * 100 * MS - 1));
        assert_eq!(waits.iter_mut().filter_map(look).count(), 0, "not a microsecond early");
        clock.advance_to(Micros::new(passed * 100 * MS));
        let decision = look(&mut waits[0]).expect("its turn").expect("allowed");
        assert_eq!((decision.at(), decision.outcome), (Micros::new(passed * 100 * MS), Outcome::Allowed));
        drop(waits.remove(0));
    }
}

#[test]
fn a_large_request_is_starved_neither_by_waiters_nor_by_checkers() {
    let clock = ManualClock::new();
    let limiter = Limiter::new(Quota::per_second(10).burst(5)).with_clock(clock.clone());
    assert!(limiter.cost(5).check().is_allowed());
    let mut large = begun(&limiter, 5);
    let mut small = begun(&limiter, 1);
    for tenth in 1..5 {
        clock.advance_to(Micros::new(tenth * 100 * MS));
        assert_eq!(
            retry(limiter.check()),
            700 * MS - tenth * 100 * MS,
            "after the large one and the small one"
        );
        assert!(look(&mut large).is_none() && look(&mut small).is_none());
    }
    clock.advance_to(Micros::new(500 * MS));
    assert!(look(&mut small).is_none());
    assert!(look(&mut large).expect("its turn").is_ok());
    clock.advance_to(Micros::new(600 * MS));
    assert!(!limiter.check().is_allowed(), "the small one's, though it has not come for it yet");
    assert!(look(&mut small).expect("its turn").is_ok());
}

#[test]
fn outsiders_are_told_exactly_when_they_pass() {
    let (limiter, clock) = used_up();
    let turn = limiter.reserve().expect("promised");
    assert_eq!((turn.wait().as_micros(), turn.ready_at()), (100 * MS, Micros::new(100 * MS)));
    clock.advance(ms(30));
    for decision in [limiter.check(), limiter.peek(), limiter.cost(1).check_each().decision] {
        assert_eq!(
            (retry(decision), decision.remaining(), decision.at()),
            (170 * MS, 0, Micros::new(30 * MS))
        );
    }
    assert_eq!(limiter.cost(2).check().outcome, Outcome::Never);
    assert_eq!(limiter.cost(0).check().outcome, Outcome::Allowed);
    assert_eq!(limiter.cost(7).take().amount, 0);
    turn.keep();
    clock.advance_to(Micros::new(200 * MS - 1));
    assert!(!limiter.check().is_allowed());
    clock.advance_to(Micros::new(200 * MS));
    assert!(limiter.check().is_allowed());
}

#[test]
fn exactly_enough_time_suffices_and_a_microsecond_less_is_refused_at_once() {
    let (limiter, clock) = used_up();
    let before = limiter.peek();
    let short = limiter.acquire_blocking_timeout(Duration::from_micros(100 * MS - 1)).expect_err("too short");
    assert_eq!(short.to_string(), "the wait would be 100ms, and may be 99.999ms; wait longer, or try later");
    assert_eq!(limiter.peek(), before, "nothing was charged");
    assert!(limiter.reserve_within(Duration::from_micros(100 * MS - 1)).is_err());
    assert_eq!(limiter.peek(), before);

    let mut first: Waits<'_> = Box::pin(limiter.acquire_timeout(ms(100)));
    assert!(look(&mut first).is_none());
    let mut second: Waits<'_> = Box::pin(limiter.acquire_until(Micros::new(200 * MS)));
    assert!(look(&mut second).is_none());
    let mut deep: Waits<'_> = Box::pin(limiter.acquire_until(Micros::new(300 * MS - 1)));
    assert!(
        matches!(look(&mut deep), Some(Err(WaitRefused::TooLong { .. }))),
        "deep in the line, and at once"
    );
    clock.advance(ms(200));
    assert!(look(&mut first).expect("in time").is_ok() && look(&mut second).expect("in time").is_ok());
}

#[test]
fn who_waits_moves_up_when_somebody_before_leaves() {
    let (limiter, clock) = used_up();
    let first = begun(&limiter, 1);
    let mut second = begun(&limiter, 1);
    let mut third = begun(&limiter, 1);
    drop(first);
    assert_eq!(retry(limiter.check()), 300 * MS, "two are ahead, not three");
    clock.advance(ms(100));
    assert!(look(&mut third).is_none());
    assert!(look(&mut second).expect("moved up").is_ok());
    drop(second);
    clock.advance(ms(100));
    assert_eq!(look(&mut third).expect("moved up").expect("allowed").at(), Micros::new(200 * MS));
}

#[test]
fn who_moves_up_is_woken_for_it() {
    let (limiter, clock) = used_up();
    let first = begun(&limiter, 1);
    let (calls, mut second) = (Arc::new(Calls::default()), wait(&limiter, 1));
    calls.await_turn(&mut second);
    drop(first);
    assert_eq!(calls.count(), 1);
    calls.await_turn(&mut second);
    clock.advance(ms(100));
    assert!(calls.count() >= 2, "its alarm is set for the earlier instant");
    assert!(look(&mut second).expect("its turn").is_ok());
}

#[test]
fn who_does_not_move_up_is_not_woken() {
    let (limiter, _clock) = used_up();
    let (calls, mut first) = (Arc::new(Calls::default()), wait(&limiter, 1));
    calls.await_turn(&mut first);
    drop(begun(&limiter, 1));
    assert_eq!(calls.count(), 0);
}

#[test]
fn who_moves_to_another_task_is_woken_there() {
    let (limiter, _clock) = used_up();
    let first = begun(&limiter, 1);
    let (before, after, mut second) = (Arc::<Calls>::default(), Arc::<Calls>::default(), wait(&limiter, 1));
    before.await_turn(&mut second);
    after.await_turn(&mut second);
    drop(first);
    assert_eq!((before.count(), after.count()), (0, 1));
}

/// Only the first behind who leaves: it finds out, and tells the others.
#[test]
fn in_a_long_line_the_next_is_woken() {
    let (limiter, _clock) = used_up();
    let calls: Vec<Arc<Calls>> = (0..100).map(|_| Arc::default()).collect();
    let mut waits: Vec<Waits<'_>> = (0..100).map(|_| wait(&limiter, 1)).collect();
    waits.iter_mut().zip(&calls).for_each(|(wait, calls)| calls.await_turn(wait));
    drop(waits.remove(20));
    let woken: Vec<usize> = (0..100).filter(|who| calls[*who].count() > 0).collect();
    assert_eq!(woken, [21]);
    calls[21].await_turn(&mut waits[20]);
    let woken = (0..100).filter(|who| calls[*who].count() > 0).count();
    assert_eq!(woken, 79, "everybody behind");
}

#[test]
fn a_promise_is_as_far_off_as_it_was_when_it_was_made() {
    let (limiter, clock) = used_up();
    clock.advance(ms(30));
    let turn = limiter.reserve().expect("promised");
    clock.advance(ms(30));
    assert_eq!((turn.wait(), turn.ready_at()), (tidegate::Wait::micros(70 * MS), Micros::new(100 * MS)));
}

#[test]
fn a_thread_sits_a_reservation_out() {
    let (limiter, clock) = used_up();
    let turn = limiter.reserve().expect("promised");
    std::thread::scope(|scope| {
        let sits = scope.spawn(|| turn.ready_blocking());
        clock.advance(ms(100));
        assert_eq!(sits.join().expect("no panic").at(), Micros::new(100 * MS));
    });
    assert_eq!(retry(limiter.check()), 100 * MS);
}

/// In a long line those behind are not moved for each who leaves, but when somebody looks.
#[test]
fn a_long_line_moves_up_too() {
    let (limiter, clock) = used_up();
    let mut waits: Vec<Waits<'_>> = (0..300).map(|_| begun(&limiter, 1)).collect();
    assert_eq!(retry(limiter.check()), 301 * 100 * MS);
    waits.drain(..200).for_each(drop);
    assert_eq!(retry(limiter.check()), 101 * 100 * MS);
    clock.advance(ms(100));
    assert!(look(&mut waits[1]).is_none());
    assert!(look(&mut waits[0]).expect("first now").is_ok());
    drop(waits.drain(..).rev().collect::<Vec<_>>());
    assert_eq!(retry(limiter.check()), 100 * MS);
}

#[test]
fn an_observer_sees_what_came_of_waiting() {
    use std::sync::atomic::{AtomicU64, Ordering};
    #[derive(Default)]
    struct Seen(AtomicU64, AtomicU64);
    impl tidegate::Observer for Seen {
        fn allowed(&self, _: &Decision) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        fn denied(&self, _: &Decision) {
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }
    let (clock, seen) = (ManualClock::new(), std::sync::Arc::new(Seen::default()));
    let limiter =
        Limiter::new(Quota::per_second(10).burst(1)).with_clock(clock.clone()).with_observer(seen.clone());
    let counts = || (seen.0.load(Ordering::Relaxed), seen.1.load(Ordering::Relaxed));
    assert!(limiter.acquire_blocking().is_ok());
    let mut waits = begun(&limiter, 1);
    assert_eq!(counts(), (1, 0), "a wait has not been decided on yet");
    clock.advance(ms(100));
    assert!(look(&mut waits).is_some());
    assert!(limiter.acquire_blocking_timeout(ms(1)).is_err());
    assert_eq!(counts(), (2, 1));
}

#[test]
fn a_line_takes_only_so_many() {
    let clock = ManualClock::new();
    let limiter = Limiter::new(Quota::per_second(10).burst(1)).max_waiting(2).with_clock(clock.clone());
    assert!(limiter.check().is_allowed());
    let waits = [begun(&limiter, 1), begun(&limiter, 1)];
    let refused = limiter.acquire_blocking().expect_err("full");
    assert_eq!(refused, WaitRefused::LineFull { max_waiting: 2 });
    assert_eq!(refused.to_string(), "2 wait already, which is the most that may; try later");
    assert_eq!(limiter.reserve().expect_err("full"), refused);
    drop(waits);
    let first = begun(&limiter, 1);
    let _ = limiter.cost(1).force(); // others who act meanwhile are not in line
    let _waits = [first, begun(&limiter, 1)];

    let none = Limiter::new(Quota::per_second(10).burst(1)).max_waiting(0);
    assert!(none.acquire_blocking().is_ok());
    assert_eq!(none.acquire_blocking().expect_err("nobody waits"), WaitRefused::LineFull { max_waiting: 0 });
}

#[test]
fn what_can_never_pass_is_refused_at_once_also_behind_others() {
    let (limiter, _clock) = used_up();
    let never = WaitRefused::Never { cost: 2, limit: 1 };
    assert_eq!(limiter.cost(2).acquire_blocking().expect_err("never"), never);
    assert_eq!(never.to_string(), "a cost of 2 exceeds the limit of 1; ask for 1 or less");
    let _ahead = begun(&limiter, 1);
    assert_eq!(limiter.cost(2).reserve().expect_err("never"), never);
}

#[test]
fn what_comes_after_the_end_of_the_clock_is_refused() {
    let clock = ManualClock::new();
    let limiter = Limiter::new(Quota::per_hour(1)).with_clock(clock.clone());
    clock.advance_to(Micros::MAX.minus(1_000));
    let _ = limiter.cost(3).force();
    let refused = limiter.acquire_blocking().expect_err("beyond");
    assert_eq!(refused, WaitRefused::BeyondTime { cost: 1 });
    assert!(refused.to_string().contains("after the end of the clock"));
    assert_eq!(limiter.reserve().expect_err("beyond"), refused);
    clock.advance_to(Micros::MAX);
    assert_eq!(limiter.reserve().expect_err("beyond"), refused);
    assert!(limiter.acquire_blocking_timeout(Duration::MAX).is_err());
}

#[test]
fn a_line_that_reaches_the_end_of_the_clock_ends_there() {
    let clock = ManualClock::new();
    let limiter = Limiter::new(Quota::per_second(1)).with_clock(clock.clone());
    clock.advance_to(Micros::MAX.minus(2_500_000));
    assert!(limiter.check().is_allowed());
    let ready: Vec<_> = (0..4).map(|_| limiter.reserve().map(|turn| turn.keep())).collect();
    assert_eq!(
        ready.iter().filter(|turn| turn.is_ok()).count(),
        1,
        "each is to be refilled before the end: {ready:?}"
    );
    assert!(matches!(ready.last(), Some(Err(WaitRefused::BeyondTime { cost: 1 }))));
}

#[test]
fn a_queue_is_waited_out() {
    let clock = ManualClock::new();
    let limiter = Limiter::with(LeakyQueue::new(Quota::per_second(10), 2)).with_clock(clock.clone());
    assert!(look(&mut wait(&limiter, 1)).expect("at once").is_ok());
    let mut first = begun(&limiter, 1); // turn at 100 ms
    let second = begun(&limiter, 1); // 200 ms
    let mut third = begun(&limiter, 1); // the queue is full until 100 ms; its turn is at 300 ms
    drop(second);
    clock.advance(ms(100));
    let passed = look(&mut first).expect("its turn").expect("allowed");
    assert_eq!(passed.outcome, Outcome::Allowed, "nothing is left to be waited for");
    assert!(look(&mut third).is_none());
    clock.advance(ms(100));
    assert!(look(&mut third).expect("moved up").is_ok());
    assert_eq!(limiter.peek().outcome, Outcome::AllowedAfter(tidegate::Wait::micros(100 * MS)));
}

#[test]
fn threads_wait_as_tasks_do() {
    let (limiter, clock) = used_up();
    std::thread::scope(|scope| {
        let waits: Vec<_> =
            (0..8).map(|_| scope.spawn(|| limiter.acquire_blocking().expect("its turn"))).collect();
        while retry(limiter.peek()) != 900 * MS {
            std::thread::yield_now(); // until all eight are in line
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
async fn tasks_wait_by_the_time_of_their_runtime() {
    use tidegate::TokioClock;
    let clock = TokioClock::new();
    let limiter = Limiter::new(Quota::per_second(10).burst(1)).with_clock(clock);
    for tenth in 0..5 {
        let decision = limiter.acquire().await.expect("allowed");
        assert_eq!((decision.at().get(), clock.now().get()), (tenth * 100 * MS, tenth * 100 * MS));
    }
    let waited = tokio::time::timeout(ms(50), limiter.acquire()).await;
    assert!(waited.is_err(), "dropped by tokio's time-out");
    assert_eq!(retry(limiter.check()), 50 * MS);
    let turn = limiter.reserve().expect("promised");
    assert!(turn.ready().await.is_allowed());
    assert_eq!(clock.now().get(), 500 * MS);
}

fn is_send<T: Send>(_: T) {}

#[test]
fn waits_can_be_sent_to_other_threads() {
    let (limiter, _clock) = used_up();
    is_send(limiter.acquire());
    is_send(limiter.reserve());
    let keyed = KeyedLimiter::<str>::new(Quota::per_second(1)).with_clock(ManualClock::new());
    is_send(keyed.acquire("alice"));
}
