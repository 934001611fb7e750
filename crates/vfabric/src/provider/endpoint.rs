//! Endpoints: opened, bound, enabled, named, closed. Posts are in `messages`, `tagged` and `rma`.

use std::ffi::{c_int, c_void};

use libfabric_sys as sys;

use super::object::Object;
use super::table::{CollectiveOps, table};
use super::{answer, answer_size, info, messages, number, rma, tagged, vector};
use crate::engine::{Endpoint, EndpointAsked, Engine, Errno, Id, engine};

table! {
    fn objects() -> sys::fi_ops { close: close, bind: bind, control: control }
}

table! {
    fn calls() -> sys::fi_ops_ep { cancel: cancel, getopt: get_option, setopt: set_option }
}

table! {
    fn names() -> sys::fi_ops_cm { getname: name }
}

table! {
    fn atomics() -> sys::fi_ops_atomic {}
}

table! {
    fn collectives() -> CollectiveOps {}
}

/// fi_endpoint(3).
pub(super) unsafe extern "C" fn open(
    domain: *mut sys::fid_domain,
    info: *mut sys::fi_info,
    endpoint: *mut *mut sys::fid_ep,
    context: *mut c_void,
) -> c_int {
    // SAFETY: libfabric gives a domain of ours.
    let Some(domain) = (unsafe { Object::of(domain) }) else { return -sys::FI_EINVAL };
    // SAFETY: the user gives an info of ours, or a copy.
    let transmit = unsafe { (*info).tx_attr };
    // SAFETY: as above.
    let caps = unsafe { (*info).caps };
    // SAFETY: as above: null or valid.
    let transmit = unsafe { transmit.as_ref() }.copied().unwrap_or_default();
    // SAFETY: as above.
    let receive = unsafe { (*info).rx_attr };
    // SAFETY: as above: null or valid.
    let receive = unsafe { receive.as_ref() }.copied().unwrap_or_default();
    let class = transmit.tclass;
    // SAFETY: as above.
    let attributes = unsafe { (*info).domain_attr };
    // SAFETY: as above: null or valid.
    let attributes = unsafe { attributes.as_ref() };
    // SAFETY: a domain's name is null or a C string.
    let nic = attributes.and_then(|attributes| unsafe { info::nic_of(attributes.name) });
    let _marks = domain.enter("fi_endpoint");
    if !engine().settings.profile.classes.has(class) {
        engine().counters.count("endpoints.class_refused");
        return -sys::FI_EINVAL;
    }
    if caps & (sys::FI_MSG | sys::FI_TAGGED) == 0 && !engine().settings.one_sided {
        engine().counters.count("endpoints.one_sided_refused");
        return -sys::FI_EINVAL;
    }
    let asked = EndpointAsked {
        nic,
        context: number(context),
        initiates: info::transmit_caps(caps, transmit.caps),
        accepts: info::receive_caps(caps, receive.caps),
        transmit_flags: transmit.op_flags,
        receive_flags: receive.op_flags,
        orders: transmit.msg_order,
        depth: transmit.size,
    };
    let opened = engine().open_endpoint(domain.id, asked);
    if opened.is_ok() && asked.accepts & sys::FI_RECV != 0 {
        engine().counters.count("endpoints.receiving");
    }
    match class {
        _ if opened.is_err() => {}
        sys::FI_TC_UNSPEC => {}
        sys::FI_TC_LOW_LATENCY => engine().counters.count("endpoints.low_latency"),
        _ => engine().counters.count("endpoints.in_class"),
    }
    let id = match opened {
        Ok(id) => id,
        Err(Errno(code)) => return -code,
    };
    let fid = sys::fid_ep {
        fid: sys::fid { fclass: sys::FI_CLASS_EP as usize, context, ops: objects() },
        ops: calls(),
        cm: names(),
        msg: messages::calls(),
        rma: rma::calls(),
        tagged: tagged::calls(),
        atomic: atomics(),
        collective: collectives().cast(),
    };
    let object = Object::new(fid, id, domain.serialised);
    object.join_groups_of(domain);
    // SAFETY: the user gives a valid place.
    unsafe { endpoint.write(object.publish()) };
    0
}

