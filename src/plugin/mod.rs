//! What the plugin does for NCCL, in our own types. `abi` is the only caller.

mod arrival;
mod assumed;
mod config;
mod device;
mod devices;
mod discovery;
mod dump;
mod environment;
mod explain;
mod failure;
mod gpu;
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

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use proto::Posting;

use crate::endpoint::Endpoint;
use crate::endpoint::broken::PANICKED;
use crate::endpoint::close::Report;
use crate::error::{Cause, Error, Noun, Result, SetupError};
use crate::fault;
use crate::object_id::{ObjectId, RawId};
use crate::types::counts;
use crate::types::{Buffer, HANDLE_BYTES, Tested, UserMemory};

pub(crate) use config::{Config, PREFIX};
use devices::DeviceTable;
pub(crate) use explain::explain;
pub(crate) use failure::StartError;

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
    /// Which device of a host it is, and which network it is on, where several do not reach each other.
    pub(crate) rail: Option<i16>,
    pub(crate) plane: Option<i16>,
    /// The devices that it was made of, as NCCL counts them; of one that was found, itself.
    pub(crate) parts: Vec<usize>,
}

/// What a communicator asks of the network: a DSCP, which providers that know traffic classes give to the rails' packets.
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
    /// With the traffic class that its communicator asks for, in this call.
    Thread(Option<TrafficClass>),
}

/// What a process has once: settings, libfabric, devices.
#[derive(Debug)]
struct Plugin {
    devices: DeviceTable,
    settings: Arc<Config>,
    process: fabric::Process,
}

static PLUGIN: OnceLock<Result<Plugin, StartError>> = OnceLock::new();

/// Reads settings, finds libfabric, discovers devices: once per process. Later calls return the first answer.
pub(crate) fn start() -> Result<()> {
    plugin().map(|plugin| plugin.devices.renew())
}

/// Opens a communicator context. v6 to v10 call `start` alone.
pub(crate) fn open_context(class: Option<TrafficClass>) -> Result<ObjectId> {
    let plugin = plugin()?;
    let (context, is_first) = registry::open_context(class)?;
    if is_first {
        plugin.devices.renew();
    }
    Ok(context)
}

/// Frees what is left of a context: listeners, comms, endpoints.
pub(crate) fn close_context(context: ObjectId) -> Result<()> {
    started()?;
    let left = registry::close_context(context)?;
    // Of endpoints that others share: the memory may be gone when this returns. All of them, whatever becomes of one.
    left.into_iter().map(|region| deregister(region, region)).fold(Ok(()), Result::and)
}

pub(crate) fn devices() -> Result<usize> {
    Ok(plugin()?.devices.count())
}

/// One device with all rails of these, as NCCL counts them, and its index.
pub(crate) fn make_device(parts: &[usize]) -> Result<usize> {
    plugin()?.devices.make(parts)
}

pub(crate) fn properties(device: usize) -> Result<&'static DeviceProperties> {
    plugin()?.devices.get(device).map(|known| &known.properties)
}

/// `max_group`: how many receives at most come in one group, in the caller's version.
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

/// `None`: not yet, call again with the same handle, which carries the state.
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

/// The device's probe is another endpoint's, whose caller may be away. Outside of the lock of the one that waits: each of two could
/// wait for the other.
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

/// The GPU that these bytes belong to, and the number of their buffer, for a comm whose device takes GPU memory, and takes it so.
pub(crate) fn gpu_of(
    comm: ObjectId,
    address: u64,
    len: usize,
    by_dmabuf: bool,
) -> Result<(i32, u64)> {
    started()?;
    registry::with(comm, |endpoint| {
        endpoint.check_comm(comm)?;
        endpoint.takes_gpu_memory(by_dmabuf)
    })?;
    // Outside of the lock: other connections of the endpoint go on.
    let owner = gpu::owner(address, len)?;
    Ok((owner.device, owner.buffer))
}

/// Returns when nothing touches the memory any more; past a bound it is an error, and the memory stays registered.
pub(crate) fn deregister(comm: ObjectId, region: ObjectId) -> Result<()> {
    let mut gone = registry::with(comm, |endpoint| {
        fault::point("deregMr locked");
        endpoint.deregister(region)
    })?;
    while !gone {
        // Without the lock in between: other connections of the endpoint go on.
        std::thread::yield_now();
        // An endpoint that was finalized meanwhile has closed the region.
        gone = registry::with(comm, |endpoint| Ok(endpoint.poll_deregister(region)))
            .unwrap_or(Ok(true))?;
    }
    Ok(())
}

/// An endpoint that is locked.
#[derive(Debug)]
pub(crate) struct Locked(registry::Locked);

