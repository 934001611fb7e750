//! Raw libfabric over the virtual fabric: what a C program would do, with the checks left to the provider.
//!
//! All tests of a process share one fabric, so a lock in `Rig` runs them one after another. Raw pointers stay in this module: tests call
//! safe methods, even to do what no manual page permits.
#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

pub(crate) mod provider;
#[path = "../../src/control/table.rs"]
pub(crate) mod table;

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use fabric::page_bytes;
use libfabric_sys as sys;
use sys::Symbols;
use table::Control;

/// Every registration mode.
pub(crate) const EVERY_MODE: i32 = sys::FI_MR_LOCAL
    | sys::FI_MR_VIRT_ADDR
    | sys::FI_MR_ALLOCATED
    | sys::FI_MR_PROV_KEY
    | sys::FI_MR_ENDPOINT;

/// Every access right.
pub(crate) const EVERY_ACCESS: u64 = sys::FI_SEND
    | sys::FI_RECV
    | sys::FI_READ
    | sys::FI_WRITE
    | sys::FI_REMOTE_READ
    | sys::FI_REMOTE_WRITE;

pub(crate) const AGAIN: isize = -(sys::FI_EAGAIN as isize);

/// Loaded once: libfabric, which loads the provider.
struct Loaded {
    symbols: Symbols,
    control: &'static Control,
}

static ALONE: Mutex<()> = Mutex::new(());

fn loaded() -> &'static Loaded {
    static LOADED: OnceLock<Loaded> = OnceLock::new();
    LOADED.get_or_init(|| {
        let file = provider::file();
        // SAFETY: every test comes through here first, and nothing else here reads the environment meanwhile.
        unsafe { std::env::set_var("FI_PROVIDER_PATH", file.parent().unwrap()) };
        // SAFETY: as above.
        unsafe { std::env::set_var("FI_PROVIDER", "vfabric") };
        let named = std::env::var_os("FABRIC_TEST_LIBRARY");
        let symbols = Symbols::load(&[named.unwrap_or_else(|| "libfabric.so.1".into())]).unwrap();
        let mut list = ptr::null_mut();
        // SAFETY: no hints, and a valid place. Libfabric loads its providers now.
        let code = unsafe {
            (symbols.fi_getinfo)(
                sys::version(1, 17),
                ptr::null(),
                ptr::null(),
                0,
                ptr::null(),
                &raw mut list,
            )
        };
        assert_eq!(code, 0, "the provider is found");
        // SAFETY: the list is ours.
        unsafe { (symbols.fi_freeinfo)(list) };
        Loaded { symbols, control: control_of(&file) }
    })
}

/// The control table, by the symbol of the file that libfabric has loaded.
fn control_of(file: &std::path::Path) -> &'static Control {
    let name = CString::new(file.to_str().unwrap()).unwrap();
    // SAFETY: the file is loaded already.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    assert!(!library.is_null(), "libfabric has loaded the provider");
    // SAFETY: the library is open.
    let symbol = unsafe { libc::dlsym(library, c"vfabric_control".as_ptr()) };
    assert!(!symbol.is_null());
    let get: *const c_void = symbol;
    // SAFETY: the provider defines it so; a symbol's address is a function pointer.
    let get = unsafe { (&raw const get).cast::<extern "C" fn() -> *const Control>().read() };
    // SAFETY: the table is static, and libfabric never unloads it.
    unsafe { &*get() }
}

/// The hints of a fi_getinfo, for a test to change.
pub(crate) struct Hints<'a> {
    pub(crate) caps: &'a mut u64,
    pub(crate) address_format: &'a mut u32,
    pub(crate) transmit: &'a mut sys::fi_tx_attr,
    pub(crate) receive: &'a mut sys::fi_rx_attr,
    pub(crate) domain: &'a mut sys::fi_domain_attr,
}

/// A fabric for one test, with nothing open.
pub(crate) struct Rig {
    pub(crate) control: &'static Control,
    symbols: &'static Symbols,
    list: *mut sys::fi_info,
    fabric: *mut sys::fid_fabric,
    _alone: MutexGuard<'static, ()>,
}

impl Rig {
    /// With these settings, such as `profile=cxi nics=2`.
    pub(crate) fn new(settings: &str) -> Self {
        Self::with_hints(settings, |_| {}).unwrap()
    }

    /// With this threading level.
    pub(crate) fn with_threading(settings: &str, threading: sys::fi_threading) -> Self {
        Self::with_hints(settings, |hints| hints.domain.threading = threading).unwrap()
    }

    /// Without FI_HMEM, though the NICs have it.
    pub(crate) fn without_device_memory(settings: &str) -> Self {
        Self::with_hints(settings, |hints| *hints.caps &= !sys::FI_HMEM).unwrap()
    }

    /// With these registration modes offered; the error code where fi_getinfo finds nothing then.
    pub(crate) fn with_modes(settings: &str, modes: i32) -> Result<Self, i32> {
        Self::with_hints(settings, |hints| hints.domain.mr_mode = modes)
    }

