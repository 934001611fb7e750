//! What InfiniCCL's send and receive and its collectives do, and what their reviewers requested: cases T-I1 to T-I15 of
//! docs/group.md. T-I13, which needs much memory, is in large.rs.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]
#![allow(clippy::cast_precision_loss, reason = "ranks and small numbers")]

mod support;

use std::time::{Duration, Instant};

use ironrail_group::check;
use ironrail_group::error::GroupError;
use ironrail_group::group::Group;
use ironrail_group::loader::{Complex64, DataType, Element, Op};
use ironrail_group::messages::{Any, Coming, Received};
use ironrail_group::with_element;
use support::{library, pattern, ranks};

const MEBI: usize = 1 << 20;

#[test]
fn t_i1_send_and_receive_bring_every_element() {
    ranks(&library(), 2, |group| {
        let mut data = vec![if group.rank() == 0 { 7.0_f32 } else { 0.0 }; MEBI];
        if group.rank() == 0 {
            group.send(&data, 1, 0).unwrap();
        } else {
            assert_eq!(group.recv(&mut data, 0, 0).unwrap().count, MEBI);
        }
        assert!(data.iter().all(|value| *value == 7.0));
    });
}

/// What rank r gives: r + 1, a mebi of times.
fn given(group: &Group) -> Vec<f32> {
    vec![group.rank() as f32 + 1.0; MEBI]
}

fn sum_of_all(group: &Group) -> f32 {
    (group.size() * (group.size() + 1) / 2) as f32
}

/// Whether block s has what rank s gave.
fn has_all(blocks: &[f32]) -> bool {
    let has = |(s, block): (usize, &[f32])| block.iter().all(|value| *value == s as f32 + 1.0);
    blocks.chunks(MEBI).enumerate().all(has)
}

#[test]
fn t_i2_all_reduce_gives_every_rank_the_sum() {
    ranks(&library(), 4, |group| {
        let mut data = given(&group);
        group.all_reduce(&mut data, Op::Sum).unwrap();
        assert!(data.iter().all(|value| *value == sum_of_all(&group)));
    });
}

#[test]
fn t_i3_reduce_gives_the_root_the_sum_and_no_other_rank() {
    ranks(&library(), 4, |group| {
        let (is_root, mut output) = (group.rank() == 0, vec![-1.0; MEBI]);
        group.reduce(&given(&group), is_root.then_some(&mut output[..]), Op::Sum, 0).unwrap();
        let expected = if is_root { sum_of_all(&group) } else { -1.0 };
        assert!(output.iter().all(|value| *value == expected));
    });
}

#[test]
fn t_i4_all_gather_and_gather_put_every_block_in_its_place() {
    ranks(&library(), 4, |group| {
        let mut blocks = vec![0.0; group.size() * MEBI];
        group.all_gather(&given(&group), &mut blocks).unwrap();
        assert!(has_all(&blocks));
        blocks.fill(0.0);
        let is_root = group.rank() == 3;
        group.gather(&given(&group), is_root.then_some(&mut blocks[..]), 3).unwrap();
        assert!(if is_root { has_all(&blocks) } else { blocks.iter().all(|value| *value == 0.0) });
    });
}

#[test]
fn t_i5_scatter_gives_every_rank_its_block() {
    ranks(&library(), 4, |group| {
        let blocks: Vec<f32> =
            (0..group.size()).flat_map(|s| std::iter::repeat_n(s as f32 + 1.0, MEBI)).collect();
        let mut block = vec![0.0; MEBI];
        group.scatter((group.rank() == 3).then_some(&blocks[..]), &mut block, 3).unwrap();
        assert_eq!(block, given(&group));
    });
}

#[test]
fn t_i6_reduce_scatter_gives_every_rank_its_block_of_the_sum() {
    ranks(&library(), 4, |group| {
        let input = vec![group.rank() as f32 + 1.0; group.size() * MEBI];
        let mut block = vec![0.0; MEBI];
        group.reduce_scatter(&input, &mut block, Op::Sum).unwrap();
        assert!(block.iter().all(|value| *value == sum_of_all(&group)));
    });
}

