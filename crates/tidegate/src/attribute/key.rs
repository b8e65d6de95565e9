//! # The key of a call
//!
//! A limiter takes keys as bytes. The arguments of a function have any type that can be hashed. A value writes bytes to a
//! hasher, and two different values write different bytes. So the bytes are collected instead of hashed:
//!
//! | the value is | its key is | the same key as |
//! |---|---|---|
//! | a text | the text | `Part::key("alice")` |
//! | an integer, or an enum without fields | its digits | `Part::key("42")` |
//! | anything else | a byte that no text contains, and all bytes written | no other |
//! | several of these | each after its length plus one, as in the keys of the server | |
//!
//! So `("ab", "c")` and `("a", "bc")` are two keys, and a program that calls the same limiter directly or from another
//! language can name a user as the function does.
//!
//! A dedicated trait would have to be implemented for every type of every program. `Display` is not suitable for keys:
//! two different values may have the same text. `Hash` is implemented for every type that can be the key of a map, and
//! no value writes a prefix of what another value writes. Because the bytes are collected and not hashed, keys cannot
//! collide before the limiter computes its fingerprint, and a limiter on Redis gets the whole key.

use std::fmt::{self, Write};
use std::hash::{Hash, Hasher};

use crate::gate::Key;

/// The key of a call, made of some of its arguments.
///
/// It does not allocate for up to 64 bytes.
///
/// ```
/// use tidegate::attribute::KeyBytes;
///
/// assert_eq!(KeyBytes::of("alice").bytes(), b"alice");
/// assert_eq!(KeyBytes::of(&42u8).bytes(), b"42");
/// let both = KeyBytes::empty().and("ab").and("c");
/// assert_eq!(both.bytes(), b"\x03ab\x02c");
/// ```
#[derive(Clone)]
pub struct KeyBytes {
    len: usize,
    inline: [u8; INLINE],
    /// All bytes, once they exceed the inline buffer.
    heap: Vec<u8>,
}

const INLINE: usize = 64;

/// Precedes a value that is neither a text nor a number.
const OTHER: u8 = 0xff;

impl KeyBytes {
    /// Returns the key of one value.
    #[must_use]
    pub fn of<T: Hash + ?Sized>(value: &T) -> Self {
        let mut hasher = KeyHasher { bytes: KeyBytes::empty(), shape: Shape::Nothing };
        hasher.bytes.push(&[OTHER]);
        value.hash(&mut hasher);
        hasher.into_key()
    }

    /// Creates an empty key. Values are added with [`and`](KeyBytes::and).
    #[must_use]
    pub const fn empty() -> Self {
        KeyBytes { len: 0, inline: [0; INLINE], heap: Vec::new() }
    }

    /// Adds one more value.
    #[must_use]
    pub fn and<T: Hash + ?Sized>(mut self, value: &T) -> Self {
        let part = KeyBytes::of(value);
        self.push_length(part.len + 1);
        self.push(part.bytes());
        self
    }

    /// The bytes of the key.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        if self.heap.is_empty() { &self.inline[..self.len] } else { &self.heap }
    }

    fn push(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        match self.inline.get_mut(self.len..end) {
            Some(free) => free.copy_from_slice(bytes),
            None => {
                if self.heap.is_empty() {
                    self.heap.extend_from_slice(&self.inline[..self.len]);
                }
                self.heap.extend_from_slice(bytes);
            }
        }
        self.len = end;
    }

    /// Writes a length, seven bits to a byte, the lowest first.
    ///
    /// The topmost bit is set if more bytes follow.
    fn push_length(&mut self, mut length: usize) {
        while length >= 0x80 {
            self.push(&[low_bits(length) | 0x80]);
            length >>= 7;
        }
        self.push(&[low_bits(length)]);
    }
}

#[expect(clippy::cast_possible_truncation, reason = "seven bits fit")]
fn low_bits(length: usize) -> u8 {
    (length & 0x7f) as u8
}

impl Write for KeyBytes {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text.as_bytes());
        Ok(())
    }
}

impl fmt::Debug for KeyBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyBytes(\"{}\")", self.bytes().escape_ascii())
    }
}

impl<'a> From<&'a KeyBytes> for Key<'a> {
    fn from(key: &'a KeyBytes) -> Self {
        key.bytes().into()
    }
}

// === impl KeyHasher ===

/// The bytes that a value has written so far, after the byte [`OTHER`].
struct KeyHasher {
    bytes: KeyBytes,
    shape: Shape,
}

/// The kind of the value, as far as it is known.
#[derive(Clone, Copy)]
enum Shape {
    Nothing,
    /// Bytes, which are a text if the end of a text follows.
    Bytes,
    Text,
    Unsigned(u128),
    Signed(i128),
    Other,
}

impl KeyHasher {
    fn record(&mut self, bytes: &[u8], shape: Shape) {
        self.bytes.push(bytes);
        self.shape = match self.shape {
            Shape::Nothing => shape,
            _ => Shape::Other,
        };
    }

    fn into_key(self) -> KeyBytes {
        let mut key = KeyBytes::empty();
        let written = match self.shape {
            Shape::Unsigned(number) => write!(key, "{number}"),
            Shape::Signed(number) => write!(key, "{number}"),
            Shape::Text => {
                let bytes = self.bytes.bytes();
                key.push(&bytes[1..bytes.len() - 1]); // without `OTHER`, and without the end
                Ok(())
            }
            Shape::Nothing | Shape::Bytes | Shape::Other => return self.bytes,
        };
        written.expect("the buffer takes any text");
        key
    }
}

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        // A value that begins with `OTHER` must not pass for a text.
        let shape = if bytes.first() == Some(&OTHER) { Shape::Other } else { Shape::Bytes };
        self.record(bytes, shape);
    }

    fn write_u8(&mut self, number: u8) {
        let ends_text = number == 0xff && matches!(self.shape, Shape::Bytes);
        self.record(&[number], Shape::Unsigned(number.into()));
        if ends_text {
            self.shape = Shape::Text;
        }
    }

    fn write_u16(&mut self, number: u16) {
        self.record(&number.to_le_bytes(), Shape::Unsigned(number.into()));
    }

    fn write_u32(&mut self, number: u32) {
        self.record(&number.to_le_bytes(), Shape::Unsigned(number.into()));
    }

    fn write_u64(&mut self, number: u64) {
        self.record(&number.to_le_bytes(), Shape::Unsigned(number.into()));
    }

    fn write_u128(&mut self, number: u128) {
        self.record(&number.to_le_bytes(), Shape::Unsigned(number));
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn write_i8(&mut self, number: i8) {
        self.record(&number.to_le_bytes(), Shape::Signed(number.into()));
    }

    fn write_i16(&mut self, number: i16) {
        self.record(&number.to_le_bytes(), Shape::Signed(number.into()));
    }

    fn write_i32(&mut self, number: i32) {
        self.record(&number.to_le_bytes(), Shape::Signed(number.into()));
    }

    fn write_i64(&mut self, number: i64) {
        self.record(&number.to_le_bytes(), Shape::Signed(number.into()));
    }

    fn write_i128(&mut self, number: i128) {
        self.record(&number.to_le_bytes(), Shape::Signed(number));
    }

    fn write_isize(&mut self, number: isize) {
        self.write_i64(number as i64);
    }

    fn finish(&self) -> u64 {
        0 // unused: only the bytes are needed
    }
}
