//! GPU memory over the virtual fabric, with a stand-in for CUDA's driver: registered, sent from, received into,
//! flushed, deregistered.
//!
//! Two properties make these tests meaningful. A GPU's addresses are not mapped here, so a plugin that accesses them with the CPU crashes.
//! And bytes that land in a GPU's memory stay invisible until the NIC that brought them has read memory of that GPU.

use std::cell::Cell;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use ::gpu::DeviceMemory;
use harness::{Test, second_libfabric};
use net_abi::{PTR_CUDA, PTR_DMABUF, PTR_HOST, ResultCode};

use crate::support::calls::{self, Buffer, Net, Object};
use crate::support::gpu::{Gpus, driver};
use crate::support::stage::{Part, play_each};
use crate::support::virtual_fabric::{VirtualFabric, set};
use crate::together::close_together;
use crate::world::{End, World, connect, provider};

const BOUND: Duration = Duration::from_secs(60);
/// Profiles, numbers of rails, and whether libfabric is the second one, which has DMA-BUFs and the option that forbids CUDA.
const CASES: [&str; 7] =
    ["cxi 1", "cxi 2", "cxi 2 second", "efa 2 second", "tcp 1", "tcp 2 second", "adversary 2"];
const SIZES: [usize; 6] = [0, 8, 40, 4000, 64 << 10, 4 << 20];
/// The last of them takes long, and is for one case.
const LONG_CASE: &str = "cxi 2 second";
/// More tests of a request that is not done are a hang.
const TESTS_MAX: u32 = 100_000;

thread_local! {
    /// Whether the test that begins on this thread is for the second library.
    static SECOND: Cell<bool> = const { Cell::new(false) };
}

pub(crate) fn tests() -> Vec<Test> {
    let tests = [
        on_both(messages_go_between_host_and_gpu_memory_whichever_way),
        vec![
            Test::new(messages_of_gpus_as_configured)
                .ignored("it takes its case from GPU_CASE, as scripts/matrix vfabric gives it"),
        ],
        vec![Test::new(short_messages_in_bursts_reach_a_gpu)],
        on_both(a_message_to_a_gpu_waits_for_its_receive),
        on_both(one_flush_shows_what_a_group_brought_to_several_gpus),
        vec![Test::new(each_of_several_flushes_shows_its_own_bytes)],
        vec![Test::new(a_refused_read_of_a_gpu_is_neither_lost_nor_repeated)],
        on_both(one_buffer_is_registered_once_however_it_is_named),
        on_both(memory_that_is_allocated_anew_at_an_address_is_registered_anew),
        on_both(memory_that_is_not_a_gpus_is_refused_by_name),
        on_both(a_registration_that_one_rail_refuses_leaves_nothing_open),
        on_both(the_properties_of_a_device_about_gpu_memory_are_true_and_the_log_says_why),
        on_both(an_abort_takes_gpu_memory_back),
        vec![Test::new(memory_is_not_given_back_under_its_flush)],
        vec![Test::new(a_dead_nic_fails_the_requests_that_gpus_wait_for)],
        vec![
            Test::new(a_rail_whose_regions_cannot_be_made_again_comes_back_as_it_is)
                .needs(second_libfabric().map(drop)),
        ],
    ];
    tests.into_iter().flatten().collect()
}

/// A test with its cases of libfabric 1.17, and one with those of the second library.
fn on_both<F: Fn() + Copy + Send + 'static>(test: F) -> Vec<Test> {
    let second = Test::variant(test, "with_the_second_library", move || {
        SECOND.set(true);
        test();
    });
    vec![Test::new(test), second.needs(second_libfabric().map(drop))]
}

/// The cases for the test's library.
fn with<'a>(cases: &[&'a str]) -> Vec<&'a str> {
    let second = SECOND.take();
    let chosen = cases.iter().copied().filter(|case| case.ends_with(" second") == second);
    let chosen: Vec<_> = chosen.collect();
    assert!(!chosen.is_empty(), "there is no case of this library");
    chosen
}

/// The system's libfabric: 1.17.
const FIRST: &str = "libfabric.so.1";

/// The case's libfabric, where what holds depends on it.
fn set_library(case: &str) {
    let second = || second_libfabric().expect("the test runs only where it is");
    let file = if case.ends_with(" second") { second() } else { PathBuf::from(FIRST) };
    set("IRONRAIL_LIBFABRIC", file.to_str().expect("its path is text"));
}

/// Memory of the host or of a GPU.
enum Memory {
    Host(Buffer),
    Gpu(DeviceMemory),
}

impl Memory {
    fn address(&self) -> usize {
        match self {
            Self::Host(buffer) => buffer.address(),
            Self::Gpu(memory) => usize::try_from(memory.address()).expect("64 bits"),
        }
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        match self {
            Self::Host(buffer) => buffer.write(at, bytes),
            Self::Gpu(memory) => memory.write(at, bytes).expect("cuMemcpyHtoD"),
        }
    }

    fn read(&self, at: usize, len: usize) -> Vec<u8> {
        match self {
            Self::Host(buffer) => buffer.read(at, len),
            Self::Gpu(memory) => memory.read(at, len).expect("cuMemcpyDtoH"),
        }
    }