#[test]
fn t_i7_all_to_all_puts_every_block_in_its_place() {
    const EACH: usize = 256 << 10;
    ranks(&library(), 3, |group| {
        let (me, size) = (group.rank(), group.size());
        let value = |from: usize, to: usize| (from * 1000 + to) as f32;
        let input: Vec<f32> =
            (0..size).flat_map(|to| std::iter::repeat_n(value(me, to), EACH)).collect();
        let mut output = vec![0.0; size * EACH];
        group.all_to_all(&input, &mut output).unwrap();
        for (from, block) in output.chunks(EACH).enumerate() {
            assert!(block.iter().all(|found| *found == value(from, me)));
        }
        // Ragged: rank r sends r + 1 elements to rank 0, r + 2 to rank 1, and so on.
        let sends: Vec<usize> = (0..size).map(|to| (me + to + 1) * 10_000).collect();
        let (mut ragged, mut came) = (Vec::new(), vec![0.0_f32; sends.iter().sum()]);
        sends.iter().enumerate().for_each(|(to, len)| {
            ragged.extend(std::iter::repeat_n(value(me, to), *len));
        });
        group.all_to_all_v(&ragged, &sends, &mut came, &sends).unwrap();
        let mut rest = &came[..];
        for (from, len) in sends.iter().enumerate() {
            let (block, after) = rest.split_at(*len);
            assert!(block.iter().all(|found| *found == value(from, me)));
            rest = after;
        }
    });
}

#[test]
fn t_i8_a_broadcast_is_out_of_place_or_in_place() {
    ranks(&library(), 3, |group| {
        for (root, count) in [(0, 10), (1, 5_000), (2, MEBI)] {
            let given = vec![root as f32 + 0.5; count];
            let mut output = vec![0.0; count];
            let is_root = group.rank() == root;
            group.broadcast_into(is_root.then_some(&given[..]), &mut output, root).unwrap();
            assert_eq!(output, given);
            let mut data = if is_root { given.clone() } else { vec![0.0; count] };
            group.broadcast(&mut data, root).unwrap();
            assert_eq!(data, given);
        }
    });
}

#[test]
fn t_i9_a_ping_pong_of_every_size_keeps_every_byte() {
    let sizes = [0, 1, 4095, 4096, 4097, 16_383, 16_384, 16_385, 1 << 16, MEBI, 64 * MEBI];
    ranks(&library(), 2, move |group| {
        for (number, len) in sizes.into_iter().enumerate() {
            let (ping, pong) = (pattern(number, len), pattern(number + 100, len));
            let mut into = vec![0; len];
            if group.rank() == 0 {
                group.send(&ping, 1, 3).unwrap();
                group.recv(&mut into, 1, 4).unwrap();
                assert!(into == pong, "{len}");
            } else {
                group.recv(&mut into, 0, 3).unwrap();
                assert!(into == ping, "{len}");
                group.send(&pong, 0, 4).unwrap();
            }
        }
    });
}

#[test]
fn t_i10_a_rank_that_does_not_exist_is_refused_at_once_without_harm() {
    ranks(&library(), 2, |group| {
        let mut data = [1_i32; 8];
        let mut refuse = || {
            let begun = Instant::now();
            for rank in [2, usize::MAX] {
                for refused in [
                    group.send(&data, rank, 0),
                    group.recv(&mut data, rank, 0).map(drop),
                    group.broadcast(&mut data, rank),
                    group.reduce_in_place(&mut data, Op::Sum, rank),
                    group.group(|block| block.send(&[1_i32], rank, 0)),
                ] {
                    assert!(matches!(refused, Err(GroupError::InvalidArgument(_))), "{refused:?}");
                }
            }
            begun.elapsed()
        };
        // Of many runs at least one is not interrupted, however busy the machine is.
        let soonest = (0..50).map(|_| refuse()).min();
        assert!(soonest < Some(Duration::from_millis(10)), "{soonest:?}");
        group.all_reduce(&mut data, Op::Sum).unwrap();
        assert_eq!(data, [2; 8]);
    });
}

