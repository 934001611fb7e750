//! What Conduit Relay does between ranks, and what its users requested: cases T-C1 to T-C9 and promises C-1 to C-12 of
//! docs/group.md.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]
#![allow(clippy::cast_precision_loss, reason = "ranks and small numbers")]

mod support;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use ironrail_group::error::GroupError;
use ironrail_group::group::Group;
use ironrail_group::loader::Op;
use ironrail_group::messages::Any;
use ironrail_group::objects::{Blob, Leaf, ObjectBatch, Origin, Schema};
use serde::{Deserialize, Serialize};
use support::{library, ranks};

/// A tree of values and arrays.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Schema)]
struct Tree {
    name: String,
    values: BTreeMap<String, i64>,
    inner: Option<Inner>,
    field: Leaf<f64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Schema)]
struct Inner {
    pair: (u8, f32),
    fields: Vec<Leaf<i32>>,
}

/// Another type with the same bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Schema)]
struct Three<T>(T, T, T);

fn tree(seed: usize, len: usize) -> Tree {
    let number = i64::try_from(seed).unwrap();
    Tree {
        name: format!("tree {seed}"),
        values: BTreeMap::from([("a".to_owned(), number), ("b".to_owned(), number + 1)]),
        inner: seed.is_multiple_of(2).then(|| Inner {
            pair: (7, 0.5),
            fields: (0..3).map(|part| vec![part - 1; len * 2].into()).collect(),
        }),
        field: (0..len).map(|i| (i * 31 + seed) as f64).collect::<Vec<_>>().into(),
    }
}

fn rank(group: &Group) -> i64 {
    i64::try_from(group.rank()).unwrap()
}

fn size(group: &Group) -> i64 {
    i64::try_from(group.size()).unwrap()
}

#[test]
fn t_c1_reductions_of_objects_reduce_every_number() {
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Schema)]
    enum Kind {
        Point { at: (f64, f32) },
        Other,
    }
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Schema)]
    struct All {
        flag: bool,
        small: (i8, u8, i16, u16),
        large: Vec<(i32, u32, u64)>,
        by_name: BTreeMap<String, i64>,
        kind: Kind,
        none: Option<u8>,
        short: Leaf<i32>,
        long: Leaf<f64>,
    }
    for n in 2..=4 {
        ranks(&library(), n, |group| {
            let (r, n) = (rank(&group), size(&group));
            assert_eq!(group.all_reduce_obj(&(r * 10), Op::Max).unwrap(), 10 * (n - 1));
            let of = |r: i64| All {
                flag: true,
                small: (-1, 1, i16::try_from(r).unwrap(), 3),
                large: vec![(10, 20, u64::try_from(r).unwrap()), (-7, 0, 1 << 40)],
                by_name: BTreeMap::from([("x".to_owned(), r), ("y".to_owned(), -r)]),
                kind: Kind::Point { at: (r as f64 + 0.5, 2.0) },
                none: None,
                short: vec![10, 20].into(),
                long: vec![r as f64; 30_000].into(),
            };
            let (wide, r_sum) = (u64::try_from(n).unwrap(), n * (n - 1) / 2);
            let small = i8::try_from(n).unwrap();
            let expected = All {
                flag: true,
                small: (
                    -small,
                    u8::try_from(n).unwrap(),
                    i16::try_from(r_sum).unwrap(),
                    3 * u16::try_from(n).unwrap(),
                ),
                large: vec![
                    (10 * i32::from(small), 20 * u32::try_from(n).unwrap(), r_sum as u64),
                    (-7 * i32::from(small), 0, wide << 40),
                ],
                by_name: BTreeMap::from([("x".to_owned(), r_sum), ("y".to_owned(), -r_sum)]),
                kind: Kind::Point { at: (r_sum as f64 + n as f64 / 2.0, 2.0 * n as f32) },
                none: None,
                short: vec![10 * i32::from(small), 20 * i32::from(small)].into(),
                long: vec![r_sum as f64; 30_000].into(),
            };
            assert_eq!(group.all_reduce_obj(&of(r), Op::Sum).unwrap(), expected);
            let root = group.reduce_obj(&of(r), Op::Sum, 1).unwrap();
            assert_eq!(root, (r == 1).then_some(expected.clone()));
            let begun = group.iall_reduce_obj(&of(r), Op::Sum).unwrap();
            assert_eq!(begun.wait().unwrap(), Some(expected.clone()));
            let begun = group.ireduce_obj(&of(r), Op::Sum, 1).unwrap();
            assert_eq!(begun.wait().unwrap(), (r == 1).then_some(expected));
            let mean = group.iall_reduce_obj(&(n * r, vec![(n * r) as f32]), Op::Avg).unwrap();
            assert_eq!(mean.wait().unwrap(), Some((r_sum, vec![r_sum as f32])));
            // The same memory receives the result of a typed reduction.
            let mut data = [r * 10; 2];
            let before = data.as_ptr();
            group.all_reduce(&mut data, Op::Max).unwrap();
            assert_eq!((data, data.as_ptr()), ([10 * (n - 1); 2], before));
            let refused = group.all_reduce_obj(&"text".to_owned(), Op::Sum);
            assert!(matches!(refused, Err(GroupError::InvalidArgument(_))), "{refused:?}");
            let shape = vec![1_u32; 2 + group.rank() % 2];
            let refused = group.all_reduce_obj(&shape, Op::Sum);
            assert!(matches!(refused, Err(GroupError::Mismatch { rank: 1, .. })), "{refused:?}");
            let refused = group.iall_reduce_obj(&shape, Op::Sum).unwrap().wait();
            assert!(matches!(refused, Err(GroupError::Mismatch { rank: 1, .. })), "{refused:?}");
            let other = Kind::Other;
            assert_eq!(group.all_reduce_obj(&other, Op::Sum).unwrap(), other);
        });
    }
}

