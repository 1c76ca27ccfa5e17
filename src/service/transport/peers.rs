//! How many connections each peer has.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The connections of all peers of a listener. Those of this machine are not counted: its user may do worse, and a proxy on
/// it has everybody's.
#[derive(Clone, Debug)]
pub(super) struct Peers {
    most: usize,
    counts: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl Peers {
    /// At most so many connections of each.
    pub(super) fn new(most: usize) -> Peers {
        Peers { most, counts: Arc::default() }
    }

    /// A place for one more of this peer; `None` if it has as many as it may have.
    pub(super) fn enter(&self, address: IpAddr) -> Option<Peer> {
        let address = address.to_canonical();
        if address.is_loopback() {
            return Some(Peer { address: None, peers: self.clone() });
        }
        let address = of_one(address);
        let mut counts = self.counts();
        let count = counts.entry(address).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        drop(counts);
        Some(Peer { address: Some(address), peers: self.clone() })
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What stands for a peer: a host of IPv6 usually has all addresses that begin with the same 64 bits.
fn of_one(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
    }
}

/// One connection of a peer.
#[derive(Debug)]
pub(super) struct Peer {
    address: Option<IpAddr>,
    peers: Peers,
}

impl Drop for Peer {
    fn drop(&mut self) {
        let Some(address) = self.address else { return };
        let mut counts = self.peers.counts();
        if let Some(count) = counts.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_peer_has_a_bounded_number_and_others_have_theirs() {
        let peers = Peers::new(2);
        let first = [peers.enter(address("10.0.0.1")).unwrap(), peers.enter(address("10.0.0.1")).unwrap()];
        assert!(peers.enter(address("10.0.0.1")).is_none());
        // The same one over IPv6.
        assert!(peers.enter(address("::ffff:10.0.0.1")).is_none());
        let other = peers.enter(address("10.0.0.2")).unwrap();
        drop(first);
        assert!(peers.enter(address("10.0.0.1")).is_some());
        drop(other);
        assert!(peers.counts().is_empty());
    }

    #[test]
    fn addresses_of_one_network_of_ipv6_are_one_peer() {
        let peers = Peers::new(1);
        let _one = peers.enter(address("2001:db8::1")).unwrap();
        assert!(peers.enter(address("2001:db8::ffff:1")).is_none());
        assert!(peers.enter(address("2001:db8:0:1::1")).is_some());
    }

    #[test]
    fn this_machine_is_not_counted() {
        let peers = Peers::new(0);
        for text in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
            assert!(peers.enter(address(text)).is_some(), "{text}");
        }
    }
}