unsafe extern "C" fn close(fid: *mut sys::fid) -> c_int {
    // SAFETY: only endpoints have this table.
    let Some(endpoint) = (unsafe { Object::<sys::fid_ep>::of(fid.cast()) }) else {
        return -sys::FI_EINVAL;
    };
    let _marks = endpoint.enter("fi_close");
    let outcome = engine().close_endpoint(endpoint.id);
    if outcome.is_ok() {
        endpoint.bury();
    }
    answer(outcome)
}

unsafe extern "C" fn bind(fid: *mut sys::fid, object: *mut sys::fid, flags: u64) -> c_int {
    // SAFETY: only endpoints have this table.
    let Some(endpoint) = (unsafe { Object::<sys::fid_ep>::of(fid.cast()) }) else {
        return -sys::FI_EINVAL;
    };
    // SAFETY: the user gives an open object.
    let class = u32::try_from(unsafe { (*object).fclass }).unwrap_or(0);
    match class {
        sys::FI_CLASS_CQ => {
            // SAFETY: its class says that it is a queue.
            let Some(queue) = (unsafe { Object::<sys::fid_cq>::of(object.cast()) }) else {
                return -sys::FI_EINVAL;
            };
            let _marks = queue.enter("fi_ep_bind");
            let outcome = engine().bind_queue(endpoint.id, queue.id, flags);
            if outcome.is_ok() {
                endpoint.join_groups_of(queue);
            }
            answer(outcome)
        }
        sys::FI_CLASS_AV => {
            // SAFETY: its class says that it is an address vector.
            let Some(vector) = (unsafe { Object::<sys::fid_av>::of(object.cast()) }) else {
                return -sys::FI_EINVAL;
            };
            answer(engine().bind_vector(endpoint.id, vector.id))
        }
        sys::FI_CLASS_EQ => {
            // SAFETY: its class says that it is an event queue.
            let Some(queue) = (unsafe { Object::<sys::fid_eq>::of(object.cast()) }) else {
                return -sys::FI_EINVAL;
            };
            answer(engine().bind_events(endpoint.id, queue.id))
        }
        _ => -sys::FI_ENOSYS,
    }
}

unsafe extern "C" fn control(fid: *mut sys::fid, command: c_int, _argument: *mut c_void) -> c_int {
    // SAFETY: only endpoints have this table.
    let Some(endpoint) = (unsafe { Object::<sys::fid_ep>::of(fid.cast()) }) else {
        return -sys::FI_EINVAL;
    };
    if command.cast_unsigned() != sys::FI_ENABLE {
        return -sys::FI_ENOSYS;
    }
    let _marks = endpoint.enter("fi_enable");
    answer(engine().enable_endpoint(endpoint.id))
}

unsafe extern "C" fn name(fid: *mut sys::fid, address: *mut c_void, len: *mut usize) -> c_int {
    // SAFETY: only endpoints have this table.
    let Some(endpoint) = (unsafe { Object::<sys::fid_ep>::of(fid.cast()) }) else {
        return -sys::FI_EINVAL;
    };
    let nic = engine().address_of(endpoint.id);
    match nic {
        // SAFETY: the user gives room of `len` bytes.
        Ok(nic) => unsafe { vector::hand_out(&vector::address(nic, endpoint.id), address, len) },
        Err(Errno(code)) => -code,
    }
}

unsafe extern "C" fn cancel(fid: *mut sys::fid, context: *mut c_void) -> isize {
    // SAFETY: only endpoints have this table.
    let Some(endpoint) = (unsafe { Object::<sys::fid_ep>::of(fid.cast()) }) else {
        return -(sys::FI_EINVAL as isize);
    };
    let _marks = endpoint.enter("fi_cancel");
    answer_size(engine().cancel(endpoint.id, number(context)))
}

