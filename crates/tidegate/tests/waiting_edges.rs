//! Waiting where two things meet: at the very instant of a turn, in a line that is long, behind what others have built
//! upon. Each of these was once wrong on purpose, and no other test had noticed.

#[allow(dead_code, reason = "shared by several files of tests, each of which uses a part")]
mod waits;

use std::future::{Ready, ready};
use std::time::Duration;

use tidegate::{
    Clock, ClockKind, FixedWindow, KeyedLimiter, LeakyQueue, Limiter, ManualClock, Micros, OnFull, Outcome,
    Park, PerCallBucket, Quota, Sleep, TokenBucket, Wait, WaitRefused,
};
use waits::{MS, Waits, begun, look, ms, retry, used_up};

const LONG: usize = 66;

/// Ten a second, five at once, and those are gone.
fn five_used() -> (Limiter<TokenBucket, ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    let limiter = Limiter::new(Quota::per_second(10).burst(5)).with_clock(clock.clone());
    assert!(limiter.cost(5).check().is_allowed());
    (limiter, clock)
}

// --- what others have built upon

#[test]
fn a_turn_is_given_back_no_more_from_its_instant_on_if_somebody_has_built_upon_it() {
    for (millis, expected) in [(100, 200), (150, 150)] {
        let (limiter, clock) = used_up();
        let one = begun(&limiter, 1); // 100 ms
        clock.advance(ms(millis));
        let _ = limiter.cost(1).force();
        drop(one);
        assert_eq!(retry(limiter.check()), expected * MS, "both count, at {millis} ms");
    }
}

#[test]
fn a_turn_in_a_queue_that_was_told_to_somebody_who_forced_it_is_not_given_away_twice() {
    let rules = (FixedWindow::new(Quota::per_second(2)), LeakyQueue::new(Quota::per_second(4), 5));
    let limiter = Limiter::with(rules).with_clock(ManualClock::new());
    assert!(limiter.cost(2).check().is_allowed());
    let turn = limiter.reserve().expect("the next window, where the queue is empty");
    assert_eq!(turn.ready_at(), Micros::new(1_000 * MS));
    assert_eq!(limiter.cost(1).force().outcome, Outcome::AllowedAfter(Wait::micros(250 * MS)));
    turn.cancel(); // somebody has built upon it
    assert_eq!(retry(limiter.check()), 2_000 * MS, "that window is full");
}

/// However many act meanwhile, remembered one by one or not: they are not in line.
#[test]
fn deeds_take_nobodys_place_in_line() {
    let limiter = Limiter::new(Quota::per_second(10).burst(1)).max_waiting(2).with_clock(ManualClock::new());
    assert!(limiter.check().is_allowed());
    let _first = begun(&limiter, 1);
    for deeds in 1..200 {
        if deeds % 2 == 1 {
            let _ = limiter.cost(1).force();
        } else {
            limiter.cost(1).refund();
        }
        let second = limiter.reserve().unwrap_or_else(|full| panic!("after {deeds} deeds: {full}"));
        assert!(matches!(limiter.reserve(), Err(WaitRefused::LineFull { max_waiting: 2 })));
        second.cancel();
    }
}

/// A key with a plan of its own: what was done by another plan cannot be done again, so all before it counts.
fn built_upon(quota: Quota, cost: u32) -> (KeyedLimiter<u64, PerCallBucket, ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    let limiter = KeyedLimiter::<u64, _>::with(PerCallBucket::new(quota)).with_clock(clock.clone());
    assert!(limiter.cost(cost).check(&7).is_allowed());
    limiter.cost(cost).reserve(&7).expect("promised").keep();
    (limiter, clock)
}

#[test]
fn nobody_passes_before_what_others_have_built_upon() {
    const QUOTA: Quota = Quota::per_second(10).burst(5);
    let (limiter, _clock) = built_upon(QUOTA, 5); // promised for 500 ms
    limiter.quota(QUOTA).cost(5).refund(&7); // as of then
    let mut wait: Waits<'_> = Box::pin(limiter.acquire(&7));
    assert!(look(&mut wait).is_none());
    drop(wait);
    assert_eq!(retry(limiter.check(&7)), 500 * MS, "when all is there, and not before");
}

