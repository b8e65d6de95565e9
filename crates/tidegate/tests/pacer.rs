//! Pacers: consecutive waits, concurrent threads, and cancelled reservations.

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

/// A pacer with a manual clock.
struct Paced {
    pacer: Pacer<ManualClock>,
    clock: ManualClock,
}

impl Paced {
    fn with(pacing: impl Into<tidegate::Pacing>) -> Self {
        let clock = ManualClock::new();
        clock.advance_to(Micros::new(1_760_000_000_000_000));
        Paced { pacer: Pacer::with(pacing).with_clock(clock.clone()), clock }
    }

    /// Waits for `permits`; returns the wait in milliseconds.
    fn acquire(&self, permits: u64) -> u64 {
        let wait =
            self.pacer.try_acquire_timeout(permits, Duration::MAX).expect("before the end of the clock");
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
        self.pacer.peek().expect("before the end of the clock")
    }
}

#[test]
fn bursty_pacing_matches_the_published_values() {
    let paced = Paced::with(Bursty::new(five()));
    assert_eq!(paced.acquire_each(&[1; 7]), [0, 200, 200, 200, 200, 200, 200]);
    let paced = Paced::with(Bursty::new(five()));
    assert_eq!(paced.acquire_each(&[5, 1, 1]), [0, 1_000, 200]);
    let paced = Paced::with(Bursty::new(Quota::per_second(2)));
    assert_eq!(paced.acquire(1), 0);
    paced.idle(5 * SECOND);
    assert_eq!(paced.acquire_each(&[1; 4]), [0, 0, 0, 500]);
}

#[test]
fn warm_up_matches_the_published_values() {
    let paced = Paced::with(WarmUp::new(five(), SECOND));
    assert_eq!(paced.acquire_each(&[1; 6]), [0, 520, 360, 220, 200, 200]);
    paced.idle(SECOND);
    assert_eq!(paced.acquire_each(&[1; 5]), [0, 360, 220, 200, 200]);
}

#[test]
fn try_with_a_short_timeout_is_refused_and_not_charged() {
    let Paced { pacer, clock } = Paced::with(Bursty::new(five()));
    assert_eq!(pacer.try_acquire(1), Ok(()));
    let refused = Err(TooLong { wait: Wait::micros(200_000) });
    assert_eq!(pacer.try_acquire_timeout(1, Duration::from_nanos(199_999_999)), refused);
    assert_eq!(pacer.try_acquire_timeout(1, millis(200)), Ok(Wait::micros(200_000)));
    clock.advance(millis(400));
    assert_eq!(pacer.try_acquire(u64::MAX), Ok(()), "the next request pays for it");
    let too_long = pacer.try_acquire_timeout(1, Duration::MAX).unwrap_err();
    assert_eq!(too_long.wait.as_micros(), Micros::MAX.since(clock.now()));
    assert!(pacer.reserve(1).is_err());
    assert_eq!(pacer.peek(), Err(too_long));
}

#[test]
fn rate_change_keeps_every_reservation() {
    let Paced { pacer, clock } = Paced::with(Bursty::new(Quota::per_second(1)));
    let reserved = [1, 1, 1].map(|permits| pacer.reserve(permits).expect("before the end of the clock"));
    assert_eq!(pacer.clone().set_rate(Quota::per_second(2)), Ok(()));
    assert_eq!(pacer.quota(), Quota::per_second(2));
    assert_eq!(
        reserved.each_ref().map(|reservation| reservation.wait().as_micros()),
        [0, 1_000_000, 2_000_000]
    );
    let next = [1, 1].map(|permits| pacer.reserve(permits).expect("before the end of the clock"));
    assert_eq!(next.each_ref().map(|reservation| reservation.wait().as_micros()), [3_000_000, 3_500_000]);
    clock.advance(4 * SECOND);
    drop((reserved, next));
    assert_eq!(pacer.peek(), Ok(Wait::micros(0)));
}

#[test]
fn rate_that_a_warm_up_cannot_represent_changes_nothing() {
    let paced = Paced::with(WarmUp::new(Quota::per_second(1), Duration::from_secs(86_400 * 365)));
    paced.acquire(1);
    let wait = paced.wait();
    let odd = Quota::try_new(999_983, Duration::from_secs(999_979), 1).expect("exact by itself");
    let sentence = paced.pacer.set_rate(odd).unwrap_err().to_string();
    assert!(sentence.contains("cannot be counted exactly"), "{sentence}");
    assert_eq!((paced.pacer.quota(), paced.wait()), (Quota::per_second(1), wait));
}

