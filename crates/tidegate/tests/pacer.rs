//! Pacers: a day at the line, threads that stand in it, and what becomes of places that are given up.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use tidegate::{Bursty, Clock, ManualClock, Micros, Pacer, Quota, TooLong, Wait, WarmUp};

const THREADS: u64 = 8;
const SECOND: Duration = Duration::from_secs(1);

fn five() -> Quota {
    Quota::per_second(5)
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A pacer whose time stands still until it is moved, and somebody who waits at it.
struct Day {
    pacer: Pacer<ManualClock>,
    clock: ManualClock,
}

impl Day {
    fn with(pacing: impl Into<tidegate::Pacing>) -> Self {
        let clock = ManualClock::new();
        clock.advance_to(Micros::new(1_760_000_000_000_000));
        Day { pacer: Pacer::with(pacing).with_clock(clock.clone()), clock }
    }

    /// Waits for `permits`, which takes so many milliseconds.
    fn acquire(&self, permits: u64) -> u64 {
        let wait = self.pacer.try_acquire_timeout(permits, Duration::MAX).expect("on the time line");
        self.clock.advance(wait.duration());
        wait.as_micros() / 1_000
    }

    fn acquire_each(&self, permits: &[u64]) -> Vec<u64> {
        permits.iter().map(|&permits| self.acquire(permits)).collect()
    }

    fn idle(&self, long: Duration) {
        self.clock.advance(long);
    }

    fn wait(&self) -> Wait {
        self.pacer.peek().expect("on the time line")
    }
}

#[test]
fn the_published_values_of_bursty_pacing() {
    let day = Day::with(Bursty::new(five()));
    assert_eq!(day.acquire_each(&[1; 7]), [0, 200, 200, 200, 200, 200, 200]);
    let day = Day::with(Bursty::new(five()));
    assert_eq!(day.acquire_each(&[5, 1, 1]), [0, 1_000, 200]);
    let day = Day::with(Bursty::new(Quota::per_second(2)));
    assert_eq!(day.acquire(1), 0);
    day.idle(5 * SECOND);
    assert_eq!(day.acquire_each(&[1; 4]), [0, 0, 0, 500]);
}

#[test]
fn the_published_values_of_warming_up() {
    let day = Day::with(WarmUp::new(five(), SECOND));
    assert_eq!(day.acquire_each(&[1; 6]), [0, 520, 360, 220, 200, 200]);
    day.idle(SECOND);
    assert_eq!(day.acquire_each(&[1; 5]), [0, 360, 220, 200, 200]);
}

#[test]
fn a_bounded_try_refuses_at_once_and_charges_nothing() {
    let Day { pacer, clock } = Day::with(Bursty::new(five()));
    assert_eq!(pacer.try_acquire(1), Ok(()));
    let refused = Err(TooLong { wait: Wait::micros(200_000) });
    assert_eq!(pacer.try_acquire_timeout(1, Duration::from_nanos(199_999_999)), refused);
    assert_eq!(pacer.try_acquire_timeout(1, millis(200)), Ok(Wait::micros(200_000)));
    clock.advance(millis(400));
    assert_eq!(pacer.try_acquire(u64::MAX), Ok(()), "whoever is next pays");
    let too_long = pacer.try_acquire_timeout(1, Duration::MAX).unwrap_err();
    assert_eq!(too_long.wait.as_micros(), Micros::MAX.since(clock.now()));
    assert!(pacer.reserve(1).is_err());
    assert_eq!(pacer.peek(), Err(too_long));
}

#[test]
fn another_rate_keeps_every_promise() {
    let Day { pacer, clock } = Day::with(Bursty::new(Quota::per_second(1)));
    let promised = [1, 1, 1].map(|permits| pacer.reserve(permits).expect("on the time line"));
    assert_eq!(pacer.clone().set_rate(Quota::per_second(2)), Ok(()));
    assert_eq!(pacer.quota(), Quota::per_second(2));
    assert_eq!(promised.each_ref().map(|place| place.wait().as_micros()), [0, 1_000_000, 2_000_000]);
    let next = [1, 1].map(|permits| pacer.reserve(permits).expect("on the time line"));
    assert_eq!(next.each_ref().map(|place| place.wait().as_micros()), [3_000_000, 3_500_000]);
    clock.advance(4 * SECOND);
    drop((promised, next));
    assert_eq!(pacer.peek(), Ok(Wait::micros(0)));
}

#[test]
fn a_rate_that_a_warm_up_cannot_keep_changes_nothing() {
    let day = Day::with(WarmUp::new(Quota::per_second(1), Duration::from_secs(86_400 * 365)));
    day.acquire(1);
    let wait = day.wait();
    let odd = Quota::try_new(999_983, Duration::from_secs(999_979), 1).expect("exact by itself");
    let sentence = day.pacer.set_rate(odd).unwrap_err().to_string();
    assert!(sentence.contains("cannot be counted exactly"), "{sentence}");
    assert_eq!((day.pacer.quota(), day.wait()), (Quota::per_second(1), wait));
}

#[test]
fn clones_stand_in_one_line() {
    let day = Day::with(Bursty::new(five()));
    assert_eq!(day.pacer.clone().try_acquire(1), Ok(()));
    assert!(day.pacer.try_acquire(1).is_err());
}

// --- places that are given up

#[test]
fn the_last_in_line_is_given_back_when_dropped() {
    let day = Day::with(Bursty::new(five()));
    day.pacer.try_acquire(1).expect("nobody is before it");
    drop(day.pacer.reserve(10).expect("on the time line"));
    assert_eq!(day.wait(), millis(200));
    day.pacer.reserve(10).expect("on the time line").cancel();
    assert_eq!(day.wait(), millis(200));
    day.pacer.reserve(10).expect("on the time line").keep();
    assert_eq!(day.wait(), millis(2_200));
}

#[test]
fn whoever_has_somebody_behind_gives_nothing_back() {
    let day = Day::with(Bursty::new(five()));
    day.pacer.try_acquire(1).expect("nobody is before it");
    let first = day.pacer.reserve(10).expect("on the time line");
    let second = day.pacer.reserve(1).expect("on the time line");
    drop(first);
    assert_eq!(day.wait(), millis(2_400), "the second was promised 2.2 s, and keeps its distance");
    second.cancel();
    assert_eq!(day.wait(), millis(2_200));
}

/// A loop that holds its reservation while it works must not get its permits back at the end of each turn.
#[test]
fn from_its_instant_on_a_reservation_is_used() {
    let day = Day::with(Bursty::new(five()));
    for turn in 0..5 {
        let reservation = day.pacer.reserve(1).expect("on the time line");
        assert_eq!(reservation.wait(), millis(if turn == 0 { 0 } else { 200 }));
        day.clock.advance(reservation.wait().duration());
    }
    assert_eq!(day.wait(), millis(200));
}

/// At its very instant only its owner can know; `cancel` is the owner's word.
#[test]
fn at_its_instant_a_reservation_can_still_be_cancelled() {
    let day = Day::with(Bursty::new(five()));
    day.pacer.reserve(3).expect("on the time line").cancel();
    assert_eq!(day.wait(), Duration::ZERO);
    let reservation = day.pacer.reserve(3).expect("on the time line");
    day.clock.advance(Duration::from_micros(1));
    reservation.cancel();
    assert_eq!(day.wait(), Duration::from_micros(599_999));
}

#[test]
fn after_a_change_of_the_rate_nothing_is_given_back() {
    let day = Day::with(Bursty::new(five()));
    day.pacer.try_acquire(1).expect("nobody is before it");
    let reservation = day.pacer.reserve(5).expect("on the time line");
    day.pacer.set_rate(Quota::per_second(5)).expect("a rate that fits");
    reservation.cancel();
    assert_eq!(day.wait(), millis(1_200));
}

// --- threads

/// Runs `each` on eight threads at once, and gathers what they return.
fn on_threads<T: Send>(each: impl Fn(u64) -> Vec<T> + Sync) -> Vec<T> {
    let start = Barrier::new(usize::try_from(THREADS).expect("a few"));
    thread::scope(|scope| {
        let run = |index| {
            let (start, each) = (&start, &each);
            scope.spawn(move || {
                start.wait();
                each(index)
            })
        };
        let threads: Vec<_> = (0..THREADS).map(run).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("it has returned")).collect()
    })
}

