//! Pacers: consecutive waits, concurrent threads, and cancelled reservations.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use tidegate::algorithm::{Bursty, WarmUp};
use tidegate::clock::{Clock, Micros};
use tidegate::{AcquireError, Decision, ManualClock, Outcome, Pacer, Quota, Wait};

const THREADS: u32 = 8;
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
    fn with(pacing: impl Into<tidegate::algorithm::Pacing>) -> Self {
        let clock = ManualClock::new();
        clock.advance_to(Micros::new(1_760_000_000_000_000));
        Paced { pacer: Pacer::builder_with(pacing).clock(clock.clone()).build(), clock }
    }

    /// Charges `cost`, however long the wait, and returns the wait.
    fn charge(&self, cost: u32) -> Wait {
        let request = self.pacer.request().cost(cost).timeout(Duration::MAX);
        let reservation = request.reserve().expect("before the end of the time line");
        let wait = reservation.wait();
        reservation.keep();
        wait
    }

    /// Waits for `cost`; returns the wait in milliseconds.
    fn acquire(&self, cost: u32) -> u64 {
        let wait = self.charge(cost);
        self.clock.advance(wait.duration());
        wait.as_micros() / 1_000
    }

    fn acquire_each(&self, costs: &[u32]) -> Vec<u64> {
        costs.iter().map(|&cost| self.acquire(cost)).collect()
    }

    fn idle(&self, long: Duration) {
        self.clock.advance(long);
    }

    fn wait(&self) -> Wait {
        self.pacer.request().peek().retry_after().unwrap_or_default()
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
    assert!(pacer.check().is_allowed());
    let short = pacer.request().timeout(Duration::from_nanos(199_999_999)).reserve().unwrap_err();
    assert!(short.is_timeout());
    assert_eq!(short.retry_after(), Some(Wait::micros(200_000)));
    let enough = pacer.request().timeout(millis(200)).reserve().expect("long enough");
    assert_eq!(enough.wait(), Wait::micros(200_000));
    enough.keep();
    clock.advance(millis(400));
    assert!(pacer.check().is_allowed(), "the refused request was not charged");
}

#[test]
fn wait_beyond_the_end_of_the_clock_is_refused() {
    let Paced { pacer, clock } = Paced::with(Bursty::new(Quota::per_hour(5)));
    assert!(pacer.request().cost(u32::MAX).check().is_allowed(), "the next request pays for it");
    let until_the_end = Wait::micros(Micros::MAX.since(clock.now()));
    let refused = pacer.request().timeout(Duration::MAX).reserve().unwrap_err();
    assert!(refused.is_never());
    assert_eq!(
        refused.to_string(),
        "cost 1 could be allowed only after the year 2255, the end of the time line; use a smaller cost"
    );
    assert_eq!(pacer.request().reserve().unwrap_err(), refused);
    for decision in [pacer.request().peek(), pacer.check()] {
        assert_eq!((decision.outcome, decision.reset_after()), (Outcome::Never, until_the_end));
    }
}

#[test]
fn rate_change_keeps_every_reservation() {
    let Paced { pacer, clock } = Paced::with(Bursty::new(Quota::per_second(1)));
    let reserved =
        [1, 1, 1].map(|cost| pacer.request().cost(cost).reserve().expect("before the end of the time line"));
    assert_eq!(pacer.clone().set_rate(Quota::per_second(2)), Ok(()));
    assert_eq!(pacer.quota(), Quota::per_second(2));
    assert_eq!(
        reserved.each_ref().map(|reservation| reservation.wait().as_micros()),
        [0, 1_000_000, 2_000_000]
    );
    let next =
        [1, 1].map(|cost| pacer.request().cost(cost).reserve().expect("before the end of the time line"));
    assert_eq!(next.each_ref().map(|reservation| reservation.wait().as_micros()), [3_000_000, 3_500_000]);
    clock.advance(4 * SECOND);
    drop((reserved, next));
    assert_eq!(pacer.request().peek().outcome, Outcome::Allowed);
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
    assert!(paced.pacer.clone().check().is_allowed());
    assert!(!paced.pacer.check().is_allowed());
}

// --- cancelled reservations

#[test]
fn last_reservation_is_given_back_when_dropped_or_cancelled() {
    let paced = Paced::with(Bursty::new(five()));
    assert!(paced.pacer.check().is_allowed(), "the queue is empty");
    drop(paced.pacer.request().cost(10).reserve().expect("before the end of the time line"));
    assert_eq!(paced.wait(), millis(200));
    paced.pacer.request().cost(10).reserve().expect("before the end of the time line").cancel();
    assert_eq!(paced.wait(), millis(200));
    paced.pacer.request().cost(10).reserve().expect("before the end of the time line").keep();
    assert_eq!(paced.wait(), millis(2_200));
}