#[test]
fn clones_share_one_queue() {
    let paced = Paced::with(Bursty::new(five()));
    assert_eq!(paced.pacer.clone().try_acquire(1), Ok(()));
    assert!(paced.pacer.try_acquire(1).is_err());
}

// --- cancelled reservations

#[test]
fn last_reservation_is_given_back_when_dropped_or_cancelled() {
    let paced = Paced::with(Bursty::new(five()));
    paced.pacer.try_acquire(1).expect("the queue is empty");
    drop(paced.pacer.reserve(10).expect("before the end of the clock"));
    assert_eq!(paced.wait(), millis(200));
    paced.pacer.reserve(10).expect("before the end of the clock").cancel();
    assert_eq!(paced.wait(), millis(200));
    paced.pacer.reserve(10).expect("before the end of the clock").keep();
    assert_eq!(paced.wait(), millis(2_200));
}

#[test]
fn reservation_with_another_behind_it_is_not_given_back() {
    let paced = Paced::with(Bursty::new(five()));
    paced.pacer.try_acquire(1).expect("the queue is empty");
    let first = paced.pacer.reserve(10).expect("before the end of the clock");
    let second = paced.pacer.reserve(1).expect("before the end of the clock");
    drop(first);
    assert_eq!(paced.wait(), millis(2_400), "the second keeps its 2.2 s and its own permits");
    second.cancel();
    assert_eq!(paced.wait(), millis(2_200));
}

/// A loop that holds its reservation while it works must not get its permits back at the end of each
/// iteration.
#[test]
fn reservation_dropped_after_its_instant_stays_charged() {
    let paced = Paced::with(Bursty::new(five()));
    for round in 0..5 {
        let reservation = paced.pacer.reserve(1).expect("before the end of the clock");
        assert_eq!(reservation.wait(), millis(if round == 0 { 0 } else { 200 }));
        paced.clock.advance(reservation.wait().duration());
    }
    assert_eq!(paced.wait(), millis(200));
}

/// At the exact instant only the owner knows whether the reservation was used; `cancel` says that it was not.
#[test]
fn reservation_can_be_cancelled_up_to_its_instant() {
    let paced = Paced::with(Bursty::new(five()));
    paced.pacer.reserve(3).expect("before the end of the clock").cancel();
    assert_eq!(paced.wait(), Duration::ZERO);
    let reservation = paced.pacer.reserve(3).expect("before the end of the clock");
    paced.clock.advance(Duration::from_micros(1));
    reservation.cancel();
    assert_eq!(paced.wait(), Duration::from_micros(599_999));
}

#[test]
fn cancel_after_a_rate_change_gives_nothing_back() {
    let paced = Paced::with(Bursty::new(five()));
    paced.pacer.try_acquire(1).expect("the queue is empty");
    let reservation = paced.pacer.reserve(5).expect("before the end of the clock");
    paced.pacer.set_rate(Quota::per_second(5)).expect("a rate that fits");
    reservation.cancel();
    assert_eq!(paced.wait(), millis(1_200));
}

// --- threads

/// Runs `each` on eight threads in parallel, and collects the results.
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

/// With a stopped clock the sorted reservations of all threads must follow each other without a gap and
/// without an overlap.
#[test]
fn concurrent_reservations_have_no_gap_and_no_overlap() {
    let quota = Quota::every(Duration::from_micros(10));
    for paced in [Paced::with(Bursty::new(quota)), Paced::with(WarmUp::new(quota, SECOND).cold_factor(1))] {
        let mut reservations = on_threads(|index| {
            let reservation = |round: u64| {
                let permits = 1 + (index + round) % 3;
                let wait = paced
                    .pacer
                    .try_acquire_timeout(permits, Duration::MAX)
                    .expect("before the end of the clock");
                (wait.as_micros(), permits)
            };
            (0..1_000).map(reservation).collect()
        });
        reservations.sort_unstable();
        let mut free = 0;
        for (wait, permits) in reservations {
            assert_eq!(wait, free);
            free += permits * 10;
        }
        assert_eq!(paced.wait().as_micros(), free);
    }
}

/// Threads wait by advancing the clock: the admitted permits never exceed the rate times the elapsed time.
#[test]
fn concurrent_waits_keep_the_rate() {
    let quota = Quota::per_second(80_000);
    let paced = Paced::with(Bursty::new(quota).max_burst(Duration::ZERO));
    let began = paced.clock.now();
    let permits: u64 = on_threads(|index| {
        let round = |round: u64| {
            let permits = 1 + (index + round) % 5;
            let now = paced.clock.now();
            let wait =
                paced.pacer.try_acquire_timeout(permits, Duration::MAX).expect("before the end of the clock");
            paced.clock.advance_to(now.plus(wait.as_micros()));
            permits
        };
        (0..2_000).map(round).collect()
    })
    .into_iter()
    .sum();
    // All permits are paid for when the next one is free, at 25/2 µs each.
    let paid = paced.clock.now().since(began) + paced.wait().as_micros();
    assert!(permits * 25 <= 2 * paid, "{permits} within {paid} µs");
}

