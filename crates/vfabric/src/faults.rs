//! Faults by script: which post is refused, which operation fails or is late, which message is lost, when an endpoint accepts no posts or
//! no receives, when a NIC stalls, dies and comes back.
//!
//! Posts are counted from 1 over all endpoints, refused ones included; operations (accepted posts that complete) and two-sided
//! messages likewise. A rule for the next of at least some length is independent of what else is posted meanwhile, by other threads above
//! all.

use std::ops::RangeInclusive;

/// What a script says, one rule per word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// `refuse=7` or `refuse=7-9`: these posts get -FI_EAGAIN.
    Refuse(RangeInclusive<u64>),
    /// `fail=5`, `fail=next:4096` and so on: what happens to this post or operation.
    One(Effect, Which),
    /// `delay=5:200`: this operation lands that much later (polls, or ns of virtual time).
    Delay(u64, u64),
    /// `lose=2`: this message never arrives, though its completion says that it was sent.
    Lose(u64),
    /// `double=2` or `double=2:200`: this message arrives twice, the second time this much later.
    Double(u64, u64),
    /// `stall=1@40`, `resume=1@90`, `kill=1@100`, `revive=1@300`, `absent=1@2`, `present=1@9`, `scarce=1@2`, `ample=1@9`: NIC 1, at the
    /// 40th, 90th… post.
    Nic(NicAction, usize, u64),
    /// `shut=12` or `shut=12@40`: every post to endpoint 12 gets -FI_EAGAIN, from the 40th post on.
    Shut(u64, u64),
    /// `open=12` or `open=12@90`: the endpoint accepts posts again.
    Open(u64, u64),
    /// `deaf=12` or `deaf=12@40`: every receive that is posted on endpoint 12 gets -FI_EIO, from the 40th post on.
    Deaf(u64, u64),
    /// `hears=12` or `hears=12@90`: the endpoint accepts receives again.
    Hears(u64, u64),
    /// `stuck=12` or `stuck=12@40`: the close of endpoint 12, and of regions that are bound to it, gets -FI_EBUSY, from the 40th post on.
    Stuck(u64, u64),
    /// `jam=12` or `jam=12@40`: the close of completion queue 12 gets -FI_EBUSY, from the 40th post on.
    Jam(u64, u64),
    /// `nameless=12` or `nameless=12@40`: completion queue 12 gets an FI_EIO that names no operation, once, from the 40th post on.
    Nameless(u64, u64),
    /// `unwell=12` or `unwell=12@40`: endpoint 12 has an error that is no operation's, once, from the 40th post on.
    Unwell(u64, u64),
}

/// What happens to one post or operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// `reject`: this post gets -FI_EIO, and nothing is posted.
    Reject,
    /// `fail`: this operation ends in an error, and its bytes do not land.
    Fail,
    /// `vanish`: this operation ends well, and its bytes never land.
    Vanish,
    /// `fail_late`: this operation ends in an error although its bytes have landed.
    FailLate,
    /// `sever`: this message ends well, and breaks off as it arrives: the receive that it would fill ends in FI_ECANCELED.
    Sever,
}

impl Effect {
    const NAMES: [(&'static str, Self); 5] = [
        ("reject", Self::Reject),
        ("fail", Self::Fail),
        ("vanish", Self::Vanish),
        ("fail_late", Self::FailLate),
        ("sever", Self::Sever),
    ];

    fn named(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(word, _)| *word == name).map(|(_, effect)| *effect)
    }
}

/// The post or operation that a rule is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    Number(u64),
    /// The next one of at least so many bytes.
    Next(u64),
}

impl Which {
    fn parse(value: &str) -> Option<Self> {
        Some(match value.strip_prefix("next") {
            Some("") => Self::Next(0),
            Some(least) => Self::Next(least.strip_prefix(':')?.parse().ok()?),
            None => Self::Number(value.parse().ok()?),
        })
    }

    const fn is(self, number: u64, len: u64) -> bool {
        match self {
            Self::Number(this) => this == number,
            Self::Next(least) => least <= len,
        }
    }
}

/// Whether this happens to the post or operation of this number and length. A rule for the next one applies once.
pub(crate) fn take(faults: &mut Vec<Fault>, effect: Effect, number: u64, len: u64) -> bool {
    let applies = |fault: &Fault| matches!(fault, Fault::One(what, which) if *what == effect && which.is(number, len));
    let Some(at) = faults.iter().position(applies) else { return false };
    if matches!(faults[at], Fault::One(_, Which::Next(_))) {
        faults.remove(at);
    }
    true
}

/// What happens to a NIC at this post. Each rule applies once, in the order of the posts.
pub(crate) fn take_nic(faults: &mut Vec<Fault>, post: u64) -> Option<(usize, NicAction)> {
    let due = |(place, fault): (usize, &Fault)| match fault {
        Fault::Nic(action, nic, at) if *at <= post => Some((*at, place, (*nic, *action))),
        _ => None,
    };
    let next = faults.iter().enumerate().filter_map(due).min_by_key(|(at, place, _)| (*at, *place));
    let (_, place, happens) = next?;
    faults.remove(place);
    Some(happens)
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
    /// No endpoint can be enabled on it, as if its address were gone. Enabled ones continue.
    Absent,
    /// Endpoints can be enabled again.
    Present,
    /// No region can be registered on it, as if it had no more of them.
    Scarce,
    /// Regions can be registered again.
    Ample,
}

