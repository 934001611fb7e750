//! The seven tables as one, and the only place that calls through them: each call in all its historic forms; the right form is chosen when
//! the table is read.
//!
//! Nothing is checked here. The users of this module keep the contract, as a group's own types do, or break it deliberately.

use std::ffi::{CStr, c_int, c_void};
use std::fmt;
use std::mem;

use net_abi::{
    AcceptV6, AcceptV7, Close, CommConfig, ConnectV6, ConnectV7, ConnectV10, ConnectV11, DeregMr,
    DevHandle, Devices, Finalize, GetPropertiesV6, GetPropertiesV7, GetPropertiesV8,
    GetPropertiesV9, GetPropertiesV11, GetPropertiesV12, Iflush, InitV6, InitV10, InitV11, IrecvV6,
    IrecvV9, IrecvV10, IsendV6, IsendV9, IsendV10, ListenV6, ListenV11, Logger, MAX_GROUP,
    MakeVDeviceV9, MakeVDeviceV12, NetAttr, NetV6, NetV7, NetV8, NetV9, NetV10, NetV11, NetV12,
    Profiler, PropertiesV6, PropertiesV7, PropertiesV8, PropertiesV9, PropertiesV11, PropertiesV12,
    RegMrDmaBuf, RegMrV6, RegMrV8, ResultCode, SetNetAttr, Test, VProps4, VProps8,
};

use crate::properties::{Properties, text};

/// A table's calls. They may be called while the library they came from is open.
#[derive(Clone, Debug)]
pub struct Calls {
    pub(crate) version: u32,
    pub(crate) name: String,
    init: Init,
    devices: Devices,
    pub(crate) properties: GetProperties,
    listen: Listen,
    connect: Connect,
    accept: Accept,
    register: Register,
    deregister: DeregMr,
    isend: Isend,
    irecv: Irecv,
    iflush: Iflush,
    test: Test,
    close_send: Close,
    close_receive: Close,
    close_listen: Close,
    finalize: Finalize,
    set_attributes: SetNetAttr,
    make: Make,
    register_dmabuf: RegMrDmaBuf,
}

#[derive(Clone, Copy, Debug)]
enum Init {
    /// Called once per process.
    V6(InitV6),
    V10(InitV10),
    /// Called once per communicator.
    V11(InitV11),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum GetProperties {
    V6(GetPropertiesV6),
    V7(GetPropertiesV7),
    V8(GetPropertiesV8),
    V9(GetPropertiesV9),
    V11(GetPropertiesV11),
    V12(GetPropertiesV12),
}

#[derive(Clone, Copy, Debug)]
enum Listen {
    V6(ListenV6),
    V11(ListenV11),
}

#[derive(Clone, Copy, Debug)]
enum Connect {
    V6(ConnectV6),
    V7(ConnectV7),
    V10(ConnectV10),
    V11(ConnectV11),
}

#[derive(Clone, Copy, Debug)]
enum Accept {
    V6(AcceptV6),
    V7(AcceptV7),
}

#[derive(Clone, Copy, Debug)]
enum Register {
    V6(RegMrV6),
    V8(RegMrV8),
}

#[derive(Clone, Copy, Debug)]
enum Isend {
    V6(IsendV6),
    V9(IsendV9),
    V10(IsendV10),
}

#[derive(Clone, Copy, Debug)]
enum Irecv {
    V6(IrecvV6),
    V9(IrecvV9),
    V10(IrecvV10),
}

#[derive(Clone, Copy, Debug)]
enum Make {
    None,
    V9(MakeVDeviceV9),
    V12(MakeVDeviceV12),
}

/// A length that a version's `int` cannot represent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong(pub usize);

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes are too many for this table's `int`", self.0)
    }
}

/// The arrays of an `irecv`; each has as many entries as the call's count.
#[derive(Clone, Copy, Debug)]
pub struct Lists {
    pub data: *mut *mut c_void,
    pub sizes: *mut usize,
    pub tags: *mut c_int,
    pub regions: *mut *mut c_void,
    /// As many profiler handles, or null. Not passed before v10.
    pub parents: *mut *mut c_void,
}

