//! Edge cases of waiting: at the exact instant of a reservation, in a long queue, behind charges that later
//! ones depend on. Each of these tests caught a deliberate bug that no other test noticed.

#[allow(dead_code, reason = "shared by several files of tests, each of which uses a part")]
mod polling;

use std::future::{Ready, ready};
use std::time::Duration;

use polling::{
    MS, WaitFuture, assert_refused, assert_too_long, exhausted, ms, pending_wait, poll_once, retry,
};
use tidegate::algorithm::{FixedWindow, LeakyQueue, PerCallBucket, TokenBucket};
use tidegate::clock::{Clock, ClockKind, Micros, Park, Sleep};
use tidegate::{AcquireError, KeyedLimiter, Limiter, ManualClock, OnFull, Outcome, Quota, Wait};

const LONG: usize = 66;

/// Ten per second with a burst of five, which is used up.
fn burst_of_five_used() -> (Limiter<TokenBucket, ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    let limiter = Limiter::builder(Quota::per_second(10).burst(5)).clock(clock.clone()).build();
    assert!(limiter.request().cost(5).check().is_allowed());
    (limiter, clock)
}

// --- charges that later ones depend on

#[test]
fn due_wait_with_a_later_charge_on_top_is_not_given_back() {
    for (millis, expected) in [(100, 200), (150, 150)] {
        let (limiter, clock) = exhausted();
        let one = pending_wait(&limiter, 1); // 100 ms
        clock.advance(ms(millis));
        let _ = limiter.request().cost(1).force();
        drop(one);
        assert_eq!(retry(limiter.check()), expected * MS, "both count, at {millis} ms");
    }
}

#[test]
fn cancelling_below_a_forced_leaky_queue_charge_gives_nothing_back() {
    let rules = (FixedWindow::new(Quota::per_second(2)), LeakyQueue::new(Quota::per_second(4), 5));
    let limiter = Limiter::builder_with(rules).clock(ManualClock::new()).build();
    assert!(limiter.request().cost(2).check().is_allowed());
    let reservation =
        limiter.request().reserve().expect("reserved in the next window, where the queue is empty");
    assert_eq!(reservation.ready_at(), Micros::new(1_000 * MS));
    assert_eq!(limiter.request().cost(1).force().outcome, Outcome::AllowedAfter(Wait::micros(250 * MS)));
    reservation.cancel(); // a later charge depends on it
    assert_eq!(retry(limiter.check()), 2_000 * MS, "that window is full");
}

/// No number of forced charges and refunds, whether stored one by one or merged, counts as a waiter.
#[test]
fn forced_charges_and_refunds_do_not_count_as_waiters() {
    let limiter =
        Limiter::builder(Quota::per_second(10).burst(1)).max_waiting(2).clock(ManualClock::new()).build();
    assert!(limiter.check().is_allowed());
    let _first = pending_wait(&limiter, 1);
    for mutations in 1..200 {
        if mutations % 2 == 1 {
            let _ = limiter.request().cost(1).force();
        } else {
            limiter.request().cost(1).refund();
        }
        let second =
            limiter.request().reserve().unwrap_or_else(|full| panic!("after {mutations} mutations: {full}"));
        let refused = limiter.request().reserve().expect_err("full");
        let message = "the queue is full: 2 requests are waiting; retry later";
        assert_refused(&refused, AcquireError::is_queue_full, message);
        second.cancel();
    }
}

/// A key with per-call quotas: a charge by another quota cannot be replayed, so every charge before it is
/// final.
fn with_final_reservation(
    quota: Quota,
    cost: u32,
) -> (KeyedLimiter<u64, PerCallBucket, ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    let limiter =
        KeyedLimiter::<u64, _>::builder_with(PerCallBucket::new(quota)).clock(clock.clone()).build();
    assert!(limiter.request(&7).cost(cost).check().is_allowed());
    limiter.request(&7).cost(cost).reserve().expect("reserved").keep();
    (limiter, clock)
}

#[test]
fn no_request_passes_before_a_final_reservation() {
    const QUOTA: Quota = Quota::per_second(10).burst(5);
    let (limiter, _clock) = with_final_reservation(QUOTA, 5); // reserved for 500 ms
    limiter.request(&7).quota(QUOTA).cost(5).refund(); // as of that instant
    let mut wait: WaitFuture<'_> = Box::pin(limiter.acquire(&7));
    assert!(poll_once(&mut wait).is_none());
    drop(wait);
    assert_eq!(retry(limiter.check(&7)), 500 * MS, "when the full burst is available, and not before");
}

