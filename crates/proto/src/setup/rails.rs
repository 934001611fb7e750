//! Pairs our rails with the peer's: both ends compute the same pairs from both lists.

use crate::rails::{Pairing, Rail, RailPair};

use super::proof::EndpointId;

/// A rail of ours and a rail of the peer, as indices into the lists of both HELLOs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    pub ours: u8,
    pub theirs: u8,
}

/// The pairs of both kinds, in the order of keys, counts and rail bits on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rails {
    pub data: Vec<Pair>,
    pub control: Vec<Pair>,
}

impl Rails {
    /// The channel's number of one of our data rails: in keys, parts, counts and arrivals.
    pub fn data_of(&self, ours: u8) -> Option<u8> {
        let at = self.data.iter().position(|pair| pair.ours == ours)?;
        Some(crate::bits::low8(at as u64))
    }

    /// The same for one of our control rails.
    pub fn control_of(&self, ours: u8) -> Option<u8> {
        let at = self.control.iter().position(|pair| pair.ours == ours)?;
        Some(crate::bits::low8(at as u64))
    }
}

/// Pairs rails ([`Pairing::of`]), in the order of the endpoint with the lower id. Surplus rails stay unused.
/// None without a pair of each kind.
pub fn pair(
    our_id: EndpointId,
    ours: &[Rail],
    their_id: EndpointId,
    theirs: &[Rail],
) -> Option<Rails> {
    let first = our_id <= their_id;
    let pairing = if first { Pairing::of(ours, theirs) } else { Pairing::of(theirs, ours) }?;
    let oriented = |pairs: &[RailPair]| {
        let pair = |pair: &RailPair| match first {
            true => Pair { ours: pair.sender, theirs: pair.receiver },
            false => Pair { ours: pair.receiver, theirs: pair.sender },
        };
        pairs.iter().map(pair).collect()
    };
    Some(Rails { data: oriented(&pairing.data), control: oriented(&pairing.control) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{Address, Name};

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
                let here = pair(low, &ours, high, &theirs);
                let there = pair(high, &theirs, low, &ours);
                let turned = there.map(|rails| {
                    let turn = |pairs: Vec<Pair>| {
                        pairs.iter().map(|p| Pair { ours: p.theirs, theirs: p.ours }).collect()
                    };
                    Rails { data: turn(rails.data), control: turn(rails.control) }
                });
                assert_eq!(here, turned);
                let Some(rails) = here else { continue };
                paired += 1;
                for Pair { ours: a, theirs: b } in rails.data.iter().chain(&rails.control) {
                    assert_eq!(one[usize::from(*a)], other[usize::from(*b)]);
                }
                let common = (1..4_u8).map(|fabric| {
                    let count = |list: &[u8]| list.iter().filter(|f| **f == fabric).count();
                    count(one).min(count(other))
                });
                assert_eq!(rails.data.len(), common.sum::<usize>(), "all common rails are used");
            }
        }
        assert!(paired > 100);
    }
}
