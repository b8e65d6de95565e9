//! Many keys, two threads: insertions, evictions, divisions and changes of version.
//!
//! The state is the simplest that can be idle: how much was charged, and the instant until which that counts.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use tidegate_core::{Micros, Wait, Words, WordsMut};

use super::{INTERRUPTIONS, both, model};
use crate::state_cell::Guarded;
use crate::table::{Step, Table};

/// A state is idle this long after its last charge.
const STAY: u64 = 10;

/// Keys that stay when the table divides, and keys that move to the new segment.
///
/// All of them have the first line as their home, so that they use the same slots one after the other.
const LOW: [u64; 2] = [4, 8];
const HIGH: [u64; 3] = [1 << 63 | 4, 1 << 63 | 8, 1 << 63 | 12];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Passed,
    Refused,
    NoRoom,
}

use Answer::{NoRoom, Passed, Refused};

/// A state, unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stay {
    until: u64,
    count: u64,
}

impl Stay {
    fn read<S: Words + ?Sized>(state: &S, words: usize) -> Self {
        match words {
            1 => Stay { until: state.get(0) >> 8, count: state.get(0) & 255 },
            _ => Stay { until: state.get(0), count: state.get(1) },
        }
    }

    /// Returns the state of a locked slot.
    fn found(word: u64, wide: &[AtomicU64]) -> Self {
        if wide.is_empty() { Stay::read(&[word], 1) } else { Stay::read(&Guarded(wide), 2) }
    }

    /// Writes the state of a locked slot, and returns its word.
    fn put(self, wide: &[AtomicU64]) -> u64 {
        if wide.is_empty() {
            let mut state = [0];
            self.write(&mut state, 1);
            return state[0];
        }
        self.write(&mut Guarded(wide), 2);
        self.until
    }

    fn write<S: WordsMut + ?Sized>(self, state: &mut S, words: usize) {
        match words {
            1 => state.set(0, self.until << 8 | self.count),
            _ => {
                state.set(0, self.until);
                state.set(1, self.count);
            }
        }
    }
}

/// Charges `cost` at `now`, if the count stays within `limit`.
///
/// A cost of 0 refunds everything.
#[derive(Clone, Copy)]
struct Charge<'a> {
    cost: u64,
    limit: u64,
    now: u64,
    words: usize,
    /// The number of the current version, and of the version that this step is for.
    setting: Option<(&'a AtomicUsize, usize)>,
}

fn charge<'a>(now: u64, words: usize) -> Charge<'a> {
    Charge { cost: 1, limit: 9, now, words, setting: None }
}

impl Step for Charge<'_> {
    type Answer = Answer;

    fn run<S: WordsMut + ?Sized>(&self, state: &mut S) -> Answer {
        let stay = Stay::read(state, self.words);
        let count = if stay.until <= self.now { 0 } else { stay.count };
        if count + self.cost > self.limit {
            return Refused;
        }
        let until = stay.until.max(self.now + STAY);
        let next = Stay { until, count: count + self.cost };
        let nothing = Stay { until: 0, count: 0 };
        if self.cost == 0 { nothing } else { next }.write(state, self.words);
        Passed
    }

    fn fast_path(&self, word: u64) -> Option<(u64, Answer)> {
        let mut state = [word];
        let answer = self.run(&mut state);
        Some((state[0], answer))
    }

    fn refuse(&self, _: Wait) -> Answer {
        NoRoom
    }

    fn idle_at<S: Words + ?Sized>(&self, state: &S) -> Micros {
        Micros::new(Stay::read(state, self.words).until)
    }

    fn now(&self) -> Micros {
        Micros::new(self.now)
    }

    fn run_anew<S: WordsMut + ?Sized>(&self, state: &mut S, evicted_at: Micros) -> Answer {
        Charge { now: self.now.max(evicted_at.get()), ..*self }.run(state)
    }

    fn is_current(&self) -> bool {
        self.setting.is_none_or(|(current, number)| current.load(Ordering::Acquire) == number)
    }
}

/// Reads the count of a key.
struct Look {
    words: usize,
}

impl Step for Look {
    type Answer = u64;

    fn run<S: WordsMut + ?Sized>(&self, state: &mut S) -> u64 {
        Stay::read(state, self.words).count
    }

    fn fast_path(&self, _: u64) -> Option<(u64, u64)> {
        None
    }

    fn refuse(&self, _: Wait) -> u64 {
        unreachable!("a look needs no room")
    }

    fn idle_at<S: Words + ?Sized>(&self, state: &S) -> Micros {
        Micros::new(Stay::read(state, self.words).until)
    }

