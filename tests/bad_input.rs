//! What must not hurt: bad handles, bad calls, bad peers, bad bytes, bad settings. Each ends in a named error or a counted
//! drop within its bound; the process lives, and what else the endpoint does goes on.

mod support;

use std::time::{Duration, Instant};

use net_abi::ResultCode;
use support::calls::{Answer, Failure, Handle, Net, Object};
use support::link::{Link, SLOT, from_text, to_text, wait};
use support::stage::{Cast, Part, play};

/// Two rails of the loopback interface, and short deadlines.
const SETTINGS: &[(&str, &str)] = &[
    ("RAILS", "127.0.0.1,127.0.0.2"),
    ("CONNECT_TIMEOUT_MS", "2000"),
    ("PEER_TIMEOUT_MS", "2000"),
    ("CLOSE_TIMEOUT_MS", "1000"),
];
const DEADLINE: Duration = Duration::from_secs(2);
/// What a loaded machine may add to any deadline.
const SLACK: Duration = Duration::from_secs(6);
/// How long a play may take, deadlines and all.
const BOUND: Duration = Duration::from_secs(60);

fn open(part: &Part) -> (Net, Object) {
    let net = Net::open(&part.plugin());
    (net, net.init().expect("init"))
}

/// The call was refused with this code and one sentence that has `words` in it.
#[track_caller]
fn refused<T: std::fmt::Debug>(answer: Answer<T>, code: ResultCode, words: &str) {
    let failure = answer.expect_err("it must be refused");
    assert_eq!(failure.code, code, "{failure:?}");
    assert!(failure.said.len() == 1 && failure.said[0].contains(words), "{failure:?}");
}

// ---------------------------------------------------------------- handles

#[test]
fn a_handle_with_any_byte_changed_is_refused() {
    play(SETTINGS, BOUND, |part| {
        let (net, context) = open(part);
        let mut link = Link::to_self(net, context);
        let (handle, listener) = net.listen(context, 0).expect("listen");
        for at in 0..112 {
            for flip in [1, 0x80, 0xff] {
                let mut bad = handle;
                bad[at] ^= flip;
                refused(
                    net.connect(context, 0, &mut bad),
                    ResultCode::INVALID_ARGUMENT,
                    "a handle that is not usable",
                );
            }
        }
        refused(net.connect(context, 0, &mut [0; 128]), ResultCode::INVALID_ARGUMENT, "not usable");
        net.close_listen(listener).expect("close");
        link.works();
        link.close();
        net.finalize(context).expect("finalize");
    });
}

#[test]
fn a_handle_of_another_protocol_version_is_refused_by_that_name() {
    play(SETTINGS, BOUND, |part| {
        let (net, context) = open(part);
        let mut link = Link::to_self(net, context);
        let (handle, _) = net.listen(context, 0).expect("listen");
        for version in [0, proto::codec::VERSION + 1, u16::MAX] {
            let mut bad = handle;
            bad[8..10].copy_from_slice(&version.to_le_bytes());
            bad[12..16].fill(0);
            let check = proto::codec::check_of(&bad[..112]);
            bad[12..16].copy_from_slice(&check.to_le_bytes());
            refused(
                net.connect(context, 0, &mut bad),
                ResultCode::INVALID_USAGE,
                &format!("protocol version {version}"),
            );
        }
        link.works();
        net.finalize(context).expect("finalize");
    });
}

/// Connects and accepts until connect fails.
fn fails_to_connect(net: Net, context: Object, handle: &mut Handle, listener: Object) -> Failure {
    let start = Instant::now();
    loop {
        match net.connect(context, 0, handle) {
            Err(failure) => return failure,
            Ok(comm) => assert_eq!(comm, None, "it must not connect"),
        }
        assert_eq!(net.accept(listener), Ok(None));
        assert!(start.elapsed() < DEADLINE + SLACK, "connect does not end");
    }
}

