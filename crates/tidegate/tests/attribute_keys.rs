//! Keys of calls: equal for equal arguments, and distinct for different arguments.

#![cfg(feature = "macros")]

use std::borrow::Cow;
use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};

use tidegate::attribute::KeyBytes;

#[derive(Hash)]
struct UserId(u64);

#[derive(Hash)]
enum Caller {
    Anonymous,
    User(u8),
    Named(String),
}

#[test]
fn text_is_its_own_key_and_a_number_its_digits() {
    let of = |key: KeyBytes| key.bytes().to_vec();
    for alice in
        [KeyBytes::of("alice"), KeyBytes::of(&String::from("alice")), KeyBytes::of(&Cow::Borrowed("alice"))]
    {
        assert_eq!(of(alice), b"alice");
    }
    assert_eq!(of(KeyBytes::of("")), b"");
    assert_eq!(of(KeyBytes::of("\u{0}{}ÿ")), "\u{0}{}ÿ".as_bytes());
    assert_eq!(of(KeyBytes::of(&UserId(42))), b"42");
    assert_eq!(of(KeyBytes::of(&u128::MAX)), u128::MAX.to_string().as_bytes());
    assert_eq!(of(KeyBytes::of(&i128::MIN)), i128::MIN.to_string().as_bytes());
    for numbers in [[KeyBytes::of(&-7i8), KeyBytes::of(&-7i16)], [KeyBytes::of(&-7i32), KeyBytes::of(&-7i64)]]
    {
        assert!(numbers.iter().all(|key| key.bytes() == b"-7"));
    }
    for numbers in
        [[KeyBytes::of(&255u8), KeyBytes::of(&255u16)], [KeyBytes::of(&255u32), KeyBytes::of(&255usize)]]
    {
        assert!(numbers.iter().all(|key| key.bytes() == b"255"));
    }
    assert_eq!(of(KeyBytes::of(&-1isize)), b"-1");
    assert_eq!(of(KeyBytes::of(&'a')), b"97");
}

#[test]
fn other_keys_begin_with_a_byte_that_no_text_has() {
    let others = [
        KeyBytes::of(&Caller::User(1)),
        KeyBytes::of(&Caller::User(255)),
        KeyBytes::of(&Caller::Named("1".to_owned())),
        KeyBytes::of(&Some("x")),
        KeyBytes::of(&("x", "")),
        KeyBytes::of(&("", "x")),
        KeyBytes::of(&b"alice"[..]),
        KeyBytes::of(&IpAddr::V4(Ipv4Addr::LOCALHOST)),
        KeyBytes::of(&()),
        KeyBytes::of(&[0u8; 300]),
    ];
    assert!(others.iter().all(|key| key.bytes()[0] == 0xff));
    let different: HashSet<&[u8]> = others.iter().map(KeyBytes::bytes).collect();
    assert_eq!(different.len(), others.len());
    assert_eq!(KeyBytes::of(&Caller::Anonymous).bytes(), b"0");
    assert_eq!(
        format!("{:?}", KeyBytes::of(&Some(7u8))),
        r#"KeyBytes("\xff\x01\x00\x00\x00\x00\x00\x00\x00\x07")"#
    );
}

#[test]
fn long_keys_are_not_truncated() {
    for length in [62, 63, 64, 65, 127, 128, 1_000, 20_000] {
        let text = "x".repeat(length);
        assert_eq!(KeyBytes::of(&text).bytes(), text.as_bytes());
        let joined = KeyBytes::empty().and(&text).and("y").and(&text);
        assert_eq!(joined.bytes().iter().filter(|byte| **byte == b'x').count(), 2 * length);
        assert_ne!(joined.bytes(), KeyBytes::empty().and(&text).and(&text).and("y").bytes());
    }
    // The length prefix is 128, as the server encodes it.
    assert_eq!(&KeyBytes::empty().and(&"x".repeat(127)).bytes()[..3], [0x80, 0x01, b'x']);
}

/// A deterministic pseudo-random number.
fn random(seed: &mut u64) -> usize {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    usize::try_from(*seed >> 33).expect("31 bits")
}

#[test]
fn million_tuples_have_distinct_keys() {
    let pieces = [
        "", "a", "b", ":", "\0", "{", "}", "\u{1}", "\u{2}", "/", "ab", "{a}", "\u{7f}", "\u{80}", "1", "\\",
    ];
    let mut seed = 0x6b65_7973;
    let mut text =
        || -> String { (0..random(&mut seed) % 8).map(|_| pieces[random(&mut seed) % 16]).collect() };
    let (mut tuples, mut keys) = (HashSet::new(), HashSet::new());
    for _ in 0..1_000_000 {
        let (a, b, c) = (text(), text(), text());
        keys.insert(KeyBytes::empty().and(&a).and(&b).and(&c).bytes().to_vec());
        tuples.insert((a, b, c));
    }
    assert!(tuples.len() > 900_000, "{}", tuples.len());
    assert_eq!(keys.len(), tuples.len());
}