/// Some reservations are kept, some cancelled, and the rate changes: each kept one is still at least as far
/// from the one before as that one's permits are worth at the fastest rate.
#[test]
fn kept_reservations_do_not_overlap_while_others_are_cancelled() {
    let rates = [Quota::every(Duration::from_micros(10)), Quota::every(Duration::from_micros(30))];
    let paced = Paced::with(Bursty::new(rates[0]));
    paced.pacer.try_acquire(1_000).expect("the queue is empty");
    let mut kept = on_threads(|index| {
        let mut kept = Vec::new();
        for round in 0..2_000 {
            let permits = 1 + (index + round) % 3;
            let reservation = paced.pacer.reserve(permits).expect("before the end of the clock");
            if round % 3 == 0 {
                reservation.cancel();
            } else {
                kept.push((reservation.wait().as_micros(), permits));
                reservation.keep();
            }
            if index == 0 && round % 100 == 0 {
                let rate = rates[usize::try_from(round / 100 % 2).expect("0 or 1")];
                paced.pacer.set_rate(rate).expect("a rate that fits");
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
    assert!(paced.wait().as_micros() >= last + permits * 10);
}

// --- waiting

mod waiting {
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn poll_once<F: Future>(wait: Pin<&mut F>) -> Poll<F::Output> {
        wait.poll(&mut Context::from_waker(Waker::noop()))
    }

    fn millis_left(pacer: &Pacer<ManualClock>) -> u128 {
        pacer.peek().expect("before the end of the clock").duration().as_millis()
    }

    #[test]
    fn wait_ends_at_its_instant_and_reports_its_length() {
        let Paced { pacer, clock } = Paced::with(Bursty::new(five()));
        let mut first = pin!(pacer.acquire(5));
        assert_eq!(
            poll_once(first.as_mut()),
            Poll::Ready(Ok(Wait::micros(0))),
            "the next request pays for it"
        );
        let mut second = pin!(pacer.acquire(1));
        assert!(poll_once(second.as_mut()).is_pending());
        clock.advance(millis(999));
        assert!(poll_once(second.as_mut()).is_pending());
        clock.advance(millis(1));
        assert_eq!(poll_once(second.as_mut()), Poll::Ready(Ok(Wait::micros(1_000_000))));
    }

    #[test]
    fn dropped_wait_is_given_back() {
        let Paced { pacer, clock } = Paced::with(Bursty::new(five()));
        pacer.try_acquire(1).expect("the first request needs no wait");
        {
            let mut wait = pin!(pacer.acquire(10));
            assert!(poll_once(wait.as_mut()).is_pending());
            assert_eq!(millis_left(&pacer), 2_200);
            clock.advance(millis(100));
        }
        assert_eq!(millis_left(&pacer), 100);
    }

    #[test]
    fn finished_wait_is_not_given_back() {
        let Paced { pacer, clock } = Paced::with(Bursty::new(five()));
        pacer.try_acquire(1).expect("the first request needs no wait");
        {
            let mut wait = pin!(pacer.acquire(1));
            assert!(poll_once(wait.as_mut()).is_pending());
            clock.advance(millis(200));
            assert!(poll_once(wait.as_mut()).is_ready());
        }
        assert_eq!(millis_left(&pacer), 200);
    }

    #[test]
    fn timeout_too_short_is_refused_immediately_and_not_charged() {
        let Paced { pacer, clock } = Paced::with(Bursty::new(five()));
        pacer.try_acquire(1).expect("the first request needs no wait");
        let short = Duration::from_micros(199_999);
        let refused = TooLong { wait: Wait::micros(200_000) };
        assert_eq!(poll_once(pin!(pacer.acquire_timeout(1, short))), Poll::Ready(Err(refused)));
        assert_eq!(pacer.acquire_blocking_timeout(1, short), Err(refused));
        assert_eq!(millis_left(&pacer), 200);
        let mut enough = pin!(pacer.acquire_timeout(1, millis(200)));
        assert!(poll_once(enough.as_mut()).is_pending());
        clock.advance(millis(200));
        assert!(poll_once(enough.as_mut()).is_ready());
    }

    #[test]
    fn blocked_threads_pass_at_consecutive_instants() {
        let Paced { pacer, clock } = Paced::with(Bursty::new(five()));
        pacer.try_acquire(1).expect("the first request needs no wait");
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
