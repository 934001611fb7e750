//! A peer that stops in the middle of a long message: deregMr reports the truth about the memory, in time.

use harness::Test;
use std::thread;
use std::time::{Duration, Instant};

use crate::bystander::{self, Bystander};
use crate::closing::stays;
use crate::support::calls::{Buffer, Net, Object};
use crate::support::link::{from_text, to_text, wait};
use crate::support::say;
use crate::support::stage::{Cast, Part, play, suspend};
use crate::{BOUND, SETTINGS, not_over, open};

/// More than all socket buffers between two processes.
const LONG: usize = 64 << 20;
const SHORT: usize = 4096;
/// Bytes before and after the receive, which must not change.
const MARGIN: usize = 4096;
/// Buffers of further receives.
const MORE: usize = 16;
/// The timeout.
const WAIT: &str = "2000";
/// Much less than a timeout for each buffer, and much more than one for all.
const ALL_WAITS: Duration = Duration::from_secs(20);

/// Receives posted for one long message, and for more that never arrive.
struct Receiver {
    net: Net,
    comm: Object,
    whole: Buffer,
    /// Each with its registration; the first is the long one.
    buffers: Vec<(Buffer, Object)>,
}

impl Receiver {
    fn begin(net: Net, context: Object, writer: &mut Cast) -> Self {
        let (handle, listener) = net.listen(context, 0).expect("listen");
        writer.say(&to_text(&handle));
        let mut comm = None;
        wait("accept", || {
            comm = net.accept(listener).expect("accept");
            comm.is_some()
        });
        net.close_listen(listener).expect("closeListen");
        let (comm, whole) = (comm.expect("accepted"), Buffer::new(LONG + 2 * MARGIN));
        let mut buffers = vec![whole.part(MARGIN, LONG)];
        buffers.extend((0..MORE).map(|_| Buffer::new(SHORT)));
        let post = |buffer: Buffer| {
            let region = net.register(comm, buffer).expect("regMr");
            let request = net.irecv(comm, buffer.address(), buffer.len, 0, region).expect("irecv");
            (buffer, request.expect("the window has room"), region)
        };
        let posted: Vec<_> = buffers.into_iter().map(post).collect();
        let (long, request, _) = posted[0];
        wait("some of the message", || {
            assert_eq!(net.test(request), Ok(None), "all of it at once");
            long.read(0, 1)[0] == FILLED
        });
        let buffers = posted.into_iter().map(|(buffer, _, region)| (buffer, region)).collect();
        Self { net, comm, whole, buffers }
    }

    /// The buffer does not change any more, nor do the bytes around it.
    fn is_left_alone(&self, buffer: Buffer) {
        buffer.write(0, &vec![REUSED; buffer.len]);
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(300) {
            // Makes progress: it is no request.
            drop(self.net.test(Object(1)));
            thread::yield_now();
        }
        assert!(buffer.read(0, buffer.len).iter().all(|byte| *byte == REUSED));
        for margin in [0, MARGIN + LONG] {
            assert!(self.whole.read(margin, MARGIN).iter().all(|byte| *byte == 0));
        }
    }
}

const FILLED: u8 = 0x5a;
const REUSED: u8 = 0x77;

/// Sends one long message, as far as it can.
fn write(part: &Part, net: Net, context: Object) {
    let mut handle = from_text(&part.receive());
    let mut comm = None;
    wait("connect", || {
        comm = net.connect(context, 0, &mut handle).expect("connect");
        comm.is_some()
    });
    let (comm, buffer) = (comm.expect("connected"), Buffer::new(LONG));
    buffer.write(0, &vec![FILLED; LONG]);
    let region = net.register(comm, buffer).expect("regMr");
    let mut request = None;
    wait("a receive", || {
        request = net.isend(comm, buffer.address(), LONG, 0, region).expect("isend");
        request.is_some()
    });
    // Done or failed: the receiver may be gone.
    wait("its end", || net.test(request.expect("posted")) != Ok(None));
    wait("deregMr", || net.deregister(comm, region).is_ok());
    net.close_send(comm).expect("closeSend");
    net.finalize(context).expect("finalize");
}

/// Opens the plugin for the process that receives; the others play their part here.
fn begin(part: &Part) -> Option<(Net, Object)> {
    let (net, context) = open(part);
    match part.name.as_str() {
        "writer" => write(part, net, context),
        "bystander" => bystander::play(part, net, context),
        _ => return Some((net, context)),
    }
    None
}

/// Why the tests of a stopped writer do not apply to shm.
pub(crate) const READS_ITSELF: &str = "with shm the receiver reads the message itself";

fn settings() -> Vec<(&'static str, &'static str)> {
    let mut settings = SETTINGS.to_vec();
    settings.push(("CLOSE_TIMEOUT_MS", WAIT));
    settings
}