/// The calls, with the arguments of the newest version: older tables get those that they have.
///
/// # Safety
///
/// For each: the library is open, and every argument is what NCCL's contract allows, or what the plugin is known to tolerate.
impl Calls {
    /// Calls `init`; up to v10 that is once per process, without a context.
    ///
    /// # Safety
    ///
    /// See above.
    pub unsafe fn init(
        &self,
        context: *mut *mut c_void,
        communicator: u64,
        config: *mut CommConfig,
        logger: Logger,
        profiler: Profiler,
    ) -> ResultCode {
        match self.init {
            // SAFETY: passed on; the same for all calls below.
            Init::V6(init) => unsafe { there(init)(logger) },
            // SAFETY: as above.
            Init::V10(init) => unsafe { there(init)(logger, profiler) },
            // SAFETY: as above.
            Init::V11(init) => unsafe {
                there(init)(context, communicator, config, logger, profiler)
            },
        }
    }

    /// Whether `init` and `finalize` are called for every communicator.
    pub fn has_contexts(&self) -> bool {
        matches!(self.init, Init::V11(_))
    }

    /// Calls `finalize`; success before v11, where that does not exist.
    ///
    /// # Safety
    ///
    /// See above.
    pub unsafe fn finalize(&self, context: *mut c_void) -> ResultCode {
        // SAFETY: as above.
        self.finalize.map_or(ResultCode::SUCCESS, |finalize| unsafe { finalize(context) })
    }

    /// # Safety
    ///
    /// See above.
    pub unsafe fn devices(&self, count: *mut c_int) -> ResultCode {
        // SAFETY: as above.
        unsafe { there(self.devices)(count) }
    }

    /// # Safety
    ///
    /// See above.
    pub unsafe fn listen(
        &self,
        context: *mut c_void,
        device: c_int,
        handle: *mut c_void,
        listener: *mut *mut c_void,
    ) -> ResultCode {
        match self.listen {
            // SAFETY: as above.
            Listen::V6(listen) => unsafe { there(listen)(device, handle, listener) },
            // SAFETY: as above.
            Listen::V11(listen) => unsafe { there(listen)(context, device, handle, listener) },
        }
    }

    /// `config` is passed to v10 only, whose contexts have no configuration.
    ///
    /// # Safety
    ///
    /// See above.
    pub unsafe fn connect(
        &self,
        context: *mut c_void,
        device: c_int,
        config: *mut CommConfig,
        handle: *mut c_void,
        comm: *mut *mut c_void,
        device_comm: *mut *mut DevHandle,
    ) -> ResultCode {
        match self.connect {
            // SAFETY: as above.
            Connect::V6(connect) => unsafe { there(connect)(device, handle, comm) },
            // SAFETY: as above.
            Connect::V7(connect) => unsafe { there(connect)(device, handle, comm, device_comm) },
            // SAFETY: as above.
            Connect::V10(connect) => unsafe {
                there(connect)(device, config, handle, comm, device_comm)
            },
            // SAFETY: as above.
            Connect::V11(connect) => unsafe {
                there(connect)(context, device, handle, comm, device_comm)
            },
        }
    }

    /// # Safety
    ///
    /// See above.
    pub unsafe fn accept(
        &self,
        listener: *mut c_void,
        comm: *mut *mut c_void,
        device_comm: *mut *mut DevHandle,
    ) -> ResultCode {
        match self.accept {
            // SAFETY: as above.
            Accept::V6(accept) => unsafe { there(accept)(listener, comm) },
            // SAFETY: as above.
            Accept::V7(accept) => unsafe { there(accept)(listener, comm, device_comm) },
        }
    }

