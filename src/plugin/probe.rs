//! What a provider can really do, learned by doing it once: the first endpoint of a device writes to itself.
//!
//! fi_getinfo over-promises: cxi reports a `cq_data_size` of 8 and refuses `fi_writedata`, the tcp family of 1.17
//! reports remote writes with length 0. What cannot be learned by doing are two functions at its end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fabric::{
    AddressVector, Batch, CompletionQueue, Context, Contexts, CqPoll, Data, Delivery, Endpoint,
    FabricError, Info, Pages, PeerAddress, Post, Region, RemoteBytes,
};
use proto::capabilities::{Capabilities, ImmediateWidth};

use super::provider::{FI_PROTO_CXI, FI_PROTO_EFA, core};

/// All of the probe ends within this; what was not seen by then counts as absent.
const PROBE_BOUND: Duration = Duration::from_secs(2);
/// What the probe writes: long enough that no provider's header is mistaken for it.
const PROBE_BYTES: usize = 64;
const PROBE_IMMEDIATE: u64 = 0xa5c3_9617_5a3c_69e8;

/// The objects the probe works on: one NIC's queue, addresses and data endpoint.
#[derive(Debug)]
pub(crate) struct Subject<'a> {
    pub(crate) info: &'a Info,
    pub(crate) queue: &'a Arc<CompletionQueue>,
    pub(crate) addresses: &'a Arc<AddressVector>,
    pub(crate) endpoint: &'a Arc<Endpoint<Data>>,
}

/// Learns what `subject` can do. An error means that not even a plain write to itself works.
pub(crate) fn probe(subject: &Subject<'_>) -> Result<Capabilities, FabricError> {
    let name = subject.endpoint.name()?;
    let myself = subject.addresses.insert(&name)?;
    let found = Probe::new(subject, myself)?.run();
    // sockets of libfabric 2.5 will not forget our own address.
    if let Err(error) = subject.addresses.remove(myself) {
        log::debug!("{} keeps the probe's address: {error}", subject.info.provider());
    }
    found
}

struct Probe<'a> {
    subject: &'a Subject<'a>,
    myself: PeerAddress,
    contexts: Contexts,
    region: Region<Data>,
    deadline: Instant,
}

/// What one operation to ourselves brought.
#[derive(Debug, Default)]
struct Seen {
    completed: bool,
    failed: bool,
    arrival: Option<(usize, u64)>,
}

impl<'a> Probe<'a> {
    fn new(subject: &'a Subject<'a>, myself: PeerAddress) -> Result<Self, FabricError> {
        let pages = Pages::map(2 * PROBE_BYTES)
            .map(Arc::new)
            .map_err(|_| FabricError { call: "mmap", code: -12 })?;
        for word in 0..PROBE_BYTES / 8 {
            pages.store(word, PROBE_IMMEDIATE.rotate_left(8 * u32::try_from(word).unwrap_or(0)));
        }
        let region = Region::register_pages(subject.endpoint, Arc::clone(&pages))?;
        let deadline = Instant::now() + PROBE_BOUND;
        Ok(Self { subject, myself, contexts: Contexts::new(1), region, deadline })
    }

    fn run(&self) -> Result<Capabilities, FabricError> {
        let info = self.subject.info;
        let plain = self.attempt(false, |endpoint, context| {
            endpoint.write(self.source(), self.target(), self.myself, Delivery::Default, context)
        })?;
        if !plain.completed {
            return Err(FabricError {
                call: "fi_write to itself",
                code: if plain.failed { -5 } else { -110 },
            });
        }
        // Past this point every refusal is an answer.
        let written = self.attempt(true, |endpoint, context| {
            endpoint.write_with_immediate(
                self.source(),
                self.target(),
                self.myself,
                PROBE_IMMEDIATE,
                Delivery::Default,
                context,
            )
        });
        let arrival = written.ok().and_then(|seen| seen.arrival.filter(|_| seen.completed));
        let read = self.attempt(false, |endpoint, context| {
            endpoint.read(self.source(), self.target(), self.myself, context)
        });
        let delivered = self.attempt(false, |endpoint, context| {
            endpoint.write(self.source(), self.target(), self.myself, Delivery::Complete, context)
        });
        Ok(Capabilities {
            immediate: arrival.map_or(ImmediateWidth::None, |(_, data)| width_of(data)),
            true_lengths: arrival.is_some_and(|(len, _)| len == PROBE_BYTES),
            self_read: read.is_ok_and(|seen| seen.completed),
            delivery_complete: delivered.is_ok_and(|seen| seen.completed),
            proves_arrival: proves_arrival(info.protocol(), info.provider()),
            rma_inject_bytes: if injects(info.provider()) {
                u32::try_from(self.subject.endpoint.inject_bytes()).unwrap_or(u32::MAX)
            } else {
                0
            },
            virtual_addresses: info.region_mode().virtual_addresses,
            largest_write: info.max_message(),
        })
    }

