//! # Networks and trusted proxies
//!
//! A trusted proxy may name the client that it forwards for. If every address were trusted, every client could name any
//! address and bypass its limit. So a list of all addresses is rejected when it is built, and so is a list of all public
//! addresses, which leaves out only networks such as `127.0.0.0/8`.

use std::error::Error;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A network: the addresses that share a prefix, such as `10.0.0.0/8`.
///
/// ```
/// use tidegate::http::Network;
/// let network: Network = "10.0.0.0/8".parse()?;
/// assert!(network.contains("10.1.2.3".parse().unwrap()));
/// assert!("10.0.0.1/8".parse::<Network>().is_err()); // ambiguous: 10.0.0.0/8 or 10.0.0.1
/// # Ok::<(), tidegate::http::InvalidProxies>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    first: IpAddr,
    bits: u8,
}

/// The proxies that are trusted to name the client they forward for.
///
/// ```
/// use tidegate::http::TrustedProxies;
/// let ours = TrustedProxies::new(["10.0.0.0/8", "2001:db8::/32", "127.0.0.1"])?;
/// assert!(TrustedProxies::new(["0.0.0.0/1", "128.0.0.0/1"]).is_err()); // the whole Internet
/// # Ok::<(), tidegate::http::InvalidProxies>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustedProxies {
    networks: Box<[Network]>,
    local_sockets: bool,
}

/// Why a list of proxies is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidProxies {
    /// An entry is neither an address nor a network.
    NotANetwork {
        /// The entry.
        entry: String,
    },
    /// An entry has a prefix length, and bits of its address after the prefix are set.
    HostBitsSet {
        /// The entry.
        entry: String,
        /// The network that contains the address.
        network: Network,
    },
    /// The entries together cover the whole Internet, of IPv4 or of IPv6.
    WholeInternet,
    /// The list is empty.
    Empty,
}

// === impl Network ===

impl Network {
    /// Returns the network of `address` with `bits` prefix bits, or with all there are.
    #[inline]
    #[must_use]
    pub fn of(address: IpAddr, bits: u8) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => {
                let bits = bits.min(32);
                let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
                Network { first: Ipv4Addr::from_bits(address.to_bits() & mask).into(), bits }
            }
            IpAddr::V6(address) => {
                let bits = bits.min(128);
                let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
                Network { first: Ipv6Addr::from_bits(address.to_bits() & mask).into(), bits }
            }
        }
    }

    /// The first address.
    #[must_use]
    pub const fn first(&self) -> IpAddr {
        self.first
    }

    /// The length of the prefix, in bits.
    #[must_use]
    pub const fn bits(&self) -> u8 {
        self.bits
    }

    /// Whether the network contains the address.
    ///
    /// An IPv4-mapped IPv6 address counts as IPv4.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        Network::of(address, self.bits) == *self
    }

    /// The first and the last address, as numbers.
    fn range(&self) -> (u128, u128) {
        match self.first {
            IpAddr::V4(first) => {
                let rest = u32::MAX.checked_shr(self.bits.into()).unwrap_or(0);
                (first.to_bits().into(), (first.to_bits() | rest).into())
            }
            IpAddr::V6(first) => {
                let rest = u128::MAX.checked_shr(self.bits.into()).unwrap_or(0);
                (first.to_bits(), first.to_bits() | rest)
            }
        }
    }
}

impl FromStr for Network {
    type Err = InvalidProxies;

    fn from_str(entry: &str) -> Result<Self, InvalidProxies> {
        let invalid = || InvalidProxies::NotANetwork { entry: entry.to_owned() };
        let (text, bits) = match entry.split_once('/') {
            Some((text, bits)) => (text, Some(number(bits).ok_or_else(invalid)?)),
            None => (entry, None),
        };
        let address: IpAddr = text.parse().map_err(|_| invalid())?;
        let max = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(max);
        if bits > max {
            return Err(invalid());
        }
        let network = match address.to_canonical() {
            IpAddr::V4(_) if address.is_ipv6() && bits >= 96 => Network::of(address, bits - 96),
            IpAddr::V4(_) if address.is_ipv6() => return Err(invalid()),
            address => Network::of(address, bits),
        };
        if network.first != address.to_canonical() {
            return Err(InvalidProxies::HostBitsSet { entry: entry.to_owned(), network });
        }
        Ok(network)
    }
}

