//! Ranks on this machine and others: each describes itself, then all pairs exchange messages.
//!
//! A rank is this command, started here or by a remote shell (`ssh HOST …`), with this process's variables. The address of the rendezvous
//! is passed on standard input, since every user can read a command line.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use clap::Args;
use ironrail_group::bootstrap::Hub;
use ironrail_group::error::GroupError;

use super::machine::{Group, Machine, Pair, are_apart};
use super::pairs;
use super::read::HIDDEN;
use super::said::Said;
use crate::answers::{self, MARK};
use crate::overheard::{self, Overheard};
use crate::shell::quoted;
use crate::values::whole;
use crate::{files, open_files};

/// Which ranks.
#[derive(Clone, Debug, Args)]
pub(super) struct Ranks {
    /// Ranks to compare, and to exchange messages between each pair of: here, or on the hosts in turn
    #[arg(short = 'n', long, value_name = "COUNT", value_parser = whole(1, RANKS_MAX))]
    ranks: Option<usize>,
    /// Another host, reached by a remote shell; this one is rank 0. May be repeated
    #[arg(long, value_name = "HOST", value_delimiter = ',', value_parser = host)]
    peer: Vec<String>,
    /// A file of hosts, one on a line; `slots=4` after it stands for four ranks there
    #[arg(long, value_name = "FILE", conflicts_with = "peer")]
    hosts: Option<PathBuf>,
    /// The remote shell: it gets the host and a command
    #[arg(long, value_name = "COMMAND", default_value = "ssh -o BatchMode=yes", value_parser = shell)]
    rsh: String,
    /// This command's path on the other hosts [default: its own]
    #[arg(long, value_name = "FILE")]
    at: Option<PathBuf>,
    /// The other hosts use their own variables, not this process's
    #[arg(long)]
    own_environment: bool,
}

impl Ranks {
    /// Whether other ranks were asked for.
    pub(super) fn is_asked(&self) -> bool {
        self.ranks.is_some() || !self.peer.is_empty() || self.hosts.is_some()
    }

    /// The host of each rank; None for this one.
    fn places(&self) -> Result<Vec<Option<String>>, GroupError> {
        let places = match &self.hosts {
            None if self.peer.is_empty() => vec![None],
            None => {
                let peers = self.peer.iter().cloned().map(Some);
                std::iter::once(None).chain(peers).collect()
            }
            Some(file) => parse(file, &files::read(file)?)?,
        };
        if places.is_empty() {
            return Err(GroupError::Usage("the file of hosts names none".to_owned()));
        }
        let count = self.ranks.unwrap_or(places.len());
        if !(1..=RANKS_MAX).contains(&count) {
            let more = if self.hosts.is_some() && self.ranks.is_none() { " or more" } else { "" };
            return Err(GroupError::Usage(format!("1 to {RANKS_MAX} ranks, not {count}{more}")));
        }
        Ok(places.iter().cycle().take(count).cloned().collect())
    }
}

/// A host to pass to a remote shell, which would take a word with `-` before it for an option.
fn host(text: &str) -> Result<String, String> {
    if text.is_empty() || text.starts_with('-') || text.contains(char::is_whitespace) {
        return Err("expected the name or address of a host".to_owned());
    }
    Ok(text.to_owned())
}

/// The value of `--rsh`: a script may pass a variable that is empty.
fn shell(text: &str) -> Result<String, String> {
    if text.trim().is_empty() {
        return Err("expected a command, such as ssh".to_owned());
    }
    Ok(text.to_owned())
}

/// Each rank opens a listener for each other one.
const RANKS_MAX: usize = 256;