    fn is_gpu(&self) -> bool {
        matches!(self, Self::Gpu(_))
    }
}

/// A connection between two ends in one process, and GPUs.
struct Rig {
    net: Net,
    fabric: VirtualFabric,
    gpus: Gpus,
    ends: [End; 2],
    send: Object,
    receive: Object,
}

impl Rig {
    fn open(part: &Part, profile: &str, rails: usize) -> Self {
        Self::open_with(part, profile, rails, "")
    }

    fn open_with(part: &Part, profile: &str, rails: usize, words: &str) -> Self {
        Self::open_on(part, profile, rails, words, "")
    }

    fn open_on(part: &Part, profile: &str, rails: usize, words: &str, more: &str) -> Self {
        set("VFABRIC_HMEM", "1");
        // Long messages use all rails.
        set("IRONRAIL_STRIPE_MIN", "16K");
        let gpus = Gpus::load(Path::new(driver().1), words);
        let World { nets: [net, _], fabric } = World::open(part, profile, [rails, rails]);
        if !more.is_empty() {
            fabric.configure(&format!("profile={profile} nics=16 hmem=1 {more}"));
        }
        let ends = [End::open(net), End::open(net)];
        let (send, receive) = connect(&ends[0], &ends[1]);
        Self { net, fabric, gpus, ends, send, receive }
    }

    fn of_case(part: &Part, case: &str) -> Self {
        Self::of_case_with(part, case, "")
    }

    fn of_case_with(part: &Part, case: &str, more: &str) -> Self {
        let words: Vec<&str> = case.split(' ').collect();
        let [profile, rails, ..] = words[..] else { panic!("{case}: a profile and a number") };
        set_library(case);
        Self::open_on(part, profile, rails.parse().expect("a number"), "", more)
    }

    fn gpu(&self, device: i32, len: usize) -> Memory {
        Memory::Gpu(self.gpus.allocate(device, len))
    }

    /// As NCCL does: by DMA-BUF where the device supports it; the descriptor is closed right after.
    fn register(&self, comm: Object, memory: &Memory) -> Object {
        self.try_register(comm, memory).expect("regMr or regMrDmaBuf")
    }

    fn try_register(&self, comm: Object, memory: &Memory) -> calls::Answer<Object> {
        match memory {
            Memory::Host(buffer) => self.net.register(comm, *buffer),
            Memory::Gpu(memory) => {
                if self.net.pointer_support(0).expect("getProperties") & PTR_DMABUF == 0 {
                    return self.net.register_gpu(comm, memory.address(), memory.len());
                }
                let file = memory.dmabuf().expect("the stand-in makes them");
                let (address, len) = (memory.address(), memory.len());
                self.net.register_dmabuf(comm, address, len, 0, file.as_raw_fd())
            }
        }
    }

    fn isend(&self, from: &Memory, at: usize, len: usize, tag: i32, region: Object) -> Object {
        let sent = (0..TESTS_MAX).find_map(|_| {
            self.ends[1].poll();
            self.net.isend(self.send, from.address() + at, len, tag, region).expect("isend")
        });
        sent.expect("its receive is advertised")
    }

    fn irecv(&self, into: &Memory, at: usize, len: usize, region: Object) -> Object {
        let address = into.address() + at;
        let received = self.net.irecv(self.receive, address, len, 0, region).expect("irecv");
        received.expect("the window has room")
    }

    fn finish(&self, request: Object) -> usize {
        let done = (0..TESTS_MAX).find_map(|_| {
            self.ends.iter().for_each(End::poll);
            self.net.test(request).expect("test")
        });
        done.expect("a request ends")
    }

    /// Waits for a flush, before which nothing may be visible.
    fn flushed(&self, flush: Option<Object>) {
        let Some(flush) = flush else { return };
        let done = (0..TESTS_MAX).any(|_| self.net.test_flush(flush).expect("test"));
        assert!(done, "a flush ends");
    }

    fn flush(&self, into: &Memory, at: usize, len: usize, region: Object) -> Option<Object> {
        let address = into.address() + at;
        self.net.iflush(self.receive, address, len, region).expect("iflush")
    }

    /// Polls both ends for a while.
    fn poll(&self) {
        (0..500).for_each(|_| self.ends.iter().for_each(End::poll));
    }

    /// No rule was broken, nothing is left, and the plugin has called CUDA only to query the kind of addresses.
    #[track_caller]
    fn close(self) {
        self.net.close_send(self.send).expect("closeSend");
        self.net.close_recv(self.receive).expect("closeRecv");
        self.poll();
        close_together(self.ends);
        self.fabric.is_clean();
        let forbidden = self.fabric.number("counter.cuda.forbidden");
        let endpoints = self.fabric.number("opened.endpoints");
        // 1.17 has no such option.
        let has_option = std::env::var_os("IRONRAIL_LIBFABRIC").is_some_and(|file| file != FIRST);
        assert_eq!(
            forbidden,
            if has_option { endpoints } else { 0 },
            "endpoints that may not call CUDA"
        );
        assert_eq!(
            self.fabric.number("counter.cuda.pinned"),
            0,
            "endpoints whose buffers CUDA pins"
        );
        let asked = |call| self.gpus.calls_of(c"libnccl-net-ironrail.so", Some(call));
        let allowed =
            [c"cuInit", c"cuDeviceGetCount", c"cuPointerGetAttributes", c"cuDeviceGetAttribute"];
        let sum: u64 = allowed.into_iter().map(asked).sum();
        assert_eq!(
            self.gpus.calls_of(c"libnccl-net-ironrail.so", None),
            sum,
            "other calls of CUDA"
        );
        assert!(sum > 0, "the stand-in has the plugin under another name");
    }
}