/// Hash maps of two ranks, and of one, have different orders.
#[test]
fn entries_of_maps_are_reduced_by_their_keys_whatever_their_order() {
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Schema)]
    struct Inner {
        few: HashMap<String, u32>,
        // Which of them go beside the encoding depends on those before them.
        arrays: HashMap<(u8, String), Vec<Leaf<f64>>>,
    }
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Schema)]
    struct All {
        by_name: HashMap<String, Inner>,
        names: HashSet<String>,
        numbers: (HashSet<u64>, BTreeSet<i16>),
        last: Leaf<f64>,
    }
    let of = |factor: u32| {
        let value = |number: u32| f64::from(factor * number);
        let inner = |seed: u32| Inner {
            few: (0..20).map(|n| (format!("few {n}"), factor * (seed + n))).collect(),
            arrays: (0..9_u8)
                .map(|n| {
                    let lens = [1, 3, 400 * usize::from(n), 2000, 20_000];
                    let leaf = |len| Leaf::from(vec![value(seed + u32::from(n)); len]);
                    (
                        (n, n.to_string()),
                        lens[usize::from(n) % 3..].iter().map(|len| leaf(*len)).collect(),
                    )
                })
                .collect(),
        };
        All {
            by_name: (0..5).map(|n| (format!("name {n}"), inner(100 * n))).collect(),
            names: (0..30).map(|n| n.to_string()).collect(),
            numbers: ((0..30).collect(), [5, -5].into()),
            last: vec![value(7); 50_000].into(),
        }
    };
    for n in [2, 3] {
        ranks(&library(), n, move |group| {
            let factor = u32::try_from(group.rank()).unwrap() + 1;
            let expected = of((1..=u32::try_from(group.size()).unwrap()).sum());
            assert!(group.all_reduce_obj(&of(factor), Op::Sum).unwrap() == expected);
            let root = group.reduce_obj(&of(factor), Op::Sum, 1).unwrap();
            assert!(root.is_none_or(|sum| group.rank() == 1 && sum == expected));
            let begun = group.iall_reduce_obj(&of(factor), Op::Sum).unwrap();
            assert!(begun.wait().unwrap() == Some(expected));
            // The same numbers below other keys, and other members.
            let below = HashMap::from([(group.rank() as u64, 1_u8), (9, 2)]);
            let refused = group.all_reduce_obj(&below, Op::Sum);
            assert!(matches!(refused, Err(GroupError::Mismatch { rank: 1, .. })), "{refused:?}");
            let refused = group.all_reduce_obj(&HashSet::from([group.rank() as u64, 9]), Op::Sum);
            assert!(matches!(refused, Err(GroupError::Mismatch { rank: 1, .. })), "{refused:?}");
        });
    }
}

/// Serde refuses `false`.
#[derive(Debug, Deserialize, Schema)]
struct Picky(bool);

impl Serialize for Picky {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            true => serializer.serialize_newtype_struct("Picky", &true),
            false => Err(serde::ser::Error::custom("no")),
        }
    }
}

#[test]
fn ranks_are_in_step_after_a_reduction_that_one_of_them_could_not_begin() {
    ranks(&library(), 2, |group| {
        let begun = group.iall_reduce_obj(&Picky(group.rank() == 0), Op::Sum);
        let is_refused = matches!(begun, Err(GroupError::InvalidArgument(_)));
        assert_eq!(is_refused, group.rank() == 1);
        drop(begun);
        assert_eq!(group.all_gather_obj(&rank(&group)).unwrap(), [0, 1]);
    });
}

#[test]
fn ranks_are_in_step_after_one_has_named_a_rank_that_does_not_exist() {
    ranks(&library(), 2, |group| {
        let other = 1 - group.rank();
        if group.rank() == 1 {
            for refused in [
                group.gather_obj(&7_u8, 2).map(drop),
                group.broadcast_obj(Some(7_u8), 2).map(drop),
                group.ireduce_obj(&7_u8, Op::Sum, 2).map(drop),
                group.exchange::<u8>(&[2], &[]).map(drop),
                group.exchange::<u8>(&[], &[other, other]).map(drop),
            ] {
                assert!(matches!(refused, Err(GroupError::InvalidArgument(_))), "{refused:?}");
            }
        }
        assert_eq!(group.all_gather_obj(&rank(&group)).unwrap(), [0, 1]);
        let exchange = group.exchange(&[other], &[other]).unwrap();
        exchange.insert(other, Vec::new(), vec![7_u8]).unwrap();
        exchange.finish().unwrap();
        exchange.wait().unwrap();
        assert_eq!(exchange.take(other).unwrap()[0].data, [7]);
    });
}

