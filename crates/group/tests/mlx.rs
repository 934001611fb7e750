//! What MLX's distributed backend does, and what its issues request: cases T-M1 to T-M11 of docs/group.md. The parts of
//! T-M10 without a network are in src/start.rs and src/devices.rs.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]
#![allow(clippy::cast_precision_loss, reason = "ranks and small numbers")]

mod support;

use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ironrail_group::bootstrap::{Bootstrap, Hub, Meeting, Remote};
use ironrail_group::check;
use ironrail_group::error::GroupError;
use ironrail_group::group::{Builder, Group};
use ironrail_group::launch::MEETING_VARIABLE;
use ironrail_group::loader::{Complex64, DataType, Element, Op, bf16, f16};
use ironrail_group::start::Start;
use ironrail_group::tuning::{Algorithm, Tuning};
use ironrail_group::with_element;
use support::{WAIT, library, ranks, ranks_within};

/// Numbers from 0 to 10, which depend on the rank and the index only.
fn uniform(rank: usize, index: usize) -> f32 {
    let mixed = (rank as u64 * 0x9E37_79B9 + index as u64 + 1).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    (mixed >> 40) as f32 / (1 << 24) as f32 * 10.0
}

#[test]
fn t_m1_sums_are_close_and_extremes_exact() {
    fn near<T: Element>(group: &Group, make: fn(f32) -> T, back: fn(T) -> f32, tolerance: f32) {
        for count in [7, 10, 1024, 1 << 18] {
            let own = |rank: usize| (0..count).map(move |i| make(uniform(rank, i)));
            let mut sum: Vec<T> = own(group.rank()).collect();
            group.all_reduce(&mut sum, Op::Sum).unwrap();
            for (index, found) in sum.iter().enumerate() {
                let all = (0..group.size()).map(|rank| f64::from(back(make(uniform(rank, index)))));
                let whole: f64 = all.sum();
                let off = (f64::from(back(*found)) - whole).abs();
                assert!(off <= f64::from(tolerance) * whole.max(1.0), "{index}");
            }
            if !T::TYPE.supports(Op::Max) {
                continue;
            }
            for (op, pick) in [(Op::Max, f32::max as fn(f32, f32) -> f32), (Op::Min, f32::min)] {
                let mut data: Vec<T> = own(group.rank()).collect();
                group.all_reduce(&mut data, op).unwrap();
                for (index, found) in data.iter().enumerate() {
                    let all = (0..group.size()).map(|rank| back(make(uniform(rank, index))));
                    assert_eq!(back(*found), all.reduce(pick).unwrap());
                }
            }
        }
    }
    ranks(&library(), 4, |group| {
        near::<f32>(&group, |v| v, |v| v, 1e-6);
        near::<f16>(&group, f16::from_f32, f16::to_f32, 5e-3);
        near::<bf16>(&group, bf16::from_f32, bf16::to_f32, 1e-1);
        near::<Complex64>(&group, |v| Complex64 { re: v, im: -v }, |v| v.re, 1e-6);
    });
}

#[test]
fn t_m2_all_gather_of_ones_is_ones() {
    ranks(&library(), 4, |group| {
        for kind in DataType::ALL {
            with_element!(kind, T => {
                let one = T::from_small(1);
                let mut all = vec![T::from_small(0); 16 * group.size()];
                group.all_gather(&[one; 16], &mut all).unwrap();
                assert!(all.iter().all(|value| *value == one));
            });
        }
    });
}

