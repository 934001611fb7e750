//! The rails of one end, as HELLO describes them, and how two ends pair theirs.

use crate::codec::{Address, HandshakeError, Name, Reader, Writer};
use crate::limits::{MAX_CONTROL_RAILS, MAX_DATA_RAILS};

/// A rail, as it is described to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rail {
    /// Rails with the same fabric name can reach each other.
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
    /// Pairs by fabric name, in order; surplus rails stay unused. None without a pair of each kind.
    pub fn of(sender: &[Rail], receiver: &[Rail]) -> Option<Self> {
        let data = pair(sender, receiver, MAX_DATA_RAILS, |_| true);
        let control = pair(sender, receiver, MAX_CONTROL_RAILS, |rail| rail.control.is_some());
        (!data.is_empty() && !control.is_empty()).then_some(Self { data, control })
    }
}

fn pair(
    sender: &[Rail],
    receiver: &[Rail],
    max: usize,
    usable: impl Fn(&Rail) -> bool,
) -> Vec<RailPair> {
    let mut free: Vec<_> = (0..).zip(receiver).filter(|(_, rail)| usable(rail)).collect();
    let ours = (0..).zip(sender).filter(|(_, rail)| usable(rail));
    ours.filter_map(|(index, rail)| {
        let found = free.iter().position(|(_, other)| other.fabric == rail.fabric)?;
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
}
