//! Counts this process's open libfabric objects, so that a test can check that none is left.

use crate::atomic::AtomicUsize;
use crate::lockless::Count;

/// The open objects of each class, and the closes that failed, in the whole process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Open memory regions.
    pub regions: usize,
    /// Open endpoints, of both kinds.
    pub endpoints: usize,
    /// Open completion queues.
    pub queues: usize,
    /// Open event queues.
    pub event_queues: usize,
    /// Open address vectors.
    pub address_vectors: usize,
    /// Open domains.
    pub domains: usize,
    /// Open fabrics.
    pub fabrics: usize,
    /// Mappings of [`Pages`](crate::Pages).
    pub pages: usize,
    /// Objects whose close failed, which leak.
    pub failed_closes: usize,
}

impl Census {
    /// Whether nothing is open. Objects whose close failed do not count.
    pub fn is_empty(&self) -> bool {
        let &Self {
            regions,
            endpoints,
            queues,
            event_queues,
            address_vectors,
            domains,
            fabrics,
            pages,
            failed_closes: _,
        } = self;
        let in_domains = regions + endpoints + queues + address_vectors;
        in_domains + event_queues + domains + fabrics + pages == 0
    }
}

/// The current counts. Each is exact, but they are not read at one instant.
pub fn census() -> Census {
    Census {
        regions: Class::Region.count(),
        endpoints: Class::Endpoint.count(),
        queues: Class::Queue.count(),
        event_queues: Class::EventQueue.count(),
        address_vectors: Class::AddressVector.count(),
        domains: Class::Domain.count(),
        fabrics: Class::Fabric.count(),
        pages: Class::Pages.count(),
        failed_closes: FAILED_CLOSES.value(),
    }
}

/// The classes that are counted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Class {
    Region,
    Endpoint,
    Queue,
    EventQueue,
    AddressVector,
    Domain,
    Fabric,
    Pages,
}

impl Class {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Region => "memory region",
            Self::Endpoint => "endpoint",
            Self::Queue => "completion queue",
            Self::EventQueue => "event queue",
            Self::AddressVector => "address vector",
            Self::Domain => "domain",
            Self::Fabric => "fabric",
            Self::Pages => "mapping",
        }
    }

    pub(crate) fn opened(self) {
        OPEN[self as usize].up();
    }

    pub(crate) fn closed(self) {
        OPEN[self as usize].down();
    }

    fn count(self) -> usize {
        OPEN[self as usize].value()
    }
}

pub(crate) fn close_failed() {
    FAILED_CLOSES.up();
}

static OPEN: [Count; 8] = [const { Count(AtomicUsize::new(0)) }; 8];
static FAILED_CLOSES: Count = Count(AtomicUsize::new(0));
