//! The floor: what the machine itself takes for the least a limiter has to do. A clock must be read, a word must
//! be changed so that no two threads change it at once, and of a million words one must come from memory.
//! Nothing here is a limiter anybody should use: no bounds, no growth, no answer beyond yes and no.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use quanta::Clock;

use crate::case::{Case, each};
use crate::keys::{LIVE, each_number, each_text, fill_numbers, fill_texts};

/// The row of the floor in every table.
pub(crate) const FLOOR: &str = "floor: one word, rdtsc";

/// The row of the loop around the cases.
pub(crate) const LOOP: &str = "floor: the loop alone";

const TABLE: &str = "floor: flat table, rdtsc";

/// An instant until which the word owes, alone on its cache line as anything hot should be.
#[derive(Debug)]
#[repr(align(128))]
struct Word(AtomicU64);

/// A word and the clock to hold it against.
#[derive(Debug)]
struct One {
    word: Word,
    clock: Clock,
    pace: Pace,
}

/// In ticks of the clock, whatever they are.
#[derive(Clone, Copy, Debug)]
struct Pace {
    interval: u64,
    tolerance: u64,
}

/// A flat table, a key and its word side by side: one cache miss for each decision. Never grows.
#[derive(Debug)]
struct Table {
    slots: Box<[[AtomicU64; 2]]>,
    clock: Clock,
}

/// Everything passes.
const OPEN: Pace = Pace { interval: 1, tolerance: 1 << 60 };

/// Nothing passes that is held against a word in the far future.
const SHUT: Pace = Pace { interval: 1 << 40, tolerance: 0 };

// === One word ===

/// What every direct case contains: the loop, and one clock or the other.
pub(crate) fn clocks(what: &'static str) -> Vec<Case> {
    let (start, clock) = (Instant::now(), Clock::new());
    vec![
        Case::new(what, LOOP, |n| each(&(), n, |()| black_box(true))),
        Case::new(what, "floor: clock, rdtsc", move |n| each(&clock, n, |clock| black_box(clock.raw()) > 0)),
        Case::new(what, "floor: clock, OS", move |n| {
            each(&start, n, |start| black_box(start.elapsed().as_nanos()) > 0)
        }),
    ]
}

pub(crate) fn allowed(what: &'static str, threads: usize) -> Case {
    let one = One { word: Word(AtomicU64::new(0)), clock: Clock::new(), pace: OPEN };
    Case::new(what, FLOOR, move |n| each(&one, n, One::ask)).threads(threads)
}

pub(crate) fn refused(what: &'static str) -> Case {
    let one = One { word: Word(AtomicU64::new(u64::MAX / 2)), clock: Clock::new(), pace: SHUT };
    Case::new(what, FLOOR, move |n| each(&one, n, One::ask)).refused()
}

impl One {
    #[inline]
    fn ask(&self) -> bool {
        black_box(self.pace.take(&self.word.0, self.clock.raw()))
    }
}

impl Pace {
    #[inline]
    fn take(self, word: &AtomicU64, now: u64) -> bool {
        let mut owes_until = word.load(Ordering::Relaxed);
        while owes_until <= now + self.tolerance {
            let next = owes_until.max(now) + self.interval;
            match word.compare_exchange_weak(owes_until, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(found) => owes_until = found,
            }
        }
        false
    }
}

// === A word for each key ===

pub(crate) fn numbers(one: &'static str, two: &'static str) -> Vec<Case> {
    let table = Arc::new(Table::new());
    fill_numbers(|key| table.ask(key));
    let case = |what| {
        let table = Arc::clone(&table);
        Case::new(what, TABLE, move |n| each_number(n, |key| table.ask(key)))
    };
    vec![Case::new(one, LOOP, |n| each_number(n, |key| black_box(key) > 0)), case(one), case(two).threads(2)]
}

pub(crate) fn texts(one: &'static str, two: &'static str) -> Vec<Case> {
    let table = Arc::new(Table::new());
    fill_texts(|key| table.ask(fingerprint(key)));
    let case = |what| {
        let table = Arc::clone(&table);
        Case::new(what, TABLE, move |n| each_text(n, |key| table.ask(fingerprint(key))))
    };
    vec![
        Case::new(one, LOOP, |n| each_text(n, |key| black_box(key).len() == 16)),
        case(one),
        case(two).threads(2),
    ]
}

/// Stands for a text of 16 bytes; the table does not keep the text.
#[inline]
fn fingerprint(text: &str) -> u64 {
    let Some((first, rest)) = text.as_bytes().split_first_chunk::<8>() else { return 1 };
    let Some(second) = rest.first_chunk::<8>() else { return 1 };
    fold(u64::from_le_bytes(*first), u64::from_le_bytes(*second)) | 1
}

/// The two halves of a product, folded: a cheap and good enough hash.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the halves are what is wanted")]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a ^ 0xa076_1d64_78bd_642f) * u128::from(b ^ 0xe703_7ed1_a0b4_28db);
    (product >> 64) as u64 ^ product as u64
}

impl Table {
    /// To be half full, which keeps most keys at home.
    fn new() -> Self {
        let size = (LIVE as usize * 2).next_power_of_two();
        let slots = (0..size).map(|_| [const { AtomicU64::new(0) }; 2]).collect();
        Table { slots, clock: Clock::new() }
    }

    #[inline]
    fn ask(&self, key: u64) -> bool {
        black_box(OPEN.take(self.word(key), self.clock.raw()))
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "cut to the size of the table anyway")]
    fn word(&self, key: u64) -> &AtomicU64 {
        let mask = self.slots.len() - 1;
        let mut place = fold(key, 0) as usize & mask;
        loop {
            let [owner, word] = &self.slots[place];
            if claim(owner, key) {
                return word;
            }
            place = (place + 1) & mask;
        }
    }
}

/// Whether the slot belongs to `key`, now that it could have taken it.
#[inline]
fn claim(owner: &AtomicU64, key: u64) -> bool {
    let found = owner.load(Ordering::Acquire);
    found == key
        || found == 0
            && match owner.compare_exchange(0, key, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => true,
                Err(winner) => winner == key,
            }
}
