//! Random programs: collectives, messages, halos, exchanges and objects, in any order, by the first group and by groups split from it, and from
//! those; also ones that are refused, taken back, dropped or cancelled.
//! Every rank knows from the seed what the others send, so it can check all that it receives, and that nothing beside it is written.
//!
//! `GROUP_PROGRAMS=1000 GROUP_FIRST=5000` runs so many from that one on. What fails names its program: `GROUP_PROGRAMS=1
//! GROUP_FIRST=number` runs it again.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]
#![allow(clippy::print_stderr, reason = "names the step that failed")]

mod borders;
mod collectives;
mod endings;
mod messages;
mod objects;
mod random;
#[path = "../support/mod.rs"]
mod support;

use std::collections::BTreeSet;
use std::env;
use std::iter;
use std::sync::{Arc, Mutex};
use std::thread;

use ironrail_group::group::{Builder, Group};
use random::Random;
use support::{WAIT, library, ranks_built};

/// A rank's part of a program.
struct Runner {
    program: u64,
    /// Groups of earlier splits, with the color that this rank had there.
    kept: Vec<(Option<Group>, u64)>,
    /// Differs by rank: its delays, and the order in which it does what has none.
    own: Random,
    /// The kinds of steps that ran.
    ran: Arc<Mutex<BTreeSet<&'static str>>>,
}

/// One step, of all ranks of a group.
struct Step<'a> {
    group: &'a Group,
    /// The same on all ranks of the group.
    common: &'a mut Random,
    own: &'a mut Random,
    /// The data differs with it.
    number: usize,
}

type Run = fn(Step<'_>);

impl Step<'_> {
    fn reborrow(&mut self) -> Step<'_> {
        let Self { group, common, own, number } = self;
        Step { group, common, own, number: *number }
    }
}

/// With how often each is drawn: more often, what has more forms.
const STEPS: [(&str, Run, usize); 18] = [
    ("collective", collectives::any, 24),
    ("messages", messages::among_all, 10),
    ("messages around a collective", messages::around_a_collective, 4),
    ("a ring of sendrecv", messages::ring, 3),
    ("messages to anybody", messages::to_anybody, 2),
    ("halo", borders::halo, 2),
    ("halo of fixed lengths", borders::fixed_halo, 2),
    ("exchange", borders::exchange, 2),
    ("objects", borders::objects, 2),
    ("objects among all", objects::among_all, 2),
    ("collectives of objects in progress", objects::in_progress, 3),
    ("objects reduced", objects::reduced, 1),
    ("objects of other shapes", objects::of_other_shapes, 1),
    ("refused messages", endings::refused, 2),
    ("receives taken back", endings::taken_back, 3),
    ("receives dropped", endings::dropped, 2),
    ("messages of threads", endings::of_threads, 2),
    ("a cancelled exchange", endings::cancelled_exchange, 2),
];

#[test]
fn random_programs_give_every_rank_what_the_others_sent() {
    let number = |name, default| env::var(name).map_or(default, |text| text.parse().unwrap());
    let (programs, first) = (number("GROUP_PROGRAMS", 50), number("GROUP_FIRST", 0));
    let ran = Arc::default();
    for program in first..first + programs {
        run(program, &ran);
    }
    if programs >= 50 {
        let missing = STEPS.map(|(name, ..)| name).into_iter().chain(["split", "kept group"]);
        let ran = ran.lock().unwrap();
        let missing: Vec<_> = missing.filter(|name| !ran.contains(name)).collect();
        assert!(missing.is_empty(), "no program has {missing:?}");
    }
}

