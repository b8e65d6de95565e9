//! # Requests that a web page sends
//!
//! A browser sends what any page tells it to, to this machine too. What protects a listener without a token is what a page cannot
//! choose: the headers `Origin` and `Host`, and a `Content-Type` that a page may not send elsewhere without asking first.
//!
//! | header | what passes |
//! |---|---|
//! | `Origin` | none, or that of this listener itself, by an allowed name |
//! | `Host`, where only this machine can connect | an allowed name; for `/metrics` any address, too |
//! | `Content-Type`, with POST | `application/json` |
//!
//! Allowed are the loopback names and addresses, and the `hosts` of the listener. A name that an attacker has pointed at this
//! machine (DNS rebinding) is none of them. Probes pass always.

use std::net::IpAddr;

use hyper::StatusCode;

use super::head::Head;
use super::problem::Problem;

/// Which requests pass without a token.
#[derive(Clone, Debug, Default)]
pub(crate) struct Guard {
    hosts: Vec<String>,
    /// Whether `Host` has to be allowed.
    checks_host: bool,
}

impl Guard {
    /// These names are allowed beside those of loopback. `Host` is looked at where only this machine can connect: elsewhere the
    /// names that lead here are not known.
    pub(crate) fn new(hosts: &[String], is_loopback: bool) -> Self {
        Guard { hosts: hosts.to_vec(), checks_host: is_loopback || !hosts.is_empty() }
    }

    pub(super) fn check(&self, head: &Head<'_>) -> Result<(), Problem> {
        if let Some(origin) = head.origin
            && !self.is_own(origin, head.host)
        {
            return Err(forbidden(
                "Origin",
                origin,
                "ask from a program, not from a page of another site, or use a token",
            ));
        }
        let is_address = |host: &[u8]| address(name(host)).is_some();
        let is_metrics = head.path == "/metrics";
        if self.checks_host
            && let Some(host) = head.host
            && !(self.allows(host) || is_metrics && is_address(host))
        {
            return Err(forbidden(
                "Host",
                host,
                "use localhost, list the name in `hosts` of the listener, or use a token",
            ));
        }
        let content_type = head.content_type.unwrap_or_default();
        let essence = content_type.split(|byte| *byte == b';').next().unwrap_or_default();
        if head.method == "POST" && !essence.trim_ascii().eq_ignore_ascii_case(b"application/json") {
            return Err(forbidden(
                "Content-Type",
                content_type,
                "send `Content-Type: application/json`, or use a token",
            ));
        }
        Ok(())
    }

    /// Whether a page with this origin came from this listener itself.
    fn is_own(&self, origin: &[u8], host: Option<&[u8]>) -> bool {
        let authority = origin.strip_prefix(b"http://").or_else(|| origin.strip_prefix(b"https://"));
        match (authority, host) {
            (Some(authority), Some(host)) => authority.eq_ignore_ascii_case(host) && self.allows(host),
            _ => false,
        }
    }

    fn allows(&self, host: &[u8]) -> bool {
        let name = name(host);
        let is_localhost = name.eq_ignore_ascii_case(b"localhost") || ends_with(name, b".localhost");
        let is_loopback = || address(name).is_some_and(|address| address.to_canonical().is_loopback());
        is_localhost
            || is_loopback()
            || self.hosts.iter().any(|host| name.eq_ignore_ascii_case(host.as_bytes()))
    }
}

/// A host without its port. An address of IPv6 keeps its brackets.
fn name(host: &[u8]) -> &[u8] {
    let from =
        if host.starts_with(b"[") { host.iter().position(|byte| *byte == b']').unwrap_or(0) } else { 0 };
    let end = host[from..].iter().position(|byte| *byte == b':').map_or(host.len(), |colon| from + colon);
    &host[..end]
}

fn address(name: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(name).ok()?;
    match text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(inner) => inner.parse().ok().map(IpAddr::V6),
        None => text.parse().ok().map(IpAddr::V4),
    }
}