/// Where time stands still the promises of all threads, sorted, must follow each other without a gap and without an
/// overlap.
#[test]
fn eight_threads_get_eight_thousand_places_side_by_side() {
    let quota = Quota::every(Duration::from_micros(10));
    for day in [Day::with(Bursty::new(quota)), Day::with(WarmUp::new(quota, SECOND).cold_factor(1))] {
        let mut places = on_threads(|index| {
            let place = |turn: u64| {
                let permits = 1 + (index + turn) % 3;
                let wait = day.pacer.try_acquire_timeout(permits, Duration::MAX).expect("on the time line");
                (wait.as_micros(), permits)
            };
            (0..1_000).map(place).collect()
        });
        places.sort_unstable();
        let mut free = 0;
        for (wait, permits) in places {
            assert_eq!(wait, free);
            free += permits * 10;
        }
        assert_eq!(day.wait().as_micros(), free);
    }
}

/// Threads that wait by moving the clock: what passes is what the time that has passed is worth.
#[test]
fn eight_threads_that_wait_keep_the_rate() {
    let quota = Quota::per_second(80_000);
    let day = Day::with(Bursty::new(quota).max_burst(Duration::ZERO));
    let began = day.clock.now();
    let permits: u64 = on_threads(|index| {
        let turn = |turn: u64| {
            let permits = 1 + (index + turn) % 5;
            let now = day.clock.now();
            let wait = day.pacer.try_acquire_timeout(permits, Duration::MAX).expect("on the time line");
            day.clock.advance_to(now.plus(wait.as_micros()));
            permits
        };
        (0..2_000).map(turn).collect()
    })
    .into_iter()
    .sum();
    // All of them are paid for when the next one is free; 25/2 µs each.
    let paid = day.clock.now().since(began) + day.wait().as_micros();
    assert!(permits * 25 <= 2 * paid, "{permits} within {paid} µs");
}