    /// With the usual hints, changed; the error code where fi_getinfo finds nothing then.
    pub(crate) fn with_hints(settings: &str, change: impl FnOnce(Hints<'_>)) -> Result<Self, i32> {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let Loaded { symbols, control } = loaded();
        let text = CString::new(settings).unwrap();
        // SAFETY: a C string.
        assert_eq!(unsafe { (control.configure)(text.as_ptr()) }, 0, "{settings}");
        // SAFETY: of nothing, it makes an empty one.
        let hints = unsafe { (symbols.fi_dupinfo)(ptr::null()) };
        // SAFETY: it is ours alone, and whole.
        let info = unsafe { &mut *hints };
        let rma = if settings.contains("profile=messages") { 0 } else { sys::FI_RMA };
        let gpu = if settings.contains("hmem=1") { sys::FI_HMEM } else { 0 };
        info.caps = sys::FI_MSG | sys::FI_TAGGED | rma | gpu;
        info.mode = sys::FI_CONTEXT | sys::FI_CONTEXT2;
        // SAFETY: as above.
        unsafe { (*info.ep_attr).type_ = sys::FI_EP_RDM };
        // SAFETY: as above.
        let domain = unsafe { &mut *info.domain_attr };
        domain.mr_mode = if gpu == 0 { EVERY_MODE } else { EVERY_MODE | sys::FI_MR_HMEM };
        domain.threading = sys::FI_THREAD_COMPLETION;
        // SAFETY: as above.
        let transmit = unsafe { &mut *info.tx_attr };
        // SAFETY: as above.
        let receive = unsafe { &mut *info.rx_attr };
        let (caps, address_format) = (&mut info.caps, &mut info.addr_format);
        change(Hints { caps, address_format, transmit, receive, domain });
        let mut list = ptr::null_mut();
        // SAFETY: valid hints, and a valid place.
        let code = unsafe {
            (symbols.fi_getinfo)(
                sys::version(1, 17),
                ptr::null(),
                ptr::null(),
                0,
                hints,
                &raw mut list,
            )
        };
        // SAFETY: the hints are ours.
        unsafe { (symbols.fi_freeinfo)(hints) };
        if code != 0 {
            return Err(code);
        }
        let mut fabric = ptr::null_mut();
        // SAFETY: the list is not empty.
        let attributes = unsafe { (*list).fabric_attr };
        // SAFETY: attributes of an info, and a valid place.
        let code = unsafe { (symbols.fi_fabric)(attributes, &raw mut fabric, ptr::null_mut()) };
        assert_eq!(code, 0);
        Ok(Self { control, symbols, list, fabric, _alone: alone })
    }

    /// The largest write that can be injected with this profile, where messages of 32 bytes can.
    pub(crate) fn injected_write(&self, profile: &str) -> usize {
        // SAFETY: fi_version has no preconditions.
        let release = unsafe { (self.symbols.fi_version)() };
        if profile == "efa" && release >= sys::version(1, 22) { 0 } else { 32 }
    }

    /// The fi_info of a NIC.
    pub(crate) fn info(&self, nic: usize) -> *mut sys::fi_info {
        let mut info = self.list;
        for _ in 0..nic {
            // SAFETY: the list is ours, and long enough.
            info = unsafe { (*info).next };
        }
        assert!(!info.is_null(), "there is no NIC {nic}");
        info
    }

    /// Makes a NIC's fi_info ask for a transmit queue of this size.
    pub(crate) fn ask_for_depth(&self, nic: usize, depth: usize) {
        // SAFETY: the list is ours, and its infos are whole.
        let transmit = unsafe { (*self.info(nic)).tx_attr };
        // SAFETY: as above.
        unsafe { (*transmit).size = depth };
    }

    /// Makes a NIC's fi_info ask for these capabilities alone.
    pub(crate) fn ask_for_caps(&self, nic: usize, caps: u64) {
        // SAFETY: the list is ours.
        unsafe { (*self.info(nic)).caps = caps };
    }

    /// The capabilities of the first NIC's fi_info, and of its transmit and of its receive context.
    pub(crate) fn caps(&self) -> [u64; 3] {
        // SAFETY: the list is ours.
        let info = unsafe { &*self.list };
        // SAFETY: an info is whole.
        let transmit = unsafe { (*info.tx_attr).caps };
        // SAFETY: as above.
        [info.caps, transmit, unsafe { (*info.rx_attr).caps }]
    }

    /// The orders that the first NIC's transmit context keeps.
    pub(crate) fn orders(&self) -> u64 {
        // SAFETY: an info is whole.
        let transmit = unsafe { (*self.list).tx_attr };
        // SAFETY: as above.
        unsafe { (*transmit).msg_order }
    }

    /// fi_close of the fabric, whatever is open on it.
    pub(crate) fn close_fabric(&self) -> i32 {
        close(self.fabric.cast())
    }

    /// fi_eq_open: an event queue of the fabric.
    pub(crate) fn open_event_queue(&self) -> Result<*mut sys::fid_eq, i32> {
        let mut attributes = sys::fi_eq_attr { wait_obj: sys::FI_WAIT_NONE, ..Default::default() };
        let mut queue = ptr::null_mut();
        let context = ptr::null_mut();
        // SAFETY: the fabric is open, and the places valid.
        let code =
            unsafe { sys::fi_eq_open(self.fabric, &raw mut attributes, &raw mut queue, context) };
        if code == 0 { Ok(queue) } else { Err(code) }
    }

    /// The next error of an event queue.
    pub(crate) fn event_error(&self, queue: *mut sys::fid_eq) -> Option<i32> {
        let (mut event, mut entry) = (0, sys::fi_eq_entry::default());
        let (place, len) = ((&raw mut entry).cast(), size_of_val(&entry));
        // SAFETY: the queue is open, and the places valid.
        let code = unsafe { sys::fi_eq_read(queue, &raw mut event, place, len, 0) };
        let mut error = sys::fi_eq_err_entry::default();
        // SAFETY: as above.
        let read = unsafe { sys::fi_eq_readerr(queue, &raw mut error, 0) };
        if code == AGAIN {
            assert_eq!(read, AGAIN);
            return None;
        }
        assert_eq!(code, -(sys::FI_EAVAIL as isize));
        assert_eq!(read, size_of_val(&error).cast_signed());
        Some(error.err)
    }

    /// The registration modes in force.
    pub(crate) fn modes(&self) -> i32 {
        // SAFETY: an info is whole.
        let domain = unsafe { (*self.list).domain_attr };
        // SAFETY: as above.
        unsafe { (*domain).mr_mode }
    }

    /// An enabled endpoint in a domain of its own on `nic`.
    pub(crate) fn end(&self, nic: usize) -> End<'_> {
        self.end_with(nic, 1024)
    }

