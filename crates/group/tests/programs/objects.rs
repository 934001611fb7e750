//! Objects of odd shapes: between two ranks, and in collectives of which several are in progress, and some dropped.

use std::collections::BTreeMap;
use std::time::Duration;

use ironrail_group::check::sample;
use ironrail_group::error::GroupError;
use ironrail_group::loader::{Element, Op};
use ironrail_group::objects::{Leaf, Schema};
use serde::{Deserialize, Serialize};

use super::random::Random;
use super::support::WAIT;
use super::{Step, collectives};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Schema)]
struct Tree {
    name: Option<String>,
    few: Leaf<u16>,
    parts: Vec<Leaf<f64>>,
    by_name: BTreeMap<u32, (Leaf<u8>, Vec<i64>)>,
    kind: Kind,
    whole: Leaf<f32>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Schema)]
enum Kind {
    #[default]
    None,
    One(Vec<u8>),
    Two {
        scale: f64,
        all: Leaf<i32>,
    },
}

/// What can be reduced.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Schema)]
struct Numbers {
    few: Leaf<f64>,
    parts: Vec<(i32, Leaf<i64>)>,
    whole: Leaf<f32>,
    flag: bool,
}

fn leaf<T: Element>(random: &mut Random, most: usize) -> Leaf<T> {
    let (count, seed) = (random.count::<T>(most), random.below(1 << 20));
    (0..count).map(|index| sample::<T>(Op::Sum, seed % 100, index, seed)).collect::<Vec<_>>().into()
}

impl Tree {
    fn draw(seed: u64) -> Self {
        let random = &mut Random::new(seed);
        let parts = (0..random.pick(&[0, 1, 3, 40])).map(|_| leaf(random, 3000)).collect();
        let by_name = (0..random.below(4))
            .map(|_| {
                let key = random.below(1 << 30);
                let numbers: Vec<i64> = (0..random.below(30)).map(|at| at as i64 - 9).collect();
                (u32::try_from(key).unwrap(), (leaf(random, 200 << 10), numbers))
            })
            .collect();
        Self {
            name: random.one_in(2).then(|| format!("tree {seed}")),
            few: leaf(random, 30),
            parts,
            by_name,
            kind: match random.below(3) {
                0 => Kind::None,
                1 => Kind::One(leaf::<u8>(random, 300 << 10).into_vec()),
                _ => Kind::Two { scale: 0.5, all: leaf(random, 1 << 20) },
            },
            whole: leaf(random, 2 << 20),
        }
    }
}

impl Numbers {
    /// Of one shape on all ranks.
    fn of(rank: usize, shape: u64, number: usize) -> Self {
        let random = &mut Random::new(shape);
        let some = |rank, count: usize| (0..count).map(move |at| (rank, at));
        let of = |(rank, at): (usize, usize)| sample::<f32>(Op::Sum, rank, at, number);
        let few = some(rank, random.below(5)).map(|at| f64::from(of(at))).collect::<Vec<_>>();
        let parts = (0..random.pick(&[0, 1, 2, 30]))
            .map(|_| {
                let count = random.count::<i64>(300 << 10);
                let part: Vec<i64> =
                    some(rank, count).map(|(rank, at)| (at % 7 + rank) as i64).collect();
                (i32::try_from(rank + 3).unwrap(), part.into())
            })
            .collect();
        let whole = some(rank, random.count::<f32>(1 << 20)).map(of).collect::<Vec<_>>();
        Self { few: few.into(), parts, whole: whole.into(), flag: random.one_in(2) }
    }

    fn sum(size: usize, shape: u64, number: usize) -> Self {
        let mut sum = Self::of(0, shape, number);
        for rank in 1..size {
            let other = Self::of(rank, shape, number);
            sum.few.iter_mut().zip(other.few.iter()).for_each(|(sum, one)| *sum += one);
            sum.whole.iter_mut().zip(other.whole.iter()).for_each(|(sum, one)| *sum += one);
            for ((sum, sums), (one, ones)) in sum.parts.iter_mut().zip(&other.parts) {
                *sum += one;
                sums.iter_mut().zip(ones.iter()).for_each(|(sum, one)| *sum += one);
            }
        }
        sum
    }
}

fn pause(own: &mut Random) {
    (0..own.below(40)).for_each(|_| std::thread::yield_now());
}

/// Objects among all ranks, each with a tag of its own, received in any order and form.
pub(super) fn among_all(step: Step<'_>) {
    let Step { group, common, own, number } = step;
    let (rank, size) = (group.rank(), group.size());
    let base = 1000 + u32::try_from(number).unwrap() * 16;
    let all: Vec<(usize, usize, u64, u32)> = (0..1 + common.below(8))
        .zip(base..)
        .map(|(_, tag)| (common.below(size), common.below(size), common.next(), tag))
        .collect();
    let mut sends = Vec::new();
    for (_, to, seed, tag) in all.iter().filter(|one| one.0 == rank) {
        sends.push(group.isend_obj(&Tree::draw(*seed), *to, *tag).unwrap());
        if own.one_in(4) {
            // It still sends.
            sends.pop();
        }
    }
    let mut receives: Vec<_> = all.iter().filter(|one| one.1 == rank).collect();
    own.shuffle(&mut receives);
    for (from, _, seed, tag) in receives {
        pause(own);
        let expected = Tree::draw(*seed);
        match own.below(6) {
            0 => {
                let ended = group.recv_obj::<Vec<u8>>(*from, *tag);
                assert!(
                    matches!(&ended, Err(GroupError::SchemaMismatch { rank, .. }) if rank == from),
                    "{ended:?}"
                );
            }
            1 => {
                let mut came = Tree::draw(*seed ^ 1);
                group.recv_obj_into(&mut came, *from, *tag).unwrap();
                assert!(came == expected, "into an older one");
            }
            2 => {
                let mut receiving = group.irecv_obj::<Tree>(*from, *tag).unwrap();
                for _ in 0..own.below(20) {
                    pause(own);
                    let _ = receiving.test().unwrap();
                }
                // Dropped, what has begun to come is thrown away.
                if receiving.take_back() {
                    assert!(group.recv_obj::<Tree>(*from, *tag).unwrap().0 == expected);
                }
            }
            form => {
                let mut receiving = group.irecv_obj::<Tree>(*from, *tag).unwrap();
                if form == 3 {
                    assert!(receiving.wait_timeout(WAIT).unwrap());
                } else if own.one_in(2) {
                    let _ = receiving.wait_timeout(Duration::from_micros(50)).unwrap();
                }
                let (came, origin) = receiving.wait().unwrap();
                assert!(came == expected && (origin.source, origin.tag) == (*from, *tag));
            }
        }
    }
    sends.into_iter().for_each(|sending| sending.wait().unwrap());
}

