//! # Client address
//!
//! The simplest key of a request is the address that it came from. Behind a proxy that is the proxy's address, which
//! all clients share. Proxies name the client in a header, but clients can send the same header. A server that uses the
//! first entry of `X-Forwarded-For`, as many programs do, lets every client choose which limit to use up.
//!
//! So an entry of a header counts only if the proxy that wrote it is trusted. The socket gives the nearest peer. If that is a
//! trusted proxy, the last entry names the peer before it. If that peer is trusted, too, the entry before it counts,
//! and so on. The first address that is not trusted is the client.
//!
//! ```text
//!   X-Forwarded-For: 6.6.6.6, 203.0.113.9, 10.0.0.2        socket: 10.0.0.1      trusted: 10.0.0.0/8
//!                    forged   └─► client   └─► trusted ◄─────────── trusted ◄─── start here
//! ```
//!
//! By default no header is read. At most one header is read, never several: with a fallback from one header to another,
//! clients could choose between them. If an entry cannot be parsed, the walk ends at the last address that could.
//!
//! The module `forward` writes these headers for requests that are forwarded to another server.

mod forward;

use std::fmt;
use std::marker::PhantomData;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use ::http::Extensions;
use ::http::header::{HeaderMap, HeaderName};

use super::forwarded::ForwardingHeader;
use super::head::Head;
use super::key_buf::{InlineKey, KeyBuf, Kind};
use super::network::{Network, TrustedProxies};

/// The peer at the other end of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A peer with this IP address.
    Address(IpAddr),
    /// A program on this machine, connected over a Unix domain socket.
    Local,
}

/// Finds the address of the client that sent a request.
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
/// // Behind trusted proxies:
/// let ours = TrustedProxies::new(["10.0.0.0/8"])?;
/// let behind = direct.behind(ours, Forwarding::XForwardedFor);
/// # Ok::<(), tidegate::http::InvalidProxies>(())
/// ```
///
/// A request with an unknown peer has no address. All such requests share one key.
#[derive(Clone)]
pub struct ClientAddress {
    peer: Arc<dyn FindPeer>,
    trust: Trust,
    v4: Prefix<u32>,
    v6: Prefix<u128>,
}

/// The prefix of an address that is its key: its length in bits, and its mask.
#[derive(Clone, Copy, Debug)]
struct Prefix<M> {
    bits: u8,
    mask: M,
}

/// Finds the peer in the extensions of a request.
trait FindPeer: Send + Sync {
    fn peer(&self, extensions: &Extensions) -> Option<PeerBits>;

    /// Its address, if that is IPv4: a number, which is passed in a register.
    fn v4(&self, extensions: &Extensions) -> Option<u32>;
}

/// The peer as `F` reads it from the extension `T` that the server has set.
struct ExtensionPeer<T, F>(F, PhantomData<fn(&T)>);

impl<T, F> FindPeer for ExtensionPeer<T, F>
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

impl<T, F> ExtensionPeer<T, F>
where
    T: Send + Sync + 'static,
    F: Fn(&T) -> Peer,
{
    #[inline(always)]
    fn find(&self, extensions: &Extensions) -> Option<PeerBits> {
        Some((self.0)(extensions.get::<T>()?).into())
    }
}

/// A peer as numbers.
///
/// Most peers are only turned into a key, and an `IpAddr` is copied byte by byte.
#[derive(Clone, Copy)]
enum PeerBits {
    V4(u32),
    V6(u128),
    Local,
}

/// The header in which trusted proxies name the client.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Forwarding {
    /// `X-Forwarded-For`: a list, read from the right.
    XForwardedFor,
    /// `Forwarded` of RFC 7239: a list, read from the right.
    Forwarded,
    /// One address in a header of a provider, such as `CF-Connecting-IP`.
    ///
    /// The proxies must be that provider's.
    Single(HeaderName),
}

