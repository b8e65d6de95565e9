//! The table in a single thread: which key gets a slot, which key is evicted, and what is counted.
//!
//! Interleavings of several threads are tested in `loom`. Here each rule is shown once, at the smallest size that
//! shows it.

use super::*;

/// A state is idle this long after its last charge.
const IDLE_AFTER: u64 = 10;

/// Charges one at `now`.
///
/// The state is how much was charged, and the instant until which that counts.
#[derive(Clone, Copy)]
struct Charge {
    now: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// `count` is charged now, and the last charge was at this instant.
    Charged { count: u64, at: u64 },
    /// No room for this long.
    NoRoom(u64),
}

use Answer::{Charged, NoRoom};

impl Step for Charge {
    type Answer = Answer;

    fn run<S: WordsMut + ?Sized>(&self, state: &mut S) -> Answer {
        let word = state.get(0);
        let count = if word >> 16 <= self.now { 1 } else { (word & 0xFFFF) + 1 };
        state.set(0, (word >> 16).max(self.now + IDLE_AFTER) << 16 | count);
        Charged { count, at: self.now }
    }

    fn run_anew<S: WordsMut + ?Sized>(&self, state: &mut S, evicted_at: Micros) -> Answer {
        Charge { now: self.now.max(evicted_at.get()) }.run(state)
    }

    fn fast_path(&self, _: u64) -> Option<(u64, Answer)> {
        None
    }

    fn refuse(&self, room_after: Wait) -> Answer {
        NoRoom(room_after.duration().as_micros().try_into().expect("a short wait"))
    }

    fn idle_at<S: Words + ?Sized>(&self, state: &S) -> Micros {
        Micros::new(state.get(0) >> 16)
    }

    fn now(&self) -> Micros {
        Micros::new(self.now)
    }

    fn is_current(&self) -> bool {
        true
    }
}

fn charge(table: &Table, key: u64, now: u64) -> Answer {
    table.apply(key, &Charge { now }).expect("the version does not change")
}

