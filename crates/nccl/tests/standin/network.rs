//! How ranks meet, and which network carries their data: the choice that NCCL makes from NCCL_NET and NCCL_NET_PLUGIN.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::time::Duration;

use ironrail_group::bootstrap::{Bootstrap, Hub, Meeting, PART_BYTES_MAX, Remote};
use ironrail_group::error::GroupError;
use ironrail_group::group::{Builder, Group};
use ironrail_group::loader::Library;

use crate::{Failure, INTERNAL_ERROR, REMOTE_ERROR, forever, is};

const WAIT: Duration = Duration::from_secs(20);
const INVALID_USAGE: i32 = 5;

/// The ranks, and the way between them.
#[derive(Debug)]
pub(crate) struct Network {
    way: Way,
    /// In the process that made the id.
    hub: Option<Hub>,
}

/// What carries the data.
#[derive(Debug)]
enum Way {
    /// As network Socket, over the rendezvous.
    Socket(Remote),
    Plugin(Group),
}

impl Way {
    /// The bytes of all ranks, over the rendezvous.
    fn meet(&mut self, part: &[u8]) -> Result<Vec<Vec<u8>>, Failure> {
        match self {
            Self::Socket(place) => place.all_gather(part, WAIT),
            Self::Plugin(group) => group.meet(part),
        }
        .map_err(failed)
    }
}

/// Where the ranks of an id ask for the rendezvous.
static LISTENER: Mutex<Option<TcpListener>> = Mutex::new(None);

/// An id: where rank 0 listens, as text.
pub(crate) fn unique_id() -> Result<[u8; 128], Failure> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(system)?;
    let text = listener.local_addr().map_err(system)?.to_string();
    *LISTENER.lock().expect("nothing panics under it") = Some(listener);
    let mut id = [0; 128];
    id[..text.len()].copy_from_slice(text.as_bytes());
    Ok(id)
}

impl Network {
    pub(crate) fn join(id: &[u8; 128], rank: usize, size: usize) -> Result<Self, Failure> {
        if is("hang") && rank == 1 {
            forever();
        }
        let listener = LISTENER.lock().expect("nothing panics under it").take();
        let (hub, meeting) = match listener {
            Some(listener) => {
                let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
                let hub = Hub::start(loopback, size, WAIT).map_err(failed)?;
                for _ in 1..size {
                    let (mut stream, _) = listener.accept().map_err(system)?;
                    let mut bytes = [0; 8];
                    stream.read_exact(&mut bytes).map_err(system)?;
                    let other = usize::try_from(u64::from_le_bytes(bytes)).unwrap_or(usize::MAX);
                    writeln!(stream, "{}", hub.meeting(other)).map_err(system)?;
                }
                let own = hub.meeting(rank);
                (Some(hub), own)
            }
            None => (None, ask(id, rank)?),
        };
        let place = Remote::join(meeting, WAIT).map_err(failed)?;
        let library = choose()?;
        let name = library.as_ref().map_or("Socket", |library| library.name()).to_owned();
        log("INFO", &format!("Using network {name}"));
        let own = match library {
            Some(library) => {
                let builder = Builder::new(&library).device(Some(0)).timeout(WAIT);
                Way::Plugin(builder.join(place).map_err(failed)?)
            }
            None => Way::Socket(place),
        };
        let way = if is("p2p") { "P2P/CUMEM".to_owned() } else { format!("NET/{name}/0") };
        let next = (rank + 1) % size;
        log("INFO", &format!("Channel 00/0 : {rank}[0] -> {next}[0] [send] via {way}"));
        Ok(Self { way: own, hub })
    }

    pub(crate) fn rank(&self) -> usize {
        match &self.way {
            Way::Socket(place) => place.rank(),
            Way::Plugin(group) => group.rank(),
        }
    }

    pub(crate) fn size(&self) -> usize {
        match &self.way {
            Way::Socket(place) => place.size(),
            Way::Plugin(group) => group.size(),
        }
    }

    /// The bytes of all ranks, one after the other; all give as many.
    pub(crate) fn all_gather(&mut self, part: &[u8]) -> Result<Vec<u8>, Failure> {
        if let Way::Plugin(group) = &self.way {
            let mut whole = vec![0; part.len() * group.size()];
            group.all_gather(part, &mut whole).map_err(failed)?;
            return Ok(whole);
        }
        let mut parts = vec![Vec::new(); self.size()];
        for piece in part.chunks(PART_BYTES_MAX) {
            let pieces = self.way.meet(piece)?;
            parts.iter_mut().zip(pieces).for_each(|(part, piece)| part.extend(piece));
        }
        Ok(parts.concat())
    }