/// Which entry of the header names the client.
#[derive(Clone, Debug)]
enum Trust {
    /// No entry: headers are ignored.
    None,
    /// The first entry from the right that is not a trusted proxy.
    Walk(TrustedProxies, ForwardingHeader),
    /// The last entry, if the peer is trusted.
    Last(TrustedProxies, ForwardingHeader),
    /// The entry this many from the right, whatever the peer is.
    Hops(usize),
}

/// The address of a client, and how reliable it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Client {
    /// The address. `None` for a Unix domain socket, or if it is unknown.
    pub address: Option<IpAddr>,
    /// The source of the address.
    pub source: AddressSource,
    /// Whether an entry could not be parsed, so that the address may be that of a proxy.
    pub is_uncertain: bool,
}

/// The source of a client address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AddressSource {
    /// The socket of the connection.
    Socket,
    /// A header of a trusted proxy.
    Header,
    /// Nothing: the peer is unknown.
    Unknown,
}

impl ClientAddress {
    /// Uses the address of the socket, and ignores headers.
    ///
    /// The server must have left the address in an extension of the request.
    pub fn from_socket<T, F>(address: F) -> Self
    where
        T: Send + Sync + 'static,
        F: Fn(&T) -> SocketAddr + Send + Sync + 'static,
    {
        ClientAddress::from_peer(move |found: &T| Peer::Address(address(found).ip()))
    }

    /// As [`from_socket`](ClientAddress::from_socket), also for Unix domain sockets.
    pub fn from_peer<T, F>(peer: F) -> Self
    where
        T: Send + Sync + 'static,
        F: Fn(&T) -> Peer + Send + Sync + 'static,
    {
        let peer = ExtensionPeer(peer, PhantomData);
        ClientAddress { peer: Arc::new(peer), trust: Trust::None, v4: v4_prefix(32), v6: v6_prefix(64) }
    }

    /// Trusts these proxies to name the client in this header.
    ///
    /// If the address they name is also that of a trusted proxy, the entry before it counts, and so on.
    #[must_use]
    pub fn behind(self, proxies: TrustedProxies, forwarding: Forwarding) -> Self {
        ClientAddress { trust: Trust::Walk(proxies, forwarding.header()), ..self }
    }

    /// Trusts these proxies only for the last entry of this header.
    #[must_use]
    pub fn directly_behind(self, proxies: TrustedProxies, forwarding: Forwarding) -> Self {
        ClientAddress { trust: Trust::Last(proxies, forwarding.header()), ..self }
    }

    /// Takes the entry of `X-Forwarded-For` that is this many from the right.
    ///
    /// The last entry is number 1. With fewer entries, or with 0, the address is the socket's.
    ///
    /// For a known number of proxies with unknown addresses. No other peer may be able to connect, because it could
    /// choose its address. (Envoy counts so with `use_remote_address`; without it, count one more.)
    #[must_use]
    pub fn hops(self, hops: usize) -> Self {
        ClientAddress { trust: Trust::Hops(hops), ..self }
    }

    /// Sets how many bits of an address make up a key.
    ///
    /// The default is 32 bits of IPv4 and 64 bits of IPv6, because a client with one IPv6 address has its whole /64.
    #[must_use]
    pub fn by_prefix(self, v4_bits: u8, v6_bits: u8) -> Self {
        ClientAddress { v4: v4_prefix(v4_bits), v6: v6_prefix(v6_bits), ..self }
    }

    /// Finds the client of a request.
    #[must_use]
    pub fn find(&self, head: &Head<'_>) -> Client {
        self.client(self.peer.peer(head.extensions).map(Peer::from), head.headers)
    }

    /// Finds the client of a request from this peer, with these headers.
    #[must_use]
    pub fn client(&self, peer: Option<Peer>, headers: &HeaderMap) -> Client {
        let socket = Client::at_socket(peer);
        match &self.trust {
            Trust::None | Trust::Hops(0) => socket,
            Trust::Walk(proxies, _) | Trust::Last(proxies, _) if !is_trusted(peer, proxies) => socket,
            Trust::Walk(proxies, header) => walk(socket, proxies, header, headers),
            Trust::Last(_, header) => nth(socket, 1, header, headers),
            Trust::Hops(hops) => nth(socket, *hops, &Forwarding::XForwardedFor.header(), headers),
        }
    }