#[test]
fn t_i11_an_operation_that_a_type_lacks_is_refused_before_anything_moves() {
    ranks(&library(), 2, |group| {
        let mut data = [Complex64 { re: 1.0, im: 2.0 }; 4];
        for op in [Op::Min, Op::Max] {
            let refused = group.all_reduce(&mut data, op);
            assert!(matches!(refused, Err(GroupError::InvalidArgument(_))), "{refused:?}");
        }
        let mut short = [Complex64::default(); 3];
        let refused = group.all_reduce_into(&data, &mut short, Op::Sum);
        assert!(matches!(refused, Err(GroupError::InvalidArgument(_))), "{refused:?}");
        group.all_reduce(&mut data, Op::Sum).unwrap();
        assert_eq!(data, [Complex64 { re: 2.0, im: 4.0 }; 4]);
    });
}

#[test]
fn t_i12_no_elements_are_a_message_and_the_next_one_matches() {
    ranks(&library(), 2, |group| {
        let none: [u16; 0] = [];
        if group.rank() == 0 {
            for _ in 0..3 {
                group.send(&none, 1, 9).unwrap();
            }
            group.send(&[77_u16], 1, 9).unwrap();
        } else {
            let came = Received { source: 0, tag: 9, count: 0 };
            assert_eq!(group.recv(&mut [0_u16; 0], 0, 9).unwrap(), came);
            let coming = Coming { source: 0, tag: 9, bytes: 0, element: DataType::U16 };
            assert_eq!(group.probe(Any, Any).unwrap(), coming);
            assert_eq!(group.recv(&mut [0_u16; 4], Any, Any).unwrap(), came);
            assert_eq!(group.recv_vec::<u16>(Any, Any).unwrap(), (Vec::new(), came));
            let refused = group.recv(&mut [0_u16; 0], 0, 9);
            assert!(matches!(refused, Err(GroupError::TooLong { bytes: 2, .. })), "{refused:?}");
        }
        group.all_reduce::<f32>(&mut [], Op::Sum).unwrap();
        group.broadcast::<f32>(&mut [], 1).unwrap();
    });
}

#[test]
fn no_elements_come_in_every_form_from_every_sender() {
    ranks(&library(), 3, |group| {
        let (rank, size, none) = (group.rank(), group.size(), [0_u8; 0]);
        let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
        let came = Received { source: before, tag: 3, count: 0 };
        assert_eq!(group.sendrecv(&none, next, &mut [0_u8; 0], Any, 3).unwrap(), came);
        let (none, some) = (vec![0_u8; 0], vec![7_u8; 2]);
        for to in [next, rank] {
            let came =
                |count| Received { source: if to == rank { rank } else { before }, tag: 4, count };
            let sends = [none.clone(), some.clone(), none.clone()];
            let sends = sends.map(|data| group.isend(data, to, 4).unwrap());
            for count in [0, 2, 0] {
                let receiving = group.irecv(vec![0_u8; 2], Any, Any).unwrap();
                assert_eq!(receiving.wait().unwrap().1, came(count));
            }
            sends.into_iter().for_each(|sending| drop(sending.wait().unwrap()));
            let (mut first, mut second) = ([0_u8; 0], [0_u8; 2]);
            let block = group.group(|block| {
                block.send(&none, to, 5)?;
                block.send(&some, to, 5)?;
                block.recv(&mut first, Any, 5)?;
                block.recv(&mut second, Any, 5)
            });
            block.unwrap();
            assert_eq!(second, [7; 2]);
            // Ranks send to different ranks then.
            group.barrier().unwrap();
        }
    });
}

#[test]
fn t_i14_more_elements_than_fit_memory_are_refused_without_an_allocation() {
    ranks(&library(), 1, |group| {
        let refused = group.buffer::<f64>(usize::MAX / 2).map(drop);
        assert!(matches!(refused, Err(GroupError::InvalidArgument(_))), "{refused:?}");
        let lens = [usize::MAX];
        let refused = group.all_to_all_v::<f64>(&[], &lens, &mut [], &lens);
        assert!(matches!(refused, Err(GroupError::InvalidArgument(_))), "{refused:?}");
    });
}

