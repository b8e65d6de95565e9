//! # The key of a call
//!
//! A limiter takes keys as bytes. A function has arguments, of any type that can be hashed. What a value writes to a
//! hasher is bytes already, and two different values write different bytes; so the bytes are collected instead of
//! hashed:
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
//! A trait of our own would have to be implemented for every type of every program. `Display` is not made for
//! keys: two values may look alike. `Hash` is implemented for everything that can be the key of a map, and no
//! value writes the beginning of another. Because the bytes are collected and not hashed, nothing can collide
//! before the limiter's own fingerprint, and a limiter on Redis gets the whole key.

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
/// let both = KeyBytes::joined().and("ab").and("c");
/// assert_eq!(both.bytes(), b"\x03ab\x02c");
/// ```
#[derive(Clone)]
pub struct KeyBytes {
    len: usize,
    few: [u8; FEW],
    /// All bytes, once they exceed the inline buffer.
    many: Vec<u8>,
}

const FEW: usize = 64;

/// Precedes a value that is neither a text nor a number.
const OTHER: u8 = 0xff;

impl KeyBytes {
    /// The key of one value.
    #[must_use]
    pub fn of<T: Hash + ?Sized>(value: &T) -> Self {
        let mut told = Told { bytes: KeyBytes::joined(), shape: Shape::Nothing };
        told.bytes.push(&[OTHER]);
        value.hash(&mut told);
        told.into_key()
    }

    /// An empty key, to which values are added.
    #[must_use]
    pub const fn joined() -> Self {
        KeyBytes { len: 0, few: [0; FEW], many: Vec::new() }
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
        if self.many.is_empty() { &self.few[..self.len] } else { &self.many }
    }

    fn push(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        match self.few.get_mut(self.len..end) {
            Some(free) => free.copy_from_slice(bytes),
            None => {
                if self.many.is_empty() {
                    self.many.extend_from_slice(&self.few[..self.len]);
                }
                self.many.extend_from_slice(bytes);
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

// === impl Told ===

/// The bytes that a value has written so far, after the byte [`OTHER`].
struct Told {
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

impl Told {
    fn tell(&mut self, bytes: &[u8], shape: Shape) {
        self.bytes.push(bytes);
        self.shape = match self.shape {
            Shape::Nothing => shape,
            _ => Shape::Other,
        };
    }

    fn into_key(self) -> KeyBytes {
        let mut key = KeyBytes::joined();
        let written = match self.shape {
            Shape::Unsigned(number) => write!(key, "{number}"),
            Shape::Signed(number) => write!(key, "{number}"),
            Shape::Text => {
                let told = self.bytes.bytes();
                key.push(&told[1..told.len() - 1]); // without `OTHER`, and without the end
                Ok(())
            }
            Shape::Nothing | Shape::Bytes | Shape::Other => return self.bytes,
        };
        written.expect("the buffer takes any text");
        key
    }
}

impl Hasher for Told {
    fn write(&mut self, bytes: &[u8]) {
        // A value that begins with `OTHER` must not pass for a text.
        let shape = if bytes.first() == Some(&OTHER) { Shape::Other } else { Shape::Bytes };
        self.tell(bytes, shape);
    }

    fn write_u8(&mut self, number: u8) {
        let ends_text = number == 0xff && matches!(self.shape, Shape::Bytes);
        self.tell(&[number], Shape::Unsigned(number.into()));
        if ends_text {
            self.shape = Shape::Text;
        }
    }

    fn write_u16(&mut self, number: u16) {
        self.tell(&number.to_le_bytes(), Shape::Unsigned(number.into()));
    }

    fn write_u32(&mut self, number: u32) {
        self.tell(&number.to_le_bytes(), Shape::Unsigned(number.into()));
    }

    fn write_u64(&mut self, number: u64) {
        self.tell(&number.to_le_bytes(), Shape::Unsigned(number.into()));
    }

    fn write_u128(&mut self, number: u128) {
        self.tell(&number.to_le_bytes(), Shape::Unsigned(number));
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn write_i8(&mut self, number: i8) {
        self.tell(&number.to_le_bytes(), Shape::Signed(number.into()));
    }

    fn write_i16(&mut self, number: i16) {
        self.tell(&number.to_le_bytes(), Shape::Signed(number.into()));
    }

    fn write_i32(&mut self, number: i32) {
        self.tell(&number.to_le_bytes(), Shape::Signed(number.into()));
    }

    fn write_i64(&mut self, number: i64) {
        self.tell(&number.to_le_bytes(), Shape::Signed(number.into()));
    }

    fn write_i128(&mut self, number: i128) {
        self.tell(&number.to_le_bytes(), Shape::Signed(number));
    }

    fn write_isize(&mut self, number: isize) {
        self.write_i64(number as i64);
    }

    fn finish(&self) -> u64 {
        0 // unused: only the bytes are needed
    }
}
