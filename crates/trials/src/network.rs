//! Two network namespaces with links between them: one for the ranks' rendezvous, and one per rail.
//!
//! ```text
//!   namespace a                          namespace b
//!   meet   10.77.99.1 ────────────────── 10.77.99.2
//!   rail0  10.77.0.1  ── tbf ── tbf ──── 10.77.0.2
//!   rail1  10.77.1.1  ── tbf ── tbf ──── 10.77.1.2
//! ```
//!
//! Every rail has the same speed, by a token bucket (tc-tbf(8)) at both ends: otherwise the other rails would make up for a loss of one
//! rail, as the CPUs have time for more. The network needs root, ip(8), tc(8) and ss(8).

use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::Outcome;

/// Both namespaces, removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Network {
    /// Of rank 0 and of rank 1.
    sides: [String; 2],
    rails: usize,
    mbit: u32,
}

/// What is done to a rail's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    /// Both ends are down.
    Down,
    Up,
    /// Every packet is dropped, each way, without an error.
    Cut,
    Join,
    /// Established sockets on the link are destroyed, at the side of rank 0: both ends get an error (ss(8), -K). There may be none.
    Reset,
    /// A quarter of its speed.
    Slow,
    Fast,
    /// The address of rank 1's end goes, and another one comes.
    Readdress,
    /// The old address comes back.
    Address,
}

impl Network {
    /// Builds them: `rails` links of `mbit` Mbit/s each.
    pub(crate) fn new(rails: usize, mbit: u32) -> Outcome<Self> {
        let name = |side| format!("ironrail-{}-{side}", std::process::id());
        let network = Self { sides: [name("a"), name("b")], rails, mbit };
        for side in &network.sides {
            ip(&format!("netns add {side}"))?;
            ip(&format!("-n {side} link set lo up"))?;
        }
        network.link("meet", 99)?;
        for rail in 0..rails {
            network.link(&interface(rail), rail)?;
            network.set_speed(rail, mbit)?;
        }
        network.wait_until_up()?;
        Ok(network)
    }

    /// The interfaces of the rails, as IRONRAIL_RAILS takes them.
    pub(crate) fn rails(&self) -> String {
        (0..self.rails).map(interface).collect::<Vec<_>>().join(",")
    }

    /// Where rank 0 can listen.
    pub(crate) fn meeting(&self) -> String {
        format!("{}:7700", address(99, 0))
    }

