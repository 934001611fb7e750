//! Between isend, irecv and test the plugin allocates nothing, once a connection has been used.
//!
//! Each test runs itself again in a process of its own, where a counter precedes libc's allocator; that process is connected to itself.
//! What is counted was done a few times before, so that every list has its final capacity.

mod support;

use std::path::Path;
use std::process::Command;

use support::counting;
use support::net::{self, Memory, Net};
use support::traffic::{self, End};

/// Set in the process that counts, to the plugin's file.
const COUNTED: &str = "IRONRAIL_TEST_COUNTED";
const SHORT: usize = 8;
const LONG: usize = 1 << 20;
/// The limit makes messages of 64 parts.
const SMALL_WRITES: (&str, &str) = ("IRONRAIL_LARGEST_WRITE", "16K");
const ROUNDS: usize = 3;
const SECONDS_MOST: u32 = 120;

type Ends<'net> = [End<'net>; 2];

#[test]
fn connecting_allocates_so_the_counter_counts() {
    counted("connecting_allocates_so_the_counter_counts", &[], |plugin| {
        let net = Net::open(plugin);
        let memory = Memory::new(LONG);
        let found = counting::count(&name(plugin), || {
            traffic::to_itself(&net, &memory, &memory);
        });
        assert!(found.count > 10, "connecting made {} allocations", found.count);
        assert!(found.place(plugin).contains("nccl_net_ironrail"), "{}", found.place(plugin));
    });
}

#[test]
fn short_messages_allocate_nothing() {
    nothing_in("short_messages_allocate_nothing", &[], |ends| {
        traffic::exchange(ends, SHORT, 1, 500);
        traffic::exchange(ends, SHORT, 8, 500);
        traffic::exchange(ends, 0, 8, 100);
    });
}

/// Sent between two polls: they travel together in packets, and are copied out of them.
#[test]
fn bursts_of_short_messages_allocate_nothing() {
    nothing_in("bursts_of_short_messages_allocate_nothing", &[], |ends| {
        for bytes in [1, SHORT, 16, 512, 4096] {
            for _ in 0..100 {
                burst(ends, bytes, 20);
            }
        }
    });
}

#[test]
fn long_messages_allocate_nothing() {
    nothing_in("long_messages_allocate_nothing", &[], |ends| {
        traffic::exchange(ends, LONG, 1, 20);
        traffic::exchange(ends, LONG, 8, 100);
    });
}

#[test]
fn striped_messages_allocate_nothing() {
    let rails = [("IRONRAIL_RAILS", "127.0.0.1,127.0.0.2")];
    nothing_in("striped_messages_allocate_nothing", &rails, |ends| {
        traffic::exchange(ends, LONG, 8, 100);
        traffic::exchange(ends, SHORT, 8, 500);
    });
}

#[test]
fn a_full_window_allocates_nothing() {
    nothing_in("a_full_window_allocates_nothing", &[NOT_INLINE], |ends| {
        for bytes in [SHORT, LONG] {
            fill_window(ends, bytes);
        }
    });
}

/// More parts than a NIC keeps in flight: the rest waits in the flow.
#[test]
fn parts_that_find_no_room_allocate_nothing() {
    let settings = [SMALL_WRITES, ("IRONRAIL_PROVIDER", "shm"), ("IRONRAIL_RAILS", "")];
    nothing_in("parts_that_find_no_room_allocate_nothing", &settings, |ends| {
        fill_window(ends, LONG);
    });
}

#[test]
fn groups_allocate_nothing() {
    let rails = [("IRONRAIL_RAILS", "127.0.0.1,127.0.0.2")];
    nothing_in("groups_allocate_nothing", &rails, |ends| {
        traffic::exchange_groups(ends, SHORT, 200);
        traffic::exchange_groups(ends, LONG / 8, 50);
    });
}

#[test]
fn groups_that_end_by_fins_allocate_nothing() {
    nothing_in(
        "groups_that_end_by_fins_allocate_nothing",
        &[("IRONRAIL_FORCE_FIN", "1")],
        |ends| {
            traffic::exchange_groups(ends, SHORT, 200);
            traffic::exchange_groups(ends, LONG / 8, 50);
        },
    );
}

#[test]
fn messages_that_end_by_a_fin_allocate_nothing() {
    let fins = [("IRONRAIL_FORCE_FIN", "1"), NOT_INLINE];
    nothing_in("messages_that_end_by_a_fin_allocate_nothing", &fins, |ends| {
        traffic::exchange(ends, SHORT, 8, 500);
        traffic::exchange(ends, LONG, 8, 100);
        fill_window(ends, SHORT);
    });
}

