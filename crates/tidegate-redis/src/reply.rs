//! # Splits a stream of bytes into Redis replies
//!
//! Replies arrive one after the other, split at any byte. Nearly all are arrays of small integers, the replies of the script;
//! these are parsed here. For any other reply its end is found here, and the `redis` crate parses it.

use redis::{ErrorKind, RedisError, Value, parse_redis_value};

/// Limits on the length and the nesting of a reply, far above what a gate receives.
const MAX_LENGTH: usize = 1 << 24;
const MAX_DEPTH: usize = 8;

/// The first reply in `bytes` and its length; `None` if it is incomplete.
pub(crate) fn parse_first(bytes: &[u8]) -> Result<Option<(Value, usize)>, RedisError> {
    if let Some(row) = integer_array(bytes) {
        return Ok(Some(row));
    }
    match find_end(bytes, 0)? {
        Some(end) if end <= bytes.len() => Ok(Some((parse_redis_value(&bytes[..end])?, end))),
        _ => Ok(None),
    }
}

/// Fast path for a complete array of small integers; `None` for anything else.
fn integer_array(bytes: &[u8]) -> Option<(Value, usize)> {
    let (count, mut at) = parse_integer(bytes, b'*')?;
    let mut row = Vec::with_capacity(usize::try_from(count).ok().filter(|count| *count <= 64)?);
    for _ in 0..count {
        let (number, length) = parse_integer(&bytes[at..], b':')?;
        row.push(Value::Int(number));
        at += length;
    }
    Some((Value::Array(row), at))
}

/// A number of up to 18 digits without a sign after its type byte, and its length including the end of the line.
fn parse_integer(bytes: &[u8], letter: u8) -> Option<(i64, usize)> {
    if bytes.first() != Some(&letter) {
        return None;
    }
    let mut number = 0;
    for (at, byte) in bytes.iter().enumerate().skip(1).take(19) {
        match byte {
            b'0'..=b'9' if at < 19 => number = number * 10 + i64::from(byte - b'0'),
            b'\r' if at > 1 && bytes.get(at + 1) == Some(&b'\n') => return Some((number, at + 2)),
            _ => return None,
        }
    }
    None
}

