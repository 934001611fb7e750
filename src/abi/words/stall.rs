//! The sentences of a stall report: which side waits for which, for what, how long, and the progress of both ends.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use crate::types::stall::{ConnectionState, Late, Stall, Uncalled, Waiting};

impl Display for Stall {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let peer = self.peer.as_deref().unwrap_or("a peer that has not answered");
        let doing = match self.waiting {
            Waiting::Sending => "sending to",
            Waiting::Receiving => "receiving from",
            Waiting::Connecting => "connecting to",
        };
        write!(f, "stalled: {doing} {peer} on device {} ", self.device)?;
        write!(f, "has waited for {} s: ", seconds(self.waited))?;
        self.late(f)?;
        if self.waiting != Waiting::Connecting {
            let begun = if self.waiting == Waiting::Sending { "sent" } else { "receives posted" };
            write!(f, "; here {}", counts(&self.here, begun))?;
            if let Some(there) = &self.there {
                let begun =
                    if self.waiting == Waiting::Sending { "receives posted" } else { "sent" };
                write!(f, ", there {}", counts(there, begun))?;
            }
        }
        match self.others {
            0 => {}
            1 => f.write_str("; 1 other connection waits, too")?,
            others => write!(f, "; {others} other connections wait, too")?,
        }
        if self.late.is_of_callers() {
            f.write_str(". Nothing of Ironrail's is late")?;
        }
        Ok(())
    }
}

impl Stall {
    fn late(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let rail = |rail: u8| match &self.rail {
            Some(name) => format!("rail {rail} ({name})"),
            None => format!("rail {rail}"),
        };
        match self.late {
            Late::Peer => write!(
                f,
                "the peer has not answered for {} s: its process is stopped or gone, or the network to it is down",
                seconds(self.silent)
            ),
            Late::Caller => write!(
                f,
                "the peer's NCCL has requests open and has not called for {} s: its process is busy, or its proxy thread hangs",
                seconds(self.idle)
            ),
            Late::Data { rail: Some(number) } => write!(
                f,
                "data on {} does not arrive, and the peer answers: that rail is down or stalled",
                rail(number)
            ),
            Late::Data { rail: None } => f.write_str("parts of the message have not arrived"),
            Late::Reader if self.unconsumed == 0 => f.write_str(
                "the peer reads slowly: its receives come late, one after the other",
            ),
            Late::Reader => write!(
                f,
                "the peer has not read {} packets, and answers: it reads slowly, or a control rail is stalled",
                self.unconsumed
            ),
            Late::Packets { ours: true } => {
                f.write_str("this side's packets are not sent: the provider refuses them")
            }
            Late::Packets { ours: false } => {
                f.write_str("the peer's packets are not sent: its provider refuses them")
            }
            Late::Receive => f.write_str("the peer has posted no receive"),
            Late::Group => {
                f.write_str("this rank has not sent the other messages of a group of receives")
            }
            Late::Credit => f.write_str(
                "as many messages as allowed were sent before their receives, and the peer has posted none of these",
            ),
            Late::Send => f.write_str("the peer has sent nothing for the receive"),
            Late::Done => f.write_str("the peer has not confirmed that the message arrived"),
            Late::Accept => f.write_str("the peer's listener has not accepted"),
            Late::Nothing => f.write_str("nothing is missing here"),
        }
    }
}

impl Display for Uncalled {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { device, requests, waited } = self;
        let requests =
            if *requests == 1 { "1 request".to_owned() } else { format!("{requests} requests") };
        write!(
            f,
            "stalled: NCCL has {requests} open on device {device} and has not called for {} s: its proxy thread is busy or hangs. Nothing of Ironrail's is late",
            seconds(*waited)
        )
    }
}

fn counts(state: &ConnectionState, begun: &str) -> String {
    format!("{} {begun}, {} complete", state.begun, state.done)
}

fn seconds(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64())
}
