//! What is opened is closed: in a process of its own, since the counts are the process's.

#[path = "support/mod.rs"]
#[allow(dead_code, reason = "shared with loopback")]
mod support;

use support::{LOOPBACK, Pair, Provider};

#[test]
fn nothing_is_left_open_when_the_last_owner_goes() {
    for (name, source) in
        [("net", LOOPBACK), ("tcp", LOOPBACK), ("tcp;ofi_rxm", LOOPBACK), ("shm", None)]
    {
        let Some(pair) = Pair::open(Provider { name, source }, false) else { continue };
        let open = fabric::census();
        assert_eq!((open.regions, open.endpoints, open.queues), (4, 4, 4), "{name}");
        assert_eq!(
            (open.address_vectors, open.domains, open.fabrics, open.pages),
            (2, 2, 2, 4),
            "{name}"
        );
        drop(pair);
        assert!(fabric::census().is_empty(), "{name}: {:?}", fabric::census());
        assert_eq!(fabric::census().failed_closes, 0, "{name}");
    }
}