    fn now(&self) -> Micros {
        Micros::ZERO
    }

    fn run_anew<S: WordsMut + ?Sized>(&self, state: &mut S, _: Micros) -> u64 {
        self.run(state)
    }

    fn is_current(&self) -> bool {
        true
    }
}

/// Makes one decision, as a keyed limiter does. Returns `None` if the version changed.
fn try_decide(table: &Table, key: u64, step: &Charge<'_>) -> Option<Answer> {
    table.apply_fast(key, || *step).or_else(|| table.apply(key, step))
}

fn decide(table: &Table, key: u64, step: &Charge<'_>) -> Answer {
    try_decide(table, key, step).expect("the version does not change")
}

fn count(table: &Table, key: u64, words: usize) -> u64 {
    table.apply(key, &Look { words }).expect("the version does not change")
}

/// Creates a table of two lines, the minimum, which never divides.
fn two_lines(max_keys: usize, words: usize) -> Table {
    Table::of_segments(1, 0, max_keys, words, 2)
}

/// Creates a table of two lines that is about to divide.
///
/// Seven of its eight slots are taken.
fn nearly_full(words: usize) -> Table {
    let table = Table::of_segments(1, 1, 16, words, 2);
    let others = (0..).map(|n| 100 + n).take(4);
    for key in others.chain(LOW).chain([HIGH[0]]) {
        assert_eq!(decide(&table, key, &charge(0, words)), Passed);
    }
    assert_eq!(table.stats().keys, 7);
    table
}

/// Creates a table with a root of two lines that is about to be replaced by one of four.
///
/// Seven of its eight slots are taken.
fn nearly_full_root(words: usize) -> Table {
    let table = Table::of_root(2, 16, words);
    let others = (0..).map(|n| 100 + n).take(4);
    for key in others.chain(LOW).chain([HIGH[0]]) {
        assert_eq!(decide(&table, key, &charge(0, words)), Passed);
    }
    table
}

/// Runs a model with states of one word and with wide states.
fn model_each(run: impl Fn(usize) + Copy + Send + Sync + 'static) {
    model_within(INTERRUPTIONS, run);
}

/// Runs a model with states of one word and with wide states.
///
/// A larger model takes fewer preemptions, to end in time.
fn model_within(interruptions: usize, run: impl Fn(usize) + Copy + Send + Sync + 'static) {
    for words in [1, 2] {
        model(interruptions, move || run(words));
    }
}

#[test]
fn key_inserted_by_two_threads_takes_one_slot() {
    model_each(|words| {
        let table = Arc::new(two_lines(2, words));
        let arrive = move |table: &Table| decide(table, LOW[0], &charge(0, words));
        assert_eq!(both(&table, arrive, arrive), (Passed, Passed));
        assert_eq!(table.stats().keys, 1);
        assert_eq!(count(&table, LOW[0], words), 2);
    });
}

/// The table is empty: each of the two threads may be the one that allocates the root.
#[test]
fn first_keys_of_two_threads_are_both_kept() {
    model_each(|words| {
        let table = Arc::new(two_lines(2, words));
        let came = both(
            &table,
            move |table| decide(table, LOW[0], &charge(0, words)),
            move |table| decide(table, LOW[1], &charge(0, words)),
        );
        assert_eq!(came, (Passed, Passed));
        assert_eq!(LOW.map(|key| count(&table, key, words)), [1, 1]);
        assert_eq!(table.stats().keys, 2);
    });
}

/// One thread allocates the root.
///
/// The other may be late to do so, when it was filled and replaced.
#[test]
fn replaced_root_is_not_allocated_again() {
    model_within(1, |words| {
        let table = Arc::new(Table::of_root(2, 16, words));
        let came = both(
            &table,
            move |table| decide(table, LOW[0], &charge(0, words)),
            move |table| (1..=8).all(|n| decide(table, 4 * n + 1, &charge(0, words)) == Passed),
        );
        assert_eq!(came, (Passed, true));
        assert_eq!(count(&table, LOW[0], words), 1);
        assert!((1..=8).all(|n| count(&table, 4 * n + 1, words) == 1));
        assert_eq!((table.stats().keys, table.stats().evicted), (9, 0));
    });
}

#[test]
fn key_is_charged_once_while_its_root_is_replaced() {
    model_within(2, |words| {
        let table = Arc::new(nearly_full_root(words));
        let (stayed, came) = both(
            &table,
            move |table| decide(table, LOW[0], &charge(0, words)),
            move |table| decide(table, HIGH[1], &charge(0, words)),
        );
        assert_eq!((stayed, came), (Passed, Passed));
        assert_eq!(LOW.map(|key| count(&table, key, words)), [2, 1]);
        assert_eq!(HIGH.map(|key| count(&table, key, words)), [1, 1, 0]);
        assert_eq!((table.stats().keys, table.stats().evicted), (8, 0));
    });
}

