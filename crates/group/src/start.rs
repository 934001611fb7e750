//! How a process finds its group: by our launcher, or by the variables of torchrun, MLX, OpenMPI, PMI and Slurm.
//!
//! | from | rank, size | where ranks meet |
//! |---|---|---|
//! | `ironrail run` | `IRON_GROUP_MEETING` says all | |
//! | torchrun | `RANK`, `WORLD_SIZE` | `MASTER_ADDR`, `MASTER_PORT` |
//! | MLX | `MLX_RANK`, rows of `MLX_IBV_DEVICES` | `MLX_IBV_COORDINATOR` |
//! | OpenMPI | `OMPI_COMM_WORLD_RANK`, `OMPI_COMM_WORLD_SIZE` | |
//! | PMI | `PMI_RANK`, `PMI_SIZE` | |
//! | Slurm | `SLURM_PROCID`, `SLURM_NTASKS` | |
//!
//! `IRONRAIL_GROUP_COORDINATOR`, `host:port`, replaces the last column, and is required where that is empty: rank 0 listens there.
//! `IRONRAIL_GROUP_TOKEN` is a word that all ranks of a job share: a rank with another one is refused.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use crate::bootstrap::{Hub, Meeting, RANKS_MAX, Remote};
use crate::devices::DeviceMatrix;
use crate::error::GroupError;
use crate::launch::MEETING_VARIABLE;

/// The rank of this process, and the address of the rendezvous.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    meeting: Meeting,
    /// Rank 0 runs the rendezvous itself.
    holds_hub: bool,
    matrix: Option<DeviceMatrix>,
}

