//! A data rail: the endpoint that moves NCCL's bytes, and the posts it refused.

use std::sync::Arc;
use std::time::Duration;

use fabric::{
    Context, Data, Delivery, Endpoint, FabricError, HostBytes, LocalBytes, PeerAddress, Post,
    RemoteBytes,
};

use super::UserRegion;
use super::backlog::Backlog;
use super::operations::Operations;

/// One write of a part. Its operation names the region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartWrite {
    pub(crate) operation: u16,
    pub(crate) context: Context,
    pub(crate) address: u64,
    pub(crate) len: usize,
    pub(crate) remote: RemoteBytes<Data>,
    pub(crate) peer: PeerAddress,
    /// `None`: a plain write that completes on delivery, for the fin path.
    pub(crate) immediate: Option<u64>,
}

/// A write that was refused, with a share of what it reads.
#[derive(Debug)]
struct Waiting {
    write: PartWrite,
    region: Arc<UserRegion>,
}

/// An endpoint for data, its backlog and its counters.
#[derive(Debug)]
pub(crate) struct DataRail {
    backlog: Backlog<PeerAddress, Waiting>,
    endpoint: Arc<Endpoint<Data>>,
    /// Bytes of completed writes. Not beside their number: the two would be summed as a vector, which is longer.
    pub(crate) bytes: u64,
    /// Posts that libfabric refused for the moment.
    pub(crate) refused: u64,
    /// Completed writes.
    pub(crate) writes: u64,
}

impl DataRail {
    pub(crate) fn new(endpoint: Arc<Endpoint<Data>>, operations: u16) -> Self {
        Self {
            backlog: Backlog::new(usize::from(operations)),
            endpoint,
            bytes: 0,
            writes: 0,
            refused: 0,
        }
    }

    pub(crate) fn endpoint(&self) -> &Arc<Endpoint<Data>> {
        &self.endpoint
    }

    /// Posts `write` of `local`, which lies in `region`, or queues it behind others that wait. An error means that it was not
    /// posted and never will be.
    #[inline]
    pub(crate) fn post(
        &mut self,
        write: &PartWrite,
        local: LocalBytes<'_, Data>,
        region: &Arc<UserRegion>,
    ) -> Result<(), FabricError> {
        let first = self.backlog.is_empty() || !self.backlog.holds(write.peer);
        if first && try_post(&self.endpoint, write, local)? == Post::Accepted {
            return Ok(());
        }
        self.queue(write, region);
        Ok(())
    }

    #[cold]
    fn queue(&mut self, write: &PartWrite, region: &Arc<UserRegion>) {
        self.refused += 1;
        self.backlog.push(write.peer, Waiting { write: *write, region: Arc::clone(region) });
    }

    /// Posts a write that the provider copies, which has no completion. False: it was refused, or others wait before it.
    #[inline]
    pub(crate) fn inject(
        &mut self,
        local: HostBytes<'_>,
        remote: RemoteBytes<Data>,
        peer: PeerAddress,
        immediate: u64,
    ) -> bool {
        (self.backlog.is_empty() || !self.backlog.holds(peer))
            && self.inject_now(local, remote, peer, immediate)
    }

    /// [`DataRail::inject`], for who has seen that no post at all waits.
    #[inline(always)]
    pub(crate) fn inject_now(
        &mut self,
        local: HostBytes<'_>,
        remote: RemoteBytes<Data>,
        peer: PeerAddress,
        immediate: u64,
    ) -> bool {
        // Counted before, so that nothing has to be kept meanwhile.
        let len = local.len() as u64;
        self.bytes += len;
        self.writes += 1;
        let posted = self.endpoint.inject_write_with_immediate(local, remote, peer, immediate);
        let posted = matches!(posted, Ok(Post::Accepted));
        if !posted {
            self.count_out(len);
        }
        posted
    }

    /// A write of so many bytes has ended well.
    #[inline(always)]
    pub(crate) fn ended(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.writes += 1;
    }

    #[cold]
    #[inline(never)]
    fn count_out(&mut self, len: u64) {
        self.bytes -= len;
        self.writes -= 1;
    }

    /// Posts a write of a part, where no post to the peer waits. False: it was refused; why is for [`DataRail::post`] to say.
    #[inline(always)]
    pub(crate) fn write_first(
        &mut self,
        local: LocalBytes<'_, Data>,
        remote: RemoteBytes<Data>,
        peer: PeerAddress,
        immediate: u64,
        context: Context,
    ) -> bool {
        let endpoint = &self.endpoint;
        self.is_clear_to(peer)
            && matches!(
                endpoint.write_with_immediate(
                    local,
                    remote,
                    peer,
                    immediate,
                    Delivery::Default,
                    context
                ),
                Ok(Post::Accepted)
            )
    }

    /// Whether no post waits.
    #[inline]
    pub(crate) fn is_clear(&self) -> bool {
        self.backlog.is_empty()
    }

    /// Whether no post to `peer` waits. Those to others are in nobody's way: a peer that is gone may refuse for long.
    #[inline(always)]
    pub(crate) fn is_clear_to(&self, peer: PeerAddress) -> bool {
        self.backlog.is_empty() || !self.backlog.holds(peer)
    }

    /// Tries what waits on data rail `rail`. `failed` gets the writes that will never be posted.
    pub(crate) fn flush(&mut self, rail: usize, mut failed: impl FnMut(PartWrite, FabricError)) {
        let endpoint = &self.endpoint;
        let post = |Waiting { write, region }: &Waiting| {
            let local = region.local(rail, write.address, write.len);
            let outside = FabricError { call: "a part outside of its region", code: -22 };
            try_post(endpoint, write, local.ok_or(outside)?)
        };
        self.backlog.flush(post, |waiting, error| failed(waiting.write, error));
    }

    /// Takes out the writes of a region that wait.
    pub(crate) fn give_up(&mut self, region: &Arc<UserRegion>) -> Vec<PartWrite> {
        writes(self.backlog.give_up(|waiting| Arc::ptr_eq(&waiting.region, region)))
    }

    /// Takes out the writes of the sender in this slot that wait.
    pub(crate) fn give_up_sender(&mut self, operations: &Operations, slot: u16) -> Vec<PartWrite> {
        let of_sender = |waiting: &Waiting| operations.is_part_of(waiting.write.operation, slot);
        writes(self.backlog.give_up(of_sender))
    }

    /// `elapsed` has passed: takes out what peers have refused for more than `bound`.
    pub(crate) fn tick(&mut self, elapsed: Duration, bound: Duration) -> Vec<PartWrite> {
        writes(self.backlog.tick(elapsed, bound))
    }
}

fn writes(waiting: Vec<Waiting>) -> Vec<PartWrite> {
    waiting.into_iter().map(|waiting| waiting.write).collect()
}

#[inline]
fn try_post(
    endpoint: &Endpoint<Data>,
    write: &PartWrite,
    local: LocalBytes<'_, Data>,
) -> Result<Post, FabricError> {
    let PartWrite { context, remote, peer, immediate, .. } = *write;
    match immediate {
        Some(immediate) => endpoint.write_with_immediate(
            local,
            remote,
            peer,
            immediate,
            Delivery::Default,
            context,
        ),
        // Nothing is delivered by an empty write, and shm 1.17 waits for ever for the proof of it.
        None if write.len == 0 => endpoint.write(local, remote, peer, Delivery::Default, context),
        None => endpoint.write(local, remote, peer, Delivery::Complete, context),
    }
}