#[test]
fn a_handle_with_a_stale_nonce_is_refused_by_the_listener() {
    play(SETTINGS, BOUND, |part| {
        let (net, context) = open(part);
        let mut link = Link::to_self(net, context);
        let (handle, listener) = net.listen(context, 0).expect("listen");
        let mut stale = proto::Handle::decode(&handle).expect("ours");
        stale.nonce ^= 1;
        let failure = fails_to_connect(net, context, &mut stale.encode(), listener);
        assert_eq!(failure.code, ResultCode::REMOTE_ERROR);
        assert!(failure.said[0].contains("another job or an earlier listener"), "{failure:?}");
        link.works();
        net.finalize(context).expect("finalize");
    });
}

#[test]
fn a_handle_of_another_job_is_refused_by_the_listener() {
    play(SETTINGS, BOUND, |part| {
        let (net, context) = open(part);
        if part.name == "stranger" {
            let mut handle = from_text(&part.hear());
            let start = Instant::now();
            let failure = loop {
                match net.connect(context, 0, &mut handle) {
                    Err(failure) => break failure,
                    Ok(comm) => assert_eq!(comm, None, "it must not connect"),
                }
                assert!(start.elapsed() < DEADLINE + SLACK, "connect does not end");
            };
            assert_eq!(failure.code, ResultCode::REMOTE_ERROR);
            assert!(failure.said[0].contains("IRONRAIL_JOB"), "{failure:?}");
            part.say("refused");
            net.finalize(context).expect("finalize");
            return;
        }
        let mut link = Link::to_self(net, context);
        let (handle, listener) = net.listen(context, 0).expect("listen");
        let mut stranger = part.cast("stranger", &[("JOB", "another")]);
        stranger.say(&to_text(&handle));
        wait("the refusal", || {
            assert_eq!(net.accept(listener), Ok(None));
            stranger.overhear().is_some_and(|line| line == "refused")
        });
        link.works();
        net.close_listen(listener).expect("close");
        net.finalize(context).expect("finalize");
        stranger.finish();
    });
}

#[test]
fn a_handle_with_garbage_for_scratch_is_refused() {
    play(SETTINGS, BOUND, |part| {
        let (net, context) = open(part);
        let mut link = Link::to_self(net, context);
        let (handle, listener) = net.listen(context, 0).expect("listen");
        // A connect that is under way, for a nonce that is ours.
        let mut under_way = handle;
        assert_eq!(net.connect(context, 0, &mut under_way), Ok(None));
        let mut garbage = Vec::new();
        for at in 112..128 {
            garbage.push((at, 0x40));
            garbage.push((at, 1));
        }
        for (at, flip) in garbage {
            let mut bad = under_way;
            bad[at] ^= flip;
            refused(net.connect(context, 0, &mut bad), ResultCode::INVALID_ARGUMENT, "fresh copy");
        }
        let mut bad = handle;
        bad[112..].fill(0xff);
        refused(net.connect(context, 0, &mut bad), ResultCode::INVALID_ARGUMENT, "fresh copy");
        // The one that is under way goes on.
        let (mut send, mut receive) = (None, None);
        wait("connect and accept", || {
            send = send.or_else(|| net.connect(context, 0, &mut under_way).expect("connect"));
            receive = receive.or_else(|| net.accept(listener).expect("accept"));
            send.is_some() && receive.is_some()
        });
        Link::of(net, send.expect("connected"), receive.expect("accepted")).works();
        link.works();
        net.finalize(context).expect("finalize");
    });
}

#[test]
fn a_handle_with_the_scratch_of_another_process_is_refused() {
    play(SETTINGS, BOUND, |part| {
        let (net, context) = open(part);
        if part.name == "other" {
            let mut handle = from_text(&part.hear());
            assert_eq!(net.connect(context, 0, &mut handle), Ok(None));
            part.say(&to_text(&handle));
            part.hear();
            return;
        }
        let mut link = Link::to_self(net, context);
        let (handle, listener) = net.listen(context, 0).expect("listen");
        let mut other = part.cast("other", &[]);
        other.say(&to_text(&handle));
        let mut theirs = from_text(&other.hear());
        assert_ne!(theirs, handle);
        refused(net.connect(context, 0, &mut theirs), ResultCode::INVALID_ARGUMENT, "fresh copy");
        other.say("end");
        other.finish();
        net.close_listen(listener).expect("close");
        link.works();
        net.finalize(context).expect("finalize");
    });
}

