//! # Buffer for keys
//!
//! Each part of a key is written as its kind, its length and its value, so that two different lists of parts never have
//! the same bytes. The keys of one request are written one after the other into one buffer, which is on the stack
//! unless they are long.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};

/// Longer keys are hashed.
const MAX_BYTES: usize = 512;
/// The number of bytes that are written without allocation.
const INLINE: usize = 160;
/// Marks a length that does not fit one byte and follows in four bytes.
const LONG: u8 = u8::MAX;

/// A buffer for keys: parts, each with its kind and length.
///
/// Up to 160 bytes for all keys of a request need no allocation.
#[derive(Clone)]
pub struct KeyBuf {
    inline: [u8; INLINE],
    length: usize,
    /// All bytes, once they exceed the inline buffer.
    heap: Vec<u8>,
}

/// A key of a single part of at most seven bytes, including its kind and length.
///
/// It is passed in a register, without a buffer in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InlineKey(u64);

/// A value that can be a part of a key: text, bytes, numbers.
pub trait KeyValue {
    /// Writes the value.
    fn put(&self, key: &mut KeyBuf);
}

// === impl KeyBuf ===

impl KeyBuf {
    /// An empty buffer.
    #[must_use]
    pub const fn new() -> Self {
        KeyBuf { inline: [0; INLINE], length: 0, heap: Vec::new() }
    }

    /// Writes a part with these bytes. For custom implementations of [`KeyPart`](super::KeyPart).
    pub fn push(&mut self, bytes: &[u8]) {
        self.part(Kind::Value, |key| key.raw(bytes));
    }

    /// Writes a part of this kind; `write` writes its value.
    pub(super) fn part(&mut self, kind: Kind, write: impl FnOnce(&mut Self)) {
        self.raw(&[kind as u8, 0]);
        let start = self.length;
        write(self);
        match u8::try_from(self.length - start) {
            Ok(length) if length < LONG => self.bytes_mut()[start - 1] = length,
            _ => self.write_long_length(start),
        }
    }

    /// Writes the length of a long part that begins here, and makes room for it.
    #[cold]
    fn write_long_length(&mut self, start: usize) {
        let length = u32::try_from(self.length - start).unwrap_or(u32::MAX);
        self.raw(&[0; 4]);
        let part = &mut self.bytes_mut()[start - 1..];
        part.copy_within(1..part.len() - 4, 5);
        part[0] = LONG;
        part[1..5].copy_from_slice(&length.to_be_bytes());
    }

    /// Writes a whole part that is already encoded.
    #[inline]
    pub(super) fn inline_key(&mut self, part: InlineKey) {
        let (bytes, length) = part.bytes();
        self.raw(&bytes[..length]);
    }

    pub(super) fn raw(&mut self, bytes: &[u8]) {
        let end = self.length + bytes.len();
        if end <= INLINE && self.heap.is_empty() {
            self.inline[self.length..end].copy_from_slice(bytes);
        } else {
            if self.heap.is_empty() {
                self.heap.extend_from_slice(&self.inline[..self.length]);
            }
            self.heap.extend_from_slice(bytes);
        }
        self.length = end;
    }

    /// The position of the next byte.
    pub(super) fn mark(&self) -> usize {
        self.length
    }

    pub(super) fn between(&self, from: usize, to: usize) -> &[u8] {
        &self.bytes()[from..to]
    }

    /// Discards everything that was written since `mark`.
    pub(super) fn truncate_to(&mut self, mark: usize) {
        self.length = mark;
        self.heap.truncate(mark);
    }

    /// Replaces a key that began at `mark` by its hash if it is long.
    #[inline]
    pub(super) fn shorten(&mut self, mark: usize) {
        if self.length - mark > MAX_BYTES {
            self.hash(mark);
        }
    }

    #[cold]
    fn hash(&mut self, mark: usize) {
        let digest = Sha256::digest(&self.bytes()[mark..]);
        self.truncate_to(mark);
        self.part(Kind::Hashed, |key| key.raw(&digest));
    }

    /// The bytes written so far.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        if self.heap.is_empty() { &self.inline[..self.length] } else { &self.heap }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        if self.heap.is_empty() { &mut self.inline[..self.length] } else { &mut self.heap }
    }
}

// === impl InlineKey ===

impl InlineKey {
    /// A part of this kind with a value of five bytes: a byte, then a number.
    #[inline]
    pub(super) fn from_byte_and_u32(kind: Kind, byte: u8, number: u32) -> Self {
        let value = u64::from(byte) << 16 | u64::from(number.swap_bytes()) << 24;
        InlineKey(kind as u64 | 5 << 8 | value | 7 << 56)
    }

    /// The bytes, and how many of them are used.
    #[inline]
    pub(super) fn bytes(self) -> ([u8; 8], usize) {
        (self.0.to_le_bytes(), (self.0 >> 56) as usize)
    }
}

impl Default for KeyBuf {
    fn default() -> Self {
        KeyBuf::new()
    }
}

impl fmt::Debug for KeyBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyBuf(\"{}\")", self.bytes().escape_ascii())
    }
}

/// The kind of a part. Parts of different kinds never collide.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(super) enum Kind {
    /// A client without an address.
    Address = b'a',
    Address4 = b'4',
    Address6 = b'6',
    Extension = b'e',
    Header = b'h',
    Host = b'o',
    Hashed = b'#',
    Method = b'm',
    Missing = b'0',
    Param = b'p',
    Query = b'q',
    Route = b'r',
    Secret = b's',
    Text = b't',
    Value = b'v',
}

// === impl KeyValue ===

impl KeyValue for str {
    fn put(&self, key: &mut KeyBuf) {
        key.raw(self.as_bytes());
    }
}

impl KeyValue for [u8] {
    fn put(&self, key: &mut KeyBuf) {
        key.raw(self);
    }
}

impl<const N: usize> KeyValue for [u8; N] {
    fn put(&self, key: &mut KeyBuf) {
        key.raw(self);
    }
}

macro_rules! delegate {
    ($([$($generics:tt)*] $type:ty),+ $(,)?) => {$(
        impl<$($generics)*> KeyValue for $type {
            fn put(&self, key: &mut KeyBuf) {
                (**self).put(key);
            }
        }
    )+};
}

delegate!(
    [] String,
    [] Vec<u8>,
    [] Cow<'_, str>,
    [T: KeyValue + ?Sized] Box<T>,
    [T: KeyValue + ?Sized] Arc<T>,
    [T: KeyValue + ?Sized] &T,
);

macro_rules! numbers {
    ($($number:ty),+) => {$(
        impl KeyValue for $number {
            fn put(&self, key: &mut KeyBuf) {
                key.raw(&self.to_be_bytes());
            }
        }
    )+};
}

numbers!(u8, u16, u32, u64, u128, i8, i16, i32, i64, i128);
