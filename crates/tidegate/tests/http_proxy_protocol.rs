//! PROXY protocol headers: the test vectors, and arbitrary bytes.

use std::net::SocketAddr;
use std::time::Duration;

use proptest::prelude::*;
use tidegate::http::TrustedProxies;
use tidegate::http::proxy_protocol::{
    AcceptError, InvalidHeader, MAX_V1_BYTES, MAX_V2_BYTES, ParsedHeader, ProxiedClient, ProxyProtocol, parse,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const LINE: &[u8] = b"PROXY TCP4 192.0.2.1 192.0.2.2 123 5678\r\n";

fn complete(bytes: &[u8]) -> ProxiedClient {
    match parse(bytes) {
        Ok(ParsedHeader::Complete { client, length }) if length == bytes.len() => client,
        other => panic!("{:?}: {other:?}", bytes.escape_ascii().to_string()),
    }
}

fn client(address: &str) -> ProxiedClient {
    ProxiedClient::Address(address.parse().expect("valid"))
}

/// A header of version 2, with this command, family and rest.
fn v2(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
    let length = u16::try_from(rest.len()).expect("valid").to_be_bytes();
    [b"\r\n\r\n\0\r\nQUIT\n", &[command, family][..], &length, rest].concat()
}

/// Two addresses of version 4, and two ports.
const ADDRESSES_V4: [u8; 12] = [192, 0, 2, 1, 192, 0, 2, 2, 0, 123, 0x16, 0x2e];

fn addresses_v6(source: &str) -> Vec<u8> {
    let source: std::net::Ipv6Addr = source.parse().expect("valid");
    [&source.octets()[..], &[0; 16], &[0, 123, 0x16, 0x2e]].concat()
}

#[test]
fn ip_20_line_gives_the_client_and_unknown_keeps_the_peer() {
    assert_eq!(complete(LINE), client("192.0.2.1:123"));
    assert_eq!(complete(b"PROXY TCP6 2001:db8::1 2001:db8::2 123 5678\r\n"), client("[2001:db8::1]:123"));
    assert_eq!(complete(b"PROXY TCP6 ::ffff:192.0.2.1 ::1 123 5678\r\n"), client("192.0.2.1:123"));
    assert_eq!(
        complete(b"PROXY TCP4 255.255.255.255 255.255.255.255 65535 0\r\n"),
        client("255.255.255.255:65535")
    );
    for line in
        ["PROXY UNKNOWN\r\n", "PROXY UNKNOWN 192.0.2.1 192.0.2.2 123 5678\r\n", "PROXY UNKNOWN \u{fc}\r\n"]
    {
        assert_eq!(complete(line.as_bytes()), ProxiedClient::Unspecified);
    }
    assert_eq!(complete(b"PROXY UNKNOWN \xff\0\r\n"), ProxiedClient::Unspecified);
}

#[test]
fn ip_21_malformed_line_is_rejected() {
    let words = [
        "TCP4 192.0.2.1 192.0.2.2 123",
        "TCP4 192.0.2.1 192.0.2.2 123 5678 9",
        "TCP4 192.0.2.1  192.0.2.2 123 5678",
        "TCP4 192.0.2.1 192.0.2.2 0123 5678",
        "TCP4 192.0.2.1 192.0.2.2 +123 5678",
        "TCP4 192.0.2.1 192.0.2.2 65536 5678",
        "TCP4 192.0.2.1 192.0.2.2 123 ",
        "TCP4 192.0.2.256 192.0.2.2 123 5678",
        "TCP4 192.0.2.01 192.0.2.2 123 5678",
        "TCP4 2001:db8::1 2001:db8::2 123 5678",
        "TCP6 192.0.2.1 192.0.2.2 123 5678",
        "TCP5 192.0.2.1 192.0.2.2 123 5678",
        "tcp4 192.0.2.1 192.0.2.2 123 5678",
        "UNKNOWNS x",
    ];
    for words in words {
        let line = format!("PROXY {words}\r\n");
        assert_eq!(parse(line.as_bytes()), Err(InvalidHeader::MalformedLine), "{line:?}");
    }
    for other in ["GET / HTTP/1.1\r\n", "PROXYTCP4", "proxy ", "X", "\r\nG", "\r\n\r\n\0\r\nQUIX\n"] {
        assert_eq!(parse(other.as_bytes()), Err(InvalidHeader::NotAHeader), "{other:?}");
    }
}

#[test]
fn ip_21_line_has_at_most_107_bytes() {
    let line = |bytes: usize| format!("PROXY UNKNOWN {}\r\n", "x".repeat(bytes - 16));
    assert_eq!(complete(line(MAX_V1_BYTES).as_bytes()), ProxiedClient::Unspecified);
    assert_eq!(parse(line(MAX_V1_BYTES + 1).as_bytes()), Err(InvalidHeader::LineTooLong));
    assert_eq!(parse(&line(MAX_V1_BYTES + 1).as_bytes()[..MAX_V1_BYTES]), Err(InvalidHeader::LineTooLong));
    assert_eq!(
        parse(&line(MAX_V1_BYTES).as_bytes()[..MAX_V1_BYTES - 1]),
        Ok(ParsedHeader::Incomplete { missing: 1 })
    );
}

#[test]
fn version_2_gives_the_client_and_ignores_extensions() {
    assert_eq!(complete(&v2(0x21, 0x11, &ADDRESSES_V4)), client("192.0.2.1:123"));
    assert_eq!(complete(&v2(0x21, 0x21, &addresses_v6("2001:db8::1"))), client("[2001:db8::1]:123"));
    assert_eq!(complete(&v2(0x21, 0x21, &addresses_v6("::ffff:192.0.2.1"))), client("192.0.2.1:123"));
    let with_more = [&ADDRESSES_V4[..], &[0x04, 0, 1, 0]].concat();
    assert_eq!(complete(&v2(0x21, 0x11, &with_more)), client("192.0.2.1:123"));
}

#[test]
fn ip_23_local_command_keeps_the_peer() {
    for family in [0x00, 0x11, 0x21, 0x31, 0xff] {
        assert_eq!(complete(&v2(0x20, family, &[])), ProxiedClient::Unspecified);
        assert_eq!(complete(&v2(0x20, family, &ADDRESSES_V4)), ProxiedClient::Unspecified);
    }
    assert_eq!(complete(&v2(0x21, 0x00, &[])), ProxiedClient::Unspecified);
    assert_eq!(complete(&v2(0x21, 0x31, &[b'/'; 216])), ProxiedClient::Unspecified);
}

#[test]
fn version_2_with_invalid_fields_is_rejected() {
    assert_eq!(parse(&v2(0x11, 0x11, &ADDRESSES_V4)), Err(InvalidHeader::Version { version: 1 }));
    assert_eq!(parse(&v2(0x22, 0x11, &ADDRESSES_V4)), Err(InvalidHeader::Command { command: 2 }));
    assert_eq!(parse(&v2(0x21, 0x12, &ADDRESSES_V4)), Err(InvalidHeader::Family { family: 0x12 }));
    assert_eq!(parse(&v2(0x21, 0x11, &ADDRESSES_V4[..11])), Err(InvalidHeader::Length { length: 11 }));
    assert_eq!(parse(&v2(0x21, 0x21, &[0; 35])), Err(InvalidHeader::Length { length: 35 }));
    let long = MAX_V2_BYTES - 16;
    assert_eq!(complete(&v2(0x20, 0x00, &vec![0; long])), ProxiedClient::Unspecified);
    assert_eq!(parse(&v2(0x20, 0x00, &vec![0; long + 1])), Err(InvalidHeader::Length { length: long + 1 }));
}

proptest! {
    /// Reading as many bytes as are missing, again and again, ends exactly at the end of the header.
    #[test]
    fn missing_never_exceeds_the_rest_of_the_header(
        source: SocketAddr, destination: SocketAddr, is_text: bool, cut in 0_usize..10_000,
    ) {
        let header = match (is_text, source, destination.port()) {
            (true, SocketAddr::V4(v4), port) => {
                format!("PROXY TCP4 {} 192.0.2.2 {} {port}\r\n", v4.ip(), v4.port()).into_bytes()
            }
            (true, SocketAddr::V6(v6), port) => {
                format!("PROXY TCP6 {} ::1 {} {port}\r\n", v6.ip(), v6.port()).into_bytes()
            }
            (false, SocketAddr::V4(v4), _) => {
                v2(0x21, 0x11, &[&v4.ip().octets()[..], &[0; 4], &v4.port().to_be_bytes(), &[0; 2]].concat())
            }
            (false, SocketAddr::V6(v6), _) => {
                v2(0x21, 0x21, &[&v6.ip().octets()[..], &[0; 16], &v6.port().to_be_bytes(), &[0; 2]].concat())
            }
        };
        let start = &header[..cut % header.len()];
        let Ok(ParsedHeader::Incomplete { missing }) = parse(start) else { panic!("{start:?}: {:?}", parse(start)) };
        prop_assert!((1..=header.len() - start.len()).contains(&missing), "{missing} of {header:?}");
        let of = ProxiedClient::Address(SocketAddr::new(source.ip().to_canonical(), source.port()));
        prop_assert_eq!(complete(&header), of);
    }

    /// Arbitrary bytes do not panic, and bytes after a header do not change it.
    #[test]
    fn arbitrary_bytes_do_not_panic_and_later_bytes_change_nothing(
        start in 0_usize..4, rest in proptest::collection::vec(any::<u8>(), 0..200), more: Vec<u8>,
    ) {
        let starts: [&[u8]; 4] = [b"", b"PROXY ", b"PROXY TCP4 1.2.3.4 ", b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00"];
        let bytes = [starts[start], &rest].concat();
        if let Ok(ParsedHeader::Complete { length, .. }) = parse(&bytes) {
            prop_assert!(length <= bytes.len());
            prop_assert_eq!(parse(&[bytes.clone(), more].concat()), parse(&bytes));
        }
    }
}

fn protocol() -> ProxyProtocol {
    ProxyProtocol::from(TrustedProxies::new(["10.0.0.0/8"]).expect("valid"))
}

fn proxy() -> SocketAddr {
    "10.0.0.7:4711".parse().expect("valid")
}

#[tokio::test]
async fn exactly_the_header_is_read() {
    for header in [LINE.to_vec(), v2(0x21, 0x11, &ADDRESSES_V4)] {
        let sent = [&header, &b"GET / HTTP/1.1\r\n"[..]].concat();
        let mut stream = &sent[..];
        assert_eq!(protocol().accept(&mut stream, proxy()).await.unwrap(), "192.0.2.1:123".parse().unwrap());
        assert_eq!(stream, b"GET / HTTP/1.1\r\n");
    }
    let mut local = &v2(0x20, 0x00, &[])[..];
    assert_eq!(protocol().accept(&mut local, proxy()).await.unwrap(), proxy());
}

#[tokio::test]
async fn header_may_arrive_byte_by_byte() {
    let (mut ours, mut theirs) = tokio::io::duplex(1);
    let sent = tokio::spawn(async move { theirs.write_all(LINE).await });
    assert_eq!(protocol().accept(&mut ours, proxy()).await.unwrap(), "192.0.2.1:123".parse().unwrap());
    sent.await.unwrap().unwrap();
}

#[tokio::test]
async fn ip_21_nothing_is_read_from_untrusted_peers() {
    let mut stream = LINE;
    for other in ["192.0.2.7:4711", "[2001:db8::1]:4711", "11.0.0.1:4711"] {
        let answer = protocol().accept(&mut stream, other.parse().unwrap()).await;
        assert!(
            matches!(answer, Err(AcceptError::UntrustedProxy { peer }) if peer.to_string() == other),
            "{answer:?}"
        );
    }
    assert_eq!(stream, LINE);
    let mapped = "[::ffff:10.0.0.7]:4711".parse().unwrap();
    assert!(protocol().accept(&mut stream, mapped).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn ip_21_missing_header_times_out_after_two_seconds() {
    let (mut ours, mut theirs) = tokio::io::duplex(64);
    theirs.write_all(&LINE[..20]).await.unwrap();
    let began = tokio::time::Instant::now();
    let answer = protocol().accept(&mut ours, proxy()).await;
    assert!(matches!(answer, Err(AcceptError::Timeout { .. })), "{answer:?}");
    assert_eq!(began.elapsed(), Duration::from_secs(2)); // of tokio's paused clock
}

#[tokio::test]
async fn ip_21_closed_connection_or_other_protocol_is_rejected() {
    let ended = protocol().accept(&mut &LINE[..20], proxy()).await;
    assert!(matches!(ended, Err(AcceptError::UnexpectedEof)), "{ended:?}");
    let other = protocol().accept(&mut &b"GET / HTTP/1.1\r\n"[..], proxy()).await;
    assert!(matches!(other, Err(AcceptError::InvalidHeader(InvalidHeader::NotAHeader))), "{other:?}");
}

#[tokio::test]
async fn error_source_gives_the_reason_and_a_header_leaves_no_rest() {
    let error = protocol().accept(&mut &b"GET "[..], proxy()).await.unwrap_err();
    let source = std::error::Error::source(&error).expect("a reason").to_string();
    assert!(source.contains("enable the PROXY protocol on the proxy"), "{source}");
    let mut rest = Vec::new();
    let mut stream = LINE;
    protocol().accept(&mut stream, proxy()).await.unwrap();
    stream.read_to_end(&mut rest).await.unwrap();
    assert!(rest.is_empty());
}