    /// The same with a completion queue of `entries`.
    pub(crate) fn end_with(&self, nic: usize, entries: usize) -> End<'_> {
        self.end_bound(nic, entries, sys::FI_TRANSMIT | sys::FI_RECV)
    }

    /// The same, bound to its queue with these flags.
    pub(crate) fn end_bound(&self, nic: usize, entries: usize, flags: u64) -> End<'_> {
        let mut domain = ptr::null_mut();
        // SAFETY: the fabric is open, and the place valid.
        let code = unsafe {
            sys::fi_domain(self.fabric, self.info(nic), &raw mut domain, ptr::null_mut())
        };
        assert_eq!(code, 0);
        let end = End::open(self, nic, domain, true, entries, flags);
        end.enable();
        end
    }

    /// How often a rule was broken.
    pub(crate) fn broken(&self, rule: &str) -> u64 {
        self.number(&format!("broken.{rule}"))
    }

    /// A number of the report.
    pub(crate) fn number(&self, name: &str) -> u64 {
        let name = CString::new(name).unwrap();
        // SAFETY: a C string.
        unsafe { (self.control.number)(name.as_ptr()) }
    }

    /// The text of every broken rule.
    pub(crate) fn violations(&self) -> Vec<String> {
        let mut all = Vec::new();
        loop {
            let mut buffer: [c_char; 512] = [0; 512];
            // SAFETY: the buffer is as long as we say.
            let len = unsafe { (self.control.violation)(all.len(), buffer.as_mut_ptr(), 512) };
            if len < 0 {
                return all;
            }
            // SAFETY: the call ends it with a zero.
            all.push(unsafe { CStr::from_ptr(buffer.as_ptr()) }.to_string_lossy().into_owned());
        }
    }

    /// Fails unless exactly this rule was broken, this many times.
    #[track_caller]
    pub(crate) fn caught(&self, rule: &str, times: u64) {
        let violations = self.violations();
        assert_eq!(self.broken(rule), times, "{rule}: {violations:#?}");
        assert_eq!(self.count(), times, "{violations:#?}");
    }

    /// How many rules were broken.
    pub(crate) fn count(&self) -> u64 {
        // SAFETY: it has no preconditions.
        unsafe { (self.control.violations)() }
    }

    pub(crate) fn fault(&self, script: &str) {
        let script = CString::new(script).unwrap();
        // SAFETY: a C string.
        assert_eq!(unsafe { (self.control.fault)(script.as_ptr()) }, 0);
    }

    pub(crate) fn nic(&self, nic: u32, action: &str) {
        let action = CString::new(action).unwrap();
        // SAFETY: a C string.
        assert_eq!(unsafe { (self.control.nic)(nic, action.as_ptr()) }, 0);
    }

    pub(crate) fn now(&self) -> u64 {
        // SAFETY: it has no preconditions.
        unsafe { (self.control.now)() }
    }

    pub(crate) fn mark(&self, address: u64, len: u64) {
        // SAFETY: only numbers.
        unsafe { (self.control.mark)(address, len) };
    }

    /// fi_strerror of the loaded library.
    pub(crate) fn error_text(&self, code: i32) -> String {
        // SAFETY: any number may be asked for.
        let text = unsafe { (self.symbols.fi_strerror)(code) };
        // SAFETY: static text.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    /// fi_dupinfo of the loaded library.
    pub(crate) fn copy(&self, info: *mut sys::fi_info) -> *mut sys::fi_info {
        // SAFETY: an info of ours.
        unsafe { (self.symbols.fi_dupinfo)(info) }
    }

    pub(crate) fn free(&self, info: *mut sys::fi_info) {
        // SAFETY: a copy, and ours.
        unsafe { (self.symbols.fi_freeinfo)(info) };
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // SAFETY: the fabric is ours, and nothing on it is open.
        let code = unsafe { sys::fi_close(self.fabric.cast()) };
        // SAFETY: the list is ours.
        unsafe { (self.symbols.fi_freeinfo)(self.list) };
        assert!(code == 0 || std::thread::panicking());
    }
}

/// A domain, a queue, an address vector and an endpoint.
pub(crate) struct End<'rig> {
    pub(crate) rig: &'rig Rig,
    pub(crate) nic: usize,
    pub(crate) domain: *mut sys::fid_domain,
    pub(crate) queue: *mut sys::fid_cq,
    pub(crate) vector: *mut sys::fid_av,
    pub(crate) endpoint: *mut sys::fid_ep,
    owns_domain: bool,
    regions: RefCell<Vec<*mut sys::fid_mr>>,
    /// The last requested key.
    keys: Cell<u64>,
}

/// The result of a poll.
#[derive(Debug)]
pub(crate) enum Polled {
    Nothing,
    Done(sys::fi_cq_tagged_entry),
    Failed(sys::fi_cq_err_entry),
}

impl Polled {
    #[track_caller]
    pub(crate) fn done(self) -> sys::fi_cq_tagged_entry {
        match self {
            Self::Done(entry) => entry,
            other => panic!("not done: {other:?}"),
        }
    }

    #[track_caller]
    pub(crate) fn failed(self) -> sys::fi_cq_err_entry {
        match self {
            Self::Failed(entry) => entry,
            other => panic!("not failed: {other:?}"),
        }
    }
}

