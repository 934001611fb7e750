//! The end of an endpoint's objects: what closes first, and what cannot be closed.
//!
//! Drained and fenced, everything closes by ownership: regions, libfabric's endpoints, queue and addresses, domain. Where a
//! NIC still has operations past the bound, or a peer may still write to memory of ours, two laws meet: no region closes
//! while an operation may touch it, and only the close of an endpoint ends its operations. Regions of a domain can outlive
//! the endpoints, which close first then. A region that is bound to an endpoint has to close before it (FI_MR_ENDPOINT,
//! fi_mr(3)): neither can while an operation of ours is in flight, and both leak with their memory, of that NIC alone.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use super::Endpoint;
use super::fence::Leaving;
use super::nics::{ControlRail, Nic};

impl Endpoint {
    /// Closes what can be closed. The log tells of NICs that leak.
    pub(crate) fn release(self: Box<Self>) {
        let label = self.label();
        let leaked = self.release_nics();
        if !leaked.is_empty() {
            log::warn!(
                "device {label}: {} cannot be closed before its operations end, and leaks with the memory registered there",
                leaked.join(", ")
            );
        }
    }

    /// Answers the labels of the NICs that leak.
    fn release_nics(self: Box<Self>) -> Vec<String> {
        // What is in flight is not known any more where a panic has left the tables as they are.
        let is_stuck = |nic: &Nic| self.broken || !nic.operations.is_empty();
        let stuck: Vec<bool> = self.nics.iter().map(is_stuck).collect();
        let bound = self.nics.iter().any(Nic::binds_regions);
        // A write of a peer's to a region that is closed breaks the rail it came on, at best.
        let exposed = self.receivers.iter().any(|receiver| receiver.exposes_any());
        if !stuck.contains(&true) && (bound || !exposed) {
            drop(self);
            return Vec::new();
        }
        if bound {
            return self.release_except(|rail| stuck.get(rail).is_some_and(|stuck| *stuck));
        }
        self.release_endpoints_first();
        Vec::new()
    }

    fn release_endpoints_first(mut self: Box<Self>) {
        self.slabs.let_rails_go();
        let nics = std::mem::take(&mut self.nics);
        let close = |Nic { data, control, operations, peers, queue, .. }| {
            drop(data);
            let control = control.map(|ControlRail { messages, queue, .. }| (messages, queue));
            (control, operations, peers, queue)
        };
        let rest: Vec<_> = nics.into_iter().map(close).collect();
        drop(self);
        drop(rest);
    }

    /// Everything but the libfabric objects of the NICs for which `leaks` says so, and the memory that they use.
    fn release_except(self: Box<Self>, leaks: impl Fn(usize) -> bool) -> Vec<String> {
        let Self { nics, slabs, landing, mut regions, leaving, .. } = *self;
        let mut shares = vec![landing];
        shares.extend(leaving.into_iter().map(Leaving::into_region));
        shares.extend(regions.keys().iter().filter_map(|key| regions.remove(key.0, key.1)));
        for share in shares {
            // The last share of each.
            if let Some(region) = Arc::into_inner(share) {
                region.release_except(&leaks);
            }
        }
        slabs.release_except(&leaks);
        let mut labels = Vec::new();
        for (rail, nic) in nics.into_iter().enumerate() {
            if leaks(rail) {
                labels.push(nic.label.clone());
                let _leaked = ManuallyDrop::new(nic);
            }
        }
        labels
    }
}