#[test]
fn begun_reductions_by_other_operations_are_errors_that_name_the_rank() {
    ranks(&library(), 3, |group| {
        let own = group.rank();
        let op = if own == 1 { Op::Max } else { Op::Sum };
        let ended = group.iall_reduce_obj(&7_u32, op).unwrap().wait();
        let is_mismatch = |ended: &Result<_, _>, culprits: &[usize]| match ended {
            Err(GroupError::Mismatch { rank, why }) => {
                culprits.contains(rank) && why.contains("by max") && why.contains("by sum")
            }
            _ => false,
        };
        assert!(is_mismatch(&ended, &[1]), "{ended:?}");
        // The root is asked, and names the rank whose object came first.
        let ended = group.ireduce_obj(&7_u32, op, 1).unwrap().wait();
        assert!(
            if own == 1 { is_mismatch(&ended, &[0, 2]) } else { matches!(ended, Ok(None)) },
            "{ended:?}"
        );
        let sum = group.iall_reduce_obj(&7_u32, Op::Sum).unwrap().wait();
        assert_eq!(sum.unwrap(), Some(21));
    });
}

#[test]
fn another_collective_of_objects_is_a_mismatch_where_it_is_received() {
    ranks(&library(), 2, |group| {
        let long = Leaf::from(vec![1.0_f64; 100_000]);
        for reduces in [false, true] {
            if group.rank() == 0 {
                if reduces {
                    assert_eq!(group.ireduce_obj(&long, Op::Sum, 1).unwrap().wait().unwrap(), None);
                } else {
                    group.broadcast_obj(Some(long.clone()), 0).unwrap();
                }
                continue;
            }
            let calls = if reduces { "reduce by sum with root 1" } else { "broadcast with root 0" };
            let said = format!("rank 0 calls {calls} of objects, and rank 1 gather with root 1");
            let ended = group.gather_obj(&long, 1);
            assert!(
                matches!(&ended, Err(GroupError::Mismatch { rank: 0, why }) if *why == said),
                "{ended:?}"
            );
        }
        assert_eq!(group.all_gather_obj(&rank(&group)).unwrap(), [0, 1]);
    });
}

#[test]
fn a_batch_with_an_object_that_cannot_be_encoded_tells_its_receiver_and_does_the_rest() {
    ranks(&library(), 3, |group| {
        let own = group.rank();
        let objects = [Picky(own != 0), Picky(true)];
        let (mut came, mut batch) = ([const { None::<(Picky, Origin)> }; 3], ObjectBatch::new());
        for (from, into) in came.iter_mut().enumerate() {
            batch.recv(into, from, 5);
        }
        for to in 0..3 {
            // Rank 0's to rank 1 cannot be encoded.
            batch.send(&objects[usize::from(to != 1)], to, 5);
        }
        let ended = batch.execute(&group);
        let is_expected = match &ended {
            Ok(()) => own == 2,
            Err(GroupError::InvalidArgument(_)) => own == 0,
            Err(GroupError::Mismatch { rank: 0, why }) => {
                own == 1 && why.contains("cannot be encoded")
            }
            Err(_) => false,
        };
        assert!(is_expected, "rank {own}: {ended:?}");
        assert_eq!(came.map(|one| one.is_some()), [own != 1, true, true]);
    });
}

#[test]
fn an_object_that_one_rank_cannot_encode_is_an_error_of_the_others_that_names_it() {
    ranks(&library(), 3, |group| {
        let own = group.rank();
        for culprit in 0..3 {
            let check = |ended: Result<(), GroupError>, receives: bool| {
                let is_expected = match &ended {
                    Ok(()) => own != culprit && !receives,
                    Err(GroupError::InvalidArgument(_)) => own == culprit,
                    Err(GroupError::Mismatch { rank, why }) => {
                        own != culprit && *rank == culprit && why.contains("cannot be encoded")
                    }
                    Err(_) => false,
                };
                assert!(is_expected, "rank {own}, of {culprit}: {ended:?}");
            };
            // Behind a leaf, which has begun to be collected.
            let object = (Leaf::from(vec![1.0_f64; 20_000]), Picky(own != culprit));
            check(group.gather_obj(&object, 2).map(drop), own == 2);
            check(group.all_gather_obj(&object).map(drop), true);
            let root = (own == culprit).then_some(object);
            check(group.broadcast_obj(root, culprit).map(drop), true);
            let nothing = group.broadcast_obj(None::<u64>, culprit).map(drop);
            check(nothing, true);
            let flag = Picky(own != culprit);
            let summed = group.iall_reduce_obj(&flag, Op::Sum);
            check(summed.and_then(|begun| begun.wait()).map(drop), true);
            let summed = group.ireduce_obj(&flag, Op::Sum, 1);
            check(summed.and_then(|begun| begun.wait()).map(drop), own == 1);
            assert_eq!(group.all_gather_obj(&rank(&group)).unwrap(), [0, 1, 2]);
        }
    });
}