/// Lines with a host and optionally `slots=N` or `:N`, as MPI launchers use. Any other word is an error.
fn parse(file: &Path, text: &str) -> Result<Vec<Option<String>>, GroupError> {
    let mut places = Vec::new();
    let name = file.display();
    for (number, line) in (1..).zip(text.lines()) {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let Some(first) = words.next() else { continue };
        let no_count = |word: &str| {
            GroupError::Usage(format!(
                "{name}, line {number}: {word} is not slots=NUMBER, 1 or more"
            ))
        };
        let (named, count) = match first.rsplit_once(':') {
            // An IPv6 address has more colons than one.
            Some((host, count)) if !host.contains(':') && count.parse::<usize>().is_ok() => {
                (host, Some(count.parse().map_err(|_| no_count(first))?))
            }
            _ => (first, None),
        };
        host(named).map_err(|_| {
            GroupError::Usage(format!("{name}, line {number}: {first} names no host"))
        })?;
        let slots = |word: &str| {
            let slots = word.strip_prefix("slots=").and_then(|slots| slots.parse().ok());
            slots.ok_or_else(|| no_count(word))
        };
        let slots = words.map(slots).collect::<Result<Vec<NonZeroUsize>, _>>()?.pop();
        let here = named == "localhost" || named == fabric::host_name();
        let place = (!here).then(|| named.to_owned());
        let count = count.or(slots).map_or(1, NonZeroUsize::get);
        // At most one rank more than allowed is added, which shows that there are too many.
        let room = (RANKS_MAX + 1).saturating_sub(places.len());
        places.extend(std::iter::repeat_n(place, count.min(room)));
    }
    Ok(places)
}

/// Describes all ranks, and lets each pair exchange messages.
pub(super) fn describe_all(
    ranks: &Ranks,
    own: &[String],
    wait: Duration,
) -> Result<Group, GroupError> {
    let places = ranks.places()?;
    let describe: Vec<_> =
        own.iter().cloned().chain(["--describe".to_owned(), "-".to_owned()]).collect();
    let lines = vec![String::new(); places.len()];
    let files = open_files::allow_all();
    let answers = run_all(ranks, files, &places, &describe, &lines, wait * DESCRIBE_WAITS)?;
    let described = answers.into_iter().zip(&places).map(|(answer, place)| {
        let host = place.clone().unwrap_or_else(fabric::host_name);
        let unreachable = |why: String| Machine {
            host: host.clone(),
            unreachable: Some(why),
            ..Machine::default()
        };
        match answer.and_then(|text| group_in(&text)) {
            Ok(mut group) if !group.ranks.is_empty() => group.ranks.remove(0),
            Ok(_) => unreachable("it has described nothing".to_owned()),
            Err(why) => unreachable(why),
        }
    });
    let mut group = Group { ranks: described.collect(), ..Group::default() };
    group.pairs = exchange(ranks, files, &places, &group, wait)?;
    Ok(group)
}

/// The most waits of a description: for the libraries, the GPU's driver and the plugin, each in a process of its own, and for the plugin's
/// devices.
const DESCRIBE_WAITS: u32 = 12;

/// The description in a host's output. A remote shell may print lines before and after it.
fn group_in(text: &str) -> Result<Group, String> {
    let mut error = "there is none in it".to_owned();
    // A remote shell with a terminal ends lines by "\r\n".
    let is_start = |at: &usize| text[at + 1..].trim_start_matches('\r').starts_with('\n');
    let starts = text.match_indices('{').map(|(at, _)| at).filter(is_start);
    for at in starts.filter(|at| text[..*at].is_empty() || text[..*at].ends_with('\n')) {
        match serde_json::Deserializer::from_str(&text[at..]).into_iter::<Group>().next() {
            Some(Ok(group)) => return Ok(group),
            Some(Err(why)) => error = why.to_string(),
            None => {}
        }
    }
    Err(format!("its answer cannot be read: {error}"))
}

