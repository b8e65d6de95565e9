//! # Forwarding headers for the next server
//!
//! A server that forwards a request is a proxy to the next server, and is trusted there. Headers that are not trusted
//! here must not reach the next server as if they were ours. What is known here is appended at the end, where the next
//! server looks for it.
//!
//! | the peer is | forwarded |
//! |---|---|
//! | not trusted | none of its forwarding headers, and the address of the socket |
//! | a trusted proxy | its forwarding header, with its own address appended |
//! | counted by hops | the same, whatever the peer is |

use std::net::IpAddr;

use ::http::header::{FORWARDED, HeaderMap, HeaderName, HeaderValue};
use ::http::{Extensions, Request};

use super::{ClientAddress, Forwarding, Peer, Spoken, Trust, is_trusted};

const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

impl ClientAddress {
    /// Writes the forwarding headers of a request that is forwarded to another server.
    ///
    /// Writes the header that this reads, or `X-Forwarded-For` if it reads none.
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
    /// direct.pass_on(&mut request);
    /// assert_eq!(request.headers()["x-forwarded-for"], "198.51.100.7");
    /// # Ok::<(), http::Error>(())
    /// ```
    pub fn pass_on<B>(&self, request: &mut Request<B>) {
        let peer = self.peer_in(request.extensions());
        self.pass_on_from(peer, request.headers_mut());
    }

    /// As [`pass_on`](ClientAddress::pass_on), for this peer and these headers.
    pub fn pass_on_from(&self, peer: Option<Peer>, headers: &mut HeaderMap) {
        let is_believed = match &self.trust {
            Trust::Nobody => false,
            Trust::Hops(_) => true,
            Trust::Walk(proxies, _) | Trust::Last(proxies, _) => is_trusted(peer, proxies),
        };
        let spoken = self.spoken();
        if !is_believed {
            forget(headers, spoken.name());
        }
        match spoken {
            Spoken::Single(_) if is_believed => {}
            Spoken::Single(name) | Spoken::List(name) => add(headers, name, &plainly(peer)),
            Spoken::Forwarded => add(headers, FORWARDED, &by_the_standard(peer)),
        }
    }

    fn peer_in(&self, extensions: &Extensions) -> Option<Peer> {
        self.peer.peer(extensions).map(Peer::from)
    }

    fn spoken(&self) -> Spoken {
        match &self.trust {
            Trust::Walk(_, spoken) | Trust::Last(_, spoken) => spoken.clone(),
            Trust::Nobody | Trust::Hops(_) => Forwarding::XForwardedFor.spoken(),
        }
    }
}

/// Removes this header and all other forwarding headers: any client can send them.
fn forget(headers: &mut HeaderMap, name: &HeaderName) {
    let is_forwarding = |name: &HeaderName| name.as_str().starts_with("x-forwarded-");
    let known: Vec<HeaderName> = headers.keys().filter(|name| is_forwarding(name)).cloned().collect();
    for name in known.iter().chain([name, &FORWARDED, &X_REAL_IP]) {
        headers.remove(name);
    }
}

/// Appends an entry to a list and joins all its lines to one.
fn add(headers: &mut HeaderMap, name: HeaderName, entry: &str) {
    let lines = headers.get_all(&name).iter().map(HeaderValue::as_bytes);
    let list = lines.chain([entry.as_bytes()]).collect::<Vec<_>>().join(&b", "[..]);
    let list = HeaderValue::from_bytes(&list).expect("header lines and an address");
    headers.insert(name, list);
}

fn plainly(peer: Option<Peer>) -> String {
    address_of(peer).map_or_else(|| "unknown".to_owned(), |address| address.to_string())
}

fn by_the_standard(peer: Option<Peer>) -> String {
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
