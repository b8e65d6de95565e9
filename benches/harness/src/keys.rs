//! Keys, made as they are needed and always hot in the first cache, as they are in a server that has just
//! parsed them out of a request. A table of a million ready-made keys would measure its own cache misses.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::case::AHEAD;

/// How many keys live in the keyed cases.
pub const LIVE: u32 = 1_000_000;

/// A 64-bit key: scattered, never 0, different for each index.
#[inline]
pub fn number(index: u32) -> u64 {
    (u64::from(index) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Asks once about each live number.
///
/// # Panics
/// If one is refused.
pub fn fill_numbers(mut ask: impl FnMut(u64) -> bool) {
    assert!((0..LIVE).all(|index| ask(number(index))), "a new key passes");
}

/// Asks once about each live text.
///
/// # Panics
/// If one is refused.
pub fn fill_texts(mut ask: impl FnMut(&String) -> bool) {
    let mut text = Text::new();
    assert!((0..LIVE).all(|index| ask(text.set(index))), "a new key passes");
}

/// Asks `n` times about numbers among the live keys.
#[inline]
pub fn each_number(n: u64, ask: impl Fn(u64) -> bool) -> u64 {
    let mut walk = Walk::new();
    (0..n).map(|_| u64::from(ask(black_box(number(walk.step()))))).sum()
}

/// Asks `n` times, rounded up to a multiple of [`AHEAD`], about texts among the live keys.
#[inline]
pub fn each_text(n: u64, mut ask: impl FnMut(&String) -> bool) -> u64 {
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

/// A key of 16 bytes of text such as `ip10.000.123.456`, rewritten in place.
#[derive(Debug)]
pub struct Text(String);

/// Indices of live keys, evenly at random. No two walks are the same.
#[derive(Debug)]
pub struct Walk(u64);

// === impl Text ===

impl Text {
    pub fn new() -> Self {
        Text("ip10.000.000.000".to_owned())
    }

    /// Rewrites the key as that of `index`.
    #[inline]
    #[expect(unsafe_code, reason = "checking the text anew would cost as much as a decision")]
    pub fn set(&mut self, index: u32) -> &String {
        // SAFETY: only digits are written, over digits.
        let bytes = unsafe { self.0.as_bytes_mut() };
        bytes[5..8].copy_from_slice(&DIGITS[(index / 1_000_000) as usize]);
        bytes[9..12].copy_from_slice(&DIGITS[(index / 1_000 % 1_000) as usize]);
        bytes[13..16].copy_from_slice(&DIGITS[(index % 1_000) as usize]);
        &self.0
    }

    #[inline]
    pub fn get(&self) -> &String {
        &self.0
    }
}

/// 000 to 999, so that writing a key costs next to nothing.
static DIGITS: [[u8; 3]; 1_000] = {
    let mut digits = [*b"000"; 1_000];
    let mut i = 1;
    while i < 1_000 {
        let [a, b, c] = digits[i - 1];
        digits[i] = match (b, c) {
            (b'9', b'9') => [a + 1, b'0', b'0'],
            (_, b'9') => [a, b + 1, b'0'],
            _ => [a, b, c + 1],
        };
        i += 1;
    }
    digits
};

// === impl Walk ===

impl Walk {
    pub fn new() -> Self {
        static WALKS: AtomicU64 = AtomicU64::new(1);
        Walk(WALKS.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    #[inline]
    pub fn step(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (((self.0 >> 32) * u64::from(LIVE)) >> 32) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::{LIVE, Text, Walk};

    #[test]
    fn a_text_spells_its_index() {
        let mut text = Text::new();
        assert_eq!(text.set(0), "ip10.000.000.000");
        assert_eq!(text.set(1_099_010), "ip10.001.099.010");
        assert_eq!(text.set(199_999), "ip10.000.199.999");
    }

    #[test]
    fn a_walk_stays_among_the_live() {
        let mut walk = Walk::new();
        assert!((0..10_000).all(|_| walk.step() < LIVE));
    }
}