/// Exchanges messages between the ranks whose plugin works.
fn exchange(
    ranks: &Ranks,
    files: Option<u64>,
    places: &[Option<String>],
    group: &Group,
    wait: Duration,
) -> Result<Vec<Pair>, GroupError> {
    let works =
        |rank: &usize| group.ranks[*rank].winner().filter(|one| one.transfer.is_some()).is_some();
    let (able, unnamed): (Vec<_>, Vec<_>) = (0..places.len())
        .filter(works)
        .partition(|rank| facing(places[*rank].as_deref()).is_some());
    let mut pairs = Pairs::default();
    unnamed_pairs(group, places, &able, &unnamed, &mut pairs);
    let Some(plugin) = able.first().and_then(|rank| group.ranks[*rank].winner()) else {
        return Ok(pairs.0.into_values().collect());
    };
    if able.len() < 2 {
        return Ok(pairs.0.into_values().collect());
    }
    let name = if plugin.asked.is_empty() { "libnccl-net.so" } else { &plugin.asked };
    let arguments =
        ["--probe", "pairs", "--net", name, "--timeout", &wait.as_secs_f64().to_string()];
    let arguments: Vec<_> = arguments.map(str::to_owned).to_vec();
    let remote: Vec<_> = able.iter().map(|rank| places[*rank].clone()).collect();
    let any = if remote.iter().all(Option::is_none) {
        Ipv4Addr::LOCALHOST
    } else {
        Ipv4Addr::UNSPECIFIED
    };
    let hub = Hub::start(SocketAddr::from((any, 0)), able.len(), wait * 4)?;
    let lines = (0..able.len()).map(|rank| {
        let mut meeting = hub.meeting(rank);
        if let Some(address) = facing(remote[rank].as_deref()) {
            meeting.address.set_ip(address);
        }
        meeting.to_string()
    });
    let devices = able.iter().map(|rank| group.ranks[*rank].devices().len()).max().unwrap_or(0);
    let batches = pairs::batches(able.len(), devices).map(|_| BATCH_WAITS).sum();
    let lines: Vec<_> = lines.collect();
    let answers = run_all(ranks, files, &remote, &arguments, &lines, wait * batches)?;
    for (to, answer) in answers.into_iter().enumerate() {
        match answer.and_then(|text| pairs_of(&text, &able)) {
            Ok(found) => found.into_iter().for_each(|pair| pairs.add(pair)),
            Err(why) => {
                let why = format!("rank {} ended: {why}", able[to]);
                for from in able.iter().filter(|from| **from != able[to]) {
                    pairs.fail(group, *from, able[to], &why);
                }
            }
        }
    }
    Ok(pairs.0.into_values().collect())
}

/// A child's waits for one batch of devices at most: to meet, to connect, for the last rank, to exchange messages, and for the last rank again.
const BATCH_WAITS: u32 = 8;

/// The pairs by sender, receiver and device.
#[derive(Default)]
struct Pairs(BTreeMap<(usize, usize, usize), Pair>);

impl Pairs {
    /// Adds the result of one end. A message that has arrived counts as failed if the sender's end has failed.
    fn add(&mut self, pair: Pair) {
        let known = self.0.entry((pair.from, pair.to, pair.device)).or_insert_with(|| Pair {
            transfer: None,
            failure: None,
            ..pair
        });
        known.transfer = known.transfer.or(pair.transfer);
        known.failure = known.failure.take().or(pair.failure);
    }

    /// Adds a failure of all devices of a pair of ranks.
    fn fail(&mut self, group: &Group, from: usize, to: usize, why: &str) {
        let [ours, theirs] = [from, to].map(|rank| group.ranks[rank].devices());
        for (device, (one, other)) in ours.iter().zip(theirs).enumerate() {
            let failure = (!are_apart(one.plane, other.plane)).then(|| why.to_owned());
            let pair = Pair { from, to, device, transfer: None, failure };
            self.0.insert((from, to, device), pair);
        }
    }
}

/// The pairs in a rank's output. Ranks are numbered there by their indices in `able`.
fn pairs_of(text: &str, able: &[usize]) -> Result<Vec<Pair>, String> {
    let named = |pair: Pair| {
        let (from, to) = (able.get(pair.from)?, able.get(pair.to)?);
        Some(Pair { from: *from, to: *to, ..pair })
    };
    for said in text.lines().filter_map(answers::find) {
        match said {
            Said::Pairs(pairs) => {
                return match pairs.into_iter().map(named).collect() {
                    Some(pairs) => Ok(pairs),
                    None => Err("it has named ranks that do not exist".to_owned()),
                };
            }
            Said::Failed(why) => return Err(why),
            _ => {}
        }
    }
    Err("it has said nothing".to_owned())
}

