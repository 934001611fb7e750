//! Device memory that is registered by a descriptor (FI_MR_DMABUF, fi_mr(3)), as the plugin's own objects do it: the descriptor may
//! be closed right after, as NCCL does (NCCL src/transport/net.cc:1000), and the region begins where the offset says.
//!
//! The device is the virtual fabric's: memory of a file without a name, which shows what arrived after a read only.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

#[path = "support/provider.rs"]
mod provider;

use std::ffi::{OsStr, OsString, c_int};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, ptr};

use fabric::{
    AddressVector, Batch, CompletionQueue, Contexts, CqPoll, Data, Delivery, Dmabuf, Domain,
    Endpoint, Fabric, FabricError, Info, Library, Pages, Post, Query, Region, RemoteBytes,
    UserMemory, Version,
};
use harness::{Test, second_libfabric};

/// Names the library in the process that a test starts for itself.
const CHOSEN: &str = "DMABUF_TEST_LIBRARY";
const PAGE: usize = 4096;
const BYTES: usize = 2 * PAGE;
const PATIENCE: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    let second = second_libfabric().map(drop);
    harness::run([
        Test::new(a_region_outlives_its_descriptor_and_begins_where_the_offset_says),
        Test::new(
            a_region_outlives_its_descriptor_and_begins_where_the_offset_says_on_the_second_library,
        )
        .needs(second.clone()),
        Test::new(a_descriptor_that_is_closed_or_too_short_is_refused),
        Test::new(a_descriptor_that_is_closed_or_too_short_is_refused_on_the_second_library)
            .needs(second),
    ])
}

/// Runs `body` with this library, in a process of its own whose environment offers device memory.
fn with(library: &OsStr, test: impl Fn() + 'static, body: fn(&Arc<Library>, &Info)) {
    if let Some(chosen) = env::var_os(CHOSEN) {
        let library = Library::open(&[chosen]).unwrap();
        let query =
            Query { provider: Some("vfabric".to_owned()), device_memory: true, ..Query::default() };
        let found = library.find(&query).unwrap();
        return body(&library, found.first().expect("vfabric has device memory"));
    }
    let provider = provider::file();
    let settings = [
        (CHOSEN, library),
        ("FI_PROVIDER_PATH", provider.parent().unwrap().as_os_str()),
        ("FI_PROVIDER", OsStr::new("vfabric")),
        ("VFABRIC_HMEM", OsStr::new("1")),
    ];
    harness::again(test, &settings);
}

/// 1.17, which knows no descriptors.
fn first() -> &'static OsStr {
    OsStr::new("libfabric.so.1")
}

/// One that knows them.
fn second() -> OsString {
    second_libfabric().expect("the test runs only where it is").into_os_string()
}

/// A device's memory: a file without a name, mapped.
struct Device {
    descriptor: c_int,
    address: u64,
}

impl Device {
    fn new(bytes: usize) -> Self {
        // SAFETY: a C string, and no flags.
        let descriptor = unsafe { libc::memfd_create(c"device".as_ptr(), 0) };
        assert!(descriptor >= 0);
        // SAFETY: the descriptor is ours.
        assert_eq!(unsafe { libc::ftruncate(descriptor, bytes.try_into().unwrap()) }, 0);
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a mapping of its own, which stays for the rest of the process.
        let address =
            unsafe { libc::mmap(ptr::null_mut(), bytes, rights, libc::MAP_SHARED, descriptor, 0) };
        assert_ne!(address, libc::MAP_FAILED);
        Self { descriptor, address: address.expose_provenance() as u64 }
    }

    fn close_descriptor(&self) {
        // SAFETY: the descriptor is ours, and closed once.
        assert_eq!(unsafe { libc::close(self.descriptor) }, 0);
    }

    /// From its second page on: two pages.
    fn memory(&self) -> UserMemory {
        let dmabuf = Dmabuf { fd: self.descriptor, offset: PAGE as u64 };
        // SAFETY: the mapping stays for the rest of the process.
        unsafe { UserMemory::cuda(self.address + PAGE as u64, BYTES, 0, Some(dmabuf)) }
    }

    fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        let from = ptr::with_exposed_provenance::<u8>(usize::try_from(self.address).unwrap());
        let mut bytes = vec![0; len];
        // SAFETY: within the mapping.
        let from = unsafe { from.add(offset) };
        // SAFETY: as above; nothing writes there now.
        unsafe { ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), len) };
        bytes
    }
}

struct Side {
    queue: Arc<CompletionQueue>,
    addresses: Arc<AddressVector>,
    endpoint: Arc<Endpoint<Data>>,
    domain: Arc<Domain>,
    contexts: Contexts,
}

