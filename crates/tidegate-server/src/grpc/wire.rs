//! # Protocol buffers, as far as they are needed
//!
//! A message is a row of fields: a number and a kind, and then the value. Whoever does not know a number can skip it by
//! its kind, and does, so that either side may know more than the other.
//!
//! ```text
//!   12            0a                 0a 04 75 73 65 72 …
//!   field 2,      ten bytes of it:   field 1, four bytes: "user" …
//!   with a length
//! ```
//!
//! What is read was sent by anybody: nothing is reserved for what is only announced, and no list grows beyond
//! [`MOST_ITEMS`].

use std::fmt;

/// No list of messages has more items than this; whoever sends more is told so.
pub(crate) const MOST_ITEMS: usize = 1_024;

/// A message: fields by their numbers.
pub(crate) trait Message: Default {
    /// Takes the value of a field; those it does not know are nothing to it.
    fn field(&mut self, number: u32, value: Value<'_>) -> Result<(), Malformed>;

    /// Writes its fields.
    fn write(&self, into: &mut Vec<u8>);

    /// The message that these bytes are.
    fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut message = Self::default();
        message.read_more(bytes)?;
        Ok(message)
    }

    /// Reads what is said of it in these bytes, too.
    fn read_more(&mut self, mut bytes: &[u8]) -> Result<(), Malformed> {
        while !bytes.is_empty() {
            let key = varint(&mut bytes)?;
            let number = u32::try_from(key >> 3).ok().filter(|number| *number > 0).ok_or(Malformed::Field)?;
            let value = Value::read(key & 7, &mut bytes)?;
            self.field(number, value)?;
        }
        Ok(())
    }
}

/// What a field is, before anybody knows what it means.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value<'a> {
    Number(u64),
    Eight([u8; 8]),
    Four,
    Bytes(&'a [u8]),
}

/// A field of a message, by its type.
pub(crate) trait Field {
    fn read(&mut self, value: Value<'_>) -> Result<(), Malformed>;

    /// Writes it with its number, unless it is what it would be anyway.
    fn write(&self, number: u32, into: &mut Vec<u8>);
}

/// Bytes that are no such message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Malformed {
    /// They end too early.
    Short,
    /// A number of more than 64 bits.
    Number,
    /// No number or kind that a field can have.
    Field,
    /// A value of another kind than the field's.
    Kind,
    /// A text that is none.
    Text,
    /// Too many of something.
    Many,
}

impl<'a> Value<'a> {
    fn read(kind: u64, bytes: &mut &'a [u8]) -> Result<Self, Malformed> {
        match kind {
            0 => Ok(Value::Number(varint(bytes)?)),
            1 => Ok(Value::Eight(take(bytes, 8)?.try_into().map_err(|_| Malformed::Short)?)),
            2 => {
                let length = usize::try_from(varint(bytes)?).map_err(|_| Malformed::Short)?;
                Ok(Value::Bytes(take(bytes, length)?))
            }
            5 => take(bytes, 4).map(|_| Value::Four),
            _ => Err(Malformed::Field),
        }
    }

    fn number(self) -> Result<u64, Malformed> {
        if let Value::Number(number) = self { Ok(number) } else { Err(Malformed::Kind) }
    }

    fn bytes(self) -> Result<&'a [u8], Malformed> {
        if let Value::Bytes(bytes) = self { Ok(bytes) } else { Err(Malformed::Kind) }
    }
}

fn take<'a>(bytes: &mut &'a [u8], length: usize) -> Result<&'a [u8], Malformed> {
    bytes.split_off(..length).ok_or(Malformed::Short)
}

fn varint(bytes: &mut &[u8]) -> Result<u64, Malformed> {
    let mut number = 0;
    for place in 0..10 {
        let byte = *bytes.split_off_first().ok_or(Malformed::Short)?;
        if place == 9 && byte > 1 {
            return Err(Malformed::Number);
        }
        number |= u64::from(byte & 0x7f) << (7 * place);
        if byte < 0x80 {
            return Ok(number);
        }
    }
    Err(Malformed::Number)
}

