//! The faults of the reference plugin, and the behaviours that detect them: at least one fault for each behaviour.

/// One way to break the contract.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fault {
    /// The value of REFERENCE_FAULT; reference.c explains its words.
    pub(super) words: &'static str,
    pub(super) breaks: &'static str,
    /// The behaviours that must fail. Others may.
    pub(super) found_by: &'static [&'static str],
    /// A behaviour that must pass: the plugin is not broken altogether.
    pub(super) spares: &'static str,
    pub(super) table: u32,
    pub(super) devices: u32,
    /// The value of REFERENCE_GPU, if the test has GPUs.
    pub(super) gpus: Option<&'static str>,
    /// Further arguments.
    pub(super) arguments: &'static str,
    /// The plugin is built with a reference to a function that no library has.
    pub(super) unresolved: bool,
}

const fn fault(
    words: &'static str,
    breaks: &'static str,
    found_by: &'static [&'static str],
) -> Fault {
    let (table, devices, gpus, arguments) = (12, 1, None, "--timeout 10");
    let (spares, unresolved) = ("connection-to-oneself", false);
    Fault { words, breaks, found_by, spares, table, devices, gpus, arguments, unresolved }
}

impl Fault {
    /// The fault breaks so much that only this behaviour passes.
    const fn sparing(self, spares: &'static str) -> Self {
        Self { spares, ..self }
    }

    const fn by_table(self, table: u32) -> Self {
        Self { table, ..self }
    }

    const fn on_two_devices(self) -> Self {
        Self { devices: 2, ..self }
    }

    const fn on_gpus(self) -> Self {
        Self { gpus: Some("1"), spares: "flush-has-an-end", ..self }
    }

    const fn with(self, arguments: &'static str) -> Self {
        Self { arguments, ..self }
    }
}

/// Needs neither a connection nor messages.
const A_NAME: &str = "name-is-a-word";

/// Faults by chapter; each chapter has a test.
pub(super) const CHAPTERS: &[(&str, &[Fault])] = &[
    ("Loading", LOADING),
    ("Properties", PROPERTIES),
    ("Connections", CONNECTIONS),
    ("Registration", REGISTRATION),
    ("Messages", MESSAGES),
    ("Requests", REQUESTS),
    ("Groups", GROUPS),
    ("Short and long", SHORT_AND_LONG),
    ("LL and LL128", LINES),
    ("Flush and GPU memory", FLUSH),
    ("Close", CLOSE),
    ("Threads", THREADS),
    ("Silence and death", SILENCE),
];

/// What is no fault: the behaviour in `spares` passes.
pub(super) const HARMLESS: &[Fault] = &[
    fault("two-planes", "each device connects to its own plane only, and says so", &[])
        .sparing("every-device-connects")
        .on_two_devices(),
    fault("props-maxCollBytes=0", "maxCollBytes is 0: NCCL reads it in CollNet's table only", &[])
        .sparing("properties-size-limits"),
    fault(
        "errs-at-the-oldest,late-acknowledgement",
        "the error of a connection is that of its oldest send, which is open until then",
        &[],
    )
    .sparing("too-long-send-is-contained"),
    fault("nap-init=400", "init takes 0.4 s", &[]).sparing("memory-is-flat").with("--timeout 30"),
];