fn pattern(message: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at ^ at >> 8 ^ at >> 16 ^ (message * 37)).to_le_bytes()[0] | 1).collect()
}

fn messages_go_between_host_and_gpu_memory_whichever_way() {
    play_each(&with(&CASES), &[provider(), driver()], BOUND, |part, case| {
        let rig = Rig::of_case(part, case);
        let sizes = if case == LONG_CASE { &SIZES[..] } else { &SIZES[..SIZES.len() - 1] };
        every_way(&rig, sizes);
        rig.close();
    });
}

/// Settings of the fabric come from the environment (`scripts/matrix vfabric`).
fn messages_of_gpus_as_configured() {
    let case = std::env::var("GPU_CASE").expect("GPU_CASE names profile and rails");
    play_each(&[&case], &[provider(), driver()], 10 * BOUND, |part, case| {
        let more = std::env::var("GPU_FABRIC").unwrap_or_default();
        let rig = Rig::of_case_with(part, case, &more);
        for _ in 0..3 {
            every_way(&rig, &SIZES);
        }
        rig.close();
    });
}

/// From the host and two GPUs to the host and two GPUs.
fn every_way(rig: &Rig, sizes: &[usize]) {
    let longest = sizes[sizes.len() - 1];
    let memories = |len| [Memory::Host(Buffer::new(len)), rig.gpu(0, len), rig.gpu(1, len)];
    let (froms, intos) = (memories(longest), memories(longest + 64));
    let sources = froms.each_ref().map(|memory| rig.register(rig.send, memory));
    let targets = intos.each_ref().map(|memory| rig.register(rig.receive, memory));
    let mut message = 0;
    for (from, source) in froms.iter().zip(sources) {
        for (into, target) in intos.iter().zip(targets) {
            for &len in sizes {
                message += 1;
                let (sent, before) = (pattern(message, len), vec![0; len]);
                from.write(0, &sent);
                into.write(64, &before);
                // Every second one is shorter than its receive.
                let posted = if message % 2 == 0 { len } else { longest };
                let received = rig.irecv(into, 64, posted, target);
                let request = rig.isend(from, 0, len, 0, source);
                assert_eq!(rig.finish(received), len);
                rig.finish(request);
                if into.is_gpu() && len > 0 {
                    assert!(into.read(64, len) == before, "{len} bytes are seen too early");
                    let flush = rig.flush(into, 64, len, target);
                    assert!(flush.is_some(), "there is something to flush");
                    rig.flushed(flush);
                }
                assert!(into.read(64, len) == sent, "message {message} of {len} bytes");
            }
        }
    }
    for (comm, regions) in [(rig.send, sources), (rig.receive, targets)] {
        for region in regions {
            rig.net.deregister(comm, region).expect("deregMr");
        }
    }
}

/// Bursts of short messages: from and to a GPU they travel one by one, and nothing is copied.
fn short_messages_in_bursts_reach_a_gpu() {
    const BURST: usize = 16;
    play_each(
        &["cxi 1", "tcp 1", "tcp 2", "tcp 4"],
        &[provider(), driver()],
        BOUND,
        |part, case| {
            let rig = Rig::of_case(part, case);
            for ways in [(0, 1), (1, 0), (1, 1)] {
                let memory = |of| {
                    if of == 0 { Memory::Host(Buffer::new(4096)) } else { rig.gpu(0, 4096) }
                };
                let (from, into) = (memory(ways.0), memory(ways.1));
                let (source, target) =
                    (rig.register(rig.send, &from), rig.register(rig.receive, &into));
                for burst in 0..20 {
                    from.write(0, &pattern(burst, 8 * BURST));
                    let receives: Vec<_> =
                        (0..BURST).map(|index| rig.irecv(&into, 8 * index, 8, target)).collect();
                    let sends: Vec<_> =
                        (0..BURST).map(|index| rig.isend(&from, 8 * index, 8, 0, source)).collect();
                    for (index, request) in receives.into_iter().enumerate() {
                        assert_eq!(rig.finish(request), 8);
                        rig.flushed(rig.flush(&into, 8 * index, 8, target));
                    }
                    sends.into_iter().for_each(|request| {
                        rig.finish(request);
                    });
                    assert!(into.read(0, 8 * BURST) == pattern(burst, 8 * BURST), "burst {burst}");
                }
                rig.net.deregister(rig.send, source).expect("deregMr");
                rig.net.deregister(rig.receive, target).expect("deregMr");
            }
            rig.close();
        },
    );
}

