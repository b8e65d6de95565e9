//! # Forwarding headers for the next server
//!
//! A server that forwards a request is a trusted proxy to the next server. Headers that are not trusted here must not
//! reach the next server as if this server had written them. The address that this server knows is appended at the end,
//! where the next server reads it.
//!
//! | the peer is | forwarded |
//! |---|---|
//! | not trusted | none of its forwarding headers, and the address of the socket |
//! | a trusted proxy | its forwarding header, with its own address appended |
//! | counted by hops | the same, whatever the peer is |

use std::net::IpAddr;

use ::http::header::{FORWARDED, HeaderMap, HeaderName, HeaderValue};
use ::http::{Extensions, Request};

use super::{ClientAddress, Forwarding, ForwardingHeader, Peer, Trust, is_trusted};

const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

impl ClientAddress {
    /// Sets the forwarding headers of a request before it is forwarded to another server.
    ///
    /// Writes the header that this `ClientAddress` reads, or `X-Forwarded-For` if it ignores headers.
    ///
    /// If the peer is not a trusted proxy, `Forwarded`, `X-Forwarded-*` and `X-Real-IP` are removed, and the address of
    /// the socket takes their place. The header of a trusted proxy stays, and the proxy's own address is appended. A
    /// provider's header of one value stays as it is.
    ///
    /// ```
    /// use std::net::SocketAddr;
    /// use http::Request;
    /// use tidegate::http::ClientAddress;
    ///
    /// let direct = ClientAddress::from_socket(|address: &SocketAddr| *address);
    /// let mut request = Request::get("/").header("x-forwarded-for", "1.2.3.4").body(())?;
    /// request.extensions_mut().insert(SocketAddr::from(([198, 51, 100, 7], 4711)));
    /// direct.write_forwarding(&mut request);
    /// assert_eq!(request.headers()["x-forwarded-for"], "198.51.100.7");
    /// # Ok::<(), http::Error>(())
    /// ```
    pub fn write_forwarding<B>(&self, request: &mut Request<B>) {
        let peer = self.peer_in(request.extensions());
        self.write_forwarding_from(peer, request.headers_mut());
    }

    /// Sets forwarding headers, given the peer.
    ///
    /// Otherwise as [`write_forwarding`](ClientAddress::write_forwarding).
    pub fn write_forwarding_from(&self, peer: Option<Peer>, headers: &mut HeaderMap) {
        let is_trusted_peer = match &self.trust {
            Trust::None => false,
            Trust::Hops(_) => true,
            Trust::Walk(proxies, _) | Trust::Last(proxies, _) => is_trusted(peer, proxies),
        };
        let header = self.header();
        if !is_trusted_peer {
            remove_forwarding(headers, header.name());
        }
        match header {
            ForwardingHeader::Single(_) if is_trusted_peer => {}
            ForwardingHeader::Single(name) | ForwardingHeader::List(name) => {
                append(headers, name, &list_entry(peer))
            }
            ForwardingHeader::Forwarded => append(headers, FORWARDED, &forwarded_entry(peer)),
        }
    }

    fn peer_in(&self, extensions: &Extensions) -> Option<Peer> {
        self.peer.peer(extensions).map(Peer::from)
    }

    fn header(&self) -> ForwardingHeader {
        match &self.trust {
            Trust::Walk(_, header) | Trust::Last(_, header) => header.clone(),
            Trust::None | Trust::Hops(_) => Forwarding::XForwardedFor.header(),
        }
    }
}

/// Removes this header and all other forwarding headers: any client can send them.
fn remove_forwarding(headers: &mut HeaderMap, name: &HeaderName) {
    let is_forwarding = |name: &HeaderName| name.as_str().starts_with("x-forwarded-");
    let names: Vec<HeaderName> = headers.keys().filter(|name| is_forwarding(name)).cloned().collect();
    for name in names.iter().chain([name, &FORWARDED, &X_REAL_IP]) {
        headers.remove(name);
    }
}

/// Appends an entry to a list and joins all its lines to one.
fn append(headers: &mut HeaderMap, name: HeaderName, entry: &str) {
    let lines = headers.get_all(&name).iter().map(HeaderValue::as_bytes);
    let list = lines.chain([entry.as_bytes()]).collect::<Vec<_>>().join(&b", "[..]);
    let list = HeaderValue::from_bytes(&list).expect("header lines and an address");
    headers.insert(name, list);
}

fn list_entry(peer: Option<Peer>) -> String {
    address_of(peer).map_or_else(|| "unknown".to_owned(), |address| address.to_string())
}

fn forwarded_entry(peer: Option<Peer>) -> String {
    match address_of(peer) {
        Some(IpAddr::V4(address)) => format!("for={address}"),
        Some(IpAddr::V6(address)) => format!("for=\"[{address}]\""),
        None => "for=unknown".to_owned(),
    }
}

fn address_of(peer: Option<Peer>) -> Option<IpAddr> {
    match peer {
        Some(Peer::Address(address)) => Some(address.to_canonical()),
        Some(Peer::Local) | None => None,
    }
}
