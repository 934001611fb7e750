//! A panic in a call is one line in the log, and permanently disables what it may have left inconsistent: the locked endpoint, or else the
//! comm of the call. The next call on that is an error, closing works, and everything else continues.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::time::Duration;

use net_abi::ResultCode;
use support::calls::{Answer, Net, Object};
use support::faults::panic_in;
use support::link::{Link, SLOT, descriptors, wait};
use support::stage::{Part, play_each};

const BOUND: Duration = Duration::from_secs(120);

/// A plugin that can be made to panic.
struct Faulty {
    file: PathBuf,
    net: Net,
}

impl Faulty {
    fn open(part: &Part) -> Self {
        let file = part.plugin();
        let net = Net::open(&file);
        Self { file, net }
    }

    /// The call panics at this place: it returns an internal error, and one line names the place.
    #[track_caller]
    fn panics<T: std::fmt::Debug>(&self, place: &str, call: impl FnOnce() -> Answer<T>) {
        panic_in(&self.file, place);
        let failure = call().expect_err("it panics");
        assert_eq!(failure.code, ResultCode::INTERNAL_ERROR, "{failure:?}");
        let [line] = &failure.said[..] else { panic!("not one line: {failure:?}") };
        assert!(
            line.contains("a bug in Ironrail") && line.ends_with("report it with this line."),
            "{line}"
        );
        assert!(
            line.contains(&format!("in {place}.")) || line.contains(&format!("in {place} ")),
            "{line}"
        );
    }
}

/// An internal error without a line of its own, since the log has one already.
#[track_caller]
fn broken<T: std::fmt::Debug>(answer: Answer<T>) {
    let failure = answer.expect_err("it is broken");
    assert_eq!((failure.code, failure.said.len()), (ResultCode::INTERNAL_ERROR, 0), "{failure:?}");
}

const SETTINGS: &[(&str, &str)] =
    &[("RAILS", "127.0.0.1,127.0.0.2"), ("PEER_TIMEOUT_MS", "2000"), ("CLOSE_TIMEOUT_MS", "500")];

/// Every call on a broken endpoint fails, and it can be closed.
fn is_broken_and_closes(
    net: Net,
    context: Object,
    link: &Link,
    listener: Object,
    handle: &[u8; 128],
) {
    broken(net.isend(link.send, link.out.slot(0), 8, 0, link.out.region));
    broken(net.irecv(link.receive, link.input.slot(0), 8, 0, link.input.region));
    broken(net.register(link.send, link.out.buffer));
    broken(net.deregister(link.receive, link.input.region));
    broken(net.listen(context, 0));
    broken(net.connect(context, 0, &mut handle.clone()));
    broken(net.accept(listener));
    net.close_send(link.send).expect("closeSend");
    net.close_recv(link.receive).expect("closeRecv");
    net.close_listen(listener).expect("closeListen");
    net.finalize(context).expect("finalize");
}

/// Posts a message in each direction.
fn post(net: Net, link: &Link) -> (Object, Object) {
    let (mut sent, mut received) = (None, None);
    wait("a message to be posted", || {
        let receive = || net.irecv(link.receive, link.input.slot(0), SLOT, 0, link.input.region);
        received = received.or_else(|| receive().expect("irecv"));
        let send = || net.isend(link.send, link.out.slot(0), 8, 0, link.out.region);
        sent = sent.or_else(|| send().expect("isend"));
        sent.is_some() && received.is_some()
    });
    (sent.expect("posted"), received.expect("posted"))
}