/// The address at which a host can reach this host. None: the address of that host is not known, as of a name that only the remote shell
/// knows.
fn facing(host: Option<&str>) -> Option<IpAddr> {
    let Some(host) = host else { return Some(Ipv4Addr::LOCALHOST.into()) };
    let host = host.rsplit('@').next().unwrap_or(host);
    // Connecting a datagram socket sends nothing; the kernel chooses the source address.
    let towards = |target: SocketAddr| {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
        socket.connect(target).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    let targets = (host, 9).to_socket_addrs().into_iter().flatten();
    targets.filter(SocketAddr::is_ipv4).find_map(towards)
}

/// The pairs of ranks for which this host has no address at which they would meet.
fn unnamed_pairs(
    group: &Group,
    places: &[Option<String>],
    able: &[usize],
    unnamed: &[usize],
    pairs: &mut Pairs,
) {
    for one in unnamed.iter().rev() {
        let host = places[*one].as_deref().unwrap_or_default();
        let why = format!(
            "this host has no IPv4 address for {host}, which the remote shell may know by another name: give its address, or a name that resolves"
        );
        for other in able.iter().chain(unnamed).filter(|other| *other != one) {
            pairs.fail(group, *one, *other, &why);
            pairs.fail(group, *other, *one, &why);
        }
    }
}

/// Runs the command for all ranks at once, with a line on each standard input. Returns the output, or the reason why there is none. This process
/// has three files for each of them; those that it starts here may have as many as it could before: `files`, if it has raised its limit.
fn run_all(
    ranks: &Ranks,
    files: Option<u64>,
    places: &[Option<String>],
    arguments: &[String],
    lines: &[String],
    limit: Duration,
) -> Result<Vec<Result<String, String>>, GroupError> {
    let own = std::env::current_exe()
        .map_err(|error| GroupError::System { what: "finding this executable", error })?;
    let started = places.iter().zip(lines).map(|(place, line)| {
        let mut command = match place {
            None => {
                let mut command = Command::new(&own);
                command.args(["doctor", "--launcher", &process::id().to_string()]).args(arguments);
                command.args(files.map(|files| format!("--files={files}")));
                command
            }
            Some(host) => remote(ranks, host, &own, arguments),
        };
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let line = line.clone();
        // The thread starts the process, so that there is no process without a thread.
        let run = move || {
            let mut child = command.spawn().map_err(|error| error.to_string())?;
            if let Some(mut input) = child.stdin.take() {
                let _ = writeln!(input, "{line}");
            }
            answer(child, limit)
        };
        thread::Builder::new().spawn(run).map_err(|error| error.to_string())
    });
    let started: Vec<Result<_, String>> = started.collect();
    let join = |one: Result<thread::JoinHandle<Result<String, String>>, String>| {
        one.and_then(|thread| thread.join().unwrap_or_else(|_| Err("a thread panicked".to_owned())))
    };
    Ok(started.into_iter().map(join).collect())
}

fn remote(ranks: &Ranks, host: &str, own: &Path, arguments: &[String]) -> Command {
    let mut words = ranks.rsh.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or("ssh"));
    command.args(words).arg(host);
    let at = ranks.at.as_deref().unwrap_or(own);
    let mut line = vec!["env".to_owned()];
    if !ranks.own_environment {
        let forwarded = super::read::variables();
        // Variables of the job are the host's own, and the values of hidden ones are not known.
        let forwarded = forwarded
            .iter()
            .filter(|(name, value)| !name.starts_with("SLURM_") && *value != HIDDEN);
        line.extend(forwarded.map(|(name, value)| quoted(&format!("{name}={value}"))));
    }
    line.push(quoted(&at.to_string_lossy()));
    line.push("doctor".to_owned());
    line.extend(arguments.iter().map(|word| quoted(word)));
    command.arg(line.join(" "));
    command
}

