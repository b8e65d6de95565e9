//! # A line on its way to a header
//!
//! The values of fields are short, and most of them are written with every response. They are put together on the
//! stack, and allocated once, as the value they become.

use ::http::HeaderValue;

/// As much is put together without allocating.
const INLINE: usize = 256;

/// Text for a header.
pub(super) struct Line {
    inline: [u8; INLINE],
    length: usize,
    /// All of it, once it was too long.
    heap: Vec<u8>,
}

impl Line {
    pub(super) const fn new() -> Self {
        Line { inline: [0; INLINE], length: 0, heap: Vec::new() }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.length == 0
    }

    #[inline]
    pub(super) fn push(&mut self, bytes: &[u8]) {
        let end = self.length + bytes.len();
        match self.inline.get_mut(self.length..end) {
            Some(place) => place.copy_from_slice(bytes),
            None => self.push_slowly(bytes),
        }
        self.length = end;
    }

    #[cold]
    fn push_slowly(&mut self, bytes: &[u8]) {
        if self.heap.is_empty() {
            self.heap.extend_from_slice(&self.inline[..self.length]);
        }
        self.heap.extend_from_slice(bytes);
    }

    pub(super) fn number(&mut self, number: u64) {
        self.push(itoa::Buffer::new().format(number).as_bytes());
    }

    /// As a string of RFC 9651, which is also one of JSON.
    pub(super) fn quoted(&mut self, name: &str) {
        self.push(b"\"");
        for byte in name.bytes() {
            match byte {
                b'"' => self.push(b"\\\""),
                b'\\' => self.push(b"\\\\"),
                byte => self.push(&[byte]),
            }
        }
        self.push(b"\"");
    }

    fn bytes(&self) -> &[u8] {
        if self.heap.is_empty() { &self.inline[..self.length] } else { &self.heap }
    }

    /// The value. `None` if there is nothing in it, or something that cannot be in a header.
    pub(super) fn value(&self) -> Option<HeaderValue> {
        if self.is_empty() { None } else { HeaderValue::from_bytes(self.bytes()).ok() }
    }
}

/// A number as a value of its own.
pub(super) fn number(number: u64) -> HeaderValue {
    HeaderValue::from_str(itoa::Buffer::new().format(number)).expect("digits can be in a header")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_in_full() {
        for number in [0, 9, 10, 1_234_567_890, u64::MAX] {
            let mut line = Line::new();
            line.number(number);
            assert_eq!(line.bytes(), number.to_string().as_bytes());
        }
    }

    #[test]
    fn a_long_line_is_the_same_as_its_pieces() {
        for pieces in [0, 1, 63, 64, 65, 300] {
            let mut line = Line::new();
            (0..pieces).for_each(|_| line.push(b"abcd"));
            assert_eq!(line.bytes(), b"abcd".repeat(pieces));
            assert_eq!(line.value().is_none(), pieces == 0);
        }
    }

    #[test]
    fn what_would_end_a_string_is_quoted() {
        let mut line = Line::new();
        line.quoted(r#"a"b\c"#);
        assert_eq!(line.bytes(), br#""a\"b\\c""#);
    }
}