impl<'rig> End<'rig> {
    fn open(
        rig: &'rig Rig,
        nic: usize,
        domain: *mut sys::fid_domain,
        owns_domain: bool,
        entries: usize,
        flags: u64,
    ) -> Self {
        let mut attributes = sys::fi_cq_attr {
            size: entries,
            format: sys::FI_CQ_FORMAT_TAGGED,
            ..Default::default()
        };
        let mut queue = ptr::null_mut();
        // SAFETY: the domain is open, and the places valid; so below.
        let code = unsafe {
            sys::fi_cq_open(domain, &raw mut attributes, &raw mut queue, ptr::null_mut())
        };
        assert_eq!(code, 0);
        let mut attributes = sys::fi_av_attr { type_: sys::FI_AV_TABLE, ..Default::default() };
        let mut vector = ptr::null_mut();
        // SAFETY: as above.
        let code = unsafe {
            sys::fi_av_open(domain, &raw mut attributes, &raw mut vector, ptr::null_mut())
        };
        assert_eq!(code, 0);
        let mut endpoint = ptr::null_mut();
        // SAFETY: as above.
        let code =
            unsafe { sys::fi_endpoint(domain, rig.info(nic), &raw mut endpoint, ptr::null_mut()) };
        assert_eq!(code, 0);
        // SAFETY: open objects of one domain.
        assert_eq!(unsafe { sys::fi_ep_bind(endpoint, queue.cast(), flags) }, 0);
        // SAFETY: as above.
        assert_eq!(unsafe { sys::fi_ep_bind(endpoint, vector.cast(), 0) }, 0);
        let (regions, keys) = (RefCell::default(), Cell::new(100 * u64::from(!owns_domain)));
        Self { rig, nic, domain, queue, vector, endpoint, owns_domain, regions, keys }
    }

    /// Another endpoint of the same domain, not enabled yet. It must be dropped before this one.
    pub(crate) fn sibling(&self) -> Self {
        self.sibling_bound(sys::FI_TRANSMIT | sys::FI_RECV)
    }

    /// The same, bound to its queue with these flags.
    pub(crate) fn sibling_bound(&self, flags: u64) -> Self {
        Self::open(self.rig, self.nic, self.domain, false, 1024, flags)
    }

    /// The code of fi_enable.
    pub(crate) fn try_enable(&self) -> i32 {
        // SAFETY: the endpoint is open.
        unsafe { sys::fi_enable(self.endpoint) }
    }

    /// fi_ep_bind of an event queue: its code.
    pub(crate) fn bind_events(&self, queue: *mut sys::fid_eq) -> i32 {
        // SAFETY: both are open.
        unsafe { sys::fi_ep_bind(self.endpoint, queue.cast(), 0) }
    }

    /// fi_endpoint in this domain by the info of a NIC: its code. Closed again.
    pub(crate) fn opens_by(&self, nic: usize) -> i32 {
        let mut endpoint = ptr::null_mut();
        let info = self.rig.info(nic);
        // SAFETY: the domain is open, and the place valid.
        let code =
            unsafe { sys::fi_endpoint(self.domain, info, &raw mut endpoint, ptr::null_mut()) };
        if code == 0 {
            assert_eq!(close(endpoint.cast()), 0);
        }
        code
    }

    /// fi_av_open of a vector of this type in this domain: its code. Closed again.
    pub(crate) fn opens_vector(&self, type_: sys::fi_av_type) -> i32 {
        let mut attributes = sys::fi_av_attr { type_, ..Default::default() };
        let (place, mut vector) = (&raw mut attributes, ptr::null_mut());
        // SAFETY: the domain is open, and the places valid.
        let code = unsafe { sys::fi_av_open(self.domain, place, &raw mut vector, ptr::null_mut()) };
        if code == 0 {
            assert_eq!(close(vector.cast()), 0);
        }
        code
    }

    #[track_caller]
    pub(crate) fn enable(&self) {
        assert_eq!(self.try_enable(), 0);
    }

    pub(crate) fn name(&self) -> Vec<u8> {
        let mut name = vec![0; 64];
        let mut len = name.len();
        // SAFETY: the buffer is as long as we say.
        let code =
            unsafe { sys::fi_getname(self.endpoint, name.as_mut_ptr().cast(), &raw mut len) };
        assert_eq!(code, 0);
        name.truncate(len);
        name
    }

    /// The `fi_addr_t` of `other` in this end's address vector.
    pub(crate) fn know(&self, other: &End<'_>) -> u64 {
        let name = other.name();
        let mut peer = 0;
        // SAFETY: one whole address, and a valid place.
        let count = unsafe {
            let address = name.as_ptr().cast();
            sys::fi_av_insert(self.vector, address, 1, &raw mut peer, 0, ptr::null_mut())
        };
        assert_eq!(count, 1);
        peer
    }

    /// Binds two endpoints to one address vector, inserts an address, closes both, inserts it again, and binds a third: the results.
    pub(crate) fn bind_in_turn(&self, other: &End<'_>) -> [i32; 5] {
        let mut attributes = sys::fi_av_attr { type_: sys::FI_AV_TABLE, ..Default::default() };
        let mut vector = ptr::null_mut();
        // SAFETY: the domain is open, and the places valid.
        let code = unsafe {
            sys::fi_av_open(self.domain, &raw mut attributes, &raw mut vector, ptr::null_mut())
        };
        assert_eq!(code, 0);
        let bind = || {
            let mut endpoint = ptr::null_mut();
            let info = self.rig.info(self.nic);
            // SAFETY: as above.
            let code =
                unsafe { sys::fi_endpoint(self.domain, info, &raw mut endpoint, ptr::null_mut()) };
            assert_eq!(code, 0);
            // SAFETY: open objects of one domain.
            (endpoint, unsafe { sys::fi_ep_bind(endpoint, vector.cast(), 0) })
        };
        let name = other.name();
        let insert = || {
            let mut peer = 0;
            let address = name.as_ptr().cast();
            // SAFETY: one whole address, and a valid place.
            unsafe { sys::fi_av_insert(vector, address, 1, &raw mut peer, 0, ptr::null_mut()) }
        };
        let (first, second) = (bind(), bind());
        let open = insert();
        for endpoint in [first.0, second.0] {
            assert_eq!(close(endpoint.cast()), 0);
        }
        let closed = insert();
        let third = bind();
        assert_eq!(close(third.0.cast()), 0);
        assert_eq!(close(vector.cast()), 0);
        [first.1, second.1, open, closed, third.1]
    }