#[test]
fn an_object_that_one_rank_cannot_reduce_and_another_operation_are_errors_on_all_ranks() {
    ranks(&library(), 3, |group| {
        let own = group.rank();
        let refused = group.all_reduce_obj(&(Picky(own != 1), 7), Op::Sum);
        match refused {
            Err(GroupError::InvalidArgument(_)) if own == 1 => {}
            Err(GroupError::Mismatch { rank: 1, .. }) if own != 1 => {}
            other => panic!("{other:?}"),
        }
        let op = if own == 2 { Op::Max } else { Op::Sum };
        let refused = group.all_reduce_obj(&7, op);
        assert!(matches!(refused, Err(GroupError::Mismatch { rank: 2, .. })), "{refused:?}");
        let refused = group.reduce_obj(&7, Op::Sum, own / 2);
        assert!(matches!(refused, Err(GroupError::Mismatch { rank: 2, .. })), "{refused:?}");
        // Keys that cannot be compared are refused by type.
        let refused = group.all_reduce_obj(&BTreeMap::from([(own as u128, 1)]), Op::Sum);
        assert!(matches!(refused, Err(GroupError::InvalidArgument(_))), "{refused:?}");
        assert_eq!(group.all_reduce_obj(&7, Op::Sum).unwrap(), 21);
    });
}

#[cfg(feature = "ndarray")]
#[test]
fn the_lengths_of_an_array_within_an_object_are_not_reduced() {
    ranks(&library(), 2, |group| {
        use ironrail_group::objects::Tensor;
        let own = group.rank();
        let array = ndarray::Array2::from_elem((2, 3), own as f64 + 1.0);
        let sum = group.all_reduce_obj(&(7, Tensor::new(&array.view())), Op::Sum).unwrap();
        let array = ndarray::Array2::from_elem((2, 3), 3.0).into_dyn();
        assert_eq!((sum.0, sum.1.into_array().unwrap()), (14, array));
        let array = ndarray::Array2::from_elem((2 + own, 3 - own), 1.0);
        let refused = group.all_reduce_obj(&Tensor::new(&array.view()), Op::Sum);
        assert!(matches!(refused, Err(GroupError::Mismatch { rank: 1, .. })), "{refused:?}");
    });
}

#[test]
fn short_arrays_are_reduced_each_by_itself_though_they_travel_together() {
    ranks(&library(), 3, |group| {
        let own = group.rank() as u64;
        let object: (Vec<Leaf<u64>>, Vec<Leaf<f32>>) = (
            (0..300_u32)
                .map(|leaf| vec![u64::from(leaf) + own; (leaf % 4) as usize].into())
                .collect(),
            (0..250_u8).map(|leaf| vec![f32::from(leaf); 1].into()).collect(),
        );
        let sum = group.all_reduce_obj(&object, Op::Sum).unwrap();
        for (leaf, reduced) in (0_u32..).zip(&sum.0) {
            assert_eq!(**reduced, vec![u64::from(3 * leaf + 3); (leaf % 4) as usize], "{leaf}");
        }
        for (leaf, reduced) in (0_u8..).zip(&sum.1) {
            assert_eq!(**reduced, [3.0 * f32::from(leaf)], "{leaf}");
        }
        // As many bytes, dealt otherwise, are another shape.
        let count = if own == 1 { [1, 2] } else { [2, 1] };
        let other: Vec<Leaf<u64>> = count.map(|count| vec![own; count].into()).into();
        let refused = group.all_reduce_obj(&other, Op::Sum);
        assert!(matches!(refused, Err(GroupError::Mismatch { .. })), "{refused:?}");
    });
}