    /// The bytes of all ranks, of any lengths.
    pub(crate) fn all_gather_any(&mut self, part: &[u8]) -> Result<Vec<Vec<u8>>, Failure> {
        let lens = self.way.meet(&(part.len() as u64).to_le_bytes())?;
        let lens: Vec<usize> = lens
            .iter()
            .map(|len| len.as_slice().try_into().map(u64::from_le_bytes).unwrap_or(0))
            .map(|len| usize::try_from(len).unwrap_or(0))
            .collect();
        let longest = lens.iter().copied().max().unwrap_or(0);
        if longest == 0 {
            return Ok(vec![Vec::new(); lens.len()]);
        }
        let mut padded = part.to_vec();
        padded.resize(longest, 0);
        let all = self.all_gather(&padded)?;
        Ok(all.chunks(longest).zip(lens).map(|(part, len)| part[..len].to_vec()).collect())
    }

    /// Waits for all, then closes.
    pub(crate) fn leave(mut self) -> Result<(), Failure> {
        self.way.meet(&[])?;
        match self.way {
            Way::Socket(place) => place.leave(),
            Way::Plugin(group) => drop(group),
        }
        drop(self.hub);
        Ok(())
    }
}

fn ask(id: &[u8; 128], rank: usize) -> Result<Meeting, Failure> {
    let text = String::from_utf8_lossy(id);
    let mut stream = TcpStream::connect(text.trim_end_matches('\0')).map_err(system)?;
    stream.write_all(&(rank as u64).to_le_bytes()).map_err(system)?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).map_err(system)?;
    line.trim().parse().map_err(failed)
}

/// The plugin, or none for Socket, as NCCL chooses: a plugin that cannot be loaded is a line in the log, and what NCCL_NET names must be
/// there.
fn choose() -> Result<Option<std::sync::Arc<Library>>, Failure> {
    if ::log::set_logger(&PluginLines).is_ok() {
        ::log::set_max_level(::log::LevelFilter::Info);
    }
    let wanted = std::env::var("NCCL_NET").ok();
    let is_wanted =
        |name: &str| wanted.as_ref().is_none_or(|wanted| wanted.eq_ignore_ascii_case(name));
    match std::env::var("NCCL_NET_PLUGIN").as_deref() {
        Err(_) | Ok("none") => {}
        // Blind: as if NCCL did not find the file.
        Ok(named) => match Library::open(if is("blind") { "no-such-file" } else { named }, None) {
            Ok(library) if is_wanted(library.name()) => {
                let (name, version) = (library.name(), library.version());
                log("INFO", &format!("NET/Plugin: Loaded net plugin {name} (v{version})"));
                return Ok(Some(library));
            }
            Ok(_) => {}
            Err(_) => log("INFO", &format!("NET/Plugin: Could not find: {named}.")),
        },
    }
    if is_wanted("Socket") {
        return Ok(None);
    }
    Err(Failure::new(INVALID_USAGE, "Failed to initialize any NET plugin"))
}

/// The plugin's lines are in NCCL's log, too.
struct PluginLines;

impl ::log::Log for PluginLines {
    fn enabled(&self, of: &::log::Metadata<'_>) -> bool {
        of.target() == "plugin"
    }

    fn log(&self, line: &::log::Record<'_>) {
        if self.enabled(line.metadata()) {
            log(line.level().as_str(), &line.args().to_string());
        }
    }

    fn flush(&self) {}
}

/// A line as NCCL writes it, into NCCL_DEBUG_FILE.
pub(crate) fn log(level: &str, what: &str) {
    let Some(path) = std::env::var_os("NCCL_DEBUG_FILE") else { return };
    let file = OpenOptions::new().create(true).append(true).open(path);
    if let Ok(mut file) = file {
        let own = std::process::id();
        let _ = writeln!(file, "host:{own}:{own} [0] NCCL {level} {what}");
    }
}

fn failed(why: GroupError) -> Failure {
    Failure::new(REMOTE_ERROR, why.to_string())
}

fn system(why: std::io::Error) -> Failure {
    Failure::new(INTERNAL_ERROR, why.to_string())
}