    pub(crate) fn forget(&self, peer: u64) -> i32 {
        let mut peer = peer;
        // SAFETY: a valid place.
        unsafe { sys::fi_av_remove(self.vector, &raw mut peer, 1, 0) }
    }

    /// Registers; binds and enables where the profile demands it.
    #[track_caller]
    pub(crate) fn register(&self, buffer: &Buffer, access: u64) -> Registered<'_> {
        self.keys.set(self.keys.get() + 1);
        let region = self.register_only(buffer, access, self.keys.get()).unwrap();
        if self.rig.modes() & sys::FI_MR_ENDPOINT != 0 {
            assert_eq!(region.bind(self), 0);
            assert_eq!(region.enable(), 0);
        }
        region
    }

    /// Registers only.
    pub(crate) fn register_only(
        &self,
        buffer: &Buffer,
        access: u64,
        key: u64,
    ) -> Result<Registered<'_>, i32> {
        let mut region = ptr::null_mut();
        // SAFETY: the domain is open, and the place valid; of the memory, the provider believes nothing.
        let code = unsafe {
            sys::fi_mr_reg(
                self.domain,
                buffer.pointer(0),
                buffer.len,
                access,
                0,
                key,
                0,
                &raw mut region,
                buffer.pointer(0),
            )
        };
        if code != 0 {
            return Err(code);
        }
        self.regions.borrow_mut().push(region);
        let base = if self.rig.modes() & sys::FI_MR_VIRT_ADDR != 0 { buffer.address() } else { 0 };
        Ok(Registered { end: self, region, base })
    }

    /// The code of fi_mr_reg for bytes that may be anywhere. A region that is made is closed.
    pub(crate) fn try_register(&self, pointer: *mut c_void, len: usize) -> i32 {
        let mut region: *mut sys::fid_mr = ptr::null_mut();
        let (place, context) = (&raw mut region, ptr::null_mut());
        // SAFETY: the domain is open, and the place valid; of the memory, the provider believes nothing.
        let code = unsafe {
            sys::fi_mr_reg(self.domain, pointer, len, EVERY_ACCESS, 0, 7, 0, place, context)
        };
        if code == 0 {
            assert_eq!(close(region.cast()), 0);
        }
        code
    }

    /// fi_setopt of a value of `bytes`.
    pub(crate) fn set_option(&self, option: i32, bytes: &[u8]) -> i32 {
        let level = sys::FI_OPT_ENDPOINT.cast_signed();
        let (value, len) = (bytes.as_ptr().cast(), bytes.len());
        // SAFETY: the endpoint is open, and the value as long as we say.
        unsafe { sys::fi_setopt(self.endpoint, level, option, value, len) }
    }

    /// Registers as a GPU's memory.
    pub(crate) fn register_device(
        &self,
        buffer: &Buffer,
        device: i32,
    ) -> Result<Registered<'_>, i32> {
        let piece = sys::iovec { iov_base: buffer.pointer(0), iov_len: buffer.len };
        let mut attributes = sys::Grown::new(sys::fi_mr_attr {
            mr_iov: &raw const piece,
            iov_count: 1,
            access: EVERY_ACCESS,
            iface: sys::FI_HMEM_CUDA,
            ..Default::default()
        });
        attributes.known.device.cuda = device;
        let mut region = ptr::null_mut();
        // SAFETY: the domain is open, the attributes are whole, and the place is valid.
        let code = unsafe {
            sys::fi_mr_regattr(self.domain, &raw const attributes.known, 0, &raw mut region)
        };
        if code != 0 {
            return Err(code);
        }
        self.regions.borrow_mut().push(region);
        Ok(Registered { end: self, region, base: 0 })
    }

    pub(crate) fn write(&self, from: From, to: To) -> isize {
        self.write_in(from, to, context())
    }

    pub(crate) fn write_in(&self, from: From, to: To, context: *mut c_void) -> isize {
        let From { pointer, len, descriptor } = from;
        // SAFETY: the endpoint is open; the rest is the test's to get wrong, and so below.
        unsafe {
            sys::fi_write(
                self.endpoint,
                pointer,
                len,
                descriptor,
                to.peer,
                to.address,
                to.key,
                context,
            )
        }
    }

    pub(crate) fn write_data(&self, from: From, to: To, data: u64) -> isize {
        let From { pointer, len, descriptor } = from;
        // SAFETY: as above.
        unsafe {
            sys::fi_writedata(
                self.endpoint,
                pointer,
                len,
                descriptor,
                data,
                to.peer,
                to.address,
                to.key,
                context(),
            )
        }
    }

    /// By fi_writemsg, with these flags.
    pub(crate) fn write_message(&self, from: From, to: To, flags: u64) -> isize {
        self.write_pieces(from, to, &[from.len], flags)
    }

    /// The same with this context.
    pub(crate) fn write_message_in(
        &self,
        from: From,
        to: To,
        flags: u64,
        context: *mut c_void,
    ) -> isize {
        let post = |message: &sys::fi_msg_rma| {
            let message = sys::fi_msg_rma { context, ..*message };
            // SAFETY: as above.
            unsafe { sys::fi_writemsg(self.endpoint, &raw const message, flags) }
        };
        with_message(from, to, &[from.len], post)
    }

    /// By fi_writemsg, with remote pieces of these lengths.
    pub(crate) fn write_pieces(&self, from: From, to: To, lens: &[usize], flags: u64) -> isize {
        let post = |message: &sys::fi_msg_rma| {
            // SAFETY: as above.
            unsafe { sys::fi_writemsg(self.endpoint, message, flags) }
        };
        with_message(from, to, lens, post)
    }

    /// By fi_readmsg, with these flags.
    pub(crate) fn read_message(&self, into: From, of: To, flags: u64) -> isize {
        let post = |message: &sys::fi_msg_rma| {
            // SAFETY: as above.
            unsafe { sys::fi_readmsg(self.endpoint, message, flags) }
        };
        with_message(into, of, &[into.len], post)
    }

    /// By fi_readv, into the buffer as its first `count` pieces.
    pub(crate) fn read_vector(&self, into: From, of: To, count: usize) -> isize {
        let pieces = [sys::iovec { iov_base: into.pointer, iov_len: into.len }; 2];
        let (pieces, mut descriptors) = (&raw const pieces[0], [into.descriptor; 2]);
        let (end, descriptors) = (self.endpoint, &raw mut descriptors[0]);
        let To { peer, address, key } = of;
        // SAFETY: as above.
        unsafe { sys::fi_readv(end, pieces, descriptors, count, peer, address, key, context()) }
    }

    /// By fi_writev, with the buffer as its first `count` pieces.
    pub(crate) fn write_vector(&self, from: From, to: To, count: usize) -> isize {
        let pieces = [sys::iovec { iov_base: from.pointer, iov_len: from.len }; 2];
        let (pieces, mut descriptors) = (&raw const pieces[0], [from.descriptor; 2]);
        let (end, descriptors) = (self.endpoint, &raw mut descriptors[0]);
        let To { peer, address, key } = to;
        // SAFETY: as above.
        unsafe { sys::fi_writev(end, pieces, descriptors, count, peer, address, key, context()) }
    }

    pub(crate) fn inject_write(&self, from: From, to: To) -> isize {
        // SAFETY: as above.
        unsafe {
            sys::fi_inject_write(self.endpoint, from.pointer, from.len, to.peer, to.address, to.key)
        }
    }

    pub(crate) fn read(&self, into: From, of: To) -> isize {
        let From { pointer, len, descriptor } = into;
        // SAFETY: as above.
        unsafe {
            sys::fi_read(
                self.endpoint,
                pointer,
                len,
                descriptor,
                of.peer,
                of.address,
                of.key,
                context(),
            )
        }
    }

    pub(crate) fn send(&self, from: From, peer: u64) -> isize {
        let From { pointer, len, descriptor } = from;
        // SAFETY: as above.
        unsafe { sys::fi_send(self.endpoint, pointer, len, descriptor, peer, context()) }
    }

    /// By fi_sendmsg or fi_recvmsg, with these flags.
    pub(crate) fn message(&self, local: From, peer: u64, flags: u64, sends: bool) -> isize {
        let piece = sys::iovec { iov_base: local.pointer, iov_len: local.len };
        let mut descriptor = local.descriptor;
        let message = sys::fi_msg {
            msg_iov: &raw const piece,
            desc: &raw mut descriptor,
            iov_count: 1,
            addr: peer,
            context: context(),
            data: 9,
        };
        if sends {
            // SAFETY: as above.
            return unsafe { sys::fi_sendmsg(self.endpoint, &raw const message, flags) };
        }
        // SAFETY: as above.
        unsafe { sys::fi_recvmsg(self.endpoint, &raw const message, flags) }
    }

    pub(crate) fn inject(&self, from: From, peer: u64) -> isize {
        // SAFETY: as above.
        unsafe { sys::fi_inject(self.endpoint, from.pointer, from.len, peer) }
    }

    pub(crate) fn receive(&self, into: From) -> isize {
        self.receive_in(into, context())
    }

    pub(crate) fn receive_in(&self, into: From, context: *mut c_void) -> isize {
        let From { pointer, len, descriptor } = into;
        // SAFETY: as above.
        unsafe {
            sys::fi_recv(self.endpoint, pointer, len, descriptor, sys::FI_ADDR_UNSPEC, context)
        }
    }

    pub(crate) fn send_tagged(&self, from: From, peer: u64, tag: u64) -> isize {
        let From { pointer, len, descriptor } = from;
        // SAFETY: as above.
        unsafe { sys::fi_tsend(self.endpoint, pointer, len, descriptor, peer, tag, context()) }
    }

    /// By fi_tsendmsg, with this immediate.
    pub(crate) fn send_tagged_with_data(
        &self,
        from: From,
        peer: u64,
        tag: u64,
        data: u64,
    ) -> isize {
        let piece = sys::iovec { iov_base: from.pointer, iov_len: from.len };
        let mut descriptor = from.descriptor;
        let message = sys::fi_msg_tagged {
            msg_iov: &raw const piece,
            desc: &raw mut descriptor,
            iov_count: 1,
            addr: peer,
            tag,
            ignore: 0,
            context: context(),
            data,
        };
        let flags = sys::FI_REMOTE_CQ_DATA | sys::FI_COMPLETION;
        // SAFETY: as above.
        unsafe { sys::fi_tsendmsg(self.endpoint, &raw const message, flags) }
    }

    /// By fi_tsendv, with the buffer as its first `count` pieces.
    pub(crate) fn send_tagged_pieces(
        &self,
        from: From,
        peer: u64,
        tag: u64,
        count: usize,
    ) -> isize {
        let pieces = [sys::iovec { iov_base: from.pointer, iov_len: from.len }; 2];
        let (pieces, mut descriptors) = (&raw const pieces[0], [from.descriptor; 2]);
        let (end, descriptors) = (self.endpoint, &raw mut descriptors[0]);
        // SAFETY: as above.
        unsafe { sys::fi_tsendv(end, pieces, descriptors, count, peer, tag, context()) }
    }

    /// By fi_tsenddata.
    pub(crate) fn send_tagged_by_data(&self, from: From, peer: u64, tag: u64, data: u64) -> isize {
        let From { pointer, len, descriptor } = from;
        let end = self.endpoint;
        // SAFETY: as above.
        unsafe { sys::fi_tsenddata(end, pointer, len, descriptor, data, peer, tag, context()) }
    }

    /// By fi_tinjectdata.
    pub(crate) fn inject_tagged_with_data(
        &self,
        from: From,
        peer: u64,
        tag: u64,
        data: u64,
    ) -> isize {
        // SAFETY: as above.
        unsafe { sys::fi_tinjectdata(self.endpoint, from.pointer, from.len, data, peer, tag) }
    }

    /// By fi_trecvv, with the buffer as its first `count` pieces.
    pub(crate) fn receive_tagged_pieces(&self, into: From, tag: u64, count: usize) -> isize {
        let pieces = [sys::iovec { iov_base: into.pointer, iov_len: into.len }; 2];
        let (pieces, mut descriptors) = (&raw const pieces[0], [into.descriptor; 2]);
        let (end, descriptors) = (self.endpoint, &raw mut descriptors[0]);
        let any = sys::FI_ADDR_UNSPEC;
        // SAFETY: as above.
        unsafe { sys::fi_trecvv(end, pieces, descriptors, count, any, tag, 0, context()) }
    }

    pub(crate) fn inject_tagged(&self, from: From, peer: u64, tag: u64) -> isize {
        // SAFETY: as above.
        unsafe { sys::fi_tinject(self.endpoint, from.pointer, from.len, peer, tag) }
    }

    pub(crate) fn receive_tagged(
        &self,
        into: From,
        tag: u64,
        ignore: u64,
        context: *mut c_void,
    ) -> isize {
        let From { pointer, len, descriptor } = into;
        let (endpoint, any) = (self.endpoint, sys::FI_ADDR_UNSPEC);
        // SAFETY: as above.
        unsafe { sys::fi_trecv(endpoint, pointer, len, descriptor, any, tag, ignore, context) }
    }

    pub(crate) fn cancel(&self, context: *mut c_void) -> isize {
        // SAFETY: the endpoint is open.
        unsafe { sys::fi_cancel(self.endpoint, context) }
    }

    /// One poll.
    pub(crate) fn poll(&self) -> Polled {
        let mut entry = sys::fi_cq_tagged_entry::default();
        // SAFETY: the queue is open, and the place for one entry of its format valid.
        let count = unsafe { sys::fi_cq_read(self.queue, (&raw mut entry).cast(), 1) };
        if count == 1 {
            return Polled::Done(entry);
        }
        if count == AGAIN {
            return Polled::Nothing;
        }
        assert_eq!(count, -(sys::FI_EAVAIL as isize));
        let mut error = sys::Grown::new(sys::fi_cq_err_entry::default());
        // SAFETY: as above.
        let count = unsafe { sys::fi_cq_readerr(self.queue, &raw mut error.known, 0) };
        assert_eq!(count, 1);
        Polled::Failed(error.known)
    }

    /// Polls until something completes.
    #[track_caller]
    pub(crate) fn wait(&self) -> Polled {
        self.wait_with(&[])
    }

    /// The same, while others poll too and must get nothing.
    #[track_caller]
    pub(crate) fn wait_with(&self, others: &[&End<'_>]) -> Polled {
        for _ in 0..POLLS {
            match self.poll() {
                Polled::Nothing => {}
                found => return found,
            }
            for other in others {
                assert!(matches!(other.poll(), Polled::Nothing));
            }
        }
        panic!("nothing came");
    }

    /// Polls `polls` times, which must bring nothing.
    #[track_caller]
    pub(crate) fn idle(&self, polls: usize) {
        for _ in 0..polls {
            let polled = self.poll();
            assert!(matches!(polled, Polled::Nothing), "{polled:?}");
        }
    }

    /// fi_cq_strerror of an error number.
    pub(crate) fn error_text(&self, code: i32) -> String {
        let mut buffer: [c_char; 64] = [0; 64];
        // SAFETY: the buffer is as long as we say.
        let text =
            unsafe { sys::fi_cq_strerror(self.queue, code, ptr::null(), buffer.as_mut_ptr(), 64) };
        // SAFETY: a C string.
        let text = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
        // SAFETY: the call ends it with a zero.
        assert_eq!(unsafe { CStr::from_ptr(buffer.as_ptr()) }.to_string_lossy(), text);
        text
    }

    pub(crate) fn close_endpoint(&self) -> i32 {
        close(self.endpoint.cast())
    }

    /// Closes the regions that are still open.
    pub(crate) fn close_regions(&self) {
        for region in self.regions.borrow_mut().drain(..) {
            assert_eq!(close(region.cast()), 0);
        }
    }
}

