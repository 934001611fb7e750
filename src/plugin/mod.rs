//! The plugin's side of NCCL's calls, in our own types. `abi` is the only caller.

mod arrival;
mod assumed;
mod config;
mod device;
mod devices;
mod discovery;
mod dump;
mod environment;
mod exit;
mod explain;
mod failure;
mod gpu;
mod hash;
mod json;
mod keeper;
mod opening;
mod options;
mod order;
mod plan;
mod properties;
mod provider;
mod registry;
mod selection;
mod stats;
mod table;
mod wait;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use proto::Posting;

use crate::counter_pages;
use crate::endpoint::Endpoint;
use crate::endpoint::broken::PANICKED;
use crate::endpoint::close::Report;
use crate::error::{Cause, Error, Noun, Result, SetupError};
use crate::fault;
use crate::object_id::{ObjectId, RawId};
use crate::types::{Buffer, HANDLE_BYTES, MessageFacts, Tested, UserMemory};

pub(crate) use config::{Config, PREFIX};
use devices::DeviceTable;
pub(crate) use explain::explain;
pub(crate) use failure::{Offers, StartError};

/// What `getProperties` reports of a device, in the newest form. Strings live as long as the library.
#[derive(Clone, Debug)]
pub(crate) struct DeviceProperties {
    pub(crate) name: &'static std::ffi::CStr,
    pub(crate) pci_path: Option<&'static std::ffi::CStr>,
    pub(crate) guid: u64,
    /// Megabits per second.
    pub(crate) speed_mbps: i32,
    pub(crate) port: i32,
    /// Whole microseconds: NCCL truncates.
    pub(crate) latency_us: f32,
    pub(crate) max_comms: i32,
    /// Largest group of receives on v9 and newer.
    pub(crate) max_receives: i32,
    pub(crate) device_memory: bool,
    pub(crate) dmabuf: bool,
    pub(crate) regions_are_global: bool,
    pub(crate) max_point_to_point_bytes: usize,
    pub(crate) max_collective_bytes: usize,
    /// The index of the device on its host, and the number of its network if there are several that do not reach each other.
    pub(crate) rail: Option<i16>,
    pub(crate) plane: Option<i16>,
    /// The indices of the devices that it was made of; its own if it was found.
    pub(crate) parts: Vec<usize>,
}

/// A communicator's traffic class: a DSCP, which providers with traffic classes set in the rails' packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TrafficClass(u8);

impl TrafficClass {
    /// From the byte in the IP header (ToS), of which the upper six bits are the DSCP.
    pub(crate) fn of_byte(byte: u8) -> Self {
        Self(byte >> 2)
    }

    pub(crate) fn dscp(self) -> u8 {
        self.0
    }
}

/// The owner of an endpoint: a communicator context (v11 and newer), or the calling thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Owner {
    Context(ObjectId),
    /// The calling thread, with the traffic class in this call's arguments.
    Thread(Option<TrafficClass>),
}

/// The plugin's state of the process: settings, libfabric, devices.
#[derive(Debug)]
struct Plugin {
    devices: DeviceTable,
    settings: Arc<Config>,
}

static PLUGIN: OnceLock<Result<Plugin, StartError>> = OnceLock::new();

/// Reads settings, finds libfabric, discovers devices: once per process. Later calls return the first result.
pub(crate) fn start() -> Result<()> {
    plugin().map(|plugin| plugin.devices.init_called())
}

/// Opens a communicator context. v6 to v10 only call `start`.
pub(crate) fn open_context(class: Option<TrafficClass>) -> Result<ObjectId> {
    let plugin = plugin()?;
    let (context, is_first) = registry::open_context(class)?;
    if is_first {
        plugin.devices.init_called();
    }
    Ok(context)
}

/// Closes what a context still has: listeners, comms, endpoints. If the plugin did not start, that logged error is returned without a look
/// at the id: NCCL 2.28.3 to 2.29.3 passes null after an `init` that failed, and a second error would hide the first.
pub(crate) fn close_context(context: RawId) -> Result<()> {
    started()?;
    let context = context.context()?;
    let left = registry::close_context(context)?;
    // Deregister all registrations on shared endpoints, even after an error: their memory may be freed when this returns.
    let gone = left.into_iter().map(|region| deregister(region, region)).fold(Ok(()), Result::and);
    registry::remove_context(context);
    gone
}

pub(crate) fn devices() -> Result<usize> {
    Ok(plugin()?.devices.count())
}

/// Makes a device with the rails of the devices `parts`, and returns its index.
pub(crate) fn make_device(parts: &[usize]) -> Result<usize> {
    plugin()?.devices.make(parts)
}

