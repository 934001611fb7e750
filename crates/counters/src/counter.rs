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
    /// Messages whose end test has reported to NCCL.
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
    /// Calls of isend that had to be repeated because the peer had posted no receive for the message.
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
    /// Milliseconds in which a rail was measured to be much slower than others to its peer, and got less.
    SlowMillis = "slow_millis";
}

impl Counter {
    /// Its place among the counters of a row.
    #[inline]
    pub const fn place(self) -> usize {
        self as usize
    }
}

const _: () = assert!(Counter::ALL.len() <= COUNTERS);

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::key::Kind;

    /// Its order is that of the words of a row.
    #[test]
    fn the_page_about_counters_has_all_of_them_in_their_order() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/counters.md");
        let page = fs::read_to_string(path).expect("the page is there");
        let (_, section) = page.split_once("\n## What is counted\n").expect("it has the table");
        let (section, _) = section.split_once("\n## ").expect("others follow");
        let row = |line: &str| -> Option<(String, String)> {
            let mut cells = line.strip_prefix("| `")?.split(" | ");
            let name = cells.next()?.strip_suffix('`')?;
            Some((name.to_owned(), cells.next()?.to_owned()))
        };
        let on_page: Vec<_> = section.lines().filter_map(row).collect();
        let rows = |counter: &Counter| {
            let of = |kind: Kind| kind.counters().contains(counter);
            match (of(Kind::Messages), of(Kind::Rail)) {
                (true, true) => "both",
                (false, true) => "parts",
                (true, false) => "messages",
                // The histogram's sum, which stands beside the counters that are shown.
                (false, false) if *counter == Counter::LatencyNanos => "messages",
                (false, false) => "none",
            }
        };
        let expected: Vec<_> = Counter::ALL
            .iter()
            .map(|counter| (counter.name().to_owned(), rows(counter).to_owned()))
            .collect();
        assert_eq!(on_page, expected);
    }
}