#[test]
fn new_keys_are_inserted_while_the_root_is_replaced() {
    model_within(2, |words| {
        let table = Arc::new(nearly_full_root(words));
        let came = both(
            &table,
            move |table| decide(table, HIGH[1], &charge(0, words)),
            move |table| decide(table, HIGH[2], &charge(0, words)),
        );
        assert_eq!(came, (Passed, Passed));
        assert_eq!(HIGH.map(|key| count(&table, key, words)), [1, 1, 1]);
        assert_eq!(table.stats().keys, 9);
    });
}

#[test]
fn reused_slot_is_taken_once_by_a_key_inserted_by_two_threads() {
    model_each(|words| {
        let table = two_lines(1, words);
        decide(&table, LOW[1], &charge(0, words));
        let table = Arc::new(table);
        let arrive = move |table: &Table| decide(table, LOW[0], &charge(STAY, words));
        assert_eq!(both(&table, arrive, arrive), (Passed, Passed));
        assert_eq!(count(&table, LOW[0], words), 2);
        assert_eq!((table.stats().keys, table.stats().evicted), (1, 1));
    });
}

/// An idle key is charged while another key needs its slot.
///
/// Either the charge comes first and the slot is not free, or the slot is free and the charge finds no room.
#[test]
fn key_is_charged_or_evicted_but_never_both() {
    model_each(|words| {
        let table = two_lines(1, words);
        decide(&table, LOW[0], &charge(0, words));
        let table = Arc::new(table);
        let (stayed, came) = both(
            &table,
            move |table| decide(table, LOW[0], &charge(STAY, words)),
            move |table| decide(table, LOW[1], &charge(STAY, words)),
        );
        assert!([(Passed, NoRoom), (NoRoom, Passed)].contains(&(stayed, came)), "{stayed:?} {came:?}");
        assert_eq!(count(&table, LOW[0], words), u64::from(stayed == Passed));
        assert_eq!(count(&table, LOW[1], words), u64::from(came == Passed));
        assert_eq!(table.stats().keys, 1);
    });
}

#[test]
fn key_is_charged_once_while_its_segment_divides() {
    model_each(|words| {
        let table = Arc::new(nearly_full(words));
        let (stayed, came) = both(
            &table,
            move |table| decide(table, HIGH[0], &charge(0, words)),
            move |table| decide(table, HIGH[1], &charge(0, words)),
        );
        assert_eq!((stayed, came), (Passed, Passed));
        assert_eq!(HIGH.map(|key| count(&table, key, words)), [2, 1, 0]);
        assert_eq!(LOW.map(|key| count(&table, key, words)), [1, 1]);
        assert_eq!((table.stats().keys, table.stats().evicted), (8, 0));
    });
}

#[test]
fn key_at_its_limit_is_denied_while_its_segment_divides() {
    model_each(|words| {
        let table = Arc::new(nearly_full(words));
        let (stayed, came) = both(
            &table,
            move |table| decide(table, HIGH[0], &Charge { limit: 1, ..charge(0, words) }),
            move |table| decide(table, HIGH[1], &charge(0, words)),
        );
        assert_eq!((stayed, came), (Refused, Passed));
        assert_eq!(HIGH.map(|key| count(&table, key, words)), [1, 1, 0]);
    });
}

/// A division moves keys that are stored away from their home back to it.
///
/// Of four lines two are crowded with keys that move to the new segment.
#[test]
fn key_is_charged_once_while_it_moves_to_its_home_line() {
    let far = 100;
    model_within(2, move |words| {
        let table = Table::of_segments(1, 1, 32, words, 4);
        let (leaves, stays) = ([1 << 63 | 20, 1 << 63 | 24], [20, 24, 28, 32, 36, 40]);
        let elsewhere = [2, 6, 10, 3, 7];
        for key in leaves.into_iter().chain(stays).chain([far]).chain(elsewhere) {
            assert_eq!(decide(&table, key, &charge(0, words)), Passed);
        }
        let table = Arc::new(table);
        let answers = both(
            &table,
            move |table| decide(table, far, &charge(0, words)),
            move |table| decide(table, HIGH[0], &charge(0, words)),
        );
        assert_eq!(answers, (Passed, Passed));
        assert_eq!([far, HIGH[0]].map(|key| count(&table, key, words)), [2, 1]);
        assert_eq!((table.stats().keys, table.stats().evicted), (15, 0));
    });
}