pub(crate) fn properties(device: usize) -> Result<&'static DeviceProperties> {
    plugin()?.devices.get(device).map(|known| &known.properties)
}

/// `max_group`: the largest group of receives in the caller's version of NCCL's table.
pub(crate) fn listen(
    owner: Owner,
    device: usize,
    handle: &mut [u8; HANDLE_BYTES],
    max_group: usize,
) -> Result<ObjectId> {
    on_device(owner, device, |endpoint| {
        fault::point("listen locked");
        endpoint.listen(handle, max_group)
    })
}

/// `None`: not yet. The caller repeats the call with the same handle, which has the state.
pub(crate) fn connect(
    owner: Owner,
    device: usize,
    handle: &mut [u8; HANDLE_BYTES],
) -> Result<Option<ObjectId>, SetupError> {
    let (comm, waits_for) = on_device(owner, device, |endpoint| {
        fault::point("connect locked");
        let comm = endpoint.connect(handle)?;
        Ok::<_, SetupError>((comm, endpoint.waits_for()))
    })?;
    push_probe(waits_for);
    Ok(comm)
}

pub(crate) fn accept(listener: ObjectId) -> Result<Option<ObjectId>> {
    started()?;
    let (comm, waits_for) = registry::with(listener, |endpoint| {
        fault::point("accept locked");
        let comm = endpoint.accept(listener)?;
        if let Some(comm) = comm {
            endpoint.inherit_owner(listener, comm);
        }
        if endpoint.needs_keeper() {
            keeper::wake();
        }
        Ok((comm, endpoint.waits_for()))
    })?;
    push_probe(waits_for);
    Ok(comm)
}

/// Drives the probe on another endpoint, which NCCL may not be calling. Not under the lock of the waiting endpoint: two endpoints that wait
/// for each other would deadlock.
fn push_probe(waits_for: Option<u16>) {
    if let Some(number) = waits_for {
        registry::push_probe(number);
    }
}

pub(crate) fn register(comm: ObjectId, memory: UserMemory) -> Result<ObjectId> {
    started()?;
    let register = |endpoint: &mut Endpoint| {
        fault::point("regMr locked");
        endpoint.check_comm(comm)?;
        let region = endpoint.register(memory)?;
        endpoint.inherit_owner(comm, region);
        Ok(region)
    };
    registry::with(comm, register)
}

/// The GPU that owns these bytes, and their buffer's id, for a comm whose device supports this registration.
pub(crate) fn gpu_of(
    comm: ObjectId,
    address: u64,
    len: usize,
    by_dmabuf: bool,
) -> Result<(i32, u64)> {
    started()?;
    registry::with(comm, |endpoint| {
        endpoint.check_comm(comm)?;
        endpoint.check_gpu_memory(by_dmabuf)
    })?;
    // Outside of the lock, so that other connections of the endpoint progress.
    let owner = gpu::owner(address, len)?;
    Ok((owner.device, owner.buffer))
}

/// Deregisters memory. Returns when nothing can touch it any more; past a bound returns an error, and the memory stays registered.
pub(crate) fn deregister(comm: ObjectId, region: ObjectId) -> Result<()> {
    started()?;
    let gone = registry::with(comm, |endpoint| {
        fault::point("deregMr locked");
        let gone = endpoint.deregister(region)?;
        if !gone {
            endpoint.begin_wait();
        }
        Ok(gone)
    })?;
    if gone {
        return Ok(());
    }
    let outcome = wait_until_closed(comm, region);
    // Also after a panic: finalize waits until no deregMr waits.
    let is_unused = registry::with_any(comm, |endpoint| {
        endpoint.end_wait();
        Ok(endpoint.is_unused())
    });
    if is_unused == Ok(true) {
        registry::close_if_unused(comm.endpoint());
    }
    outcome
}

/// Polls a deregistration to its end. The endpoint stays open meanwhile: see [`Endpoint::begin_wait`].
fn wait_until_closed(comm: ObjectId, region: ObjectId) -> Result<()> {
    loop {
        // The lock is released in between, so that other connections of the endpoint progress.
        std::thread::yield_now();
        let gone = registry::with(comm, |endpoint| {
            fault::point("deregMr waits");
            endpoint.poll_deregister(region)
        })?;
        if gone {
            return Ok(());
        }
    }
}

/// A locked endpoint.
#[derive(Debug)]
pub(crate) struct Locked(table::LockedEntry);

/// Locks the endpoint that an id names; no endpoint where libfabric cannot be used: see [`unusable`].
#[inline(always)]
pub(crate) fn locked(name: RawId) -> Locked {
    Locked(table::lock(name))
}