/// No message is sent before its receive is known: none is copied to a GPU later.
fn a_message_to_a_gpu_waits_for_its_receive() {
    play_each(&with(&["cxi 1 second", "tcp 1"]), &[provider(), driver()], BOUND, |part, case| {
        let rig = Rig::of_case(part, case);
        let (from, into) = (Memory::Host(Buffer::new(64)), rig.gpu(1, 64));
        let (source, target) = (rig.register(rig.send, &from), rig.register(rig.receive, &into));
        from.write(0, b"eager?");
        for _ in 0..100 {
            let sent = rig.net.isend(rig.send, from.address(), 6, 0, source).expect("isend");
            assert_eq!(sent, None);
            rig.ends[1].poll();
        }
        let received = rig.irecv(&into, 0, 64, target);
        let sent = rig.isend(&from, 0, 6, 0, source);
        assert_eq!(rig.finish(received), 6);
        rig.finish(sent);
        rig.flushed(rig.flush(&into, 0, 6, target));
        assert_eq!(into.read(0, 6), b"eager?");
        rig.net.deregister(rig.send, source).expect("deregMr");
        rig.net.deregister(rig.receive, target).expect("deregMr");
        rig.close();
    });
}

/// Where regions are bound to endpoints, and where they are not. The sizes are NCCL's, which may belong to other buffers.
fn one_flush_shows_what_a_group_brought_to_several_gpus() {
    play_each(
        &with(&["cxi 2", "efa 2 second", "tcp 2"]),
        &[provider(), driver()],
        BOUND,
        |part, case| {
            let rig = Rig::of_case(part, case);
            const LEN: usize = 40 << 10;
            let from = Memory::Host(Buffer::new(4 * LEN));
            let source = rig.register(rig.send, &from);
            let intos = [0, 1, 1, 0].map(|device| rig.gpu(device, LEN));
            let targets = intos.each_ref().map(|memory| rig.register(rig.receive, memory));
            for sizes in [[40 << 10; 4], [0; 4], [0, 7, 40 << 10, 0]] {
                from.write(0, &pattern(1, 4 * LEN));
                intos.iter().for_each(|memory| memory.write(0, &[0; LEN]));
                let receives: [_; 4] = std::array::from_fn(|index| {
                    (
                        intos[index].address(),
                        LEN,
                        i32::try_from(index).expect("few"),
                        targets[index],
                    )
                });
                let received = rig.net.irecv_into(rig.receive, &receives).expect("irecv");
                let received = received.expect("the window is empty");
                let sent: Vec<_> = (0..4_i32)
                    .map(|tag| rig.isend(&from, tag as usize * LEN, LEN, tag, source))
                    .collect();
                let done = (0..TESTS_MAX).find_map(|_| {
                    rig.ends.iter().for_each(End::poll);
                    rig.net.test_each(received, 4).expect("test")
                });
                assert_eq!(done, Some(vec![LEN; 4]));
                sent.into_iter().for_each(|request| {
                    rig.finish(request);
                });
                let seen =
                    |at: usize| intos[at].read(0, LEN) == pattern(1, 4 * LEN)[at * LEN..][..LEN];
                assert!(!(0..4).any(seen), "nothing is seen before the flush");
                let buffers: [_; 4] =
                    std::array::from_fn(|at| (intos[at].address(), sizes[at], targets[at]));
                let flush = rig.net.iflush_each(rig.receive, &buffers).expect("iflush");
                assert!(flush.is_some());
                rig.flushed(flush);
                assert!((0..4).all(seen), "{sizes:?}");
            }
            rig.net.deregister(rig.send, source).expect("deregMr");
            targets.into_iter().for_each(|target| {
                rig.net.deregister(rig.receive, target).expect("deregMr");
            });
            rig.close();
        },
    );
}

/// Receives complete, and are flushed only then, one by one: each flush waits for reads of its own, or for one that is not done yet.
fn each_of_several_flushes_shows_its_own_bytes() {
    play_each(&["cxi 2", "adversary 3"], &[provider(), driver()], BOUND, |part, case| {
        let rig = Rig::of_case(part, case);
        const LEN: usize = 1000;
        const ORDERS: [[i32; 4]; 3] = [[0, 0, 0, 0], [0, 1, 0, 1], [1, 1, 0, 0]];
        let from = Memory::Host(Buffer::new(LEN));
        let source = rig.register(rig.send, &from);
        for (devices, one_by_one) in
            ORDERS.into_iter().flat_map(|order| [(order, false), (order, true)])
        {
            for message in 0..10 {
                let sent = pattern(message, LEN);
                from.write(0, &sent);
                let intos = devices.map(|device| rig.gpu(device, LEN));
                let targets = intos.each_ref().map(|memory| rig.register(rig.receive, memory));
                let received: Vec<_> = intos
                    .iter()
                    .zip(targets)
                    .map(|(into, target)| rig.irecv(into, 0, LEN, target))
                    .collect();
                let requests: Vec<_> =
                    intos.iter().map(|_| rig.isend(&from, 0, LEN, 0, source)).collect();
                for request in received.into_iter().chain(requests) {
                    rig.finish(request);
                }
                let flush = |(into, target): (&Memory, Object)| {
                    let flush = rig.flush(into, 0, LEN, target);
                    if one_by_one {
                        rig.flushed(flush);
                    }
                    flush.filter(|_| !one_by_one)
                };
                let flushes: Vec<_> = intos.iter().zip(targets).map(flush).collect();
                // From the last one on: none may depend on what another one waits for.
                for (into, flush) in intos.iter().zip(flushes).rev() {
                    rig.flushed(flush);
                    assert!(into.read(0, LEN) == sent, "{devices:?}, message {message}");
                }
                targets.into_iter().for_each(|target| {
                    rig.net.deregister(rig.receive, target).expect("deregMr");
                });
            }
        }
        rig.net.deregister(rig.send, source).expect("deregMr");
        rig.close();
    });
}