/// Posts a message of one local piece and of remote pieces of these lengths.
fn with_message(
    local: From,
    to: To,
    lens: &[usize],
    post: impl Fn(&sys::fi_msg_rma) -> isize,
) -> isize {
    let piece = sys::iovec { iov_base: local.pointer, iov_len: local.len };
    let remote = |len: &usize| sys::fi_rma_iov { addr: to.address, len: *len, key: to.key };
    let remotes: Vec<_> = lens.iter().map(remote).collect();
    let mut descriptor = local.descriptor;
    post(&sys::fi_msg_rma {
        msg_iov: &raw const piece,
        desc: &raw mut descriptor,
        iov_count: 1,
        addr: to.peer,
        rma_iov: remotes.as_ptr(),
        rma_iov_count: remotes.len(),
        context: context(),
        data: 0,
    })
}

/// fi_close of any object.
pub(crate) fn close(object: *mut sys::fid) -> i32 {
    // SAFETY: the provider keeps closed objects' memory, so that even a second close finds something.
    unsafe { sys::fi_close(object) }
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        for region in self.regions.borrow_mut().drain(..) {
            close(region.cast());
        }
        for object in [self.endpoint.cast(), self.queue.cast(), self.vector.cast::<sys::fid>()] {
            close(object);
        }
        if self.owns_domain {
            let code = close(self.domain.cast());
            assert!(code == 0 || std::thread::panicking());
        }
    }
}

