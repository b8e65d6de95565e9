//! # How many connections an address has
//!
//! One client must not take the room of all others. An address of IPv6 stands for its network of 64 bits: whoever has one has all of
//! them.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The connections of all addresses.
#[derive(Debug)]
pub(super) struct Addresses {
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
    most: usize,
}

/// One connection of an address. Counted until it is dropped.
#[derive(Debug)]
pub(crate) struct Counted {
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
    address: IpAddr,
}

impl Addresses {
    pub(super) fn new(most: usize) -> Self {
        Addresses { open: Arc::default(), most }
    }

    /// One more of this address; `None` if it has as many as it may have.
    pub(super) fn count(&self, address: IpAddr) -> Option<Counted> {
        let address = network(address);
        let mut open = lock(&self.open);
        let count = open.entry(address).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        Some(Counted { open: self.open.clone(), address })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut open = lock(&self.open);
        if let Some(count) = open.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.address);
            }
        }
    }
}

fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

fn lock(open: &Mutex<HashMap<IpAddr, usize>>) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_has_room_of_its_own_and_gives_it_back() {
        let addresses = Addresses::new(2);
        let count = |text: &str| addresses.count(text.parse().expect("an address"));
        let first = count("192.0.2.1");
        let _others =
            [count("::ffff:192.0.2.1"), count("192.0.2.2"), count("2001:db8::1"), count("2001:db8::2")];
        assert!(count("192.0.2.1").is_none() && count("2001:db8::3").is_none());
        assert!(count("2001:db8:0:1::").is_some());
        drop(first);
        assert!(count("192.0.2.1").is_some());
        assert_eq!(lock(&addresses.open).len(), 3, "who has gone is forgotten");
    }
}
