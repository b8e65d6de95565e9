//! # Version 2: binary
//!
//! ```text
//!   0D 0A 0D 0A 00 0D 0A 51 55 49 54 0A │ 2c │ family │ length │ source, destination, ports │ more
//!   └─ signature                          └─ version 2, command: 0 LOCAL, 1 PROXY
//! ```
//!
//! What follows the addresses, such as details of the client's TLS handshake, is skipped.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{InvalidHeader, MAX_V2_BYTES, ParsedHeader, ProxiedClient, begins};

pub(super) const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// The length of the signature, the version and command, the family and the length.
const FIXED: usize = 16;

const LOCAL: u8 = 0;
const PROXY: u8 = 1;

pub(super) fn parse(bytes: &[u8]) -> Result<ParsedHeader, InvalidHeader> {
    if !begins(bytes, &SIGNATURE) {
        return Err(InvalidHeader::NotAHeader);
    }
    let Some(([.., command, family, high, low], rest)) = bytes.split_first_chunk::<FIXED>() else {
        return Ok(ParsedHeader::Incomplete { missing: FIXED - bytes.len() });
    };
    let length = usize::from(u16::from_be_bytes([*high, *low]));
    if command >> 4 != 2 {
        return Err(InvalidHeader::Version { version: command >> 4 });
    }
    if length > MAX_V2_BYTES - FIXED {
        return Err(InvalidHeader::Length { length });
    }
    let addresses = addresses(command & 0xf, *family)?;
    if length < addresses.bytes() {
        return Err(InvalidHeader::Length { length });
    }
    match rest.get(..length) {
        None => Ok(ParsedHeader::Incomplete { missing: length - rest.len() }),
        Some(body) => Ok(ParsedHeader::Complete { client: addresses.parse(body), length: FIXED + length }),
    }
}

/// Which addresses the header contains.
#[derive(Clone, Copy)]
enum Addresses {
    None,
    V4,
    V6,
}

fn addresses(command: u8, family: u8) -> Result<Addresses, InvalidHeader> {
    match (command, family) {
        (LOCAL, _) => Ok(Addresses::None),
        // Unspecified, or Unix domain sockets: their paths are no addresses of clients.
        (PROXY, 0x00 | 0x31) => Ok(Addresses::None),
        (PROXY, 0x11) => Ok(Addresses::V4),
        (PROXY, 0x21) => Ok(Addresses::V6),
        (PROXY, _) => Err(InvalidHeader::Family { family }),
        _ => Err(InvalidHeader::Command { command }),
    }
}

impl Addresses {
    /// The length in bytes: two addresses and two ports.
    const fn bytes(self) -> usize {
        match self {
            Addresses::None => 0,
            Addresses::V4 => 12,
            Addresses::V6 => 36,
        }
    }

    fn parse(self, bytes: &[u8]) -> ProxiedClient {
        let source = match self {
            Addresses::None => None,
            Addresses::V4 => source::<4>(bytes).map(|(address, port)| (Ipv4Addr::from(address).into(), port)),
            Addresses::V6 => {
                source::<16>(bytes).map(|(address, port)| (Ipv6Addr::from(address).into(), port))
            }
        };
        let client = |(address, port): (IpAddr, u16)| SocketAddr::new(address.to_canonical(), port);
        source.map_or(ProxiedClient::Unspecified, |source| ProxiedClient::Address(client(source)))
    }
}

/// Reads the source of two addresses of `N` bytes and the two ports after them.
///
/// The source is the first address and the first port.
fn source<const N: usize>(bytes: &[u8]) -> Option<([u8; N], u16)> {
    let (source, rest) = bytes.split_first_chunk::<N>()?;
    let (port, _) = rest.get(N..)?.split_first_chunk::<2>()?;
    Some((*source, u16::from_be_bytes(*port)))
}