fn a_refused_read_of_a_gpu_is_neither_lost_nor_repeated() {
    play_each(&["cxi", "adversary"], &[provider(), driver()], BOUND, |part, profile| {
        let rig = Rig::open(part, profile, 3);
        const LEN: usize = 60 << 10;
        let (from, into) = (Memory::Host(Buffer::new(LEN)), rig.gpu(0, LEN));
        let (source, target) = (rig.register(rig.send, &from), rig.register(rig.receive, &into));
        let mut read = rig.fabric.number("counter.bytes.read");
        for message in 0..20 {
            let sent = pattern(message, LEN);
            from.write(0, &sent);
            let received = rig.irecv(&into, 0, LEN, target);
            let request = rig.isend(&from, 0, LEN, 0, source);
            rig.finish(received);
            rig.finish(request);
            rig.fabric.settle(|| rig.ends.iter().for_each(End::poll));
            let posts = rig.fabric.number("counter.posts");
            rig.fabric.fault(&format!("refuse={}-{}", posts + 2, posts + 9));
            rig.flushed(rig.flush(&into, 0, LEN, target));
            assert!(into.read(0, LEN) == sent, "message {message}");
            let bytes = rig.fabric.number("counter.bytes.read") - read;
            read += bytes;
            assert_eq!(bytes, 3 * 64, "a read on each rail that brought some");
        }
        assert!(rig.fabric.number("counter.faults.refuse") > 0);
        rig.net.deregister(rig.send, source).expect("deregMr");
        rig.net.deregister(rig.receive, target).expect("deregMr");
        rig.close();
    });
}

/// NCCL registers one pool for every connection of a proxy, and parts of it: it is pinned once.
fn one_buffer_is_registered_once_however_it_is_named() {
    play_each(
        &with(&["cxi 2 second", "efa 2 second", "tcp 2"]),
        &[provider(), driver()],
        BOUND,
        |part, case| {
            let rig = Rig::of_case(part, case);
            let opened = || rig.fabric.number("opened.regions");
            let pool = rig.gpus.allocate(1, 1 << 20);
            let (address, len) = (pool.address(), pool.len());
            let takes_dmabuf = rig.net.pointer_support(0).expect("getProperties") & PTR_DMABUF != 0;
            let (send, receive) = connect(&rig.ends[0], &rig.ends[1]);
            let before = opened();
            let mut regions = Vec::new();
            for comm in [rig.receive, receive] {
                for (from, bytes) in [(0, len), (0, len), (4096, 8192), (len as u64 - 8, 8)] {
                    let place = address + from;
                    let by_address = rig.net.register_gpu(comm, place, bytes).expect("regMr");
                    regions.push((comm, by_address));
                    if takes_dmabuf {
                        let file = pool.dmabuf().expect("the stand-in makes them");
                        let descriptor = file.as_raw_fd();
                        let region = rig.net.register_dmabuf(comm, place, bytes, from, descriptor);
                        regions.push((comm, region.expect("regMrDmaBuf")));
                    }
                }
            }
            assert_eq!(opened() - before, 2, "one region on each rail");
            // The other end is another endpoint.
            regions.push((send, rig.net.register_gpu(send, address, len).expect("regMr")));
            assert_eq!(opened() - before, 4);
            for (comm, region) in regions {
                rig.net.deregister(comm, region).expect("deregMr");
            }
            rig.net.close_send(send).expect("closeSend");
            rig.net.close_recv(receive).expect("closeRecv");
            rig.close();
        },
    );
}

/// Its old registration, which NCCL has not deregistered, would lead to memory that is freed.
fn memory_that_is_allocated_anew_at_an_address_is_registered_anew() {
    let cases = ["by address", "no-ids", "by descriptor second", "no-ids second"];
    play_each(&with(&cases), &[provider(), driver()], BOUND, |part, case| {
        set_library(case);
        let words = if case.starts_with("no-ids") { "no-ids" } else { "" };
        let rig = Rig::open_with(part, "cxi", 1, words);
        let from = Memory::Host(Buffer::new(64));
        let source = rig.register(rig.send, &from);
        let old = rig.gpu(0, 64);
        let stale = rig.register(rig.receive, &old);
        let address = old.address();
        drop(old);
        let new = rig.gpu(0, 64);
        assert_eq!(new.address(), address, "the stand-in reuses an address");
        let regions = rig.fabric.number("opened.regions");
        let target = rig.register(rig.receive, &new);
        assert_eq!(rig.fabric.number("opened.regions"), regions + 1);
        from.write(0, b"anew");
        let received = rig.irecv(&new, 0, 64, target);
        let sent = rig.isend(&from, 0, 4, 0, source);
        rig.finish(received);
        rig.finish(sent);
        rig.flushed(rig.flush(&new, 0, 4, target));
        assert_eq!(new.read(0, 4), b"anew");
        for region in [stale, target] {
            rig.net.deregister(rig.receive, region).expect("deregMr");
        }
        rig.net.deregister(rig.send, source).expect("deregMr");
        rig.close();
    });
}