#[test]
fn t_m3_messages_of_differing_sizes_follow_each_other_without_a_barrier() {
    ranks(&library(), 4, |group| {
        let (rank, size) = (group.rank(), group.size());
        let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
        let of = |rank: usize, len: usize, step: usize| -> Vec<u8> {
            (0..len).map(|i| u8::try_from((i * 31 + rank * 7 + step) % 251).unwrap()).collect()
        };
        for round in 0..3 {
            for (step, len) in
                [0, 1, 4095, 4096, 4097, 8191, 8192, 8193, 12_289].into_iter().enumerate()
            {
                let (own, mut into) = (of(rank, len, step + round), vec![0; len]);
                if rank.is_multiple_of(2) {
                    group.send(&own, next, 0).unwrap();
                    group.recv(&mut into, previous, 0).unwrap();
                } else {
                    group.recv(&mut into, previous, 0).unwrap();
                    group.send(&own, next, 0).unwrap();
                }
                assert_eq!(into, of(previous, len, step + round));
            }
        }
        for kind in DataType::ALL {
            for count in [7, 10, 1024, 1 << 16] {
                with_element!(kind, T => {
                    let of = |rank| -> Vec<T> {
                        (0..count).map(|i| check::sample(Op::Sum, rank, i, 3)).collect()
                    };
                    let mut into = vec![T::from_small(0); count];
                    group.sendrecv(&of(rank), next, &mut into, previous, 1).unwrap();
                    assert_eq!(into, of(previous));
                });
            }
        }
    });
}

#[test]
fn t_m4_a_ball_that_doubles_ten_times() {
    let ends = ranks(&library(), 2, |group| {
        let (rank, mut ball) = (group.rank(), vec![1.0_f32; 10]);
        for step in 0..10 {
            if step % 2 == rank {
                ball.iter_mut().for_each(|value| *value *= 2.0);
                group.send(&ball, 1 - rank, 0).unwrap();
            } else {
                group.recv(&mut ball, 1 - rank, 0).unwrap();
            }
        }
        // Rank 1 doubles last, and rank 0 receives the result.
        assert!(ball.iter().all(|value| *value == ball[0]));
        ball[0]
    });
    assert_eq!(ends, [1024.0, 1024.0]);
}

#[test]
fn t_m5_the_order_of_addition_is_the_same_on_every_rank_and_in_every_run() {
    for size in [2, 3, 4] {
        let all = ranks(&library(), size, move |group| {
            let mut found = Vec::new();
            for count in [5, 3_000, 70_001] {
                let own: Vec<f32> = (0..count)
                    .map(|i| {
                        [1e8, 1.0, -1e8, 3.5, 1e-3][(i + group.rank()) % 5]
                            * uniform(group.rank(), i)
                    })
                    .collect();
                for algorithm in Algorithm::ALL.into_iter().filter(|way| way.takes(size)) {
                    let mut first: Vec<u32> = Vec::new();
                    for run in 0..100 {
                        let mut sum = vec![0.0_f32; count];
                        group.all_reduce_by(algorithm, &own, &mut sum, Op::Sum).unwrap();
                        let bits: Vec<u32> = sum.iter().map(|value| value.to_bits()).collect();
                        if run == 0 {
                            first = bits;
                        } else {
                            assert!(first == bits, "{algorithm} {count}");
                        }
                        if count > 10_000 && run == 9 {
                            break;
                        }
                    }
                    found.push(first);
                }
            }
            found
        });
        assert!(all.iter().all(|found| *found == all[0]), "{size} ranks");
    }
}

#[test]
fn rank_0s_table_of_algorithms_is_used_by_all() {
    let hub = Hub::start(SocketAddr::from(([127, 0, 0, 1], 0)), 3, WAIT).unwrap();
    let join = |rank: usize| {
        let meeting = hub.meeting(rank);
        thread::spawn(move || {
            let place = Remote::join(meeting, WAIT).unwrap();
            // Ranks with different algorithms would wait for each other.
            let own = if rank == 0 { Algorithm::Ring } else { Algorithm::OnePhase };
            let builder = Builder::new(&library()).timeout(WAIT).tuning(Tuning::only(own));
            let group = builder.join(place).unwrap();
            assert_eq!(*group.tuning(), Tuning::only(Algorithm::Ring));
            let mut sum = vec![1_u32; 100_000];
            group.all_reduce(&mut sum, Op::Sum).unwrap();
            assert!(sum.iter().all(|value| *value == 3));
        })
    };
    let ranks = [0, 1, 2].map(join);
    ranks.into_iter().for_each(|rank| rank.join().unwrap());
}