const LOADING: &[Fault] = &[
    Fault {
        unresolved: true,
        ..fault(
            "",
            "a function is in no library (the plugin is built with -DUNRESOLVED)",
            &["load-with-everything-resolved"],
        )
        .sparing("")
    },
    fault("table-in-code", "the table lies where code does", &["load-table-is-data"]),
    fault("name-after-init", "the name changes with init", &["load-beside-itself", A_NAME]),
    fault("name-with-a-line", "the name has a line's end in it", &[A_NAME]),
    fault(
        "another-name-in-v9",
        "one table has a name of its own",
        &["name-is-the-same-in-every-table"],
    ),
    fault(
        "finalize-all",
        "the end of a communicator is the end of all",
        &["init-once-per-communicator"],
    ),
    fault("devices-grow", "there are more devices at each call", &["devices-are-counted"]),
    fault("finalize-leak", "finalize keeps what init opened", &["finalize-frees-what-init-made"]),
    fault(
        "finalize-without-listeners",
        "finalize is an error while a listener is open",
        &["finalize-after-abandoned-listen"],
    ),
    fault(
        "finalize-without-connects",
        "finalize is an error while a connect is pending",
        &["finalize-after-abandoned-connect", "finalize-after-aborted-connect"],
    ),
    fault(
        "finalize-without-requests",
        "finalize is an error while requests are outstanding",
        &["finalize-with-everything-left-open"],
    ),
    fault(
        "loads-once",
        "init fails when the library is loaded a second time",
        &["unload-and-reload"],
    ),
    fault(
        "thread-stays",
        "a thread is not ended before the library is closed",
        &["unload-leaves-nothing-running"],
    )
    .sparing("load-table-is-data"),
    fault(
        "hints-are-counts",
        "setNetAttr uses -1, which is undefined, as a number",
        &["hints-are-taken"],
    ),
    fault("fork-hangs-up", "a forked child closes its parent's connections", &["fork-in-between"]),
    fault("keep-bytes=8192", "init takes 8 KiB that are never freed", &["memory-is-flat"])
        .with("--timeout 60"),
    fault(
        "nap-init=400,keep-bytes=65536",
        "init is slow, and takes 64 KiB that are never freed",
        &["memory-is-flat"],
    )
    .with("--timeout 30"),
    fault("keep-mapping", "init maps a page that is never unmapped", &["memory-is-flat"])
        .with("--timeout 60"),
];

const PROPERTIES: &[Fault] = &[
    fault(
        "unwritten-property",
        "maxMultiRequestSize and latency are left as they were",
        &["properties-write-every-field", "properties-requests-in-one"],
    ),
    fault("one-name", "two devices have one name", &["properties-name-each-device-once"]),
    fault("props-change", "speed is another at each call", &["properties-stay-the-same"]),
    fault("finalize-takes-names", "names go with finalize", &["properties-strings-live-on"]),
    fault("props-path", "pciPath leads over a link", &["properties-pci-path-is-real"]),
    fault("props-ptrSupport=2", "ptrSupport lacks host memory", &["properties-host-memory"]),
    fault("props-speed=0", "speed is 0", &["properties-speed-and-latency"]),
    fault("props-maxRecvs=65", "maxRecvs is more than NCCL has room for", &["properties-counts"]),
    fault("props-maxComms=0", "maxComms is 0", &["properties-counts"]),
    fault("one-port", "two devices are one port", &["properties-ports-differ"]),
    fault(
        "props-netDeviceType=1",
        "netDeviceType is UNPACK without a version",
        &["properties-device-type"],
    ),
    fault("props-regIsGlobal=2", "regIsGlobal is 2", &["properties-flags"]),
    fault("props-forceFlush=3", "forceFlush is 3", &["properties-flags"]),
    fault("props-maxP2pBytes=0", "maxP2pBytes is 0", &["properties-size-limits"]),
    fault("props-vProps=5", "vProps names a device that is not there", &["properties-parts"]),
    fault("props-railId=-2", "railId is -2", &["properties-rail-and-plane"]),
    fault(
        "false-global",
        "regIsGlobal is 1, and a region serves its own comm only",
        &["properties-global-regions-are-global"],
    ),
    fault(
        "no-dmabuf-call,props-ptrSupport=5",
        "ptrSupport has DMABUF, the table no regMrDmaBuf",
        &["properties-dmabuf-has-its-call"],
    ),
];