fn run(program: u64, ran: &Arc<Mutex<BTreeSet<&'static str>>>) {
    let mut random = Random::new(program);
    let size = random.pick(&[1, 2, 2, 2, 3, 3, 4, 4, 4, 5, 6, 7, 8, 8]);
    let builder = Builder::new(&library()).timeout(WAIT).progress_thread(random.one_in(4));
    let ran = Arc::clone(ran);
    ranks_built(&builder, size, move |group| {
        let mut common = random.clone();
        let own = Random::new(program ^ (group.rank() as u64 + 1) << 32);
        let (ran, kept, steps) = (Arc::clone(&ran), Vec::new(), 2 + common.below(24));
        Runner { program, kept, own, ran }.steps(&group, &mut common, steps, 0);
        // A message to a rank that leaves before it has come is lost, also where its receive was dropped.
        group.barrier().unwrap();
    });
}

impl Runner {
    fn steps(&mut self, group: &Group, common: &mut Random, steps: usize, base: usize) {
        for step in 0..steps {
            let number = base + step;
            if self.own.one_in(4) {
                (0..self.own.below(60)).for_each(|_| thread::yield_now());
            }
            // A group that was split from a split one is not split again.
            let (nested, deep) = (base >= 1000, base >= 1_000_000);
            match common.below(14) {
                0 if !deep => self.split(group, common, number, nested),
                1 if !nested && !self.kept.is_empty() => self.in_kept(group, common, number),
                _ => self.step(group, common, number),
            }
        }
    }

    fn step(&mut self, group: &Group, common: &mut Random, number: usize) {
        let mut weighted = STEPS.iter().flat_map(|step| iter::repeat_n(step, step.2));
        let all = weighted.clone().count();
        let (name, run, _) = weighted.nth(common.below(all)).unwrap();
        let note = self.begin(name, number, group.rank());
        run(Step { group, common, own: &mut self.own, number });
        drop(note);
    }

    #[must_use = "it speaks if the step panics"]
    fn begin(&self, name: &'static str, number: usize, rank: usize) -> FailureNote {
        self.ran.lock().unwrap().insert(name);
        FailureNote { program: self.program, number, name, rank }
    }

    /// Steps in a new group, which may be kept for later.
    fn split(&mut self, group: &Group, common: &mut Random, number: usize, nested: bool) {
        let _note = self.begin("split", number, group.rank());
        let colors = 1 + common.below(3);
        let (seed, reversed) = (common.next(), common.one_in(2));
        let color_of = |rank: usize| Random::new(seed ^ rank as u64).below(colors + 1);
        // One color is none.
        let color = color_of(group.rank());
        let given = (color < colors).then(|| u32::try_from(color).unwrap());
        let rank = i64::try_from(group.rank()).unwrap();
        let part = group.split(given, if reversed { -rank } else { rank }).unwrap();
        assert_eq!(part.is_some(), given.is_some());
        if let Some(part) = &part {
            let members = (0..group.size()).filter(|rank| color_of(*rank) == color).count();
            assert_eq!(part.size(), members);
        }
        self.kept.push((part, color as u64));
        self.run_in(self.kept.len() - 1, common, number);
        // Not all ranks have those of one color.
        if nested || common.one_in(2) {
            self.kept.pop();
        }
    }

    fn in_kept(&mut self, group: &Group, common: &mut Random, number: usize) {
        let _note = self.begin("kept group", number, group.rank());
        let which = common.below(self.kept.len());
        self.run_in(which, common, number);
    }

    fn run_in(&mut self, which: usize, common: &mut Random, number: usize) {
        let (seed, steps) = (common.next(), 1 + common.below(6));
        let (part, color) = self.kept[which].clone();
        let Some(part) = part else { return };
        // The ranks of another color run another program.
        self.steps(&part, &mut Random::new(seed ^ color << 48), steps, 1000 * (number + 1));
    }
}

/// Says where a program failed.
struct FailureNote {
    program: u64,
    number: usize,
    name: &'static str,
    rank: usize,
}

impl Drop for FailureNote {
    fn drop(&mut self) {
        if thread::panicking() {
            let Self { program, number, name, rank } = self;
            eprintln!("program {program} failed at step {number} ({name}) of rank {rank}");
        }
    }
}