#[test]
fn a_panic_under_the_lock_of_an_endpoint_ends_that_endpoint_and_no_other() {
    let cases = [
        "isend",
        "irecv",
        "test",
        "iflush",
        "completion",
        "listen locked",
        "connect locked",
        "accept locked",
        "regMr locked",
        "deregMr locked",
        "closeSend locked",
        "closeRecv locked",
        "closeListen locked",
    ];
    play_each(&cases, SETTINGS, BOUND, |part, case| {
        let faulty = Faulty::open(part);
        let net = faulty.net;
        let (context, other) = (net.init().expect("init"), net.init().expect("init"));
        let mut bystander = Link::to_self(net, other);
        let mut link = Link::to_self(net, context);
        link.works();
        let (handle, listener) = net.listen(context, 0).expect("listen");
        let (sent, received) = post(net, &link);
        match case {
            "isend" => {
                faulty
                    .panics(case, || net.isend(link.send, link.out.slot(1), 8, 0, link.out.region));
            }
            "irecv" => {
                let slot = link.input.slot(1);
                faulty.panics(case, || net.irecv(link.receive, slot, SLOT, 0, link.input.region));
            }
            "test" => faulty.panics(case, || net.test(received)),
            "iflush" => {
                let slot = link.input.slot(0);
                faulty.panics(case, || net.iflush(link.receive, slot, 8, link.input.region));
            }
            "completion" => faulty.panics(case, || {
                // The panic is in whichever call polls a queue with a completion.
                loop {
                    for request in [sent, received] {
                        net.test(request)?;
                    }
                }
                #[expect(unreachable_code, reason = "the type of the answer")]
                Answer::Ok(())
            }),
            "listen locked" => faulty.panics(case, || net.listen(context, 0)),
            "connect locked" => {
                faulty.panics(case, || net.connect(context, 0, &mut handle.clone()))
            }
            "accept locked" => faulty.panics(case, || net.accept(listener)),
            "regMr locked" => faulty.panics(case, || net.register(link.send, link.out.buffer)),
            "deregMr locked" => faulty.panics(case, || net.deregister(link.send, link.out.region)),
            "closeSend locked" => faulty.panics(case, || net.close_send(link.send)),
            "closeRecv locked" => faulty.panics(case, || net.close_recv(link.receive)),
            "closeListen locked" => faulty.panics(case, || net.close_listen(listener)),
            other => panic!("{other}"),
        }
        for request in [sent, received] {
            broken(net.test(request));
        }
        is_broken_and_closes(net, context, &link, listener, &handle);
        bystander.works();
        bystander.close();
        net.finalize(other).expect("finalize");
        // What is opened afterwards works.
        let next = net.init().expect("init");
        let mut link = Link::to_self(net, next);
        link.works();
        link.close();
        net.finalize(next).expect("finalize");
    });
}

/// The peer is stopped, so it may still write to what it was lent. A success would let NCCL free that memory.
#[test]
fn a_panic_while_deregmr_waits_for_a_peer_is_no_success() {
    play_each(&["deregMr waits"], SETTINGS, BOUND, |part, case| {
        let faulty = Faulty::open(part);
        let net = faulty.net;
        let context = net.init().expect("init");
        if part.name != "main" {
            let mut link = Link::to_peer(net, context, &mut { part });
            link.works();
            return part.stop();
        }
        let mut peer = part.cast("peer", &[]);
        let mut link = Link::to_peer(net, context, &mut peer);
        link.works();
        peer.wait_for_stop();
        let receive = || net.irecv(link.receive, link.input.slot(0), SLOT, 0, link.input.region);
        let request = receive().expect("irecv").expect("nothing is outstanding");
        assert_eq!(net.test(request), Ok(None), "the peer is stopped");
        faulty.panics(case, || net.deregister(link.receive, link.input.region));
        broken(net.deregister(link.receive, link.input.region));
        net.finalize(context).expect("finalize");
    });
}