/// On the rails before it the memory was registered.
fn a_registration_that_one_rail_refuses_leaves_nothing_open() {
    const RAILS: u32 = 3;
    let cases = ["cxi 3", "adversary 3", "cxi 3 second", "efa 3 second"];
    play_each(&with(&cases), &[provider(), driver()], BOUND, |part, case| {
        let rig = Rig::of_case(part, case);
        let open = || rig.fabric.number("open.regions");
        let before = open();
        for memory in [Memory::Host(Buffer::new(4096)), rig.gpu(1, 4096)] {
            for nic in 0..RAILS {
                rig.fabric.change(nic, "scarce");
                for comm in [rig.send, rig.receive] {
                    let failure = rig.try_register(comm, &memory).expect_err("it is refused");
                    assert!(failure.said[0].contains("registering 4096 bytes"), "{failure:?}");
                }
                assert_eq!(open(), before, "on NIC {nic}");
                rig.fabric.change(nic, "ample");
                let region = rig.register(rig.receive, &memory);
                assert_eq!(open(), before + u64::from(RAILS));
                rig.net.deregister(rig.receive, region).expect("deregMr");
                assert_eq!(open(), before);
            }
        }
        rig.close();
    });
}

fn memory_that_is_not_a_gpus_is_refused_by_name() {
    play_each(&with(&["cxi 1 second", "tcp 1"]), &[provider(), driver()], BOUND, |part, case| {
        let rig = Rig::of_case(part, case);
        let buffer = Buffer::new(4096);
        let memory = rig.gpus.allocate(0, 2 << 20);
        let host = buffer.address() as u64;
        let past = memory.address() + (2 << 20) - 8;
        let refused = |said: Result<Object, calls::Failure>, words: &str| {
            let failure = said.expect_err(words);
            assert_eq!(failure.code, ResultCode::INVALID_ARGUMENT, "{failure:?}");
            assert!(failure.said[0].contains(words), "{failure:?}");
        };
        refused(rig.net.register_gpu(rig.send, host, 4096), "were given as GPU memory");
        refused(rig.net.register_gpu(rig.send, past, 64), "were given as GPU memory");
        refused(rig.net.register_gpu(rig.send, memory.address(), 0), "0 bytes");
        refused(rig.net.register_gpu(rig.send, 0, 64), "null");
        let by_dmabuf =
            |address, descriptor| rig.net.register_dmabuf(rig.send, address, 4096, 0, descriptor);
        let file = memory.dmabuf().expect("the stand-in makes them");
        if rig.net.pointer_support(0).expect("getProperties") & PTR_DMABUF != 0 {
            refused(by_dmabuf(host, file.as_raw_fd()), "were given as GPU memory");
            refused(by_dmabuf(memory.address(), -1), "no DMA-BUF descriptor");
            let closed = file.as_raw_fd();
            drop(file);
            let failure = by_dmabuf(memory.address(), closed).expect_err("it is closed");
            assert!(
                failure.said[0].contains("registering 4096 bytes of GPU 0 by a DMA-BUF"),
                "{failure:?}"
            );
        } else {
            refused(by_dmabuf(memory.address(), file.as_raw_fd()), "NCCL_DMABUF_ENABLE=0");
        }
        // None of it did any harm.
        let region = rig.net.register_gpu(rig.send, memory.address(), 4096).expect("regMr");
        rig.net.deregister(rig.send, region).expect("deregMr");
        rig.close();
    });
}

/// For each: the profile, the NICs' support (VFABRIC_HMEM), IRONRAIL_DEVICE_MEMORY, words for the driver, whether the NICs are full when the
/// plugin starts, the library; then ptrSupport, and what the log says.
const OFFERS: [(&str, i32, &str); 13] = [
    ("cxi 1 auto -", PTR_HOST | PTR_CUDA, "GPU memory goes direct, by address"),
    (
        "cxi 1 auto - second",
        PTR_HOST | PTR_CUDA | PTR_DMABUF,
        "GPU memory goes direct, by address or DMA-BUF",
    ),
    ("cxi 1 auto no-dmabuf second", PTR_HOST | PTR_CUDA, "GPU memory goes direct, by address"),
    ("tcp 1 1 - second", PTR_HOST | PTR_CUDA, "GPU memory goes direct, by address"),
    ("cxi 1 0 -", PTR_HOST, "goes through the host: IRONRAIL_DEVICE_MEMORY=0 turns it off"),
    ("cxi 0 1 -", PTR_HOST, "vfabric offers no FI_HMEM on vnic0; use a libfabric"),
    ("cxi 1,0 auto -", PTR_HOST, "goes through the host: vfabric offers no FI_HMEM on vnic1"),
    ("cxi 1,0 auto - second", PTR_HOST, "vfabric offers no FI_HMEM on vnic1"),
    ("cxi calls 1 - second", PTR_HOST, "vfabric cannot be prevented from calling CUDA on vnic0"),
    ("cxi 1 1 - full second", PTR_HOST, "vfabric opens no endpoint on vnic0 for it (fi_endpoint: "),
    ("efa 1 1 -", PTR_HOST, "libfabric 1.17 cannot prevent vfabric on vnic0 from calling CUDA"),
    ("efa 1,calls auto - second", PTR_HOST, "cannot be prevented from calling CUDA on vnic1"),
    ("cxi 1 1 no-devices", PTR_HOST, "the CUDA driver has no device; check that nvidia-smi"),
];

