//! The hub's end of one rank's connection: handles the frames that come from the rank.

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::time::Duration;

use super::super::PART_BYTES_MAX;
use super::super::frame::{Frame, News};
use super::{PARTS_MAX, Part, Served};
use crate::loader::Private;

/// Serves a rank until its connection ends.
pub(super) fn serve(
    stream: &Private<TcpStream>,
    group: &Arc<Served>,
    rank: usize,
    parts: SyncSender<Part>,
) {
    let parts = Some(parts);
    let mut connection = Connection { group, rank, parts, gone: false, said: 0, accused: 0 };
    let end = loop {
        let Ok(frame) = Frame::read(&mut &**stream) else {
            break if connection.gone { End::Left } else { End::Lost };
        };
        if let Err(end) = connection.received(frame) {
            break end;
        }
    };
    match end {
        End::Left => group.left(rank),
        End::Lost => group.lost(rank),
    }
}

struct Connection<'a> {
    group: &'a Arc<Served>,
    rank: usize,
    /// To the thread that takes the rank's parts through the rounds. None after the rank's farewell: it has no rounds any more.
    parts: Option<SyncSender<Part>>,
    /// The rank has sent its farewell, or reported why it has failed.
    gone: bool,
    /// Bytes of the causes that the rank has reported.
    said: usize,
    /// How many lost ranks the rank has reported.
    accused: usize,
}

/// Why a connection ends.
enum End {
    /// The rank has left.
    Left,
    /// The rank breaks the rules, or is gone without a farewell.
    Lost,
}

impl Connection<'_> {
    fn received(&mut self, frame: Frame) -> Result<(), End> {
        let Self { group, rank, .. } = *self;
        match frame {
            Frame::Part { round, within_ms, bytes } => {
                let within = Duration::from_millis(within_ms.into());
                self.part(Part { round, within, bytes })?;
            }
            Frame::Mail { peer, bytes } => {
                if peer < group.size {
                    let _ = group.send(peer, &Frame::Mail { peer: rank, bytes });
                }
            }
            Frame::Stuck(0) => group.watch().moves(rank),
            Frame::Stuck(ms) => group.stuck(rank, Duration::from_millis(ms.into())),
            Frame::News(News::Aborted { .. }) => {
                group.send_to_all_but(Some(rank), &News::Aborted { rank });
                // After the news, which is the cause.
                group.rounds.fail(format!("rank {rank} aborted the group"));
            }
            Frame::News(lost @ News::Lost { .. }) => self.accuses(&lost)?,
            Frame::Bye => self.leaves(),
            echo @ Frame::Echo(_) => {
                let _ = group.send(rank, &echo);
            }
            Frame::Failed(cause) => self.failed(cause)?,
            _ => {
                group.rounds.fail(format!("rank {rank} sent a frame that only the hub may send"));
                return Err(End::Lost);
            }
        }
        Ok(())
    }

    fn part(&self, part: Part) -> Result<(), End> {
        let sent = self.parts.as_ref().map_or(Ok(()), |parts| parts.try_send(part));
        // Disconnected: the rank's last answer could not be sent.
        if let Err(TrySendError::Full(_)) = sent {
            let Self { group, rank, .. } = self;
            group.rounds.fail(format!("rank {rank} waits for more than {PARTS_MAX} rounds"));
            return Err(End::Lost);
        }
        Ok(())
    }

    fn accuses(&mut self, lost: &News) -> Result<(), End> {
        let Self { group, rank, .. } = *self;
        self.accused += 1;
        if self.accused > group.size {
            group.rounds.fail(format!("rank {rank} reports more lost ranks than there are"));
            return Err(End::Lost);
        }
        group.send_to_all_but(Some(rank), lost);
        Ok(())
    }

    /// The rank has sent its farewell. It may stay to receive what the others report.
    fn leaves(&mut self) {
        let Self { group, rank, .. } = *self;
        self.gone = true;
        // The rank's last parts are handled first.
        let is_first = self.parts.take().is_some();
        group.rounds.leave(rank);
        group.watch().left(rank);
        group.changed.notify_all();
        if is_first {
            group.send_left(rank);
        }
        // Now the rank's connections may end.
        let _ = group.send(rank, &Frame::Bye);
    }

    fn failed(&mut self, cause: String) -> Result<(), End> {
        let Self { group, rank, .. } = *self;
        self.gone = true;
        let is_first = self.said == 0;
        // A process of several ranks reports a cause of each. All together may have as much text as a part.
        self.said += cause.len().max(1);
        if !is_first && self.said > PART_BYTES_MAX {
            return Err(End::Left);
        }
        let why = cause.clone();
        group.rounds.give_up(cause);
        if is_first {
            group.send_to_all_but(Some(rank), &News::Lost { rank, why });
        }
        // Before the answer, after which the rank may come to the next group.
        group.rounds.leave(rank);
        group.send(rank, &Frame::Bye).map_err(|_| End::Left)
    }
}
