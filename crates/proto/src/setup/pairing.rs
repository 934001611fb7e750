//! Pairs our rails with the peer's: both ends compute the same pairs from both lists.

use crate::codec::Name;
use crate::limits::{MAX_CONTROL_RAILS, MAX_DATA_RAILS};
use crate::rails::Rail;

use super::proof::EndpointId;

/// A rail of ours and a rail of the peer, as indices into the lists of both HELLOs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RailPair {
    pub ours: u8,
    pub theirs: u8,
}

/// The rails that two ends have in common. Keys, counts and rail bits on the wire follow the order of `data`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pairing {
    pub data: Vec<RailPair>,
    pub control: Vec<RailPair>,
}

/// Why two ends have no channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Apart {
    /// They have no data rail in common, or one uses RDMA and the other SENDRECV.
    Networks,
    /// They have data rails in common, but no control rail, of which there are fewer. The networks of each end's control rails.
    Control { ours: Vec<Name>, theirs: Vec<Name> },
}

impl Pairing {
    /// Pairs rails by fabric name, in the order of the endpoint with the lower id; surplus rails stay unused. If no name is
    /// common, pairs subnets of one address family, in order: routers may connect them, as when each host has its own
    /// subnet.
    ///
    /// # Errors
    ///
    /// [`Apart`] if there is not at least one pair of each kind.
    pub fn of(
        our_id: EndpointId,
        ours: &[Rail],
        their_id: EndpointId,
        theirs: &[Rail],
    ) -> Result<Self, Apart> {
        let pairing = if our_id <= their_id {
            Self::in_order(ours, theirs)
        } else {
            Self::in_order(theirs, ours).turned()
        };
        if pairing.data.is_empty() {
            Err(Apart::Networks)
        } else if pairing.control.is_empty() {
            let networks = |rails: &[Rail]| {
                rails.iter().filter(|rail| rail.control.is_some()).map(|rail| rail.fabric).collect()
            };
            Err(Apart::Control { ours: networks(ours), theirs: networks(theirs) })
        } else {
            Ok(pairing)
        }
    }

    fn in_order(ours: &[Rail], theirs: &[Rail]) -> Self {
        let by = |fits: fn(&Rail, &Rail) -> bool| {
            let data = pair(ours, theirs, MAX_DATA_RAILS, fits);
            let has_control = |rail: &Rail| rail.control.is_some();
            let control = pair(ours, theirs, MAX_CONTROL_RAILS, |ours, theirs| {
                has_control(ours) && has_control(theirs) && fits(ours, theirs)
            });
            Self { data, control }
        };
        let named = by(|ours, theirs| ours.fabric == theirs.fabric);
        if named.data.is_empty() { by(may_be_routed) } else { named }
    }

    /// The same pairs, as the other end has them.
    fn turned(self) -> Self {
        let turn = |pairs: Vec<RailPair>| {
            pairs
                .into_iter()
                .map(|RailPair { ours, theirs }| RailPair { ours: theirs, theirs: ours })
                .collect()
        };
        Self { data: turn(self.data), control: turn(self.control) }
    }

    /// The channel's number of one of our data rails: in keys, parts, counts and arrivals.
    pub fn data_of(&self, ours: u8) -> Option<u8> {
        let at = self.data.iter().position(|pair| pair.ours == ours)?;
        Some(crate::bits::low8(at as u64))
    }
}

/// Whether both are subnets, such as `192.0.2.0/24`, of one address family.
fn may_be_routed(ours: &Rail, theirs: &Rail) -> bool {
    let has = |rail: &Rail, letter| rail.fabric.as_bytes().contains(&letter);
    has(ours, b'/') && has(theirs, b'/') && has(ours, b':') == has(theirs, b':')
}

