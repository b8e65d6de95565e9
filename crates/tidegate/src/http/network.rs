//! # Networks and those one trusts
//!
//! A proxy that is trusted may say on whose behalf it asks. Who trusts the whole world lets everybody say that, which
//! is no limit at all; such a list is refused when it is made, and so is one that amounts to it.

use std::error::Error;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// The addresses that begin with the same bits, such as `10.0.0.0/8`.
///
/// ```
/// use tidegate::http::Network;
/// let network: Network = "10.0.0.0/8".parse()?;
/// assert!(network.contains("10.1.2.3".parse().unwrap()));
/// assert!("10.0.0.1/8".parse::<Network>().is_err()); // 10.0.0.0/8 is meant, or 10.0.0.1
/// # Ok::<(), tidegate::http::InvalidProxies>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    first: IpAddr,
    bits: u8,
}

/// Proxies that are believed when they say on whose behalf they ask.
///
/// ```
/// use tidegate::http::TrustedProxies;
/// let ours = TrustedProxies::new(["10.0.0.0/8", "2001:db8::/32", "127.0.0.1"])?;
/// assert!(TrustedProxies::new(["0.0.0.0/1", "128.0.0.0/1"]).is_err()); // that is everybody
/// # Ok::<(), tidegate::http::InvalidProxies>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustedProxies {
    networks: Box<[Network]>,
    local_sockets: bool,
}

/// Why a list of proxies is none.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidProxies {
    /// An entry is neither an address nor a network.
    NotANetwork {
        /// The entry.
        entry: String,
    },
    /// An entry names an address inside a network as if it were its first.
    NotTheFirst {
        /// The entry.
        entry: String,
        /// The network it is in.
        network: Network,
    },
    /// Together they are the whole world, of version 4 or of version 6.
    Everybody,
    /// There are none.
    Nobody,
}

// === impl Network ===

impl Network {
    /// The network of `address` with so many bits, or all there are.
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

    /// Its first address.
    #[must_use]
    pub const fn first(&self) -> IpAddr {
        self.first
    }

    /// How many bits its addresses share.
    #[must_use]
    pub const fn bits(&self) -> u8 {
        self.bits
    }

    /// Whether the address is one of it. One of version 4 that is written as one of version 6 is one of version 4.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        Network::of(address, self.bits) == *self
    }

    /// Its first and last address, as numbers.
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
        let none = || InvalidProxies::NotANetwork { entry: entry.to_owned() };
        let (text, bits) = match entry.split_once('/') {
            Some((text, bits)) => (text, Some(bits.parse::<u8>().map_err(|_| none())?)),
            None => (entry, None),
        };
        let address: IpAddr = text.parse().map_err(|_| none())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(most);
        if bits > most {
            return Err(none());
        }
        let network = match address.to_canonical() {
            IpAddr::V4(_) if address.is_ipv6() && bits >= 96 => Network::of(address, bits - 96),
            IpAddr::V4(_) if address.is_ipv6() => return Err(none()),
            address => Network::of(address, bits),
        };
        if network.first != address.to_canonical() {
            return Err(InvalidProxies::NotTheFirst { entry: entry.to_owned(), network });
        }
        Ok(network)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.bits)
    }
}

// === impl TrustedProxies ===

impl TrustedProxies {
    /// These networks and addresses.
    ///
    /// # Errors
    ///
    /// [`InvalidProxies`] if an entry is no network, if there are none, or if they are everybody.
    pub fn new<'a>(entries: impl IntoIterator<Item = &'a str>) -> Result<Self, InvalidProxies> {
        let networks = entries.into_iter().map(str::parse).collect::<Result<Box<[Network]>, _>>()?;
        if networks.is_empty() {
            return Err(InvalidProxies::Nobody);
        }
        if is_everybody(&networks, IpAddr::is_ipv4, u32::MAX.into())
            || is_everybody(&networks, IpAddr::is_ipv6, u128::MAX)
        {
            return Err(InvalidProxies::Everybody);
        }
        Ok(TrustedProxies { networks, local_sockets: false })
    }

    /// Also whoever comes by a socket of this machine's file system, which has no address.
    #[must_use]
    pub fn and_local_sockets(self) -> Self {
        TrustedProxies { local_sockets: true, ..self }
    }

    /// Whether this address is one of them.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.networks.iter().any(|network| network.contains(address))
    }

    pub(super) fn contains_local_sockets(&self) -> bool {
        self.local_sockets
    }
}

/// Whether those of one version leave nobody out, from 0 to `last`.
fn is_everybody(networks: &[Network], is_version: fn(&IpAddr) -> bool, last: u128) -> bool {
    let of_version = networks.iter().filter(|network| is_version(&network.first));
    let mut ranges: Vec<_> = of_version.map(Network::range).collect();
    ranges.sort_unstable();
    let mut covered_to: Option<u128> = None;
    for (first, end) in ranges {
        let next = covered_to.map_or(Some(0), |to| to.checked_add(1));
        if next.is_some_and(|next| first > next) {
            return false;
        }
        covered_to = covered_to.max(Some(end));
    }
    covered_to == Some(last)
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
            InvalidProxies::NotTheFirst { entry, network } => {
                write!(
                    f,
                    "{entry:?} is inside the network {network}; write that, or the address without the bits"
                )
            }
            InvalidProxies::Everybody => f.write_str(
                "these proxies are the whole world, so everybody could choose whose limit to use; list your own",
            ),
            InvalidProxies::Nobody => f.write_str("no proxy is listed; leave the list out, or name one"),
        }
    }
}

impl Error for InvalidProxies {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_world_is_not_trusted_however_it_is_written() {
        let all_but_the_last =
            (1..=32).map(|bits| Network::of(Ipv4Addr::from_bits(!(u32::MAX >> (bits - 1))).into(), bits));
        let mut entries: Vec<String> = all_but_the_last.map(|network| network.to_string()).collect();
        let list = |entries: &[String]| TrustedProxies::new(entries.iter().map(String::as_str)).map(|_| ());
        assert_eq!(list(&entries), Ok(()), "255.255.255.255 is left out: {entries:?}");
        entries.push("255.255.255.255".to_owned());
        assert_eq!(list(&entries), Err(InvalidProxies::Everybody));
        for world in
            [&["0.0.0.0/0"][..], &["::/0"], &["10.0.0.0/8", "::ffff:0.0.0.0/96"], &["8000::/1", "::/1"]]
        {
            assert_eq!(
                TrustedProxies::new(world.iter().copied()),
                Err(InvalidProxies::Everybody),
                "{world:?}"
            );
        }
        assert!(TrustedProxies::new(["8000::/1", "::/2", "128.0.0.0/1"]).is_ok());
    }

    #[test]
    fn entries_that_are_none_are_told_with_the_remedy() {
        for entry in ["", "/", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0/8", "::1/129", "::ffff:1.2.3.4/95", "x"]
        {
            let said = TrustedProxies::new([entry]).unwrap_err().to_string();
            assert!(said.contains("write 10.0.0.7") && said.contains(&format!("{entry:?}")), "{said}");
        }
        let said = TrustedProxies::new(["192.0.2.1/24"]).unwrap_err().to_string();
        assert!(said.contains("192.0.2.0/24"), "{said}");
        assert_eq!(TrustedProxies::new([]), Err(InvalidProxies::Nobody));
    }
}
