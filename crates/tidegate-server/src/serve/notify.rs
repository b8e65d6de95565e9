//! # Telling systemd
//!
//! Whoever is started by systemd with `Type=notify` finds the path of a socket in `NOTIFY_SOCKET`, and says there when
//! it is ready, when it reads its file again because it was told to, and when it ends. Everybody else finds nothing, and
//! says nothing.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use crate::log::Log;

/// It answers from now on.
pub(super) const READY: &str = "READY=1";
/// It reads its file again, and says when it is ready. It answers meanwhile.
pub(super) const RELOADING: &str = "RELOADING=1";
/// It answers those who are there, and ends.
pub(super) const STOPPING: &str = "STOPPING=1";

/// Says it to whoever has started us, if they want to know.
pub(super) fn notify(state: &str, log: Log) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET").filter(|path| !path.is_empty()) else { return };
    if let Err(error) = send(&socket, state) {
        log.warn(format!("systemd cannot be told {state}: {error}; it is used without that")).say();
    }
}

fn send(socket: &OsStr, state: &str) -> io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    let sender = UnixDatagram::unbound()?;
    sender.set_nonblocking(true)?; // whoever does not listen is not waited for
    sender.send_to_addr(state.as_bytes(), &address).map(|_| ())
}
