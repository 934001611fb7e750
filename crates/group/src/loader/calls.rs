//! The seven tables as one: each call in the forms it has had, the right one chosen when the table is read.

use std::ffi::CStr;

use net_abi::{
    AcceptV6, AcceptV7, Close, ConnectV6, ConnectV7, ConnectV10, ConnectV11, DeregMr, Devices,
    Finalize, GetPropertiesV6, GetPropertiesV7, GetPropertiesV8, GetPropertiesV9, GetPropertiesV11,
    GetPropertiesV12, Iflush, InitV6, InitV10, InitV11, IrecvV6, IrecvV9, IrecvV10, IsendV6,
    IsendV9, IsendV10, ListenV6, ListenV11, NetV6, NetV7, NetV8, NetV9, NetV10, NetV11, NetV12,
    RegMrDmaBuf, RegMrV6, RegMrV8, SetNetAttr, Test,
};

use super::properties::text;

/// A table's calls. They may be called while the library they came from is open.
#[derive(Clone, Debug)]
pub(super) struct Calls {
    pub(super) version: u32,
    pub(super) name: String,
    pub(super) init: Init,
    pub(super) devices: Devices,
    pub(super) properties: GetProperties,
    pub(super) listen: Listen,
    pub(super) connect: Connect,
    pub(super) accept: Accept,
    pub(super) register: Register,
    pub(super) deregister: DeregMr,
    pub(super) isend: Isend,
    pub(super) irecv: Irecv,
    pub(super) iflush: Iflush,
    pub(super) test: Test,
    pub(super) close_send: Close,
    pub(super) close_receive: Close,
    pub(super) close_listen: Close,
    pub(super) finalize: Finalize,
    pub(super) set_attributes: SetNetAttr,
    pub(super) register_dmabuf: RegMrDmaBuf,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Init {
    /// Once per process.
    V6(InitV6),
    V10(InitV10),
    /// Once per communicator.
    V11(InitV11),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum GetProperties {
    V6(GetPropertiesV6),
    V7(GetPropertiesV7),
    V8(GetPropertiesV8),
    V9(GetPropertiesV9),
    V11(GetPropertiesV11),
    V12(GetPropertiesV12),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Listen {
    V6(ListenV6),
    V11(ListenV11),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Connect {
    V6(ConnectV6),
    V7(ConnectV7),
    V10(ConnectV10),
    V11(ConnectV11),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Accept {
    V6(AcceptV6),
    V7(AcceptV7),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Register {
    V6(RegMrV6),
    V8(RegMrV8),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Isend {
    V6(IsendV6),
    V9(IsendV9),
    V10(IsendV10),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Irecv {
    V6(IrecvV6),
    V9(IrecvV9),
    V10(IrecvV10),
}

/// Fills [`Calls`] from a table; names the form of each call that has changed over time.
macro_rules! calls {
    ($table:ident, $version:literal, finalize $finalize:expr, attributes $attributes:expr, $($field:ident: $kind:ident::$form:ident($call:ident)),* $(,)?) => {
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
    pub(super) unsafe fn read(version: u32, symbol: *const libc::c_void) -> Result<Self, String> {
        let calls = match version {
            6 => {
                // SAFETY: the caller says that this table stands there; the same for those below.
                let t = unsafe { *symbol.cast::<NetV6>() };
                calls!(t, 6, finalize None, attributes None, init: Init::V6(init), properties: GetProperties::V6(get_properties),
                    listen: Listen::V6(listen), connect: Connect::V6(connect), accept: Accept::V6(accept),
                    register: Register::V6(reg_mr), isend: Isend::V6(isend), irecv: Irecv::V6(irecv))
            }
            7 => {
                // SAFETY: as above.
                let t = unsafe { *symbol.cast::<NetV7>() };
                calls!(t, 7, finalize None, attributes None, init: Init::V6(init), properties: GetProperties::V7(get_properties),
                    listen: Listen::V6(listen), connect: Connect::V7(connect), accept: Accept::V7(accept),
                    register: Register::V6(reg_mr), isend: Isend::V6(isend), irecv: Irecv::V6(irecv))
            }
            8 => {
                // SAFETY: as above.
                let t = unsafe { *symbol.cast::<NetV8>() };
                calls!(t, 8, finalize None, attributes None, init: Init::V6(init), properties: GetProperties::V8(get_properties),
                    listen: Listen::V6(listen), connect: Connect::V7(connect), accept: Accept::V7(accept),
                    register: Register::V8(reg_mr), isend: Isend::V6(isend), irecv: Irecv::V6(irecv))
            }
            9 => {
                // SAFETY: as above.
                let t = unsafe { *symbol.cast::<NetV9>() };
                calls!(t, 9, finalize None, attributes None, init: Init::V6(init), properties: GetProperties::V9(get_properties),
                    listen: Listen::V6(listen), connect: Connect::V7(connect), accept: Accept::V7(accept),
                    register: Register::V8(reg_mr), isend: Isend::V9(isend), irecv: Irecv::V9(irecv))
            }
            10 => {
                // SAFETY: as above.
                let t = unsafe { *symbol.cast::<NetV10>() };
                calls!(t, 10, finalize None, attributes None, init: Init::V10(init), properties: GetProperties::V9(get_properties),
                    listen: Listen::V6(listen), connect: Connect::V10(connect), accept: Accept::V7(accept),
                    register: Register::V8(reg_mr), isend: Isend::V10(isend), irecv: Irecv::V10(irecv))
            }
            11 => {
                // SAFETY: as above.
                let t = unsafe { *symbol.cast::<NetV11>() };
                calls!(t, 11, finalize t.finalize, attributes t.set_net_attr, init: Init::V11(init), properties: GetProperties::V11(get_properties),
                    listen: Listen::V11(listen), connect: Connect::V11(connect), accept: Accept::V7(accept),
                    register: Register::V8(reg_mr), isend: Isend::V10(isend), irecv: Irecv::V10(irecv))
            }
            12 => {
                // SAFETY: as above.
                let t = unsafe { *symbol.cast::<NetV12>() };
                calls!(t, 12, finalize t.finalize, attributes t.set_net_attr, init: Init::V11(init), properties: GetProperties::V12(get_properties),
                    listen: Listen::V11(listen), connect: Connect::V11(connect), accept: Accept::V7(accept),
                    register: Register::V8(reg_mr), isend: Isend::V10(isend), irecv: Irecv::V10(irecv))
            }
            _ => return Err(format!("there is no table of version {version}")),
        };
        calls.complete()
    }

    /// The name of a version's symbol.
    pub(super) fn symbol(version: u32) -> Option<&'static CStr> {
        net_abi::SYMBOLS.iter().find(|(number, _)| *number == version).map(|(_, name)| *name)
    }

    /// A null where NCCL allows none is refused when the table is read, not when the call is made.
    fn complete(self) -> Result<Self, String> {
        let missing = [
            ("init", matches!(self.init, Init::V6(None) | Init::V10(None) | Init::V11(None))),
            ("devices", self.devices.is_none()),
            ("getProperties", !self.tells_properties()),
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

    fn tells_properties(&self) -> bool {
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