const CONNECTIONS: &[Fault] = &[
    fault("nap-listen=1000", "listen takes a second", &["listen-returns-a-comm-at-once"]),
    fault(
        "handle-overrun",
        "listen writes byte 128 of the handle",
        &["handle-stays-within-128-bytes"],
    ),
    fault(
        "wide-handle",
        "connect needs the address at which listen wrote the handle",
        &["handle-is-copied-bytes"],
    )
    .sparing(A_NAME),
    fault(
        "accept-writes-handle",
        "accept writes to where listen wrote the handle",
        &["handle-is-copied-bytes"],
    )
    .sparing(A_NAME),
    fault(
        "shared-listener",
        "all listeners are one",
        &["handles-differ", "listeners-are-independent"],
    ),
    fault("hang", "closeListen does not return", &["listener-never-connected"])
        .sparing("devices-are-counted")
        .with("--timeout 2"),
    fault(
        "accept-waits=1000",
        "accept waits a second for a peer",
        &["accept-answers-null-until-connected"],
    ),
    fault(
        "accept-waits=100",
        "each call of accept waits 0.1 s for a peer",
        &["accept-answers-null-until-connected"],
    ),
    fault(
        "block-in-connect",
        "connect returns when the peer has accepted",
        &["connect-does-not-block", "connect-before-accept"],
    )
    .sparing(A_NAME)
    .with("--timeout 3"),
    fault("nap-connect=1000", "connect takes a second", &["connect-does-not-block"]),
    fault("nap-connect=300", "each call of connect sleeps for 0.3 s", &["connect-does-not-block"]),
    fault(
        "nap-under-lock=1000",
        "connect takes a second, and a lock that other threads need",
        &["connect-does-not-block"],
    ),
    fault(
        "accept-gives-up",
        "a listener without a connection for 60 ms is at its end",
        &["accept-before-connect"],
    )
    .sparing(A_NAME),
    fault("not-to-oneself", "a process cannot connect to itself", &["connection-to-oneself"])
        .sparing("message-of-no-bytes"),
    fault(
        "device-handle-always",
        "connect and accept write a device handle where there is no place for it",
        &["device-handle-place-may-be-null"],
    )
    .sparing(A_NAME),
    fault("listener-of-one", "a listener gives one connection", &["listener-takes-ten-in-turn"]),
    fault(
        "accept-the-last",
        "of connections that wait together accept gives the last",
        &["connects-race-on-one-listener"],
    )
    .with("--timeout 4"),
    fault(
        "accept-at-once",
        "accept gives a comm whose connect has not returned yet",
        &["connects-race-on-two-listeners"],
    )
    .with("--timeout 4"),
    fault(
        "close-with-its-listener",
        "closeListen closes what the listener has accepted",
        &["close-listen-right-after-accept"],
    )
    .sparing(A_NAME),
    fault(
        "die-of-the-unaccepted",
        "closeListen crashes on a connection that was not accepted",
        &["abandoned-listen-is-harmless"],
    ),
    fault(
        "one-connect",
        "one connect at a time: an abandoned one blocks all others",
        &["abandoned-connect-is-harmless"],
    )
    .with("--timeout 4"),
    fault("comms=100", "there are 100 comms at most", &["many-connections"]),
    fault(
        "same-device-only",
        "devices connect to devices of their own number only",
        &["every-device-connects"],
    )
    .on_two_devices(),
    fault(
        "trust-handle",
        "connect goes where a foreign handle says",
        &["foreign-handle-is-refused"],
    ),
    fault("leak", "a closed comm keeps its socket", &["connections-leak-no-descriptors"]),
    fault(
        "accept-after-connects",
        "accept waits for this process's connects, and they for the peer's accept",
        &["both-directions-from-one-thread"],
    )
    .sparing(A_NAME)
    .with("--timeout 3"),
];

const REGISTRATION: &[Fault] = &[
    fault(
        "a-range-once",
        "a range that was deregistered cannot be registered again",
        &["register-host-memory"],
    ),
    fault("whole-pages", "a range must begin on a page", &["register-any-range"]),
    fault("no-overlap", "ranges must not overlap", &["register-sub-ranges"]),
    fault("one-owner", "a buffer belongs to one comm", &["register-on-many-comms"]),
    fault("regions=32", "a comm has 32 regions at most", &["register-many-times"]),
    fault("region-bytes=33554432", "a region has 32 MiB at most", &["register-a-large-allocation"]),
    fault("region-bytes=2147483648", "a region has 2 GiB at most", &["register-two-gib"])
        .with("--timeout 30 --large"),
    fault("fail-regMr,busy", "regMr is an error while messages move", &["register-during-traffic"])
        .sparing("load-beside-itself"),
    fault(
        "fail-deregMr,busy",
        "deregMr is an error while requests are outstanding",
        &["deregister-in-flight-then-close", "deregistered-memory-is-left-alone"],
    ),
    fault(
        "deregMr-errs",
        "deregMr says that a peer may use the memory which is there and answers",
        &[
            "deregister-in-flight-then-close",
            "deregistered-memory-is-left-alone",
            "close-of-one-link-leaves-the-other",
        ],
    ),
    fault("deregMr-needs-a-region", "deregMr of null is an error", &["deregister-bears-null"]),
    fault(
        "write-after-deregMr",
        "what was on its way lands after deregMr",
        &["deregistered-memory-is-left-alone", "abort-leaves-other-communicators-alone"],
    )
    // Where memory is freed after deregMr, the late write hits what is there then.
    .sparing(A_NAME),
];