    /// A command in the namespace of a rank, with the same process id.
    pub(crate) fn command(&self, rank: usize, program: &std::path::Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.sides[rank]]).arg(program);
        command
    }

    /// Does something to the link of a rail. Returns the number of destroyed sockets: 0 except by [`Deed::Reset`], and by that, too, where
    /// the kernel destroys none.
    pub(crate) fn act(&self, rail: usize, deed: Deed) -> Outcome<usize> {
        let device = interface(rail);
        let (old, new) = (address(rail, 1), format!("10.77.{rail}.12"));
        let change = |gone: &str, come: &str| -> Outcome<()> {
            ip(&format!("-n {} address del {gone}/24 dev {device}", self.sides[1]))?;
            ip(&format!("-n {} address add {come}/24 dev {device}", self.sides[1]))
        };
        match deed {
            Deed::Down => self.both(|side| ip(&format!("-n {side} link set {device} down"))),
            Deed::Up => self.both(|side| ip(&format!("-n {side} link set {device} up"))),
            Deed::Cut => self.both(|side| {
                tc(&format!("-n {side} qdisc add dev {device} clsact"))?;
                // A program of one instruction: drop (tc-bpf(8)). netem and matchall are rarer in kernels.
                let drop = ["-n", side, "filter", "add", "dev", &device, "egress", "bpf"];
                run(Command::new("tc").args(drop).args(["bytecode", "1,6 0 0 2", "da"]))
            }),
            Deed::Join => self.both(|side| tc(&format!("-n {side} qdisc del dev {device} clsact"))),
            // ss(8) lists only those that the kernel destroys.
            Deed::Reset => return self.ss(rail, &["-KHtn"]),
            Deed::Slow => self.set_speed(rail, self.mbit / 4),
            Deed::Fast => self.set_speed(rail, self.mbit),
            Deed::Readdress => change(&old, &new),
            Deed::Address => change(&new, &old),
        }?;
        Ok(0)
    }

    /// TCP sockets on a rail's link, established, seen from rank 0.
    pub(crate) fn sockets(&self, rail: usize) -> Outcome<usize> {
        self.ss(rail, &["-Htn", "state", "established"])
    }

    /// The lines of ss(8) about a rail's link, at the side of rank 0.
    fn ss(&self, rail: usize, options: &[&str]) -> Outcome<usize> {
        let mut ss = Command::new("ip");
        ss.args(["netns", "exec", &self.sides[0], "ss"]).args(options);
        let output = said(ss.args(["src", &address(rail, 0)]))?;
        Ok(String::from_utf8_lossy(&output).lines().count())
    }

    fn link(&self, device: &str, number: usize) -> Outcome<()> {
        let [a, b] = &self.sides;
        ip(&format!("link add {device} netns {a} type veth peer name {device} netns {b}"))?;
        for (end, side) in self.sides.iter().enumerate() {
            ip(&format!("-n {side} address add {}/24 dev {device}", address(number, end)))?;
            ip(&format!("-n {side} link set {device} up"))?;
        }
        Ok(())
    }

    /// Waits for all links. The kernel reports carriers at most once a second, and libfabric skips interfaces without a carrier.
    pub(crate) fn wait_until_up(&self) -> Outcome<()> {
        let is_up = |side: &String| {
            let shown = Command::new("ip").args(["-n", side, "-o", "link", "show"]).output()?;
            let text = String::from_utf8_lossy(&shown.stdout).into_owned();
            Outcome::Ok(
                text.lines().filter(|line| line.contains(" state UP ")).count() > self.rails,
            )
        };
        for _ in 0..UP_POLLS {
            if is_up(&self.sides[0])? && is_up(&self.sides[1])? {
                return Ok(());
            }
            thread::sleep(UP_POLL);
        }
        Err("the links did not come up".into())
    }

    fn set_speed(&self, rail: usize, mbit: u32) -> Outcome<()> {
        let device = interface(rail);
        let bucket = format!("tbf rate {mbit}mbit burst 256kb latency 20ms");
        self.both(|side| tc(&format!("-n {side} qdisc replace dev {device} root {bucket}")))
    }

    fn both(&self, each: impl Fn(&str) -> Outcome<()>) -> Outcome<()> {
        self.sides.iter().try_for_each(|side| each(side))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for side in &self.sides {
            let _ = ip(&format!("netns del {side}"));
        }
    }
}

/// Why a trial of [`Deed::Reset`] was none.
pub(crate) const NONE_DESTROYED: &str =
    "ss destroyed no socket: the kernel needs INET_DIAG_DESTROY, and the provider has to use TCP";

const UP_POLL: Duration = Duration::from_millis(50);
const UP_POLLS: usize = 200;

fn interface(rail: usize) -> String {
    format!("rail{rail}")
}

fn address(link: usize, end: usize) -> String {
    format!("10.77.{link}.{}", end + 1)
}

fn ip(words: &str) -> Outcome<()> {
    run(Command::new("ip").args(words.split_whitespace()))
}

fn tc(words: &str) -> Outcome<()> {
    run(Command::new("tc").args(words.split_whitespace()))
}

fn run(command: &mut Command) -> Outcome<()> {
    said(command).map(drop)
}

/// The standard output of a command.
fn said(command: &mut Command) -> Outcome<Vec<u8>> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{command:?} failed: {}", said.trim()).into())
}
