//! The grouping as text: for logs, and for a terminal.

use std::fmt::{self, Display, Formatter};

use crate::group::{Grouping, LeftOut, Omission, Reason};
use crate::hint::Hint;
use crate::machine::Machine;
use crate::nic::Nic;
use crate::properties::properties;

impl Display for Reason {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gpus { place, gpus, nics, devices } => {
                write!(f, "{} below {place} with ", count(*nics, "NIC"))?;
                match gpus.as_slice() {
                    [gpu] => write!(f, "GPU {gpu}")?,
                    gpus => {
                        let names: Vec<_> = gpus.iter().map(ToString::to_string).collect();
                        write!(f, "GPUs {}", names.join(", "))?;
                    }
                }
                share(f, *devices)
            }
            Self::RootPort { port, nics, devices } => {
                let meet = if *nics == 1 { "meets" } else { "meet" };
                write!(f, "{} below root port {port}, which {meet} no GPU", count(*nics, "NIC"))?;
                share(f, *devices)
            }
            Self::Alone => {
                f.write_str("no bridge is known that it shares with a GPU or another NIC")
            }
            Self::Interfaces(class) => {
                write!(f, "{} interfaces, which software drives, make one device", class.word())
            }
            Self::Named => f.write_str("they are named for it"),
        }
    }
}

fn share(f: &mut Formatter<'_>, devices: usize) -> fmt::Result {
    if devices == 1 { Ok(()) } else { write!(f, ", shared out to {devices} devices") }
}

fn count(number: usize, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

impl LeftOut {
    /// The reason, as a phrase that follows the NIC's name.
    pub fn phrase(&self, nics: &[Nic]) -> String {
        match self.why {
            Omission::LinkDown => "its port has no link".to_owned(),
            Omission::SamePort(taken) => {
                let taken = nics.get(taken).map_or("another function", |nic| nic.name.as_str());
                format!("it is a function of the same port as {taken}")
            }
            Omission::LeadsLessFar(class) => {
                format!("{} interfaces lead to more hosts", class.word())
            }
            Omission::BeyondLimit => "the device has as many rails as it may".to_owned(),
        }
    }
}

impl Grouping {
    /// A paragraph per device: its rails, its properties for NCCL, and the reason.
    pub fn text(&self, machine: &Machine, nics: &[Nic], hint: Option<&Hint>) -> String {
        let mut lines = Vec::new();
        for (index, (group, known)) in
            self.groups.iter().zip(properties(machine, nics, self)).enumerate()
        {
            let names: Vec<_> = group.rails.iter().map(|rail| nics[*rail].name.as_str()).collect();
            let speed = known
                .speed_mbps
                .map_or_else(|| "speed unknown".to_owned(), |speed| format!("{speed} Mb/s"));
            let place =
                known.address.map_or_else(|| "not on PCI".to_owned(), |at| format!("at {at}"));
            let rails = count(group.rails.len(), "rail");
            lines.push(format!("device {index}: {} ({rails}, {speed}, {place})", names.join(" ")));
            lines.push(format!("  because: {}", group.reason));
            let raised =
                hint.into_iter().flat_map(|hint| &hint.raised).find(|one| one.device == index);
            if let Some(raised) = raised {
                lines.push(format!(
                    "  NCCL gets {} lanes: by one link it would assume {} of {} Mb/s",
                    raised.lanes, raised.believed_mbps, raised.carries_mbps
                ));
            }
        }
        for left in &self.left_out {
            let name = nics.get(left.nic).map_or("?", |nic| nic.name.as_str());
            lines.push(format!("left out: {name}: {}", left.phrase(nics)));
        }
        lines.join("\n") + "\n"
    }
}
