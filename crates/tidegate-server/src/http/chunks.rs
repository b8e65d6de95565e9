//! # A body that comes in chunks
//!
//! Each says how long it is, and one of no length is the last:
//!
//! ```text
//!   5 ⏎ {"des ⏎   14 ⏎ criptors":{"user":"a" ⏎   2 ⏎ }} ⏎   0 ⏎   ⏎
//! ```
//!
//! They are put together as they come, and no more than a body may be long is ever kept.

use httparse::{Status, parse_chunk_size};

use super::head::{LONGEST, no_request};
use super::problem::Problem;
use super::reply::{BODY, too_long};

/// What has come of a body.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    pub(super) body: Vec<u8>,
    /// Of what comes after the last chunk, so many bytes, once that has come.
    after: Option<usize>,
}

/// What is to be done about some bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Took {
    /// So many of them are part of the body, which goes on.
    Some(usize),
    /// So many of them, and that was all.
    All(usize),
    /// There must be so many bytes at least.
    Needs(usize),
}

/// The longest line between chunks, and after them.
const LINE: usize = 256;

impl Chunks {
    /// Takes a chunk, or a line after the last one, from the beginning of `bytes`.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Result<Took, Problem> {
        match self.after {
            None => self.chunk(bytes),
            Some(before) => self.line(bytes, before),
        }
    }

    fn chunk(&mut self, bytes: &[u8]) -> Result<Took, Problem> {
        let is_size = bytes.first().is_none_or(u8::is_ascii_hexdigit);
        let (start, size) = match parse_chunk_size(&bytes[..bytes.len().min(LINE)]) {
            Ok(Status::Complete((start, size))) if is_size && is_line(&bytes[..start]) => (start, size),
            Ok(Status::Partial) if is_size && bytes.len() < LINE => return Ok(Took::Needs(bytes.len() + 1)),
            _ => return Err(no_request("a chunk of its body does not say how long it is")),
        };
        if size == 0 {
            self.after = Some(0);
            return Ok(Took::Some(start));
        }
        let size = usize::try_from(size).ok().filter(|size| *size <= BODY - self.body.len());
        let end = start + size.ok_or_else(too_long)?;
        match bytes.get(end..end + 2) {
            None => return Ok(Took::Needs(end + 2)),
            Some(b"\r\n") => self.body.extend_from_slice(&bytes[start..end]),
            Some(_) => return Err(no_request("a chunk of its body goes on where it should end")),
        }
        Ok(Took::Some(end + 2))
    }

    /// Headers that come after the body are for nobody here.
    fn line(&mut self, bytes: &[u8], before: usize) -> Result<Took, Problem> {
        let Some(end) = bytes.iter().take(LINE).position(|byte| *byte == b'\n') else {
            return match bytes.len() {
                0..LINE => Ok(Took::Needs(bytes.len() + 1)),
                _ => Err(no_request("a line after its body is too long")),
            };
        };
        let length = end + 1;
        self.after = Some(before + length);
        match &bytes[..length] {
            b"\r\n" => Ok(Took::All(length)),
            line if !(is_line(line) && is_header(line)) => {
                Err(no_request("a line after its body is no header"))
            }
            _ if before + length > LONGEST => Err(no_request("there is too much after its body")),
            _ => Ok(Took::Some(length)),
        }
    }
}

/// Whether it ends with CR and LF, and has neither of them before.
fn is_line(line: &[u8]) -> bool {
    let text = line.strip_suffix(b"\r\n");
    text.is_some_and(|text| !text.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)))
}

fn is_header(line: &[u8]) -> bool {
    let name = line.split(|byte| *byte == b':').next().unwrap_or_default();
    let is_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    !name.is_empty() && name.len() < line.len() && name.iter().all(is_token)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes of a body, however it is cut: the body, and what is left behind it.
    fn read(bytes: &[u8], pieces: usize) -> Result<Option<(Vec<u8>, usize)>, u16> {
        let (mut chunks, mut consumed, mut needs) = (Chunks::default(), 0, 0);
        for end in (0..bytes.len()).step_by(pieces).chain([bytes.len()]) {
            while end - consumed >= needs {
                match chunks.take(&bytes[consumed..end]).map_err(|problem| problem.status.as_u16())? {
                    Took::Some(length) => (consumed, needs) = (consumed + length, 0),
                    Took::All(length) => return Ok(Some((chunks.body, bytes.len() - consumed - length))),
                    Took::Needs(more) => {
                        assert!(more > end - consumed, "it would ask for ever");
                        needs = more;
                    }
                }
            }
        }
        Ok(None)
    }

    #[test]
    fn chunks_are_put_together_however_they_come() {
        let bytes = b"5\r\n{\"des\r\n0A;x=\"y\"\r\ncriptors\":\r\n0\r\nx: y\r\n\r\nGET /";
        for pieces in 1..bytes.len() {
            assert_eq!(read(bytes, pieces), Ok(Some((b"{\"descriptors\":".to_vec(), 5))));
        }
        for end in 0..bytes.len() - 5 {
            assert_eq!(read(&bytes[..end], 3), Ok(None));
        }
        assert_eq!(read(b"0\r\n\r\n", 9), Ok(Some((Vec::new(), 0))));
    }

    #[test]
    fn what_is_no_chunk_is_told_so() {
        let long = [b"1;".as_slice(), &[b'x'; LINE]].concat();
        let after = [b"0\r\n".as_slice(), &b"a: b\r\n".repeat(LONGEST / 6 + 1)].concat();
        let rows: [&[u8]; 16] = [
            b"1;a\nb\r\nx\r\n0\r\n\r\n",
            b"1;a\rb\r\nx\r\n0\r\n\r\n",
            b"1;a\n\r\n",
            b"0\r\na: b\n\r\n",
            b"0\r\nGET / HTTP/1.1\r\n\r\n",
            b"0\r\n: b\r\n\r\n",
            b"0\r\na\rb: c\r\n\r\n",
            b"\r\n\r\n",
            b"x\r\n",
            b"-1\r\n",
            b" 1\r\na\r\n",
            b"1\r\nab\r\n",
            b"1\na\r\n",
            b"fffffffffffffffff\r\n",
            &long,
            &after,
        ];
        for row in rows {
            for pieces in [1, 2, 1_000] {
                assert_eq!(read(row, pieces), Err(400), "{}", row.escape_ascii());
            }
        }
    }

    #[test]
    fn no_more_is_kept_than_a_body_may_be_long() {
        let chunk = [format!("{BODY:x}\r\n").as_bytes(), &vec![b' '; BODY], b"\r\n"].concat();
        let one_more = [&chunk, b"1\r\n".as_slice()].concat();
        let all = [&chunk, b"0\r\n\r\n".as_slice()].concat();
        assert_eq!(read(&one_more, BODY), Err(413));
        assert_eq!(read(&all, BODY).map(|read| read.map(|(body, _)| body.len())), Ok(Some(BODY)));
        assert_eq!(read(format!("{:x}\r\n", BODY + 1).as_bytes(), 9), Err(413));
        assert_eq!(read(b"ffffffffffffffff\r\n", 99), Err(413));
    }
}
