//! # Whose limit it is
//!
//! A key is made of the values of some descriptors. Put end to end, `a` and `bc` would be the key of `ab` and `c`,
//! and one customer could spend what is another's. So each value is preceded by its length, and one that is missing
//! is neither empty nor any other value:
//!
//! ```text
//!   tenant=acme  user=al     05 a c m e  03 a l        the length, and one more
//!   tenant=acme  no user     05 a c m e  00
//! ```

use std::net::IpAddr;

use super::condition::Descriptor;

/// One part of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPart {
    /// The value of the descriptor of this name.
    Value(Box<str>),
    /// The network of the address that the descriptor of this name holds. What is no address is as good as missing.
    Network {
        /// The name.
        name: Box<str>,
        /// How many bits of an IPv4 address count.
        v4: u8,
        /// How many bits of an IPv6 address count.
        v6: u8,
    },
}

impl KeyPart {
    /// The name of the descriptor it is made of.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            KeyPart::Value(name) | KeyPart::Network { name, .. } => name,
        }
    }

    /// Whether it is the value as it comes.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self, KeyPart::Value(_))
    }

    /// Adds this part to a key, of a value that is any bytes; `false` if there is none.
    pub(crate) fn write_value(&self, value: Option<&[u8]>, key: &mut Vec<u8>) -> bool {
        match (self, value) {
            (KeyPart::Value(_), Some(value)) => write_bytes(value, key),
            (KeyPart::Network { v4, v6, .. }, Some(value)) => {
                return match std::str::from_utf8(value) {
                    Ok(value) => write_network(value, *v4, *v6, key),
                    Err(_) => write_missing(key),
                };
            }
            (_, None) => return write_missing(key),
        }
        true
    }

    /// Adds this part to a key; `false` if there is no such descriptor.
    pub(crate) fn write(&self, descriptors: &[Descriptor<'_>], key: &mut Vec<u8>) -> bool {
        let found = descriptors.iter().find(|(name, _)| *name == self.name());
        self.write_value(found.map(|(_, value)| value.as_bytes()), key)
    }
}

/// The values that a key was made of, for people; `None` for one that is missing. Of a key that was cut, what is there.
pub(crate) fn read_key(parts: &[KeyPart], mut key: &[u8]) -> Vec<Option<String>> {
    let mut values = Vec::new();
    while let Some((length, rest)) = read_length(key) {
        let (value, after) = rest.split_at(rest.len().min(length.saturating_sub(1)));
        let is_network = matches!(parts.get(values.len()), Some(KeyPart::Network { .. }));
        let text = read_network(value).filter(|_| is_network);
        let text = || text.unwrap_or_else(|| String::from_utf8_lossy(value).into_owned());
        values.push((length > 0).then(text));
        key = after;
    }
    values
}

fn read_length(key: &[u8]) -> Option<(usize, &[u8])> {
    let end = key.iter().position(|byte| byte & 0x80 == 0)?;
    let (length, rest) = key.split_at(end + 1);
    let bits = |(place, byte): (u32, &u8)| usize::from(byte & 0x7f).checked_shl(7 * place);
    Some(((0..).zip(length).filter_map(bits).sum(), rest))
}

fn read_network(value: &[u8]) -> Option<String> {
    match value {
        [4, bits, address @ ..] => {
            Some(format!("{}/{bits}", IpAddr::from(<[u8; 4]>::try_from(address).ok()?)))
        }
        [6, bits, address @ ..] => {
            Some(format!("{}/{bits}", IpAddr::from(<[u8; 16]>::try_from(address).ok()?)))
        }
        _ => None,
    }
}

fn write_bytes(bytes: &[u8], key: &mut Vec<u8>) {
    write_length(bytes.len() + 1, key);
    key.extend_from_slice(bytes);
}

fn write_missing(key: &mut Vec<u8>) -> bool {
    write_length(0, key);
    false
}

/// Seven bits to a byte, the lowest first; the topmost bit says that more follow.
fn write_length(mut length: usize, key: &mut Vec<u8>) {
    while length >= 0x80 {
        key.push(low_bits(length) | 0x80);
        length >>= 7;
    }
    key.push(low_bits(length));
}

