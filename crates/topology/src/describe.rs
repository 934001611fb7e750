//! A machine as text, for tests and for users' reports.
//!
//! One object per line; fields in any order behind the first two words; `#` begins a comment:
//!
//! ```text
//! pci 0000:46:01.0 below 0000:45:00.0 class 060400 vendor 1d0f device 0200 numa 0 link 8.0 x16
//! nic rdmap79s0 at 0000:4f:00.0 speed 100000 network Ethernet
//! nic eth0 speed 10000 interface ordinary
//! ```
//!
//! `physical` of a `pci` names the physical function of a virtual one, `guid` its node's GUID; `link` has a speed in GT/s and a width,
//! either of which may be `?`. A `nic` may be `down` or `up`, and a `part` of the function at its address: a subfunction.

use std::fmt::{self, Display, Formatter};
use std::str::{FromStr, SplitWhitespace};

use crate::link::{LaneSpeed, Link};
use crate::machine::{Machine, PciFunction};
use crate::nic::{Class, Nic};

/// A machine, and those of its NICs that may carry rails.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Description {
    /// The functions on its buses.
    pub machine: Machine,
    /// The NICs, in the order of the text.
    pub nics: Vec<Nic>,
}

/// A line that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescriptionError {
    /// Its number, from 1.
    pub line: usize,
    /// The word that cannot be parsed; empty at the end of the line.
    pub word: String,
}

impl Display for DescriptionError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.word.as_str() {
            "" => write!(f, "line {} ends too early", self.line),
            word => write!(f, "line {} is not understood at {word:?}", self.line),
        }
    }
}

impl std::error::Error for DescriptionError {}

impl FromStr for Description {
    type Err = DescriptionError;

    fn from_str(text: &str) -> Result<Self, DescriptionError> {
        let (mut functions, mut nics) = (Vec::new(), Vec::new());
        for (line, text) in (1..).zip(text.lines()) {
            let facts = text.split('#').next().unwrap_or_default();
            // Names are printed, and the text may come from elsewhere.
            if let Some(word) = facts.split_whitespace().find(|word| !word.chars().all(is_shown)) {
                return Err(DescriptionError { line, word: word.to_owned() });
            }
            let mut words = Words(facts.split_whitespace());
            let read = match words.0.next() {
                None => Ok(()),
                Some("pci") => words.function().map(|one| functions.push(one)),
                Some("nic") => words.nic().map(|one| nics.push(one)),
                Some(word) => Err(word.to_owned()),
            };
            read.map_err(|word| DescriptionError { line, word })?;
        }
        Ok(Self { machine: Machine::new(functions), nics })
    }
}

/// Whether a letter is neither a command to the terminal, nor invisible, nor turns the direction of the letters beside it: Rust escapes those
/// when it writes a letter in quotes, beside the quotes and the backslash.
fn is_shown(letter: char) -> bool {
    matches!(letter, '\'' | '"' | '\\') || letter.escape_debug().len() == 1
}

/// The rest of a line. An error is the word that cannot be parsed.
struct Words<'a>(SplitWhitespace<'a>);

impl Words<'_> {
    fn function(&mut self) -> Result<PciFunction, String> {
        let mut made = PciFunction::at(self.parse()?);
        while let Some(word) = self.0.next() {
            match word {
                "below" => made.above = Some(self.parse()?),
                "class" => made.class = self.hex(u32::from_str_radix)?,
                "vendor" => made.vendor = self.hex(u16::from_str_radix)?,
                "device" => made.device = self.hex(u16::from_str_radix)?,
                "guid" => made.node_guid = Some(self.hex(u64::from_str_radix)?),
                "numa" => made.numa = Some(self.parse()?),
                "physical" => made.physical = Some(self.parse()?),
                "link" => {
                    let speed = self.with(|word| match word {
                        "?" => Some(None),
                        known => LaneSpeed::parse(known).map(Some),
                    })?;
                    let lanes = self.with(|word| match word {
                        "?" => Some(None),
                        known => known.strip_prefix('x')?.parse().ok().map(Some),
                    })?;
                    made.link = Link { speed, lanes };
                }
                other => return Err(other.to_owned()),
            }
        }
        Ok(made)
    }

    fn nic(&mut self) -> Result<Nic, String> {
        let name = self.0.next().ok_or_else(String::new)?.to_owned();
        let mut made = Nic {
            name,
            address: None,
            is_part: false,
            speed_mbps: None,
            link_up: None,
            network: String::new(),
            interface: None,
        };
        while let Some(word) = self.0.next() {
            match word {
                "at" => made.address = Some(self.parse()?),
                "part" => made.is_part = true,
                "speed" => made.speed_mbps = Some(self.parse()?),
                "network" => made.network = self.parse()?,
                "up" => made.link_up = Some(true),
                "down" => made.link_up = Some(false),
                "interface" => made.interface = Some(self.with(class)?),
                other => return Err(other.to_owned()),
            }
        }
        Ok(made)
    }

    fn parse<T: FromStr>(&mut self) -> Result<T, String> {
        self.with(|word| word.parse().ok())
    }

    fn hex<T, E>(&mut self, parse: fn(&str, u32) -> Result<T, E>) -> Result<T, String> {
        self.with(|word| parse(word, 16).ok())
    }

    fn with<T>(&mut self, parse: impl Fn(&str) -> Option<T>) -> Result<T, String> {
        let word = self.0.next().ok_or_else(String::new)?;
        parse(word).ok_or_else(|| word.to_owned())
    }
}