    /// The network that is the key of this client: its address, cut to the prefix.
    #[must_use]
    pub fn network(&self, client: Client) -> Option<Network> {
        let bits = |address: IpAddr| if address.is_ipv4() { self.v4.bits } else { self.v6.bits };
        client.address.map(|address| Network::of(address, bits(address)))
    }

    /// Writes the client's network as a part of a key: its bits and its first address.
    pub(super) fn write(&self, head: &Head<'_>, key: &mut KeyBuf) {
        match self.find(head).address {
            None => key.part(Kind::Address, |_| ()),
            Some(IpAddr::V4(address)) => key.inline_key(self.inline_v4(address.to_bits())),
            Some(IpAddr::V6(address)) => key.part(Kind::Address6, |key| {
                key.raw(&[self.v6.bits]);
                key.raw(&(address.to_bits() & self.v6.mask).to_be_bytes());
            }),
        }
    }

    /// As [`write`](ClientAddress::write), for IPv4 peers if headers are ignored.
    #[inline]
    pub(super) fn inline_key(&self, extensions: &Extensions) -> Option<InlineKey> {
        match self.trust {
            Trust::None => self.peer.v4(extensions).map(|address| self.inline_v4(address)),
            _ => None,
        }
    }

    #[inline]
    fn inline_v4(&self, address: u32) -> InlineKey {
        InlineKey::from_byte_and_u32(Kind::Address4, self.v4.bits, address & self.v4.mask)
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
    fn header(self) -> ForwardingHeader {
        match self {
            Forwarding::XForwardedFor => ForwardingHeader::List(HeaderName::from_static("x-forwarded-for")),
            Forwarding::Forwarded => ForwardingHeader::Forwarded,
            Forwarding::Single(name) => ForwardingHeader::Single(name),
        }
    }
}

impl Client {
    fn at_socket(peer: Option<Peer>) -> Self {
        let (address, source) = match peer {
            Some(Peer::Address(address)) => (Some(address.to_canonical()), AddressSource::Socket),
            Some(Peer::Local) => (None, AddressSource::Socket),
            None => (None, AddressSource::Unknown),
        };
        Client { address, source, is_uncertain: false }
    }

    fn from_header(address: IpAddr) -> Self {
        Client { address: Some(address), source: AddressSource::Header, is_uncertain: false }
    }

    fn uncertain(self) -> Self {
        Client { is_uncertain: true, ..self }
    }
}

fn is_trusted(peer: Option<Peer>, proxies: &TrustedProxies) -> bool {
    match peer {
        Some(Peer::Address(address)) => proxies.contains(address),
        Some(Peer::Local) => proxies.contains_local_sockets(),
        None => false,
    }
}

/// Skips trusted proxies from the right, and takes the first address that is not trusted.
fn walk(socket: Client, proxies: &TrustedProxies, header: &ForwardingHeader, headers: &HeaderMap) -> Client {
    let mut client = socket;
    for entry in header.read_from_right(headers) {
        let Ok(address) = entry else { return client.uncertain() };
        client = Client::from_header(address);
        if matches!(header, ForwardingHeader::Single(_)) || !proxies.contains(address) {
            break;
        }
    }
    reject_repeated(client, socket, header, headers)
}

/// Takes the entry this many from the right; the last entry is number 1.
fn nth(socket: Client, hops: usize, header: &ForwardingHeader, headers: &HeaderMap) -> Client {
    let client = match header.read_from_right(headers).nth(hops - 1) {
        Some(Ok(address)) => Client::from_header(address),
        Some(Err(_)) => socket.uncertain(),
        None => socket,
    };
    reject_repeated(client, socket, header, headers)
}

/// Ignores a single-value header that occurs twice: the provider has not written both.
fn reject_repeated(client: Client, socket: Client, header: &ForwardingHeader, headers: &HeaderMap) -> Client {
    match header {
        ForwardingHeader::Single(name) if headers.get_all(name).iter().nth(1).is_some() => socket.uncertain(),
        _ => client,
    }
}