#[test]
fn a_change_reckons_from_the_last_instant_that_others_have_built_upon() {
    const QUOTA: Quota = Quota::per_second(10).burst(1);
    let (limiter, clock) = built_upon(QUOTA, 1); // promised for 100 ms
    let _ = limiter.quota(QUOTA).force(&7); // as of then, when two are owed
    limiter.change(PerCallBucket::new(Quota::per_second(5).burst(1)));
    assert_eq!(retry(limiter.check(&7)), 300 * MS, "100 ms, and two at the pace they were used by");
    clock.advance(Duration::from_micros(300 * MS - 1));
    assert_eq!(retry(limiter.check(&7)), 1);
    clock.advance(Duration::from_micros(1));
    assert!(limiter.check(&7).is_allowed(), "exactly then");
}

// --- a reset and a change

#[test]
fn a_reset_forgets_a_turn_that_has_come_and_that_somebody_has_built_upon() {
    let (limiter, clock) = used_up();
    let mut one = begun(&limiter, 1); // 100 ms
    clock.advance(ms(150));
    let _ = limiter.cost(1).force();
    limiter.reset();
    assert!(limiter.check().is_allowed());
    assert!(look(&mut one).expect("its turn").is_ok());
}

/// A reset forgets what was given back as well, and then there is less than before.
#[test]
fn a_reset_makes_nobody_wait_longer() {
    let (limiter, clock) = five_used();
    let _turn = limiter.cost(5).reserve().expect("promised for 500 ms");
    limiter.cost(5).refund(); // as of then
    let mut one: Waits<'_> = Box::pin(async { limiter.cost(5).acquire_timeout(ms(500)).await });
    assert!(look(&mut one).is_none());
    limiter.reset();
    clock.advance(ms(500));
    assert!(look(&mut one).expect("its turn, as it was").is_ok());
}

#[test]
fn what_had_its_instant_before_a_change_was_used_by_the_setting_of_then() {
    let (limiter, clock) = used_up();
    limiter.reserve().expect("promised for 100 ms").keep();
    clock.advance(ms(150));
    limiter.change(TokenBucket::new(Quota::per_second(5).burst(1)));
    assert_eq!(retry(limiter.check()), 100 * MS, "half of it is used still, and half takes 100 ms now");
}

#[test]
fn whose_turn_has_come_is_not_judged_anew_by_a_change() {
    let (limiter, clock) = used_up();
    let (mut one, mut two) = (begun(&limiter, 1), begun(&limiter, 1));
    clock.advance(ms(200)); // this very instant is the second one's
    limiter.change(TokenBucket::new(Quota::per_second(5).burst(1)));
    assert!(look(&mut two).expect("its turn").is_ok());
    assert!(look(&mut one).expect("its turn").is_ok());
    assert_eq!(retry(limiter.check()), 400 * MS, "both are charged by the new setting, as of the change");
}

/// The one before it goes later than it could wait, although when that one is gone there would be enough.
#[test]
fn who_waits_behind_somebody_whom_a_change_puts_off_may_be_too_late() {
    let (limiter, _clock) = five_used();
    let _large = begun(&limiter, 5); // 500 ms
    limiter.cost(5).refund(); // as of then
    let mut one: Waits<'_> = Box::pin(limiter.acquire_timeout(ms(550)));
    assert!(look(&mut one).is_none(), "500 ms too");
    limiter.change(TokenBucket::new(Quota::per_second(5).burst(5))); // the large one passes after a second
    let (wait, within) = (Wait::micros(1_000 * MS), Wait::micros(550 * MS));
    assert_eq!(look(&mut one), Some(Err(WaitRefused::TooLong { wait, within })));
}

// --- a long line, where those behind find out later

fn long_line(limiter: &Limiter<TokenBucket, ManualClock>) -> Vec<Waits<'_>> {
    (0..LONG).map(|_| begun(limiter, 1)).collect()
}

#[test]
fn who_has_left_a_long_line_takes_nothing_when_all_the_others_have_passed() {
    let (limiter, clock) = used_up();
    let mut waits = long_line(&limiter);
    waits.pop();
    clock.advance(ms(6_500));
    assert_eq!(waits.iter_mut().filter_map(look).count(), LONG - 1);
    assert_eq!(retry(limiter.check()), 100 * MS);
}