#[test]
fn reservation_with_another_behind_it_is_not_given_back() {
    let paced = Paced::with(Bursty::new(five()));
    assert!(paced.pacer.check().is_allowed(), "the queue is empty");
    let first = paced.pacer.request().cost(10).reserve().expect("before the end of the time line");
    let second = paced.pacer.request().reserve().expect("before the end of the time line");
    drop(first);
    assert_eq!(paced.wait(), millis(2_400), "the second keeps its 2.2 s and its own cost");
    second.cancel();
    assert_eq!(paced.wait(), millis(2_200));
}

/// A loop that holds its reservation while it works must not get its charge back at the end of each
/// iteration.
#[test]
fn reservation_dropped_after_its_instant_stays_charged() {
    let paced = Paced::with(Bursty::new(five()));
    for round in 0..5 {
        let reservation = paced.pacer.request().reserve().expect("before the end of the time line");
        assert_eq!(reservation.wait(), millis(if round == 0 { 0 } else { 200 }));
        paced.clock.advance(reservation.wait().duration());
    }
    assert_eq!(paced.wait(), millis(200));
}

/// At the exact instant only the owner knows whether the reservation was used; `cancel` says that it was not.
#[test]
fn reservation_can_be_cancelled_up_to_its_instant() {
    let paced = Paced::with(Bursty::new(five()));
    paced.pacer.request().cost(3).reserve().expect("before the end of the time line").cancel();
    assert_eq!(paced.wait(), Duration::ZERO);
    let reservation = paced.pacer.request().cost(3).reserve().expect("before the end of the time line");
    paced.clock.advance(Duration::from_micros(1));
    reservation.cancel();
    assert_eq!(paced.wait(), Duration::from_micros(599_999));
}

#[test]
fn cancel_after_a_rate_change_gives_nothing_back() {
    let paced = Paced::with(Bursty::new(five()));
    assert!(paced.pacer.check().is_allowed(), "the queue is empty");
    let reservation = paced.pacer.request().cost(5).reserve().expect("before the end of the time line");
    paced.pacer.set_rate(Quota::per_second(5)).expect("a rate that fits");
    reservation.cancel();
    assert_eq!(paced.wait(), millis(1_200));
}

// --- threads

/// Runs `each` on eight threads in parallel, and collects the results.
fn on_threads<T: Send>(each: impl Fn(u32) -> Vec<T> + Sync) -> Vec<T> {
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
            let reservation = |round: u32| {
                let cost = 1 + (index + round) % 3;
                (paced.charge(cost).as_micros(), u64::from(cost))
            };
            (0..1_000).map(reservation).collect()
        });
        reservations.sort_unstable();
        let mut free = 0;
        for (wait, cost) in reservations {
            assert_eq!(wait, free);
            free += cost * 10;
        }
        assert_eq!(paced.wait().as_micros(), free);
    }
}

/// Threads wait by advancing the clock: the admitted costs never exceed the rate times the elapsed time.
#[test]
fn concurrent_waits_keep_the_rate() {
    let quota = Quota::per_second(80_000);
    let paced = Paced::with(Bursty::new(quota).max_burst(Duration::ZERO));
    let began = paced.clock.now();
    let cost: u64 = on_threads(|index| {
        let round = |round: u32| {
            let cost = 1 + (index + round) % 5;
            let now = paced.clock.now();
            let wait = paced.charge(cost);
            paced.clock.advance_to(now.plus(wait.as_micros()));
            u64::from(cost)
        };
        (0..2_000).map(round).collect()
    })
    .into_iter()
    .sum();
    // All of it is paid for when the next request is free, at 25/2 µs each.
    let paid = paced.clock.now().since(began) + paced.wait().as_micros();
    assert!(cost * 25 <= 2 * paid, "{cost} within {paid} µs");
}