/// The end of the first reply, which may be beyond the bytes; `None` if it is not known yet.
fn find_end(bytes: &[u8], depth: usize) -> Result<Option<usize>, RedisError> {
    let Some(line) = line(bytes)? else { return Ok(None) };
    let after = line.len() + 2;
    match line.first() {
        Some(b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(') => Ok(Some(after)),
        Some(b'$' | b'=' | b'!') => Ok(Some(after + length(line)?.map_or(0, |length| length + 2))),
        Some(b'*' | b'~' | b'>') => find_end_of(bytes, after, length(line)?.unwrap_or(0), depth),
        Some(b'%') => find_end_of(bytes, after, 2 * length(line)?.unwrap_or(0), depth),
        Some(b'|') => find_end_of(bytes, after, 2 * length(line)?.unwrap_or(0) + 1, depth), // followed by the reply it belongs to
        _ => Err(protocol_error("unknown type byte in a reply")),
    }
}

/// The end of `count` replies, of which the first starts at `at`.
fn find_end_of(bytes: &[u8], mut at: usize, count: usize, depth: usize) -> Result<Option<usize>, RedisError> {
    if depth == MAX_DEPTH {
        return Err(protocol_error("reply nested too deeply"));
    }
    for _ in 0..count {
        let Some(rest) = bytes.get(at..) else { return Ok(None) };
        match find_end(rest, depth + 1)? {
            Some(length) => at += length,
            None => return Ok(None),
        }
        if at > MAX_LENGTH {
            return Err(protocol_error("reply too long"));
        }
    }
    Ok(Some(at))
}

/// The bytes of the first line.
fn line(bytes: &[u8]) -> Result<Option<&[u8]>, RedisError> {
    match bytes.windows(2).take(MAX_LENGTH).position(|two| two == b"\r\n") {
        Some(end) => Ok(Some(&bytes[..end])),
        None if bytes.len() > MAX_LENGTH => Err(protocol_error("line too long")),
        None => Ok(None),
    }
}

/// The length after the type byte; `None` for −1, a null.
fn length(line: &[u8]) -> Result<Option<usize>, RedisError> {
    if &line[1..] == b"-1" {
        return Ok(None);
    }
    let digits =
        std::str::from_utf8(&line[1..]).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let length = digits.and_then(|text| text.parse().ok()).filter(|length| *length <= MAX_LENGTH);
    length.map(Some).ok_or_else(|| protocol_error("invalid length in a reply"))
}

pub(crate) fn protocol_error(what: &'static str) -> RedisError {
    RedisError::from((ErrorKind::Parse, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All replies in the bytes, which arrive in pieces of this length.
    fn all(bytes: &[u8], piece: usize) -> Result<Vec<Value>, RedisError> {
        let (mut values, mut held) = (Vec::new(), Vec::new());
        for piece in bytes.chunks(piece) {
            held.extend_from_slice(piece);
            while let Some((value, length)) = parse_first(&held)? {
                held.drain(..length);
                values.push(value);
            }
        }
        assert!(held.is_empty(), "{} is left", held.escape_ascii());
        Ok(values)
    }

    const REPLIES: &[&[u8]] = &[
        b"*6\r\n:1700000000000000\r\n:1\r\n:0\r\n:99\r\n:0\r\n:10000\r\n",
        b"*0\r\n",
        b"*-1\r\n",
        b"$-1\r\n",
        b"$0\r\n\r\n",
        b"$12\r\nwith\r\nlines \r\n",
        b":-5\r\n",
        b":9223372036854775807\r\n",
        b"*2\r\n:9223372036854775807\r\n:-9223372036854775808\r\n",
        b"+OK\r\n",
        b"+\r\n",
        b"-NOSCRIPT No matching script. Please use EVAL.\r\n",
        b"*3\r\n:1\r\n$1\r\na\r\n*2\r\n+b\r\n$-1\r\n",
        b"_\r\n",
        b"#t\r\n",
        b",3.5\r\n",
        b"(12345678901234567890\r\n",
        b"=8\r\ntxt:text\r\n",
        b"!5\r\nERR x\r\n",
        b"~2\r\n:1\r\n:2\r\n",
        b"%1\r\n+a\r\n:1\r\n",
        b"|1\r\n+a\r\n:1\r\n:5\r\n",
    ];

    #[test]
    fn replies_equal_those_of_the_redis_crate_wherever_they_are_split() {
        let expected: Vec<Value> =
            REPLIES.iter().map(|reply| parse_redis_value(reply).expect("a reply")).collect();
        let bytes = REPLIES.concat();
        for piece in 1..=bytes.len() {
            assert_eq!(all(&bytes, piece).expect("replies"), expected, "in pieces of {piece}");
        }
    }

    #[test]
    fn an_invalid_reply_is_an_error_and_an_incomplete_one_is_not() {
        let none: [&[u8]; 9] = [
            b"HTTP/1.1 400\r\n",
            b"\r\n",
            b"*x\r\n",
            b"*-2\r\n",
            b"$99999999999999999999\r\n",
            b"$+1\r\na\r\n",
            b"*16777217\r\n",
            b"*1\r\nx\r\n",
            b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",
        ];
        for bytes in none {
            assert!(parse_first(bytes).is_err(), "{}", bytes.escape_ascii());
        }
        for reply in REPLIES {
            for cut in 0..reply.len() {
                assert!(matches!(parse_first(&reply[..cut]), Ok(None)), "{}", reply[..cut].escape_ascii());
            }
        }
    }

    /// Random bytes of the protocol's alphabet, so that many are nearly replies.
    #[test]
    fn no_bytes_make_the_parser_panic_and_the_redis_crate_agrees() {
        const LETTERS: &[u8] = b"*$:+-_,#(=!~>%|0123456789\r\n\r\n\r\n:1a\0\xff";
        let mut random = 7_u64;
        let mut read = 0;
        for _ in 0..200_000 {
            let mut bytes = [0; 24];
            for byte in &mut bytes {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                *byte = LETTERS[usize::try_from(random >> 40).unwrap_or(0) % LETTERS.len()];
            }
            if let Ok(Some((value, length))) = parse_first(&bytes) {
                read += 1;
                assert_eq!(parse_redis_value(&bytes[..length]).ok(), Some(value), "{}", bytes.escape_ascii());
            }
        }
        assert!(read > 1_000, "only {read} were parsed");
    }
}