fn ends_with(name: &[u8], end: &[u8]) -> bool {
    name.len() > end.len() && name[name.len() - end.len()..].eq_ignore_ascii_case(end)
}

fn forbidden(header: &str, value: &[u8], remedy: &str) -> Problem {
    let value = &value[..value.len().min(100)];
    let detail = format!(
        "the {header} {:?} is not accepted without a token; {remedy}",
        value.escape_ascii().to_string()
    );
    Problem::new(StatusCode::FORBIDDEN, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(guard: &Guard, text: &str) -> bool {
        let text = format!("{text}\r\n\r\n");
        let (head, _) = Head::read(text.as_bytes()).expect("a head").expect("all of it");
        guard.check(&head).is_ok()
    }

    #[test]
    fn only_names_of_this_machine_and_those_listed_are_allowed() {
        let guard = Guard::new(&["limits.internal".to_owned()], true);
        let good = [
            "localhost",
            "LOCALHOST:9090",
            "a.localhost",
            "127.0.0.1:9090",
            "127.9.9.9",
            "[::1]:9090",
            "[::1]",
            "[::ffff:127.0.0.1]",
            "limits.internal",
            "Limits.Internal:80",
        ];
        let bad = [
            "evil.com",
            "localhost.evil.com",
            "evil.com:localhost",
            "xlocalhost",
            ".localhost",
            "10.0.0.1",
            "[::2]",
            "127.0.0.1.evil.com",
            "0x7f.1",
            "",
            "[::1].evil.com",
            "limits.internal.evil.com",
        ];
        for (hosts, expected) in [(&good[..], true), (&bad[..], false)] {
            for host in hosts {
                let get = format!("GET /admin/rules HTTP/1.1\r\nhost: {host}");
                assert_eq!(passes(&guard, &get), expected, "{host}");
            }
        }
        assert!(passes(&guard, "GET /metrics HTTP/1.1\r\nhost: 10.0.0.1:9090"));
        assert!(!passes(&guard, "GET /metrics HTTP/1.1\r\nhost: evil.com"));
        let everywhere = Guard::new(&[], false);
        assert!(passes(&everywhere, "GET /admin/rules HTTP/1.1\r\nhost: limits"));
    }

    #[test]
    fn a_page_of_another_site_is_refused_whatever_it_sends() {
        for guard in [Guard::new(&[], true), Guard::new(&[], false)] {
            let post = "POST /v1/check HTTP/1.1\r\nhost: localhost:8080\r\ncontent-type: application/json";
            let good = ["", "\r\norigin: http://localhost:8080", "\r\norigin: https://LOCALHOST:8080"];
            let bad = [
                "http://evil.com",
                "null",
                "",
                "http://localhost:3000",
                "localhost:8080",
                "http://localhost:8080.evil.com",
            ];
            assert!(good.iter().all(|origin| passes(&guard, &format!("{post}{origin}"))));
            for origin in bad {
                assert!(!passes(&guard, &format!("{post}\r\norigin: {origin}")), "{origin}");
            }
            let rebound = "POST /v1/check HTTP/1.1\r\nhost: evil.com\r\ncontent-type: application/json";
            assert!(!passes(&guard, &format!("{rebound}\r\norigin: http://evil.com")), "DNS rebinding");
        }
    }

    #[test]
    fn a_change_is_sent_as_json() {
        let guard = Guard::new(&[], true);
        let post = "POST /v1/reset HTTP/1.1\r\nhost: localhost";
        for good in ["application/json", "Application/JSON", "application/json; charset=utf-8"] {
            assert!(passes(&guard, &format!("{post}\r\ncontent-type: {good}")), "{good}");
        }
        for bad in [
            "text/plain",
            "application/x-www-form-urlencoded",
            "text/plain; application/json",
            "application/jsonp",
            "",
        ] {
            assert!(!passes(&guard, &format!("{post}\r\ncontent-type: {bad}")), "{bad}");
        }
        assert!(!passes(&guard, post));
    }
}
