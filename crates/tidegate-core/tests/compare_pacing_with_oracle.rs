//! Pacing against its oracle, a million random steps each: every wait must be the same, to the microsecond
//! where the oracle is exact, and rounded up from the oracle's where it computes in doubles.
//!
//! `TIDEGATE_STEPS` makes the comparisons longer or shorter.

mod pacing_oracle;
mod random;

use std::time::Duration;

use pacing_oracle::{Bursty as BurstyOracle, Pacer, WarmUp as WarmUpOracle};
use random::Random;
use tidegate_core::{Bursty, Micros, Pacing, Quota, Reserved, Wait, WarmUp};

const STEPS: u64 = 1_000_000;
const EPISODE: u64 = 300;
/// The largest error of doubles by the end of an episode, in microseconds.
const TOLERANCE: f64 = 0.02;

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

const RATES: [(u64, Duration); 12] = [
    (5, SECOND),
    (2, SECOND),
    (1, SECOND),
    (3, SECOND),
    (7, SECOND),
    (80_000, SECOND),
    (999_983, SECOND),
    (1_500_000, SECOND),
    (1, DAY),
    (1, Duration::from_millis(200)),
    (11, Duration::from_secs(60)),
    (1, Duration::from_nanos(1_500)),
];

const COLD: [(u32, u32); 6] = [(3, 1), (1, 1), (2, 1), (5, 2), (7, 3), (3, 1)];

/// Counts of what happened on a walk.
#[derive(Debug, Default)]
struct Counts {
    steps: u64,
    immediate: u64,
    waited: u64,
    refused: u64,
    changed: u64,
    cancelled: u64,
    not_cancelled: u64,
}

/// A pacer, its oracle, and the current instant.
struct Episode<O> {
    about: String,
    pacing: Pacing,
    state: [u64; 3],
    oracle: O,
    now: u64,
    /// The reservations that could be cancelled, each with the oracle from before it. Only the last has none
    /// after it.
    reservations: Vec<(Reserved, O, u64)>,
}

fn steps() -> u64 {
    let given = std::env::var("TIDEGATE_STEPS").ok();
    given.map_or(STEPS, |text| text.parse().expect("TIDEGATE_STEPS is a number of steps"))
}

fn pick<T: Copy>(random: &mut Random, from: &[T]) -> T {
    from[usize::try_from(random.below(from.len() as u64)).expect("an index")]
}

fn draw_quota(random: &mut Random) -> Quota {
    if random.one_in(2) {
        let (limit, period) = pick(random, &RATES);
        return Quota::per(limit, period);
    }
    let period = match random.below(3) {
        0 => Duration::from_micros(random.between(1, 2_000)),
        1 => Duration::from_millis(random.between(1, 5_000)),
        _ => SECOND,
    };
    Quota::per(random.between(1, 3_000), period)
}

fn compare<O: Pacer>(seed: u64, mut begin: impl FnMut(&mut Random, u64) -> (String, Pacing, O)) {
    let mut random = Random::seeded(seed);
    let mut counts = Counts::default();
    let steps = steps();
    while counts.steps < steps {
        let now = pick(&mut random, &[0, 1, 1_760_000_000_000_000]);
        let (about, pacing, oracle) = begin(&mut random, now);
        let mut state = [0; 3];
        pacing.start(&mut state, Micros::new(now));
        let mut episode = Episode { about, pacing, state, oracle, now, reservations: Vec::new() };
        for _ in 0..EPISODE {
            episode.step(&mut random, &mut counts);
        }
    }
    counts.assert_that_every_outcome_is_frequent();
}

impl<O: Pacer> Episode<O> {
    fn step(&mut self, random: &mut Random, counts: &mut Counts) {
        counts.steps += 1;
        match random.below(100) {
            0..50 => self.reserve(random, counts),
            50..65 => self.try_within(random, counts),
            65..88 => self.idle(random),
            88..91 => self.set_rate(random, counts),
            _ => self.cancel(random, counts),
        }
    }

    fn interval(&self) -> u64 {
        let quota = self.pacing.quota();
        (u64::try_from(quota.period().as_micros()).expect("a period that fits") / quota.limit()).max(1)
    }

    fn idle(&mut self, random: &mut Random) {
        let wait = self.wait();
        self.now += match random.below(8) {
            0 => 1,
            1 | 2 => random.below(self.interval() + 1),
            3 => random.below(self.interval() * 12),
            4 => wait,
            5 => wait.saturating_sub(1),
            6 => wait + random.below(self.interval() * 3),
            _ => wait + random.below(3_000_000),
        };
    }

    fn permits(&self, random: &mut Random) -> u64 {
        match random.below(12) {
            0..6 => 1,
            6..9 => random.between(1, 4),
            9 => random.between(1, 40),
            10 => random.between(1, 4_000_000 / self.interval() + 1),
            _ => 0,
        }
    }

    /// The wait, equal in both.
    fn wait(&self) -> u64 {
        let got = self.pacing.peek(&self.state, Micros::new(self.now)).expect("an instant on the time line");
        self.assert_same(got);
        got.as_micros()
    }