    fn source(&self) -> fabric::LocalBytes<'_, Data> {
        self.region.local(0, PROBE_BYTES).expect("the page holds both halves")
    }

    fn target(&self) -> RemoteBytes<Data> {
        let address = self.region.remote_base() + PROBE_BYTES as u64;
        RemoteBytes { address, key: self.region.key() }
    }

    /// Posts once (over EAGAIN, which the first contact costs) and polls until it completed and, if `wants_arrival`,
    /// arrived; or until the bound.
    fn attempt(
        &self,
        wants_arrival: bool,
        post: impl Fn(&Endpoint<Data>, Context) -> Result<Post, FabricError>,
    ) -> Result<Seen, FabricError> {
        let mut seen = Seen::default();
        while post(self.subject.endpoint, self.contexts.at(0))? == Post::Again {
            self.poll(&mut seen);
            if Instant::now() > self.deadline {
                return Ok(seen);
            }
        }
        while !seen.failed && !(seen.completed && (seen.arrival.is_some() || !wants_arrival)) {
            self.poll(&mut seen);
            if Instant::now() > self.deadline {
                break;
            }
        }
        Ok(seen)
    }

    fn poll(&self, seen: &mut Seen) {
        let mut batch = Batch::new();
        match self.subject.queue.read(&mut batch) {
            CqPoll::Empty => std::hint::spin_loop(),
            CqPoll::Completions(completions) => {
                for completion in completions {
                    // Only FI_REMOTE_WRITE tells an arrival: sockets sets FI_REMOTE_CQ_DATA on our own completion too.
                    if completion.is_remote_write() {
                        seen.arrival = Some((completion.len(), completion.immediate()));
                    } else {
                        seen.completed = true;
                    }
                }
            }
            CqPoll::Broken(error) => {
                log::debug!("the probe of {} saw {error}", self.subject.info.provider());
                seen.failed = true;
            }
            CqPoll::Failed(error) => {
                log::debug!("the probe of {} saw {error}", self.subject.info.provider());
                seen.failed = true;
            }
        }
    }
}

/// How many bytes of the immediate came through.
fn width_of(data: u64) -> ImmediateWidth {
    if data == PROBE_IMMEDIATE {
        ImmediateWidth::Eight
    } else if data & 0xffff_ffff == PROBE_IMMEDIATE & 0xffff_ffff {
        ImmediateWidth::Four
    } else {
        ImmediateWidth::None
    }
}

/// Whether a completion of a write proves that its bytes are at the peer. No write to oneself shows that: the NIC that
/// acknowledges is the one that waits. So the wire protocol decides (fi_endpoint(3), `protocol`): on that of a reliable NIC
/// the far side acknowledges, and a provider that speaks it for another one keeps its promises; software completes from a
/// queue of its own.
fn proves_arrival(protocol: u32, provider: &str) -> bool {
    // A layer has a protocol of its own whatever it stands on, and cxi a second one in later releases: there the name of
    // the core provider, which comes first, says who acknowledges.
    matches!(protocol, FI_PROTO_CXI | FI_PROTO_EFA)
        || matches!(core(provider), "cxi" | "efa" | "verbs")
}

/// Whether an injected write that fails is without harm. Over tcp it is reported, without a context (libfabric prov/tcp, up to 2.5 at least),
/// and rxm looks at the context of whatever fails: a process would not outlive the death of a peer that it writes to.
fn injects(provider: &str) -> bool {
    provider != "tcp;ofi_rxm"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_width_of_an_immediate_is_what_came_through() {
        assert_eq!(width_of(PROBE_IMMEDIATE), ImmediateWidth::Eight);
        assert_eq!(width_of(PROBE_IMMEDIATE & 0xffff_ffff), ImmediateWidth::Four);
        assert_eq!(width_of(0), ImmediateWidth::None);
    }

    #[test]
    fn only_rxm_over_tcp_ends_the_process_by_an_injected_write() {
        assert!(!injects("tcp;ofi_rxm"));
        for provider in ["tcp", "net", "verbs;ofi_rxm", "sockets", "shm", "cxi", "efa"] {
            assert!(injects(provider), "{provider}");
        }
    }

    #[test]
    fn only_hardware_that_acknowledges_proves_arrival() {
        let (sockets, rxm, rxd, xnet) = (6, 11, 12, 25);
        for (protocol, provider) in [
            (xnet, "net"),
            (xnet, "tcp"),
            (rxm, "tcp;ofi_rxm"),
            (sockets, "sockets"),
            (16, "shm"),
            (rxd, "udp;ofi_rxd"),
            (xnet, "another"),
        ] {
            assert!(!proves_arrival(protocol, provider), "{provider}");
        }
        for (protocol, provider) in [
            (FI_PROTO_CXI, "cxi"),
            (29, "cxi"),
            (FI_PROTO_EFA, "efa"),
            (rxm, "verbs;ofi_rxm"),
            (FI_PROTO_CXI, "another"),
            (FI_PROTO_EFA, "another"),
        ] {
            assert!(proves_arrival(protocol, provider), "{provider}");
        }
    }
}