/// Some wait, some give up, and the rate changes: whoever stays is still as far from the one before as that one's
/// permits are worth at the fastest rate.
#[test]
fn no_two_are_promised_one_place_whoever_gives_up() {
    let rates = [Quota::every(Duration::from_micros(10)), Quota::every(Duration::from_micros(30))];
    let day = Day::with(Bursty::new(rates[0]));
    day.pacer.try_acquire(1_000).expect("nobody is before it");
    let mut kept = on_threads(|index| {
        let mut kept = Vec::new();
        for turn in 0..2_000 {
            let permits = 1 + (index + turn) % 3;
            let place = day.pacer.reserve(permits).expect("on the time line");
            if turn % 3 == 0 {
                place.cancel();
            } else {
                kept.push((place.wait().as_micros(), permits));
                place.keep();
            }
            if index == 0 && turn % 100 == 0 {
                let rate = rates[usize::try_from(turn / 100 % 2).expect("0 or 1")];
                day.pacer.set_rate(rate).expect("a rate that fits");
            }
        }
        kept
    });
    kept.sort_unstable();
    for pair in kept.windows(2) {
        let [(wait, permits), (next, _)] = pair else { unreachable!("windows of two") };
        assert!(wait + permits * 10 <= *next, "{permits} at {wait}, and another at {next}");
    }
    let (last, permits) = kept[kept.len() - 1];
    assert!(day.wait().as_micros() >= last + permits * 10);
}

// --- waiting

mod waiting {
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn look<F: Future>(wait: Pin<&mut F>) -> Poll<F::Output> {
        wait.poll(&mut Context::from_waker(Waker::noop()))
    }

    fn millis_left(pacer: &Pacer<ManualClock>) -> u128 {
        pacer.peek().expect("on the time line").duration().as_millis()
    }

    #[test]
    fn a_wait_ends_at_its_instant_and_tells_how_long_it_was() {
        let Day { pacer, clock } = Day::with(Bursty::new(five()));
        let mut first = pin!(pacer.acquire(5));
        assert_eq!(look(first.as_mut()), Poll::Ready(Ok(Wait::micros(0))), "the next one pays");
        let mut second = pin!(pacer.acquire(1));
        assert!(look(second.as_mut()).is_pending());
        clock.advance(millis(999));
        assert!(look(second.as_mut()).is_pending());
        clock.advance(millis(1));
        assert_eq!(look(second.as_mut()), Poll::Ready(Ok(Wait::micros(1_000_000))));
    }

    #[test]
    fn a_wait_that_is_dropped_is_given_back() {
        let Day { pacer, clock } = Day::with(Bursty::new(five()));
        pacer.try_acquire(1).expect("the first");
        {
            let mut wait = pin!(pacer.acquire(10));
            assert!(look(wait.as_mut()).is_pending());
            assert_eq!(millis_left(&pacer), 2_200);
            clock.advance(millis(100));
        }
        assert_eq!(millis_left(&pacer), 100);
    }

    #[test]
    fn a_wait_that_is_over_is_not_given_back() {
        let Day { pacer, clock } = Day::with(Bursty::new(five()));
        pacer.try_acquire(1).expect("the first");
        {
            let mut wait = pin!(pacer.acquire(1));
            assert!(look(wait.as_mut()).is_pending());
            clock.advance(millis(200));
            assert!(look(wait.as_mut()).is_ready());
        }
        assert_eq!(millis_left(&pacer), 200);
    }

    #[test]
    fn a_time_out_that_cannot_suffice_refuses_at_once_and_charges_nothing() {
        let Day { pacer, clock } = Day::with(Bursty::new(five()));
        pacer.try_acquire(1).expect("the first");
        let short = Duration::from_micros(199_999);
        let refused = TooLong { wait: Wait::micros(200_000) };
        assert_eq!(look(pin!(pacer.acquire_timeout(1, short))), Poll::Ready(Err(refused)));
        assert_eq!(pacer.acquire_blocking_timeout(1, short), Err(refused));
        assert_eq!(millis_left(&pacer), 200);
        let mut enough = pin!(pacer.acquire_timeout(1, millis(200)));
        assert!(look(enough.as_mut()).is_pending());
        clock.advance(millis(200));
        assert!(look(enough.as_mut()).is_ready());
    }

    #[test]
    fn threads_wait_too() {
        let Day { pacer, clock } = Day::with(Bursty::new(five()));
        pacer.try_acquire(1).expect("the first");
        thread::scope(|scope| {
            let waits = [(); 3].map(|()| scope.spawn(|| pacer.acquire_blocking(1)));
            while millis_left(&pacer) < 800 {
                thread::yield_now(); // until all three have reserved
            }
            clock.advance(millis(600));
            let mut waited =
                waits.map(|wait| wait.join().expect("no panic").expect("waited").as_micros() / 1_000);
            waited.sort_unstable();
            assert_eq!(waited, [200, 400, 600]);
        });
    }
}