/// A region. It closes with its end, or by `close`.
#[derive(Clone, Copy)]
pub(crate) struct Registered<'end> {
    end: &'end End<'end>,
    pub(crate) region: *mut sys::fid_mr,
    base: u64,
}

impl Registered<'_> {
    pub(crate) fn bind(&self, end: &End<'_>) -> i32 {
        // SAFETY: open objects.
        unsafe { sys::fi_mr_bind(self.region, end.endpoint.cast(), 0) }
    }

    pub(crate) fn enable(&self) -> i32 {
        // SAFETY: the region is open.
        unsafe { sys::fi_mr_enable(self.region) }
    }

    pub(crate) fn key(&self) -> u64 {
        // SAFETY: the region's memory is there, open or closed.
        unsafe { sys::fi_mr_key(self.region) }
    }

    pub(crate) fn descriptor(&self) -> *mut c_void {
        // SAFETY: as above.
        unsafe { sys::fi_mr_desc(self.region) }
    }

    pub(crate) fn close(&self) -> i32 {
        self.end.regions.borrow_mut().retain(|region| *region != self.region);
        close(self.region.cast())
    }

    /// Its bytes from `offset` on, as remote memory of `peer`.
    pub(crate) fn at(&self, peer: u64, offset: u64) -> To {
        To { peer, address: self.base + offset, key: self.key() }
    }
}