#[test]
fn rule_change_takes_effect_from_the_last_final_instant() {
    const QUOTA: Quota = Quota::per_second(10).burst(1);
    let (limiter, clock) = with_final_reservation(QUOTA, 1); // reserved for 100 ms
    let _ = limiter.request(&7).quota(QUOTA).force(); // as of that instant, two tokens in debt
    limiter.change(PerCallBucket::new(Quota::per_second(5).burst(1)));
    assert_eq!(retry(limiter.check(&7)), 300 * MS, "100 ms, and two tokens at the rate they were charged by");
    clock.advance(Duration::from_micros(300 * MS - 1));
    assert_eq!(retry(limiter.check(&7)), 1);
    clock.advance(Duration::from_micros(1));
    assert!(limiter.check(&7).is_allowed(), "exactly then");
}

// --- a reset and a change

#[test]
fn reset_clears_a_due_wait_with_a_later_charge_on_top() {
    let (limiter, clock) = exhausted();
    let mut one = pending_wait(&limiter, 1); // 100 ms
    clock.advance(ms(150));
    let _ = limiter.request().cost(1).force();
    limiter.request().reset();
    assert!(limiter.check().is_allowed());
    assert!(poll_once(&mut one).expect("ready").is_ok());
}

/// A reset clears refunds as well, which leaves less quota than before.
#[test]
fn reset_makes_no_waiter_wait_longer() {
    let (limiter, clock) = burst_of_five_used();
    let _reservation = limiter.request().cost(5).reserve().expect("reserved for 500 ms");
    limiter.request().cost(5).refund(); // as of that instant
    let mut one: WaitFuture<'_> =
        Box::pin(async { limiter.request().cost(5).timeout(ms(500)).acquire().await });
    assert!(poll_once(&mut one).is_none());
    limiter.request().reset();
    clock.advance(ms(500));
    assert!(poll_once(&mut one).expect("ready at the original instant").is_ok());
}

#[test]
fn reservation_due_before_a_change_is_charged_by_the_old_quota() {
    let (limiter, clock) = exhausted();
    limiter.request().reserve().expect("reserved for 100 ms").keep();
    clock.advance(ms(150));
    limiter.change(TokenBucket::new(Quota::per_second(5).burst(1)));
    assert_eq!(
        retry(limiter.check()),
        100 * MS,
        "half a token is still used, and half a token takes 100 ms now"
    );
}

#[test]
fn due_waiter_is_not_rescheduled_by_a_change() {
    let (limiter, clock) = exhausted();
    let (mut one, mut two) = (pending_wait(&limiter, 1), pending_wait(&limiter, 1));
    clock.advance(ms(200)); // exactly the second waiter's instant
    limiter.change(TokenBucket::new(Quota::per_second(5).burst(1)));
    assert!(poll_once(&mut two).expect("ready").is_ok());
    assert!(poll_once(&mut one).expect("ready").is_ok());
    assert_eq!(retry(limiter.check()), 400 * MS, "both are charged by the new quota, as of the change");
}

/// The waiter ahead passes later than this one's timeout, although enough quota is left once that waiter
/// has passed.
#[test]
fn waiter_behind_a_waiter_delayed_by_a_change_is_refused_as_too_long() {
    let (limiter, _clock) = burst_of_five_used();
    let _large = pending_wait(&limiter, 5); // 500 ms
    limiter.request().cost(5).refund(); // as of that instant
    let mut one: WaitFuture<'_> = Box::pin(limiter.request().timeout(ms(550)).acquire());
    assert!(poll_once(&mut one).is_none(), "500 ms too");
    limiter.change(TokenBucket::new(Quota::per_second(5).burst(5))); // the large waiter passes after 1 s
    let message = "the wait would be 1s, longer than the timeout of 550ms; retry after 1s";
    assert_too_long(poll_once(&mut one), message);
}

// --- a long queue, where the waiters behind are updated later

fn long_queue(limiter: &Limiter<TokenBucket, ManualClock>) -> Vec<WaitFuture<'_>> {
    (0..LONG).map(|_| pending_wait(limiter, 1)).collect()
}

#[test]
fn waiter_dropped_from_a_long_queue_is_not_charged() {
    let (limiter, clock) = exhausted();
    let mut waits = long_queue(&limiter);
    waits.pop();
    clock.advance(ms(6_500));
    assert_eq!(waits.iter_mut().filter_map(poll_once).count(), LONG - 1);
    assert_eq!(retry(limiter.check()), 100 * MS);
}