    /// # Safety
    ///
    /// See above.
    pub unsafe fn reg_mr(
        &self,
        comm: *mut c_void,
        data: *mut c_void,
        len: usize,
        kind: c_int,
        region: *mut *mut c_void,
    ) -> Result<ResultCode, TooLong> {
        Ok(match self.register {
            // SAFETY: as above.
            Register::V6(register) => unsafe {
                there(register)(comm, data, int(len)?, kind, region)
            },
            // SAFETY: as above.
            Register::V8(register) => unsafe { there(register)(comm, data, len, kind, region) },
        })
    }

    /// Whether the table has an entry for DMA-BUFs.
    pub fn takes_dmabuf(&self) -> bool {
        self.register_dmabuf.is_some()
    }

    /// None: the table lacks the call.
    ///
    /// # Safety
    ///
    /// See above.
    #[allow(clippy::too_many_arguments, reason = "as many as NCCL passes")]
    pub unsafe fn reg_mr_dma_buf(
        &self,
        comm: *mut c_void,
        data: *mut c_void,
        len: usize,
        kind: c_int,
        offset: u64,
        descriptor: c_int,
        region: *mut *mut c_void,
    ) -> Option<ResultCode> {
        let register = self.register_dmabuf?;
        // SAFETY: as above.
        Some(unsafe { register(comm, data, len, kind, offset, descriptor, region) })
    }

    /// # Safety
    ///
    /// See above.
    pub unsafe fn dereg_mr(&self, comm: *mut c_void, region: *mut c_void) -> ResultCode {
        // SAFETY: as above.
        unsafe { there(self.deregister)(comm, region) }
    }

    /// # Safety
    ///
    /// See above.
    #[inline]
    #[allow(clippy::too_many_arguments, reason = "as many as NCCL passes")]
    pub unsafe fn isend(
        &self,
        comm: *mut c_void,
        data: *mut c_void,
        len: usize,
        tag: c_int,
        region: *mut c_void,
        parent: *mut c_void,
        request: *mut *mut c_void,
    ) -> Result<ResultCode, TooLong> {
        Ok(match self.isend {
            // SAFETY: as above.
            Isend::V6(isend) => unsafe {
                there(isend)(comm, data, int(len)?, tag, region, request)
            },
            // SAFETY: as above.
            Isend::V9(isend) => unsafe { there(isend)(comm, data, len, tag, region, request) },
            // SAFETY: as above.
            Isend::V10(isend) => unsafe {
                there(isend)(comm, data, len, tag, region, parent, request)
            },
        })
    }

    /// [`Calls::isend`] of a version with `int` sizes, for any value of them; None from v9 on.
    ///
    /// # Safety
    ///
    /// See above.
    pub unsafe fn isend_int(
        &self,
        comm: *mut c_void,
        data: *mut c_void,
        len: c_int,
        tag: c_int,
        region: *mut c_void,
        request: *mut *mut c_void,
    ) -> Option<ResultCode> {
        let Isend::V6(isend) = self.isend else { return None };
        // SAFETY: as above.
        Some(unsafe { there(isend)(comm, data, len, tag, region, request) })
    }

    /// A device's properties, from whatever struct the table has.
    ///
    /// # Safety
    ///
    /// See above.
    pub unsafe fn get_properties(&self, device: c_int) -> Result<Properties, ResultCode> {
        macro_rules! fetch {
            ($get:ident, $type:ident, $from:ident) => {{
                // SAFETY: all-zero bits are a value of this C struct.
                let mut raw: $type = unsafe { mem::zeroed() };
                // SAFETY: the place lives through the call; as above for the rest.
                let code = unsafe { there($get)(device, &raw mut raw) };
                if !code.is_success() {
                    return Err(code);
                }
                // SAFETY: a plugin's strings live as long as it is loaded.
                unsafe { Properties::$from(&raw) }
            }};
        }
        Ok(match self.properties {
            GetProperties::V6(get) => fetch!(get, PropertiesV6, from_v6),
            GetProperties::V7(get) => fetch!(get, PropertiesV7, from_v7),
            GetProperties::V8(get) => fetch!(get, PropertiesV8, from_v8),
            GetProperties::V9(get) => fetch!(get, PropertiesV9, from_v9),
            GetProperties::V11(get) => fetch!(get, PropertiesV11, from_v11),
            GetProperties::V12(get) => fetch!(get, PropertiesV12, from_v12),
        })
    }