/// Some reservations are kept, some cancelled, and the rate changes: each kept one is still at least as far
/// from the one before as that one's cost is worth at the fastest rate.
#[test]
fn kept_reservations_do_not_overlap_while_others_are_cancelled() {
    let rates = [Quota::every(Duration::from_micros(10)), Quota::every(Duration::from_micros(30))];
    let paced = Paced::with(Bursty::new(rates[0]));
    assert!(paced.pacer.request().cost(1_000).check().is_allowed(), "the queue is empty");
    let mut kept = on_threads(|index| {
        let mut kept = Vec::new();
        for round in 0..2_000 {
            let cost = 1 + (index + round) % 3;
            let reservation =
                paced.pacer.request().cost(cost).reserve().expect("before the end of the time line");
            if round % 3 == 0 {
                reservation.cancel();
            } else {
                kept.push((reservation.wait().as_micros(), u64::from(cost)));
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
        let [(wait, cost), (next, _)] = pair else { unreachable!("windows of two") };
        assert!(wait + cost * 10 <= *next, "{cost} at {wait}, and another at {next}");
    }
    let (last, cost) = kept[kept.len() - 1];
    assert!(paced.wait().as_micros() >= last + cost * 10);
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

    /// Returns when a wait passed; `None` while pending.
    fn passed_at(wait: Pin<&mut impl Future<Output = Result<Decision, AcquireError>>>) -> Option<Micros> {
        match poll_once(wait) {
            Poll::Ready(passed) => {
                let decision = passed.expect("before the end of the time line");
                assert_eq!(decision.outcome, Outcome::Allowed);
                Some(decision.at())
            }
            Poll::Pending => None,
        }
    }

    fn millis_left(pacer: &Pacer<ManualClock>) -> u128 {
        pacer.request().peek().retry_after().unwrap_or_default().duration().as_millis()
    }

    #[test]
    fn wait_ends_at_its_instant_and_reports_it() {
        let Paced { pacer, clock } = Paced::with(Bursty::new(five()));
        let began = clock.now();
        let mut first = pin!(pacer.request().cost(5).acquire());
        assert_eq!(passed_at(first.as_mut()), Some(began), "the next request pays for it");
        let mut second = pin!(pacer.acquire());
        assert!(poll_once(second.as_mut()).is_pending());
        clock.advance(millis(999));
        assert!(poll_once(second.as_mut()).is_pending());
        clock.advance(millis(1));
        assert_eq!(passed_at(second.as_mut()), Some(began.plus(1_000_000)));
    }

    #[test]
    fn dropped_wait_is_given_back() {
        let Paced { pacer, clock } = Paced::with(Bursty::new(five()));
        assert!(pacer.check().is_allowed(), "the first request needs no wait");
        {
            let mut wait = pin!(pacer.request().cost(10).acquire());
            assert!(poll_once(wait.as_mut()).is_pending());
            assert_eq!(millis_left(&pacer), 2_200);
            clock.advance(millis(100));
        }
        assert_eq!(millis_left(&pacer), 100);
    }

    #[test]
    fn finished_wait_is_not_given_back() {
        let Paced { pacer, clock } = Paced::with(Bursty::new(five()));
        assert!(pacer.check().is_allowed(), "the first request needs no wait");
        {
            let mut wait = pin!(pacer.request().acquire());
            assert!(poll_once(wait.as_mut()).is_pending());
            clock.advance(millis(200));
            assert!(poll_once(wait.as_mut()).is_ready());
        }
        assert_eq!(millis_left(&pacer), 200);
    }

    #[test]
    fn timeout_too_short_is_refused_immediately_and_not_charged() {
        let Paced { pacer, clock } = Paced::with(Bursty::new(five()));
        assert!(pacer.check().is_allowed(), "the first request needs no wait");
        let short = Duration::from_micros(199_999);
        let refused = pacer.request().timeout(short).acquire_blocking().unwrap_err();
        assert!(refused.is_timeout());
        assert_eq!(
            refused.to_string(),
            "the wait would be 200ms, longer than the timeout of 199.999ms; retry after 200ms"
        );
        assert_eq!(poll_once(pin!(pacer.request().timeout(short).acquire())), Poll::Ready(Err(refused)));
        assert_eq!(millis_left(&pacer), 200);
        let mut enough = pin!(pacer.request().timeout(millis(200)).acquire());
        assert!(poll_once(enough.as_mut()).is_pending());
        clock.advance(millis(200));
        assert!(poll_once(enough.as_mut()).is_ready());
    }

    #[test]
    fn blocked_threads_pass_at_consecutive_instants() {
        let Paced { pacer, clock } = Paced::with(Bursty::new(five()));
        assert!(pacer.check().is_allowed(), "the first request needs no wait");
        let began = clock.now();
        thread::scope(|scope| {
            let waits = [(); 3].map(|()| scope.spawn(|| pacer.request().acquire_blocking()));
            while millis_left(&pacer) < 800 {
                thread::yield_now(); // until all three have reserved
            }
            clock.advance(millis(600));
            let mut passed =
                waits.map(|wait| wait.join().expect("no panic").expect("waited").at().since(began) / 1_000);
            passed.sort_unstable();
            assert_eq!(passed, [200, 400, 600]);
        });
    }
}