/// Several are begun before any is waited for, each rank waits in another order, and messages and blocking collectives go between them.
#[test]
fn collectives_of_objects_that_are_in_progress_together_keep_apart() {
    ranks(&library(), 3, |group| {
        let own = group.rank();
        let of = |rank: usize, round: usize| vec![(rank * 100 + round) as u64; 1 + round * 9000];
        let all = |round| (0..3).map(|rank| of(rank, round)).collect::<Vec<_>>();
        let to_root = group.igather_obj(&of(own, 0), 2).unwrap();
        let mut to_all = group.iall_gather_obj(&of(own, 1)).unwrap();
        let from_root = group.ibroadcast_obj((own == 1).then(|| of(1, 2)), 1).unwrap();
        let mut sum = group.iall_reduce_obj(&Leaf::from(of(own, 3)), Op::Sum).unwrap();
        let peer = (own + 1) % 3;
        let (came, _) = group.sendrecv_obj::<_, u64>(&(own as u64), peer, Any, 4).unwrap();
        assert_eq!(came, (own as u64 + 2) % 3);
        let mut total = [own as u64];
        group.all_reduce(&mut total, Op::Sum).unwrap();
        assert_eq!(total, [3]);
        if own == 0 {
            while !to_all.test().unwrap() {}
            assert!(sum.wait_timeout(Duration::from_secs(30)).unwrap());
        }
        let sum = sum.wait().unwrap().unwrap();
        assert_eq!(*sum, vec![309_u64; 27_001]);
        assert_eq!(to_all.wait().unwrap(), Some(all(1)));
        assert_eq!(from_root.wait().unwrap(), of(1, 2));
        assert_eq!(to_root.wait().unwrap(), (own == 2).then(|| all(0)));
        // Ranks of another type refuse the answer; the group goes on.
        let refused = if own == 1 {
            group.iall_reduce_obj(&1_u32, Op::Sum).unwrap().wait().map(drop)
        } else {
            group.iall_reduce_obj(&1_u64, Op::Sum).unwrap().wait().map(drop)
        };
        let expected = match own {
            2 => matches!(refused, Err(GroupError::Mismatch { rank: 1, .. })),
            _ => matches!(refused, Err(GroupError::SchemaMismatch { .. })),
        };
        assert!(expected, "{refused:?}");
        assert_eq!(group.all_gather_obj(&(own as u64)).unwrap(), [0, 1, 2]);
    });
}

#[test]
fn t_c2_convenient_reductions_of_five_numbers() {
    for n in 2..=4 {
        ranks(&library(), n, |group| {
            let (r, n) = (rank(&group), size(&group));
            let five = |value: i64| vec![value; 5];
            let sum = |value: i64, op| group.all_reduce_obj(&five(value), op).unwrap();
            assert_eq!(sum(10, Op::Sum), five(10 * n));
            assert_eq!(sum(2, Op::Prod), five(1 << n));
            assert_eq!(sum(10 * r + 1, Op::Max), five(10 * (n - 1) + 1));
            assert_eq!(sum(10 * r + 1, Op::Min), five(1));
        });
    }
}

#[test]
fn t_c3_objects_go_to_a_rank_and_come_from_any() {
    ranks(&library(), 2, |group| {
        let first = vec![1.0, 0.0, 10.7];
        let large = tree(4, 100_000);
        if group.rank() == 0 {
            group.send_obj(&first, 1, 1).unwrap();
            group.send_obj(&tree(3, 10), 1, 2).unwrap();
            // Received in the other order: a blocking send would wait for its own receive.
            let first = group.isend_obj(&large, 1, u32::MAX).unwrap();
            group.send_obj(&large, 1, u32::MAX - 1).unwrap();
            first.wait().unwrap();
        } else {
            let (came, origin) = group.recv_obj::<Vec<f64>>(0, 1).unwrap();
            assert_eq!((came, origin), (first, Origin { source: 0, tag: 1 }));
            assert_eq!(group.recv_obj::<Tree>(Any, Any).unwrap().0, tree(3, 10));
            // Large tags are distinct.
            assert_eq!(group.recv_obj::<Tree>(0, u32::MAX - 1).unwrap().0, large);
            let (came, origin) = group.recv_obj::<Tree>(Any, Any).unwrap();
            assert_eq!((came, origin.tag), (large, u32::MAX));
        }
    });
}

#[test]
fn t_c4_known_types_are_received_in_place_and_requests_of_both_kinds_are_waited_for() {
    ranks(&library(), 2, |group| {
        let values = [1.5_f64, 2.5, 3.5];
        if group.rank() == 0 {
            group.send(&values, 1, 0).unwrap();
            let first = group.isend(values.to_vec(), 1, 1).unwrap();
            let second = group.isend_obj(&13_123_i32, 1, 2).unwrap();
            second.wait().unwrap();
            first.wait().unwrap();
            // A list of separate arrays.
            let list: Vec<Leaf<f64>> = (0..3).map(|_| values.to_vec().into()).collect();
            group.send_obj(&list, 1, 3).unwrap();
        } else {
            let mut known = [0.0; 3];
            let before = known.as_ptr();
            group.recv(&mut known, 0, 0).unwrap();
            assert_eq!((known, known.as_ptr()), (values, before));
            let first = group.irecv(vec![0.0_f64; 3], 0, 1).unwrap();
            let mut second = group.irecv_obj::<i32>(0, 2).unwrap();
            assert!(second.wait_timeout(support::WAIT).unwrap());
            assert_eq!(second.wait().unwrap().0, 13_123);
            assert_eq!(first.wait().unwrap().0, values);
            let (list, _) = group.recv_obj::<Vec<Leaf<f64>>>(0, 3).unwrap();
            assert!(list.len() == 3 && list.iter().all(|leaf| leaf[..] == values));
        }
    });
}

