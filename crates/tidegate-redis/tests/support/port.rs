//! Ports that nobody else is given by chance.
//!
//! The usual way is to bind port 0, see which port that was, close it and hope. The hope is thin: the port lies in
//! the range from which the system serves everybody who connects anywhere, so any test may be given it a moment
//! later, and a server that is killed and restarted loses its port in between. These lie below that range (on Linux
//! it begins at 32,768), and so do their cluster bus ports, which are 10,000 above.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;

/// How far above a node's port its cluster bus listens.
pub(crate) const BUS: u16 = 10_000;
const PORTS: Range<u16> = 10_240..22_768;

/// A port that is free now, and whose bus port is free too. Somebody else can still be quicker: who binds it must be
/// ready to ask for another.
pub(crate) fn free() -> u16 {
    (0..1_000)
        .map(|_| chosen())
        .find(|&port| is_free(port) && is_free(port + BUS))
        .expect("some port is free")
}

fn chosen() -> u16 {
    let chance = RandomState::new().hash_one("port");
    let offset = chance % u64::from(PORTS.end - PORTS.start);
    PORTS.start + u16::try_from(offset).expect("less than the range is long")
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}