unsafe extern "C" fn get_option(
    fid: *mut sys::fid,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    len: *mut usize,
) -> c_int {
    // SAFETY: only endpoints have this table.
    let Some(endpoint) = (unsafe { Object::<sys::fid_ep>::of(fid.cast()) }) else {
        return -sys::FI_EINVAL;
    };
    let engine = engine();
    let profile = &engine.settings.profile;
    if let Some(flag) = efa_flag(&engine, endpoint.id, option) {
        // SAFETY: the user gives a valid place.
        if unsafe { len.replace(size_of::<bool>()) } < size_of::<bool>() {
            return -sys::FI_ETOOSMALL;
        }
        // SAFETY: the user gives room for a flag.
        unsafe { value.cast::<bool>().write(flag) };
        return 0;
    }
    let size = match option {
        _ if level.cast_unsigned() != sys::FI_OPT_ENDPOINT => return -sys::FI_ENOPROTOOPT,
        sys::FI_OPT_INJECT_RMA_SIZE => profile.inject_rma_bytes,
        sys::FI_OPT_INJECT_MSG_SIZE => profile.inject_bytes,
        sys::FI_OPT_MAX_RMA_SIZE | sys::FI_OPT_MAX_MSG_SIZE => {
            crate::memory::bits(profile.max_message)
        }
        _ => return -sys::FI_ENOPROTOOPT,
    };
    // SAFETY: the user gives a valid place.
    if unsafe { len.replace(size_of::<usize>()) } < size_of::<usize>() {
        return -sys::FI_ETOOSMALL;
    }
    // SAFETY: the user gives room for a size.
    unsafe { value.cast::<usize>().write_unaligned(size) };
    0
}

/// The value of one of efa's readable flags.
fn efa_flag(engine: &Engine, endpoint: Id<Endpoint>, option: c_int) -> Option<bool> {
    match option {
        _ if engine.settings.profile.protocol != sys::FI_PROTO_EFA => None,
        sys::FI_OPT_EFA_EMULATED_WRITE => engine.settings.emulated_writes,
        sys::FI_OPT_SHARED_MEMORY_PERMITTED => engine.shares_memory(endpoint),
        _ => None,
    }
}

unsafe extern "C" fn set_option(
    fid: *mut sys::fid,
    _level: c_int,
    option: c_int,
    value: *const c_void,
    len: usize,
) -> c_int {
    let is_efa = engine().settings.profile.protocol == sys::FI_PROTO_EFA;
    let set = match option {
        sys::FI_OPT_CUDA_API_PERMITTED => Engine::permit_cuda,
        sys::FI_OPT_SHARED_MEMORY_PERMITTED if is_efa => Engine::permit_shared_memory,
        sys::FI_OPT_EFA_WRITE_IN_ORDER_ALIGNED_128_BYTES if is_efa => Engine::order_lines,
        _ => return -sys::FI_ENOPROTOOPT,
    };
    // SAFETY: only endpoints have this table, and the user's value is as long as it says.
    match unsafe { flag(fid, value, len) } {
        Some((endpoint, flag)) => answer(set(&mut engine(), endpoint, flag)),
        None => -sys::FI_EINVAL,
    }
}

/// The endpoint of an option, and the flag that is its value.
///
/// # Safety
///
/// `fid` is an endpoint's, and `value` valid for reads of `len` bytes.
unsafe fn flag(
    fid: *mut sys::fid,
    value: *const c_void,
    len: usize,
) -> Option<(Id<Endpoint>, bool)> {
    // SAFETY: the caller vouches for it.
    let endpoint = unsafe { Object::<sys::fid_ep>::of(fid.cast()) }?;
    if len != size_of::<bool>() {
        return None;
    }
    // SAFETY: the caller vouches for `len` bytes, which is one; it is read as a `u8`, for which every value is valid.
    let byte = unsafe { value.cast::<u8>().read() };
    Some((endpoint.id, byte != 0))
}