#[test]
fn t_m6_groups_are_split_by_color_and_ranked_by_key() {
    ranks(&library(), 8, |group| {
        let rank = group.rank();
        let color = |of: usize| Some(u32::try_from(of).unwrap());
        let stride = group.split(color(rank % 2), 0).unwrap().unwrap();
        assert_eq!((stride.size(), stride.rank()), (4, rank / 2));
        let pair = group.split(color(rank / 2), 0).unwrap().unwrap();
        assert_eq!((pair.size(), pair.rank()), (2, rank % 2));
        let mut sum = [i32::try_from(rank).unwrap()];
        pair.all_reduce(&mut sum, Op::Sum).unwrap();
        let mut all = [0; 4];
        stride.all_gather(&sum, &mut all).unwrap();
        assert_eq!(all, [1, 5, 9, 13]);
        // Backwards, and without rank 7.
        let key = -i64::try_from(rank).unwrap();
        let most = group.split((rank != 7).then_some(0), key).unwrap();
        assert_eq!(most.map(|most| (most.size(), most.rank())), (rank != 7).then(|| (7, 6 - rank)));
        // Tags are per group: the same pair, the same tag, two groups.
        let peer = 1 - pair.rank();
        let far = if rank.is_multiple_of(2) { rank + 1 } else { rank - 1 };
        let requests =
            (group.isend(vec![1_u8], far, 5).unwrap(), pair.isend(vec![2_u8], peer, 5).unwrap());
        let mut got = [0_u8];
        pair.recv(&mut got, peer, 5).unwrap();
        assert_eq!(got, [2]);
        group.recv(&mut got, far, 5).unwrap();
        assert_eq!(got, [1]);
        requests.0.wait().unwrap();
        requests.1.wait().unwrap();
        group.barrier().unwrap();
    });
}

#[test]
fn collectives_of_twelve_ranks_are_right() {
    const RANKS: usize = 12;
    ranks(&library(), RANKS, |group| {
        let rank = group.rank();
        let value = |rank: usize, index: usize| i64::try_from(rank * 1_000 + index % 991).unwrap();
        let of = |rank: usize, count: usize| -> Vec<i64> {
            (0..count).map(|index| value(rank, index)).collect()
        };
        let sum = |index: usize| (0..RANKS).map(|rank| value(rank, index)).sum::<i64>();
        for each in [1, 100, 5_003] {
            let whole = of(rank, RANKS * each);
            for algorithm in Algorithm::ALL.into_iter().filter(|way| way.takes(RANKS)) {
                let mut all = vec![0; whole.len()];
                group.all_reduce_by(algorithm, &whole, &mut all, Op::Sum).unwrap();
                assert!(all.iter().enumerate().all(|(i, v)| *v == sum(i)), "{algorithm} {each}");
            }
            let mut part = vec![0; each];
            group.reduce_scatter(&whole, &mut part, Op::Sum).unwrap();
            assert!(part.iter().zip(rank * each..).all(|(v, i)| *v == sum(i)), "{each}");
            let root = RANKS - 1;
            let mut reduced = vec![0; whole.len()];
            group
                .reduce(&whole, (rank == root).then_some(&mut reduced[..]), Op::Sum, root)
                .unwrap();
            assert!(rank != root || reduced.iter().enumerate().all(|(i, v)| *v == sum(i)));
            let mut blocks = vec![0; whole.len()];
            group.all_gather(&of(rank, each), &mut blocks).unwrap();
            let right = |blocks: &[i64]| {
                blocks.chunks(each).enumerate().all(|(from, block)| *block == of(from, each))
            };
            assert!(right(&blocks), "{each}");
            blocks.fill(0);
            group.gather(&of(rank, each), (rank == 5).then_some(&mut blocks[..]), 5).unwrap();
            assert!(rank != 5 || right(&blocks), "{each}");
            group.scatter((rank == 5).then_some(&blocks[..]), &mut part, 5).unwrap();
            assert_eq!(part, of(rank, each));
            let mut dealt = vec![0; whole.len()];
            group.all_to_all(&whole, &mut dealt).unwrap();
            for (from, block) in dealt.chunks(each).enumerate() {
                assert!(block.iter().zip(rank * each..).all(|(v, i)| *v == value(from, i)));
            }
            let mut data = if rank == 7 { of(7, each) } else { vec![0; each] };
            group.broadcast(&mut data, 7).unwrap();
            assert_eq!(data, of(7, each));
            group.barrier().unwrap();
        }
        let color = Some(u32::try_from(rank % 4).unwrap());
        let three = group.split(color, 0).unwrap().unwrap();
        let mut ranks = [0_u64; 3];
        three.all_gather(&[rank as u64], &mut ranks).unwrap();
        assert_eq!(ranks, [0, 4, 8].map(|first| (first + rank % 4) as u64));
    });
}