// ---------------------------------------------------------------- peers that die

/// What a part does that is to be killed: all but "bystander" go on until then.
fn other_part(part: &Part) -> bool {
    let (net, context) = match part.name.as_str() {
        "main" => return false,
        _ => open(part),
    };
    match part.name.as_str() {
        "listener" => {
            let (handle, _) = net.listen(context, 0).expect("listen");
            part.say(&to_text(&handle));
            part.hear();
        }
        "connector" => {
            let mut handle = from_text(&part.hear());
            assert_eq!(net.connect(context, 0, &mut handle), Ok(None));
            part.say("asked");
            wait("death", || net.connect(context, 0, &mut handle).expect("connect").is_some());
            part.hear();
        }
        "idle" => {
            let mut link = Link::to_peer(net, context, &mut { part });
            link.works();
            part.say("ready");
            part.hear();
        }
        "sender" => {
            let link = Link::to_peer(net, context, &mut { part });
            part.say("ready");
            drop(send_for_ever(net, &link));
        }
        "receiver" => {
            let link = Link::to_peer(net, context, &mut { part });
            part.say("ready");
            drop(receive_for_ever(net, &link));
        }
        "bystander" => {
            let mut link = Link::to_peer(net, context, &mut { part });
            while part.hear() == "works" {
                link.works();
            }
            link.close();
            net.finalize(context).expect("finalize");
        }
        name => panic!("no part {name}"),
    }
    true
}

/// Long messages, a few outstanding, until a call fails.
fn send_for_ever(net: Net, link: &Link) -> Failure {
    let mut requests = std::collections::VecDeque::new();
    loop {
        if requests.len() < 6 {
            let slot = link.out.slot(requests.len());
            match net.isend(link.send, slot, SLOT, 0, link.out.region) {
                Ok(request) => requests.extend(request),
                Err(failure) => return failure,
            }
        }
        if let Some(oldest) = requests.front() {
            match net.test(*oldest) {
                Ok(Some(_)) => drop(requests.pop_front()),
                Ok(None) => {}
                Err(failure) => return failure,
            }
        }
        std::thread::yield_now();
    }
}

/// As many receives.
fn receive_for_ever(net: Net, link: &Link) -> Failure {
    let mut requests = std::collections::VecDeque::new();
    loop {
        if requests.len() < 6 {
            let slot = link.input.slot(requests.len());
            match net.irecv(link.receive, slot, SLOT, 0, link.input.region) {
                Ok(request) => requests.extend(request),
                Err(failure) => return failure,
            }
        }
        if let Some(oldest) = requests.front() {
            match net.test(*oldest) {
                Ok(Some(_)) => drop(requests.pop_front()),
                Ok(None) => {}
                Err(failure) => return failure,
            }
        }
        std::thread::yield_now();
    }
}

/// A link to a third process, which has to work whatever befalls the others.
struct Bystander {
    cast: Cast,
    link: Link,
}

impl Bystander {
    fn cast(part: &Part, net: Net, context: Object) -> Self {
        let mut cast = part.cast("bystander", &[]);
        let mut this = Self { link: Link::to_peer(net, context, &mut cast), cast };
        this.works();
        this
    }

    fn works(&mut self) {
        self.cast.say("works");
        self.link.works();
    }

    /// Closes all, in bounded time.
    fn end(mut self, net: Net, context: Object) {
        self.works();
        self.cast.say("end");
        self.link.close();
        let start = Instant::now();
        net.finalize(context).expect("finalize");
        assert!(start.elapsed() < Duration::from_secs(1) + SLACK, "{:?}", start.elapsed());
        self.cast.finish();
    }
}