fn pair(
    ours: &[Rail],
    theirs: &[Rail],
    max: usize,
    fits: impl Fn(&Rail, &Rail) -> bool,
) -> Vec<RailPair> {
    let mut free: Vec<_> = (0..).zip(theirs).collect();
    (0..)
        .zip(ours)
        .filter_map(|(index, rail)| {
            let found = free.iter().position(|(_, other)| fits(rail, other))?;
            Some(RailPair { ours: index, theirs: free.remove(found).0 })
        })
        .take(max)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Address;

    #[test]
    fn ends_need_a_data_rail_and_a_control_rail_in_common() {
        let address = Address::new(&[1; 16]);
        let rail = |fabric: &str, control| Rail {
            fabric: Name::cut(fabric),
            nic: 0,
            data: address.unwrap(),
            control,
        };
        let (with, without) = (rail("a", address), rail("a", None));
        let (low, high) = (EndpointId([1; 16]), EndpointId([2; 16]));
        let pairing = |ours: &[Rail], theirs: &[Rail]| Pairing::of(low, ours, high, theirs);
        assert!(pairing(&[with], &[with]).is_ok());
        assert_eq!(pairing(&[with], &[rail("b", address)]), Err(Apart::Networks));
        let control = |ours: &[&str], theirs: &[&str]| {
            let names = |fabrics: &[&str]| fabrics.iter().map(|name| Name::cut(name)).collect();
            Err(Apart::Control { ours: names(ours), theirs: names(theirs) })
        };
        assert_eq!(pairing(&[with], &[without]), control(&["a"], &[]));
        // One control rail each, of the first rail, and the rails in another order.
        let (ours, theirs) = ([with, rail("b", None)], [rail("b", address), without]);
        assert_eq!(pairing(&ours, &theirs), control(&["a"], &["b"]));
        assert_eq!(Pairing::of(high, &theirs, low, &ours), control(&["b"], &["a"]));
    }

    #[test]
    fn subnets_are_paired_in_order_if_no_fabric_is_common() {
        let address = Address::new(&[1; 16]);
        let rails = |fabrics: &[&str]| -> Vec<Rail> {
            let rail = |fabric: &&str| Rail {
                fabric: Name::cut(fabric),
                nic: 0,
                data: address.unwrap(),
                control: address,
            };
            fabrics.iter().map(rail).collect()
        };
        let pairs = |ours: &[&str], theirs: &[&str]| {
            let pairing = Pairing::in_order(&rails(ours), &rails(theirs));
            assert_eq!(pairing.data, pairing.control);
            let paired = Some(pairing).filter(|pairing| !pairing.data.is_empty())?;
            Some(paired.data.iter().map(|pair| (pair.ours, pair.theirs)).collect::<Vec<_>>())
        };
        let hosts = ["10.128.0.2/32", "10.129.0.2/32"];
        let others = ["10.128.0.3/32", "10.129.0.3/32"];
        assert_eq!(pairs(&hosts, &others), Some(vec![(0, 0), (1, 1)]));
        assert_eq!(pairs(&hosts, &["fd00::/64", others[1]]), Some(vec![(0, 1)]));
        assert_eq!(
            pairs(&hosts, &[others[0], hosts[0]]),
            Some(vec![(0, 1)]),
            "one subnet is common"
        );
        assert_eq!(pairs(&hosts, &["fd00::/64"]), None);
        assert_eq!(pairs(&hosts, &["loopback"]), None);
        assert_eq!(pairs(&["IB-fe80::"], &["IB-fe81::"]), None);
    }

    /// Keys and counts on the wire follow this order, also with a peer of another release.
    #[test]
    fn pairs_are_in_the_order_of_the_end_with_the_lower_id_and_found_by_our_rails() {
        let (low, high) = (EndpointId([1; 16]), EndpointId([2; 16]));
        let (ours, theirs) = (rails(&[2, 3, 4, 6]), rails(&[6, 4, 2]));
        let pairs = |pairs: &[RailPair]| -> Vec<(u8, u8)> {
            pairs.iter().map(|pair| (pair.ours, pair.theirs)).collect()
        };
        let of_low = Pairing::of(low, &ours, high, &theirs).unwrap();
        assert_eq!(pairs(&of_low.data), [(0, 2), (2, 1), (3, 0)]);
        let of_high = Pairing::of(high, &theirs, low, &ours).unwrap();
        assert_eq!(pairs(&of_high.data), [(2, 0), (1, 2), (0, 3)]);
        let numbers = [0, 1, 2, 3].map(|ours| of_low.data_of(ours));
        assert_eq!(numbers, [Some(0), None, Some(1), Some(2)]);
    }

    fn rails(fabrics: &[u8]) -> Vec<Rail> {
        let rail = |fabric: &u8| Rail {
            fabric: Name::new(&[*fabric]).unwrap(),
            nic: 0,
            data: Address::new(&[1]).unwrap(),
            control: (fabric.is_multiple_of(2)).then(|| Address::new(&[2]).unwrap()),
        };
        fabrics.iter().map(rail).collect()
    }

    /// All lists of up to three rails of three fabrics, on both sides.
    #[test]
    fn both_ends_compute_the_same_pairs() {
        let lists: Vec<Vec<u8>> = (0..4_usize.pow(3))
            .map(|number| {
                let digits = (0..3).map(|place| number / 4_usize.pow(place) % 4);
                digits.filter(|digit| *digit > 0).map(|digit| digit.to_le_bytes()[0]).collect()
            })
            .collect();
        let (low, high) = (EndpointId([1; 16]), EndpointId([2; 16]));
        let mut paired = 0;
        for one in &lists {
            for other in &lists {
                let (ours, theirs) = (rails(one), rails(other));
                let here = Pairing::of(low, &ours, high, &theirs);
                let there = Pairing::of(high, &theirs, low, &ours);
                assert_eq!(here.as_ref().ok(), there.ok().map(Pairing::turned).as_ref());
                let Ok(pairing) = here else { continue };
                paired += 1;
                for RailPair { ours: a, theirs: b } in pairing.data.iter().chain(&pairing.control) {
                    assert_eq!(one[usize::from(*a)], other[usize::from(*b)]);
                }
                let common = (1..4_u8).map(|fabric| {
                    let count = |list: &[u8]| list.iter().filter(|f| **f == fabric).count();
                    count(one).min(count(other))
                });
                assert_eq!(pairing.data.len(), common.sum::<usize>(), "all common rails are used");
            }
        }
        assert!(paired > 100);
    }
}
