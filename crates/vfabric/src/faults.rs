//! Faults by script: which post is refused, which operation fails or is late, which message is lost, when an endpoint accepts no posts or
//! no receives, when a NIC stalls, dies and comes back.
//!
//! Posts are counted from 1 over all endpoints, refused ones included; operations (accepted posts that complete) and two-sided
//! messages likewise.

use std::ops::RangeInclusive;

/// What a script says, one rule per word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// `refuse=7` or `refuse=7-9`: these posts get -FI_EAGAIN.
    Refuse(RangeInclusive<u64>),
    /// `reject=7`: this post gets -FI_EIO, and nothing is posted.
    Reject(u64),
    /// `fail=5`: this operation ends in an error, and its bytes do not land.
    Fail(u64),
    /// `vanish=5`: this operation ends well, and its bytes never land.
    Vanish(u64),
    /// `fail_late=5`: this operation ends in an error although its bytes have landed.
    FailLate(u64),
    /// `delay=5:200`: this operation lands that much later (polls, or ns of virtual time).
    Delay(u64, u64),
    /// `lose=2`: this message never arrives, though its completion says that it was sent.
    Lose(u64),
    /// `double=2` or `double=2:200`: this message arrives twice, the second time this much later.
    Double(u64, u64),
    /// `stall=1@40`, `resume=1@90`, `kill=1@100`, `revive=1@300`, `absent=1@2`, `present=1@9`: NIC 1, at the 40th, 90th… post.
    Nic(NicAction, usize, u64),
    /// `shut=12` or `shut=12@40`: every post to endpoint 12 gets -FI_EAGAIN, from the 40th post on.
    Shut(u64, u64),
    /// `open=12` or `open=12@90`: the endpoint accepts posts again.
    Open(u64, u64),
    /// `deaf=12` or `deaf=12@40`: every receive that is posted on endpoint 12 gets -FI_EIO, from the 40th post on.
    Deaf(u64, u64),
    /// `hears=12` or `hears=12@90`: the endpoint accepts receives again.
    Hears(u64, u64),
}

/// What can happen to a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NicAction {
    /// Its operations stand still; none fails.
    Stall,
    /// Its operations continue.
    Resume,
    /// Everything on it fails, and so does all that is posted to it.
    Kill,
    /// It works again, for posts from now on.
    Revive,
    /// No endpoint can be enabled on it, as where its address is gone. Those that are go on.
    Absent,
    /// Endpoints can be enabled again.
    Present,
}

impl NicAction {
    const NAMES: [(&'static str, Self); 6] = [
        ("stall", Self::Stall),
        ("resume", Self::Resume),
        ("kill", Self::Kill),
        ("revive", Self::Revive),
        ("absent", Self::Absent),
        ("present", Self::Present),
    ];

    /// The action of this name in scripts.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(word, _)| *word == name).map(|(_, action)| *action)
    }
}

/// Parses a script: words separated by blanks, commas or semicolons.
pub(crate) fn parse(script: &str) -> Result<Vec<Fault>, String> {
    script
        .split([' ', ',', ';'])
        .filter(|word| !word.is_empty())
        .map(|word| one(word).ok_or_else(|| format!("{word} is no fault that can be injected")))
        .collect()
}

fn one(word: &str) -> Option<Fault> {
    let (name, value) = word.split_once('=')?;
    Some(match name {
        "refuse" => {
            let (from, to) = value.split_once('-').unwrap_or((value, value));
            Fault::Refuse(from.parse().ok()?..=to.parse().ok()?)
        }
        "reject" => Fault::Reject(value.parse().ok()?),
        "fail" => Fault::Fail(value.parse().ok()?),
        "vanish" => Fault::Vanish(value.parse().ok()?),
        "fail_late" => Fault::FailLate(value.parse().ok()?),
        "lose" => Fault::Lose(value.parse().ok()?),
        "double" => {
            let (number, later) = value.split_once(':').unwrap_or((value, "0"));
            Fault::Double(number.parse().ok()?, later.parse().ok()?)
        }
        "delay" => {
            let (number, by) = value.split_once(':')?;
            Fault::Delay(number.parse().ok()?, by.parse().ok()?)
        }
        "shut" | "open" | "deaf" | "hears" => {
            let (endpoint, at) = value.split_once('@').unwrap_or((value, "0"));
            let (endpoint, at) = (endpoint.parse().ok()?, at.parse().ok()?);
            match name {
                "shut" => Fault::Shut(endpoint, at),
                "open" => Fault::Open(endpoint, at),
                "deaf" => Fault::Deaf(endpoint, at),
                _ => Fault::Hears(endpoint, at),
            }
        }
        _ => {
            let (nic, at) = value.split_once('@')?;
            Fault::Nic(NicAction::named(name)?, nic.parse().ok()?, at.parse().ok()?)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_say_what_they_say() {
        let script = "refuse=7 refuse=8-9;reject=3 fail=5,fail_late=6 vanish=7 delay=5:200 stall=1@40 revive=15@3 lose=4 double=5 double=6:70 shut=12@40 shut=13 open=12 absent=1@2 deaf=4@6 hears=4";
        let expected = vec![
            Fault::Refuse(7..=7),
            Fault::Refuse(8..=9),
            Fault::Reject(3),
            Fault::Fail(5),
            Fault::FailLate(6),
            Fault::Vanish(7),
            Fault::Delay(5, 200),
            Fault::Nic(NicAction::Stall, 1, 40),
            Fault::Nic(NicAction::Revive, 15, 3),
            Fault::Lose(4),
            Fault::Double(5, 0),
            Fault::Double(6, 70),
            Fault::Shut(12, 40),
            Fault::Shut(13, 0),
            Fault::Open(12, 0),
            Fault::Nic(NicAction::Absent, 1, 2),
            Fault::Deaf(4, 6),
            Fault::Hears(4, 0),
        ];
        assert_eq!(parse(script), Ok(expected));
        assert_eq!(parse(""), Ok(vec![]));
        for wrong in ["refuse", "refuse=x", "kill=1", "melt=1@2", "delay=5", "double=:5", "open=1@"]
        {
            assert!(parse(wrong).unwrap_err().contains(wrong));
        }
    }
}