/// A call failed because the peer is gone, with one sentence.
#[track_caller]
fn peer_is_gone(failure: &Failure) {
    assert_eq!(failure.code, ResultCode::REMOTE_ERROR, "{failure:?}");
    assert_eq!(failure.said.len(), 1, "{failure:?}");
}

/// Runs `body`, which may take as long as it takes to notice a death.
#[track_caller]
fn in_time<T>(body: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = body();
    assert!(start.elapsed() < 2 * DEADLINE + SLACK, "noticed after {:?}", start.elapsed());
    support::say(&format!("noticed after {:?}", start.elapsed()));
    result
}

#[test]
fn a_peer_that_dies_before_it_accepts_is_an_error_of_connect() {
    play(SETTINGS, BOUND, |part| {
        if other_part(part) {
            return;
        }
        let (net, context) = open(part);
        let mut bystander = Bystander::cast(part, net, context);
        for polls_before in [0, 1, 200] {
            let mut listener = part.cast("listener", &[]);
            let mut handle = from_text(&listener.hear());
            for _ in 0..polls_before {
                assert_eq!(net.connect(context, 0, &mut handle), Ok(None));
            }
            listener.kill();
            let failure = in_time(|| {
                loop {
                    match net.connect(context, 0, &mut handle) {
                        Err(failure) => break failure,
                        Ok(comm) => assert_eq!(comm, None),
                    }
                }
            });
            peer_is_gone(&failure);
            bystander.works();
        }
        bystander.end(net, context);
    });
}

#[test]
fn a_peer_that_dies_after_it_asked_fails_the_accept_or_the_receives() {
    play(SETTINGS, BOUND, |part| {
        if other_part(part) {
            return;
        }
        let (net, context) = open(part);
        let mut bystander = Bystander::cast(part, net, context);
        let (handle, listener) = net.listen(context, 0).expect("listen");
        let mut connector = part.cast("connector", &[]);
        connector.say(&to_text(&handle));
        connector.hear();
        connector.kill();
        let failure = in_time(|| {
            loop {
                match net.accept(listener) {
                    Err(failure) => break failure,
                    Ok(None) => {}
                    Ok(Some(comm)) => {
                        let link = Link::of(net, comm, comm);
                        break receive_for_ever(net, &link);
                    }
                }
            }
        });
        peer_is_gone(&failure);
        net.close_listen(listener).expect("close");
        bystander.works();
        bystander.end(net, context);
    });
}

/// One link dies by the death of its process; what `body` does on it must fail.
fn dies(part: &Part, name: &str, body: impl FnOnce(Net, &Link) -> Failure) {
    if other_part(part) {
        return;
    }
    let (net, context) = open(part);
    let mut bystander = Bystander::cast(part, net, context);
    let mut victim = part.cast(name, &[]);
    let mut link = Link::to_peer(net, context, &mut victim);
    if name == "idle" {
        link.works();
    }
    assert_eq!(victim.hear(), "ready");
    let killer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        victim.kill();
    });
    let failure = in_time(|| body(net, &link));
    killer.join().expect("it kills");
    peer_is_gone(&failure);
    bystander.works();
    bystander.end(net, context);
}

#[test]
fn a_sender_that_dies_in_the_middle_fails_the_receives() {
    play(SETTINGS, BOUND, |part| dies(part, "sender", receive_for_ever));
}

#[test]
fn a_receiver_that_dies_in_the_middle_fails_the_sends() {
    play(SETTINGS, BOUND, |part| dies(part, "receiver", send_for_ever));
}

#[test]
fn a_peer_that_dies_in_silence_fails_receives_that_are_posted() {
    play(SETTINGS, BOUND, |part| dies(part, "idle", receive_for_ever));
}

#[test]
fn a_peer_that_dies_in_silence_fails_sends_that_wait_for_a_receive() {
    play(SETTINGS, BOUND, |part| dies(part, "idle", send_for_ever));
}