/// Parses a decimal number without a sign and without leading zeros.
fn number(text: &str) -> Option<u8> {
    text.parse().ok().filter(|number: &u8| number.to_string() == text)
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.bits)
    }
}

// === impl TrustedProxies ===

impl TrustedProxies {
    /// Trusts these networks and addresses.
    ///
    /// # Errors
    ///
    /// [`InvalidProxies`] if an entry is not a network, if the list is empty, or if it covers the whole Internet.
    pub fn new<'a>(entries: impl IntoIterator<Item = &'a str>) -> Result<Self, InvalidProxies> {
        let networks = entries.into_iter().map(str::parse).collect::<Result<Box<[Network]>, _>>()?;
        if networks.is_empty() {
            return Err(InvalidProxies::Empty);
        }
        if covers_all(&networks, IpAddr::is_ipv4, &PUBLIC_4)
            || covers_all(&networks, IpAddr::is_ipv6, &PUBLIC_6)
        {
            return Err(InvalidProxies::WholeInternet);
        }
        Ok(TrustedProxies { networks, local_sockets: false })
    }

    /// Also trusts peers on Unix domain sockets, which have no address.
    #[must_use]
    pub fn and_local_sockets(self) -> Self {
        TrustedProxies { local_sockets: true, ..self }
    }

    /// Whether this address is that of a trusted proxy.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.networks.iter().any(|network| network.contains(address))
    }

    pub(super) fn contains_local_sockets(&self) -> bool {
        self.local_sockets
    }
}

/// The ranges of IPv4 addresses on the Internet: first and last address, as numbers.
///
/// The gaps between them are networks for private and special use.
const PUBLIC_4: [(u128, u128); 7] = [
    (0x0100_0000, 0x09ff_ffff), // up to 10.0.0.0/8
    (0x0b00_0000, 0x643f_ffff), // up to 100.64.0.0/10
    (0x6480_0000, 0x7eff_ffff), // up to 127.0.0.0/8
    (0x8000_0000, 0xa9fd_ffff), // up to 169.254.0.0/16
    (0xa9ff_0000, 0xac0f_ffff), // up to 172.16.0.0/12
    (0xac20_0000, 0xc0a7_ffff), // up to 192.168.0.0/16
    (0xc0a9_0000, 0xdfff_ffff), // up to 224.0.0.0/3
];
/// 2000::/3, the IPv6 addresses on the Internet.
const PUBLIC_6: [(u128, u128); 1] = [(0x2 << 124, (0x4 << 124) - 1)];

/// Whether the networks of one IP version cover all of these public ranges.
fn covers_all(networks: &[Network], is_version: fn(&IpAddr) -> bool, public: &[(u128, u128)]) -> bool {
    let of_version = networks.iter().filter(|network| is_version(&network.first));
    let mut ranges: Vec<_> = of_version.map(Network::range).collect();
    ranges.sort_unstable();
    public.iter().all(|(first, last)| first_uncovered(&ranges, *first).is_none_or(|address| address > *last))
}

/// The first address from this one on that is in none of these sorted ranges.
///
/// `None` if there is no such address.
fn first_uncovered(ranges: &[(u128, u128)], from: u128) -> Option<u128> {
    ranges.iter().try_fold(
        from,
        |next, (first, end)| {
            if *first <= next && next <= *end { end.checked_add(1) } else { Some(next) }
        },
    )
}

// === impl InvalidProxies ===

