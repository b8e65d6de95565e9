//! Memory is part of the contract: a flood of keys takes at most `max_keys` entries.
//!
//! A flood cannot exhaust the machine's memory, and a key cannot get a fresh burst by evicting other keys. A key that finds no room shares sketch cells: it never gets more than its quota, and the test
//! prints how much less it gets. Resident memory belongs to the whole process, so this file has a single
//! test.

#![cfg(target_os = "linux")]

use std::time::Duration;

use tidegate::algorithm::TokenBucket;
use tidegate::clock::Micros;
use tidegate::{Decision, KeyedLimiter, ManualClock, Quota, Source};

type Keys = KeyedLimiter<u64, TokenBucket, ManualClock>;

const MAX_KEYS: usize = 1_000_000;
const FLOOD: u64 = 10_000_000;
/// The limit of resident bytes per key of `MAX_KEYS`.
const BYTES_PER_KEY: usize = 55;

const HOUR: Duration = Duration::from_secs(3_600);
/// Slow enough that no key from before or within the flood is idle before the flood ends.
const QUOTA: Quota = Quota::per_hour(1).burst(5);

/// Keys 0 to 999 are in the table before the flood; each has used from 1 to 5.
const RESIDENTS: u64 = 1_000;
/// One of these keys, which has used its whole quota and keeps retrying.
const INSISTENT: u64 = 4;
/// One in this many keys of the flood uses as much as it can.
const GREEDY: u64 = 100;

fn used_by(resident: u64) -> u32 {
    u32::try_from(resident % 5 + 1).expect("a small number")
}

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc/self/status is readable");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a VmRSS line");
    let kilobytes: usize = line.trim().trim_end_matches(" kB").parse().expect("a number of kilobytes");
    kilobytes << 10
}

#[track_caller]
fn assert_bounded(baseline: usize) {
    let taken = resident_bytes().saturating_sub(baseline);
    assert!(taken <= BYTES_PER_KEY * MAX_KEYS, "{taken} bytes for {MAX_KEYS} keys");
}

fn settle_residents(limiter: &Keys) {
    for resident in 0..RESIDENTS {
        assert!(limiter.request(&resident).cost(used_by(resident)).check().is_allowed());
    }
}

/// Counts of the outcomes of the flood.
#[derive(Debug, Default)]
struct Flooded {
    /// Keys with a request allowed by a state of their own.
    settled: u64,
    /// Keys with a request allowed by shared cells.
    shared: u64,
    /// Keys denied at their first request, for the usage of other keys.
    for_others: u64,
}

/// Sends the flood, which lasts nearly an hour.
fn flood(limiter: &Keys, clock: &ManualClock, baseline: usize) -> Flooded {
    let mut flooded = Flooded::default();
    for number in 0..FLOOD {
        let key = RESIDENTS + number;
        let decision = limiter.check(&key);
        match (decision.is_allowed(), decision.source) {
            (true, Source::Strict) => flooded.settled += 1,
            (true, Source::Sketch) => flooded.shared += 1,
            (false, Source::Sketch) => flooded.for_others += 1,
            _ => panic!("{decision:?}"),
        }
        let without_room = number + 1 - flooded.settled;
        if without_room.is_power_of_two() && without_room > 1 << 14 {
            println!("of {without_room} keys without room {} were denied for other keys", flooded.for_others);
        }
        if number % GREEDY == 0 {
            let more = (0..6).filter(|_| limiter.check(&key).is_allowed()).count();
            assert!(more + usize::from(decision.is_allowed()) <= 5, "of a burst of 5");
        }
        if number % 4_000 == 0 {
            clock.advance(Duration::from_millis(1_400));
            assert_refused_by_its_own_state(limiter.check(&INSISTENT), clock);
        }
        if number % 1_000_000 == 0 {
            assert_bounded(baseline);
        }
    }
    flooded
}

#[track_caller]
fn assert_refused_by_its_own_state(decision: Decision, clock: &ManualClock) {
    assert_eq!((decision.is_allowed(), decision.source), (false, Source::Strict));
    assert_eq!(decision.retry_after().map(Duration::from), Some(HOUR - since_start(clock)));
}

fn since_start(clock: &ManualClock) -> Duration {
    Duration::from_micros(tidegate::clock::Clock::now(clock).get())
}

/// Exact to the unit and the microsecond, as without the flood.
fn assert_residents_are_untouched(limiter: &Keys, clock: &ManualClock) {
    for resident in 0..RESIDENTS {
        let (found, used) = (limiter.request(&resident).cost(0).peek(), used_by(resident));
        assert_eq!(found.remaining(), 5 - u64::from(used));
        assert_eq!(found.reset_after(), used * HOUR - since_start(clock));
    }
}

#[test]
fn flood_of_ten_million_keys_stays_within_max_keys_and_memory() {
    let baseline = resident_bytes();
    let clock = ManualClock::new();
    let limiter = KeyedLimiter::<u64>::builder(QUOTA).max_keys(MAX_KEYS).clock(clock.clone()).build();
    settle_residents(&limiter);

    let flooded = flood(&limiter, &clock, baseline);
    assert_bounded(baseline);
    let stats = limiter.stats();
    let bytes = resident_bytes().saturating_sub(baseline);
    println!("{flooded:?}; {stats:?}; {bytes} bytes resident");
    assert_eq!(RESIDENTS + flooded.settled, MAX_KEYS as u64, "all entries are taken");
    assert_eq!((stats.keys, stats.max_keys, stats.evicted), (MAX_KEYS, MAX_KEYS, 0));
    assert_eq!((flooded.shared + flooded.for_others, stats.refused), (FLOOD - flooded.settled, 0));
    assert!(
        flooded.shared > stats.sketch.cells as u64 / 4,
        "the sketch allowed more than one key for each cell of a row"
    );
    assert_residents_are_untouched(&limiter, &clock);

    clock.advance_to(Micros::from(HOUR));
    assert!(limiter.check(&INSISTENT).is_allowed(), "one token has refilled");
    assert!(!limiter.check(&INSISTENT).is_allowed(), "one token, not a fresh burst");

    assert_new_keys_replace_idle_ones(&limiter, &clock);
    assert_bounded(baseline);
}

fn assert_new_keys_replace_idle_ones(limiter: &Keys, clock: &ManualClock) {
    let full = limiter.stats();
    clock.advance_to(Micros::from(10 * HOUR));
    for new_key in 0..MAX_KEYS as u64 {
        assert!(limiter.check(&(2 * FLOOD + new_key)).is_allowed());
    }
    let stats = limiter.stats();
    assert_eq!(
        (stats.refused, stats.sketch.decided, stats.bytes),
        (full.refused, full.sketch.decided, full.bytes),
        "no key was denied, none was sketched and nothing grew"
    );
    assert!(stats.keys <= MAX_KEYS && stats.evicted >= MAX_KEYS as u64 / 2, "{stats:?}");
}