    /// NCCL's struct of the newest version; None with a table before v12.
    ///
    /// # Safety
    ///
    /// See above.
    pub unsafe fn get_properties_v12(
        &self,
        device: c_int,
        properties: *mut PropertiesV12,
    ) -> Option<ResultCode> {
        let GetProperties::V12(get) = self.properties else { return None };
        // SAFETY: as above.
        Some(unsafe { there(get)(device, properties) })
    }

    /// # Safety
    ///
    /// See above. Versions with `int` sizes read at most [`MAX_GROUP`] of them.
    #[inline]
    pub unsafe fn irecv(
        &self,
        comm: *mut c_void,
        count: c_int,
        lists: &Lists,
        request: *mut *mut c_void,
    ) -> Result<ResultCode, TooLong> {
        let Lists { data, sizes, tags, regions, parents } = *lists;
        Ok(match self.irecv {
            Irecv::V6(irecv) => {
                let mut short = [c_int::MAX; MAX_GROUP];
                let count_read = usize::try_from(count).unwrap_or(0);
                for (index, short) in short.iter_mut().enumerate().take(count_read) {
                    // SAFETY: within the list, as the caller says.
                    let size = unsafe { sizes.add(index) };
                    // SAFETY: as above.
                    *short = int(unsafe { size.read() })?;
                }
                let sizes = short.as_mut_ptr();
                // SAFETY: as above.
                unsafe { there(irecv)(comm, count, data, sizes, tags, regions, request) }
            }
            // SAFETY: as above.
            Irecv::V9(irecv) => unsafe {
                there(irecv)(comm, count, data, sizes, tags, regions, request)
            },
            // SAFETY: as above.
            Irecv::V10(irecv) => unsafe {
                there(irecv)(comm, count, data, sizes, tags, regions, parents, request)
            },
        })
    }

    /// # Safety
    ///
    /// See above.
    pub unsafe fn iflush(
        &self,
        comm: *mut c_void,
        count: c_int,
        data: *mut *mut c_void,
        sizes: *mut c_int,
        regions: *mut *mut c_void,
        request: *mut *mut c_void,
    ) -> ResultCode {
        // SAFETY: as above.
        unsafe { there(self.iflush)(comm, count, data, sizes, regions, request) }
    }

    /// # Safety
    ///
    /// See above.
    #[inline]
    pub unsafe fn test(
        &self,
        request: *mut c_void,
        done: *mut c_int,
        sizes: *mut c_int,
    ) -> ResultCode {
        // SAFETY: as above.
        unsafe { there(self.test)(request, done, sizes) }
    }

    /// # Safety
    ///
    /// See above.
    pub unsafe fn close_listen(&self, listener: *mut c_void) -> ResultCode {
        // SAFETY: as above.
        unsafe { there(self.close_listen)(listener) }
    }

    /// # Safety
    ///
    /// See above.
    pub unsafe fn close_send(&self, comm: *mut c_void) -> ResultCode {
        // SAFETY: as above.
        unsafe { there(self.close_send)(comm) }
    }

    /// # Safety
    ///
    /// See above.
    pub unsafe fn close_recv(&self, comm: *mut c_void) -> ResultCode {
        // SAFETY: as above.
        unsafe { there(self.close_receive)(comm) }
    }

    /// None: the plugin accepts no hints.
    ///
    /// # Safety
    ///
    /// See above.
    pub unsafe fn set_net_attr(
        &self,
        context: *mut c_void,
        hints: *mut NetAttr,
    ) -> Option<ResultCode> {
        let set = self.set_attributes?;
        // SAFETY: as above.
        Some(unsafe { set(context, hints) })
    }