fn class(word: &str) -> Option<Class> {
    let all = [Class::Ordinary, Class::Bridge, Class::LinkLocal, Class::Loopback, Class::Container];
    all.into_iter().find(|class| class.word() == word)
}

impl Display for Description {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.machine.functions().try_for_each(|one| write_function(f, one))?;
        self.nics.iter().try_for_each(|one| write_nic(f, one))
    }
}

fn write_function(f: &mut Formatter<'_>, one: &PciFunction) -> fmt::Result {
    let PciFunction { address, above, class, vendor, device, link, numa, physical, node_guid } =
        one;
    write!(f, "pci {address}")?;
    if let Some(above) = above {
        write!(f, " below {above}")?;
    }
    write!(f, " class {class:06x} vendor {vendor:04x} device {device:04x}")?;
    if let Some(numa) = numa {
        write!(f, " numa {numa}")?;
    }
    if *link != Link::default() {
        let speed = link.speed.map(LaneSpeed::text);
        let speed = speed.as_deref().and_then(|text| text.split(' ').next()).unwrap_or("?");
        let lanes = link.lanes.map_or_else(|| "?".to_owned(), |lanes| format!("x{lanes}"));
        write!(f, " link {speed} {lanes}")?;
    }
    if let Some(physical) = physical {
        write!(f, " physical {physical}")?;
    }
    if let Some(guid) = node_guid {
        write!(f, " guid {guid:016x}")?;
    }
    writeln!(f)
}

fn write_nic(f: &mut Formatter<'_>, one: &Nic) -> fmt::Result {
    let Nic { name, address, is_part, speed_mbps, link_up, network, interface } = one;
    write!(f, "nic {}", word(name))?;
    if let Some(address) = address {
        write!(f, " at {address}")?;
    }
    if *is_part {
        f.write_str(" part")?;
    }
    if let Some(speed) = speed_mbps {
        write!(f, " speed {speed}")?;
    }
    if !network.is_empty() {
        write!(f, " network {}", word(network))?;
    }
    if let Some(up) = link_up {
        f.write_str(if *up { " up" } else { " down" })?;
    }
    if let Some(class) = interface {
        write!(f, " interface {}", class.word())?;
    }
    writeln!(f)
}

/// The text as one word, whatever characters it contains, and also if it is empty.
fn word(text: &str) -> String {
    if text.is_empty() {
        return "_".to_owned();
    }
    let is_of_a_word = |letter: char| is_shown(letter) && !letter.is_whitespace() && letter != '#';
    text.chars().map(|letter| if is_of_a_word(letter) { letter } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_that_is_written_reads_as_the_same() {
        let text = "pci 0000:00:01.0 class 060400 vendor 8086 device 352a numa 0 link 16.0 x16\n\
                    pci 0000:01:00.0 below 0000:00:01.0 class 020700 vendor 15b3 device 1021 link ? x8 guid a088c20300aabbcc\n\
                    pci 0000:01:00.1 below 0000:00:01.0 class 020000 vendor 15b3 device 101e physical 0000:01:00.0\n\
                    nic mlx5_0 at 0000:01:00.0 speed 200000 network InfiniBand up\n\
                    nic mlx5_2 at 0000:01:00.0 part speed 200000 network InfiniBand up\n\
                    nic eth0 interface container\n";
        let read: Description = text.parse().unwrap();
        assert_eq!(read.to_string(), text);
        assert_eq!(read.nics.len(), 3);
    }

    #[test]
    fn a_nic_without_a_name_reads_as_one_nic() {
        let mut written: Description = "nic x at 0000:01:00.0 up".parse().unwrap();
        written.nics[0].name.clear();
        let read: Description = written.to_string().parse().unwrap();
        written.nics[0].name.push('_');
        assert_eq!(read, written);
    }

    #[test]
    fn a_name_of_letters_that_are_not_shown_reads_without_them() {
        let mut written: Description = "nic x up".parse().unwrap();
        "eth\u{1b}\u{202e}\u{e9}0".clone_into(&mut written.nics[0].name);
        let read: Description = written.to_string().parse().unwrap();
        assert_eq!(read.nics[0].name, "eth__\u{e9}0");
    }

    #[test]
    fn a_line_that_is_none_is_named() {
        for (text, line, word) in [
            ("pci 0000:00:01.0\nnonsense", 2, "nonsense"),
            ("pci", 1, ""),
            ("# fine\n\npci 0000:00:01.0 link 7.0 x16", 3, "7.0"),
            ("pci 0000:00:01.0 numa -1", 1, "-1"),
            ("nic eth0 interface odd", 1, "odd"),
            ("nic eth0 speed", 1, ""),
            ("nic eth\u{1b}[2J up", 1, "eth\u{1b}[2J"),
            ("nic eth\u{9b}2J up", 1, "eth\u{9b}2J"),
            ("nic eth\u{202e}0 up", 1, "eth\u{202e}0"),
        ] {
            let error = text.parse::<Description>().unwrap_err();
            assert_eq!(error, DescriptionError { line, word: word.to_owned() }, "{text}");
        }
    }
}
