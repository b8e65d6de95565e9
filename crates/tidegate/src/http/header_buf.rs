//! # Buffer for a header value
//!
//! Header values are short, and most of them are written for every response. They are assembled on the stack, and
//! allocated once, as the final value.

use ::http::HeaderValue;

/// The number of bytes that are assembled without allocation.
const INLINE: usize = 256;

/// The text of a header value.
pub(super) struct HeaderBuf {
    inline: [u8; INLINE],
    length: usize,
    /// The whole text, once it exceeds the inline buffer.
    heap: Vec<u8>,
}

impl HeaderBuf {
    pub(super) const fn new() -> Self {
        HeaderBuf { inline: [0; INLINE], length: 0, heap: Vec::new() }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.length == 0
    }

    #[inline]
    pub(super) fn push(&mut self, bytes: &[u8]) {
        let end = self.length + bytes.len();
        match self.inline.get_mut(self.length..end) {
            Some(free) => free.copy_from_slice(bytes),
            None => self.push_to_heap(bytes),
        }
        self.length = end;
    }

    #[cold]
    fn push_to_heap(&mut self, bytes: &[u8]) {
        if self.heap.is_empty() {
            self.heap.extend_from_slice(&self.inline[..self.length]);
        }
        self.heap.extend_from_slice(bytes);
    }

    pub(super) fn number(&mut self, number: u64) {
        self.push(itoa::Buffer::new().format(number).as_bytes());
    }

    /// Writes a string of RFC 9651, which is also a JSON string.
    pub(super) fn quoted(&mut self, name: &str) {
        self.push(b"\"");
        let mut rest = name.as_bytes();
        while let Some(at) = rest.iter().position(|byte| matches!(byte, b'"' | b'\\')) {
            self.push(&rest[..at]);
            self.push(&[b'\\', rest[at]]);
            rest = &rest[at + 1..];
        }
        self.push(rest);
        self.push(b"\"");
    }

    fn bytes(&self) -> &[u8] {
        if self.heap.is_empty() { &self.inline[..self.length] } else { &self.heap }
    }

    /// The value. `None` if it is empty, or contains a byte that a header cannot have.
    pub(super) fn value(&self) -> Option<HeaderValue> {
        if self.is_empty() { None } else { HeaderValue::from_bytes(self.bytes()).ok() }
    }
}

/// A number as a header value. Small numbers are static and need no allocation.
pub(super) fn number(number: u64) -> HeaderValue {
    match usize::try_from(number) {
        Ok(small) if small < SMALL => HeaderValue::from_static(small_number(small)),
        _ => HeaderValue::from_str(itoa::Buffer::new().format(number)).expect("digits are valid in a header"),
    }
}

/// Numbers below this are static.
const SMALL: usize = 1_000;

/// The digits of a number from 0 to 999, without leading zeros.
fn small_number(number: usize) -> &'static str {
    const THREE_DIGITS: &[u8; 3 * SMALL] = &three_digits();
    static DIGITS: &str = match std::str::from_utf8(THREE_DIGITS) {
        Ok(digits) => digits,
        Err(_) => panic!("digits are text"),
    };
    let zeros = usize::from(number < 100) + usize::from(number < 10);
    &DIGITS[3 * number + zeros..3 * number + 3]
}

#[expect(clippy::cast_possible_truncation, reason = "a digit is less than ten")]
const fn three_digits() -> [u8; 3 * SMALL] {
    let mut digits = [b'0'; 3 * SMALL];
    let mut number = 0;
    while number < SMALL {
        digits[3 * number] += (number / 100) as u8;
        digits[3 * number + 1] += (number / 10 % 10) as u8;
        digits[3 * number + 2] += (number % 10) as u8;
        number += 1;
    }
    digits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_in_full() {
        for number in [0, 9, 10, 1_234_567_890, u64::MAX] {
            let mut buf = HeaderBuf::new();
            buf.number(number);
            assert_eq!(buf.bytes(), number.to_string().as_bytes());
        }
    }

    #[test]
    fn number_value_is_its_decimal_text() {
        for n in (0..3_000).chain([1_234_567_890, u64::MAX]) {
            assert_eq!(number(n), n.to_string().as_str());
        }
    }

    #[test]
    fn long_buffer_equals_its_concatenated_pieces() {
        for pieces in [0, 1, 63, 64, 65, 300] {
            let mut buf = HeaderBuf::new();
            (0..pieces).for_each(|_| buf.push(b"abcd"));
            assert_eq!(buf.bytes(), b"abcd".repeat(pieces));
            assert_eq!(buf.value().is_none(), pieces == 0);
        }
    }

    #[test]
    fn quotes_and_backslashes_are_escaped() {
        let mut buf = HeaderBuf::new();
        buf.quoted(r#"a"b\c"#);
        assert_eq!(buf.bytes(), br#""a\"b\\c""#);
    }
}