type Ending<'a> = Box<dyn FnOnce(&mut Random) + 'a>;

/// Collectives that begin in one order, and end in another on each rank, or are dropped there.
pub(super) fn in_progress(mut step: Step<'_>) {
    let (group, number) = (step.group, step.number);
    let (rank, size) = (group.rank(), group.size());
    let mut ends: Vec<Ending<'_>> = Vec::new();
    for place in 0..1 + step.common.below(4) {
        let (seed, root) = (step.common.next(), step.common.below(size));
        let object = move |rank: usize| Tree::draw(seed ^ rank as u64);
        let all = move || (0..size).map(object).collect::<Vec<_>>();
        let form = step.common.below(5);
        // A reduction for all that is dropped on rank 0 leaves the others without a result.
        let is_dropped = step.own.one_in(5) && (form < 4 || rank != 0);
        let number = number * 16 + place;
        // What is tested on has not ended yet.
        macro_rules! ends {
            ($begun:expr, $check:expr) => {{
                let mut begun = $begun.unwrap();
                ends.push(Box::new(move |own: &mut Random| {
                    match own.below(3) {
                        0 => assert!(begun.wait_timeout(WAIT).unwrap()),
                        1 => drop(begun.test().unwrap()),
                        _ => {}
                    }
                    if !is_dropped {
                        let check = $check;
                        check(begun.wait().unwrap());
                    }
                }));
            }};
        }
        match form {
            0 => ends!(group.igather_obj(&object(rank), root), |came: Option<Vec<Tree>>| {
                assert!(came == (rank == root).then(all), "a gather");
            }),
            1 => ends!(group.iall_gather_obj(&object(rank)), |came: Option<Vec<Tree>>| {
                assert!(came == Some(all()), "a gather on all");
            }),
            2 => {
                let given = (rank == root).then(|| object(root));
                ends!(group.ibroadcast_obj(given, root), |came: Tree| {
                    assert!(came == object(root), "a broadcast");
                });
            }
            3 => {
                let own = Numbers::of(rank, seed, number);
                ends!(group.ireduce_obj(&own, Op::Sum, root), |came: Option<Numbers>| {
                    let expected = (rank == root).then(|| Numbers::sum(size, seed, number));
                    assert!(came == expected, "a reduction");
                });
            }
            _ => {
                let own = Numbers::of(rank, seed, number);
                ends!(group.iall_reduce_obj(&own, Op::Sum), |came: Option<Numbers>| {
                    assert!(came == Some(Numbers::sum(size, seed, number)), "a reduction on all");
                });
            }
        }
        if is_dropped && step.own.one_in(2) {
            ends.pop();
        }
    }
    if step.common.one_in(3) {
        collectives::any(step.reborrow());
    }
    step.own.shuffle(&mut ends);
    ends.into_iter().for_each(|end| end(step.own));
}

/// Reductions of objects by collectives of elements.
pub(super) fn reduced(step: Step<'_>) {
    let Step { group, common, own: _, number } = step;
    let (shape, root, size) = (common.next(), common.below(group.size()), group.size());
    let own = Numbers::of(group.rank(), shape, number);
    if common.one_in(2) {
        assert!(group.all_reduce_obj(&own, Op::Sum).unwrap() == Numbers::sum(size, shape, number));
    } else {
        let came = group.reduce_obj(&own, Op::Sum, root).unwrap();
        let is_root = group.rank() == root;
        assert!(came == is_root.then(|| Numbers::sum(size, shape, number)));
    }
}

/// Whether objects are refused where ranks give other shapes, and the group goes on.
pub(super) fn of_other_shapes(step: Step<'_>) {
    let Step { group, common, own: _, number } = step;
    let culprit = common.below(group.size());
    let lens = |rank: usize| if rank == culprit { 3 } else { 2 };
    let own = vec![1_i32; lens(group.rank())];
    let ended = if common.one_in(2) {
        group.all_reduce_obj(&own, Op::Sum)
    } else {
        group.iall_reduce_obj(&own, Op::Sum).unwrap().wait().map(Option::unwrap)
    };
    let size = group.size();
    match ended {
        Ok(came) => assert!(size == 1 && came == own, "{number}"),
        Err(GroupError::Mismatch { rank, .. }) => {
            let expected = if culprit == 0 { 1 } else { culprit };
            assert_eq!(rank, expected);
        }
        Err(error) => panic!("{error:?}"),
    }
}