#[test]
fn fins_of_many_parts_allocate_nothing() {
    let settings = [("IRONRAIL_FORCE_FIN", "1"), SMALL_WRITES];
    nothing_in("fins_of_many_parts_allocate_nothing", &settings, |ends| fill_window(ends, LONG));
}

#[test]
fn messages_without_receives_allocate_nothing() {
    nothing_in("messages_without_receives_allocate_nothing", &[], |[send, receive]| {
        let mut early = 0;
        while send.post(SHORT) {
            early += 1;
        }
        assert!((8..=EARLY_MOST).contains(&early), "{early} messages travel without an advert");
        while receive.outstanding() < early {
            assert!(receive.post(SHORT), "there is room in the window");
        }
        while receive.outstanding() > 0 || send.outstanding() > 0 {
            receive.test(SHORT);
            send.test(SHORT);
        }
    });
}

/// Nothing is sent before its receive is known; everything is written directly to its place.
const NOT_INLINE: (&str, &str) = ("IRONRAIL_INLINE_MAX_SIZE", "0");
/// Messages of a connection that may be in flight without an advert (docs/protocol.md).
const EARLY_MOST: usize = 64;

/// `count` receives, then as many sends, then all of them to their ends.
fn burst([send, receive]: &mut Ends<'_>, bytes: usize, count: usize) {
    while receive.outstanding() < count {
        assert!(receive.post(bytes), "there is room in the window");
    }
    let mut sent = 0;
    while receive.outstanding() > 0 || send.outstanding() > 0 {
        while sent < count && send.post(bytes) {
            sent += 1;
        }
        send.test(bytes);
        receive.test(bytes);
    }
}

/// irecv until NULL, isend until NULL, then all of them to their ends.
fn fill_window(ends: &mut Ends<'_>, bytes: usize) {
    let [send, receive] = ends;
    while receive.post(bytes) {}
    let posted = receive.outstanding();
    assert!(posted >= net_abi::MAX_REQUESTS, "a window of {posted}");
    let mut sent = 0;
    while receive.outstanding() > 0 || send.outstanding() > 0 {
        while sent < posted && send.post(bytes) {
            sent += 1;
        }
        // One more message has no receive.
        if sent == posted && receive.outstanding() == posted {
            assert!(!send.post(bytes), "a message without a receive was taken");
        }
        send.test(bytes);
        receive.test(bytes);
    }
}

fn counted_rounds(
    plugin: &Path,
    ends: &mut Ends<'_>,
    scenario: fn(&mut Ends<'_>),
) -> counting::Allocations {
    counting::count(&name(plugin), || (0..ROUNDS).for_each(|_| scenario(ends)))
}

/// Runs `scenario` over a connection of the process to itself, and counts once that is warm.
fn nothing_in(test: &str, settings: &[(&str, &str)], scenario: fn(&mut Ends<'_>)) {
    counted(test, settings, |plugin| {
        let net = Net::open(plugin);
        let [out, into] = [Memory::new(LONG), Memory::new(LONG)];
        let mut ends = traffic::to_itself(&net, &out, &into);
        (0..ROUNDS).for_each(|_| scenario(&mut ends));
        let mut found = counted_rounds(plugin, &mut ends, scenario);
        // A thread's first wait for a lock, here for the keeper's poll: parking_lot makes room for it in its table, once per thread.
        for _ in 0..2 {
            if found.count == 0 || !found.place(plugin).contains("parking_lot_core") {
                break;
            }
            found = counted_rounds(plugin, &mut ends, scenario);
        }
        assert_eq!(found.count, 0, "allocations, the first at\n{}", found.place(plugin));
        let [send, receive] = ends.map(|end| end.comm);
        net.close_send(send);
        net.close_receive(receive);
        net.finalize();
    });
}

/// Runs `body` in a process that counts: this one, or another one that runs this test only.
fn counted(test: &str, settings: &[(&str, &str)], body: impl FnOnce(&Path)) {
    if let Some(plugin) = std::env::var_os(COUNTED) {
        net::give_up_after(SECONDS_MOST);
        body(Path::new(&plugin));
        return;
    }
    let mut again = Command::new(std::env::current_exe().expect("this program has a file"));
    again.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    again.env(COUNTED, support::plugin()).env("LD_PRELOAD", counting::library());
    again.env("IRONRAIL_RAILS", "127.0.0.1");
    again.envs(settings.iter().copied());
    let said = support::output_of(&mut again);
    assert!(said.contains("1 passed"), "{said}");
}

/// The part of the plugin's path that distinguishes it from other libraries.
fn name(plugin: &Path) -> String {
    plugin.file_name().expect("a file").to_string_lossy().into_owned()
}
