//! How a process finds its group: from the environment of `ironrail run`, or from the variables of torchrun, MLX, OpenMPI, PMI and Slurm.
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
//! `IRONRAIL_GROUP_COORDINATOR`, `host:port`, replaces the last column, and is required where the column is empty. Rank 0 listens at this
//! address, or at all addresses of its machine if that machine resolves the host's name to loopback addresses alone. `IRONRAIL_GROUP_TOKEN`
//! is a word that all ranks of a job share: a rank with another one is refused. An empty value is the same as an unset one.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

use siphasher::sip::SipHasher13;

use crate::bootstrap::{Hub, Interrupt, Meeting, RANKS_MAX, Remote};
use crate::devices::DeviceMatrix;
use crate::error::GroupError;
use crate::launch::MEETING_VARIABLE;
use crate::patience::{LONGEST, deadline};

/// The rank of this process, and the address of the rendezvous.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    meeting: Meeting,
    /// Further addresses of the host's name.
    others: Vec<SocketAddr>,
    /// Rank 0 listens at all addresses of its machine.
    is_everywhere: bool,
    /// Rank 0 runs the rendezvous itself.
    holds_hub: bool,
    matrix: Option<DeviceMatrix>,
    /// The rendezvous, if the name of its host has no address yet: the name is looked up again by [`Start::join`].
    unknown: Option<Coordinator>,
}

/// `host:port`, and the name of the variable or argument that has this value.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Coordinator {
    name: &'static str,
    text: String,
}

