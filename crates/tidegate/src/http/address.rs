//! # Whose request it is
//!
//! The simplest key of a request is the address it came from. Behind a proxy that is the proxy's, and everybody
//! shares it. Proxies say in a header on whose behalf they ask; but so can anybody, and who believes the first entry
//! of `X-Forwarded-For`, as many programs do, lets every client choose whose limit to use up.
//!
//! So a header is believed only as far as those are trusted who wrote it. The socket tells who the nearest is; if
//! that is one of ours, its word is the last entry; if that again is one of ours, the entry before it counts, and so
//! on. The first who is not one of ours is the client.
//!
//! ```text
//!   X-Forwarded-For: 6.6.6.6, 203.0.113.9, 10.0.0.2        socket: 10.0.0.1      trusted: 10.0.0.0/8
//!                    invented └─► client   └─► ours ◄────────────── ours ◄────── begin here
//! ```
//!
//! Without settings no header is looked at. One header is, never several: who may fall through from one to another can
//! choose between them. What cannot be read ends the walk at the last address that could.
//!
//! What is said to those behind us, where a request is passed on, is in `onward`.

mod onward;

use std::fmt;
use std::marker::PhantomData;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use ::http::Extensions;
use ::http::header::{HeaderMap, HeaderName};

use super::forwarded::Spoken;
use super::head::Head;
use super::network::{Network, TrustedProxies};
use super::text::{InlineKey, KeyText, Kind};

/// Who is at the other end of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// This address.
    Address(IpAddr),
    /// A program on this machine, by a socket of the file system.
    Local,
}

/// How the address of a client is found.
///
/// With axum, which leaves the address of the socket in an extension:
///
/// ```
/// # #[derive(Clone)] struct ConnectInfo<T>(T);
/// use std::net::SocketAddr;
/// use tidegate::http::{ClientAddress, Forwarding, TrustedProxies};
///
/// // Headers are ignored:
/// let direct = ClientAddress::from_socket(|ConnectInfo(address): &ConnectInfo<SocketAddr>| *address);
///
/// // Behind proxies of ours:
/// let ours = TrustedProxies::new(["10.0.0.0/8"])?;
/// let behind = direct.behind(ours, Forwarding::XForwardedFor);
/// # Ok::<(), tidegate::http::InvalidProxies>(())
/// ```
///
/// A request of which nobody knows where it came from has no address. As a key, all of these share one.
#[derive(Clone)]
pub struct ClientAddress {
    peer: Arc<dyn FindPeer>,
    trust: Trust,
    v4: Prefix<u32>,
    v6: Prefix<u128>,
}

/// How many bits of an address make a key, and which.
#[derive(Clone, Copy, Debug)]
struct Prefix<M> {
    bits: u8,
    mask: M,
}

/// Finds the peer in the extensions of a request.
trait FindPeer: Send + Sync {
    fn peer(&self, extensions: &Extensions) -> Option<PeerBits>;

    /// Its address, if that is of version 4: a number, which is handed over in a register.
    fn v4(&self, extensions: &Extensions) -> Option<u32>;
}

/// What a server has left in an extension `T`, as `F` reads it.
struct InExtension<T, F>(F, PhantomData<fn(&T)>);

impl<T, F> FindPeer for InExtension<T, F>
where
    T: Send + Sync + 'static,
    F: Fn(&T) -> Peer + Send + Sync,
{
    fn peer(&self, extensions: &Extensions) -> Option<PeerBits> {
        self.find(extensions)
    }

    fn v4(&self, extensions: &Extensions) -> Option<u32> {
        match self.find(extensions)? {
            PeerBits::V4(address) => Some(address),
            PeerBits::V6(_) | PeerBits::Local => None,
        }
    }
}

impl<T, F> InExtension<T, F>
where
    T: Send + Sync + 'static,
    F: Fn(&T) -> Peer,
{
    #[inline(always)]
    fn find(&self, extensions: &Extensions) -> Option<PeerBits> {
        Some((self.0)(extensions.get::<T>()?).into())
    }
}

/// A peer as numbers: most are only looked at to make a key of them, and an address is handed about byte by byte.
#[derive(Clone, Copy)]
enum PeerBits {
    V4(u32),
    V6(u128),
    Local,
}

/// The header that proxies of ours speak in.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Forwarding {
    /// `X-Forwarded-For`: a list, read from the right.
    XForwardedFor,
    /// `Forwarded` of RFC 7239: a list, read from the right.
    Forwarded,
    /// One address in a header of a provider, such as `CF-Connecting-IP`. The proxies have to be that provider's.
    Single(HeaderName),
}