#[test]
fn t_m7_reduce_scatter_deals_evenly_or_not_at_all() {
    for size in [3, 4, 8] {
        ranks(&library(), size, move |group| {
            let (rank, size) = (group.rank(), group.size());
            let terms = size * (size + 1) / 2;
            // Short blocks go in another way among 4 and 8 ranks: up to 512 elements.
            for each in [1, 511, 512, 513, 1000, 100_001] {
                let number = |n: usize| i64::try_from(n).unwrap();
                let input: Vec<_> = (0..size * each).map(|i| number(i * (rank + 1))).collect();
                let first = rank * each;
                let mut output = vec![0; each];
                for (op, result) in [(Op::Sum, terms), (Op::Max, size), (Op::Min, 1)] {
                    group.reduce_scatter(&input, &mut output, op).unwrap();
                    let right = output.iter().zip(first..).all(|(v, i)| *v == number(i * result));
                    assert!(right, "{op} of {each} among {size}");
                }
                group.reduce_scatter(&input, &mut output, Op::Sum).unwrap();
                let mut data = input.clone();
                group.reduce_scatter_in_place(&mut data, Op::Sum).unwrap();
                assert_eq!(data[first..first + each], output);
                assert_eq!(data[..first], input[..first]);
                let floats: Vec<_> = input.iter().map(|v| *v as f64).collect();
                let mut average = vec![0.0; each];
                group.reduce_scatter(&floats, &mut average, Op::Avg).unwrap();
                let right = |(v, i): (&f64, usize)| *v == (i * terms) as f64 / size as f64;
                assert!(average.iter().zip(first..).all(right), "{each} among {size}");
            }
            let refused = group.reduce_scatter_in_place(&mut [1_i32; 10][..size + 1], Op::Sum);
            assert!(matches!(refused, Err(GroupError::InvalidArgument(_))), "{refused:?}");
        });
    }
}

#[test]
fn t_m8_counts_that_cannot_be_dealt_evenly_are_right_in_place_and_out_of_place() {
    const COUNT: usize = 10_000_001;
    ranks(&library(), 3, |group| {
        let own: Vec<f32> = (0..COUNT).map(|i| (i % 1000 + group.rank()) as f32).collect();
        let right =
            |data: &[f32]| data.iter().enumerate().all(|(i, v)| *v == (i % 1000 * 3 + 3) as f32);
        for algorithm in [Algorithm::Mesh, Algorithm::Ring] {
            let mut output = vec![0.0; COUNT];
            group.all_reduce_by(algorithm, &own, &mut output, Op::Sum).unwrap();
            assert!(right(&output), "{algorithm}");
        }
        let mut data = group.buffer::<f32>(COUNT).unwrap();
        data.copy_from_slice(&own);
        group.all_reduce(&mut data, Op::Sum).unwrap();
        assert!(right(&data));
    });
}

