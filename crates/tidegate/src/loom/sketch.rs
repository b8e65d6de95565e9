//! Keys without a slot, two threads: charges to shared cells, insertion, and a change of version.
//!
//! The state is a count that never runs out. In two words it carries from one to the other at 2, so that words of two
//! different moments make a count that never existed.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use tidegate_core::{Micros, Wait, Words, WordsMut};

use super::{INTERRUPTIONS, both, model};
use crate::state_cell::Guarded;
use crate::table::{OnFull, Sketch, Step, Table};

/// Two keys of one segment and one of another. In a single column they share all cells.
const KEYS: [u64; 2] = [4, 8];
const ELSEWHERE: u64 = 1 << 63 | 4;
/// The key that occupies the only slot, until it is idle.
const RESIDENT: u64 = 12;
const IDLE: u64 = 10;

/// The count of a key that never becomes idle.
fn read<S: Words + ?Sized>(state: &S, words: usize) -> u64 {
    if words == 1 { state.get(0) } else { 2 * state.get(0) + state.get(1) }
}

fn write<S: WordsMut + ?Sized>(state: &mut S, words: usize, count: u64) {
    if words == 1 {
        return state.set(0, count);
    }
    state.set(0, count / 2);
    state.set(1, count % 2);
}

/// Charges `cost` at `now`, if the count stays within `limit`. The resident's count is 1.
#[derive(Clone, Copy)]
struct Charge<'a> {
    cost: u64,
    limit: u64,
    now: u64,
    words: usize,
    setting: Option<(&'a AtomicUsize, usize)>,
}

fn charge<'a>(words: usize) -> Charge<'a> {
    Charge { cost: 1, limit: 9, now: 0, words, setting: None }
}

impl Step for Charge<'_> {
    /// The count, if the request passed.
    type Answer = Option<u64>;

    fn run<S: WordsMut + ?Sized>(&self, state: &mut S) -> Option<u64> {
        let count = read(state, self.words) + self.cost;
        if count > self.limit {
            return None;
        }
        write(state, self.words, count);
        Some(count)
    }

    fn fast_path(&self, _: u64) -> Option<(u64, Option<u64>)> {
        None
    }

    fn refuse(&self, _: Wait) -> Option<u64> {
        None
    }

    /// A count of 1 is idle at [`IDLE`], a larger one never.
    fn idle_at<S: Words + ?Sized>(&self, state: &S) -> Micros {
        match read(state, self.words) {
            0 => Micros::ZERO,
            1 => Micros::new(IDLE),
            _ => Micros::MAX,
        }
    }

    fn now(&self) -> Micros {
        Micros::new(self.now)
    }

    fn is_current(&self) -> bool {
        self.setting.is_none_or(|(current, number)| current.load(Ordering::Acquire) == number)
    }

    fn is_ordered(&self) -> bool {
        true
    }
}

fn decide(table: &Table, key: u64, step: &Charge<'_>) -> bool {
    table.apply(key, step).expect("the version does not change").is_some()
}

/// Returns what the table assumes that a key has used.
fn used(table: &Table, key: u64, words: usize) -> u64 {
    let look = Charge { cost: 0, limit: 99, ..charge(words) };
    table.apply(key, &look).flatten().expect("a cost of 0 always passes")
}

/// Creates a table of one slot, which is taken, and a sketch of a single column.
fn full(words: usize) -> Table {
    let sketch = Sketch::of_width(1, words, OnFull::Sketch);
    let table = Table::of_segments(2, 0, 1, words, 2).with_sketch(sketch);
    assert!(decide(&table, RESIDENT, &charge(words)));
    table
}

fn model_each(run: impl Fn(usize) + Copy + Send + Sync + 'static) {
    for words in [1, 2] {
        model(INTERRUPTIONS, move || run(words));
    }
}

