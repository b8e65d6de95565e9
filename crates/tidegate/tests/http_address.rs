//! Client addresses: the test vectors, spoofing, networks, and headers with arbitrary bytes.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, Request};
use proptest::prelude::*;
use tidegate::http::{
    AddressSource, Client, ClientAddress, Forwarding, Head, Peer, TrustedProxies, by, key_of,
};

#[derive(Clone, Copy)]
struct Connected(SocketAddr);

fn direct() -> ClientAddress {
    ClientAddress::from_socket(|connected: &Connected| connected.0)
}

fn trusted(list: &[&str]) -> TrustedProxies {
    TrustedProxies::new(list.iter().copied()).expect("valid")
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("valid")
}

/// The client found for a peer and the lines of a header.
fn find(client: &ClientAddress, peer: &str, name: &'static str, lines: &[&str]) -> Client {
    let mut headers = HeaderMap::new();
    for line in lines {
        headers.append(HeaderName::from_static(name), HeaderValue::from_str(line).expect("valid"));
    }
    client.client(Some(Peer::Address(ip(peer))), &headers)
}

fn xff(client: &ClientAddress, peer: &str, lines: &[&str]) -> Client {
    find(client, peer, "x-forwarded-for", lines)
}

const NGINX: &[&str] = &["127.0.0.1/32", "10.0.1.0/24"];
const EDGE: &str = "203.0.113.128, 203.0.113.10, 203.0.113.1";

#[test]
fn forwarding_header_is_walked_by_trust_last_entry_or_hops() {
    let last = direct().directly_behind(trusted(NGINX), Forwarding::XForwardedFor);
    let walk = direct().behind(trusted(NGINX), Forwarding::XForwardedFor);
    let hops = |hops| direct().hops(hops);
    let network = |list| direct().behind(trusted(list), Forwarding::XForwardedFor);
    let rows: &[(&str, ClientAddress, &str, &[&str], &str)] = &[
        ("IP-01", last.clone(), "127.0.0.1", &["10.0.0.1, 192.0.2.1"], "192.0.2.1"),
        ("IP-02", last.clone(), "127.0.0.1", &["192.0.2.1, 10.0.1.1, 127.0.0.1"], "127.0.0.1"),
        ("IP-03", walk.clone(), "127.0.0.1", &["10.0.1.1, 192.0.2.1, 127.0.0.1"], "192.0.2.1"),
        ("IP-04", last, "127.0.0.1", &["192.0.2.1", "127.0.0.1, 10.0.1.1"], "10.0.1.1"),
        ("IP-05", walk, "127.0.0.1", &["10.0.1.1", "192.0.2.1", "127.0.0.1"], "192.0.2.1"),
        ("IP-06", hops(0), "192.0.2.5", &[EDGE], "192.0.2.5"),
        ("IP-07", hops(2), "192.0.2.5", &[EDGE], "203.0.113.10"),
        ("IP-08", hops(2 + 1), "10.11.12.13", &[EDGE, "192.0.2.5"], "203.0.113.10"),
        (
            "IP-09",
            network(&["192.0.2.0/24"]),
            "192.0.2.5",
            &["203.0.113.128, 203.0.113.10, 192.0.2.1"],
            "203.0.113.10",
        ),
        ("IP-10", hops(3), "192.0.2.5", &["1.1.1.1, 2.2.2.2"], "192.0.2.5"),
        ("IP-11", network(&["10.0.0.0/8"]), "198.51.100.7", &["1.2.3.4"], "198.51.100.7"),
        ("IP-12", network(&["10.0.0.0/8"]), "10.0.0.1", &["10.0.0.9, 10.0.0.2"], "10.0.0.9"),
        ("IP-13a", network(&["10.0.0.0/8"]), "10.0.0.1", &["1.2.3.4:5678"], "1.2.3.4"),
        ("IP-13b", network(&["10.0.0.0/8"]), "10.0.0.1", &["[2001:db8::1]:443"], "2001:db8::1"),
        ("IP-13c", network(&["10.0.0.0/8"]), "10.0.0.1", &["2001:db8::1"], "2001:db8::1"),
        ("IP-17", direct(), "::ffff:192.0.2.1", &[], "192.0.2.1"),
        ("mapped", network(&["10.0.0.0/8"]), "::ffff:10.0.0.1", &["::ffff:1.2.3.4"], "1.2.3.4"),
        ("default", direct(), "10.0.0.1", &["1.2.3.4"], "10.0.0.1"),
        ("no header", network(&["10.0.0.0/8"]), "10.0.0.1", &[], "10.0.0.1"),
    ];
    for (id, client, peer, lines, expected) in rows {
        let found = xff(client, peer, lines);
        assert_eq!((found.address, found.is_uncertain), (Some(ip(expected)), false), "{id}");
    }
}