#[expect(clippy::cast_possible_truncation, reason = "seven bits fit")]
fn low_bits(length: usize) -> u8 {
    (length & 0x7f) as u8
}

/// The family, how many bits count, and those bits: so 10.0.0.0 of /8 and of /16 differ, and so do the families.
fn write_network(value: &str, v4: u8, v6: u8, key: &mut Vec<u8>) -> bool {
    match value.parse::<IpAddr>().map(|address| address.to_canonical()) {
        Ok(IpAddr::V4(address)) => {
            let bits = address.to_bits() & u32::MAX.checked_shl(32 - u32::from(v4.min(32))).unwrap_or(0);
            let [a, b, c, d] = bits.to_be_bytes();
            write_bytes(&[4, v4, a, b, c, d], key);
        }
        Ok(IpAddr::V6(address)) => {
            let bits = address.to_bits() & u128::MAX.checked_shl(128 - u32::from(v6.min(128))).unwrap_or(0);
            let mut bytes = [6, v6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            bytes[2..].copy_from_slice(&bits.to_be_bytes());
            write_bytes(&bytes, key);
        }
        Err(_) => return write_missing(key),
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(parts: &[KeyPart], descriptors: &[Descriptor<'_>]) -> Vec<u8> {
        let mut key = Vec::new();
        for part in parts {
            part.write(descriptors, &mut key);
        }
        key
    }

    fn two(one: &str, other: &str) -> Vec<u8> {
        key(&[KeyPart::Value("a".into()), KeyPart::Value("b".into())], &[("a", one), ("b", other)])
    }

    fn address(value: &str) -> Vec<u8> {
        key(&[KeyPart::Network { name: "ip".into(), v4: 24, v6: 64 }], &[("ip", value)])
    }

    #[test]
    fn no_two_lists_of_values_make_one_key() {
        assert_eq!(two("acme", "al"), b"\x05acme\x03al");
        assert_ne!(two("a", "bc"), two("ab", "c"));
        assert_ne!(two("", "a"), two("a", ""));
        let missing = key(&[KeyPart::Value("a".into()), KeyPart::Value("b".into())], &[("b", "a")]);
        assert_ne!(missing, two("", "a"), "empty is not missing");
        let long = "x".repeat(300);
        assert_eq!(two(&long, "")[..2], [0xad, 0x02], "301 = 0b10_0101101");
        assert_eq!(two(&long, "").len(), 2 + 300 + 1);
    }

    #[test]
    fn a_key_can_be_read_again() {
        let parts = [KeyPart::Value("a".into()), KeyPart::Network { name: "ip".into(), v4: 24, v6: 64 }];
        let read = |descriptors: &[Descriptor<'_>]| read_key(&parts, &key(&parts, descriptors));
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(read(&[("a", "acme"), ("ip", "10.1.2.3")]), [some("acme"), some("10.1.2.0/24")]);
        assert_eq!(
            read(&[("a", &"x".repeat(300)), ("ip", "2001:db8::1")]),
            [Some("x".repeat(300)), some("2001:db8::/64")]
        );
        assert_eq!(read(&[("a", "")]), [some(""), None]);
        assert_eq!(read_key(&parts, b"\x05ac"), [some("ac")], "one that was cut");
        assert_eq!(read_key(&parts, &[0xff; 40]), [], "and one that was never one");
    }

    #[test]
    fn addresses_of_one_network_are_one_key() {
        assert_eq!(address("10.0.0.1"), address("10.0.0.255"));
        assert_eq!(address("10.0.0.1"), address("::ffff:10.0.0.9"));
        assert_ne!(address("10.0.0.1"), address("10.0.1.1"));
        assert_eq!(address("2001:db8:1:2:aaaa::1"), address("2001:db8:1:2:bbbb::2"));
        assert_ne!(address("2001:db8:1:2::1"), address("2001:db8:1:3::1"));
        assert_eq!(address("nonsense"), [0]);
    }
}
