//! Rounds that take turns: every case once, then every case again. What disturbs the machine for a second disturbs
//! all cases of a round alike, so the ratio between two of them hardly moves.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use crate::case::{AHEAD, Case};
use crate::machine;
use crate::stats::Spread;
use crate::turns::Turns;

/// What was measured of one case.
#[derive(Debug)]
pub struct Measured {
    pub what: &'static str,
    pub who: &'static str,
    /// One figure for each round, in the order of the rounds.
    pub rounds: Vec<f64>,
    /// What was expected and did not happen.
    pub surprise: Option<String>,
}

/// One timed stretch of a case.
#[derive(Debug)]
struct Sample {
    /// Nanoseconds for each decision, on each thread.
    nanos: f64,
    /// The share of answers that were yes.
    allowed: f64,
}

/// Measures all cases, in turns.
pub fn measure(title: &str, cases: &[Case], turns: &Turns) -> Vec<Measured> {
    eprintln!("{title}: {} cases, {} rounds", cases.len(), turns.rounds);
    let lengths: Vec<u64> = cases.iter().map(|case| length(case, turns.slice)).collect();
    let mut samples: Vec<Vec<Sample>> = cases.iter().map(|_| Vec::new()).collect();
    for _ in 0..turns.rounds {
        for ((case, n), samples) in cases.iter().zip(&lengths).zip(&mut samples) {
            samples.push(sample(case, warm_up(*n, turns), *n));
        }
    }
    cases.iter().zip(samples).map(|(case, samples)| Measured::of(case, &samples)).collect()
}

/// How many decisions of the case fill a slice. The first are many, because a limiter that tidies up after having
/// been filled is slow at first.
fn length(case: &Case, slice: Duration) -> u64 {
    let mut n = 1 << 14;
    loop {
        let nanos = sample(case, 0, n).nanos;
        let full = slice.as_nanos() as f64 / nanos;
        if n as f64 > full / 4.0 {
            return whole(full);
        }
        n *= 2;
    }
}

/// A number of decisions that all loops can do exactly.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "positive, and seconds of work at most"
)]
fn whole(decisions: f64) -> u64 {
    (decisions as u64).max(1).next_multiple_of(AHEAD)
}

fn warm_up(n: u64, turns: &Turns) -> u64 {
    whole(n as f64 * turns.warm_up.as_secs_f64() / turns.slice.as_secs_f64())
}

/// Lets every thread of the case decide `n` times, from a common start.
fn sample(case: &Case, warm_up: u64, n: u64) -> Sample {
    let start = Barrier::new(case.threads);
    let runs: Vec<Run> = thread::scope(|scope| {
        let spawn = |thread| {
            let start = &start;
            scope.spawn(move || Run::of(case, thread, start, warm_up, n))
        };
        let threads: Vec<_> = (0..case.threads).map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().expect("a case does not panic")).collect()
    });
    Sample::of(&runs, n)
}

/// What one thread did.
#[derive(Debug)]
struct Run {
    from: Instant,
    until: Instant,
    allowed: u64,
}

// === impl Run ===

impl Run {
    fn of(case: &Case, thread: usize, start: &Barrier, warm_up: u64, n: u64) -> Self {
        machine::pin(thread);
        (case.run)(warm_up);
        start.wait();
        let from = Instant::now();
        let allowed = (case.run)(n);
        Run { from, until: Instant::now(), allowed }
    }
}

// === impl Sample ===

impl Sample {
    /// From the first start to the last end.
    fn of(runs: &[Run], n: u64) -> Self {
        let from = runs.iter().map(|run| run.from).min().expect("a case has threads");
        let until = runs.iter().map(|run| run.until).max().expect("a case has threads");
        let allowed: u64 = runs.iter().map(|run| run.allowed).sum();
        Sample {
            nanos: (until - from).as_nanos() as f64 / n as f64,
            allowed: allowed as f64 / (n as f64 * runs.len() as f64),
        }
    }
}

// === impl Measured ===

impl Measured {
    fn of(case: &Case, samples: &[Sample]) -> Self {
        Measured {
            what: case.what,
            who: case.who,
            rounds: samples.iter().map(|sample| sample.nanos).collect(),
            surprise: surprise(case, samples),
        }
    }

    pub fn spread(&self) -> Spread {
        Spread::of(&self.rounds)
    }
}

/// A limiter that answers anything but what the case is about was not measured at what the case is about.
fn surprise(case: &Case, samples: &[Sample]) -> Option<String> {
    let expected = case.expect.share();
    let worst = samples
        .iter()
        .map(|sample| sample.allowed)
        .max_by(|a, b| (a - expected).abs().total_cmp(&(b - expected).abs()))?;
    let told = || format!("{case:?}: a share of {worst:.3} was allowed, not {expected:.3}");
    ((worst - expected).abs() > 0.0005).then(told)
}
