//! The rendezvous of ranks that are processes.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::str::FromStr;
use std::time::Duration;

use super::frame::{Frame, Hello};
use super::{Bootstrap, PART_BYTES_MAX, RANKS_MAX};
use crate::error::GroupError;

/// Where to meet, and as whom. Travels in an environment variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meeting {
    pub address: SocketAddr,
    pub secret: u64,
    pub rank: usize,
    pub size: usize,
}

impl fmt::Display for Meeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, secret, rank, size } = self;
        write!(f, "{rank}/{size}/{secret:016x}/{address}")
    }
}

impl FromStr for Meeting {
    type Err = GroupError;

    fn from_str(text: &str) -> Result<Self, GroupError> {
        let parse = || {
            let mut fields = text.splitn(4, '/');
            let rank = fields.next()?.parse().ok()?;
            let size = fields.next()?.parse().ok()?;
            let secret = u64::from_str_radix(fields.next()?, 16).ok()?;
            let address = fields.next()?.parse().ok()?;
            (rank < size && size <= RANKS_MAX).then_some(Self { address, secret, rank, size })
        };
        parse().ok_or_else(|| GroupError::Usage(format!("{text} does not say where ranks meet")))
    }
}

/// A process's place in a group.
#[derive(Debug)]
pub struct Remote {
    meeting: Meeting,
    stream: TcpStream,
    /// Whether the hub heard why this rank gave up, once it has.
    gave_up: Option<bool>,
}

impl Remote {
    pub fn join(meeting: Meeting, wait: Duration) -> Result<Self, GroupError> {
        let join = || {
            let mut stream = TcpStream::connect_timeout(&meeting.address, wait)?;
            stream.set_nodelay(true)?;
            let small = |number| u32::try_from(number).map_err(|_| io::ErrorKind::InvalidInput);
            let (rank, size) = (small(meeting.rank)?, small(meeting.size)?);
            Hello { secret: meeting.secret, rank, size }.write(&mut stream)?;
            Ok(Self { meeting, stream, gave_up: None })
        };
        join().map_err(|error| GroupError::System { what: "joining the group", error })
    }

    /// Says that this rank's work is done, so its leaving fails nobody.
    pub fn leave(mut self) {
        let _ = Frame::Bye.write(&mut self.stream);
    }

    /// Tells the hub why ranks give up, the first cause first; whether it has heard it all. Ends this place's part.
    pub fn report(&mut self, causes: &[String]) -> bool {
        causes.iter().all(|cause| self.tell(cause).is_ok())
    }

    fn tell(&mut self, cause: &str) -> io::Result<()> {
        self.stream.set_read_timeout(Some(GRACE))?;
        Frame::Failed(cause.to_owned()).write(&mut self.stream)?;
        // A round that this rank no longer waited for may be answered first.
        while Frame::read(&mut self.stream)? != Frame::Bye {}
        Ok(())
    }
}

impl Bootstrap for Remote {
    fn rank(&self) -> usize {
        self.meeting.rank
    }

    fn size(&self) -> usize {
        self.meeting.size
    }

    fn identity(&self) -> u64 {
        self.meeting.secret
    }

    fn all_gather(&mut self, part: &[u8], wait: Duration) -> Result<Vec<Vec<u8>>, GroupError> {
        if part.len() > PART_BYTES_MAX {
            return Err(GroupError::Usage("a part longer than a round carries".to_owned()));
        }
        // The hub's wait ends first, and it knows who is missing.
        let answer = self.stream.set_read_timeout(Some(wait + GRACE)).and_then(|()| {
            Frame::Part(part.to_vec()).write(&mut self.stream)?;
            Frame::read(&mut self.stream)
        });
        match answer {
            Ok(Frame::All(all)) if all.len() == self.size() => Ok(all),
            Ok(Frame::Failed(why)) => Err(GroupError::Bootstrap(why)),
            Ok(_) => Err(GroupError::Bootstrap("the hub answered nonsense".to_owned())),
            Err(error) => Err(GroupError::Bootstrap(format!("the rendezvous broke: {error}"))),
        }
    }

    fn give_up(&mut self, why: &GroupError) -> bool {
        if let Some(heard) = self.gave_up {
            return heard;
        }
        let heard = self.report(&[format!("rank {}: {why}", self.meeting.rank)]);
        *self.gave_up.insert(heard)
    }
}

const GRACE: Duration = Duration::from_secs(2);
