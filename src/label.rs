//! Names in error sentences (of devices, rails, peers, calls of libfabric), each stored once per process and referred to by a number, so
//! that an error is small and can be copied.
//!
//! Only names in errors are stored. The table has a bound, since peers choose their names; past it an error has its cause and no name.

use std::collections::BTreeMap;
use std::fmt;

use fabric::Lock;

/// The number of a name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Label(u16);

#[derive(Debug)]
struct Table {
    texts: Vec<&'static str>,
    known: BTreeMap<&'static str, u16>,
}

static TABLE: Lock<Table> = Lock::new(Table { texts: Vec::new(), known: BTreeMap::new() });

impl Label {
    /// The label of names that did not fit.
    const LOST: Self = Self(u16::MAX);

    /// The label of a name. Names are stored as long as the process lives.
    #[cold]
    pub(crate) fn of(text: &str) -> Self {
        let mut table = TABLE.lock();
        table.label(text)
    }

    pub(crate) fn text(self) -> &'static str {
        let table = TABLE.lock();
        table.texts.get(usize::from(self.0)).copied().unwrap_or("(a name that was not kept)")
    }
}

impl Table {
    fn label(&mut self, text: &str) -> Label {
        if let Some(number) = self.known.get(text) {
            return Label(*number);
        }
        match u16::try_from(self.texts.len()) {
            Ok(number) if number < Label::LOST.0 => {
                let text: &'static str = String::leak(text.to_owned());
                self.texts.push(text);
                self.known.insert(text, number);
                Label(number)
            }
            _ => Label::LOST,
        }
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.text(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_label_and_a_label_one_name() {
        let (device, peer) = (Label::of("eth0"), Label::of("process 5 on here"));
        assert_eq!((device.text(), peer.text()), ("eth0", "process 5 on here"));
        assert_eq!(Label::of("eth0"), device);
        assert_ne!(device, peer);
    }

    #[test]
    fn a_name_past_the_bound_is_lost_and_those_before_it_are_not() {
        let mut table = Table { texts: Vec::new(), known: BTreeMap::new() };
        let labels: Vec<Label> =
            (0..=u16::MAX).map(|name| table.label(&name.to_string())).collect();
        assert_eq!(labels[65534].0, 65534);
        assert_eq!(labels[65535], Label::LOST);
        assert_eq!(table.label("7").0, 7);
        assert_eq!(table.label("another"), Label::LOST);
    }
}
