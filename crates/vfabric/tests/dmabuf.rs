//! Device memory registered by a dmabuf descriptor (FI_MR_DMABUF, fi_mr(3)), through the plugin's fabric layer: the descriptor may be
//! closed right after, as NCCL does (NCCL src/transport/net.cc:1000), and the region begins at the offset.
//!
//! The device is the virtual fabric's: an anonymous file, which shows what arrived after a read only.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

#[path = "support/provider.rs"]
mod provider;

use std::ffi::{OsStr, OsString, c_int};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, ptr};

use fabric::{
    Data, Delivery, Dmabuf, Event, FabricError, Info, Library, Nic, NicOptions, Pages, Post, Query,
    Region, RemoteBytes, UserMemory, Version, Write,
};
use harness::{Test, second_libfabric};

/// Names the library in the process that a test starts for itself.
const CHOSEN: &str = "DMABUF_TEST_LIBRARY";
const PAGE: usize = 4096;
const BYTES: usize = 2 * PAGE;
const PATIENCE: Duration = Duration::from_secs(60);

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
            .needs(second.clone()),
        Test::new(a_region_may_lie_at_an_address_below_its_offset_on_the_second_library)
            .needs(second),
    ])
}

/// Runs `body` with this library, in a process of its own whose environment offers device memory.
fn with(library: &OsStr, test: impl Fn() + 'static, body: fn(&Info)) {
    if let Some(chosen) = env::var_os(CHOSEN) {
        let library = Library::open(&[chosen]).unwrap();
        let query =
            Query { provider: Some("vfabric".to_owned()), device_memory: true, ..Query::default() };
        let found = library.find(&query).unwrap();
        return body(found.first().expect("vfabric has device memory"));
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

/// Release 1.17, which has no FI_MR_DMABUF.
fn first() -> &'static OsStr {
    OsStr::new("libfabric.so.1")
}

/// A release that has it.
fn second() -> OsString {
    second_libfabric().expect("the test runs only where it is").into_os_string()
}

/// A device's memory: an anonymous file, mapped.
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

    /// Two pages, from the second on.
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

fn open(info: &Info) -> Nic {
    let options =
        NicOptions { data: Some(&[]), entries: 64, operations: 4, ..NicOptions::default() };
    Nic::open(info, &options).unwrap()
}

fn register(nic: &mut Nic, memory: UserMemory) -> Result<Region<Data>, FabricError> {
    nic.register(memory.into())
}

/// Polls until one operation has completed; polls of the other side move the fabric.
fn complete(nic: &mut Nic, other: &mut Nic) {
    let start = Instant::now();
    loop {
        if !nic.poll_data().is_empty() {
            while let Some(event) = nic.next_data() {
                match event {
                    Event::Ended { .. } => return,
                    Event::Arrived { .. } => {}
                    event => panic!("{event:?}"),
                }
            }
        }
        if !other.poll_data().is_empty() {
            while other.next_data().is_some() {}
        }
        assert!(start.elapsed() < PATIENCE, "nothing completes");
    }
}

fn posted(mut post: impl FnMut() -> Result<Post, FabricError>) {
    let start = Instant::now();
    while post().unwrap() != Post::Accepted {
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

fn register_and_close(info: &Info) {
    let (mut near, mut far) = (open(info), open(info));
    assert_eq!(far.supports_dmabuf(), info.library().version() >= Version::new(1, 20));
    let device = Device::new(3 * PAGE);
    let region = register(&mut far, device.memory()).unwrap();
    device.close_descriptor();
    let pages = Arc::new(Pages::map(PAGE).unwrap());
    let sent: Vec<u8> = (0..200).collect();
    pages.copy_in(0, &sent);
    let source = near.register::<Data>(pages.into()).unwrap();
    let peer = near.add_peer::<Data>(far.data_name()).unwrap();
    let place = region.target_address(device.address + PAGE as u64 + 100).unwrap();
    let target = RemoteBytes { address: place, key: region.key() };
    posted(|| {
        let local = source.local(0, sent.len()).unwrap();
        let write = Write { local, remote: target, peer, delivery: Delivery::Complete };
        near.write(&write, None, 0)
    });
    complete(&mut near, &mut far);
    // A flush: the device shows what arrived after a read of its memory by the same NIC.
    let landing = Arc::new(Pages::map(PAGE).unwrap());
    let landing = far.register::<Data>(landing.into()).unwrap();
    let name = far.data_name().to_vec();
    let myself = far.add_peer::<Data>(&name).unwrap();
    posted(|| {
        let bytes = landing.local(0, 8).unwrap();
        far.read(bytes, target, myself, 0)
    });
    complete(&mut far, &mut near);
    assert_eq!(device.read(PAGE + 100, sent.len()), sent);
    assert_eq!(device.read(PAGE, 100), [0; 100]);
    far.deregister(region).unwrap();
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

fn refuse_descriptors(info: &Info) {
    let mut nic = open(info);
    let short = Device::new(2 * PAGE);
    let gone = Device::new(3 * PAGE);
    gone.close_descriptor();
    for (device, code) in [(short, libc::EINVAL), (gone, libc::EBADF)] {
        let registered = register(&mut nic, device.memory());
        if nic.supports_dmabuf() {
            assert_eq!(registered.unwrap_err().code(), -code);
        } else {
            // 1.17 has no such flag: it registers the memory by its address alone.
            nic.deregister(registered.unwrap()).unwrap();
        }
    }
}

fn a_region_may_lie_at_an_address_below_its_offset_on_the_second_library() {
    with(
        &second(),
        a_region_may_lie_at_an_address_below_its_offset_on_the_second_library,
        |info| {
            let mut nic = open(info);
            let device = Device::new(3 * PAGE);
            let dmabuf = Dmabuf { fd: device.descriptor, offset: 2 * PAGE as u64 };
            // SAFETY: nothing is posted there.
            let memory = unsafe { UserMemory::cuda(PAGE as u64, PAGE, 0, Some(dmabuf)) };
            let region = register(&mut nic, memory).unwrap();
            nic.deregister(region).unwrap();
        },
    );
}
