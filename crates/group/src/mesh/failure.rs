//! Why a group has failed: every later call returns the first cause.

use std::time::Duration;

use crate::bootstrap::News;
use crate::error::GroupError;

/// The first cause.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    Lost {
        rank: usize,
        why: String,
    },
    /// `awaited`: what this rank waited for.
    Silent {
        ranks: Vec<usize>,
        awaited: String,
        limit: Duration,
    },
    Aborted {
        rank: usize,
    },
    /// This rank and another one have called different collectives.
    Mismatch {
        rank: usize,
        why: String,
    },
    Other(String),
}

impl Failure {
    /// The failure that some news means. None: the news does not fail the group.
    pub(super) fn of(
        news: News,
        awaited: impl FnOnce() -> String,
        limit: Duration,
        hub: Option<usize>,
    ) -> Option<Self> {
        Some(match news {
            News::Left { .. } => return None,
            News::Lost { rank, why } => Self::Lost { rank, why },
            News::Aborted { rank } => Self::Aborted { rank },
            News::Silent { ranks } => Self::Silent { ranks, awaited: awaited(), limit },
            News::Alone => match hub {
                Some(rank) => Self::Lost { rank, why: "its rendezvous is gone".to_owned() },
                None => Self::Other("the rendezvous is gone".to_owned()),
            },
        })
    }

    pub(super) fn error(&self) -> GroupError {
        match self.clone() {
            Self::Lost { rank, why } => GroupError::PeerLost { rank, why },
            Self::Silent { ranks, awaited, limit } => {
                let awaited = match &*ranks {
                    [] => format!("{awaited}, as all ranks wait and none moves"),
                    [rank] => format!("rank {rank}, which did not arrive"),
                    _ => format!("ranks {ranks:?}, which did not arrive"),
                };
                GroupError::Timeout { peers: ranks, awaited, limit }
            }
            Self::Aborted { rank } => GroupError::Aborted { rank },
            Self::Mismatch { rank, why } => GroupError::Mismatch { rank, why },
            Self::Other(why) => GroupError::Bootstrap(why),
        }
    }
}