impl Locked {
    /// `None`: not now.
    #[inline(always)]
    pub(crate) fn isend(&mut self, comm: RawId, outgoing: Buffer) -> Result<Option<RawId>> {
        match self.0.as_deref_mut() {
            Some(endpoint) => endpoint.isend(comm, outgoing),
            None => Err(absent(comm.sender())),
        }
    }

    /// Posts receives. `how` depends on the table's version and NCCL's mark in the request. Up to v8 a message is truncated to its receive.
    #[inline(always)]
    pub(crate) fn irecv(
        &mut self,
        comm: RawId,
        receives: &[Buffer],
        how: Posting,
    ) -> Result<Option<RawId>> {
        match self.0.as_deref_mut() {
            Some(endpoint) => endpoint.irecv(comm, receives, how),
            None => Err(absent(comm.receiver())),
        }
    }

    /// Flushes. `None`: there is nothing to wait for. NCCL flushes only receives into GPU memory; receives into host memory can be flushed
    /// too.
    pub(crate) fn iflush(&mut self, comm: RawId, buffers: &[Buffer]) -> Result<Option<RawId>> {
        match self.0.as_deref_mut() {
            Some(endpoint) => endpoint.iflush(comm, buffers),
            None => Err(absent(comm.receiver())),
        }
    }

    #[inline(always)]
    pub(crate) fn test(&mut self, request: RawId) -> Result<Tested> {
        match self.0.as_deref_mut() {
            Some(endpoint) => {
                let tested = endpoint.test(request);
                if endpoint.needs_keeper() {
                    keeper::wake();
                }
                tested
            }
            None => Err(absent(request.any_request())),
        }
    }

    /// The sizes of the messages of the group that `test` reported last.
    pub(crate) fn sizes(&self, count: usize) -> &[usize] {
        self.0.as_deref().map_or(&[], |endpoint| endpoint.sizes(count))
    }

    /// A message that was just accepted; see [`Endpoint::begun`](crate::endpoint::Endpoint::begun).
    #[inline]
    pub(crate) fn begun(&self, request: RawId, bytes: u64) -> Option<MessageFacts> {
        Some(self.0.as_deref()?.begun(request, bytes))
    }

    /// The profiler has an event for message `index` of this request.
    pub(crate) fn keep_event(&mut self, request: RawId, index: u16, handle: usize) {
        if let Some(endpoint) = self.0.as_deref_mut() {
            endpoint.keep_event(request, index, handle);
        }
    }

    #[inline]
    pub(crate) fn has_ended_events(&self) -> bool {
        self.0.as_deref().is_some_and(Endpoint::has_ended_events)
    }

    /// One event of the request that `test` reported last.
    pub(crate) fn next_ended_event(&mut self) -> Option<(usize, MessageFacts)> {
        self.0.as_deref_mut()?.next_ended_event()
    }

    /// A panic occurred under the lock.
    #[cold]
    pub(crate) fn panicked(mut self) {
        if let Some(endpoint) = self.0.as_deref_mut() {
            endpoint.panicked();
        }
    }
}

/// A call about a comm, or about one of its requests, has panicked outside of the endpoint's lock.
#[cold]
pub(crate) fn panicked(about: RawId) {
    if let Some(about) = ObjectId::from_bits(about.bits()) {
        // A closed endpoint needs nothing.
        let _closed = registry::with_any(about, |endpoint| {
            endpoint.comm_panicked(about);
            Ok(())
        });
    }
}

/// The error of a call whose id names no endpoint. Where libfabric cannot be used no id does.
#[cold]
fn absent(named: Result<ObjectId>) -> Error {
    if !fabric::is_usable() {
        return unusable();
    }
    named.err().unwrap_or_else(|| Cause::Stale(Noun::Handle).into())
}

/// The error of each call in a forked child, or as the process ends. The latter is not logged: threads of NCCL poll until the process is
/// gone, and that is no fault.
#[cold]
fn unusable() -> Error {
    if fabric::is_forked() { Cause::Forked.into() } else { Error::logged(Cause::ProcessEnds) }
}

pub(crate) fn close_send(comm: ObjectId) -> Result<()> {
    close(comm, |endpoint| {
        fault::point("closeSend locked");
        endpoint.close_send(comm)
    })
}

pub(crate) fn close_receive(comm: ObjectId) -> Result<()> {
    close(comm, |endpoint| {
        fault::point("closeRecv locked");
        endpoint.close_receive(comm)
    })
}

pub(crate) fn close_listen(listener: ObjectId) -> Result<()> {
    close(listener, |endpoint| {
        fault::point("closeListen locked");
        endpoint.close_listen(listener)
    })
}