/// Local bytes of an operation.
#[derive(Clone, Copy)]
pub(crate) struct From {
    pub(crate) pointer: *mut c_void,
    pub(crate) len: usize,
    pub(crate) descriptor: *mut c_void,
}

/// Remote bytes of an operation.
#[derive(Clone, Copy)]
pub(crate) struct To {
    pub(crate) peer: u64,
    pub(crate) address: u64,
    pub(crate) key: u64,
}

/// Mapped pages.
pub(crate) struct Buffer {
    start: *mut c_void,
    pub(crate) len: usize,
}

impl Buffer {
    pub(crate) fn new(len: usize) -> Self {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, wherever there is room.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, access, kind, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        Self { start, len }
    }

    /// With these bytes at its start.
    pub(crate) fn of(len: usize, bytes: &[u8]) -> Self {
        let buffer = Self::new(len);
        buffer.put(0, bytes);
        buffer
    }

    pub(crate) fn put(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len);
        let place = self.pointer(at).cast::<u8>();
        // SAFETY: inside of the mapping; there is no reference into it.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len()) };
    }

    pub(crate) fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.len);
        let mut bytes = vec![0; len];
        let place = self.pointer(at).cast::<u8>();
        // SAFETY: as above.
        unsafe { ptr::copy_nonoverlapping(place, bytes.as_mut_ptr(), len) };
        bytes
    }

    pub(crate) fn pointer(&self, at: usize) -> *mut c_void {
        self.start.wrapping_byte_add(at)
    }

    pub(crate) fn address(&self) -> u64 {
        self.start.addr() as u64
    }

    /// The first `len` bytes with a region's descriptor.
    pub(crate) fn with(&self, len: usize, region: &Registered<'_>) -> From {
        From { pointer: self.pointer(0), len, descriptor: region.descriptor() }
    }

    /// The first `len` bytes without descriptor.
    pub(crate) fn bare(&self, len: usize) -> From {
        From { pointer: self.pointer(0), len, descriptor: ptr::null_mut() }
    }

    /// Unmaps one page.
    pub(crate) fn unmap_page(&self, page: usize) {
        // SAFETY: the mapping is ours.
        let unmapped = unsafe { libc::munmap(self.pointer(page * page_bytes()), page_bytes()) };
        assert_eq!(unmapped, 0);
    }

    /// Unmaps the memory too early.
    pub(crate) fn unmap(&self) {
        // SAFETY: the mapping is ours; only the provider uses a pointer into it, by the kernel.
        assert_eq!(unsafe { libc::munmap(self.start, self.len) }, 0);
    }
}

/// A context that no other operation has. It is leaked: tests are short.
pub(crate) fn context() -> *mut c_void {
    Box::into_raw(Box::new(sys::fi_context2::default())).cast()
}

/// After this many polls a wait fails.
const POLLS: usize = 100_000;

/// Posts again after -FI_EAGAIN, while both ends poll.
#[track_caller]
pub(crate) fn posted(ends: [&End<'_>; 2], post: impl Fn() -> isize) {
    for _ in 0..100 {
        match post() {
            AGAIN => ends.iter().for_each(|end| end.idle(1)),
            code => return assert_eq!(code, 0),
        }
    }
    panic!("never accepted");
}
