//! LL and LL128: GPU kernels poll flags inside the receive buffer, and do not wait for `test`.
//!
//! A thread polls one line of each message as a kernel would, while the plugin moves it. Where a plugin or its provider does not write in
//! order, NCCL must not use these protocols: such a plugin sets NCCL_PROTO in init, and the test is skipped.

use std::env;
use std::hint;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use net_loader::raw::{Arena, Before, Receive};

use super::super::behaviour::{Behaviour, two};
use super::super::case::{Case, Outcome, Stop, fail, hold, skip};
use super::super::link::Link;
use super::super::traffic::arena;

/// Each message waits for three threads in turn, one of which polls all the time: on a busy machine each turn takes a time slice.
pub(in super::super) const ALL: &[Behaviour] = &[
    two(
        "ll-flag-comes-with-its-data",
        "where NCCL may use LL, an aligned word of 8 bytes never shows its flag without its data",
        "NCCL src/include/device.h:75-86; NCCL src/graph/tuning.cc:453 (NCCL_PROTO, which init may set)",
        ll_flag_comes_with_its_data,
    )
    .within(60),
    two(
        "ll128-flag-comes-after-its-data",
        "where NCCL may use LL128, an aligned line of 128 bytes never shows its flag before its data",
        "NCCL src/transport/net_ib/p2p.cc:80; NCCL src/graph/tuning.cc:453, 518-535 (into a GPU's memory only)",
        ll128_flag_comes_after_its_data,
    )
    .within(60),
];

/// The layout of a protocol's lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lines {
    /// The name of the protocol in NCCL_PROTO.
    name: &'static str,
    bytes: usize,
    /// The sizes of messages.
    sizes: &'static [usize],
    rounds: usize,
}

/// A word is four bytes of data and four bytes of a flag, which the GPU writes at once.
const LL: Lines =
    Lines { name: "LL", bytes: 8, sizes: &[16, 480, 4096, 16_384, 65_536], rounds: 80 };
/// A line is fifteen words of data, and one word that is the flag.
const LL128: Lines =
    Lines { name: "LL128", bytes: 128, sizes: &[128, 1920, 3840, 65_536, 614_400], rounds: 40 };

fn ll_flag_comes_with_its_data(case: &mut Case) -> Outcome {
    polled(case, LL)
}

fn ll128_flag_comes_after_its_data(case: &mut Case) -> Outcome {
    polled(case, LL128)
}

fn polled(case: &mut Case, lines: Lines) -> Outcome {
    let net = case.net()?;
    let proto = env::var("NCCL_PROTO").ok();
    if !allows(proto.as_deref(), lines.name) {
        return skip(format_args!(
            "NCCL_PROTO is {} after init: NCCL uses no {}",
            proto.unwrap_or_default(),
            lines.name
        ));
    }
    if lines == LL128 && net.properties(0)?.memory_kinds & PTR_CUDA == 0 {
        return skip("ptrSupport has no CUDA bit: NCCL uses LL128 into a GPU's memory only");
    }
    let link = Link::open(case, &net)?;
    let messages = lines.sizes.iter().cycle().take(lines.sizes.len() * lines.rounds);
    let messages: Vec<usize> = messages.copied().collect();
    if case.role() == 0 {
        receive(case, &link, lines, &messages)?;
    } else {
        send(case, &link, lines, &messages)?;
    }
    case.meet("all lines are there")?;
    link.close()?;
    Ok(net.finalize()?)
}

// NCCL src/include/plugin/nccl_net.h.
const PTR_CUDA: i32 = 2;

/// Whether NCCL_PROTO permits this protocol: it lists the permitted names, or after `^` the forbidden ones.
fn allows(proto: Option<&str>, name: &str) -> bool {
    let Some(list) = proto.filter(|list| !list.is_empty()) else { return true };
    let (names, denied) = match list.strip_prefix('^') {
        Some(names) => (names, true),
        None => (list, false),
    };
    names.split(',').any(|word| word.trim().eq_ignore_ascii_case(name)) != denied
}

impl Lines {
    /// The word at this place of a message. Numbers start at 1, so that no word equals cleared memory.
    fn word(self, number: usize, place: usize) -> u64 {
        let flag = u64::try_from(number + 1).unwrap_or(u64::MAX);
        let data = ((place as u64) << 32 | flag).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        match self.bytes {
            8 => data & 0xffff_ffff | flag << 32,
            _ if place % 16 == 15 => flag,
            _ => data,
        }
    }

    fn message(self, number: usize, bytes: usize) -> Vec<u8> {
        (0..bytes / 8).flat_map(|place| self.word(number, place).to_le_bytes()).collect()
    }

    /// The line of a message that is polled: some at the boundaries between rails, others elsewhere.
    fn line(self, number: usize, bytes: usize) -> usize {
        let count = bytes / self.bytes;
        match number % 4 {
            0 => count / 2,
            1 => count.div_ceil(2) - 1,
            2 => count - 1,
            _ => number.wrapping_mul(0x9e37_79b9) % count,
        }
    }

    /// Checks a line. `None`: its flag is not set. `Err` says what is wrong with a line whose flag is set.
    fn torn(self, memory: Arena, number: usize, line: usize) -> Option<Result<(), String>> {
        let first = line * self.bytes / 8;
        let (last, count) = (first + self.bytes / 8 - 1, self.bytes / 8);
        let flag = memory.word(8 * last);
        let shows = match count {
            1 => flag >> 32 == self.word(number, last) >> 32,
            _ => flag == self.word(number, last),
        };
        let right = |place: &usize| {
            let found = if *place == last { flag } else { memory.word(8 * *place) };
            found == self.word(number, *place)
        };
        let wrong = || (first..=last).find(|place| !right(place));
        shows.then(|| match wrong() {
            None => Ok(()),
            Some(place) => Err(format!(
                "message {number}: line {line} of {} shows its flag, and its word {} has not arrived yet",
                self.name,
                place - first
            )),
        })
    }
}

