//! # What a client is told
//!
//! Replies are written one after the other into one buffer, which goes out in one piece: a client that sends sixteen
//! commands together gets sixteen answers together, for one call to the system. Two dialects differ in a few types
//! only; whoever writes a reply says what it *is*, a map or nothing, and the dialect says how that looks.

/// The dialect a client speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// As all clients begin.
    #[default]
    Resp2,
    /// As asked for with `HELLO 3`: has maps and a null of its own.
    Resp3,
}

/// Replies on their way out.
#[derive(Debug)]
pub struct Reply<'a> {
    bytes: &'a mut Vec<u8>,
    dialect: Dialect,
}

impl<'a> Reply<'a> {
    /// Writes behind what is there.
    pub fn new(bytes: &'a mut Vec<u8>, dialect: Dialect) -> Self {
        Reply { bytes, dialect }
    }

    /// From here on in this dialect.
    pub(crate) fn speak(&mut self, dialect: Dialect) {
        self.dialect = dialect;
    }

    /// The dialect it is written in.
    #[must_use]
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// A short text that everybody knows, such as `OK`.
    pub fn word(&mut self, word: &'static str) {
        self.line(b'+', word.as_bytes());
    }

    /// `OK`.
    pub fn ok(&mut self) {
        self.word("OK");
    }

    /// An error: a code in capitals, then a sentence. Whatever would end the line early is written as a space.
    pub fn error(&mut self, sentence: impl AsRef<[u8]>) {
        let one_line = |byte: &u8| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte };
        self.bytes.push(b'-');
        self.bytes.extend(sentence.as_ref().iter().map(one_line));
        self.end();
    }

    /// A number.
    #[inline]
    pub fn number(&mut self, number: i64) {
        self.counted(b':', number);
    }

    /// A number that cannot be negative; too large ones are written as the largest there is.
    #[inline]
    pub fn count(&mut self, count: u64) {
        self.number(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Any bytes.
    pub fn bytes(&mut self, bytes: impl AsRef<[u8]>) {
        let bytes = bytes.as_ref();
        self.length(b'$', bytes.len());
        self.bytes.extend_from_slice(bytes);
        self.end();
    }

    /// A text for people.
    pub fn text(&mut self, text: &str) {
        match self.dialect {
            Dialect::Resp2 => self.bytes(text),
            Dialect::Resp3 => {
                self.length(b'=', text.len() + 4);
                self.bytes.extend_from_slice(b"txt:");
                self.bytes.extend_from_slice(text.as_bytes());
                self.end();
            }
        }
    }

    /// Nothing.
    pub fn null(&mut self) {
        self.bytes.extend_from_slice(match self.dialect {
            Dialect::Resp2 => b"$-1\r\n",
            Dialect::Resp3 => b"_\r\n",
        });
    }

    /// The so many replies that follow, as one.
    #[inline]
    pub fn array(&mut self, length: usize) {
        self.length(b'*', length);
    }

    /// The so many pairs of replies that follow, as one.
    pub fn map(&mut self, pairs: usize) {
        match self.dialect {
            Dialect::Resp2 => self.length(b'*', pairs * 2),
            Dialect::Resp3 => self.length(b'%', pairs),
        }
    }

    #[inline]
    fn length(&mut self, kind: u8, length: usize) {
        self.counted(kind, i64::try_from(length).unwrap_or(i64::MAX));
    }

    /// A letter and a number. Nearly all have one digit.
    #[inline]
    fn counted(&mut self, kind: u8, number: i64) {
        match u8::try_from(number) {
            Ok(digit @ 0..=9) => self.bytes.extend_from_slice(&[kind, b'0' + digit, b'\r', b'\n']),
            _ => self.line(kind, itoa::Buffer::new().format(number).as_bytes()),
        }
    }

    fn line(&mut self, kind: u8, text: &[u8]) {
        self.bytes.push(kind);
        self.bytes.extend_from_slice(text);
        self.end();
    }

    fn end(&mut self) {
        self.bytes.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(dialect: Dialect, write: impl FnOnce(&mut Reply<'_>)) -> String {
        let mut bytes = Vec::new();
        write(&mut Reply::new(&mut bytes, dialect));
        String::from_utf8(bytes).expect("text")
    }

    #[test]
    fn numbers_are_written_as_they_are() {
        for number in [0, 9, 10, -1, 99, i64::MAX, i64::MIN] {
            assert_eq!(written(Dialect::Resp2, |reply| reply.number(number)), format!(":{number}\r\n"));
        }
    }

    #[test]
    fn an_error_is_one_line_whatever_is_in_it() {
        let error = written(Dialect::Resp2, |reply| reply.error(b"ERR a\r\nb"));
        assert_eq!(error, "-ERR a  b\r\n");
    }

    #[test]
    fn the_dialects_differ_in_maps_nulls_and_texts() {
        let all = |reply: &mut Reply<'_>| {
            reply.map(1);
            reply.null();
            reply.text("hi");
            reply.array(0);
        };
        assert_eq!(written(Dialect::Resp2, all), "*2\r\n$-1\r\n$2\r\nhi\r\n*0\r\n");
        assert_eq!(written(Dialect::Resp3, all), "%1\r\n_\r\n=6\r\ntxt:hi\r\n*0\r\n");
    }
}