const MESSAGES: &[Fault] = &[
    fault(
        "corrupt,size=0,room=0",
        "an empty message in a receive of no bytes has a wrong size",
        &["message-of-no-bytes"],
    ),
    fault("corrupt,size=211", "messages of 211 bytes are wrong", &["message-of-every-small-size"]),
    fault(
        "corrupt,size=32769",
        "messages of 32769 bytes are wrong",
        &["message-sizes-around-powers"],
    ),
    fault(
        "corrupt,from=4194307",
        "messages of more than 4 MiB are wrong",
        &["message-of-four-mib-and-three"],
    ),
    fault("bytes-at-most=1073741823", "isend takes less than 1 GiB", &["message-of-a-gib"])
        .with("--timeout 60 --large"),
    fault("corrupt,odd", "messages to odd addresses are wrong", &["message-at-any-address"]),
    fault(
        "corrupt,exact,size=65536",
        "64 KiB that fill their receive are wrong",
        &["receive-of-the-exact-size"],
    ),
    fault(
        "size-off-by-one",
        "test reports one byte more than arrived",
        &["size-is-reported", "receive-larger-than-its-message", "group-sizes-are-reported-each"],
    )
    .sparing("test-bears-null-sizes"),
    fault(
        "second-size",
        "test of a send writes two sizes, where NCCL has room for one",
        &["size-is-reported"],
    ),
    fault(
        "spill",
        "the byte behind a receive is written",
        &["receive-of-the-exact-size", "receive-writes-only-its-message"],
    )
    .sparing(A_NAME),
    fault("pad", "messages are written in words of 8 bytes", &["receive-writes-only-its-message"])
        .sparing("test-in-any-order"),
    fault(
        "write-again",
        "a receive's first byte is written once more after it was done",
        &["nothing-lands-after-done"],
    ),
    fault(
        "forgets-after=150",
        "a message whose receive comes 150 ms late is lost",
        &["receive-posted-late"],
    )
    .sparing(A_NAME)
    .with("--timeout 4"),
    fault(
        "waits-at-most=150",
        "a receive whose message comes 150 ms late is an error",
        &["receive-posted-first"],
    )
    .sparing(A_NAME),
    fault(
        "reorder",
        "occasionally a message takes the second receive posted",
        &["order-of-a-thousand", "receive-posted-first"],
    ),
    fault(
        "outstanding=1",
        "one request is outstanding at a time",
        &[
            "window-of-eight",
            "window-of-thirty-two",
            "window-of-thirty-two-large",
            "transfer-of-ten-size-pairs",
            "groups-outstanding-together",
            "groups-in-a-window-of-eight",
        ],
    ),
    fault("outstanding=7", "seven requests are outstanding", &["window-of-eight"]),
    fault("outstanding=31", "31 requests are outstanding", &["window-of-thirty-two"]),
    fault(
        "room-at-most=4194304",
        "receives of 4 MiB are outstanding",
        &["window-of-thirty-two-large"],
    ),
    fault(
        "keep-buffer",
        "a send is read from its buffer some time after it was done",
        &["send-buffer-is-free-after-done"],
    )
    .sparing(A_NAME),
    fault("idle=900", "a comm that is not used for 0.9 s is an error", &["traffic-after-a-pause"])
        .sparing(A_NAME),
    fault(
        "corrupt,beside",
        "messages of one comm are wrong while another's are under way",
        &["links-side-by-side"],
    )
    .sparing(A_NAME),
    fault(
        "truncate",
        "a message longer than its receive is truncated silently",
        &["too-long-send-is-contained", "too-long-send-leaves-others-alone"],
    ),
    fault(
        "overflow",
        "a message longer than its receive is written whole",
        &["too-long-send-is-contained"],
    ),
    fault(
        "refuse-in-silence",
        "a message longer than its receive is an error that the sender does not get",
        &["too-long-send-is-contained", "too-long-send-leaves-others-alone"],
    ),
    fault(
        "refuse-at-the-sender",
        "a message longer than its receive is an error at the sender, and the receiver waits on",
        &["too-long-send-is-contained", "too-long-send-leaves-others-alone"],
    ),
    fault("one-tag", "a connection has one tag", &["tags-of-a-rank"]),
    fault("tags-below=65536", "a tag has 16 bits", &["tags-above-16-bits"]),
    fault("tags-from-zero", "a tag below zero is an error", &["tags-below-zero"]),
];