/// Longer than several of the pieces in which each collective goes, by odd bytes.
#[test]
fn long_collectives_of_two_to_five_ranks_put_every_piece_in_its_place() {
    const COUNT: usize = 450_001;
    for size in 2..=5 {
        ranks(&library(), size, move |group| {
            let (rank, root) = (group.rank(), size - 1);
            let value = |rank: usize, i: usize| (i % 997 + rank) as f32;
            let sum = |i: usize| (i % 997 * size + size * (size - 1) / 2) as f32;
            let own: Vec<f32> = (0..COUNT).map(|i| value(rank, i)).collect();

            let mut data = own.clone();
            group.broadcast(&mut data, root).unwrap();
            assert!(data.iter().enumerate().all(|(i, v)| *v == value(root, i)));

            let mut data = own.clone();
            group.reduce_in_place(&mut data, Op::Sum, root).unwrap();
            let here = |i| if rank == root { sum(i) } else { value(rank, i) };
            assert!(data.iter().enumerate().all(|(i, v)| *v == here(i)));

            let blocks: Vec<f32> = (0..size).flat_map(|_| own.iter().copied()).collect();
            let mut block = vec![0.0; COUNT];
            group.reduce_scatter(&blocks, &mut block, Op::Sum).unwrap();
            assert!(block.iter().enumerate().all(|(i, v)| *v == sum(i)));

            for algorithm in [Algorithm::Mesh, Algorithm::Ring] {
                let mut data = own.clone();
                group.all_reduce_by(algorithm, &own, &mut data, Op::Sum).unwrap();
                assert!(data.iter().enumerate().all(|(i, v)| *v == sum(i)), "{algorithm}");
            }
        });
    }
}

/// One rank of a job of the next tests: it sums 64 MiB until an error, which it prints, or waits in a barrier.
#[test]
fn a_rank_of_a_job_that_another_test_starts() {
    let Ok(Ok(meeting)) = std::env::var(MEETING_VARIABLE).map(|text| text.parse::<Meeting>())
    else {
        return;
    };
    let place = Remote::join(meeting, WAIT).unwrap();
    let group = Builder::new(&library()).timeout(DEADLINE).join(place).unwrap();
    let mut data = group.buffer::<f32>(16 << 20).unwrap();
    group.all_reduce(&mut data[..1000], Op::Sum).unwrap();
    group.meet(&[]).unwrap();
    let ended = loop {
        if let Err(why) = group.all_reduce(&mut data, Op::Max) {
            break why;
        }
    };
    let again = group.barrier().unwrap_err().to_string();
    assert_eq!(again, ended.to_string(), "the first cause is said again");
    let code = match ended {
        GroupError::PeerLost { rank: 2, .. } => LOST,
        GroupError::Timeout { peers, .. } if peers == [2] => TIMED_OUT,
        other => panic!("{other}"),
    };
    drop(group);
    std::process::exit(code);
}

const DEADLINE: Duration = Duration::from_secs(4);
const LOST: i32 = 41;
const TIMED_OUT: i32 = 42;

struct Job(Vec<Child>);