/// The second library is one with DMA-BUFs, and with the option that distinguishes software from NICs.
fn the_properties_of_a_device_about_gpu_memory_are_true_and_the_log_says_why() {
    let names = OFFERS.map(|(case, ..)| case);
    play_each(&with(&names), &[provider(), driver()], BOUND, |part, case| {
        let (_, expected, words) =
            OFFERS.into_iter().find(|(name, ..)| *name == case).expect("a case");
        let parts: Vec<&str> = case.split(' ').collect();
        let [profile, hmem, wanted, driver_words, ..] = parts[..] else { panic!("{case}") };
        set("VFABRIC_HMEM", hmem);
        set("IRONRAIL_DEVICE_MEMORY", wanted);
        if parts.contains(&"full") {
            set("VFABRIC_ENDPOINTS", "0");
        }
        set_library(case);
        let gpus = Gpus::try_load(Path::new(driver().1), driver_words);
        let World { nets: [net, _], fabric } = World::open_and_say(part, profile, [2, 2], "info");
        assert_eq!(net.pointer_support(0).expect("getProperties"), expected, "{case}");
        let said = calls::lines();
        let said: Vec<_> = said.iter().filter(|line| line.contains("GPU memory")).collect();
        assert!(said.len() == 1 && said[0].contains(words), "{case}: {said:?}");
        let warned = calls::warnings().iter().any(|line| line.contains("IRONRAIL_DEVICE_MEMORY=1"));
        assert_eq!(warned, wanted == "1" && expected == PTR_HOST, "{case}");
        // The NICs are the same, and host memory moves.
        let end = End::open(net);
        let (send, receive) = connect(&end, &end);
        let host = net.register(send, Buffer::new(64)).expect("regMr");
        net.deregister(send, host).expect("deregMr");
        if let Some(gpus) = gpus.filter(|_| expected == PTR_HOST) {
            let memory = gpus.allocate(0, 64);
            let file = memory.dmabuf().expect("the stand-in makes them");
            let (address, descriptor) = (memory.address(), file.as_raw_fd());
            for refused in [
                net.register_gpu(send, address, 64),
                net.register_dmabuf(send, address, 64, 0, descriptor),
            ] {
                let failure = refused.expect_err("the properties do not offer it");
                assert_eq!(failure.code, ResultCode::INVALID_ARGUMENT);
                assert!(failure.said[0].contains("moves host memory only ("), "{failure:?}");
            }
        }
        net.close_send(send).expect("closeSend");
        net.close_recv(receive).expect("closeRecv");
        end.close();
        fabric.is_clean();
    });
}

/// Receives into a GPU are posted when the caller aborts: it may free the memory once deregMr has succeeded.
fn an_abort_takes_gpu_memory_back() {
    play_each(&with(&CASES), &[provider(), driver()], BOUND, |part, case| {
        let rig = Rig::of_case(part, case);
        let (from, into) = (rig.gpu(0, 4096), rig.gpu(1, 4096));
        let (source, target) = (rig.register(rig.send, &from), rig.register(rig.receive, &into));
        let received = rig.irecv(&into, 0, 4096, target);
        let sent = rig.isend(&from, 0, 4000, 0, source);
        rig.finish(received);
        rig.finish(sent);
        let flush = rig.flush(&into, 0, 4000, target);
        // A flush is in progress, and receives are posted, one of which is being sent to.
        for at in 0..3 {
            rig.irecv(&into, 1000 * at, 1000, target);
        }
        rig.isend(&from, 0, 900, 0, source);
        // The receiver waits for the sender, which is polled meanwhile.
        let (net, receive) = (rig.net, rig.receive);
        let deregistering = thread::spawn(move || net.deregister(receive, target));
        while !deregistering.is_finished() {
            rig.ends[0].poll();
        }
        deregistering.join().expect("no panic").expect("deregMr");
        let before = rig.fabric.number("counter.bytes.written");
        drop(into);
        let _ = flush.map(|flush| net.test_flush(flush));
        rig.poll();
        // Acknowledgements are still written; the message is not.
        let written = rig.fabric.number("counter.bytes.written") - before;
        assert!(written < 900, "{written} bytes after deregMr");
        net.deregister(rig.send, source).expect("deregMr");
        rig.close();
    });
}