impl Start {
    /// From the environment of this process.
    ///
    /// # Errors
    ///
    /// [`GroupError::Usage`] with what is missing or wrong, in one line.
    pub fn from_environment() -> Result<Self, GroupError> {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    /// The same from any variables.
    ///
    /// # Errors
    ///
    /// As [`Start::from_environment`].
    pub fn from_variables(get: impl Fn(&str) -> Option<String>) -> Result<Self, GroupError> {
        if let Some(text) = get(MEETING_VARIABLE) {
            return Ok(Self { meeting: text.parse()?, holds_hub: false, matrix: None });
        }
        let matrix = match get("MLX_RANK").and_then(|_| get("MLX_IBV_DEVICES")) {
            Some(path) => Some(DeviceMatrix::read(path.as_ref())?),
            None => None,
        };
        let (rank, size) = place(&get, matrix.as_ref())?;
        let address = coordinator(&get)?;
        let secret = secret(get("IRONRAIL_GROUP_TOKEN").as_deref());
        let meeting = Meeting { address, secret, rank, size };
        Ok(Self { meeting, holds_hub: true, matrix })
    }

    /// A rank, from 0.
    pub fn rank(&self) -> usize {
        self.meeting.rank
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.meeting.size
    }

    /// The device for each rank, from MLX's file.
    pub fn matrix(&self) -> Option<&DeviceMatrix> {
        self.matrix.as_ref()
    }

    /// Joins as this rank; without a launcher rank 0 opens the rendezvous first. Others try again until `wait` has passed.
    ///
    /// # Errors
    ///
    /// [`GroupError::System`] where the address is in use or there is no listener, [`GroupError::Bootstrap`] where the rendezvous refuses.
    pub fn join(&self, wait: Duration) -> Result<(Remote, Option<Hub>), GroupError> {
        let hub = if self.holds_hub && self.meeting.rank == 0 {
            let Meeting { address, size, secret, .. } = self.meeting;
            Some(Hub::with_secret(address, size, wait, secret)?)
        } else {
            None
        };
        Ok((Remote::join(self.meeting, wait)?, hub))
    }
}

/// Pairs of variables; the first one that is set counts.
const PLACES: [(&str, &str); 4] = [
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
];

fn place(
    get: &impl Fn(&str) -> Option<String>,
    matrix: Option<&DeviceMatrix>,
) -> Result<(usize, usize), GroupError> {
    let (rank_name, rank, size_name, size) = if let Some(rank) = get("MLX_RANK") {
        let Some(matrix) = matrix else {
            return usage(
                "MLX_RANK is set: MLX_IBV_DEVICES must name a file, and MLX_IBV_COORDINATOR an address",
            );
        };
        ("MLX_RANK", number("MLX_RANK", &rank)?, "MLX_IBV_DEVICES", matrix.size())
    } else {
        let found = PLACES.iter().find_map(|(rank, size)| Some((*rank, get(rank)?, *size)));
        let Some((rank_name, rank, size_name)) = found else {
            let names: Vec<_> = PLACES.iter().map(|(rank, _)| *rank).collect();
            return usage(format!(
                "no variable says which rank this is: {}, MLX_RANK; or start it with `ironrail run`",
                names.join(", ")
            ));
        };
        let Some(size) = get(size_name) else {
            return usage(format!("{rank_name} is set, and {size_name} is not"));
        };
        (rank_name, number(rank_name, &rank)?, size_name, number(size_name, &size)?)
    };
    if size == 0 || size > RANKS_MAX {
        return usage(format!("{size_name} is {size}, and a group has 1 to {RANKS_MAX} ranks"));
    }
    if rank >= size {
        return usage(format!("{rank_name} is {rank}, and by {size_name} there are {size} ranks"));
    }
    Ok((rank, size))
}

fn coordinator(get: &impl Fn(&str) -> Option<String>) -> Result<SocketAddr, GroupError> {
    let own = get("IRONRAIL_GROUP_COORDINATOR").map(|text| ("IRONRAIL_GROUP_COORDINATOR", text));
    let mlx =
        || Some(("MLX_IBV_COORDINATOR", get("MLX_RANK").and_then(|_| get("MLX_IBV_COORDINATOR"))?));
    let torch = || {
        let (host, port) = (get("MASTER_ADDR")?, get("MASTER_PORT")?);
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        Some(("MASTER_ADDR and MASTER_PORT", format!("{host}:{port}")))
    };
    let Some((name, text)) = own.or_else(mlx).or_else(torch) else {
        return usage(
            "nothing says where ranks meet: set IRONRAIL_GROUP_COORDINATOR to an address and port of rank 0",
        );
    };
    let addresses = text.to_socket_addrs();
    addresses.ok().and_then(|mut found| found.next()).ok_or_else(|| {
        GroupError::Usage(format!("{name} is {text}, which is no address with a port"))
    })
}

/// The same number for the same word, on every machine.
fn secret(token: Option<&str>) -> u64 {
    let mut hasher = DefaultHasher::new();
    token.unwrap_or_default().hash(&mut hasher);
    hasher.finish()
}

fn number(name: &str, text: &str) -> Result<usize, GroupError> {
    text.trim()
        .parse()
        .map_or_else(|_| usage(format!("{name} is {text:?}, which is no number")), Ok)
}

fn usage<T>(why: impl Into<String>) -> Result<T, GroupError> {
    Err(GroupError::Usage(why.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(variables: &[(&str, &str)]) -> Result<Start, GroupError> {
        Start::from_variables(|name| {
            variables.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn every_launchers_variables_give_the_rank() {
        let at = ("IRONRAIL_GROUP_COORDINATOR", "127.0.0.1:4711");
        for (rank, size) in PLACES {
            let found = start(&[(rank, "2"), (size, "4"), at]).unwrap();
            assert_eq!((found.rank(), found.size()), (2, 4));
        }
        let torch =
            [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "::1"), ("MASTER_PORT", "77")];
        assert_eq!(start(&torch).unwrap().meeting.address, "[::1]:77".parse().unwrap());
    }

    #[test]
    fn what_is_wrong_with_them_is_said_in_one_line() {
        let at = ("IRONRAIL_GROUP_COORDINATOR", "127.0.0.1:4711");
        for (variables, why) in [
            (&[][..], "no variable says which rank this is"),
            (&[("RANK", "1")], "RANK is set, and WORLD_SIZE is not"),
            (&[("RANK", "abc"), ("WORLD_SIZE", "2"), at], "RANK is \"abc\", which is no number"),
            (
                &[("RANK", "2"), ("WORLD_SIZE", "2"), at],
                "RANK is 2, and by WORLD_SIZE there are 2 ranks",
            ),
            (&[("RANK", "-1"), ("WORLD_SIZE", "2"), at], "which is no number"),
            (&[("RANK", "0"), ("WORLD_SIZE", "0"), at], "WORLD_SIZE is 0"),
            (&[("RANK", "0"), ("WORLD_SIZE", "2")], "nothing says where ranks meet"),
            (
                &[("RANK", "0"), ("WORLD_SIZE", "2"), ("IRONRAIL_GROUP_COORDINATOR", "here")],
                "no address",
            ),
            (&[("MLX_RANK", "0")], "MLX_IBV_DEVICES must name a file"),
        ] {
            let said = start(variables).unwrap_err();
            assert!(said.is_usage() && said.to_string().contains(why), "{said}");
            assert!(!said.to_string().contains('\n'));
        }
    }
}