fn write_varint(mut number: u64, into: &mut Vec<u8>) {
    while number >= 0x80 {
        into.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    into.push((number & 0x7f) as u8);
}

fn write_number(number: u32, value: u64, into: &mut Vec<u8>) {
    write_varint(u64::from(number) << 3, into);
    write_varint(value, into);
}

fn write_bytes(number: u32, bytes: &[u8], into: &mut Vec<u8>) {
    write_varint(u64::from(number) << 3 | 2, into);
    write_varint(bytes.len() as u64, into);
    into.extend_from_slice(bytes);
}

/// The length comes first and is known last, so it is written last and brought to its place.
fn write_message(number: u32, message: &impl Message, into: &mut Vec<u8>) {
    write_varint(u64::from(number) << 3 | 2, into);
    let start = into.len();
    message.write(into);
    let length = into.len() - start;
    write_varint(length as u64, into);
    let digits = into.len() - start - length;
    into[start..].rotate_right(digits);
}

// === what fields are ===

/// Numbers: as they are read, and as they are written.
macro_rules! numbers {
    ($($number:ty: $read:expr, $write:expr;)*) => {$(
        impl Field for $number {
            fn read(&mut self, value: Value<'_>) -> Result<(), Malformed> {
                *self = $read(value.number()?);
                Ok(())
            }

            fn write(&self, number: u32, into: &mut Vec<u8>) {
                if *self != <$number>::default() {
                    write_number(number, $write(*self), into);
                }
            }
        }

        /// One that may not be there, and is written whatever it is.
        impl Field for Option<$number> {
            fn read(&mut self, value: Value<'_>) -> Result<(), Malformed> {
                self.insert(<$number>::default()).read(value)
            }

            fn write(&self, number: u32, into: &mut Vec<u8>) {
                if let Some(value) = self {
                    write_number(number, $write(*value), into);
                }
            }
        }
    )*};
}

/// The lower bits count where a field is narrower than what was sent: that is what the format says.
fn lower(number: u64) -> u32 {
    let [a, b, c, d, ..] = number.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

numbers! {
    u64: |number| number, |number| number;
    i64: u64::cast_signed, i64::cast_unsigned;
    u32: lower, u64::from;
    i32: |number| lower(number).cast_signed(), |number| i64::from(number).cast_unsigned();
    bool: |number| number != 0, u64::from;
}

impl Field for Option<f64> {
    fn read(&mut self, value: Value<'_>) -> Result<(), Malformed> {
        let Value::Eight(bytes) = value else { return Err(Malformed::Kind) };
        *self = Some(f64::from_le_bytes(bytes));
        Ok(())
    }

    fn write(&self, number: u32, into: &mut Vec<u8>) {
        if let Some(value) = self {
            write_varint(u64::from(number) << 3 | 1, into);
            into.extend_from_slice(&value.to_le_bytes());
        }
    }
}

impl Field for String {
    fn read(&mut self, value: Value<'_>) -> Result<(), Malformed> {
        let text = std::str::from_utf8(value.bytes()?).map_err(|_| Malformed::Text)?;
        text.clone_into(self);
        Ok(())
    }

    fn write(&self, number: u32, into: &mut Vec<u8>) {
        if !self.is_empty() {
            write_bytes(number, self.as_bytes(), into);
        }
    }
}

impl Field for Option<String> {
    fn read(&mut self, value: Value<'_>) -> Result<(), Malformed> {
        self.insert(String::new()).read(value)
    }

    fn write(&self, number: u32, into: &mut Vec<u8>) {
        if let Some(text) = self {
            write_bytes(number, text.as_bytes(), into);
        }
    }
}

impl Field for Vec<u8> {
    fn read(&mut self, value: Value<'_>) -> Result<(), Malformed> {
        value.bytes()?.clone_into(self);
        Ok(())
    }

    fn write(&self, number: u32, into: &mut Vec<u8>) {
        if !self.is_empty() {
            write_bytes(number, self, into);
        }
    }
}

impl Field for Vec<Vec<u8>> {
    fn read(&mut self, value: Value<'_>) -> Result<(), Malformed> {
        push(self, value.bytes()?.to_vec())
    }

    fn write(&self, number: u32, into: &mut Vec<u8>) {
        self.iter().for_each(|bytes| write_bytes(number, bytes, into));
    }
}

/// Numbers one after the other, as bytes of one field; each as a field of its own is understood, too.
impl Field for Vec<i32> {
    fn read(&mut self, value: Value<'_>) -> Result<(), Malformed> {
        let mut bytes = match value {
            Value::Bytes(bytes) => bytes,
            value => {
                let mut one = 0;
                one.read(value)?;
                return push(self, one);
            }
        };
        while !bytes.is_empty() {
            let mut one = 0;
            one.read(Value::Number(varint(&mut bytes)?))?;
            push(self, one)?;
        }
        Ok(())
    }

    fn write(&self, number: u32, into: &mut Vec<u8>) {
        let mut bytes = Vec::new();
        self.iter().for_each(|one| write_varint(i64::from(*one).cast_unsigned(), &mut bytes));
        bytes.write(number, into);
    }
}

/// What is said of a message twice is said of one.
impl<M: Message> Field for Option<M> {
    fn read(&mut self, value: Value<'_>) -> Result<(), Malformed> {
        self.get_or_insert_default().read_more(value.bytes()?)
    }

    fn write(&self, number: u32, into: &mut Vec<u8>) {
        if let Some(message) = self {
            write_message(number, message, into);
        }
    }
}

impl<M: Message> Field for Vec<M> {
    fn read(&mut self, value: Value<'_>) -> Result<(), Malformed> {
        push(self, M::read(value.bytes()?)?)
    }

    fn write(&self, number: u32, into: &mut Vec<u8>) {
        self.iter().for_each(|message| write_message(number, message, into));
    }
}

fn push<T>(items: &mut Vec<T>, item: T) -> Result<(), Malformed> {
    if items.len() == MOST_ITEMS {
        return Err(Malformed::Many);
    }
    items.push(item);
    Ok(())
}

// === impl Malformed ===

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Malformed::Short => f.write_str("it ends in the middle of a field"),
            Malformed::Number => f.write_str("a number has more than 64 bits"),
            Malformed::Field => f.write_str("a field has no number or kind that there is"),
            Malformed::Kind => f.write_str("a field is of another kind than expected"),
            Malformed::Text => f.write_str("a text is not UTF-8"),
            Malformed::Many => write!(f, "a list has more than {MOST_ITEMS} items"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::generated::messages::{
        ExtensionNumberResponse, RateLimitDescriptor, RateLimitDescriptorEntry, RateLimitRequest,
        UInt64Value, Value as Any,
    };
    use super::*;

    fn bytes_of(message: &impl Message) -> Vec<u8> {
        let mut bytes = Vec::new();
        message.write(&mut bytes);
        bytes
    }

    proptest! {
        /// Nothing that is sent ends us, and what is understood is written and understood again.
        #[test]
        fn any_bytes_are_a_message_or_not(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(message) = RateLimitRequest::read(&bytes) {
                prop_assert_eq!(RateLimitRequest::read(&bytes_of(&message)), Ok(message));
            }
        }

        #[test]
        fn what_is_written_is_read(
            domain in ".{0,200}", key in ".{0,200}", hits in any::<u64>(), hits_addend: u32, is_negative_hits: bool
        ) {
            let entries = vec![RateLimitDescriptorEntry { key, value: domain.clone() }; 3];
            let hits = Some(UInt64Value { value: hits });
            let descriptor = RateLimitDescriptor { entries, limit: None, hits_addend: hits, is_negative_hits };
            let message = RateLimitRequest { domain, descriptors: vec![descriptor; 2], hits_addend };
            prop_assert_eq!(RateLimitRequest::read(&bytes_of(&message)), Ok(message));
        }

        #[test]
        fn numbers_of_all_kinds_are_read(extension_number: Vec<i32>, number in any::<f64>(), flag: bool) {
            let extension_number = extension_number.into_iter().take(MOST_ITEMS).collect();
            let message = ExtensionNumberResponse { base_type_name: String::new(), extension_number };
            prop_assert_eq!(ExtensionNumberResponse::read(&bytes_of(&message)), Ok(message));
            let any = Any { number_value: Some(number), bool_value: Some(flag), ..Any::default() };
            prop_assert_eq!(Any::read(&bytes_of(&any)), Ok(any));
        }
    }

    /// As the format's own description has it.
    #[test]
    fn bytes_are_those_of_the_format() {
        let entries = vec![RateLimitDescriptorEntry { key: "user".into(), value: String::new() }];
        let descriptors = vec![RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }];
        let message = RateLimitRequest { domain: "d".into(), descriptors, hits_addend: 300 };
        assert_eq!(bytes_of(&message), b"\x0a\x01d\x12\x08\x0a\x06\x0a\x04user\x18\xac\x02");
    }
}