fn send(case: &Case, link: &Link, lines: Lines, messages: &[usize]) -> Outcome {
    let largest = lines.sizes.iter().max().copied().unwrap_or(0);
    let memory = arena(largest)?;
    let region = link.send.register(memory, 0, largest)?;
    for (number, bytes) in messages.iter().enumerate() {
        memory.write(0, &lines.message(number, *bytes));
        let place = (memory, 0, *bytes);
        let mut request =
            case.until("send lines", || Ok(link.send.isend(place, 0, &region, Before::Null)?))?;
        case.until("wait for a send of lines", || Ok(request.test()?.done.then_some(())))?;
    }
    Ok(region.deregister()?)
}

/// The message that the other thread polls, and its progress.
#[derive(Debug, Default)]
struct Polled {
    /// The number of the message that may arrive now, plus one.
    due: AtomicUsize,
    seen: AtomicUsize,
    over: AtomicBool,
}

fn receive(case: &Case, link: &Link, lines: Lines, messages: &[usize]) -> Outcome {
    let largest = lines.sizes.iter().max().copied().unwrap_or(0);
    let memory = arena(largest)?;
    let region = link.receive.register(memory, 0, largest)?;
    let polled = Polled::default();
    thread::scope(|scope| -> Outcome {
        let kernel = scope.spawn(|| poll(memory, lines, messages, &polled));
        let all = || -> Outcome {
            for (number, bytes) in messages.iter().enumerate() {
                memory.fill(0, *bytes, 0);
                polled.due.store(number + 1, Ordering::Release);
                let part = Receive { arena: memory, at: 0, len: largest, tag: 0, region: &region };
                // NCCL posts receives of these protocols so since v9: their completion is optional.
                let before = if case.version() >= 9 { Before::Optional } else { Before::Null };
                let mut request = case.until("post a receive of lines", || {
                    Ok(link.receive.irecv(&[part], before, true)?)
                })?;
                let mut done = false;
                case.until("wait until a message's lines are seen", || {
                    done = done || request.test()?.done;
                    let seen = polled.seen.load(Ordering::Acquire) > number;
                    Ok(((done && seen) || kernel.is_finished()).then_some(()))
                })?;
                if kernel.is_finished() {
                    return Ok(());
                }
                case.until("wait until all of a message's lines are there", || {
                    let count = *bytes / lines.bytes;
                    let whole = |line| lines.torn(memory, number, line) == Some(Ok(()));
                    Ok((0..count).all(whole).then_some(()))
                })?;
            }
            Ok(())
        };
        let moved = all();
        polled.over.store(true, Ordering::Release);
        let torn = kernel.join().map_err(|_| Stop::Fail("conform's thread died".to_owned()))?;
        if let Some(why) = torn {
            return fail(why);
        }
        moved
    })?;
    hold!(polled.seen.load(Ordering::Acquire) == messages.len(), "messages were not polled");
    Ok(region.deregister()?)
}

/// Polls one line of each message until its flag is set. Returns what was wrong, if anything.
fn poll(memory: Arena, lines: Lines, messages: &[usize], polled: &Polled) -> Option<String> {
    for (number, bytes) in messages.iter().enumerate() {
        let line = lines.line(number, *bytes);
        let mut tries = 0_u32;
        loop {
            if polled.due.load(Ordering::Acquire) > number
                && let Some(shown) = lines.torn(memory, number, line)
            {
                match shown {
                    Ok(()) => break,
                    Err(why) => return Some(why),
                }
            }
            if polled.over.load(Ordering::Acquire) {
                return None;
            }
            tries = tries.wrapping_add(1);
            if tries.is_multiple_of(YIELDS) {
                thread::yield_now();
            }
            hint::spin_loop();
        }
        polled.seen.store(number + 1, Ordering::Release);
    }
    None
}

/// Polls between two calls of yield.
const YIELDS: u32 = 2000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nccl_proto_allows_the_protocols_that_it_names_or_does_not_forbid() {
        for (proto, ll, ll128) in [
            (None, true, true),
            (Some(""), true, true),
            (Some("Simple"), false, false),
            (Some("simple,ll"), true, false),
            (Some("^LL128"), true, false),
            (Some("^LL, LL128"), false, false),
        ] {
            assert_eq!((allows(proto, "LL"), allows(proto, "LL128")), (ll, ll128), "{proto:?}");
        }
    }

    #[test]
    fn a_flag_without_its_data_is_torn() {
        for lines in [LL, LL128] {
            let memory = arena(4096).expect("memory");
            let (bytes, line) = (1280, lines.line(3, 1280));
            assert_eq!(lines.torn(memory, 3, line), None);
            let message = lines.message(3, bytes);
            memory.write(0, &message);
            assert_eq!(lines.torn(memory, 3, line), Some(Ok(())));
            memory.write(line * lines.bytes, &[0; 4]);
            assert!(matches!(lines.torn(memory, 3, line), Some(Err(_))), "{}", lines.name);
            memory.write((line + 1) * lines.bytes - 4, &[0xff; 4]);
            assert_eq!(lines.torn(memory, 3, line), None);
        }
    }
}