impl Start {
    /// Reads the environment of this process.
    ///
    /// # Errors
    ///
    /// [`GroupError::Usage`] with what is missing or wrong, in one line.
    pub fn from_environment() -> Result<Self, GroupError> {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    /// The start of rank `rank` of `size` ranks that meet at `coordinator`, `host:port`, where rank 0 listens. Ranks with another `token`
    /// are refused; an empty token is the same as none.
    ///
    /// # Errors
    ///
    /// [`GroupError::Usage`] with what is wrong, in one line.
    pub fn at(
        coordinator: &str,
        rank: usize,
        size: usize,
        token: Option<&str>,
    ) -> Result<Self, GroupError> {
        check("rank", rank, "size", size)?;
        let coordinator = Coordinator { name: "coordinator", text: coordinator.to_owned() };
        Self::by(coordinator, rank, size, token, None)
    }

    /// The start of a rank without a launcher. On rank 0 the host's name must have an address; on other ranks it is looked up again.
    fn by(
        coordinator: Coordinator,
        rank: usize,
        size: usize,
        token: Option<&str>,
        matrix: Option<DeviceMatrix>,
    ) -> Result<Self, GroupError> {
        let (found, unknown) = match coordinator.find()? {
            Ok(found) => (found, None),
            Err(error) if rank == 0 => return Err(error),
            Err(error) => {
                log::warn!("{error}; it is looked up again");
                (Addresses::NONE, Some(coordinator))
            }
        };
        let Addresses { address, others, is_everywhere } = found;
        let meeting = Meeting { address, secret: secret(token), rank, size };
        Ok(Self { meeting, others, is_everywhere, holds_hub: true, matrix, unknown })
    }

    /// As [`Start::from_environment`], with the variables that `get` returns.
    ///
    /// # Errors
    ///
    /// As [`Start::from_environment`].
    pub fn from_variables(get: impl Fn(&str) -> Option<String>) -> Result<Self, GroupError> {
        let get = |name: &str| get(name).filter(|value| !value.is_empty());
        if let Some(text) = get(MEETING_VARIABLE) {
            let (meeting, others) = (text.parse()?, Vec::new());
            return Ok(Self {
                meeting,
                others,
                is_everywhere: false,
                holds_hub: false,
                matrix: None,
                unknown: None,
            });
        }
        let matrix = match get("MLX_RANK").and_then(|_| get("MLX_IBV_DEVICES")) {
            Some(path) => Some(DeviceMatrix::read(path.as_ref())?),
            None => None,
        };
        let (rank, size) = place(&get, matrix.as_ref())?;
        let token = get("IRONRAIL_GROUP_TOKEN");
        Self::by(coordinator(&get)?, rank, size, token.as_deref(), matrix)
    }

    /// The rank of this process, from 0.
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

    /// Joins as this rank. Without a launcher rank 0 opens the rendezvous first; other ranks try to join until `wait` has passed.
    ///
    /// # Errors
    ///
    /// [`GroupError::System`] where the address is in use or there is no listener, [`GroupError::Bootstrap`] where the rendezvous refuses.
    pub fn join(&self, wait: Duration) -> Result<(Remote, Option<Hub>), GroupError> {
        self.join_unless(wait, &Interrupt::default())
    }

    /// As [`Start::join`], until an interrupt. The interrupt also ends a rendezvous that was joined, and a group that begins meanwhile.
    /// Rank 0 then leaves without waiting for other ranks.
    ///
    /// # Errors
    ///
    /// As [`Start::join`]; [`GroupError::System`] after an interrupt.
    pub fn join_unless(
        &self,
        wait: Duration,
        interrupt: &Interrupt,
    ) -> Result<(Remote, Option<Hub>), GroupError> {
        if let Some(coordinator) = &self.unknown {
            let end = deadline(wait);
            let found = await_addresses(end, interrupt, || coordinator.find())?;
            let meeting = Meeting { address: found.address, ..self.meeting };
            let known = Self { meeting, others: found.others, unknown: None, ..self.clone() };
            let left = end.saturating_duration_since(Instant::now());
            return known.join_unless(left, interrupt);
        }
        let Meeting { address, secret, rank, size } = self.meeting;
        let mut addresses = vec![address];
        for other in &self.others {
            if !addresses.contains(other) {
                addresses.push(*other);
            }
        }
        if !self.holds_hub || rank != 0 {
            let joined = Remote::join_at_one_of(&addresses, self.meeting, wait, interrupt)?;
            return Ok((joined, None));
        }
        // Later rounds take as long as each rank says; `wait` is for joining.
        if self.is_everywhere {
            let all = all_addresses(address.port());
            let hub = Hub::with_secret(&all, size, LONGEST, secret)?;
            interrupt.ends_waits_of(&hub);
            let joined = Remote::join_at_one_of(&[address], self.meeting, wait, interrupt)?;
            return Ok((joined, Some(hub)));
        }
        let hub = Hub::with_secret(&addresses, size, LONGEST, secret)?;
        interrupt.ends_waits_of(&hub);
        let meeting = hub.meeting(rank);
        let joined = Remote::join_at_one_of(&[meeting.address], meeting, wait, interrupt)?;
        Ok((joined, Some(hub)))
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
    check(rank_name, rank, size_name, size)?;
    Ok((rank, size))
}

fn check(rank_name: &str, rank: usize, size_name: &str, size: usize) -> Result<(), GroupError> {
    if size == 0 || size > RANKS_MAX {
        return usage(format!("{size_name} is {size}, and a group has 1 to {RANKS_MAX} ranks"));
    }
    if rank >= size {
        return usage(format!(
            "{rank_name} is {rank}, and by {size_name} there are {size} ranks, from 0"
        ));
    }
    Ok(())
}

/// The addresses of `host:port`.
#[derive(Debug)]
struct Addresses {
    address: SocketAddr,
    others: Vec<SocketAddr>,
    is_everywhere: bool,
}

impl Addresses {
    const NONE: Self = Self {
        address: SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
        others: Vec::new(),
        is_everywhere: false,
    };
}

/// The addresses. The inner error: the host's name has no address yet. The outer error: the text never has one.
type Found = Result<Result<Addresses, GroupError>, GroupError>;

/// Looks the name up again until it has an address, or the wait ends.
fn await_addresses(
    end: Instant,
    interrupt: &Interrupt,
    mut find: impl FnMut() -> Found,
) -> Result<Addresses, GroupError> {
    loop {
        interrupt
            .check()
            .map_err(|error| GroupError::System { what: "joining the group", error })?;
        match find()? {
            Err(_) if Instant::now() + LOOK_UP_EVERY < end => thread::sleep(LOOK_UP_EVERY),
            found => return found,
        }
    }
}

const LOOK_UP_EVERY: Duration = Duration::from_millis(200);

fn coordinator(get: &impl Fn(&str) -> Option<String>) -> Result<Coordinator, GroupError> {
    let own = get("IRONRAIL_GROUP_COORDINATOR").map(|text| ("IRONRAIL_GROUP_COORDINATOR", text));
    let mlx =
        || Some(("MLX_IBV_COORDINATOR", get("MLX_RANK").and_then(|_| get("MLX_IBV_COORDINATOR"))?));
    let torch = || {
        let (host, port) = (get("MASTER_ADDR")?, get("MASTER_PORT")?);
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        Some(("MASTER_ADDR:MASTER_PORT", format!("{host}:{port}")))
    };
    let Some((name, text)) = own.or_else(mlx).or_else(torch) else {
        return usage(
            "nothing says where ranks meet: set IRONRAIL_GROUP_COORDINATOR to an address and port of rank 0",
        );
    };
    Ok(Coordinator { name, text })
}

impl Coordinator {
    /// The addresses of `host:port`. Port 0 is refused, as it stands for a different free port each time.
    fn find(&self) -> Found {
        let Self { name, text } = self;
        let mut found = match text.to_socket_addrs() {
            Ok(found) => found,
            // The text has no port, or one that is no number.
            Err(error) if error.kind() == ErrorKind::InvalidInput => Vec::new().into_iter(),
            Err(error) => return Ok(usage(format!("{name} is {text:?}: {error}"))),
        };
        match found.next() {
            Some(address) if address.port() != 0 => {
                let others: Vec<_> = found.collect();
                let is_loopback = |address: &SocketAddr| address.ip().is_loopback();
                let is_everywhere = is_name_of_a_machine(text)
                    && is_loopback(&address)
                    && others.iter().all(is_loopback);
                Ok(Ok(Addresses { address, others, is_everywhere }))
            }
            _ => usage(format!(
                "{name} is {text:?}, which is no address with a port, as host:4711; ports are 1 to 65535"
            )),
        }
    }
}

/// Whether the host of `host:port` is neither an address nor a name of the loopback interface. The name of a machine may have a loopback
/// address on that machine, as in Debian's /etc/hosts, and another address on other machines.
fn is_name_of_a_machine(text: &str) -> bool {
    let host = text.rsplit_once(':').map_or(text, |(host, _)| host).to_ascii_lowercase();
    let is_address = host.starts_with('[') || host.parse::<IpAddr>().is_ok();
    !is_address && !host.contains("localhost") && !host.contains("loopback")
}

/// All addresses of this machine: the first one accepts IPv4 too, unless the system has no IPv6 or separates the two.
fn all_addresses(port: u16) -> [SocketAddr; 2] {
    [(Ipv6Addr::UNSPECIFIED, port).into(), (Ipv4Addr::UNSPECIFIED, port).into()]
}

/// The hash of the token, the same in every build: the hashers of std may change with a release.
fn secret(token: Option<&str>) -> u64 {
    SipHasher13::new().hash(token.unwrap_or_default().as_bytes())
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
    use std::net::TcpListener;

    use super::*;
    use crate::bootstrap::Bootstrap;
    use crate::group::Builder;
    use crate::support::{WAIT, library};

    #[test]
    fn ranks_may_take_longer_to_come_to_the_group_than_the_join_of_rank_0_may_take() {
        const JOIN: Duration = Duration::from_millis(300);
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let start = move |rank, wait| Start::at(&free, rank, 2, None).unwrap().join(wait).unwrap();
        let group = |(place, hub)| Builder::new(&library()).joining(WAIT).join_with(place, hub);
        let second = start.clone();
        let first = thread::spawn(move || group(start(0, JOIN)).unwrap().barrier());
        let place = second(1, WAIT);
        thread::sleep(2 * JOIN);
        group(place).unwrap().barrier().unwrap();
        first.join().unwrap().unwrap();
    }

    #[test]
    fn two_groups_meet_at_one_address_in_turn_while_handles_of_the_first_are_left() {
        let probe = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = probe.local_addr().unwrap().to_string();
        drop(probe);
        let (comes_again, is_early) = std::sync::mpsc::channel();
        let join = move |rank: usize| {
            let (place, hub) = Start::at(&address, rank, 2, None).unwrap().join(WAIT).unwrap();
            let group = Builder::new(&library()).join_with(place, hub).unwrap();
            group.barrier().unwrap();
            group
        };
        let other = join.clone();
        let second = thread::spawn(move || {
            let first = other(1);
            first.downgrade().leave();
            comes_again.send(()).unwrap();
            drop((other(1), first));
        });
        let first = join(0);
        is_early.recv_timeout(WAIT).unwrap();
        // The second group is refused as long as the first one lasts.
        let end = Instant::now() + Duration::from_millis(200);
        while !second.is_finished() && Instant::now() < end {
            thread::yield_now();
        }
        first.downgrade().leave();
        drop((join(0), first));
        second.join().unwrap();
    }

    #[test]
    fn the_ranks_of_a_failed_group_meet_again_at_one_address_in_their_own_time() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let (comes_again, is_early) = std::sync::mpsc::channel();
        let join = move |rank: usize| {
            let (place, hub) =
                Start::at(&free.to_string(), rank, 2, None).unwrap().join(WAIT).unwrap();
            Builder::new(&library()).join_with(place, hub).unwrap()
        };
        let second = thread::spawn(move || {
            let group = join(1);
            group.abort();
            drop(group);
            comes_again.send(()).unwrap();
            join(1).barrier().unwrap();
        });
        let first = join(0);
        is_early.recv_timeout(WAIT).unwrap();
        // The rank is refused as long as rank 0 has not left.
        let end = Instant::now() + Duration::from_millis(200);
        while !second.is_finished() && Instant::now() < end {
            thread::yield_now();
        }
        let ended = first.barrier();
        assert!(matches!(ended, Err(GroupError::Aborted { rank: 1 })), "{ended:?}");
        drop(first);
        join(0).barrier().unwrap();
        second.join().unwrap();
    }

    #[test]
    fn a_token_is_the_same_number_in_every_build() {
        assert_eq!(
            [None, Some(""), Some("a word")].map(secret),
            [15_130_871_412_783_076_140, 15_130_871_412_783_076_140, 9_663_026_995_090_730_788]
        );
    }

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
    fn errors_of_variables_are_one_line() {
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
            (
                &[("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "::1"), ("MASTER_PORT", "x")],
                "MASTER_ADDR:MASTER_PORT is \"[::1]:x\", which is no address",
            ),
            (
                &[("RANK", "0"), ("WORLD_SIZE", "2"), ("IRONRAIL_GROUP_COORDINATOR", "::1:0")],
                "no address",
            ),
        ] {
            let said = start(variables).unwrap_err();
            assert!(said.is_usage() && said.to_string().contains(why), "{said}");
            assert!(!said.to_string().contains('\n'));
        }
    }

    #[test]
    fn a_host_without_an_address_is_distinguished_from_a_value_without_a_port() {
        // A label has at most 63 letters (RFC 1035, §2.3.4), so no server is asked.
        let text = format!("{}:4711", "x".repeat(64));
        let unknown = Start::at(&text, 0, 1, None).unwrap_err().to_string();
        assert!(unknown.starts_with(&format!("coordinator is {text:?}: ")), "{unknown}");
        for text in ["127.0.0.1", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:0", "", ":"] {
            let why = Start::at(text, 0, 1, None).unwrap_err().to_string();
            assert!(
                why.contains(&format!("coordinator is {text:?}, which is no address")),
                "{why}"
            );
        }
    }

    #[test]
    fn a_host_that_has_no_address_yet_is_looked_up_again_while_the_wait_lasts() {
        let known = Coordinator { name: "coordinator", text: "127.0.0.1:4711".to_owned() };
        let mut lookups = 0;
        let found = await_addresses(deadline(WAIT), &Interrupt::default(), || {
            lookups += 1;
            if lookups < 3 { Ok(usage("no address yet")) } else { known.find() }
        });
        assert_eq!((found.unwrap().address.port(), lookups), (4711, 3));
        let text = format!("{}:4711", "x".repeat(64));
        let start = Start::at(&text, 1, 2, None).unwrap();
        let why = start.join(Duration::ZERO).unwrap_err().to_string();
        assert!(why.starts_with(&format!("coordinator is {text:?}: ")), "{why}");
        let interrupt = Interrupt::default();
        interrupt.set();
        let why = start.join_unless(WAIT, &interrupt).unwrap_err().to_string();
        assert!(why.contains("operation interrupted"), "{why}");
    }

    #[test]
    fn ranks_meet_at_the_address_of_rank_0_among_all_of_a_name() {
        const ELSEWHERE: [u8; 4] = [192, 0, 2, 1]; // for documentation (RFC 5737)
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let start = |rank, first, others: &[SocketAddr]| {
            let start = Start::at(&SocketAddr::new(first, free.port()).to_string(), rank, 2, None);
            Start { others: others.to_vec(), ..start.unwrap() }
        };
        let barrier = |start: Start| {
            let (mut place, hub) = start.join(WAIT).unwrap();
            place.barrier(WAIT).unwrap();
            place.leave();
            hub.is_some_and(|hub| hub.wait_for_all_to_leave(WAIT))
        };
        // One address is of another machine, and one is listed twice.
        let first = start(0, ELSEWHERE.into(), &[free, free]);
        let second = start(1, ELSEWHERE.into(), &[free]);
        let second = thread::spawn(move || barrier(second));
        assert!(barrier(first));
        second.join().unwrap();
        let taken = TcpListener::bind(free).unwrap();
        let why = start(0, ELSEWHERE.into(), &[free]).join(WAIT).unwrap_err().to_string();
        assert!(why.contains(&format!("at {free}")) && why.contains("names another port"), "{why}");
        drop(taken);
        let why = start(0, ELSEWHERE.into(), &[]).join(WAIT).unwrap_err().to_string();
        assert!(why.contains("rank 0 runs on the host that has this address"), "{why}");
    }

    #[test]
    fn a_machine_whose_own_name_is_a_loopback_address_listens_at_all_its_addresses() {
        for (text, is_name) in [
            ("node7:4711", true),
            ("node7.cluster.example:4711", true),
            ("LOCALHOST:4711", false),
            ("localhost.localdomain:4711", false),
            ("ip6-loopback:4711", false),
            ("127.0.1.1:4711", false),
            ("[::1]:4711", false),
        ] {
            assert_eq!(is_name_of_a_machine(text), is_name, "{text}");
        }
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let start = |host: [u8; 4], rank, is_everywhere| {
            let at = SocketAddr::from((host, free.port())).to_string();
            Start { is_everywhere, ..Start::at(&at, rank, 2, None).unwrap() }
        };
        // The address that another machine has for the name.
        let other = start([127, 0, 0, 9], 1, false);
        let other = thread::spawn(move || other.join(WAIT).map(|(place, _)| place.leave()));
        let (place, hub) = start([127, 0, 1, 1], 0, true).join(WAIT).unwrap();
        other.join().unwrap().unwrap();
        place.leave();
        assert!(hub.unwrap().wait_for_all_to_leave(WAIT));
        let _taken = TcpListener::bind(free).unwrap();
        let why = start([127, 0, 1, 1], 0, true).join(WAIT).unwrap_err().to_string();
        assert!(why.contains("names another port"), "{why}");
    }

    #[test]
    fn an_interrupt_ends_the_search_for_the_rendezvous_and_the_wait_at_it() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let start = |rank| Start::at(&free.to_string(), rank, 2, None).unwrap();
        let (searching, waiting) = (Interrupt::default(), Interrupt::default());
        let (first, second) = (start(0), start(1));
        let search = {
            let searching = searching.clone();
            thread::spawn(move || second.join_unless(WAIT, &searching).map(drop))
        };
        searching.set();
        let why = search.join().unwrap().unwrap_err();
        assert!(why.to_string().contains("operation interrupted"), "{why}");
        let (mut place, hub) = first.join_unless(WAIT, &waiting).unwrap();
        let wait = thread::spawn(move || place.barrier(WAIT));
        waiting.set();
        let why = wait.join().unwrap().unwrap_err();
        assert!(matches!(why, GroupError::Bootstrap(_)), "{why}");
        drop(hub);
    }

    #[test]
    fn an_empty_variable_is_an_unset_one() {
        let torch =
            [("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "::1"), ("MASTER_PORT", "77")];
        let empty = [("IRONRAIL_GROUP_COORDINATOR", ""), ("IRONRAIL_GROUP_TOKEN", "")];
        let all: Vec<_> = torch.iter().chain(&empty).copied().collect();
        assert_eq!(start(&all).unwrap(), start(&torch).unwrap());
        let why = start(&[("RANK", ""), ("WORLD_SIZE", "1")]).unwrap_err().to_string();
        assert!(why.contains("no variable says which rank this is"), "{why}");
    }

    #[test]
    fn arguments_mean_the_same_as_variables() {
        let said = Start::at("127.0.0.1:4711", 1, 2, Some("sesame")).unwrap();
        let variables = [
            ("RANK", "1"),
            ("WORLD_SIZE", "2"),
            ("IRONRAIL_GROUP_COORDINATOR", "127.0.0.1:4711"),
            ("IRONRAIL_GROUP_TOKEN", "sesame"),
        ];
        assert_eq!(said, start(&variables).unwrap());
        assert!(Start::at("127.0.0.1:4711", 1023, 1024, None).is_ok());
        for (rank, size, why) in
            [(0, 0, "size is 0, and"), (2, 2, "rank is 2, and by size"), (0, 1025, "size is 1025")]
        {
            let said = Start::at("127.0.0.1:4711", rank, size, None).unwrap_err();
            assert!(said.is_usage() && said.to_string().contains(why), "{said}");
        }
    }

    #[test]
    fn a_meeting_of_the_launcher_counts_before_all_other_variables() {
        let text = "1/2/00000000000000ff/127.0.0.1:77";
        let others = [
            ("RANK", "0"),
            ("WORLD_SIZE", "1"),
            ("IRONRAIL_GROUP_COORDINATOR", "127.0.0.1:4711"),
            (MEETING_VARIABLE, text),
        ];
        let found = start(&others).unwrap();
        assert_eq!((found.meeting.to_string().as_str(), found.holds_hub), (text, false));
    }

    #[test]
    fn of_several_rendezvous_the_librarys_own_variable_counts_then_mlx_then_torchrun() {
        let all = [
            ("MASTER_ADDR", "::1"),
            ("MASTER_PORT", "3"),
            ("MLX_IBV_COORDINATOR", "127.0.0.1:2"),
            ("MLX_RANK", "0"),
            ("IRONRAIL_GROUP_COORDINATOR", "127.0.0.1:1"),
        ];
        let texts = ["[::1]:3", "[::1]:3", "127.0.0.1:2", "127.0.0.1:1"];
        for (count, text) in (2..).zip(texts) {
            let get = |name: &str| {
                let found = all[..count].iter().find(|(other, _)| *other == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            assert_eq!(coordinator(&get).unwrap().text, text, "{:?}", &all[..count]);
        }
    }

    #[test]
    fn mlx_gives_the_rank_and_its_file_the_size_and_the_devices() {
        let name = format!("ironrail-mlx-{}.json", std::process::id());
        let file = std::env::temp_dir().join(name);
        std::fs::write(&file, r#"[[null, "a"], ["b", null]]"#).unwrap();
        let mlx = [
            ("MLX_RANK", "1"),
            ("MLX_IBV_DEVICES", file.to_str().unwrap()),
            ("MLX_IBV_COORDINATOR", "127.0.0.1:77"),
            ("RANK", "5"),
            ("WORLD_SIZE", "9"),
        ];
        let found = start(&mlx);
        std::fs::remove_file(&file).unwrap();
        let found = found.unwrap();
        assert_eq!((found.rank(), found.size()), (1, 2));
        assert_eq!(found.matrix().unwrap().names(1, 0), ["b"]);
        assert_eq!(found.meeting.address, "127.0.0.1:77".parse().unwrap());
    }

    #[test]
    fn a_name_is_looked_up_once_if_no_time_is_left() {
        let mut lookups = 0;
        let found = await_addresses(Instant::now(), &Interrupt::default(), || {
            lookups += 1;
            Ok(usage("no address yet"))
        });
        assert!(found.is_err() && lookups == 1, "{lookups}");
    }

    #[test]
    fn a_rank_joins_at_the_address_that_a_name_has_later() {
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let hub = Hub::with_secret(&[loopback], 2, WAIT, secret(None)).unwrap();
        let text = hub.meeting(1).address.to_string();
        let unknown = Some(Coordinator { name: "coordinator", text });
        let start = Start::at("127.0.0.1:77", 1, 2, None).unwrap();
        let meeting = Meeting { address: loopback, ..start.meeting };
        let (place, own) = Start { meeting, unknown, ..start }.join(WAIT).unwrap();
        assert!(own.is_none() && place.rank() == 1);
    }

    #[test]
    fn no_address_is_the_name_of_a_machine_that_listens_everywhere() {
        for text in ["127.0.0.1:77", "127.0.1.1:77", "[::1]:77", "192.0.2.1:77"] {
            let found = Coordinator { name: "coordinator", text: text.to_owned() }.find();
            assert!(!found.unwrap().unwrap().is_everywhere, "{text}");
        }
    }

    #[test]
    fn an_interrupt_ends_the_wait_of_rank_0_for_the_others_to_leave() {
        for is_everywhere in [false, true] {
            let interrupt = Interrupt::default();
            // Another process may take the port meanwhile.
            let join = |_| {
                let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
                let start = Start::at(&free.to_string(), 0, 2, None).unwrap();
                Start { is_everywhere, ..start }.join_unless(WAIT, &interrupt).ok()
            };
            let (_place, hub) = (0..20).find_map(join).unwrap();
            interrupt.set();
            let (ends, ended) = std::sync::mpsc::channel();
            thread::spawn(move || ends.send(hub.unwrap().wait_for_all_to_leave(4 * WAIT)));
            assert_eq!(ended.recv_timeout(WAIT), Ok(false), "{is_everywhere}");
        }
    }
}
