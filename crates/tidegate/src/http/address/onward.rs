//! # What goes on to those behind us
//!
//! Whoever passes a request on to another server speaks to it as a proxy, and is believed. Headers that we did not
//! believe must not reach it as if they were ours, and what we know has to be added at the end, where it is looked for.
//!
//! | who has connected | what goes on |
//! |---|---|
//! | somebody | nothing of what was said about forwarding, and the address of the socket |
//! | a proxy of ours | what it said, and its address after that |
//! | counted by hops | the same, whoever it is |

use std::net::IpAddr;

use ::http::header::{FORWARDED, HeaderMap, HeaderName, HeaderValue};
use ::http::{Extensions, Request};

use super::{ClientAddress, Forwarding, Peer, Spoken, Trust, is_trusted};

const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

impl ClientAddress {
    /// Sees to the forwarding headers of a request that is passed on to another server, in the header that this looks
    /// at; in `X-Forwarded-For` if it looks at none.
    ///
    /// Of somebody who is no proxy of ours, `Forwarded`, `X-Forwarded-*` and `X-Real-IP` are removed; the address of
    /// the socket takes their place. The word of a proxy of ours stays, and its own address is added. A provider's
    /// header of one value stays as it is.
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

    /// As [`pass_on`](ClientAddress::pass_on), for a request from this peer, with these headers.
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

/// Removes what anybody may have written, under this name and under all that others look at.
fn forget(headers: &mut HeaderMap, name: &HeaderName) {
    let is_forwarding = |name: &HeaderName| name.as_str().starts_with("x-forwarded-");
    let known: Vec<HeaderName> = headers.keys().filter(|name| is_forwarding(name)).cloned().collect();
    for name in known.iter().chain([name, &FORWARDED, &X_REAL_IP]) {
        headers.remove(name);
    }
}

/// Adds an entry at the end of a list, all of which is one line then.
fn add(headers: &mut HeaderMap, name: HeaderName, entry: &str) {
    let lines = headers.get_all(&name).iter().map(HeaderValue::as_bytes);
    let list = lines.chain([entry.as_bytes()]).collect::<Vec<_>>().join(&b", "[..]);
    let list = HeaderValue::from_bytes(&list).expect("lines of headers, and an address");
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
