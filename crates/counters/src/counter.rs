//! Every counter: its place, its name, and what it counts.

use crate::layout::COUNTERS;

macro_rules! counters {
    ($( $(#[doc = $doc:literal])+ $counter:ident = $name:literal; )+) => {
        /// A counter of a row.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Counter { $( $(#[doc = $doc])+ $counter, )+ }

        impl Counter {
            /// All of them, in the order of their places.
            pub const ALL: &[Self] = &[ $( Self::$counter, )+ ];

            /// The name in files.
            pub const fn name(self) -> &'static str {
                match self { $( Self::$counter => $name, )+ }
            }

            /// What it counts, in a sentence.
            pub const fn doc(self) -> &'static str {
                match self { $( Self::$counter => concat!($($doc),+).trim_ascii(), )+ }
            }
        }
    };
}

counters! {
    /// Messages that NCCL was told the end of.
    Messages = "messages";
    /// Bytes of those messages; of a rail, bytes of parts: sent ones as they are posted, received ones where the provider says lengths.
    Bytes = "bytes";
    /// Messages that travelled in a packet of the control channel.
    Inline = "inline";
    /// Parts of messages on a data rail.
    Parts = "parts";
    /// Posts of parts that libfabric refused for the moment.
    Refused = "refused";
    /// Parts that ended with an error.
    Failed = "failed";
    /// Packets that were taken for lost and written again.
    Retries = "retries";
    /// Parts that moved to another rail because theirs failed.
    Failovers = "failovers";
    /// Calls of isend that had to be repeated because the peer had posted no receive.
    WaitsReceive = "waits_receive";
    /// The same because as many messages without a receive were sent as may be.
    WaitsCredit = "waits_credit";
    /// The same because packets, records or parts had no room.
    WaitsRoom = "waits_room";
    /// Calls of irecv that had to be repeated because the window was full.
    WaitsWindow = "waits_window";
    /// The same because completion queues had no room for more arrivals.
    WaitsQueue = "waits_queue";
    /// Requests and calls that waited for longer than IRONRAIL_STALL_REPORT_MS.
    Stalls = "stalls";
    /// Nanoseconds of the latencies in the histogram, summed.
    LatencyNanos = "latency_nanos";
}

impl Counter {
    /// Its place among the counters of a row.
    #[inline]
    pub const fn place(self) -> usize {
        self as usize
    }
}

const _: () = assert!(Counter::ALL.len() <= COUNTERS);