/// Which of the entries of a list counts.
#[derive(Clone, Debug)]
enum Trust {
    Nobody,
    /// The first from the right who is not trusted.
    Walk(TrustedProxies, Spoken),
    /// The last, if the peer is trusted.
    Last(TrustedProxies, Spoken),
    /// So many from the right, whoever the peer is.
    Hops(usize),
}

/// A client, and how sure that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Client {
    /// Its address. `None` for a socket of the file system, or if nobody knows.
    pub address: Option<IpAddr>,
    /// Where that was found.
    pub found: Found,
    /// Whether something could not be read, so that the address may be that of a proxy.
    pub is_doubtful: bool,
}

/// Where an address was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Found {
    /// At the other end of the connection.
    Socket,
    /// In what a proxy said.
    Header,
    /// Nowhere.
    Nowhere,
}

impl ClientAddress {
    /// The address of the socket, which whoever accepts connections has left in an extension of the request. Headers
    /// are ignored.
    pub fn from_socket<T, F>(address: F) -> Self
    where
        T: Send + Sync + 'static,
        F: Fn(&T) -> SocketAddr + Send + Sync + 'static,
    {
        ClientAddress::from_peer(move |found: &T| Peer::Address(address(found).ip()))
    }

    /// As [`from_socket`](ClientAddress::from_socket), where there may be sockets of the file system too.
    pub fn from_peer<T, F>(peer: F) -> Self
    where
        T: Send + Sync + 'static,
        F: Fn(&T) -> Peer + Send + Sync + 'static,
    {
        let peer = InExtension(peer, PhantomData);
        ClientAddress { peer: Arc::new(peer), trust: Trust::Nobody, v4: v4_prefix(32), v6: v6_prefix(64) }
    }

    /// Believes these proxies what they say in this header, and whom they believe.
    #[must_use]
    pub fn behind(self, proxies: TrustedProxies, forwarding: Forwarding) -> Self {
        ClientAddress { trust: Trust::Walk(proxies, forwarding.spoken()), ..self }
    }

    /// Believes these proxies the last address of this header, and nothing before it.
    #[must_use]
    pub fn directly_behind(self, proxies: TrustedProxies, forwarding: Forwarding) -> Self {
        ClientAddress { trust: Trust::Last(proxies, forwarding.spoken()), ..self }
    }

    /// Takes the entry of `X-Forwarded-For` that is so many from the right, the last being the first. With fewer
    /// entries, or with 0, it is the socket's.
    ///
    /// For a known number of proxies whose addresses are not known. Nobody else must be able to connect: whoever can,
    /// chooses. (Envoy counts so with `use_remote_address`; without it, count one more.)
    #[must_use]
    pub fn hops(self, hops: usize) -> Self {
        ClientAddress { trust: Trust::Hops(hops), ..self }
    }

    /// How many bits of an address make a key: 32 of version 4 and 64 of version 6 unless said otherwise, as whoever
    /// has one address of version 6 has its /64.
    #[must_use]
    pub fn by_prefix(self, v4_bits: u8, v6_bits: u8) -> Self {
        ClientAddress { v4: v4_prefix(v4_bits), v6: v6_prefix(v6_bits), ..self }
    }

    /// The client of a request.
    #[must_use]
    pub fn find(&self, head: &Head<'_>) -> Client {
        self.client(self.peer.peer(head.extensions).map(Peer::from), head.headers)
    }

    /// The client of a request from this peer, with these headers.
    #[must_use]
    pub fn client(&self, peer: Option<Peer>, headers: &HeaderMap) -> Client {
        let socket = Client::at(peer);
        match &self.trust {
            Trust::Nobody | Trust::Hops(0) => socket,
            Trust::Walk(proxies, _) | Trust::Last(proxies, _) if !is_trusted(peer, proxies) => socket,
            Trust::Walk(proxies, spoken) => walk(socket, proxies, spoken, headers),
            Trust::Last(_, spoken) => nth(socket, 1, spoken, headers),
            Trust::Hops(hops) => nth(socket, *hops, &Forwarding::XForwardedFor.spoken(), headers),
        }
    }

    /// The network that the client is limited as.
    #[must_use]
    pub fn network(&self, client: Client) -> Option<Network> {
        let bits = |address: IpAddr| if address.is_ipv4() { self.v4.bits } else { self.v6.bits };
        client.address.map(|address| Network::of(address, bits(address)))
    }

    /// Writes the network of the client as a part of a key: its bits and its first address.
    pub(super) fn write(&self, head: &Head<'_>, key: &mut KeyText) {
        match self.find(head).address {
            None => key.part(Kind::Address, |_| ()),
            Some(IpAddr::V4(address)) => key.inline_key(self.brief_v4(address.to_bits())),
            Some(IpAddr::V6(address)) => key.part(Kind::Address6, |key| {
                key.raw(&[self.v6.bits]);
                key.raw(&(address.to_bits() & self.v6.mask).to_be_bytes());
            }),
        }
    }

