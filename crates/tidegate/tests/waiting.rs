//! Waiting for a rate: turns are promised, kept, given back, and nobody overtakes. Time is the test's.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tidegate::{
    Algorithm, Clock, Decision, FixedWindow, KeyedLimiter, LeakyQueue, Limiter, ManualClock, Micros, OnFull,
    Outcome, Quota, SlidingLog, SlidingWindow, SteppedBucket, TokenBucket, WaitRefused,
};

const MS: u64 = 1_000;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

type Answer = Result<Decision, WaitRefused>;
type Waits<'a> = Pin<Box<dyn Future<Output = Answer> + 'a>>;

/// Looks once at a wait; `None` if it goes on.
fn look(wait: &mut Waits<'_>) -> Option<Answer> {
    match wait.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Some(answer),
        Poll::Pending => None,
    }
}

fn wait<'a, A: Algorithm>(limiter: &'a Limiter<A, ManualClock>, cost: u32) -> Waits<'a> {
    Box::pin(async move { limiter.cost(cost).acquire().await })
}

/// A wait that has begun.
fn begun<'a, A: Algorithm>(limiter: &'a Limiter<A, ManualClock>, cost: u32) -> Waits<'a> {
    let mut wait = wait(limiter, cost);
    assert!(look(&mut wait).is_none(), "there is nothing left for it");
    wait
}

fn retry(decision: Decision) -> u64 {
    decision.retry_after().expect("refused for now").as_micros()
}