impl fmt::Display for InvalidProxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InvalidProxies::NotANetwork { entry } => {
                write!(
                    f,
                    "{entry:?} is neither an address nor a network; write 10.0.0.7, 10.0.0.0/8 or 2001:db8::/32"
                )
            }
            InvalidProxies::HostBitsSet { entry, network } => {
                write!(
                    f,
                    "{entry:?} has bits set after its prefix; write the network {network}, or the address without a prefix"
                )
            }
            InvalidProxies::WholeInternet => f.write_str(
                "the trusted proxies cover the whole Internet, so any client could forge its address; list only your own \
                 proxies",
            ),
            InvalidProxies::Empty => f.write_str("the list of trusted proxies is empty; add a proxy, or do not read forwarding headers"),
        }
    }
}

impl Error for InvalidProxies {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Networks that together cover every address but this one.
    fn all_but(address: Ipv4Addr) -> Vec<String> {
        let sibling =
            |bits: u8| Network::of(Ipv4Addr::from_bits(address.to_bits() ^ 1 << (32 - bits)).into(), bits);
        (1..=32).map(|bits| sibling(bits).to_string()).collect()
    }

    fn list<S: AsRef<str>>(entries: &[S]) -> Result<(), InvalidProxies> {
        TrustedProxies::new(entries.iter().map(AsRef::as_ref)).map(|_| ())
    }

    #[test]
    fn lists_that_cover_all_addresses_are_rejected() {
        let mut entries = all_but(Ipv4Addr::new(203, 0, 113, 9));
        assert_eq!(list(&entries), Ok(()), "one address is left out: {entries:?}");
        entries.push("203.0.113.9".to_owned());
        assert_eq!(list(&entries), Err(InvalidProxies::WholeInternet));
        for internet in [
            &["0.0.0.0/0"][..],
            &["::/0"],
            &["10.0.0.0/8", "::ffff:0.0.0.0/96"],
            &["8000::/1", "::/1"],
            &["0.0.0.0/1", "128.0.0.0/2", "192.0.0.0/3"],
            &["2000::/3"],
            &["2000::/4", "3000::/4", "10.0.0.0/8"],
        ] {
            assert_eq!(list(internet), Err(InvalidProxies::WholeInternet), "{internet:?}");
        }
        assert_eq!(list(&["8000::/1", "::/3", "128.0.0.0/1"]), Ok(()));
        assert_eq!(list(&["2000::/4", "128.0.0.0/2", "192.0.0.0/3"]), Ok(()));
    }

    #[test]
    fn lists_that_cover_all_public_addresses_are_rejected() {
        for left_out in
            ["10.1.2.3", "127.0.0.1", "255.255.255.255", "0.0.0.0", "192.168.0.1", "172.31.255.255"]
        {
            let entries = all_but(left_out.parse().unwrap());
            assert_eq!(list(&entries), Err(InvalidProxies::WholeInternet), "{left_out}");
        }
        for left_out in ["1.0.0.0", "9.255.255.255", "11.0.0.0", "172.32.0.0", "223.255.255.255"] {
            assert_eq!(list(&all_but(left_out.parse().unwrap())), Ok(()), "{left_out}");
        }
    }

    #[test]
    fn invalid_entries_are_rejected_with_a_remedy() {
        for entry in [
            "",
            "/",
            "10.0.0.0/33",
            "10.0.0.0/-1",
            "10.0.0.0/+8",
            "10.0.0.0/08",
            "10.0.0.0/",
            "10.0.0.0/8/8",
            "10.0.0/8",
            "::1/129",
            "::ffff:1.2.3.4/95",
            "x",
        ] {
            let message = TrustedProxies::new([entry]).unwrap_err().to_string();
            assert!(
                message.contains("write 10.0.0.7") && message.contains(&format!("{entry:?}")),
                "{message}"
            );
        }
        let message = TrustedProxies::new(["192.0.2.1/24"]).unwrap_err().to_string();
        assert!(message.contains("192.0.2.0/24"), "{message}");
        assert_eq!(TrustedProxies::new([]), Err(InvalidProxies::Empty));
    }
}