#[test]
fn a_panic_outside_of_the_lock_ends_the_comm_that_the_call_was_about_and_no_other() {
    let cases = ["regMr", "deregMr", "accept", "closeSend", "closeRecv", "closeListen"];
    play_each(&cases, SETTINGS, BOUND, |part, case| {
        let faulty = Faulty::open(part);
        let net = faulty.net;
        let context = net.init().expect("init");
        let mut bystander = Link::to_self(net, context);
        let link = Link::to_self(net, context);
        let (_, listener) = net.listen(context, 0).expect("listen");
        match case {
            "regMr" => faulty.panics(case, || net.register(link.send, link.out.buffer)),
            "deregMr" => faulty.panics(case, || net.deregister(link.receive, link.input.region)),
            "accept" => faulty.panics(case, || net.accept(listener)),
            "closeSend" => faulty.panics(case, || net.close_send(link.send)),
            "closeRecv" => faulty.panics(case, || net.close_recv(link.receive)),
            "closeListen" => faulty.panics(case, || net.close_listen(listener)),
            other => panic!("{other}"),
        }
        match case {
            "regMr" | "closeSend" => {
                broken(net.isend(link.send, link.out.slot(0), 8, 0, link.out.region));
                broken(net.register(link.send, link.out.buffer));
            }
            "deregMr" | "closeRecv" => {
                broken(net.irecv(link.receive, link.input.slot(0), 8, 0, link.input.region));
                broken(net.register(link.receive, link.input.buffer));
            }
            _ => broken(net.accept(listener)),
        }
        bystander.works();
        net.close_listen(listener).expect("closeListen");
        link.close();
        bystander.works();
        bystander.close();
        net.finalize(context).expect("finalize");
    });
}

#[test]
fn a_panic_in_a_call_that_is_about_no_comm_leaves_what_there_was() {
    let cases = ["init", "devices", "getProperties", "listen", "connect", "finalize"];
    play_each(&cases, SETTINGS, BOUND, |part, case| {
        let faulty = Faulty::open(part);
        let net = faulty.net;
        let context = net.init().expect("init");
        let mut link = Link::to_self(net, context);
        let (handle, listener) = net.listen(context, 0).expect("listen");
        match case {
            "init" => faulty.panics(case, || net.init()),
            "devices" => faulty.panics(case, || net.devices()),
            "getProperties" => faulty.panics(case, || net.pointer_support(0)),
            "listen" => faulty.panics(case, || net.listen(context, 0)),
            "connect" => faulty.panics(case, || net.connect(context, 0, &mut handle.clone())),
            "finalize" => faulty.panics(case, || net.finalize(context)),
            other => panic!("{other}"),
        }
        assert_eq!(net.devices(), Ok(1));
        net.pointer_support(0).expect("getProperties");
        link.works();
        net.close_listen(listener).expect("closeListen");
        link.close();
        net.finalize(context).expect("finalize");
    });
}

#[test]
fn a_start_that_panics_is_not_begun_again() {
    play_each(&["start"], SETTINGS, BOUND, |part, case| {
        let faulty = Faulty::open(part);
        let net = faulty.net;
        faulty.panics(case, || net.init());
        broken(net.init());
        broken(net.devices());
        broken(net.pointer_support(0));
    });
}

#[test]
fn a_panic_while_an_endpoint_drains_still_closes_it() {
    play_each(&["finalize locked"], SETTINGS, BOUND, |part, case| {
        let faulty = Faulty::open(part);
        let net = faulty.net;
        let (context, other) = (net.init().expect("init"), net.init().expect("init"));
        let mut bystander = Link::to_self(net, other);
        bystander.works();
        let before = descriptors();
        let mut link = Link::to_self(net, context);
        link.works();
        assert!(descriptors() > before, "an endpoint is open");
        panic_in(&faulty.file, case);
        net.finalize(context).expect("finalize");
        let panics: Vec<String> = support::calls::warnings();
        assert_eq!(panics.len(), 1, "{panics:?}");
        assert!(descriptors() <= before, "it is left open");
        bystander.works();
        bystander.close();
        net.finalize(other).expect("finalize");
    });
}

#[test]
fn an_endpoint_whose_opening_panics_is_opened_anew() {
    play_each(&["open"], SETTINGS, BOUND, |part, case| {
        let faulty = Faulty::open(part);
        let net = faulty.net;
        let context = net.init().expect("init");
        faulty.panics(case, || net.listen(context, 0));
        let mut link = Link::to_self(net, context);
        link.works();
        link.close();
        net.finalize(context).expect("finalize");
    });
}