#[test]
fn a_key_whose_long_line_got_shorter_makes_room_when_it_is_idle() {
    let clock = ManualClock::new();
    let limiter = KeyedLimiter::<u64>::new(Quota::per_second(10).burst(1)).max_keys(1);
    let limiter = limiter.on_full(OnFull::Refuse).with_clock(clock.clone());
    assert!(limiter.check(&1).is_allowed());
    let mut waits: Vec<Waits<'_>> = Vec::new();
    for _ in 0..LONG {
        waits.push(Box::pin(limiter.acquire(&1)));
        assert!(waits.last_mut().and_then(look).is_none());
    }
    assert!(!limiter.check(&2).is_allowed(), "and it is known how long there will be no room");
    waits.pop();
    clock.advance(ms(6_500));
    assert_eq!(waits.iter_mut().filter_map(look).count(), LONG - 1);
    clock.advance(ms(100));
    assert!(limiter.check(&2).is_allowed());
}

/// Whoever moves up in a long line finds out later, and by then others have had their instant.
#[test]
fn nobody_moves_up_before_what_has_had_its_instant_meanwhile() {
    let clock = ManualClock::new();
    let limiter = Limiter::new(Quota::per_second(10).burst(10)).with_clock(clock.clone());
    assert!(limiter.cost(10).check().is_allowed());
    limiter.cost(10).reserve().expect("promised for 1 s").keep();
    limiter.cost(10).refund(); // as of then
    let mut waits = long_line(&limiter); // ten of them then, too
    clock.advance(ms(500));
    waits.pop();
    clock.advance(Duration::from_millis(500));
    let decision = look(&mut waits[0]).expect("its turn").expect("allowed");
    assert_eq!(decision.at(), Micros::new(1_000 * MS));
}

#[test]
fn what_finds_no_room_behind_others_is_not_charged() {
    let clock = ManualClock::new();
    let limiter = KeyedLimiter::<u64>::new(Quota::per_second(10).burst(2)).max_keys(1);
    let limiter = limiter.on_full(OnFull::Refuse).with_clock(clock.clone());
    assert!(limiter.cost(2).check(&1).is_allowed());
    let mut wait: Waits<'_> = Box::pin(limiter.acquire(&1));
    assert!(look(&mut wait).is_none());
    clock.advance(Duration::from_secs(1)); // its turn has come, nobody looked, and its key is idle
    assert!(limiter.cost(2).check(&2).is_allowed(), "in its place");
    assert!(limiter.check(&1).is_allowed(), "it still has a line");
    let refused = limiter.cost(2).reserve(&1).expect_err("no room");
    assert!(matches!(refused, WaitRefused::TooManyKeys { .. }), "{refused:?}");
    assert!(limiter.peek(&1).is_allowed(), "one of two is left");
}

// --- timers that ring too early

/// A clock whose timers ring when half of the time is over.
#[derive(Clone, Default)]
struct Early(ManualClock);

impl Early {
    fn pass_half_of_the_time(&self, until: Micros) {
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
        self.pass_half_of_the_time(until);
    }
}

impl Sleep for Early {
    type Sleeping = Ready<()>;

    fn sleep_until(&self, until: Micros) -> Ready<()> {
        self.pass_half_of_the_time(until);
        ready(())
    }
}

#[test]
fn a_timer_that_rings_early_lets_nobody_pass_early() {
    let clock = Early::default();
    let limiter = Limiter::new(Quota::per_second(10).burst(1)).with_clock(clock.clone());
    assert!(limiter.check().is_allowed());
    let mut wait: Waits<'_> = Box::pin(limiter.acquire());
    let waited = look(&mut wait).expect("time passes by waiting").expect("allowed");
    assert_eq!((waited.at(), clock.now()), (Micros::new(100 * MS), Micros::new(100 * MS)));
    assert_eq!(limiter.acquire_blocking().expect("allowed").at(), Micros::new(200 * MS));
    let turn = limiter.reserve().expect("promised");
    let mut wait: Waits<'_> = Box::pin(async { Ok(turn.ready().await) });
    assert!(look(&mut wait).is_some());
    assert_eq!(clock.now(), Micros::new(300 * MS));
    let _ = limiter.reserve().expect("promised").ready_blocking();
    assert_eq!(clock.now(), Micros::new(400 * MS));
}