#[test]
fn invalid_entry_ends_the_walk_and_marks_the_client_uncertain() {
    let ours = direct().behind(trusted(&["10.0.0.0/8"]), Forwarding::XForwardedFor);
    let rows: &[(&[&str], &str)] = &[
        (&["evil, 203.0.113.9, garbage, 10.0.0.2"], "10.0.0.2"), // IP-14
        (&["203.0.113.9, "], "10.0.0.1"),
        (&["203.0.113.9", ""], "10.0.0.1"),
        (&["1.2.3.4:99999"], "10.0.0.1"),
        (&["01.2.3.4"], "10.0.0.1"),
        (&["[2001:db8::1"], "10.0.0.1"),
        (&["[2001:db8::1]x"], "10.0.0.1"),
        (&["2001:db8::1%"], "10.0.0.1"),
        (&["unknown"], "10.0.0.1"),
    ];
    for (lines, expected) in rows {
        let found = xff(&ours, "10.0.0.1", lines);
        assert_eq!((found.address, found.is_uncertain), (Some(ip(expected)), true), "{lines:?}");
    }
}

#[test]
fn client_bytes_never_make_the_entries_of_trusted_proxies_invalid() {
    let ours = |forwarding| direct().behind(trusted(&["10.0.0.0/8"]), forwarding);
    let assert_client = |client: &ClientAddress, name: &'static str, line: &[u8]| {
        let value = HeaderValue::from_bytes(line).expect("valid");
        let headers = HeaderMap::from_iter([(HeaderName::from_static(name), value)]);
        let found = client.client(Some(Peer::Address(ip("10.0.0.1"))), &headers);
        assert_eq!(
            (found.address, found.is_uncertain),
            (Some(ip("203.0.113.9")), false),
            "{}",
            line.escape_ascii()
        );
    };
    for odd in [&b"\xff"[..], b"\x80, \xfe", b"\"", b",,,", b"\t"] {
        let line = [odd, b", 203.0.113.9, 10.0.0.2"].concat();
        assert_client(&ours(Forwarding::XForwardedFor), "x-forwarded-for", &line);
        assert_client(&direct().hops(2), "x-forwarded-for", &line);
    }
    for odd in [&b"for=\""[..], b"for=\"\\", b"\xff", b"\"\"\"", b"for=\"6.6.6.6", b"host=\"a\\\""] {
        for trusted_entries in
            [&b", for=203.0.113.9, for=10.0.0.2"[..], b", for=\"203.0.113.9:80\";by=\"a,b\""]
        {
            assert_client(&ours(Forwarding::Forwarded), "forwarded", &[odd, trusted_entries].concat());
        }
    }
}

#[test]
fn walk_stops_after_32_hops_or_4_kilobytes() {
    let ours = direct().behind(trusted(&["10.0.0.0/8"]), Forwarding::XForwardedFor);
    let list = |hops: usize| format!("203.0.113.9{}", ", 10.0.0.2".repeat(hops));
    let within = xff(&ours, "10.0.0.1", &[&list(31)]);
    assert_eq!((within.address, within.is_uncertain), (Some(ip("203.0.113.9")), false));
    let beyond = xff(&ours, "10.0.0.1", &[&list(32)]);
    assert_eq!((beyond.address, beyond.is_uncertain), (Some(ip("10.0.0.2")), true));
    let long = format!("203.0.113.9, 10.0.0.2{}", " ".repeat(4_100));
    assert!(xff(&ours, "10.0.0.1", &[&long]).is_uncertain);
}

