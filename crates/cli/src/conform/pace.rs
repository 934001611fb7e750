//! Whether a call blocks: the time that the call took, less the time for which the machine made its thread wait.
//!
//! On a busy machine any call may take long by the clock. Two times are subtracted. The first is the time that the calling thread waited in
//! the run queue. The second is the longest delay with which a thread that repeatedly sleeps for a millisecond woke up meanwhile, which
//! shows a pause of the whole machine; it is bounded, so that a call that blocks for a second is detected on any machine. What remains is
//! the call's own work and its own waits.

use std::collections::VecDeque;
use std::fs;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::case::{Outcome, hold};

/// Fails if a call that must not block has blocked.
pub(super) fn at_once<T>(name: &str, call: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    within(BLOCKS, name, call)
}

/// Fails if a call that may wait for a short time took longer: closes may wait for operations in flight.
pub(super) fn soon<T>(name: &str, call: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    within(LATE, name, call)
}

fn within<T>(bound: Duration, name: &str, call: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    let (answer, took) = timed(call)?;
    hold!(took.own < bound, "{name} took {:.2} s of its own", took.own.as_secs_f64());
    Ok(answer)
}

/// The time of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Took {
    /// Without the time that the machine made it wait.
    pub(super) own: Duration,
    /// The part of it that the thread slept.
    pub(super) slept: Duration,
}

pub(super) fn timed<T>(call: impl FnOnce() -> Outcome<T>) -> Outcome<(T, Took)> {
    let sleeper = sleeper();
    let (begun, before) = (Instant::now(), Scheduled::now());
    let answer = call()?;
    let (elapsed, after) = (begun.elapsed(), Scheduled::now());
    let late = sleeper.latest_since(begun).min(PAUSE_MOST);
    let own =
        elapsed.saturating_sub(after.queued.saturating_sub(before.queued)).saturating_sub(late);
    let slept = own.saturating_sub(after.ran.saturating_sub(before.ran));
    Ok((answer, Took { own, slept }))
}

/// The CPU time of this thread and its time in the run queue: the first two words of schedstat (proc(5)), zero where there is no such file.
#[derive(Clone, Copy, Debug)]
struct Scheduled {
    ran: Duration,
    queued: Duration,
}

impl Scheduled {
    fn now() -> Self {
        let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
        let mut words = text.split_whitespace();
        let mut next = || {
            let word = words.next().and_then(|word| word.parse().ok());
            Duration::from_nanos(word.unwrap_or(0))
        };
        Self { ran: next(), queued: next() }
    }
}

/// A thread that sleeps repeatedly, and the delay of each wake-up.
#[derive(Debug, Default)]
struct Sleeper {
    wakes: Mutex<VecDeque<(Instant, Duration)>>,
}

/// The sleeper of this process, which starts with the first call.
fn sleeper() -> &'static Sleeper {
    static SLEEPER: OnceLock<Arc<Sleeper>> = OnceLock::new();
    SLEEPER.get_or_init(|| {
        let sleeper = Arc::new(Sleeper::default());
        let own = Arc::clone(&sleeper);
        thread::spawn(move || {
            loop {
                let begun = Instant::now();
                thread::sleep(NAP);
                own.woke(begun.elapsed().saturating_sub(NAP));
            }
        });
        sleeper
    })
}

impl Sleeper {
    fn woke(&self, late: Duration) {
        let mut wakes = self.wakes.lock().unwrap_or_else(PoisonError::into_inner);
        if wakes.len() == REMEMBERED {
            wakes.pop_front();
        }
        wakes.push_back((Instant::now(), late));
    }

    /// The longest delay of a sleep that ended after `begun`.
    fn latest_since(&self, begun: Instant) -> Duration {
        let wakes = self.wakes.lock().unwrap_or_else(PoisonError::into_inner);
        let since = wakes.iter().rev().take_while(|(at, _)| *at >= begun);
        since.map(|(_, late)| *late).max().unwrap_or_default()
    }
}

/// Longer than the work of a call that only polls, shorter than any useful wait for a peer.
pub(super) const BLOCKS: Duration = Duration::from_millis(700);
const LATE: Duration = Duration::from_millis(1500);
/// Together with `BLOCKS` less than a second.
const PAUSE_MOST: Duration = Duration::from_millis(250);
const NAP: Duration = Duration::from_millis(1);
/// The number of remembered sleeps: some tens of seconds.
const REMEMBERED: usize = 1 << 14;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_sleeps_is_charged_with_it() {
        let nap = PAUSE_MOST + Duration::from_millis(150);
        let ((), took) = timed(|| {
            thread::sleep(nap);
            Ok(())
        })
        .expect("it does not fail");
        assert!(took.own > Duration::from_millis(10) && took.slept > Duration::from_millis(10));
    }

    #[test]
    fn a_call_that_works_sleeps_little_of_what_it_takes() {
        let (_, took) = timed(|| {
            let end = Scheduled::now().ran + Duration::from_millis(100);
            while Scheduled::now().ran < end {}
            Ok(())
        })
        .expect("it does not fail");
        assert!(took.slept < took.own.max(Duration::from_millis(1)), "{took:?}");
    }

    #[test]
    fn the_latest_nap_since_is_what_counts() {
        let sleeper = Sleeper::default();
        sleeper.woke(Duration::from_millis(70));
        let begun = Instant::now();
        assert_eq!(sleeper.latest_since(begun), Duration::ZERO);
        for late in [3, 9, 4] {
            sleeper.woke(Duration::from_millis(late));
        }
        assert_eq!(sleeper.latest_since(begun), Duration::from_millis(9));
    }
}