/// Returns keys that are spread like fingerprints.
fn spread(n: u64) -> u64 {
    let mut mixed = (n + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

const NEW: fn(u64) -> Answer = |at| Charged { count: 1, at };

#[test]
fn table_holds_max_keys_for_every_state_size() {
    for words in [1, 2, 3, 8, 9, 21, 101, 1_001] {
        for max_keys in [1, 2, 3, 5, 16, 100, 1_000] {
            let table = Table::new(max_keys, words);
            let inserted =
                (0..max_keys as u64).filter(|key| charge(&table, spread(*key), 0) == NEW(0)).count();
            assert_eq!(inserted, max_keys, "of {max_keys} keys with states of {words} words");
            assert_eq!(charge(&table, spread(1_000_000), 0), NoRoom(IDLE_AFTER));
        }
    }
}

#[test]
fn table_of_one_key_replaces_it_only_when_idle() {
    let table = Table::new(1, 1);
    assert_eq!(charge(&table, 7, 0), NEW(0));
    assert_eq!(charge(&table, 8, IDLE_AFTER - 1), NoRoom(1), "the refusal says exactly when");
    assert_eq!(
        charge(&table, 7, IDLE_AFTER - 1),
        Charged { count: 2, at: IDLE_AFTER - 1 },
        "an existing key continues"
    );
    assert_eq!(charge(&table, 8, IDLE_AFTER), NoRoom(IDLE_AFTER - 1), "the charge made it idle later");
    assert_eq!(charge(&table, 8, 2 * IDLE_AFTER), NEW(2 * IDLE_AFTER));
    let Stats { keys, evicted, refused, .. } = table.stats();
    assert_eq!((keys, evicted, refused), (1, 1, 2));
}

#[test]
fn operation_that_leaves_an_empty_state_takes_no_slot() {
    struct Look;
    impl Step for Look {
        type Answer = u64;

        fn run<S: WordsMut + ?Sized>(&self, state: &mut S) -> u64 {
            state.get(0)
        }

        fn run_anew<S: WordsMut + ?Sized>(&self, state: &mut S, _: Micros) -> u64 {
            state.get(0)
        }

        fn fast_path(&self, _: u64) -> Option<(u64, u64)> {
            None
        }

        fn refuse(&self, _: Wait) -> u64 {
            unreachable!("it needs no room")
        }

        fn idle_at<S: Words + ?Sized>(&self, state: &S) -> Micros {
            Micros::new(state.get(0) >> 16)
        }

        fn now(&self) -> Micros {
            Micros::ZERO
        }

        fn is_current(&self) -> bool {
            true
        }
    }
    let table = Table::new(1, 1);
    assert_eq!(table.apply(7, &Look), Some(0));
    assert_eq!(table.stats().keys, 0);
    charge(&table, 7, 0);
    assert_eq!(table.apply(8, &Look), Some(0), "not even at the cap");
    assert_eq!((table.stats().keys, table.stats().refused), (1, 0));
}

/// The instant of an eviction has passed, even if a slow thread read the clock earlier.
#[test]
fn evicted_key_is_decided_no_earlier_than_its_eviction() {
    let table = Table::of_segments(1, 0, 1, 1, 2);
    charge(&table, 2, 0);
    assert_eq!(charge(&table, 4, IDLE_AFTER), NEW(IDLE_AFTER), "2 is idle, and evicted");
    assert_eq!(charge(&table, 6, 2 * IDLE_AFTER), NEW(2 * IDLE_AFTER), "and so is 4");
    assert_eq!(charge(&table, 2, 3 * IDLE_AFTER), NEW(3 * IDLE_AFTER));
    let late = Table::of_segments(1, 0, 5, 1, 2);
    charge(&late, 2, 0);
    [4, 6, 8].into_iter().for_each(|key| assert_eq!(charge(&late, key, IDLE_AFTER), NEW(IDLE_AFTER)));
    assert_eq!(late.stats().evicted, 0, "the home line had room, though 2 is idle");
    charge(&late, 10, IDLE_AFTER);
    assert_eq!(late.stats().evicted, 1, "10 found 2 idle in a full home line");
    assert_eq!(
        charge(&late, 2, IDLE_AFTER - 3),
        NEW(IDLE_AFTER),
        "decided at the instant of its eviction, not before"
    );
}

#[test]
fn evicted_key_is_decided_no_earlier_even_after_a_division() {
    let table = Table::of_segments(1, 1, 32, 1, 2);
    charge(&table, 2, 0);
    charge(&table, 4, IDLE_AFTER);
    (10..16).for_each(|key| assert_eq!(charge(&table, 1 << 63 | key, IDLE_AFTER), NEW(IDLE_AFTER)));
    let before = table.stats().bytes;
    charge(&table, 1 << 63 | 16, IDLE_AFTER);
    assert!(table.stats().bytes > before, "it has divided");
    for key in [2, 1 << 63 | 99] {
        assert_eq!(charge(&table, key, 1), NEW(IDLE_AFTER));
    }
}

#[test]
fn idle_keys_of_other_segments_make_room() {
    let table = Table::of_segments(2, 0, 2, 1, 2);
    charge(&table, 2, 0);
    charge(&table, 4, 0);
    assert_eq!(charge(&table, 1 << 63 | 2, IDLE_AFTER - 1), NoRoom(1));
    assert_eq!(charge(&table, 1 << 63 | 2, IDLE_AFTER), NEW(IDLE_AFTER));
    assert_eq!((table.stats().keys, table.stats().evicted), (1, 2));
}

#[test]
fn keys_of_a_full_line_are_stored_and_found_in_other_lines() {
    for lines in [2, 4, 8] {
        let table = Table::of_segments(1, 0, 4 * lines, 1, lines);
        let same_home: Vec<u64> = (1..=4 * lines as u64).map(|n| n * lines as u64).collect();
        for round in 1..=3 {
            for key in &same_home {
                assert_eq!(charge(&table, *key, 0), Charged { count: round, at: 0 });
            }
        }
        assert_eq!(table.stats().keys, 4 * lines);
    }
}

/// The count of keys outside their home line is never 0 while there is one.
#[test]
fn keys_outside_their_home_line_are_inserted_and_evicted() {
    let table = Table::of_segments(1, 0, 32, 1, 8);
    for round in 0..50 {
        let now = round * IDLE_AFTER;
        for n in 0..32 {
            let key = 8 * (1 + round * 32 + n);
            assert_eq!(charge(&table, key, now), NEW(now));
            assert_eq!(charge(&table, key, now), Charged { count: 2, at: now });
        }
    }
    assert_eq!((table.stats().keys, table.stats().evicted), (32, 49 * 32));
}

/// The count of keys outside their home line sticks at its maximum.
///
/// Every key is still found.
#[test]
fn hundreds_of_keys_with_one_home_line_are_all_found() {
    let table = Table::of_segments(1, 0, 1_024, 1, 256);
    for round in 1..=3 {
        for n in 1..=1_024 {
            assert_eq!(charge(&table, 256 * n, 0), Charged { count: round, at: 0 });
        }
    }
    assert_eq!(charge(&table, 256 * 2_000, IDLE_AFTER), NEW(IDLE_AFTER));
    assert_eq!((table.stats().keys, table.stats().evicted), (1, 1_024));
    for n in 1..=1_023 {
        assert_eq!(charge(&table, 256 * n, IDLE_AFTER), NEW(IDLE_AFTER));
    }
}

#[test]
fn no_key_is_lost_while_the_table_divides_repeatedly() {
    for words in [1, 3, 21] {
        let table = Table::new(50_000, words);
        charge(&table, spread(0), 0);
        let before = table.stats().bytes;
        for round in 1..=3 {
            for n in u64::from(round == 1)..50_000 {
                assert_eq!(charge(&table, spread(n), 0), Charged { count: round, at: 0 });
            }
        }
        let Stats { keys, evicted, refused, bytes, .. } = table.stats();
        assert_eq!((keys, evicted, refused), (50_000, 0, 0));
        assert!(bytes >= 3 * before, "it started small: {before} bytes, and now {bytes}");
    }
}

/// All fingerprints begin with the same bits: dividing does not help, and stops.
#[test]
fn keys_of_one_full_segment_are_denied() {
    let table = Table::of_segments(1, 3, 1_000, 1, 2);
    for key in 1..=8 {
        assert_eq!(charge(&table, key, 0), NEW(0));
    }
    assert_eq!(charge(&table, 9, 0), NoRoom(IDLE_AFTER));
    assert_eq!(charge(&table, 9, IDLE_AFTER), NEW(IDLE_AFTER));
}

#[test]
fn idle_keys_are_evicted_before_a_segment_divides() {
    let table = Table::of_segments(1, 3, 1_000, 1, 2);
    charge(&table, 1, 0);
    let before = table.stats().bytes;
    for n in 1..1_000 {
        assert_eq!(charge(&table, spread(n), n * IDLE_AFTER), NEW(n * IDLE_AFTER));
    }
    assert_eq!(table.stats().bytes, before, "one key at a time needs no more than there was");
}

/// A key that becomes idle late under one version may become idle early under the next.
#[test]
fn keys_made_idle_by_a_change_make_room() {
    let table = Table::of_segments(1, 0, 8, 1, 2);
    (1..=8).for_each(|key| assert_eq!(charge(&table, key, 1_000), NEW(1_000)));
    assert_eq!(charge(&table, 9, 1_000), NoRoom(IDLE_AFTER));
    table.convert(|| {}, |(), found, _| (found & 0xFFFF) | 1_001 << 16);
    assert_eq!(charge(&table, 9, 1_000), NoRoom(1));
    assert_eq!(charge(&table, 9, 1_001), NEW(1_001));
}

#[test]
fn migrated_states_are_unchanged() {
    for words in [1, 3, 21] {
        let (table, next) = (Table::new(5_000, words), Table::new(5_000, 2));
        (0..5_000).for_each(|n| assert_eq!(charge(&table, spread(n), n % 7), NEW(n % 7)));
        for (key, found, wide) in table.migrate().states() {
            let word = if words == 1 { found } else { Guarded(wide).get(0) };
            assert!(next.insert_raw(key, &[word, 0], Micros::new(word >> 16)));
        }
        assert_eq!(next.stats().keys, 5_000);
        (0..5_000).for_each(|n| assert_eq!(charge(&next, spread(n), 6), Charged { count: 2, at: 6 }));
    }
}

/// Random fingerprints may crowd one segment of the next table while others have room.
#[test]
fn migration_loses_no_key_of_a_crowded_segment() {
    let crowded_keys = || (0..1_500).map(|n| spread(n) >> 13 | 1 << 63);
    let state = |n: u64| [1 | (IDLE_AFTER + n) << 16];
    let insert_all = |table: &Table| {
        crowded_keys().zip(0..).all(|(key, n)| table.insert_raw(key, &state(n), Micros::new(IDLE_AFTER + n)))
    };
    assert!(!insert_all(&Table::new(4_000, 1)), "the crowded keys do not fit a table of the usual size");

    let table = Table::inserted_raw(4_000, 1, insert_all);
    assert_eq!(table.stats().keys, 1_500);
    crowded_keys().for_each(|key| assert_eq!(charge(&table, key, 6), Charged { count: 2, at: 6 }));
}