const REQUESTS: &[Fault] = &[
    fault(
        "stale-request",
        "isend that cannot post leaves *request as it was",
        &["request-null-when-not-now", "isend-overwrites-an-old-request"],
    ),
    fault(
        "leave-one",
        "irecv leaves (void*)1 in *request",
        &["irecv-overwrites-its-word", "optional-completion-still-delivers"],
    ),
    fault(
        "need-sizes",
        "test writes sizes without a check of the pointer",
        &["test-bears-null-sizes"],
    ),
    fault(
        "done-unwritten",
        "test writes *done only when it is 1",
        &["test-writes-done-every-time"],
    ),
    fault(
        "tests-at-most=4000",
        "a receive that was tested 4000 times is an error",
        &["test-is-patient"],
    )
    .sparing(A_NAME),
    fault(
        "forget-the-untested=60000",
        "a large message that is over before its request is tested is lost",
        &["test-of-the-oldest-is-enough"],
    )
    .sparing("message-of-no-bytes"),
    fault("oldest-only", "only the oldest request can be tested", &["test-in-any-order"]),
    fault(
        "stalls",
        "a message that is not polled for 15 ms is an error",
        &["test-seldom-is-enough"],
    )
    .sparing(A_NAME),
    fault(
        "parents-always",
        "irecv reads profiler handles where there are none",
        &["profiler-handles-may-be-null"],
    ),
    fault("sizes-as-size_t", "irecv of v8 reads its sizes as size_t", &["sizes-are-int-up-to-v8"])
        .by_table(8)
        .sparing(A_NAME),
    fault("sizes-as-int", "irecv of v9 reads its sizes as int", &["sizes-are-size-t-since-v9"]),
];

const GROUPS: &[Fault] = &[
    fault(
        "ignore-tags",
        "a message takes the first free place of the first receive",
        &[
            "group-of-every-size",
            "groups-outstanding-together",
            "rotated-tags-fill-the-queue",
            "every-mixture-over-two-groups",
        ],
    ),
    fault("corrupt,count=6", "messages of groups of six are wrong", &["groups-of-differing-sizes"]),
    fault(
        "last-place-first",
        "of places with one tag the last is taken first",
        &["group-with-one-tag"],
    ),
    fault(
        "first-group-only",
        "messages are matched with the first group only",
        &["groups-with-different-tags"],
    ),
    fault("cut-tags", "of a tag, only 16 bits count", &["group-tags-above-16-bits"]),
    fault("tags-without-sign", "a tag and its negative are one", &["group-tags-below-zero"]),
    fault(
        "no-size-of-the-empty",
        "the size of an empty message of a group is not reported",
        &["group-with-empty-messages"],
    ),
    fault(
        "corrupt,group,from=1048576",
        "large messages of groups are wrong",
        &["group-of-large-messages"],
    ),
    fault(
        "singles-first",
        "a single receive comes before a group that was posted earlier",
        &["groups-and-singles-in-turn"],
    ),
    fault("outstanding=6", "six groups are outstanding", &["groups-in-a-window-of-eight"]),
];