/// Ten a second, one at once, and that one is gone.
fn used_up() -> (Limiter<TokenBucket, ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    let limiter = Limiter::new(Quota::per_second(10).burst(1)).with_clock(clock.clone());
    assert!(limiter.check().is_allowed());
    (limiter, clock)
}

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
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    struct Calls(AtomicU32);
    impl std::task::Wake for Calls {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let (limiter, clock) = used_up();
    let first = begun(&limiter, 1);
    let calls = Arc::new(Calls(AtomicU32::new(0)));
    let waker = Waker::from(calls.clone());
    let mut second = wait(&limiter, 1);
    assert!(second.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    drop(first);
    assert_eq!(calls.0.load(Ordering::Relaxed), 1);
    assert!(second.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    clock.advance(ms(100));
    assert!(calls.0.load(Ordering::Relaxed) >= 2, "its alarm is set for the earlier instant");
    assert!(second.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
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
fn plans_wait_behind_what_is_promised() {
    const FREE: Quota = Quota::per_second(10).burst(1);
    const PAID: Quota = Quota::per_second(20).burst(2);
    let clock = ManualClock::new();
    let limiter = KeyedLimiter::<u64, _>::with(tidegate::Planned::new(FREE)).with_clock(clock.clone());
    assert!(limiter.check(&7).is_allowed());
    let mut wait: Waits<'_> = Box::pin(limiter.acquire(&7));
    assert!(look(&mut wait).is_none());
    assert_eq!(limiter.quota(PAID).check(&7).retry_after().expect("held back"), ms(100));
    let _ = limiter.quota(PAID).force(&7); // cannot be done again by another plan: what was promised counts from here on
    assert_eq!(retry(limiter.check(&7)), 300 * MS);
    drop(wait);
    assert_eq!(retry(limiter.check(&7)), 300 * MS);
    clock.advance(ms(300));
    assert!(limiter.check(&7).is_allowed());
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
    let _waits = [begun(&limiter, 1), begun(&limiter, 1)];

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
fn cancelled_in_any_order_reservations_leave_no_trace() {
    for order in [[0, 1], [1, 0]] {
        let (limiter, clock) = used_up();
        let (twin, its_clock) = used_up();
        let mut turns = [limiter.reserve().ok(), limiter.reserve().ok()];
        for index in order {
            turns[index].take().expect("reserved").cancel();
        }
        for step in 0..4 {
            assert_eq!(limiter.check(), twin.check(), "step {step}");
            clock.advance(ms(70));
            its_clock.advance(ms(70));
        }
    }
}

#[test]
fn a_reservation_keeps_its_instant_when_one_before_it_is_cancelled() {
    let (limiter, clock) = used_up();
    let (first, second) = (limiter.reserve().expect("promised"), limiter.reserve().expect("promised"));
    first.cancel();
    assert_eq!(second.ready_at(), Micros::new(200 * MS));
    assert_eq!(retry(limiter.check()), 300 * MS, "an interval after the second");
    clock.advance(ms(200));
    second.keep();
    assert_eq!(retry(limiter.check()), 100 * MS);
}

#[test]
fn from_its_instant_on_a_reservation_counts_as_used() {
    let (limiter, clock) = used_up();
    let turn = limiter.reserve().expect("promised");
    clock.advance(ms(100));
    turn.cancel();
    assert_eq!(retry(limiter.check()), 100 * MS);
    clock.advance(ms(100));
    assert!(limiter.check().is_allowed());
}

#[test]
fn a_wait_that_was_dropped_after_its_instant_gives_back_what_nobody_used() {
    let (limiter, clock) = used_up();
    let mut one = begun(&limiter, 1);
    let two = begun(&limiter, 1);
    clock.advance(ms(200));
    assert!(look(&mut one).expect("its turn").is_ok());
    drop(two); // its turn has come, but it has not gone ahead
    assert!(limiter.check().is_allowed());
    assert_eq!(retry(limiter.check()), 100 * MS);
}

#[test]
fn forced_costs_stand_behind_what_is_promised() {
    let (limiter, clock) = used_up();
    let mut one = begun(&limiter, 1);
    let two = begun(&limiter, 1);
    let _ = limiter.cost(3).force(); // as of 200 ms
    assert_eq!(retry(limiter.check()), 600 * MS);
    drop(two); // the debt stays where it was
    assert_eq!(retry(limiter.check()), 500 * MS);
    limiter.cost(3).refund();
    clock.advance(ms(100));
    assert!(look(&mut one).expect("its turn").is_ok(), "neither moved it");
}

#[test]
fn however_many_act_meanwhile_promises_are_kept_and_memory_is_bounded() {
    let (limiter, clock) = used_up();
    let mut one = begun(&limiter, 1);
    for _ in 0..10_000 {
        let _ = limiter.cost(1).force();
        limiter.cost(1).refund();
    }
    assert_eq!(retry(limiter.check()), 200 * MS);
    clock.advance(ms(100));
    assert!(look(&mut one).expect("its turn").is_ok());
    clock.advance(ms(100));
    assert!(limiter.check().is_allowed());
}

/// One more entry in a full log leaves the very same words, and still it happened.
#[test]
fn what_is_forced_into_a_full_log_is_remembered_when_a_wait_before_it_is_dropped() {
    let limiter = Limiter::with(SlidingLog::new(Quota::per_second(4))).with_clock(ManualClock::new());
    assert!(limiter.cost(4).check().is_allowed());
    let wait = begun(&limiter, 4);
    let _ = limiter.cost(4).force(); // as of one second
    drop(wait);
    assert_eq!(retry(limiter.check()), 2_000 * MS);
}

#[test]
fn reset_lets_waiters_pass_and_keeps_what_was_promised() {
    let (limiter, _clock) = used_up();
    let mut one = begun(&limiter, 1);
    let turn = limiter.reserve().expect("promised");
    limiter.reset();
    assert!(look(&mut one).expect("nothing is used any more").is_ok());
    assert_eq!(turn.ready_at(), Micros::new(200 * MS));
    assert_eq!(retry(limiter.check()), 300 * MS);
}

#[test]
fn a_change_judges_waiters_anew_and_keeps_reservations() {
    let (limiter, clock) = used_up();
    let mut one = begun(&limiter, 1);
    let turn = limiter.reserve().expect("promised for 200 ms");
    let mut last: Waits<'_> = Box::pin(limiter.acquire_timeout(ms(300)));
    assert!(look(&mut last).is_none());
    limiter.change(TokenBucket::new(Quota::per_second(5).burst(1)));
    assert!(
        matches!(look(&mut last), Some(Err(WaitRefused::TooLong { .. }))),
        "it would be later than 300 ms now"
    );
    clock.advance(ms(199));
    assert!(look(&mut one).is_none(), "one used is worth 200 ms now");
    clock.advance(ms(1));
    assert!(look(&mut one).expect("its turn").is_ok());
    assert_eq!(turn.ready_at(), Micros::new(200 * MS));
    turn.keep();
    assert_eq!(retry(limiter.check()), 400 * MS, "two left at 200 ms by a limit of one: one is debt");
}

#[test]
fn after_a_change_a_reservation_can_still_be_given_back() {
    let (limiter, _clock) = used_up();
    let turn = limiter.reserve().expect("promised");
    limiter.change(TokenBucket::new(Quota::per_second(20).burst(1)));
    turn.cancel();
    assert_eq!(retry(limiter.check()), 50 * MS);
}

#[test]
fn a_change_to_another_layout_keeps_promises_of_keys() {
    let clock = ManualClock::new();
    let limiter = KeyedLimiter::<str>::new(Quota::per_second(10).burst(1)).with_clock(clock.clone());
    assert!(limiter.check("a").is_allowed() && limiter.check("b").is_allowed());
    let turn = limiter.reserve("a").expect("promised");
    let wide = TokenBucket::new(Quota::per_second(999_983).burst(1));
    limiter.change(wide);
    assert!(!limiter.check("a").is_allowed());
    clock.advance(ms(99));
    assert!(limiter.check("b").is_allowed());
    assert_eq!(retry(limiter.check("a")), MS + 2, "the reservation first");
    clock.advance(ms(1));
    turn.keep();
    clock.advance(Duration::from_micros(2));
    assert!(limiter.check("a").is_allowed());
}

#[test]
fn each_key_has_a_line_of_its_own() {
    let clock = ManualClock::new();
    let limiter =
        KeyedLimiter::<str>::new(Quota::per_second(10).burst(1)).max_waiting(1).with_clock(clock.clone());
    for key in ["alice", "bob"] {
        assert!(limiter.check(key).is_allowed());
    }
    let mut alice: Waits<'_> = Box::pin(limiter.acquire("alice"));
    assert!(look(&mut alice).is_none());
    let refused = limiter.acquire_blocking("alice").expect_err("one may wait");
    assert_eq!(refused, WaitRefused::LineFull { max_waiting: 1 });
    let turn = limiter.reserve("bob").expect("another line");
    assert!(limiter.check("carol").is_allowed());
    assert_eq!(retry(limiter.check("carol")), 100 * MS);
    assert_eq!((retry(limiter.check("alice")), retry(limiter.check("bob"))), (200 * MS, 200 * MS));
    turn.cancel();
    assert_eq!((retry(limiter.check("alice")), retry(limiter.check("bob"))), (200 * MS, 100 * MS));
    clock.advance(ms(100));
    assert!(look(&mut alice).expect("its turn").is_ok());
    assert!(limiter.check("bob").is_allowed());
}

fn room_for_one(clock: &ManualClock) -> KeyedLimiter<u64, TokenBucket, ManualClock> {
    KeyedLimiter::new(Quota::per_second(10).burst(1)).max_keys(1).with_clock(clock.clone())
}

/// It waits by the cells that it shares. What is given back there stays used: nobody can tell whose it was.
#[test]
fn a_key_without_room_waits_by_the_sketch() {
    let clock = ManualClock::new();
    let limiter = room_for_one(&clock);
    let _ = limiter.cost(100).force(&1); // the room is taken for long
    assert!(limiter.check(&2).is_allowed());
    let turn = limiter.reserve(&2).expect("promised");
    assert_eq!(turn.wait(), ms(100));
    assert_eq!(retry(limiter.check(&2)), 200 * MS);
    clock.advance(ms(100));
    turn.keep();
    assert_eq!(retry(limiter.check(&2)), 100 * MS);
    limiter.reserve(&2).expect("promised").cancel();
    assert_eq!(retry(limiter.check(&2)), 200 * MS, "as if it had been used");
    clock.advance(ms(200));
    assert!(limiter.check(&2).is_allowed());
}

#[test]
fn there_is_no_line_for_a_key_without_room() {
    let clock = ManualClock::new();
    let limiter = room_for_one(&clock).on_full(OnFull::Refuse);
    assert!(limiter.check(&1).is_allowed());
    let refused = limiter.acquire_blocking(&2).expect_err("no room");
    assert!(matches!(refused, WaitRefused::TooManyKeys { .. }), "{refused:?}");
    let turn = limiter.reserve(&1).expect("has a place");
    clock.advance(ms(150));
    assert!(
        matches!(limiter.acquire_blocking(&2), Err(WaitRefused::TooManyKeys { .. })),
        "what was kept is not idle"
    );
    turn.keep();
    clock.advance(ms(50));
    assert!(limiter.acquire_blocking(&2).is_ok());
}

#[test]
fn a_key_whose_reservation_is_given_back_makes_room_when_it_is_idle() {
    let clock = ManualClock::new();
    let limiter = room_for_one(&clock).on_full(OnFull::Refuse);
    assert!(limiter.check(&1).is_allowed());
    let turn = limiter.reserve(&1).expect("promised");
    assert_eq!(retry(limiter.check(&2)), 200 * MS, "no room before the first key is idle");
    turn.cancel();
    clock.advance(ms(100));
    assert!(limiter.check(&2).is_allowed());
}

/// A turn that was promised for good is used at its instant, so it counts, also after a reset.
#[test]
fn a_reset_forgets_no_promise() {
    for deeds in [0, 100] {
        let (limiter, clock) = used_up();
        let turn = limiter.reserve().expect("promised"); // at 100 ms
        let kept = limiter.reserve().expect("promised"); // at 200 ms
        kept.keep();
        for _ in 0..deeds {
            limiter.cost(0).refund(); // more than are remembered one by one
            let _ = limiter.cost(1).force();
            limiter.cost(1).refund();
        }
        clock.advance(ms(50));
        limiter.reset();
        assert_eq!(retry(limiter.check()), 250 * MS, "after both, with {deeds} deeds: at 300 ms");
        clock.advance(ms(250));
        assert!(limiter.check().is_allowed());
        drop(turn);
    }
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
fn a_turn_in_a_queue_is_not_given_away_twice() {
    let clock = ManualClock::new();
    let limiter = Limiter::with(LeakyQueue::new(Quota::per_second(10), 5)).with_clock(clock);
    assert!(limiter.check().is_allowed());
    let first = limiter.reserve().expect("turn at 100 ms");
    assert_eq!(limiter.check().outcome, Outcome::AllowedAfter(tidegate::Wait::micros(200 * MS)));
    first.cancel(); // somebody has built upon it
    assert_eq!(limiter.check().outcome, Outcome::AllowedAfter(tidegate::Wait::micros(300 * MS)));

    let (fourth, fifth) = (limiter.reserve().expect("400 ms"), limiter.reserve().expect("500 ms"));
    fourth.cancel();
    fifth.cancel(); // and with it, the fourth
    assert_eq!(limiter.check().outcome, Outcome::AllowedAfter(tidegate::Wait::micros(400 * MS)));
}

#[test]
fn a_kept_reservation_holds_up_others_only_until_its_instant() {
    let clock = ManualClock::new();
    let limiter = KeyedLimiter::<u64>::new(Quota::per_second(10).burst(1)).with_clock(clock.clone());
    for key in 0..100 {
        assert!(limiter.check(&key).is_allowed());
        limiter.reserve(&key).expect("promised").keep();
    }
    clock.advance(ms(150));
    assert_eq!(retry(limiter.check(&7)), 50 * MS);
    clock.advance(Duration::from_secs(2));
    for key in 0..100 {
        assert!(limiter.check(&key).is_allowed());
    }
}

/// Asks both everything, and expects the same.
fn assert_alike<A: Algorithm>(one: &Limiter<A, ManualClock>, other: &Limiter<A, ManualClock>, what: &str) {
    for cost in 0..=5 {
        assert_eq!(one.cost(cost).check_each(), other.cost(cost).check_each(), "{what}, cost {cost}");
    }
}

/// Drops a wait at each stage of its life, with others before it and behind it, and compares with a limiter that never
/// knew of it.
fn a_dropped_wait_leaves_no_trace<A: Algorithm + Clone>(algorithm: A, what: &str) {
    for stage in 0..3 {
        for instant in [0, 1, 130, 250, 1_000, 2_100] {
            let (clock, its_clock) = (ManualClock::new(), ManualClock::new());
            let limiter = Limiter::with(algorithm.clone()).with_clock(clock.clone());
            let twin = Limiter::with(algorithm.clone()).with_clock(its_clock.clone());
            let (mut kept, mut its) = (Vec::new(), Vec::new());
            for _ in 0..4 {
                assert_eq!(limiter.check().outcome, twin.check().outcome);
            }
            for (index, cost) in [1, 2, 1].into_iter().enumerate() {
                let mut dropped = wait(&limiter, 3);
                if index == stage {
                    assert!(look(&mut dropped).is_none(), "nothing is left for it");
                }
                let (mut one, mut other) = (wait(&limiter, cost), wait(&twin, cost));
                assert!(look(&mut one).is_none());
                if index == stage {
                    drop(dropped);
                }
                let _ = look(&mut other);
                kept.push(one);
                its.push(other);
            }
            clock.advance(ms(instant));
            its_clock.advance(ms(instant));
            let told: Vec<_> = kept.iter_mut().map(look).collect();
            assert_eq!(told, its.iter_mut().map(look).collect::<Vec<_>>(), "{what} at {instant} ms");
            drop((kept, its));
            assert_alike(&limiter, &twin, what);
        }
    }
}

#[test]
fn a_dropped_wait_leaves_no_trace_in_any_algorithm() {
    let quota = Quota::per_second(4);
    a_dropped_wait_leaves_no_trace(TokenBucket::new(quota), "token bucket");
    a_dropped_wait_leaves_no_trace(SteppedBucket::new(quota), "stepped bucket");
    a_dropped_wait_leaves_no_trace(FixedWindow::new(quota), "fixed window");
    a_dropped_wait_leaves_no_trace(FixedWindow::new(quota).from_first_hit(), "from the first hit");
    a_dropped_wait_leaves_no_trace(SlidingLog::new(quota), "sliding log");
    a_dropped_wait_leaves_no_trace(SlidingWindow::new(quota, 4), "sliding window");
    let policy = (TokenBucket::new(quota), FixedWindow::new(Quota::per_minute(40)));
    a_dropped_wait_leaves_no_trace(policy, "policy");
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