impl Side {
    fn open(library: &Arc<Library>, info: &Info) -> Self {
        let domain = Domain::open(&Fabric::open(library, info).unwrap(), info).unwrap();
        let queue = CompletionQueue::open(&domain, 64).unwrap();
        let addresses = AddressVector::open(&domain).unwrap();
        let endpoint = Endpoint::open(&domain, info, &queue, &addresses).unwrap();
        Self { queue, addresses, endpoint, domain, contexts: Contexts::new(4) }
    }

    fn register(&self, memory: UserMemory) -> Result<Region<Data>, FabricError> {
        Region::register(&self.endpoint, memory)
    }

    /// Polls until one operation of ours has completed; the other side's polls move the fabric.
    fn complete(&self, other: &Self) {
        let start = Instant::now();
        loop {
            let mut batch = Batch::new();
            match self.queue.read(&mut batch) {
                CqPoll::Completions(found) => {
                    if found.iter().any(|completion| !completion.is_remote_write()) {
                        return;
                    }
                }
                CqPoll::Empty => {}
                CqPoll::Failed(error) => panic!("{error}"),
                CqPoll::Broken(error) => panic!("{error}"),
            }
            drop(other.queue.read(&mut Batch::new()));
            assert!(start.elapsed() < PATIENCE, "nothing completes");
        }
    }
}

fn posted(mut post: impl FnMut() -> Result<Post, FabricError>) {
    let start = Instant::now();
    while post().unwrap() == Post::Again {
        assert!(start.elapsed() < PATIENCE, "nothing is accepted");
    }
}

fn a_region_outlives_its_descriptor_and_begins_where_the_offset_says() {
    with(
        first(),
        a_region_outlives_its_descriptor_and_begins_where_the_offset_says,
        register_and_close,
    );
}

fn a_region_outlives_its_descriptor_and_begins_where_the_offset_says_on_the_second_library() {
    with(
        &second(),
        a_region_outlives_its_descriptor_and_begins_where_the_offset_says_on_the_second_library,
        register_and_close,
    );
}

fn register_and_close(library: &Arc<Library>, info: &Info) {
    let (near, far) = (Side::open(library, info), Side::open(library, info));
    assert_eq!(far.domain.takes_dmabuf(), library.version() >= Version::new(1, 20));
    let device = Device::new(3 * PAGE);
    let region = far.register(device.memory()).unwrap();
    device.close_descriptor();
    let pages = Arc::new(Pages::map(PAGE).unwrap());
    let sent: Vec<u8> = (0..200).collect();
    pages.copy_in(0, &sent);
    let source = Region::register_pages(&near.endpoint, pages).unwrap();
    let peer = near.addresses.insert(&far.endpoint.name().unwrap()).unwrap();
    let place = region.target_address(device.address + PAGE as u64 + 100).unwrap();
    let target = RemoteBytes { address: place, key: region.key() };
    posted(|| {
        let bytes = source.local(0, sent.len()).unwrap();
        near.endpoint.write(bytes, target, peer, Delivery::Complete, near.contexts.at(0))
    });
    near.complete(&far);
    // As a flush does: the device shows what arrived after a read of its memory by the same NIC.
    let landing = Arc::new(Pages::map(PAGE).unwrap());
    let landing = Region::register_pages(&far.endpoint, landing).unwrap();
    let myself = far.addresses.insert(&far.endpoint.name().unwrap()).unwrap();
    posted(|| {
        let bytes = landing.local(0, 8).unwrap();
        far.endpoint.read(bytes, target, myself, far.contexts.at(0))
    });
    far.complete(&near);
    assert_eq!(device.read(PAGE + 100, sent.len()), sent);
    assert_eq!(device.read(PAGE, 100), [0; 100]);
    region.close().unwrap();
}

fn a_descriptor_that_is_closed_or_too_short_is_refused() {
    with(first(), a_descriptor_that_is_closed_or_too_short_is_refused, refuse_descriptors);
}

fn a_descriptor_that_is_closed_or_too_short_is_refused_on_the_second_library() {
    with(
        &second(),
        a_descriptor_that_is_closed_or_too_short_is_refused_on_the_second_library,
        refuse_descriptors,
    );
}

fn refuse_descriptors(library: &Arc<Library>, info: &Info) {
    let side = Side::open(library, info);
    let short = Device::new(2 * PAGE);
    let gone = Device::new(3 * PAGE);
    gone.close_descriptor();
    for (device, code) in [(short, libc::EINVAL), (gone, libc::EBADF)] {
        let registered = side.register(device.memory());
        if side.domain.takes_dmabuf() {
            assert_eq!(registered.unwrap_err().code, -code);
        } else {
            // 1.17 has no such flag: the memory is registered by its address alone.
            registered.unwrap().close().unwrap();
        }
    }
}