    fn assert_same(&self, got: Wait) {
        let about_wait =
            |want: &dyn std::fmt::Debug| format!("{} at {}: {got:?} {want:?}", self.about, self.now);
        if let Some(want) = self.oracle.wait_up(self.now) {
            assert_eq!(got, Wait::micros(want), "{}", about_wait(&want));
            return;
        }
        let want = self.oracle.wait(self.now);
        let more = got.as_micros() as f64 - want;
        assert!((-TOLERANCE..1.0 + TOLERANCE).contains(&more), "{}", about_wait(&want));
    }

    fn reserve(&mut self, random: &mut Random, counts: &mut Counts) {
        let permits = self.permits(random);
        let reserved = self.pacing.reserve(&mut self.state, Micros::new(self.now), permits);
        let reserved = reserved.expect("an instant on the time line");
        self.charged(permits, reserved, counts);
        if random.one_in(2) {
            self.now += self.reservations.last().map_or(0, |(reserved, ..)| reserved.wait().as_micros());
        }
    }

    fn charged(&mut self, permits: u64, reserved: Reserved, counts: &mut Counts) {
        self.assert_same(reserved.wait());
        assert_eq!(reserved.from().get(), self.now + reserved.wait().as_micros());
        if reserved.wait() == Wait::micros(0) {
            counts.immediate += 1
        } else {
            counts.waited += 1
        }
        if permits == 0 {
            return;
        }
        let before = self.oracle.clone();
        self.oracle.charge(self.now, permits);
        self.reservations.push((reserved, before, permits));
    }

    fn try_within(&mut self, random: &mut Random, counts: &mut Counts) {
        let (permits, wait) = (self.permits(random), self.wait());
        let timeout = match random.below(5) {
            0 => 0,
            1 => wait,
            2 => wait.saturating_sub(1),
            3 => u64::MAX,
            _ => random.below(wait * 2 + 1),
        };
        let before = self.state;
        match self.pacing.try_within(&mut self.state, Micros::new(self.now), permits, Wait::micros(timeout)) {
            Ok(reserved) => {
                assert!(wait <= timeout, "{}", self.about);
                self.charged(permits, reserved, counts);
            }
            Err(refused) => {
                assert!(wait > timeout, "{}", self.about);
                assert_eq!((refused, self.state), (Wait::micros(wait), before), "{}", self.about);
                counts.refused += 1;
            }
        }
    }

    fn set_rate(&mut self, random: &mut Random, counts: &mut Counts) {
        let quota = draw_quota(random);
        let Ok(next) = self.pacing.with_quota(quota) else { return };
        let (old, from) = (self.pacing, self.state);
        next.migrate_from(&old, &from, &mut self.state);
        self.pacing = next;
        self.oracle.set_rate(self.now, quota);
        self.reservations.clear();
        self.wait();
        counts.changed += 1;
    }

    /// Cancels the last reservation, or one with later reservations.
    fn cancel(&mut self, random: &mut Random, counts: &mut Counts) {
        let Some(last) = self.reservations.len().checked_sub(1) else { return };
        let index = last - usize::try_from(random.below(3)).expect("an index").min(last);
        let (reserved, before, _) = self.reservations.remove(index);
        let due = index == last && self.now <= reserved.from().get();
        let state = self.state;
        let cancelled = self.pacing.cancel(&mut self.state, Micros::new(self.now), reserved);
        assert_eq!(cancelled, due, "{} at {}", self.about, self.now);
        if cancelled {
            self.oracle = before;
            counts.cancelled += 1;
        } else {
            assert_eq!(self.state, state);
            counts.not_cancelled += 1;
        }
        if !cancelled {
            self.reservations.drain(..index); // earlier reservations can never be cancelled now
        }
        self.wait();
    }
}

impl Counts {
    fn assert_that_every_outcome_is_frequent(&self) {
        let often =
            [self.immediate, self.waited, self.refused, self.changed, self.cancelled, self.not_cancelled];
        assert!(often.iter().all(|&times| times > self.steps / 100), "{self:?}");
    }
}

fn bursty(random: &mut Random, now: u64) -> (String, Pacing, BurstyOracle) {
    let quota = draw_quota(random);
    let max_burst = pick(random, &[1_000_000, 1_000_000, 0, 1, 10_000_000, 333_333]);
    let pacing = Bursty::new(quota).max_burst(Duration::from_micros(max_burst));
    (format!("{pacing:?}"), pacing.into(), BurstyOracle::new(quota, max_burst, now))
}

fn warming_up(random: &mut Random, now: u64) -> (String, Pacing, WarmUpOracle) {
    let (numerator, denominator) = pick(random, &COLD);
    let cold = f64::from(numerator) / f64::from(denominator);
    loop {
        let quota = draw_quota(random);
        let micros = match random.below(4) {
            0 => random.between(1, 50),
            1 => random.between(1, 5) * 1_000_000,
            _ => random.between(1, 4_000_000),
        };
        let warm_up = Duration::from_micros(micros);
        let made =
            WarmUp::try_new(quota, warm_up).and_then(|made| made.try_cold_factor(numerator, denominator));
        if let Ok(pacing) = made {
            return (format!("{pacing:?}"), pacing.into(), WarmUpOracle::new(quota, warm_up, cold, now));
        }
    }
}

#[test]
fn bursty_pacing_equals_its_oracle() {
    compare(31, bursty);
}

#[test]
fn a_warm_up_equals_its_oracle() {
    compare(32, warming_up);
}
