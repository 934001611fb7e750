//! The rails of one end, as HELLO describes them.

use crate::codec::{Address, HandshakeError, Name, Reader, Writer};

/// A rail, as it is described to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rail {
    /// Rails with the same fabric name can reach each other; rails of different subnets perhaps by routers.
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