#[test]
fn a_request_of_an_object_is_over_once_the_object_was_received_or_the_receive_is_taken_back() {
    ranks(&library(), 2, |group| {
        // Ranks are numbered in the other order than those of the first group.
        let group = group.split(Some(0), 1 - rank(&group)).unwrap().unwrap();
        let (own, other) = (group.rank(), 1 - group.rank());
        let object = Leaf::from(vec![own as f64; 100_000]);
        let mut receiving = group.irecv_obj::<Leaf<f64>>(own, 5).unwrap();
        let mut in_vain = group.irecv_obj::<Leaf<f64>>(own, 5).unwrap();
        assert!(!receiving.test().unwrap() && !in_vain.wait_timeout(Duration::ZERO).unwrap());
        assert!(in_vain.take_back());
        let mut sending = group.isend_obj(&object, own, 5).unwrap();
        assert!(sending.is_to_itself());
        assert!(!sending.test().unwrap(), "it was received by a receive that was taken back");
        let ended = in_vain.wait();
        assert!(matches!(ended, Err(GroupError::Usage(_))), "{ended:?}");
        assert!(receiving.wait_timeout(support::WAIT).unwrap());
        assert!(!receiving.take_back(), "it has its object");
        assert!(sending.wait_timeout(Duration::ZERO).unwrap() && sending.test().unwrap());
        sending.wait().unwrap();
        assert!(receiving.test().unwrap());
        assert_eq!(receiving.wait().unwrap(), (object, Origin { source: own, tag: 5 }));
        let sending = group.isend_obj(&7_u8, other, 6).unwrap();
        assert!(!sending.is_to_itself());
        assert_eq!(group.recv_obj(other, 6).unwrap(), (7_u8, Origin { source: other, tag: 6 }));
        sending.wait().unwrap();
    });
}

#[test]
fn t_c5_every_rank_broadcasts_to_receivers_that_have_something_else() {
    for n in 2..=4 {
        ranks(&library(), n, |group| {
            for root in 0..group.size() {
                let is_root = group.rank() == root;
                let mut known = if is_root { [11_i64, 22, 33] } else { [0; 3] };
                group.broadcast(&mut known, root).unwrap();
                assert_eq!(known, [11, 22, 33]);
                for len in [0, 5, 50_000] {
                    // The other ranks' object has another shape, and is not read.
                    let own = if is_root { Some(tree(2, len)) } else { Some(tree(1, 3)) };
                    let came = group.broadcast_obj(own.clone(), root).unwrap();
                    assert_eq!(came, tree(2, len));
                    assert_eq!(group.broadcast_obj(Some(came), root).unwrap(), tree(2, len));
                }
                let none = group.broadcast_obj(is_root.then(|| "g".to_owned()), root).unwrap();
                assert_eq!(none, "g");
            }
        });
    }
}

#[test]
fn t_c6_a_ring_of_long_objects_does_not_wait_for_itself() {
    ranks(&library(), 4, |group| {
        let (rank, size) = (group.rank(), group.size());
        let (right, left) = ((rank + 1) % size, (rank + size - 1) % size);
        for _ in 0..3 {
            let (came, origin) =
                group.sendrecv_obj::<_, Tree>(&tree(rank, 1 << 17), right, left, 5).unwrap();
            assert!(came == tree(left, 1 << 17) && origin.source == left);
        }
    });
}

#[test]
fn t_c7_objects_of_all_ranks_are_gathered_though_their_shapes_differ() {
    ranks(&library(), 4, |group| {
        let r = rank(&group);
        let three = Three(r + 1, r + 2, r + 3);
        let expected: Vec<_> = (0..4).map(|r| Three(r + 1, r + 2, r + 3)).collect();
        assert_eq!(group.all_gather_obj(&three).unwrap(), expected);
        // Even ranks have a part that odd ones lack, and all have arrays of different lengths.
        let ragged = |rank: usize| tree(rank, 1 + rank * 5000);
        let came = group.gather_obj(&ragged(group.rank()), 2).unwrap();
        let expected = (0..4).map(ragged).collect::<Vec<_>>();
        assert!(came == (r == 2).then(|| expected.clone()));
        assert!(group.all_gather_obj(&ragged(group.rank())).unwrap() == expected);
    });
}