/// Closes an object, and its endpoint if nothing else is open on it.
fn close(id: ObjectId, object: impl FnOnce(&mut Endpoint) -> Result<()>) -> Result<()> {
    started()?;
    let is_unused = registry::with_any(id, |endpoint| {
        object(endpoint)?;
        Ok(endpoint.is_unused())
    })?;
    if is_unused {
        registry::close_if_unused(id.endpoint());
    }
    Ok(())
}

/// Runs a call that opens an object on the owner's endpoint. If the call fails, the endpoint is closed unless something is open on it: NCCL
/// would not close it later.
fn on_device<R, E: From<Error>>(
    owner: Owner,
    device: usize,
    body: impl FnOnce(&mut Endpoint) -> Result<R, E>,
) -> Result<R, E> {
    let known = plugin()?.devices.get(device)?;
    let (number_of_device, known) = (known.number, &known.device);
    let open = |number, class| {
        let open = || {
            fault::point("open");
            let (nics, capabilities) = opening::open_in_class(known, class)?;
            let (facts, settings) = (known.facts(number_of_device), known.settings.of_endpoints());
            Endpoint::open(number, facts, settings, nics, capabilities).map(Box::new)
        };
        catch_unwind(AssertUnwindSafe(open)).unwrap_or_else(|_| {
            // Nothing was opened, so no probe runs there.
            known.leave_probe(number);
            Err(PANICKED)
        })
    };
    let mut number = None;
    let begun = registry::with_owned(owner, number_of_device, open, |endpoint| {
        number = Some(endpoint.number());
        body(endpoint)
    });
    if let (Err(_), Some(number)) = (&begun, number) {
        registry::close_if_unused(number);
    }
    begun
}

/// Adds an endpoint's counters to the process's.
fn record(report: &Report) {
    if let Some(Ok(plugin)) = PLUGIN.get() {
        stats::add(&plugin.settings, report);
    }
}

/// Writes the process's counters with those of open endpoints, as the process ends.
fn record_open(open: fn() -> Vec<Report>) {
    if let Some(Ok(plugin)) = PLUGIN.get() {
        stats::write_at_exit(&plugin.settings, open);
    }
}

fn plugin() -> Result<&'static Plugin> {
    PLUGIN.get_or_init(|| {
        // After a panic the start is not repeated: part of it may have changed the process.
        catch_unwind(Plugin::start).unwrap_or(Err(StartError::Panicked))
    });
    started()
}

/// Why the start failed. Logged the first time only.
fn start_failure(failure: &StartError) -> Error {
    static LOGGED: AtomicBool = AtomicBool::new(false);
    let logged = LOGGED.swap(true, Ordering::Relaxed) || matches!(failure, StartError::Panicked);
    Error { logged, ..failure.into() }
}

/// The error behind [`Cause::NotStarted`].
pub(crate) fn start_error() -> Option<&'static StartError> {
    PLUGIN.get()?.as_ref().err()
}

/// The plugin, if `init` has started it in this process.
fn started() -> Result<&'static Plugin> {
    let plugin = PLUGIN.get().ok_or(Cause::NotInitialised)?.as_ref().map_err(start_failure)?;
    if !fabric::is_usable() {
        return Err(unusable());
    }
    Ok(plugin)
}

impl Plugin {
    fn start() -> Result<Self, StartError> {
        fault::point("start");
        let config = Config::read()?;
        let [version, commit] = [env!("CARGO_PKG_VERSION"), env!("BUILT_COMMIT")];
        let [target, profile] = [env!("BUILT_TARGET"), env!("BUILT_PROFILE")];
        log::info!("Initializing Ironrail {version} ({commit}, {target}, {profile})");
        environment::set_provider_variables(&config);
        dump::set_trigger(config.dump_trigger.as_deref());
        counter_pages::share(&fabric::host_name(), config.stats_page);
        let discovery = discovery::discover(&config)?;
        let settings = Arc::new(config);
        let rails = discovery.devices.iter().flat_map(|plan| &plan.rails).map(|rail| &rail.info);
        let order = order::of(rails);
        let device_memory = discovery.devices.iter().any(|plan| plan.gpu_memory.is_direct());
        environment::set_protocols(&settings, order::protocols(order, device_memory));
        environment::set_topology_file(&settings, discovery.hint.as_ref());
        let (library, plans) = (discovery.library, discovery.devices);
        let devices = DeviceTable::new(plans, library, Arc::clone(&settings));
        fabric::watch_forks();
        Ok(Self { devices, settings })
    }
}

fn no_device(device: usize) -> Error {
    Cause::NoDevice(i64::try_from(device).unwrap_or(i64::MAX)).into()
}