fn answer(mut child: Child, limit: Duration) -> Result<String, String> {
    let (Some(output), Some(errors)) = (child.stdout.take(), child.stderr.take()) else {
        return Err("it has no output".to_owned());
    };
    let (send, receive) = std::sync::mpsc::channel();
    let listen = || {
        let complaints = Overheard::from(errors)?;
        thread::Builder::new().spawn(move || send.send(overheard::whole(output)))?;
        Ok(complaints)
    };
    let heard: io::Result<_> = listen();
    let complaints =
        heard.inspect_err(|_| overheard::kill(&mut child)).map_err(|error| error.to_string())?;
    let text = match receive.recv_timeout(limit) {
        Ok(Some(text)) => Ok(text),
        // Another host may write for ever.
        Ok(None) => Err(format!("it has printed more than {} MiB", overheard::MOST >> 20)),
        Err(_) => Err(format!("it has not ended for {:.0} s", limit.as_secs_f64())),
    };
    let text = text.inspect_err(|_| overheard::kill(&mut child))?;
    let status = child.wait().map_err(|error| error.to_string())?;
    if status.success() || text.contains(MARK) {
        return Ok(text);
    }
    let complaints = complaints.text();
    let last = complaints.lines().last().unwrap_or("no word of why");
    Err(format!("{status}: {last}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_hosts_is_read_as_launchers_read_it() {
        let places = parse(
            Path::new("hosts"),
            "# ours\nnode1 slots=2\n\nnode2:1 # the other\nlocalhost\nfe80::1\n",
        );
        let places = places.unwrap();
        let names: Vec<_> = places.iter().map(|place| place.as_deref().unwrap_or("here")).collect();
        assert_eq!(names, ["node1", "node1", "node2", "here", "fe80::1"]);
    }

    #[test]
    fn more_ranks_than_there_may_be_are_counted_and_not_listed() {
        let all = "localhost slots=18446744073709551615\nnode2:18446744073709551615\n";
        assert_eq!(parse(Path::new("hosts"), all).unwrap().len(), RANKS_MAX + 1);
    }

    #[test]
    fn a_word_that_is_not_slots_is_an_error_with_its_line() {
        let wrong = |line: &str| {
            let text = format!("# ours\nnode1 slots=2\n{line}\n");
            parse(Path::new("hosts"), &text).unwrap_err().to_string()
        };
        for word in ["slots=x", "slot=4", "slots", "slots=-1", "slots=0"] {
            let why = wrong(&format!("localhost {word}"));
            assert_eq!(why, format!("hosts, line 3: {word} is not slots=NUMBER, 1 or more"));
        }
        assert_eq!(wrong("node2:0"), "hosts, line 3: node2:0 is not slots=NUMBER, 1 or more");
        assert_eq!(wrong("-v slots=2"), "hosts, line 3: -v names no host");
    }

    #[test]
    fn a_host_is_a_word_that_no_remote_shell_takes_for_an_option() {
        for right in ["node2", "me@node2", "10.0.0.2", "fe80::1", "größe"] {
            assert_eq!(host(right).as_deref(), Ok(right));
        }
        for wrong in ["", " ", "-oProxyCommand=x", "node2 node3"] {
            assert!(host(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_description_is_found_among_lines_of_a_shell_and_of_a_terminal() {
        let text = serde_json::to_string_pretty(&Group::default()).unwrap();
        for said in [text.clone(), format!("Welcome {{\n{text}\nbye\n"), text.replace('\n', "\r\n")]
        {
            assert_eq!(group_in(&said), Ok(Group::default()), "{said}");
        }
        assert!(group_in("Welcome\n").is_err());
    }

    #[test]
    fn the_whole_output_of_a_rank_that_names_missing_ranks_is_refused() {
        let said = |from, to| {
            let pair = Pair { from, to, device: 0, transfer: None, failure: None };
            let said = serde_json::to_string(&Said::Pairs(vec![pair])).unwrap();
            pairs_of(&format!("{MARK}{said}\n"), &[0, 3])
        };
        assert!(matches!(said(1, 0).as_deref(), Ok([Pair { from: 3, to: 0, .. }])));
        for (from, to) in [(2, 0), (1, 3), (usize::MAX, 0)] {
            assert_eq!(said(from, to).unwrap_err(), "it has named ranks that do not exist");
        }
    }
}