    /// The same, of most clients of version 4.
    #[inline]
    pub(super) fn inline_key(&self, extensions: &Extensions) -> Option<InlineKey> {
        match self.trust {
            Trust::Nobody => self.peer.v4(extensions).map(|address| self.brief_v4(address)),
            _ => None,
        }
    }

    #[inline]
    fn brief_v4(&self, address: u32) -> InlineKey {
        InlineKey::five(Kind::Address4, self.v4.bits, address & self.v4.mask)
    }
}

impl fmt::Debug for ClientAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientAddress")
            .field("trust", &self.trust)
            .field("v4_bits", &self.v4.bits)
            .field("v6_bits", &self.v6.bits)
            .finish_non_exhaustive()
    }
}

fn v4_prefix(bits: u8) -> Prefix<u32> {
    let bits = bits.min(32);
    Prefix { bits, mask: u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0) }
}

fn v6_prefix(bits: u8) -> Prefix<u128> {
    let bits = bits.min(128);
    Prefix { bits, mask: u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0) }
}

impl From<Peer> for PeerBits {
    #[inline]
    fn from(peer: Peer) -> Self {
        match peer {
            Peer::Address(IpAddr::V4(address)) => PeerBits::V4(address.to_bits()),
            Peer::Address(IpAddr::V6(address)) => match address.to_ipv4_mapped() {
                Some(mapped) => PeerBits::V4(mapped.to_bits()),
                None => PeerBits::V6(address.to_bits()),
            },
            Peer::Local => PeerBits::Local,
        }
    }
}

impl From<PeerBits> for Peer {
    fn from(peer: PeerBits) -> Self {
        match peer {
            PeerBits::V4(bits) => Peer::Address(Ipv4Addr::from_bits(bits).into()),
            PeerBits::V6(bits) => Peer::Address(Ipv6Addr::from_bits(bits).into()),
            PeerBits::Local => Peer::Local,
        }
    }
}

impl From<SocketAddr> for Peer {
    fn from(address: SocketAddr) -> Self {
        Peer::Address(address.ip())
    }
}

impl Forwarding {
    fn spoken(self) -> Spoken {
        match self {
            Forwarding::XForwardedFor => Spoken::List(HeaderName::from_static("x-forwarded-for")),
            Forwarding::Forwarded => Spoken::Forwarded,
            Forwarding::Single(name) => Spoken::Single(name),
        }
    }
}

impl Client {
    fn at(peer: Option<Peer>) -> Self {
        let (address, found) = match peer {
            Some(Peer::Address(address)) => (Some(address.to_canonical()), Found::Socket),
            Some(Peer::Local) => (None, Found::Socket),
            None => (None, Found::Nowhere),
        };
        Client { address, found, is_doubtful: false }
    }

    fn said(address: IpAddr) -> Self {
        Client { address: Some(address), found: Found::Header, is_doubtful: false }
    }

    fn doubtful(self) -> Self {
        Client { is_doubtful: true, ..self }
    }
}

fn is_trusted(peer: Option<Peer>, proxies: &TrustedProxies) -> bool {
    match peer {
        Some(Peer::Address(address)) => proxies.contains(address),
        Some(Peer::Local) => proxies.contains_local_sockets(),
        None => false,
    }
}

/// From the right, past everybody who is trusted.
fn walk(socket: Client, proxies: &TrustedProxies, spoken: &Spoken, headers: &HeaderMap) -> Client {
    let mut client = socket;
    for entry in spoken.read_from_right(headers) {
        let Ok(address) = entry else { return client.doubtful() };
        client = Client::said(address);
        if matches!(spoken, Spoken::Single(_)) || !proxies.contains(address) {
            break;
        }
    }
    single(client, socket, spoken, headers)
}

/// So many from the right, the last being the first.
fn nth(socket: Client, hops: usize, spoken: &Spoken, headers: &HeaderMap) -> Client {
    let client = match spoken.read_from_right(headers).nth(hops - 1) {
        Some(Ok(address)) => Client::said(address),
        Some(Err(_)) => socket.doubtful(),
        None => socket,
    };
    single(client, socket, spoken, headers)
}

/// A header of one value that comes twice was not only written by the provider.
fn single(client: Client, socket: Client, spoken: &Spoken, headers: &HeaderMap) -> Client {
    match spoken {
        Spoken::Single(name) if headers.get_all(name).iter().nth(1).is_some() => socket.doubtful(),
        _ => client,
    }
}