#[test]
fn forwarded_header_and_provider_headers_are_read() {
    let ours = || trusted(&["10.0.0.0/8"]);
    let forwarded = direct().behind(ours(), Forwarding::Forwarded);
    let rows: &[(&[&str], &str, bool)] = &[
        (&["for=192.0.2.60;proto=http, for=\"[2001:db8:cafe::17]:4711\""], "2001:db8:cafe::17", false), // IP-15
        (&["for=unknown"], "10.0.0.1", true), // IP-16
        (&["for=_hidden"], "10.0.0.1", true),
        (&["For=192.0.2.60;by=\"a, b\""], "192.0.2.60", false),
        (&["for=192.0.2.60, for=10.0.0.3"], "192.0.2.60", false),
        (&["for=192.0.2.60", "for=10.0.0.3;host=\"x;for=1.1.1.1\""], "192.0.2.60", false),
        (&["for=192.0.2.60;for=192.0.2.61"], "10.0.0.1", true),
        (&["proto=http"], "10.0.0.1", true),
        (&["for=\"192.0.2.60"], "10.0.0.1", true),
        (&["FOR = \"192.0.2.60:80\" ; proto=https"], "192.0.2.60", false),
        (&["for=\"192.0.2.60:_gazonk\""], "192.0.2.60", false), // an obfuscated port
        (&["for=\"[2001:db8::17]:_a.b-c\""], "2001:db8::17", false),
        (&["for=\"192.0.2.60:_\""], "10.0.0.1", true),
        (&[r#"for="\1\92.0.2.60""#], "192.0.2.60", false), // needless escapes are allowed
        (&[r#"for=192.0.2.60;host="a\"b, c\\", for=10.0.0.3"#], "192.0.2.60", false),
        (&[r#"for="192.0.2.60"x"#], "10.0.0.1", true),
        (&["for=192.0.2.60, "], "10.0.0.1", true),
        (&["for=192.0.2.60", ""], "10.0.0.1", true),
        (&["for="], "10.0.0.1", true),
        (&["for=\"\""], "10.0.0.1", true),
    ];
    for (lines, expected, is_uncertain) in rows {
        let found = find(&forwarded, "10.0.0.1", "forwarded", lines);
        assert_eq!((found.address, found.is_uncertain), (Some(ip(expected)), *is_uncertain), "{lines:?}");
    }
    let single = Forwarding::Single(HeaderName::from_static("cf-connecting-ip"));
    let provider = direct().behind(ours(), single);
    let one = find(&provider, "10.0.0.1", "cf-connecting-ip", &["192.0.2.60"]);
    assert_eq!(
        (one.address, one.source, one.is_uncertain),
        (Some(ip("192.0.2.60")), AddressSource::Header, false)
    );
    for lines in [&["192.0.2.60", "192.0.2.61"][..], &["192.0.2.60, 192.0.2.61"]] {
        let several = find(&provider, "10.0.0.1", "cf-connecting-ip", lines);
        assert_eq!((several.address, several.is_uncertain), (Some(ip("10.0.0.1")), true), "{lines:?}");
    }
    assert_eq!(xff(&provider, "10.0.0.1", &["1.2.3.4"]).address, Some(ip("10.0.0.1")), "another header");
}

/// The forwarding headers that are sent to the next server.
fn forwarded(client: &ClientAddress, peer: Option<Peer>, lines: &[(&'static str, &str)]) -> Vec<String> {
    let mut headers = HeaderMap::new();
    for (name, line) in lines {
        let line = HeaderValue::from_str(line).expect("valid");
        headers.append(HeaderName::from_static(name), line);
    }
    client.write_forwarding_from(peer, &mut headers);
    let text = |value: &HeaderValue| value.to_str().expect("valid").to_owned();
    let mut passed: Vec<_> = headers.iter().map(|(name, value)| format!("{name}: {}", text(value))).collect();
    passed.sort_unstable();
    passed
}

#[test]
fn forwarding_headers_of_untrusted_peers_are_not_forwarded() {
    let peer = |text: &str| Some(Peer::Address(ip(text)));
    let ours = |forwarding| direct().behind(trusted(&["10.0.0.0/8"]), forwarding);
    let single = || Forwarding::Single(HeaderName::from_static("cf-connecting-ip"));
    let spoofed = &[
        ("x-forwarded-for", "1.2.3.4"),
        ("x-forwarded-for", "5.6.7.8"),
        ("x-forwarded-host", "a"),
        ("forwarded", "for=1.2.3.4"),
        ("x-real-ip", "1.2.3.4"),
        ("cf-connecting-ip", "1.2.3.4"),
        ("x-user", "alice"),
    ];
    let cf = "cf-connecting-ip: 1.2.3.4";
    let stranger = peer("198.51.100.7");
    let rows: &[(&str, Vec<String>, &[&str])] = &[
        (
            "IP-06",
            forwarded(&direct().hops(0), peer("192.0.2.5"), &[("x-forwarded-for", EDGE)]),
            &["x-forwarded-for: 203.0.113.128, 203.0.113.10, 203.0.113.1, 192.0.2.5"],
        ),
        (
            "IP-11",
            forwarded(&ours(Forwarding::XForwardedFor), stranger, spoofed),
            &[cf, "x-forwarded-for: 198.51.100.7", "x-user: alice"],
        ),
        (
            "no proxy is trusted",
            forwarded(&direct(), stranger, spoofed),
            &[cf, "x-forwarded-for: 198.51.100.7", "x-user: alice"],
        ),
        (
            "the standard",
            forwarded(&ours(Forwarding::Forwarded), peer("2001:db8::1"), spoofed),
            &[cf, "forwarded: for=\"[2001:db8::1]\"", "x-user: alice"],
        ),
        (
            "a provider's",
            forwarded(&ours(single()), peer("::ffff:198.51.100.7"), spoofed),
            &["cf-connecting-ip: 198.51.100.7", "x-user: alice"],
        ),
        (
            "a proxy of ours",
            forwarded(&ours(Forwarding::XForwardedFor), peer("10.0.0.1"), &spoofed[..3]),
            &["x-forwarded-for: 1.2.3.4, 5.6.7.8, 10.0.0.1", "x-forwarded-host: a"],
        ),
        (
            "a proxy of ours, by the standard",
            forwarded(&ours(Forwarding::Forwarded), peer("10.0.0.1"), &spoofed[3..4]),
            &["forwarded: for=1.2.3.4, for=10.0.0.1"],
        ),
        ("the provider", forwarded(&ours(single()), peer("10.0.0.1"), &spoofed[5..6]), &[cf]),
        (
            "a unix socket",
            forwarded(&direct(), Some(Peer::Local), spoofed),
            &[cf, "x-forwarded-for: unknown", "x-user: alice"],
        ),
    ];
    for (id, passed, expected) in rows {
        assert_eq!(passed, expected, "{id}");
    }
}

#[test]
fn unix_sockets_are_trusted_only_if_listed() {
    let headers = HeaderMap::from_iter([(
        HeaderName::from_static("x-forwarded-for"),
        HeaderValue::from_static("192.0.2.60"),
    )]);
    let behind =
        |proxies| direct().behind(proxies, Forwarding::XForwardedFor).client(Some(Peer::Local), &headers);
    assert_eq!(behind(trusted(&["10.0.0.0/8"])).address, None);
    let listed = behind(trusted(&["10.0.0.0/8"]).and_local_sockets());
    assert_eq!(listed.address, Some(ip("192.0.2.60")));
    let nowhere = direct().client(None, &headers);
    assert_eq!((nowhere.address, nowhere.source), (None, AddressSource::Unknown));
}

/// The key of a request from this peer, with this header.
fn key(client: &ClientAddress, peer: IpAddr, header: Option<&str>) -> Vec<u8> {
    let mut request = Request::new(());
    request.extensions_mut().insert(Connected(SocketAddr::new(peer, 4711)));
    if let Some(header) = header {
        request.headers_mut().append("x-forwarded-for", HeaderValue::from_str(header).expect("valid"));
    }
    key_of(&by::address(client.clone()), &Head::of(&request))
}

#[test]
fn ten_thousand_spoofed_headers_make_one_key() {
    let behind = direct().behind(trusted(&["10.0.0.0/8"]), Forwarding::XForwardedFor);
    for client in [direct(), behind] {
        let spoofed = (0..10_000u32).map(|n| std::net::Ipv4Addr::from_bits(n * 429_497).to_string());
        let keys: HashSet<_> =
            spoofed.map(|header| key(&client, ip("198.51.100.7"), Some(&header))).collect();
        assert_eq!(keys.len(), 1);
    }
}

#[test]
fn entries_invented_before_the_trusted_entries_make_one_key() {
    let behind = direct().behind(trusted(&["10.0.0.0/8"]), Forwarding::XForwardedFor);
    let keys: HashSet<_> = (0..10_000)
        .map(|n| {
            key(&behind, ip("10.0.0.1"), Some(&format!("9.{}.{}.9, 203.0.113.9, 10.0.0.2", n / 256, n % 256)))
        })
        .collect();
    assert_eq!(keys.len(), 1);
}

#[test]
fn all_addresses_of_one_network_make_one_key() {
    let first: Ipv6Addr = "2001:db8:1:2::".parse().unwrap();
    let inside = (0..65_536u128).map(|n| Ipv6Addr::from_bits(first.to_bits() | (n << 48) | (n * 7_919)));
    let keys: HashSet<_> = inside.map(|address| key(&direct(), address.into(), None)).collect();
    assert_eq!(keys.len(), 1);
    assert!(!keys.contains(&key(&direct(), ip("2001:db8:1:3::1"), None)), "the next network has another key");

    let find =
        |client: &ClientAddress, peer: &str| client.network(xff(client, peer, &[])).unwrap().to_string();
    assert_eq!(find(&direct(), "2001:db8:1:2:aaaa::1"), "2001:db8:1:2::/64"); // IP-18
    assert_eq!(find(&direct(), "2001:db8:1:2:bbbb::2"), "2001:db8:1:2::/64");
    let wide = direct().by_prefix(24, 80);
    let zoned: SocketAddr = "[::abcd:ffff:c0a8:1%1]:80".parse().unwrap();
    assert_eq!(find(&wide, &zoned.ip().to_string()), "::abcd:0:0:0/80"); // IP-19
    assert_eq!(find(&wide, "192.0.2.77"), "192.0.2.0/24");
    let behind = wide.behind(trusted(&["10.0.0.0/8"]), Forwarding::XForwardedFor);
    let client = xff(&behind, "10.0.0.1", &["[::abcd:ffff:c0a8:1%1]:80"]);
    assert_eq!(behind.network(client).unwrap().to_string(), "::abcd:0:0:0/80");
}

#[test]
fn address_is_never_confused_with_another_family_or_prefix() {
    let short = direct().by_prefix(24, 64);
    let keys = [
        key(&direct(), ip("1.2.3.0"), None),
        key(&short, ip("1.2.3.0"), None),
        key(&direct(), ip("102:300::"), None),
        key_of(&by::text("1.2.3.0"), &Head::of(&Request::new(()))),
        key_of(&by::address(direct()), &Head::of(&Request::new(()))),
    ];
    assert_eq!(keys.iter().collect::<HashSet<_>>().len(), keys.len());
}

proptest! {
    #[test]
    fn arbitrary_header_bytes_do_not_panic(lines in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..64), 0..4)) {
        let mut headers = HeaderMap::new();
        for value in lines.iter().filter_map(|line| HeaderValue::from_bytes(line).ok()) {
            for name in ["x-forwarded-for", "forwarded", "x-real-ip"] {
                headers.append(HeaderName::from_static(name), value.clone());
            }
        }
        let ours = || trusted(&["10.0.0.0/8"]);
        let single = Forwarding::Single(HeaderName::from_static("x-real-ip"));
        for forwarding in [Forwarding::XForwardedFor, Forwarding::Forwarded, single] {
            let (walk, last) = (direct().behind(ours(), forwarding.clone()), direct().directly_behind(ours(), forwarding));
            for client in [walk, last, direct().hops(2)] {
                let found = client.client(Some(Peer::Address(ip("10.0.0.1"))), &headers);
                prop_assert!(found.address.is_some());
            }
        }
    }

    #[test]
    fn bytes_before_the_trusted_entries_do_not_change_the_client(
        before in prop::collection::vec(
            prop_oneof![b' '..=b'~', 0x80..=0xffu8, prop::sample::select(&b"\"\"\\,;=\t"[..])],
            0..40,
        ),
    ) {
        let rows: [(Forwarding, &'static str, &[u8]); 2] = [
            (Forwarding::XForwardedFor, "x-forwarded-for", b",203.0.113.9, 10.0.0.2"),
            (Forwarding::Forwarded, "forwarded", b",for=\"203.0.113.9:80\";host=\"\\\"\", for=10.0.0.2"),
        ];
        for (forwarding, name, ours) in rows {
            let value = HeaderValue::from_bytes(&[&before, ours].concat()).unwrap();
            let headers = HeaderMap::from_iter([(HeaderName::from_static(name), value)]);
            let client = direct().behind(trusted(&["10.0.0.0/8"]), forwarding);
            let found = client.client(Some(Peer::Address(ip("10.0.0.1"))), &headers);
            prop_assert_eq!((found.address, found.is_uncertain), (Some(ip("203.0.113.9")), false));
        }
    }

    #[test]
    fn lists_of_separators_and_quotes_do_not_panic(line in "[0-9a-f:.,;=\"\\\\ %\\[\\]for]{0,80}") {
        let mut headers = HeaderMap::new();
        headers.append("forwarded", HeaderValue::from_str(&line).unwrap());
        headers.append("x-forwarded-for", HeaderValue::from_str(&line).unwrap());
        for forwarding in [Forwarding::XForwardedFor, Forwarding::Forwarded] {
            let client = direct().behind(trusted(&["10.0.0.0/8", "::/8"]), forwarding);
            let _ = client.client(Some(Peer::Address(ip("10.0.0.1"))), &headers);
        }
    }
}