impl Drop for Job {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn signalled(signal: &str) -> (Vec<i32>, Duration) {
    let this = std::env::current_exe().unwrap();
    let hub = Hub::start(SocketAddr::from(([127, 0, 0, 1], 0)), 4, WAIT).unwrap();
    let start = |rank| {
        Command::new(&this)
            .args(["a_rank_of_a_job_that_another_test_starts", "--exact", "--nocapture"])
            .env(MEETING_VARIABLE, hub.meeting(rank).to_string())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    };
    let mut job = Job((0..4).map(start).collect());
    // They are in the middle of it when they have used the CPU for a while.
    let busy = |child: &Child| {
        let stat =
            std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
        stat.split_whitespace().nth(13).and_then(|ticks| ticks.parse().ok()).unwrap_or(0_u64) > 40
    };
    let begun = Instant::now();
    while !job.0.iter().all(busy) {
        assert!(begun.elapsed() < WAIT, "the ranks do nothing");
        thread::sleep(Duration::from_millis(20));
    }
    let id = job.0[2].id().to_string();
    assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    let begun = Instant::now();
    let mut codes = Vec::new();
    for rank in [0, 1, 3] {
        codes.push(job.0[rank].wait().unwrap().code().unwrap_or(-1));
    }
    (codes, begun.elapsed())
}

#[test]
fn t_m9_a_rank_that_is_killed_is_lost_to_all_others() {
    let (codes, took) = signalled("-KILL");
    assert_eq!(codes, [LOST; 3]);
    assert!(took < DEADLINE + SLACK, "{took:?}");
}

#[test]
fn t_m9_a_rank_that_is_stopped_is_named_by_all_others_by_the_deadline() {
    let (codes, took) = signalled("-STOP");
    assert_eq!(codes, [TIMED_OUT; 3]);
    assert!(took < DEADLINE + SLACK, "{took:?}");
}

/// Time for a busy machine, and for the plugin's own close.
const SLACK: Duration = Duration::from_secs(8);

#[test]
fn a_barrier_returns_on_no_rank_before_every_rank_has_called_it() {
    for size in 2..=8 {
        let called: Arc<[AtomicUsize]> = (0..size).map(|_| AtomicUsize::new(0)).collect();
        ranks(&library(), size, move |group| {
            for late in 0..size {
                if group.rank() == late {
                    // So that the others would be past a barrier that does not wait.
                    thread::sleep(Duration::from_millis(20));
                }
                called[group.rank()].fetch_add(1, Ordering::AcqRel);
                group.barrier().unwrap();
                let counts: Vec<_> =
                    called.iter().map(|count| count.load(Ordering::Acquire)).collect();
                assert!(counts.iter().all(|count| *count > late), "{size} ranks: {counts:?}");
            }
        });
    }
}

#[test]
fn a_barrier_names_the_ranks_that_did_not_arrive() {
    // The first collective makes the connections within the same limit.
    let said = ranks_within(&library(), 3, Duration::from_secs(6), |group| {
        group.all_reduce(&mut [1.0_f32], Op::Sum).unwrap();
        if group.rank() == 1 {
            // It does other work for longer than the others wait.
            return (0..600).find_map(|_| {
                thread::sleep(Duration::from_millis(100));
                group.send(&[1_u8], 0, 1).err().map(|why| why.to_string())
            });
        }
        Some(group.barrier().unwrap_err().to_string())
    });
    for rank in [0, 2] {
        let said = said[rank].as_deref().unwrap();
        assert!(said.contains("rank 1, which did not arrive"), "{said}");
    }
}

#[test]
fn an_abort_ends_every_rank_and_names_its_caller() {
    let said = ranks(&library(), 3, |group| {
        if let Err(why) = group.all_reduce(&mut [1.0_f32], Op::Sum) {
            // A rank that is late here detects the abort before its own part arrives.
            assert_ne!(group.rank(), 0, "{why}");
            return why;
        }
        if group.rank() == 0 {
            let other = group.clone();
            let aborts = thread::spawn(move || {
                thread::sleep(Duration::from_millis(100));
                other.abort();
            });
            let mut data = [0_u8];
            let ended = group.recv(&mut data, 1, 99).unwrap_err();
            aborts.join().unwrap();
            return ended;
        }
        group.barrier().unwrap_err()
    });
    for error in said {
        assert!(matches!(error, GroupError::Aborted { rank: 0 }), "{error}");
    }
}

#[test]
fn parts_of_collectives_around_the_lengths_at_which_their_way_changes_arrive_whole_and_in_order() {
    ranks(&library(), 3, |group| {
        let (rank, size) = (group.rank(), group.size());
        let of = |rank: usize, len: usize| -> Vec<u32> {
            (0..len).map(|i| u32::try_from(i * 31 + rank * 7).unwrap()).collect()
        };
        let slot = (64 << 10) / size_of::<u32>();
        let half = slot / 2;
        // Longer parts pass through staging memory: of exchanges up to the one length, of others to the other.
        let (exchanged, staged) = (3 * slot, 4 * slot);
        let around = [half, slot, exchanged, staged].into_iter();
        let around: Vec<_> = around.flat_map(|len| [len - 1, len, len + 1]).collect();
        for &len in around.iter().chain(&[1]).chain(around.iter().rev()) {
            let all: Vec<u32> = (0..size).flat_map(|rank| of(rank, len)).collect();
            let mut gathered = vec![0; size * len];
            group.all_gather(&of(rank, len), &mut gathered).unwrap();
            assert!(gathered == all, "{len}");
            let mut own = vec![0; len];
            group.scatter(Some(&all[..]).filter(|_| rank == 1), &mut own, 1).unwrap();
            assert!(own == of(rank, len), "{len}");
            let mut exchanged = vec![0; size * len];
            group.all_to_all(&of(rank, len).repeat(size), &mut exchanged).unwrap();
            assert!(exchanged == all, "{len}");
            // More than a sender has slots for, before the receiver takes any.
            for root in 0..size {
                let output = Some(&mut gathered[..]).filter(|_| rank == root);
                group.gather(&of(rank, len), output, root).unwrap();
            }
            assert!(gathered == all, "{len}");
        }
    });
}

#[test]
fn short_blocks_that_other_ranks_carry_wait_for_their_connections() {
    for size in [4, 8] {
        ranks(&library(), size, move |group| {
            let of = |from: usize, to: usize| [(from * 10 + to) as u64; 3];
            let input: Vec<_> = (0..size).flat_map(|to| of(group.rank(), to)).collect();
            let mut output = vec![0; 3 * size];
            group.all_to_all(&input, &mut output).unwrap();
            let due: Vec<_> = (0..size).flat_map(|from| of(from, group.rank())).collect();
            assert_eq!(output, due);
        });
    }
}

#[test]
fn a_part_of_another_length_is_a_mismatch() {
    ranks(&library(), 2, |group| {
        let mut data = vec![1_u8; if group.rank() == 0 { 32 << 10 } else { 64 << 10 }];
        let ended = group.broadcast(&mut data, 0);
        if group.rank() == 1 {
            assert!(matches!(ended, Err(GroupError::Mismatch { rank: 0, .. })), "{ended:?}");
            let again = group.barrier();
            assert!(matches!(again, Err(GroupError::Mismatch { rank: 0, .. })), "{again:?}");
        } else {
            // It has sent, and learns of it by the next call at the latest.
            match ended.and_then(|()| group.barrier()) {
                Err(GroupError::PeerLost { rank: 1, why }) => {
                    assert!(why.ends_with(") and waits for 65536"), "{why}");
                }
                other => panic!("{other:?}"),
            }
        }
    });
}

/// A broadcast of so many bytes on two ranks, of which the first is the root; it leaves after it, or calls the next collective.
fn unequal(root: usize, other: usize, leaves: bool) {
    ranks_within(&library(), 2, Duration::from_secs(2), move |group| {
        // A connection for parts of these lengths is open, as in a program that runs.
        group.broadcast(&mut vec![0_u8; 70_000], 0).unwrap();
        let mut data = vec![1_u8; if group.rank() == 0 { root } else { other }];
        let ended = group.broadcast(&mut data, 0);
        if group.rank() == 1 {
            assert!(matches!(ended, Err(GroupError::Mismatch { rank: 0, .. })), "{ended:?}");
            let again = group.barrier();
            assert!(matches!(again, Err(GroupError::Mismatch { rank: 0, .. })), "{again:?}");
        } else if !leaves {
            let ended = ended.and_then(|()| group.barrier());
            // A plugin may refuse what is longer than its receive, as NCCL's do not up to v8: they cut it.
            let is_of_rank_1 = matches!(
                ended,
                Err(GroupError::PeerLost { rank: 1, .. }
                    | GroupError::Mismatch { rank: 1, .. }
                    | GroupError::Timeout { .. })
            );
            assert!(is_of_rank_1, "{ended:?}");
        }
    });
}

#[test]
fn long_parts_of_other_lengths_are_a_mismatch() {
    for (root, other) in [(100 << 10, 200 << 10), (300 << 10, 400 << 10), (200 << 10, 300 << 10)] {
        unequal(root, other, false);
        unequal(other, root, false);
    }
}

#[test]
fn long_parts_of_other_lengths_are_a_mismatch_though_their_rank_leaves() {
    for (root, other) in [(100 << 10, 200 << 10), (300 << 10, 400 << 10), (200 << 10, 300 << 10)] {
        unequal(root, other, true);
    }
}

#[test]
fn small_parts_for_long_ones_are_a_mismatch() {
    unequal(60_000, 70_000, false);
}

#[test]
fn small_parts_for_long_ones_are_a_mismatch_though_their_rank_leaves() {
    unequal(60_000, 70_000, true);
}

#[test]
fn ranks_that_call_different_collectives_get_an_error_instead_of_hanging() {
    let said = ranks_within(&library(), 2, Duration::from_secs(10), |group| {
        group.barrier().unwrap();
        let mut data = vec![1_i32; 10];
        if group.rank() == 0 {
            group.all_reduce(&mut data[..5], Op::Sum)
        } else {
            group.all_reduce(&mut data, Op::Sum)
        }
        .unwrap_err()
    });
    assert!(said.iter().any(|error| matches!(error, GroupError::Mismatch { .. })), "{said:?}");
}

#[test]
fn t_m10_start_up_errors_are_one_line_each_and_end_every_rank() {
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let hub = Hub::with_secret(&[loopback], 2, Duration::from_millis(500), 7).unwrap();
    let first = hub.meeting(0);
    let mut here = Remote::join(first, WAIT).unwrap();
    let why = |meeting| Remote::join(meeting, WAIT).unwrap_err().to_string();
    assert_eq!(why(first), "there are two ranks 0");
    assert_eq!(why(Meeting { size: 3, ..hub.meeting(1) }), "rank 1 of 3 comes to a group of 2");
    assert_eq!(
        why(Meeting { secret: 8, ..hub.meeting(1) }),
        "rank 1 has another join token than this group"
    );
    let why = here.barrier(WAIT).unwrap_err().to_string();
    assert!(why.contains("ranks [1]"), "{why}");
    // A port that is in use, and one without a listener.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let start = |rank: &str, address: &str| {
        let (rank, address) = (rank.to_owned(), address.to_owned());
        Start::from_variables(move |name| match name {
            "PMI_RANK" => Some(rank.clone()),
            "PMI_SIZE" => Some("2".to_owned()),
            "IRONRAIL_GROUP_COORDINATOR" => Some(address.clone()),
            _ => None,
        })
        .unwrap()
    };
    let why = start("0", &address).join(WAIT).unwrap_err().to_string();
    assert!(why.contains("listening for ranks") && !why.contains('\n'), "{why}");
    assert!(why.contains(&address) && why.contains("IRONRAIL_GROUP_COORDINATOR"), "{why}");
    drop(taken);
    let begun = Instant::now();
    let why = start("1", &address).join(Duration::from_millis(300)).unwrap_err().to_string();
    assert!(why.contains("joining the group") && begun.elapsed() < WAIT, "{why}");
    assert!(why.contains(&format!("at {address}, where rank 0 listens: ")), "{why}");
}

#[test]
fn t_m11_a_group_of_one_copies_and_has_no_peer() {
    ranks(&library(), 1, |group| {
        let own = [1.0_f32, 2.0, 3.0];
        let mut output = [0.0; 3];
        group.all_reduce_into(&own, &mut output, Op::Avg).unwrap();
        assert_eq!(output, own);
        for run in [Group::all_gather::<f32>, Group::all_to_all] {
            output.fill(0.0);
            run(&group, &own, &mut output).unwrap();
            assert_eq!(output, own);
        }
        output.fill(0.0);
        group.reduce_scatter(&own, &mut output, Op::Sum).unwrap();
        assert_eq!(output, own);
        group.broadcast(&mut output, 0).unwrap();
        group.barrier().unwrap();
        for peer in [0, 1] {
            assert!(matches!(group.send(&own, peer, 0), Err(GroupError::InvalidArgument(_))));
            assert!(matches!(
                group.recv(&mut output, peer, 0),
                Err(GroupError::InvalidArgument(_))
            ));
        }
    });
}
