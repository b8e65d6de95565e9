//! Ports that the system gives to no other process by chance.
//!
//! The usual way is to bind port 0, read which port that was, close it and hope. That is unreliable: the port
//! lies in the ephemeral range, from which the system takes a port for every outgoing connection, so any test
//! may get it a moment later, and a server that is killed and restarted loses its port in between. The ports
//! here lie below that range (on Linux it begins at 32,768), and so do their cluster bus ports, which are
//! 10,000 above.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;

/// How far above a node's port its cluster bus listens.
pub(crate) const BUS: u16 = 10_000;
const PORTS: Range<u16> = 10_240..22_768;

/// A port that is free now, like its bus port. Another process can still bind it first: the
/// caller must be ready to try another port.
pub(crate) fn free() -> u16 {
    (0..1_000)
        .map(|_| random_port())
        .find(|&port| is_free(port) && is_free(port + BUS))
        .expect("some port is free")
}

fn random_port() -> u16 {
    let chance = RandomState::new().hash_one("port");
    let offset = chance % u64::from(PORTS.end - PORTS.start);
    PORTS.start + u16::try_from(offset).expect("less than the range is long")
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}
