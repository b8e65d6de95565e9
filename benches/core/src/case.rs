//! The loops around the questions about keys. They are the same for everybody; a limiter only says how it is asked, and
//! whether it said yes.

use std::hint::black_box;

pub(crate) use bench_harness::case::{AHEAD, Case, each};

use crate::keys::{Text, Walk, number};

/// Asks `n` times about numbers among the live keys.
#[inline]
pub(crate) fn each_number(n: u64, ask: impl Fn(u64) -> bool) -> u64 {
    let mut walk = Walk::new();
    (0..n).map(|_| u64::from(ask(black_box(number(walk.step()))))).sum()
}

/// Asks `n` times, rounded up to a multiple of [`AHEAD`], about texts among the live keys.
#[inline]
pub(crate) fn each_text(n: u64, mut ask: impl FnMut(&String) -> bool) -> u64 {
    let mut walk = Walk::new();
    let mut texts: Vec<Text> = (0..AHEAD).map(|_| Text::new()).collect();
    let mut allowed = 0;
    for _ in 0..n.div_ceil(AHEAD) {
        for text in &mut texts {
            text.set(walk.step());
        }
        for text in &texts {
            allowed += u64::from(ask(black_box(text.get())));
        }
    }
    allowed
}