fn reduced<T: Element>(group: &Group, op: Op, count: usize) {
    let ranks = group.size();
    let sample = |rank, index| check::sample::<T>(op, rank, index, 2);
    let mut data: Vec<T> = (0..count).map(|index| sample(group.rank(), index)).collect();
    group.all_reduce(&mut data, op).unwrap();
    for (index, found) in data.iter().enumerate() {
        let mut whole = [sample(0, index)];
        (1..ranks).for_each(|rank| T::reduce(op, &mut whole, &[sample(rank, index)]));
        if op == Op::Avg {
            T::divide(&mut whole, u32::try_from(ranks).unwrap());
        }
        assert_eq!(*found, whole[0], "{} {op} {count} {index}", T::TYPE);
    }
}

#[test]
fn t_i15_every_type_is_reduced_by_every_operation() {
    ranks(&library(), 3, |group| {
        for kind in DataType::ALL {
            for op in Op::ALL.into_iter().filter(|op| kind.supports(*op)) {
                for count in [1, 7, 1023, 65_537] {
                    with_element!(kind, T => reduced::<T>(&group, op, count));
                }
            }
        }
    });
}

/// I-10: with MPI's size of a type that MPI lacks, only half of the bytes moved.
#[test]
fn every_type_is_moved_whole_by_every_collective() {
    fn moved<T: Element>(group: &Group) {
        let (rank, size, each) = (group.rank(), group.size(), 1000);
        let of = |rank: usize, count: usize| -> Vec<T> {
            (0..count).map(|index| check::sample(Op::Sum, rank, index, 4)).collect()
        };
        let own = of(rank, each);
        let mut all = of(9, each * size);
        group.all_gather(&own, &mut all).unwrap();
        (0..size).for_each(|r| assert_eq!(all[r * each..(r + 1) * each], of(r, each)[..]));
        let mut exchanged = of(9, each * size);
        group.all_to_all(&of(rank, each * size), &mut exchanged).unwrap();
        for r in 0..size {
            let theirs = of(r, each * size);
            let block = &theirs[rank * each..(rank + 1) * each];
            assert_eq!(exchanged[r * each..(r + 1) * each], *block, "{}", T::TYPE);
        }
        let mut block = of(9, each);
        group.scatter((rank == 1).then_some(&all[..]), &mut block, 1).unwrap();
        assert_eq!(block, own);
        let mut gathered = of(9, each * size);
        group.gather(&own, (rank == 2).then_some(&mut gathered[..]), 2).unwrap();
        assert!(rank != 2 || gathered == all);
        let mut whole = of(rank, each);
        group.broadcast(&mut whole, 0).unwrap();
        assert_eq!(whole, of(0, each));
    }
    ranks(&library(), 3, |group| {
        for kind in DataType::ALL {
            with_element!(kind, T => moved::<T>(&group));
        }
    });
}

/// I-13: it deadlocked beyond the eager size.
#[test]
fn a_message_to_oneself_needs_a_block_or_a_request() {
    ranks(&library(), 2, |group| {
        let (rank, data) = (group.rank(), vec![3_u8; MEBI]);
        let refused = group.send(&data, rank, 0);
        assert!(matches!(refused, Err(GroupError::InvalidArgument(_))), "{refused:?}");
        let mut into = vec![0_u8; MEBI];
        group
            .group(|block| {
                block.send(&data, rank, 5)?;
                block.recv(&mut into, rank, 5)
            })
            .unwrap();
        assert_eq!(into, data);
        let sending = group.isend(data, rank, 6).unwrap();
        let receiving = group.irecv(vec![0_u8; MEBI], Any, Any).unwrap();
        let (into, came) = receiving.wait().unwrap();
        assert_eq!((into, came.source, came.tag), (sending.wait().unwrap(), rank, 6));
    });
}