/// The memory that is read is NCCL's buffer: it stays registered that long.
fn memory_is_not_given_back_under_its_flush() {
    play_each(&["cxi 1", "adversary 2", "tcp 1"], &[provider(), driver()], BOUND, |part, case| {
        let rig = Rig::of_case(part, case);
        let (from, into) = (Memory::Host(Buffer::new(64)), rig.gpu(1, 64));
        let (source, target) = (rig.register(rig.send, &from), rig.register(rig.receive, &into));
        // The first is flushed before. The second time the flush is not waited for, and the last time its read was refused.
        for time in 0..4 {
            let target = if time == 0 { target } else { rig.register(rig.receive, &into) };
            let received = rig.irecv(&into, 0, 64, target);
            let sent = rig.isend(&from, 0, 64, 0, source);
            rig.finish(received);
            rig.finish(sent);
            if time == 0 {
                rig.flushed(rig.flush(&into, 0, 64, target));
                rig.net.deregister(rig.receive, target).expect("deregMr");
                continue;
            }
            rig.fabric.settle(|| rig.ends.iter().for_each(End::poll));
            if time == 3 {
                let posts = rig.fabric.number("counter.posts");
                rig.fabric.fault(&format!("refuse={}-{}", posts + 1, posts + 2));
            } else {
                rig.fabric.delay_next(100);
            }
            let flush = rig.flush(&into, 0, 64, target).expect("there is something to flush");
            rig.net.deregister(rig.receive, target).expect("deregMr");
            assert_eq!(rig.fabric.violations(), Vec::<String>::new());
            match time {
                1 => rig.flushed(Some(flush)),
                2 => {}
                _ => assert!(rig.net.test_flush(flush).is_err(), "its buffer is not registered"),
            }
        }
        rig.net.deregister(rig.send, source).expect("deregMr");
        rig.close();
    });
}

/// Regions of DMA-BUFs that are bound to an endpoint would be lost with it, so a rail that has failed its trials is not renewed.
fn a_rail_whose_regions_cannot_be_made_again_comes_back_as_it_is() {
    play_each(&["cxi 2 second"], &[provider(), driver()], BOUND, |part, case| {
        set("IRONRAIL_TEST_LOG_LEVEL", "info");
        set("IRONRAIL_MAX_CONTROL_RAILS", "1");
        let rig = Rig::of_case_with(part, case, "immediates=1");
        let (from, into) = (rig.gpu(0, 64 << 10), rig.gpu(1, 64 << 10));
        let (source, target) = (rig.register(rig.send, &from), rig.register(rig.receive, &into));
        let logged =
            |words: &str| calls::lines().iter().filter(|line| line.contains(words)).count();
        let until = |what: &str, test: &dyn Fn() -> bool| {
            let start = Instant::now();
            while !test() {
                rig.poll();
                assert!(start.elapsed() < BOUND / 2, "{what}");
            }
        };
        let message = || {
            let received = rig.irecv(&into, 0, 64 << 10, target);
            let sent = rig.isend(&from, 0, 64 << 10, 0, source);
            for request in [received, sent] {
                until("a message", &|| rig.net.test(request).expect("test").is_some());
            }
        };
        message();
        // Both ends' data rails on the second NIC: each opens three endpoints, and this one last. Nothing is under way there.
        let last = rig.fabric.number("opened.endpoints");
        let second = [last - 3, last];
        second.iter().for_each(|endpoint| rig.fabric.fault(&format!("shut={endpoint}")));
        message();
        until("both ends have lost it", &|| logged(" is lost") == 2);
        let refused = || rig.fabric.number("counter.faults.shut");
        for _ in 0..2 {
            let before = refused();
            until("it is tried", &|| refused() > before);
            until("the round is over", &|| {
                let before = refused();
                rig.poll();
                refused() == before
            });
        }
        second.iter().for_each(|endpoint| rig.fabric.fault(&format!("open={endpoint}")));
        until("both ends have it back", &|| logged(" is back") == 2);
        assert_eq!(logged("is closed, so that nothing late can arrive by it"), 0);
        message();
        rig.net.deregister(rig.send, source).expect("deregMr");
        rig.net.deregister(rig.receive, target).expect("deregMr");
        rig.close();
    });
}

/// A NIC dies under messages between GPUs, and under their flush: errors, and no access.
fn a_dead_nic_fails_the_requests_that_gpus_wait_for() {
    play_each(&["cxi 2", "adversary 2"], &[provider(), driver()], BOUND, |part, case| {
        set("IRONRAIL_CLOSE_TIMEOUT_MS", "200");
        let rig = Rig::of_case(part, case);
        let (from, into) = (rig.gpu(0, 64 << 10), rig.gpu(1, 64 << 10));
        let (source, target) = (rig.register(rig.send, &from), rig.register(rig.receive, &into));
        let received = rig.irecv(&into, 0, 64 << 10, target);
        let sent = rig.isend(&from, 0, 64 << 10, 0, source);
        rig.finish(received);
        rig.finish(sent);
        rig.fabric.change(1, "kill");
        let failed = match rig.net.iflush(rig.receive, into.address(), 64 << 10, target) {
            Err(_) => true,
            Ok(flush) => {
                let flush = flush.expect("there is something to flush");
                (0..TESTS_MAX).find_map(|_| match rig.net.test_flush(flush) {
                    Err(_) => Some(true),
                    Ok(done) => done.then_some(false),
                }) == Some(true)
            }
        };
        assert!(failed, "bytes that a dead NIC brought cannot be made visible");
        rig.fabric.change(1, "revive");
        rig.net.deregister(rig.send, source).expect("deregMr");
        rig.net.deregister(rig.receive, target).expect("deregMr");
        rig.close();
    });
}