#[test]
fn last_token_of_a_shared_key_goes_to_one_of_two_threads() {
    model_each(|words| {
        let table = full(words);
        assert!(decide(&table, KEYS[0], &charge(words)));
        let table = Arc::new(table);
        let last = move |table: &Table| decide(table, KEYS[0], &Charge { limit: 2, ..charge(words) });
        let (one, other) = both(&table, last, last);
        assert!(one != other, "{one} {other}");
        assert_eq!(used(&table, KEYS[0], words), 2);
    });
}

/// Two keys under different locks.
///
/// The cells exist before: publishing them is left to the `OnceLock`.
#[test]
fn no_charge_to_a_shared_cell_is_lost() {
    model_each(|words| {
        let table = full(words);
        assert!(decide(&table, KEYS[1], &charge(words)));
        let table = Arc::new(table);
        let once = move |key| move |table: &Table| decide(table, key, &charge(words));
        assert_eq!(both(&table, once(KEYS[0]), once(ELSEWHERE)), (true, true));
        for key in [KEYS[0], ELSEWHERE] {
            let used = used(&table, key, words);
            assert!((2..=3).contains(&used), "at least the first charge and its own, at most all: {used}");
        }
    });
}

#[test]
fn keys_that_share_all_cells_charge_no_more_than_one_limit() {
    model_each(|words| {
        let table = full(words);
        assert!(decide(&table, KEYS[0], &charge(words)));
        let table = Arc::new(table);
        let last = move |key| move |table: &Table| decide(table, key, &Charge { limit: 2, ..charge(words) });
        let (one, other) = both(&table, last(KEYS[0]), last(ELSEWHERE));
        assert!(one || other, "at least one of them passes");
        assert!(KEYS.iter().all(|key| used(&table, *key, words) == 2));
    });
}

/// A count of 1 becomes 2, in two words (0, 1) becomes (1, 0).
///
/// Halves read at different moments would look unused.
#[test]
fn key_at_its_limit_is_denied_while_other_keys_raise_its_cells() {
    model_each(|words| {
        let table = full(words);
        assert!(decide(&table, KEYS[0], &charge(words)));
        let table = Arc::new(table);
        let answers = both(
            &table,
            move |table| decide(table, KEYS[0], &Charge { limit: 1, ..charge(words) }),
            move |table| decide(table, ELSEWHERE, &charge(words)),
        );
        assert_eq!(answers, (false, true));
    });
}

/// For one thread the resident is idle, so the key is inserted; for the other it is not.
#[test]
fn key_inserted_from_the_sketch_keeps_its_latest_usage() {
    model_each(|words| {
        let table = full(words);
        assert!(decide(&table, KEYS[1], &Charge { cost: 2, ..charge(words) }));
        let table = Arc::new(table);
        let two = move |now| {
            move |table: &Table| decide(table, KEYS[0], &Charge { cost: 2, limit: 5, now, ..charge(words) })
        };
        let (shared, moved) = both(&table, two(0), two(IDLE));
        assert!(shared != moved, "{shared} {moved}");
    });
}

#[test]
fn charge_during_a_cell_conversion_counts_once() {
    model_each(|words| {
        let table = full(words);
        assert!(decide(&table, KEYS[0], &charge(words)));
        let shared = Arc::new((table, AtomicUsize::new(0)));
        let (passed, ()) = both(
            &shared,
            move |(table, current)| loop {
                let number = current.load(Ordering::Acquire);
                let (cost, limit) = [(1, 9), (10, 99)][number];
                let step = Charge { cost, limit, setting: Some((current, number)), ..charge(words) };
                if let Some(passed) = table.apply(KEYS[0], &step) {
                    break passed.is_some();
                }
            },
            move |(table, current)| {
                table.convert(
                    || current.store(1, Ordering::Release),
                    |(), found, wide| ten_times(found, wide),
                );
            },
        );
        assert!(passed);
        assert_eq!(used(&shared.0, KEYS[0], words), 20);
    });
}

fn ten_times(found: u64, wide: &[AtomicU64]) -> u64 {
    if wide.is_empty() {
        return found * 10;
    }
    let mut state = Guarded(wide);
    let count = read(&state, 2);
    write(&mut state, 2, count * 10);
    Micros::MAX.get()
}