/// The endpoint that an id leads to, locked.
#[inline(always)]
pub(crate) fn locked(name: RawId) -> Locked {
    Locked(registry::lock(name))
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

    /// `how`: what the table's version, or NCCL's mark in the request, says of the receives. Up to v8 a message is cut to its receive.
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

    /// `None`: nothing to wait for. NCCL asks for it after receives into GPU memory alone; all others get the reads, too.
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

    /// The sizes of the messages of the group that `test` last reported done.
    pub(crate) fn sizes(&self, count: usize) -> &[usize] {
        self.0.as_deref().map_or(&[], |endpoint| endpoint.sizes(count))
    }

    /// A panic has left the endpoint as it is.
    #[cold]
    pub(crate) fn panicked(mut self) {
        if let Some(endpoint) = self.0.as_deref_mut() {
            endpoint.panicked();
        }
    }
}

/// A call about a comm, or a request of its, has panicked before it touched the endpoint, or behind that.
#[cold]
pub(crate) fn panicked(about: RawId) {
    if let Some(about) = ObjectId::from_bits(about.bits()) {
        // One that is closed needs nothing.
        let _closed = registry::with_any(about, |endpoint| {
            endpoint.comm_panicked(about);
            Ok(())
        });
    }
}

/// The error of a call whose id leads to no endpoint.
#[cold]
fn absent(named: Result<ObjectId>) -> Error {
    named.err().unwrap_or_else(|| Cause::Stale(Noun::Handle).into())
}

pub(crate) fn close_send(comm: ObjectId) -> Result<()> {
    registry::with_any(comm, |endpoint| {
        fault::point("closeSend locked");
        endpoint.close_send(comm)
    })?;
    registry::close_if_unused(comm);
    Ok(())
}

pub(crate) fn close_receive(comm: ObjectId) -> Result<()> {
    registry::with_any(comm, |endpoint| {
        fault::point("closeRecv locked");
        endpoint.close_receive(comm)
    })?;
    registry::close_if_unused(comm);
    Ok(())
}

pub(crate) fn close_listen(listener: ObjectId) -> Result<()> {
    registry::with_any(listener, |endpoint| {
        fault::point("closeListen locked");
        endpoint.close_listen(listener)
    })?;
    registry::close_if_unused(listener);
    Ok(())
}

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
            // Nothing was opened, and nothing is probed there.
            known.leave_probe(number);
            Err(PANICKED)
        })
    };
    registry::with_owned(owner, number_of_device, open, body)
}

/// Adds an endpoint's counters to the process's.
fn record(report: &Report) {
    if let Some(Ok(plugin)) = PLUGIN.get() {
        stats::add(&plugin.settings, report);
    }
}

fn plugin() -> Result<&'static Plugin> {
    PLUGIN.get_or_init(|| {
        // A start that was cut off is not begun anew: half of it may have changed the process.
        catch_unwind(Plugin::start).unwrap_or(Err(StartError::Panicked))
    });
    started()
}

/// Why the start failed: logged the first time only.
fn again(failure: &StartError) -> Error {
    static LOGGED: AtomicBool = AtomicBool::new(false);
    let said = LOGGED.swap(true, Ordering::Relaxed) || matches!(failure, StartError::Panicked);
    Error { logged: said, ..failure.into() }
}

/// What [`Cause::NotStarted`] stands for.
pub(crate) fn start_error() -> Option<&'static StartError> {
    PLUGIN.get()?.as_ref().err()
}

/// The plugin as `init` left it.
fn started() -> Result<&'static Plugin> {
    let plugin = PLUGIN.get().ok_or(Cause::NotInitialised)?.as_ref().map_err(again)?;
    if plugin.process.is_this() {
        return Ok(plugin);
    }
    Err(Cause::Forked.into())
}

impl Plugin {
    fn start() -> Result<Self, StartError> {
        fault::point("start");
        let config = Config::read()?;
        let [version, target, profile] =
            [env!("CARGO_PKG_VERSION"), env!("BUILT_TARGET"), env!("BUILT_PROFILE")];
        log::info!("Initializing Ironrail {version} ({target}, {profile})");
        environment::prepare(&config);
        dump::watch(config.dump_trigger.as_deref());
        counts::share(&device::host_name(), config.stats_page);
        let discovery = discovery::discover(&config)?;
        let settings = Arc::new(config);
        let rails = discovery.devices.iter().flat_map(|plan| &plan.rails).map(|rail| &rail.info);
        let order = order::of(&discovery.library, rails);
        let device_memory = discovery.devices.iter().any(|plan| plan.gpu_memory.is_direct());
        environment::steer(&settings, order::protocols(order, device_memory));
        environment::widen(&settings, discovery.hint.as_ref());
        let (library, plans) = (discovery.library, discovery.devices);
        let devices = DeviceTable::new(plans, library, Arc::clone(&settings));
        Ok(Self { devices, settings, process: fabric::Process::this() })
    }
}

fn no_device(device: usize) -> Error {
    Cause::NoDevice(i64::try_from(device).unwrap_or(i64::MAX)).into()
}