/// I-14: two ranks that both send first.
#[test]
fn exchanges_of_any_order_are_safe_in_a_block() {
    ranks(&library(), 4, |group| {
        let (rank, size) = (group.rank(), group.size());
        let own = vec![u32::try_from(rank).unwrap(); 100_000];
        let mut into = vec![vec![0_u32; 100_000]; size];
        group
            .group(|block| {
                (0..size).try_for_each(|peer| block.send(&own, peer, 1))?;
                into.iter_mut().enumerate().rev().try_for_each(|(r, data)| block.recv(data, r, 1))
            })
            .unwrap();
        for (from, data) in into.iter().enumerate() {
            assert!(data.iter().all(|value| *value as usize == from));
        }
        // The same with requests, by tags, the last first.
        let sends: Vec<_> = (0..8_u32)
            .map(|tag| group.isend(vec![tag; 30_000], (rank + 1) % size, tag).unwrap())
            .collect();
        for tag in (0..8_u32).rev() {
            let mut data = vec![0_u32; 30_000];
            group.recv(&mut data, (rank + size - 1) % size, tag).unwrap();
            assert!(data.iter().all(|value| *value == tag));
        }
        sends.into_iter().for_each(|send| assert_eq!(send.wait().unwrap().len(), 30_000));
    });
}

#[test]
fn a_message_that_a_receive_cannot_take_is_its_error_and_the_next_one_comes() {
    ranks(&library(), 2, |group| {
        for count in [10, 50_000] {
            if group.rank() == 0 {
                group.send(&vec![1_u32; count], 1, 1).unwrap();
                group.send(&vec![2_u32; count], 1, 1).unwrap();
                group.send(&vec![3_u32; count], 1, 1).unwrap();
            } else {
                let mut small = vec![9_u32; count / 2];
                let refused = group.recv(&mut small, 0, 1).unwrap_err();
                assert!(matches!(refused, GroupError::TooLong { source: 0, .. }), "{refused}");
                assert!(small.iter().all(|value| *value == 9));
                let mut other = vec![9.0_f32; count];
                let refused = group.recv(&mut other, 0, 1).unwrap_err();
                assert!(matches!(refused, GroupError::OtherType { .. }), "{refused}");
                let (data, came) = group.recv_vec::<u32>(Any, 1).unwrap();
                assert_eq!((data, came.count), (vec![3; count], count));
            }
        }
    });
}

#[test]
fn a_message_of_another_type_is_dropped_though_it_is_shorter_than_one_element() {
    ranks(&library(), 2, |group| {
        if group.rank() == 0 {
            group.send(&[1.0_f32], 1, 1).unwrap();
            group.send(&[2.0_f32; 3], 1, 1).unwrap();
            group.send(&[3.0_f64], 1, 1).unwrap();
        } else {
            for _ in 0..2 {
                let refused = group.recv_vec::<f64>(0, 1);
                assert!(matches!(refused, Err(GroupError::OtherType { .. })), "{refused:?}");
            }
            assert_eq!(group.recv_vec::<f64>(0, 1).unwrap().0, [3.0]);
        }
    });
}

#[test]
fn a_message_to_oneself_is_received_into_new_memory_from_any_rank() {
    ranks(&library(), 2, |group| {
        let rank = group.rank();
        let sending = group.isend(vec![3_u8; MEBI], rank, 6).unwrap();
        let refused = group.recv_vec::<u8>(rank, 6);
        assert!(matches!(refused, Err(GroupError::InvalidArgument(_))), "as by recv: {refused:?}");
        let (data, came) = group.recv_vec::<u8>(Any, Any).unwrap();
        assert_eq!((data, came.source, came.tag), (sending.wait().unwrap(), rank, 6));
    });
}

#[test]
fn a_receive_whose_message_is_there_is_not_taken_back() {
    ranks(&library(), 2, |group| {
        if group.rank() == 1 {
            group.send(&[7_u8; 3], 0, 1).unwrap();
            group.send(&[8_u8], 0, 2).unwrap();
            return group.meet(&[]).map(drop).unwrap();
        }
        let mut receiving = group.irecv(vec![0_u8; 8], 1, 1).unwrap();
        let mut in_vain = group.irecv(vec![0_u8; 8], 1, 3).unwrap();
        // It was sent later.
        group.recv(&mut [0_u8], 1, 2).unwrap();
        assert!(!receiving.take_back() && in_vain.take_back());
        let (data, Received { source, tag, count }) = receiving.wait().unwrap();
        assert_eq!((&data[..3], source, tag, count), (&[7; 3][..], 1, 1, 3));
        assert_eq!(in_vain.wait().unwrap().1.count, 0);
        group.meet(&[]).unwrap();
    });
}