    /// None: the plugin fuses no devices. `parts.ndevs` says how many entries count; older tables get the first four. With more a plugin that does
    /// not check the number reads past them.
    ///
    /// # Safety
    ///
    /// See above.
    pub unsafe fn make_device(&self, device: *mut c_int, mut parts: VProps8) -> Option<ResultCode> {
        match self.make {
            Make::None => None,
            Make::V9(make) => {
                let [first, second, third, fourth, ..] = parts.devs;
                let mut parts =
                    VProps4 { ndevs: parts.ndevs, devs: [first, second, third, fourth] };
                // SAFETY: as above.
                Some(unsafe { make?(device, &raw mut parts) })
            }
            // SAFETY: as above.
            Make::V12(make) => Some(unsafe { make?(device, &raw mut parts) }),
        }
    }
}

#[inline]
fn there<T>(call: Option<T>) -> T {
    call.expect("a table without it was refused when it was read")
}

#[inline]
pub(crate) fn int(len: usize) -> Result<c_int, TooLong> {
    c_int::try_from(len).map_err(|_| TooLong(len))
}

/// Fills [`Calls`] from a table; selects the form of each call that has changed over time.
macro_rules! calls {
    ($table:ident, $version:literal, finalize $finalize:expr, attributes $attributes:expr, make $make:expr, $($field:ident: $kind:ident::$form:ident($call:ident)),* $(,)?) => {
        Calls {
            version: $version,
            // SAFETY: the caller vouches for the table, and so for its name.
            name: unsafe { text($table.name) }.unwrap_or_default(),
            devices: $table.devices,
            deregister: $table.dereg_mr,
            iflush: $table.iflush,
            test: $table.test,
            close_send: $table.close_send,
            close_receive: $table.close_recv,
            close_listen: $table.close_listen,
            finalize: $finalize,
            set_attributes: $attributes,
            make: $make,
            register_dmabuf: $table.reg_mr_dma_buf,
            $($field: $kind::$form($table.$call),)*
        }
    };
}

impl Calls {
    /// Reads the table of `version`.
    ///
    /// # Safety
    ///
    /// `symbol` is the address of a plugin's table of that version.
    pub(crate) unsafe fn read(version: u32, symbol: *const c_void) -> Result<Self, String> {
        let calls = match version {
            6 => {
                // SAFETY: the caller guarantees that this table is there; the same for those below.
                let t = unsafe { *symbol.cast::<NetV6>() };
                calls!(t, 6, finalize None, attributes None, make Make::None, init: Init::V6(init), properties: GetProperties::V6(get_properties),
                    listen: Listen::V6(listen), connect: Connect::V6(connect), accept: Accept::V6(accept),
                    register: Register::V6(reg_mr), isend: Isend::V6(isend), irecv: Irecv::V6(irecv))
            }
            7 => {
                // SAFETY: as above.
                let t = unsafe { *symbol.cast::<NetV7>() };
                calls!(t, 7, finalize None, attributes None, make Make::None, init: Init::V6(init), properties: GetProperties::V7(get_properties),
                    listen: Listen::V6(listen), connect: Connect::V7(connect), accept: Accept::V7(accept),
                    register: Register::V6(reg_mr), isend: Isend::V6(isend), irecv: Irecv::V6(irecv))
            }
            8 => {
                // SAFETY: as above.
                let t = unsafe { *symbol.cast::<NetV8>() };
                calls!(t, 8, finalize None, attributes None, make Make::None, init: Init::V6(init), properties: GetProperties::V8(get_properties),
                    listen: Listen::V6(listen), connect: Connect::V7(connect), accept: Accept::V7(accept),
                    register: Register::V8(reg_mr), isend: Isend::V6(isend), irecv: Irecv::V6(irecv))
            }
            9 => {
                // SAFETY: as above.
                let t = unsafe { *symbol.cast::<NetV9>() };
                calls!(t, 9, finalize None, attributes None, make Make::V9(t.make_v_device), init: Init::V6(init), properties: GetProperties::V9(get_properties),
                    listen: Listen::V6(listen), connect: Connect::V7(connect), accept: Accept::V7(accept),
                    register: Register::V8(reg_mr), isend: Isend::V9(isend), irecv: Irecv::V9(irecv))
            }
            10 => {
                // SAFETY: as above.
                let t = unsafe { *symbol.cast::<NetV10>() };
                calls!(t, 10, finalize None, attributes None, make Make::V9(t.make_v_device), init: Init::V10(init), properties: GetProperties::V9(get_properties),
                    listen: Listen::V6(listen), connect: Connect::V10(connect), accept: Accept::V7(accept),
                    register: Register::V8(reg_mr), isend: Isend::V10(isend), irecv: Irecv::V10(irecv))
            }
            11 => {
                // SAFETY: as above.
                let t = unsafe { *symbol.cast::<NetV11>() };
                calls!(t, 11, finalize t.finalize, attributes t.set_net_attr, make Make::V9(t.make_v_device), init: Init::V11(init), properties: GetProperties::V11(get_properties),
                    listen: Listen::V11(listen), connect: Connect::V11(connect), accept: Accept::V7(accept),
                    register: Register::V8(reg_mr), isend: Isend::V10(isend), irecv: Irecv::V10(irecv))
            }
            12 => {
                // SAFETY: as above.
                let t = unsafe { *symbol.cast::<NetV12>() };
                calls!(t, 12, finalize t.finalize, attributes t.set_net_attr, make Make::V12(t.make_v_device), init: Init::V11(init), properties: GetProperties::V12(get_properties),
                    listen: Listen::V11(listen), connect: Connect::V11(connect), accept: Accept::V7(accept),
                    register: Register::V8(reg_mr), isend: Isend::V10(isend), irecv: Irecv::V10(irecv))
            }
            _ => return Err(format!("there is no table of version {version}")),
        };
        calls.complete()
    }

