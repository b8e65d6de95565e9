//! Finds where one request ends and the next one begins in what a client sends.
//!
//! A proxy that answers for Redis must answer each request once. But one read may return half a request, or a
//! dozen: clients pipeline requests. So the bytes are buffered, and complete requests are counted as they
//! arrive.
//!
//! ```text
//!   *2\r\n  $3\r\n GET\r\n  $1\r\n k\r\n     an array of strings, each with its length
//!   PING\r\n                               or an inline command, as typed by hand
//! ```

/// Bytes that do not yet form a complete request.
#[derive(Debug, Default)]
pub(crate) struct Requests(Vec<u8>);

impl Requests {
    /// The number of requests that these bytes complete.
    pub(crate) fn completed_by(&mut self, bytes: &[u8]) -> usize {
        self.0.extend_from_slice(bytes);
        let mut count = 0;
        while let Some(length) = length_of_first(&self.0) {
            self.0.drain(..length);
            count += 1;
        }
        count
    }

    /// Whether the last request is incomplete.
    pub(crate) fn has_part_of_one(&self) -> bool {
        !self.0.is_empty()
    }
}

/// The length of the first request, if it is complete. Bytes that are not a valid request count as a line.
fn length_of_first(bytes: &[u8]) -> Option<usize> {
    let (first, mut end) = line(bytes, 0)?;
    for _ in 0..number(first, b'*').unwrap_or(0) {
        let (header, start) = line(bytes, end)?;
        end = start + number(header, b'$').unwrap_or(0) + 2;
    }
    (end <= bytes.len()).then_some(end)
}

/// The line that starts at `start`, and where the next one does.
fn line(bytes: &[u8], start: usize) -> Option<(&[u8], usize)> {
    let rest = bytes.get(start..)?;
    let length = rest.windows(2).position(|pair| pair == b"\r\n")?;
    Some((&rest[..length], start + length + 2))
}

fn number(line: &[u8], mark: u8) -> Option<usize> {
    std::str::from_utf8(line.strip_prefix(&[mark])?).ok()?.parse().ok()
}
