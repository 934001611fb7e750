//! The rails of one end, as HELLO describes them, and how two ends pair theirs.

use crate::codec::{Address, HandshakeError, Name, Reader, Writer};
use crate::limits::{MAX_CONTROL_RAILS, MAX_DATA_RAILS};

/// A rail, as it is described to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rail {
    /// Rails with the same fabric name can reach each other; those of different subnets perhaps by routers.
    pub fabric: Name,
    /// The NIC's number, for log lines.
    pub nic: u16,
    pub data: Address,
    /// The address of the control rail on the same NIC, if it has one.
    pub control: Option<Address>,
}

impl Rail {
    pub(crate) fn encode(&self, writer: &mut Writer) {
        writer.field(FABRIC, self.fabric.as_bytes());
        writer.field(NIC, &self.nic.to_le_bytes());
        writer.field(DATA, self.data.as_bytes());
        if let Some(control) = &self.control {
            writer.field(CONTROL, control.as_bytes());
        }
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, HandshakeError> {
        let (mut fabric, mut nic, mut data, mut control) = (None, None, None, None);
        for field in Reader::new(bytes) {
            let field = field?;
            match field.kind {
                FABRIC => field.once(&mut fabric, |field| field.bounded())?,
                NIC => field.once(&mut nic, |field| field.u16())?,
                DATA => field.once(&mut data, |field| field.bounded())?,
                CONTROL => field.once(&mut control, |field| field.bounded())?,
                _ => {}
            }
        }
        Ok(Self {
            fabric: fabric.ok_or(HandshakeError::Missing("fabric name"))?,
            nic: nic.ok_or(HandshakeError::Missing("network card"))?,
            data: data.ok_or(HandshakeError::Missing("data address"))?,
            control,
        })
    }
}

const FABRIC: u16 = 1;
const NIC: u16 = 2;
const DATA: u16 = 3;
const CONTROL: u16 = 4;

/// A rail of the sender and a rail of the receiver, as indices into the lists that the ends sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RailPair {
    pub sender: u8,
    pub receiver: u8,
}

/// The rails that two ends have in common. Keys, counts and bit sets follow the order of `data`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pairing {
    pub data: Vec<RailPair>,
    pub control: Vec<RailPair>,
}

impl Pairing {
    /// Pairs by fabric name, in order; surplus rails stay unused. Where no name is common, pairs subnets of one address family,
    /// in order: routers may connect them, as of hosts whose addresses have a subnet each. None without a pair of each kind.
    pub fn of(sender: &[Rail], receiver: &[Rail]) -> Option<Self> {
        let by = |fits: fn(&Rail, &Rail) -> bool| {
            let data = pair(sender, receiver, MAX_DATA_RAILS, fits);
            let has_control = |rail: &Rail| rail.control.is_some();
            let control = pair(sender, receiver, MAX_CONTROL_RAILS, |ours, theirs| {
                has_control(ours) && has_control(theirs) && fits(ours, theirs)
            });
            Self { data, control }
        };
        let named = by(|ours, theirs| ours.fabric == theirs.fabric);
        let pairing = if named.data.is_empty() { by(may_be_routed) } else { named };
        (!pairing.data.is_empty() && !pairing.control.is_empty()).then_some(pairing)
    }
}

/// Whether both are subnets, such as `192.0.2.0/24`, of one address family.
fn may_be_routed(ours: &Rail, theirs: &Rail) -> bool {
    let has = |rail: &Rail, letter| rail.fabric.as_bytes().contains(&letter);
    has(ours, b'/') && has(theirs, b'/') && has(ours, b':') == has(theirs, b':')
}

fn pair(
    sender: &[Rail],
    receiver: &[Rail],
    max: usize,
    fits: impl Fn(&Rail, &Rail) -> bool,
) -> Vec<RailPair> {
    let mut free: Vec<_> = (0..).zip(receiver).collect();
    let ours = (0..).zip(sender);
    ours.filter_map(|(index, rail)| {
        let found = free.iter().position(|(_, other)| fits(rail, other))?;
        Some(RailPair { sender: index, receiver: free.remove(found).0 })
    })
    .take(max)
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_without_a_data_and_a_control_rail_in_common_are_no_pair() {
        let address = Address::new(&[1; 16]);
        let rail = |fabric: &str, control| Rail {
            fabric: Name::cut(fabric),
            nic: 0,
            data: address.unwrap(),
            control,
        };
        let (with, without) = (rail("a", address), rail("a", None));
        assert!(Pairing::of(&[with], &[with]).is_some());
        assert!(Pairing::of(&[with], &[without]).is_none());
        assert!(Pairing::of(&[with], &[rail("b", address)]).is_none());
    }

    #[test]
    fn subnets_are_paired_in_order_where_no_fabric_is_common() {
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
            let pairing = Pairing::of(&rails(ours), &rails(theirs))?;
            assert_eq!(pairing.data, pairing.control);
            Some(pairing.data.iter().map(|pair| (pair.sender, pair.receiver)).collect::<Vec<_>>())
        };
        let hosts = ["10.128.0.2/32", "10.129.0.2/32"];
        let others = ["10.128.0.3/32", "10.129.0.3/32"];
        assert_eq!(pairs(&hosts, &others), Some(vec![(0, 0), (1, 1)]));
        assert_eq!(pairs(&hosts, &["fd00::/64", others[1]]), Some(vec![(0, 1)]));
        assert_eq!(pairs(&hosts, &[others[0], hosts[0]]), Some(vec![(0, 1)]), "one is common");
        assert_eq!(pairs(&hosts, &["fd00::/64"]), None);
        assert_eq!(pairs(&hosts, &["loopback"]), None);
        assert_eq!(pairs(&["IB-fe80::"], &["IB-fe81::"]), None);
    }
}