#[test]
fn key_whose_long_queue_drained_makes_room_when_idle() {
    let clock = ManualClock::new();
    let limiter = KeyedLimiter::<u64>::builder(Quota::per_second(10).burst(1)).max_keys(1);
    let limiter = limiter.on_full(OnFull::Refuse).clock(clock.clone()).build();
    assert!(limiter.check(&1).is_allowed());
    let mut waits: Vec<WaitFuture<'_>> = Vec::new();
    for _ in 0..LONG {
        waits.push(Box::pin(limiter.acquire(&1)));
        assert!(waits.last_mut().and_then(poll_once).is_none());
    }
    assert!(!limiter.check(&2).is_allowed(), "the retry instant of the full table is cached from here on");
    waits.pop();
    clock.advance(ms(6_500));
    assert_eq!(waits.iter_mut().filter_map(poll_once).count(), LONG - 1);
    clock.advance(ms(100));
    assert!(limiter.check(&2).is_allowed());
}

/// A waiter that moves up in a long queue is updated later, and other reservations become due before that.
#[test]
fn no_waiter_moves_up_before_a_reservation_that_became_due() {
    let clock = ManualClock::new();
    let limiter = Limiter::builder(Quota::per_second(10).burst(10)).clock(clock.clone()).build();
    assert!(limiter.request().cost(10).check().is_allowed());
    limiter.request().cost(10).reserve().expect("reserved for 1 s").keep();
    limiter.request().cost(10).refund(); // as of that instant
    let mut waits = long_queue(&limiter); // the first ten are ready at that instant, too
    clock.advance(ms(500));
    waits.pop();
    clock.advance(Duration::from_millis(500));
    let decision = poll_once(&mut waits[0]).expect("ready").expect("allowed");
    assert_eq!(decision.at(), Micros::new(1_000 * MS));
}

#[test]
fn reservation_that_finds_no_room_is_not_charged() {
    let clock = ManualClock::new();
    let limiter = KeyedLimiter::<u64>::builder(Quota::per_second(10).burst(2)).max_keys(1);
    let limiter = limiter.on_full(OnFull::Refuse).clock(clock.clone()).build();
    assert!(limiter.request(&1).cost(2).check().is_allowed());
    let mut wait: WaitFuture<'_> = Box::pin(limiter.acquire(&1));
    assert!(poll_once(&mut wait).is_none());
    clock.advance(Duration::from_secs(1)); // it is due but not polled, and its key is idle
    assert!(limiter.request(&2).cost(2).check().is_allowed(), "key 2 takes the entry of key 1");
    assert!(limiter.check(&1).is_allowed(), "key 1 still has a queue");
    let refused = limiter.request(&1).cost(2).reserve().expect_err("no room");
    assert!(refused.is_closed(), "{refused:?}");
    assert!(limiter.request(&1).peek().is_allowed(), "one of two is left");
}

// --- timers that fire too early

/// A clock with timers that fire after half of the time.
#[derive(Clone, Default)]
struct Early(ManualClock);

impl Early {
    fn advance_halfway(&self, until: Micros) {
        self.0.advance(Duration::from_micros(until.since(self.now()).div_ceil(2)));
    }
}

impl Clock for Early {
    const KIND: ClockKind = ClockKind::Monotonic;

    fn now(&self) -> Micros {
        self.0.now()
    }
}

impl Park for Early {
    fn park_until(&self, until: Micros) {
        self.advance_halfway(until);
    }
}

impl Sleep for Early {
    type Sleeping = Ready<()>;

    fn sleep_until(&self, until: Micros) -> Ready<()> {
        self.advance_halfway(until);
        ready(())
    }
}

#[test]
fn timer_that_fires_early_lets_no_waiter_pass_early() {
    let clock = Early::default();
    let limiter = Limiter::builder(Quota::per_second(10).burst(1)).clock(clock.clone()).build();
    assert!(limiter.check().is_allowed());
    let mut wait: WaitFuture<'_> = Box::pin(limiter.acquire());
    let waited = poll_once(&mut wait).expect("sleeping advances this clock").expect("allowed");
    assert_eq!((waited.at(), clock.now()), (Micros::new(100 * MS), Micros::new(100 * MS)));
    assert_eq!(limiter.request().acquire_blocking().expect("allowed").at(), Micros::new(200 * MS));
    let reservation = limiter.request().reserve().expect("reserved");
    let mut wait: WaitFuture<'_> = Box::pin(async { Ok(reservation.ready().await) });
    assert!(poll_once(&mut wait).is_some());
    assert_eq!(clock.now(), Micros::new(300 * MS));
    let _ = limiter.request().reserve().expect("reserved").ready_blocking();
    assert_eq!(clock.now(), Micros::new(400 * MS));
}