impl NicAction {
    const NAMES: [(&'static str, Self); 8] = [
        ("stall", Self::Stall),
        ("resume", Self::Resume),
        ("kill", Self::Kill),
        ("revive", Self::Revive),
        ("absent", Self::Absent),
        ("present", Self::Present),
        ("scarce", Self::Scarce),
        ("ample", Self::Ample),
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

/// Whether each NIC that the script names is one of so many.
pub(crate) fn are_on(faults: &[Fault], nics: usize) -> bool {
    faults.iter().all(|fault| !matches!(fault, Fault::Nic(_, nic, _) if *nic >= nics))
}

/// The longest time that a setting or a fault may name, in polls or ns (three days): sums of many fit into the clock.
pub(crate) const TIME_MAX: u64 = 1 << 48;

fn time(text: &str) -> Option<u64> {
    text.parse().ok().filter(|time| *time <= TIME_MAX)
}

fn one(word: &str) -> Option<Fault> {
    let (name, value) = word.split_once('=')?;
    if let Some(effect) = Effect::named(name) {
        return Some(Fault::One(effect, Which::parse(value)?));
    }
    Some(match name {
        "refuse" => {
            let (from, to) = value.split_once('-').unwrap_or((value, value));
            Fault::Refuse(from.parse().ok()?..=to.parse().ok()?)
        }
        "lose" => Fault::Lose(value.parse().ok()?),
        "double" => {
            let (number, later) = value.split_once(':').unwrap_or((value, "0"));
            Fault::Double(number.parse().ok()?, time(later)?)
        }
        "delay" => {
            let (number, by) = value.split_once(':')?;
            Fault::Delay(number.parse().ok()?, time(by)?)
        }
        "shut" | "open" | "deaf" | "hears" | "stuck" | "jam" | "nameless" | "unwell" => {
            let (object, at) = value.split_once('@').unwrap_or((value, "0"));
            let (object, at) = (object.parse().ok()?, at.parse().ok()?);
            match name {
                "shut" => Fault::Shut(object, at),
                "open" => Fault::Open(object, at),
                "deaf" => Fault::Deaf(object, at),
                "stuck" => Fault::Stuck(object, at),
                "jam" => Fault::Jam(object, at),
                "nameless" => Fault::Nameless(object, at),
                "unwell" => Fault::Unwell(object, at),
                _ => Fault::Hears(object, at),
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
        let script = "refuse=7 refuse=8-9;reject=3 fail=5,fail_late=6 vanish=7 delay=5:200 stall=1@40 revive=15@3 lose=4 double=5 double=6:70 shut=12@40 shut=13 open=12 absent=1@2 scarce=0@9 deaf=4@6 hears=4 stuck=5@7 jam=6 nameless=7@8 unwell=8@9 vanish=next fail=next:4096 sever=8";
        let expected = vec![
            Fault::Refuse(7..=7),
            Fault::Refuse(8..=9),
            Fault::One(Effect::Reject, Which::Number(3)),
            Fault::One(Effect::Fail, Which::Number(5)),
            Fault::One(Effect::FailLate, Which::Number(6)),
            Fault::One(Effect::Vanish, Which::Number(7)),
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
            Fault::Nic(NicAction::Scarce, 0, 9),
            Fault::Deaf(4, 6),
            Fault::Hears(4, 0),
            Fault::Stuck(5, 7),
            Fault::Jam(6, 0),
            Fault::Nameless(7, 8),
            Fault::Unwell(8, 9),
            Fault::One(Effect::Vanish, Which::Next(0)),
            Fault::One(Effect::Fail, Which::Next(4096)),
            Fault::One(Effect::Sever, Which::Number(8)),
        ];
        assert_eq!(parse(script), Ok(expected));
        assert_eq!(parse(""), Ok(vec![]));
        for wrong in [
            "refuse",
            "refuse=x",
            "kill=1",
            "melt=1@2",
            "delay=5",
            "double=:5",
            "open=1@",
            "fail=next4",
            "fail=next:",
            "refuse=next",
        ] {
            assert!(parse(wrong).unwrap_err().contains(wrong));
        }
    }

    #[test]
    fn a_rule_for_the_next_one_applies_once_to_one_that_is_long_enough() {
        let mut faults = parse("vanish=next:100 vanish=7").unwrap();
        let mut taken = |number, len| take(&mut faults, Effect::Vanish, number, len);
        let each = [(1, 99), (2, 100), (3, 1000), (7, 0)].map(|(number, len)| taken(number, len));
        assert_eq!(each, [false, true, false, true]);
    }
}