fn memory_that_a_stopped_peer_may_write_to_stays_until_it_goes_on() {
    // After that timeout the connection has failed, and the memory stays until finalize.
    let settings = [&settings()[..], &[("PEER_TIMEOUT_MS", "60000")]].concat();
    play(&settings, BOUND, |part| {
        let Some((net, context)) = begin(part) else { return };
        let mut bystander = Bystander::cast(part, net, context);
        let mut writer = part.cast("writer", &[]);
        let receiver = Receiver::begin(net, context, &mut writer);
        writer.pause();
        let start = Instant::now();
        for (buffer, region) in &receiver.buffers {
            let failure = net.deregister(receiver.comm, *region).expect_err("it may write there");
            stays(&failure, *buffer);
            let name = format!("process {} on ", writer.process());
            assert!(failure.said[0].contains(&name), "{failure:?}");
        }
        say(&format!("{} answers took {:?}", receiver.buffers.len(), start.elapsed()));
        assert!(start.elapsed() < ALL_WAITS, "{:?}", start.elapsed());
        // Nor is it reported again.
        let (long, region) = receiver.buffers[0];
        assert_eq!(net.deregister(receiver.comm, region).expect_err("still").said, [""; 0]);
        let last = long.read(LONG - 1, 1)[0];
        assert_eq!(last, 0, "the message was all there: its sender was not stopped in the middle");
        bystander.works();
        writer.resume();
        for (_, region) in &receiver.buffers {
            wait("deregMr", || net.deregister(receiver.comm, *region).is_ok());
        }
        receiver.is_left_alone(long);
        let stale = net.deregister(receiver.comm, region).expect_err("it is deregistered");
        assert_eq!(stale.code, net_abi::ResultCode::INVALID_ARGUMENT);
        net.close_recv(receiver.comm).expect("closeRecv");
        writer.finish();
        bystander.end(net, context);
    });
}

/// As by Slurm, which suspends all processes of a job. The time does not count as a wait.
fn memory_is_free_though_the_job_is_stopped_in_deregmr() {
    let settings = [SETTINGS, &[("PEER_TIMEOUT_MS", "60000"), ("CLOSE_TIMEOUT_MS", "4000")]];
    play(&settings.concat(), BOUND, |part| {
        let Some((net, context)) = begin(part) else { return };
        let mut writer = part.cast("writer", &[]);
        let receiver = Receiver::begin(net, context, &mut writer);
        writer.pause();
        let suspended = suspend(&[writer.process()], Duration::from_secs(6));
        let (_, region) = receiver.buffers[0];
        net.deregister(receiver.comm, region).expect("its writer goes on in time");
        suspended.end();
        net.close_recv(receiver.comm).expect("closeRecv");
        net.finalize(context).expect("finalize");
        writer.finish();
    });
}

/// A dead peer writes nothing more.
fn memory_that_a_dead_peer_wrote_to_is_free_in_time() {
    play(&settings(), BOUND, |part| {
        let Some((net, context)) = begin(part) else { return };
        let mut bystander = Bystander::cast(part, net, context);
        let mut writer = part.cast("writer", &[]);
        let receiver = Receiver::begin(net, context, &mut writer);
        writer.kill();
        let start = Instant::now();
        for (_, region) in &receiver.buffers {
            net.deregister(receiver.comm, *region).expect("deregMr");
        }
        say(&format!("{} answers took {:?}", receiver.buffers.len(), start.elapsed()));
        assert!(start.elapsed() < ALL_WAITS, "{:?}", start.elapsed());
        receiver.is_left_alone(receiver.buffers[0].0);
        bystander.works();
        net.close_recv(receiver.comm).expect("closeRecv");
        bystander.end(net, context);
    });
}

/// The registration of a buffer that is kept is valid until the endpoint closes; then its region is closed.
fn finalize_frees_what_a_stopped_peer_may_write_to() {
    play(&settings(), BOUND, |part| {
        let before = crate::support::link::descriptors();
        let Some((net, context)) = begin(part) else { return };
        let mut writer = part.cast("writer", &[]);
        let receiver = Receiver::begin(net, context, &mut writer);
        writer.pause();
        let start = Instant::now();
        for (buffer, region) in &receiver.buffers {
            stays(&net.deregister(receiver.comm, *region).expect_err("it may"), *buffer);
        }
        net.close_recv(receiver.comm).expect("closeRecv");
        net.finalize(context).expect("finalize");
        say(&format!("all took {:?}", start.elapsed()));
        assert!(start.elapsed() < ALL_WAITS, "{:?}", start.elapsed());
        writer.resume();
        receiver.is_left_alone(receiver.buffers[0].0);
        drop(writer);
        wait("all descriptors to be closed", || crate::support::link::descriptors() <= before);
    });
}

/// Otherwise the call says that the memory is free, while the endpoint is only about to close.
fn finalize_in_another_thread_waits_for_a_deregmr_that_waits() {
    play(&settings(), BOUND, |part| {
        let Some((net, context)) = begin(part) else { return };
        let mut writer = part.cast("writer", &[]);
        let receiver = Receiver::begin(net, context, &mut writer);
        writer.pause();
        let (comm, (long, region)) = (receiver.comm, receiver.buffers[0]);
        let deregistering = thread::spawn(move || net.deregister(comm, region));
        // The call hides the region, and lets others at the endpoint from then on only where it waits.
        wait("deregMr to begin", || net.irecv(comm, long.address(), long.len, 0, region).is_err());
        net.finalize(context).expect("finalize");
        let answer = deregistering.join().expect("it only calls");
        let failure = answer.expect_err("the writer may write there until finalize");
        assert!(failure.said.iter().any(|line| line.contains("stay registered")), "{failure:?}");
        drop(writer);
    });
}

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new(memory_that_a_stopped_peer_may_write_to_stays_until_it_goes_on)
            .needs(not_over("shm", READS_ITSELF)),
        Test::new(memory_is_free_though_the_job_is_stopped_in_deregmr)
            .needs(not_over("shm", READS_ITSELF)),
        Test::new(memory_that_a_dead_peer_wrote_to_is_free_in_time)
            .needs(not_over("shm", READS_ITSELF)),
        Test::new(finalize_in_another_thread_waits_for_a_deregmr_that_waits)
            .needs(not_over("shm", READS_ITSELF)),
        Test::new(finalize_frees_what_a_stopped_peer_may_write_to)
            .needs(not_over("shm", READS_ITSELF))
            .needs(not_over(
                "tcp;ofi_rxm",
                "rxm of 1.17 reads freed memory when half a message is there at its close",
            )),
    ]
}