#[test]
fn new_keys_are_inserted_while_the_segment_divides() {
    model_each(|words| {
        let table = Arc::new(nearly_full(words));
        let came = both(
            &table,
            move |table| decide(table, HIGH[1], &charge(0, words)),
            move |table| decide(table, HIGH[2], &charge(0, words)),
        );
        assert_eq!(came, (Passed, Passed));
        assert_eq!(HIGH.map(|key| count(&table, key, words)), [1, 1, 1]);
        assert_eq!(table.stats().keys, 9);
    });
}

/// The slot goes from one key to another that is at its limit, and back.
///
/// The first key never is.
#[test]
fn no_key_is_denied_for_the_usage_of_another_key_in_its_slot() {
    model_each(|words| {
        let table = two_lines(1, words);
        decide(&table, LOW[0], &charge(0, words));
        let table = Arc::new(table);
        let of_two = move |cost, now| Charge { cost, limit: 2, ..charge(now, words) };
        let (first, _) = both(
            &table,
            move |table| decide(table, LOW[0], &of_two(1, STAY + 5)),
            move |table| {
                decide(table, LOW[1], &of_two(2, STAY));
                decide(table, LOW[0], &of_two(1, 2 * STAY));
            },
        );
        assert_ne!(first, Refused);
    });
}

#[test]
fn last_room_goes_to_one_of_two_new_keys() {
    model_each(|words| {
        let table = Arc::new(two_lines(1, words));
        let came = both(
            &table,
            move |table| decide(table, LOW[0], &charge(0, words)),
            move |table| decide(table, LOW[1], &charge(0, words)),
        );
        assert!([(Passed, NoRoom), (NoRoom, Passed)].contains(&came), "{came:?}");
        assert_eq!((table.stats().keys, table.stats().refused), (1, 1));
    });
}

/// One of two new keys evicts an idle key, and one of the two gets the slot.
///
/// They are in two segments, so that no lock separates them.
#[test]
fn slot_of_an_evicted_key_is_not_lost_between_two_new_keys() {
    model_each(|words| {
        let table = Table::of_segments(2, 0, 1, words, 2);
        decide(&table, HIGH[0], &charge(0, words));
        let table = Arc::new(table);
        let came = both(
            &table,
            move |table| decide(table, LOW[0], &charge(STAY, words)),
            move |table| decide(table, HIGH[1], &charge(STAY, words)),
        );
        assert!([(Passed, NoRoom), (NoRoom, Passed)].contains(&came), "{came:?}");
        assert_eq!((table.stats().keys, table.stats().evicted), (1, 1));
    });
}

/// Each thread has locked its own segment and tries to sweep the other's.
#[test]
fn new_keys_without_room_do_not_deadlock() {
    model_each(|words| {
        let table = Table::of_segments(2, 0, 1, words, 2);
        decide(&table, HIGH[0], &charge(0, words));
        let table = Arc::new(table);
        let came = both(
            &table,
            move |table| decide(table, LOW[0], &charge(1, words)),
            move |table| decide(table, HIGH[1], &charge(1, words)),
        );
        assert_eq!(came, (NoRoom, NoRoom));
        assert_eq!((table.stats().keys, table.stats().refused), (1, 2));
    });
}

/// A key that is refunded during a scan for idle keys is found by the next scan.
///
/// Its segment may be scanned already when it is refunded.
#[test]
fn key_refunded_during_an_idle_scan_is_found_by_the_next_scan() {
    model_each(|words| {
        let table = Table::of_segments(2, 0, 1, words, 2);
        decide(&table, HIGH[0], &charge(0, words));
        let table = Arc::new(table);
        let (came, ()) = both(
            &table,
            move |table| decide(table, LOW[0], &charge(1, words)),
            move |table| {
                decide(table, HIGH[0], &Charge { cost: 0, ..charge(1, words) });
                table.allow_eviction_scan(HIGH[0]);
            },
        );
        let comes = decide(&table, LOW[1], &charge(1, words));
        assert!([(Passed, NoRoom), (NoRoom, Passed)].contains(&(came, comes)), "{came:?} {comes:?}");
    });
}

/// A table that changes its version.
///
/// The second table is used if the states of the next version have another size.
struct Changing {
    tables: [Table; 2],
    current: AtomicUsize,
}

impl Changing {
    fn new(words: [usize; 2]) -> Self {
        let changing = Changing::never_asked(words);
        assert_eq!(decide(&changing.tables[0], LOW[0], &charge(0, words[0])), Passed);
        changing
    }