const SHORT_AND_LONG: &[Fault] = &[
    fault(
        "corrupt,early,to=4100",
        "short messages that come before their receives are wrong",
        &["early-short-sends"],
    )
    .sparing(A_NAME),
    fault(
        "corrupt,queued=60",
        "when 60 messages wait for their receives, one is wrong",
        &["early-sends-fill-the-queue"],
    ),
    fault(
        "one-waits",
        "a short message waits for one that goes with it",
        &["short-sends-one-at-a-time"],
    )
    .sparing(A_NAME)
    .with("--timeout 2"),
    fault("corrupt,size=8185", "messages of 8185 bytes are wrong", &["sizes-around-eager-limits"]),
    fault(
        "short-overtakes",
        "short messages overtake long ones that wait for their receives",
        &["early-short-and-long-in-turn", "order-of-a-tag-over-four-groups"],
    ),
    fault("corrupt,size=131072", "messages of 128 KiB are wrong", &["transfer-of-ten-size-pairs"]),
    fault(
        "corrupt,early,group,place=1",
        "the second message of a group that comes before it is wrong",
        &["early-sends-of-a-group", "every-mixture-over-two-groups"],
    ),
    fault(
        "corrupt,early,group,from=100000",
        "a long message that comes before its group is wrong",
        &["early-short-and-long-in-a-group"],
    ),
    fault(
        "first-group-only,early",
        "a message that comes before its group must be the first one's",
        &["early-sends-of-a-later-group"],
    ),
    fault(
        "corrupt,count=8,from=100007",
        "long messages of groups of eight are wrong",
        &["mixtures-over-three-groups"],
    ),
    fault(
        "corrupt,room=4160,group",
        "groups of 4 KiB each are wrong",
        &["groups-uniform-and-varied-in-turn"],
    ),
    fault(
        "corrupt,after-a-group-of=8,count=3",
        "a group of three after one of eight is wrong",
        &["groups-of-an-alltoall"],
    ),
    fault(
        "corrupt,early,after-a-group-of=1,count=8",
        "what comes before its group of eight, after a single receive, is wrong",
        &["early-sends-over-a-single-and-a-group", "singles-and-groups-with-early-sends"],
    ),
];

const LINES: &[Fault] = &[
    fault(
        "words-backwards",
        "a word of LL shows its flag before its data",
        &["ll-flag-comes-with-its-data"],
    ),
    Fault {
        gpus: Some("1"),
        ..fault(
            "lines-backwards",
            "a line of LL128 shows its flag before its data",
            &["ll128-flag-comes-after-its-data"],
        )
    },
];

const FLUSH: &[Fault] = &[
    fault("crash-iflush", "iflush crashes", &["flush-has-an-end", "flush-between-messages"]),
    fault("fail-iflush,after=3", "the third flush is an error", &["flush-between-messages"]),
    fault(
        "no-flush",
        "iflush returns null, and received bytes stay invisible",
        &["gpu-flush-makes-visible", "gpu-memory-in-groups", "gpu-memory-carries-messages"],
    )
    .on_gpus(),
    fault("flush-first", "iflush flushes its first buffer only", &["gpu-memory-in-groups"])
        .on_gpus(),
    fault(
        "flush-early",
        "the flush's request is done before the bytes are visible",
        &["gpu-flush-makes-visible"],
    )
    .on_gpus(),
    fault(
        "late-descriptor",
        "regMrDmaBuf uses its descriptor only at the first use of the region",
        &["gpu-dmabuf-registers"],
    )
    .on_gpus(),
    fault(
        "refuse-gpu",
        "regMr of device memory is an error, whatever ptrSupport says",
        &["gpu-memory-registers", "gpu-memory-carries-messages"],
    )
    .on_gpus(),
    fault(
        "ranges-of-gpu",
        "regMr of device memory takes whole allocations only",
        &["gpu-memory-registers"],
    )
    .on_gpus(),
    fault(
        "old-view",
        "of two regions at one address, the second is where the first was",
        &["gpu-address-used-again"],
    )
    .on_gpus(),
    fault(
        "copy-gpu",
        "short messages are copied from device memory by the CPU",
        &["gpu-memory-registers", "gpu-memory-carries-messages"],
    )
    .on_gpus(),
    Fault {
        gpus: Some(""),
        ..fault(
            "assume-gpu",
            "regMr reads device memory, though ptrSupport does not say so",
            &["gpu-memory-is-refused"],
        )
    },
    fault(
        "alone-on-gpu",
        "device memory is registered once at a time",
        &["gpu-buffer-on-many-comms"],
    )
    .on_gpus(),
    fault(
        "show-at-close",
        "bytes in device memory become visible when it is deregistered",
        &["gpu-deregister-in-flight"],
    )
    .on_gpus(),
];