    /// The symbol of a version's table.
    pub(crate) fn symbol(version: u32) -> Option<&'static CStr> {
        net_abi::SYMBOLS.iter().find(|(number, _)| *number == version).map(|(_, name)| *name)
    }

    /// Null calls that NCCL does not allow are refused when the table is read, not when the call is made.
    fn complete(self) -> Result<Self, String> {
        let missing = [
            ("init", matches!(self.init, Init::V6(None) | Init::V10(None) | Init::V11(None))),
            ("devices", self.devices.is_none()),
            ("getProperties", !self.has_properties()),
            ("connect", !self.connects()),
            ("iflush", self.iflush.is_none()),
            ("listen", matches!(self.listen, Listen::V6(None) | Listen::V11(None))),
            ("accept", matches!(self.accept, Accept::V6(None) | Accept::V7(None))),
            ("regMr", matches!(self.register, Register::V6(None) | Register::V8(None))),
            ("deregMr", self.deregister.is_none()),
            ("isend", matches!(self.isend, Isend::V6(None) | Isend::V9(None) | Isend::V10(None))),
            ("irecv", matches!(self.irecv, Irecv::V6(None) | Irecv::V9(None) | Irecv::V10(None))),
            ("test", self.test.is_none()),
            ("closeSend", self.close_send.is_none()),
            ("closeRecv", self.close_receive.is_none()),
            ("closeListen", self.close_listen.is_none()),
            ("finalize", self.version >= 11 && self.finalize.is_none()),
        ];
        match missing.iter().find(|(_, missing)| *missing) {
            None => Ok(self),
            Some((call, _)) => Err(format!("the v{} table has no {call}", self.version)),
        }
    }

    fn has_properties(&self) -> bool {
        match self.properties {
            GetProperties::V6(call) => call.is_some(),
            GetProperties::V7(call) => call.is_some(),
            GetProperties::V8(call) => call.is_some(),
            GetProperties::V9(call) => call.is_some(),
            GetProperties::V11(call) => call.is_some(),
            GetProperties::V12(call) => call.is_some(),
        }
    }

    fn connects(&self) -> bool {
        match self.connect {
            Connect::V6(call) => call.is_some(),
            Connect::V7(call) => call.is_some(),
            Connect::V10(call) => call.is_some(),
            Connect::V11(call) => call.is_some(),
        }
    }
}
