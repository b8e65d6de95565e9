//! # Words: the state of a key
//!
//! Every algorithm stores its state in a few 64-bit words. All words zero is a key never seen. So a
//! state can be created by clearing memory, live in a table of fixed strides, and be stored, copied and compared.
//! Several states laid end to end are the state of a policy.
//!
//! ```text
//!   token bucket          │ owes until │
//!   fixed window          │ number, count │
//!   both, as one policy   │ owes until │ number, count │
//! ```
//!
//! A state of a single word leaves the topmost bit clear. A store that shares the word between threads may use that
//! bit as a lock bit.

/// The words of one state, for reading.
///
/// A slice of integers is the simplest implementation. A limiter implements it for memory shared between threads.
pub trait Words {
    /// The word at `index`.
    fn get(&self, index: usize) -> u64;
}

/// The words of one state, for reading and writing.
pub trait WordsMut: Words {
    /// Replaces the word at `index`.
    fn set(&mut self, index: usize, word: u64);
}

impl Words for [u64] {
    #[inline]
    fn get(&self, index: usize) -> u64 {
        self[index]
    }
}

impl WordsMut for [u64] {
    #[inline]
    fn set(&mut self, index: usize, word: u64) {
        self[index] = word;
    }
}

impl<const N: usize> Words for [u64; N] {
    #[inline]
    fn get(&self, index: usize) -> u64 {
        self[index]
    }
}

impl<const N: usize> WordsMut for [u64; N] {
    #[inline]
    fn set(&mut self, index: usize, word: u64) {
        self[index] = word;
    }
}

/// The state of one rule inside the state of a policy.
#[derive(Debug)]
pub(crate) struct Part<W> {
    pub(crate) whole: W,
    pub(crate) from: usize,
}

impl<S: Words + ?Sized> Words for Part<&S> {
    #[inline]
    fn get(&self, index: usize) -> u64 {
        self.whole.get(self.from + index)
    }
}

impl<S: Words + ?Sized> Words for Part<&mut S> {
    #[inline]
    fn get(&self, index: usize) -> u64 {
        self.whole.get(self.from + index)
    }
}

impl<S: WordsMut + ?Sized> WordsMut for Part<&mut S> {
    #[inline]
    fn set(&mut self, index: usize, word: u64) {
        self.whole.set(self.from + index, word);
    }
}