/// Up to v10 a communicator is a thread, and its endpoint closes with the last object there.
#[test]
fn a_connect_under_way_does_not_keep_a_broken_endpoint_open() {
    play_each(&["connect locked"], SETTINGS, BOUND, |part, case| {
        let faulty = Faulty::open(part);
        let net = faulty.net;
        net.init_v8().expect("init");
        let (mut handle, listener) = net.listen_v8(0).expect("listen");
        let listened = handle;
        wait("a connect to begin", || {
            assert_eq!(net.connect_v8(0, &mut handle), Ok(None), "nothing accepts");
            handle != listened
        });
        assert_eq!(keepers(), 1, "an endpoint is open");
        faulty.panics(case, || net.connect_v8(0, &mut handle));
        net.close_listen(listener).expect("closeListen");
        assert_eq!(keepers(), 0, "the last endpoint has closed");
    });
}

#[test]
fn a_panic_while_a_dump_is_written_ends_neither_dumps_nor_an_endpoint() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("dumps.{}", process::id()));
    let trigger = folder.join("now");
    let trigger = ("DUMP_TRIGGER", trigger.to_str().expect("text"));
    let settings = [SETTINGS, &[trigger]].concat();
    play_each(&["snapshot", "dump"], &settings, BOUND, |part, case| {
        let trigger = PathBuf::from(std::env::var("IRONRAIL_DUMP_TRIGGER").expect("it was set"));
        let folder = trigger.parent().expect("it is in one");
        fs::create_dir(folder).expect("the target folder takes a folder");
        let dumps = || -> Vec<PathBuf> {
            let all = fs::read_dir(folder).expect("ours");
            let name = format!("{}.json", process::id());
            let all = all.map(|entry| entry.expect("ours").path());
            all.filter(|path| path.to_string_lossy().ends_with(&name)).collect()
        };
        let dump = || {
            let text = dumps().first().and_then(|path| fs::read_to_string(path).ok());
            text.filter(|text| text.ends_with("}\n"))
        };
        let faulty = Faulty::open(part);
        let net = faulty.net;
        let contexts = [0, 1].map(|_| net.init().expect("init"));
        let mut links = contexts.map(|context| Link::to_self(net, context));
        links.iter_mut().for_each(Link::works);
        let asks = || {
            let _before = fs::remove_file(&trigger);
            fs::write(&trigger, "").expect("ours");
        };
        panic_in(&faulty.file, case);
        asks();
        wait("the panic", || support::calls::warned() > 0);
        let said = support::calls::warnings();
        assert!(said.len() == 1 && said[0].contains(&format!("in {case}.")), "{said:?}");
        if case == "snapshot" {
            wait("the dump without it", || dump().is_some());
            let text = dump().expect("just found");
            let count = |words: &str| text.matches(words).count();
            assert_eq!((count("\"panicked\":true"), count("\"rails\":")), (1, 1), "{text}");
            fs::remove_file(&dumps()[0]).expect("ours");
        }
        wait("the next dump", || {
            asks();
            dump().is_some_and(|text| !text.contains("panicked"))
        });
        assert_eq!(keepers(), 1);
        links.iter_mut().for_each(Link::works);
        links.into_iter().for_each(Link::close);
        contexts.into_iter().for_each(|context| net.finalize(context).expect("finalize"));
        wait("the last dump", || threads("ironrail-dump") == 0);
        fs::remove_dir_all(folder).expect("ours");
    });
}

/// Threads that poll endpoints: one while an endpoint is open.
fn keepers() -> usize {
    threads("ironrail-keeper")
}

fn threads(of_name: &str) -> usize {
    let tasks = fs::read_dir("/proc/self/task").expect("proc is mounted");
    let name = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm"));
    let names = tasks.flatten().filter_map(|task| name(task).ok());
    names.filter(|name| name.trim() == of_name).count()
}