const CLOSE: &[Fault] = &[
    fault(
        "fail-closeRecv,busy",
        "closeRecv is an error while requests are outstanding",
        &["close-with-requests-in-flight"],
    ),
    fault(
        "lose-last",
        "a send is done before its bytes are with the kernel, and a close forgets them",
        &[
            "close-right-after-the-last-send",
            "exit-right-after-the-last-send",
            "silence-after-small-sends",
            "silence-after-large-sends",
        ],
    )
    .sparing(A_NAME)
    .with("--timeout 5"),
    fault(
        "abrupt-close",
        "a close resets its connection, and what the kernel still holds is gone",
        &["close-right-after-the-last-send"],
    )
    // Its receiver takes 1 KiB in each call, and so carries no megabytes in time.
    .sparing("close-sender-first"),
    fault("close-needs-a-comm", "a close of null is an error", &["close-bears-null"]),
    fault(
        "closeRecv-last",
        "closeRecv is an error while the sender's end is open",
        &["close-receiver-first"],
    ),
    fault(
        "closeSend-last",
        "closeSend is an error while the receiver's end is open",
        &["close-sender-first"],
    )
    .sparing(A_NAME),
    fault(
        "close-newest-first",
        "comms must be closed in order, the newest first",
        &["close-in-any-order"],
    ),
    fault(
        "fail-closeSend,ended",
        "closeSend is an error when the peer has gone",
        &["close-while-the-peer-sends"],
    ),
    fault(
        "abort-breaks-all",
        "a comm that is closed with requests outstanding breaks all others",
        &["close-of-one-link-leaves-the-other", "abort-leaves-other-communicators-alone"],
    ),
];

const THREADS: &[Fault] = &[
    fault(
        "regMr-alone",
        "regMr is an error while another thread is in the plugin",
        &["threads-service-beside-progress"],
    ),
    fault(
        "one-thread",
        "two threads in the plugin at once are an error",
        &["threads-of-four-communicators", "transfer-by-four-threads"],
    ),
    fault(
        "one-thread-listens",
        "two threads that listen at once are an error",
        &["threads-connect-at-once"],
    ),
    fault(
        "thread-of-its-own",
        "a comm is used by the thread that opened it",
        &["threads-hand-comms-over"],
    ),
    fault(
        "props-beside-listen",
        "properties are others while a thread listens",
        &["threads-ask-for-properties"],
    ),
];

const SILENCE: &[Fault] = &[
    fault(
        "late-acknowledgement",
        "a receiver acknowledges a message only when the plugin is called the next time",
        &["silence-after-receives"],
    )
    .sparing(A_NAME)
    .with("--timeout 4"),
    fault(
        "ignore-death",
        "the death of a peer is ignored",
        &[
            "death-of-the-sender-is-reported",
            "death-of-the-receiver-is-reported",
            "death-under-load-is-reported",
        ],
    )
    .with("--timeout 10 --death 2"),
    fault(
        "done-at-death",
        "what is to be received of a peer that is gone is done",
        &["death-of-the-sender-is-reported"],
    ),
    fault(
        "death-breaks-all",
        "a peer that is gone breaks all other connections",
        &["death-leaves-others-alone"],
    ),
    fault(
        "fail-deregMr,ended",
        "deregMr is an error when the peer has gone",
        &["close-after-death"],
    ),
    fault(
        "die-with-the-peer",
        "a peer that dies with requests outstanding crashes the survivor",
        &["death-under-load-is-reported"],
    )
    .with("--timeout 10 --death 2"),
    fault("idle=900", "a peer that is idle for a second is declared dead", &["idle-peer-is-alive"])
        .sparing(A_NAME)
        .with("--timeout 10 --idle 2"),
];