    fn never_asked(words: [usize; 2]) -> Self {
        Changing { tables: words.map(|words| two_lines(2, words)), current: AtomicUsize::new(0) }
    }

    /// Charges a key under the current version.
    ///
    /// Under the second version a unit counts ten times.
    fn decide(&self, key: u64, units: [u64; 2], words: [usize; 2], tables: [usize; 2]) -> Answer {
        loop {
            let number = self.current.load(Ordering::Acquire);
            let setting = Some((&self.current, number));
            let step =
                Charge { cost: units[number], limit: [9, 99][number], setting, ..charge(0, words[number]) };
            if let Some(answer) = try_decide(&self.tables[tables[number]], key, &step) {
                return answer;
            }
        }
    }

    /// Converts every count with `next`.
    fn change_in_place(&self, next: fn(u64) -> u64) {
        self.tables[0].convert(
            || self.current.store(1, Ordering::Release),
            |(), found, wide| {
                let stay = Stay::found(found, wide);
                Stay { count: next(stay.count), ..stay }.put(wide)
            },
        );
    }

    fn change_table(&self, words: [usize; 2]) {
        let migrated = self.tables[0].migrate();
        for (key, found, wide) in migrated.states() {
            let stay = Stay::found(found, wide);
            let mut state = vec![0; words[1]];
            stay.write(state.as_mut_slice(), words[1]);
            assert!(self.tables[1].insert_raw(key, &state, Micros::new(stay.until)));
        }
        self.current.store(1, Ordering::Release);
        drop(migrated);
    }
}

#[test]
fn charge_during_a_conversion_counts_once_for_old_and_new_keys() {
    model_each(|words| {
        for key in LOW {
            let changing = Arc::new(Changing::new([words, words]));
            let (answer, ()) = both(
                &changing,
                move |changing| changing.decide(key, [1, 10], [words, words], [0, 0]),
                |changing| changing.change_in_place(|count| count * 10),
            );
            assert_eq!(answer, Passed);
            let expected = if key == LOW[0] { [20, 0] } else { [10, 10] };
            assert_eq!(LOW.map(|key| count(&changing.tables[0], key, words)), expected);
        }
    });
}

/// A table without a root has no lock that keeps the first key out.
#[test]
fn first_key_during_a_rule_change_counts_once() {
    model_each(|words| {
        let changing = Arc::new(Changing::never_asked([words, words]));
        let (answer, ()) = both(
            &changing,
            move |changing| changing.decide(LOW[0], [1, 10], [words, words], [0, 0]),
            |changing| changing.change_in_place(|count| count * 10),
        );
        assert_eq!(answer, Passed);
        assert_eq!(count(&changing.tables[0], LOW[0], words), 10);
    });
    for words in [[1, 2], [2, 1]] {
        model(INTERRUPTIONS, move || {
            let changing = Arc::new(Changing::never_asked(words));
            let (answer, ()) = both(
                &changing,
                move |changing| changing.decide(LOW[0], [1, 1], words, [0, 1]),
                move |changing| changing.change_table(words),
            );
            assert_eq!(answer, Passed);
            assert_eq!(count(&changing.tables[1], LOW[0], words[1]), 1);
        });
    }
}

/// One is one under both versions, two is twenty.
///
/// The charge cannot tell from the word alone that it comes too late.
#[test]
fn word_unchanged_by_a_conversion_is_not_charged_by_the_old_rule() {
    model_each(|words| {
        let changing = Arc::new(Changing::new([words, words]));
        let (answer, ()) = both(
            &changing,
            move |changing| changing.decide(LOW[0], [1, 10], [words, words], [0, 0]),
            |changing| changing.change_in_place(|count| if count == 1 { 1 } else { count * 10 }),
        );
        assert_eq!(answer, Passed);
        let count = count(&changing.tables[0], LOW[0], words);
        assert!([20, 11].contains(&count), "two before the change, or one and ten after it: {count}");
    });
}

#[test]
fn charge_during_a_migration_counts_once_for_old_and_new_keys() {
    for words in [[1, 2], [2, 1]] {
        for key in LOW {
            model(INTERRUPTIONS, move || {
                let changing = Arc::new(Changing::new(words));
                let (answer, ()) = both(
                    &changing,
                    move |changing| changing.decide(key, [1, 1], words, [0, 1]),
                    move |changing| changing.change_table(words),
                );
                assert_eq!(answer, Passed);
                let expected = if key == LOW[0] { [2, 0] } else { [1, 1] };
                assert_eq!(LOW.map(|key| count(&changing.tables[1], key, words[1])), expected);
            });
        }
    }
}