#[test]
fn t_c8_another_type_is_an_error_that_names_both_and_the_next_object_is_fine() {
    ranks(&library(), 2, |group| {
        if group.rank() == 0 {
            group.send_obj(&Three(1_i64, 2, 3), 1, 0).unwrap();
            group.send_obj(&Three(1_i64, 2, 3), 1, 0).unwrap();
            // Its long arrays are dropped with it.
            group.send_obj(&tree(2, 100_000), 1, 0).unwrap();
            group.send_obj(&Three(1.5, 2.5, 3.5), 1, 0).unwrap();
            group.send_obj(&Leaf::from(vec![1_i32; 10]), 1, 0).unwrap();
        } else {
            for name in ["i64", "i64", "Tree"] {
                match group.recv_obj::<Three<f64>>(0, 0) {
                    Err(GroupError::SchemaMismatch { rank: 0, expected, got }) => {
                        assert!(expected.contains("f64"), "{expected}");
                        assert!(got.contains(name), "the schema travelled once: {got}");
                    }
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(group.recv_obj::<Three<f64>>(0, 0).unwrap().0, Three(1.5, 2.5, 3.5));
            let wrong = group.recv_obj::<Leaf<f32>>(0, 0);
            assert!(matches!(wrong, Err(GroupError::SchemaMismatch { .. })), "{wrong:?}");
        }
        group.barrier().unwrap();
    });
}

#[test]
fn t_c9_a_batch_matches_by_tag_whatever_the_order() {
    ranks(&library(), 4, |group| {
        let (rank, size) = (group.rank(), group.size());
        let value = |from: usize, to: usize, tag: u32| {
            tree(from * 100 + to * 10, usize::try_from(tag).unwrap() * 3000)
        };
        let objects: Vec<_> = (0..8_u32)
            .map(|tag| {
                let to = (rank + usize::try_from(tag).unwrap()) % size;
                (value(rank, to, tag), to, tag)
            })
            .collect();
        let mut places: Vec<Option<(Tree, Origin)>> = vec![None; 8];
        let mut batch = ObjectBatch::new();
        for (object, to, tag) in &objects {
            batch.send(object, *to, *tag);
        }
        // The last tag first.
        for (place, tag) in places.iter_mut().zip((0..8_u32).rev()) {
            let from = (rank + size * 8 - usize::try_from(tag).unwrap()) % size;
            batch.recv(place, from, tag);
        }
        batch.execute(&group).unwrap();
        for (place, tag) in places.into_iter().zip((0..8_u32).rev()) {
            let (came, origin) = place.unwrap();
            assert_eq!(origin.tag, tag);
            assert!(came == value(origin.source, rank, tag));
        }
    });
}

#[test]
fn c5_long_leaves_are_shared_with_a_send_and_may_be_changed_under_it() {
    ranks(&library(), 2, |group| {
        let mut leaf = Leaf::from(vec![1.0_f64; 200_000]);
        if group.rank() == 0 {
            let sending = group.isend_obj(&leaf, 1, 0).unwrap();
            leaf[0] = 2.0;
            group.meet(&[]).unwrap();
            sending.wait().unwrap();
            drop(group.isend_obj(&leaf, 1, 1).unwrap());
            drop(leaf);
        } else {
            group.meet(&[]).unwrap();
            assert!(group.recv_obj::<Leaf<f64>>(0, 0).unwrap().0 == leaf, "as it was when sent");
            leaf[0] = 2.0;
            assert!(group.recv_obj::<Leaf<f64>>(0, 1).unwrap().0 == leaf, "a dropped send goes on");
        }
        group.barrier().unwrap();
    });
}

#[test]
fn c10_an_object_is_received_into_the_memory_of_another() {
    ranks(&library(), 2, |group| {
        let long = |seed: usize| vec![seed as f64; 100_000 - seed * 1000];
        let tree = |seed: usize| Tree { field: long(seed).into(), ..tree(seed, 5) };
        if group.rank() == 0 {
            (1..=4).for_each(|seed| group.send_obj(&tree(seed), 1, 0).unwrap());
        } else {
            let mut object = tree(0);
            let before = object.field.as_ptr();
            assert_eq!(group.recv_obj_into(&mut object, 0, 0).unwrap().source, 0);
            assert!(object == tree(1) && object.field.as_ptr() == before, "the memory is the same");
            // New memory may have the address of memory that was just freed, but no reserve.
            let field = std::mem::take(&mut object.field).into_vec();
            assert_eq!((field.len(), field.capacity()), (99_000, 100_000));
            object.field = field.into();
            let mut wrong = vec![1_u8, 2];
            let refused = group.recv_obj_into(&mut wrong, 0, 0);
            assert!(matches!(refused, Err(GroupError::SchemaMismatch { .. })), "{refused:?}");
            assert_eq!(wrong, [1, 2], "what is refused changes nothing");
            // Shared memory may be read by others.
            let shared = object.clone();
            group.recv_obj_into(&mut object, 0, 0).unwrap();
            assert!(object == tree(3) && shared == tree(1));
            // Memory with too little capacity is not used.
            let mut small = Tree { field: vec![0.0; 90_000].into(), ..Tree::default() };
            group.recv_obj_into(&mut small, 0, 0).unwrap();
            assert!(small == tree(4));
        }
        group.barrier().unwrap();
    });
}

#[test]
fn blobs_stand_at_multiples_of_64_where_they_were_received() {
    ranks(&library(), 2, |group| {
        let of = |seed: u8| -> Vec<(u8, Blob)> {
            [0, 1, 63, 200, 5000, 100_000, 3].map(|len| (seed, vec![seed; len].into())).into()
        };
        if group.rank() == 0 {
            group.send_obj(&of(7), 1, 0).unwrap();
        } else {
            let (came, _) = group.recv_obj::<Vec<(u8, Blob)>>(0, 0).unwrap();
            for ((_, came), (_, sent)) in came.iter().zip(of(7)) {
                assert_eq!(came[..], sent[..]);
                assert!(came.as_ptr().addr().is_multiple_of(64), "{} bytes", came.len());
            }
            // A received blob is sent on without a copy.
            group.send_obj(&came, 0, 0).unwrap();
        }
        if group.rank() == 0 {
            let (came, _) = group.recv_obj::<Vec<(u8, Blob)>>(1, 0).unwrap();
            assert!(came.iter().zip(of(7)).all(|(came, sent)| came.1[..] == sent.1[..]));
        }
        let refused = group.all_reduce_obj(&Blob::from(vec![1]), Op::Sum);
        assert!(matches!(refused, Err(GroupError::InvalidArgument(_))), "{refused:?}");
    });
}

#[test]
fn a_short_array_that_was_received_is_changed_alone() {
    ranks(&library(), 2, |group| {
        let pair = (Leaf::from(vec![1_u8; 3]), Leaf::from(vec![2.0_f64; 3]));
        if group.rank() == 0 {
            group.send_obj(&pair, 1, 0).unwrap();
        } else {
            let (mut came, _) = group.recv_obj::<(Leaf<u8>, Leaf<f64>)>(0, 0).unwrap();
            let before = came.clone();
            came.0[2] = 9;
            assert!(before == pair && came.1 == pair.1 && came.0[..] == [1, 1, 9]);
            assert_eq!(came.1.into_vec(), [2.0; 3]);
        }
        group.barrier().unwrap();
    });
}

#[test]
fn a_leaf_goes_by_a_group_alone() {
    assert!(serde_json::to_string(&Leaf::from(vec![1_u8])).is_err());
    assert!(serde_json::from_str::<Leaf<u8>>("1").is_err());
}

#[cfg(feature = "ndarray")]
#[test]
fn arrays_with_strides_go_packed_and_others_from_where_they_are() {
    use ironrail_group::objects::Tensor;
    use ndarray::{Array2, s};
    ranks(&library(), 2, |group| {
        let whole = Array2::from_shape_fn((40, 50), |(i, j)| i as f64 * 100.0 + j as f64);
        let part = whole.slice(s![..;2, 1..;7]);
        if group.rank() == 0 {
            group.send_array(&whole.view(), 1, 0).unwrap();
            group.send_array(&part, 1, 1).unwrap();
            group.send_array(&part, 1, 2).unwrap();
            group.send_obj(&Tensor::new(&part), 1, 3).unwrap();
        } else {
            let mut into = Array2::zeros((40, 50));
            let before = into.as_ptr();
            group.recv_array(&mut into.view_mut(), 0, 0).unwrap();
            assert!(into == whole && into.as_ptr() == before);
            into.fill(0.0);
            group.recv_array(&mut into.slice_mut(s![..;2, 1..;7]), 0, 1).unwrap();
            assert!(into.slice(s![..;2, 1..;7]) == part);
            assert_eq!(into.sum(), part.sum(), "nothing between them is written");
            let mut larger = Array2::<f64>::zeros((40, 50));
            let refused = group.recv_array(&mut larger.view_mut(), 0, 2);
            assert!(matches!(refused, Err(GroupError::Mismatch { rank: 0, .. })));
            let came = group.recv_obj::<Tensor<f64>>(0, 3).unwrap().0.into_array().unwrap();
            assert!(came == part.into_dyn());
        }
        group.barrier().unwrap();
    });
}

/// T-C1's input with strides: `{10, 20}` of every rank, eight bytes apart.
#[cfg(feature = "ndarray")]
#[test]
fn t_c1_views_with_strides_are_reduced_and_broadcast_in_place() {
    use ndarray::{Array2, array, s};
    for n in 2..=4_u8 {
        ranks(&library(), usize::from(n), move |group| {
            let mut whole = array![[10, 1], [20, 2]];
            let before = whole.as_ptr();
            group.all_reduce_array(&mut whole.slice_mut(s![.., 0]), Op::Sum).unwrap();
            let n = i32::from(n);
            assert_eq!((&whole, whole.as_ptr()), (&array![[10 * n, 1], [20 * n, 2]], before));
            // One rank's columns are another's rows.
            let own = i32::try_from(group.rank()).unwrap();
            let mut square = Array2::from_elem((2, 3), own);
            let mut turned = square.clone().reversed_axes();
            let root = usize::try_from(n).unwrap() - 1;
            let view = if own == 0 { square.view_mut() } else { turned.view_mut().reversed_axes() };
            let mut view = view;
            group.reduce_array(&mut view.slice_mut(s![.., ..;2]), Op::Max, root).unwrap();
            assert!(view.iter().all(|value| *value == own));
            if own + 1 == n {
                view.fill(7);
                view[[0, 1]] = 8;
            }
            group.broadcast_array(&mut view, root).unwrap();
            assert_eq!(view, array![[7, 8, 7], [7, 7, 7]]);
        });
    }
}
