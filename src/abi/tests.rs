//! Every call of every table, with null and with garbage, returns a code and writes every out-parameter.

use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::{self, null_mut};

use net_abi::{
    PTR_CUDA, PTR_HOST, PropertiesV6, PropertiesV7, PropertiesV8, PropertiesV9, PropertiesV10,
    PropertiesV11, PropertiesV12, ResultCode, VProps4, VProps8,
};

use super::logger::tests::Captured;
use super::{v6, v7, v8, v9, v10, v11, v12};
use crate::object_id::{ObjectId, ObjectKind};

/// Makes each call, which has to fail because of the argument that the text names, with one log line.
macro_rules! refused {
    ($table:expr; $($call:ident($($argument:expr),* $(,)?) $said:expr;)*) => {
        let captured = Captured::start();
        $(
            let call = $table.$call.expect("every table has it");
            // SAFETY: null, a place of the kind that the call writes, or a number that it does not follow.
            let code = unsafe { call($($argument),*) };
            let about = concat!(stringify!($call), " of ", stringify!($table));
            assert_eq!(code, ResultCode::INVALID_ARGUMENT, "{about}");
            let lines = captured.lines();
            assert_eq!(lines.len(), 1, "{about}: {lines:?}");
            assert!(lines[0].1.contains($said), "{about}: {lines:?}, not {:?}", $said);
        )*
    };
}

const NULL_PLACE: &str = "NCCL passed a null pointer for the ";
const NULL_LIST: &str = "NCCL passed a null list of ";
const NO_DEVICE: &str = "there is no device -1";
const NEGATIVE: &str = "a size of -1 bytes is negative";
const NO_COMM: &str = "expected a comm of this plugin's, got ";
const NO_SENDER: &str = "expected a send comm of this plugin's, got ";
const NO_RECEIVER: &str = "expected a receive comm of this plugin's, got ";
const NO_LISTENER: &str = "expected a listen comm of this plugin's, got ";
const NO_REQUEST: &str = "expected a request of this plugin's, got ";
const NO_REGION: &str = "expected a memory handle of this plugin's, got ";
const NO_CONTEXT: &str = "expected a context of this plugin's, got ";

/// Places for what calls write, and lists of one entry for what they read.
struct Places {
    object: *mut c_void,
    number: c_int,
    handle: [u8; 128],
    data: [*mut c_void; 1],
    tags: [c_int; 1],
    regions: [*mut c_void; 1],
}

impl Places {
    fn new() -> Self {
        let [object, datum, region] = [null_mut(); 3];
        let (data, regions) = ([datum], [region]);
        Self { object, number: 7, handle: [0; 128], data, tags: [0], regions }
    }

    fn bytes(&mut self) -> *mut c_void {
        self.handle.as_mut_ptr().cast()
    }
}

/// The calls whose form never changed.
macro_rules! refused_in_every_version {
    ($table:expr, $wild:expr, $at:expr) => {
        let (bytes, object, number) = ($at.bytes(), &raw mut $at.object, &raw mut $at.number);
        let (data, regions) = ($at.data.as_mut_ptr(), $at.regions.as_mut_ptr());
        refused!($table;
            devices(null_mut()) NULL_PLACE;
            get_properties(0, null_mut()) NULL_PLACE;
            get_properties(-1, MaybeUninit::uninit().as_mut_ptr()) NO_DEVICE;
            reg_mr($wild, bytes, 1, PTR_HOST, null_mut()) NULL_PLACE;
            reg_mr($wild, bytes, 0, PTR_HOST, object) "a region of 0 bytes";
            reg_mr($wild, null_mut(), 1, PTR_HOST, object) "1 bytes at a null address";
            reg_mr($wild, bytes, 1, PTR_HOST, object) NO_COMM;
            reg_mr_dma_buf($wild, bytes, 1, PTR_CUDA, 0, 0, null_mut()) NULL_PLACE;
            reg_mr_dma_buf($wild, bytes, 0, PTR_CUDA, 0, 0, object) "a region of 0 bytes";
            reg_mr_dma_buf($wild, bytes, 1, PTR_HOST, 0, 0, object) "memory of type 1";
            reg_mr_dma_buf($wild, bytes, 1, PTR_CUDA, 0, -1, object) "-1 is no DMA-BUF descriptor";
            reg_mr_dma_buf($wild, bytes, 1, PTR_CUDA, 0, 0, object) NO_COMM;
            iflush($wild, 1, data, [1].as_mut_ptr(), regions, null_mut()) NULL_PLACE;
            iflush($wild, 1, null_mut(), [1].as_mut_ptr(), regions, object) NULL_LIST;
            iflush($wild, 1, data, null_mut(), regions, object) NULL_LIST;
            iflush($wild, 1, data, [1].as_mut_ptr(), null_mut(), object) NULL_LIST;
            iflush($wild, 1, data, [-1].as_mut_ptr(), regions, object) NEGATIVE;
            iflush($wild, 1, data, [1].as_mut_ptr(), regions, object) NO_RECEIVER;
            test($wild, null_mut(), null_mut()) NULL_PLACE;
            test($wild, number, null_mut()) NO_REQUEST;
        );
        // These accept null: NCCL also passes handles that it never got.
        if !$wild.is_null() {
            refused!($table;
                dereg_mr($wild, $wild) NO_REGION;
                close_send($wild) NO_SENDER;
                close_recv($wild) NO_RECEIVER;
                close_listen($wild) NO_LISTENER;
            );
        }
    };
}

/// `irecv`, whose sizes and whose largest group differ, with what else the version passes after the lists.
macro_rules! refused_receives {
    ($table:expr, $wild:expr, $at:expr, $sizes:expr, $too_many:expr $(, $parents:expr)?) => {
        let (data, tags) = ($at.data.as_mut_ptr(), $at.tags.as_mut_ptr());
        let (regions, object) = ($at.regions.as_mut_ptr(), &raw mut $at.object);
        refused!($table;
            irecv($wild, 1, data, $sizes, tags, regions, $($parents,)? null_mut()) NULL_PLACE;
            irecv($wild, 1, null_mut(), $sizes, tags, regions, $($parents,)? object) NULL_LIST;
            irecv($wild, 1, data, null_mut(), tags, regions, $($parents,)? object) NULL_LIST;
            irecv($wild, 1, data, $sizes, null_mut(), regions, $($parents,)? object) NULL_LIST;
            irecv($wild, 1, data, $sizes, tags, null_mut(), $($parents,)? object) NULL_LIST;
            irecv($wild, 0, data, $sizes, tags, regions, $($parents,)? object)
                "a group of 0 receives";
            irecv($wild, $too_many, data, $sizes, tags, regions, $($parents,)? object)
                concat!("a group of ", $too_many, " receives");
            irecv($wild, 1, data, $sizes, tags, regions, $($parents,)? object) NO_RECEIVER;
        );
    };
}

/// The sizes of v6 to v8, which may be negative.
macro_rules! refused_sizes {
    ($table:expr, $wild:expr, $at:expr) => {
        let (data, tags) = ($at.data.as_mut_ptr(), $at.tags.as_mut_ptr());
        let (regions, object) = ($at.regions.as_mut_ptr(), &raw mut $at.object);
        refused!($table;
            isend($wild, $at.bytes(), -1, 0, $wild, object) NEGATIVE;
            irecv($wild, 1, data, [-1].as_mut_ptr(), tags, regions, object) NEGATIVE;
        );
    };
}

/// Devices that are made of wrong ones.
macro_rules! refused_devices {
    ($table:expr, $at:expr, $parts:ident, $most:literal, $more:literal) => {
        let of = |ndevs| $parts { ndevs, devs: [-1; $most] };
        refused!($table;
            make_v_device(null_mut(), [of(1)].as_mut_ptr()) NULL_PLACE;
            make_v_device(&raw mut $at.number, null_mut()) NULL_LIST;
            make_v_device(&raw mut $at.number, [of(-1)].as_mut_ptr()) "a device of 0 devices";
            make_v_device(&raw mut $at.number, [of($more)].as_mut_ptr())
                concat!("a device of ", $more, " devices");
            make_v_device(&raw mut $at.number, [of(1)].as_mut_ptr()) NO_DEVICE;
        );
    };
}

/// Null, NCCL's mark for optional completion, wild numbers, and a handle of the wrong kind.
fn wild() -> [*mut c_void; 5] {
    [0, 1, 0xdead_beef, u64::MAX, context()]
        .map(|bits| ptr::without_provenance_mut(usize::try_from(bits).unwrap()))
}

fn context() -> u64 {
    ObjectId::new(ObjectKind::Context, 4095, 65535, 65535, 65535).bits()
}

#[test]
fn no_call_of_v6_trusts_its_arguments() {
    let table = &v6::ncclNetPlugin_v6;
    let mut at = Places::new();
    for wild in wild() {
        refused_in_every_version!(table, wild, at);
        refused!(table;
            listen(-1, at.bytes(), null_mut()) NULL_PLACE;
            listen(-1, null_mut(), &raw mut at.object) NULL_PLACE;
            listen(-1, at.bytes(), &raw mut at.object) NO_DEVICE;
            connect(-1, at.bytes(), null_mut()) NULL_PLACE;
            connect(-1, null_mut(), &raw mut at.object) "NCCL passed a null handle";
            connect(-1, at.bytes(), &raw mut at.object) NO_DEVICE;
            accept(wild, null_mut()) NULL_PLACE;
            accept(wild, &raw mut at.object) NO_LISTENER;
            reg_mr(wild, at.bytes(), -1, PTR_HOST, &raw mut at.object) NEGATIVE;
            isend(wild, at.bytes(), 1, 0, wild, null_mut()) NULL_PLACE;
            isend(wild, at.bytes(), 1, 0, wild, &raw mut at.object) NO_SENDER;
        );
        refused_sizes!(table, wild, at);
        refused_receives!(table, wild, at, [1].as_mut_ptr(), 2);
    }
}

#[test]
fn no_call_of_v7_and_v8_trusts_its_arguments() {
    let mut at = Places::new();
    macro_rules! check {
        ($table:expr) => {
            for wild in wild() {
                refused_in_every_version!($table, wild, at);
                refused!($table;
                    listen(-1, at.bytes(), null_mut()) NULL_PLACE;
                    listen(-1, null_mut(), &raw mut at.object) NULL_PLACE;
                    listen(-1, at.bytes(), &raw mut at.object) NO_DEVICE;
                    connect(-1, at.bytes(), null_mut(), null_mut()) NULL_PLACE;
                    connect(-1, null_mut(), &raw mut at.object, null_mut())
                        "NCCL passed a null handle";
                    connect(-1, at.bytes(), &raw mut at.object, null_mut()) NO_DEVICE;
                    accept(wild, null_mut(), null_mut()) NULL_PLACE;
                    accept(wild, &raw mut at.object, null_mut()) NO_LISTENER;
                    isend(wild, at.bytes(), 1, 0, wild, null_mut()) NULL_PLACE;
                    isend(wild, at.bytes(), 1, 0, wild, &raw mut at.object) NO_SENDER;
                );
                refused_sizes!($table, wild, at);
                refused_receives!($table, wild, at, [1].as_mut_ptr(), 2);
            }
            assert!($table.get_device_mr.is_none() && $table.irecv_consumed.is_none());
        };
    }
    check!(&v7::ncclNetPlugin_v7);
    check!(&v8::ncclNetPlugin_v8);
    for wild in wild() {
        refused!(&v7::ncclNetPlugin_v7;
            reg_mr(wild, at.bytes(), -1, PTR_HOST, &raw mut at.object) NEGATIVE;
        );
    }
}

#[test]
fn no_call_of_v9_trusts_its_arguments() {
    let table = &v9::ncclNetPlugin_v9;
    let mut at = Places::new();
    for wild in wild() {
        refused_in_every_version!(table, wild, at);
        refused!(table;
            listen(-1, at.bytes(), null_mut()) NULL_PLACE;
            listen(-1, null_mut(), &raw mut at.object) NULL_PLACE;
            listen(-1, at.bytes(), &raw mut at.object) NO_DEVICE;
            connect(-1, at.bytes(), null_mut(), null_mut()) NULL_PLACE;
            connect(-1, null_mut(), &raw mut at.object, null_mut()) "NCCL passed a null handle";
            connect(-1, at.bytes(), &raw mut at.object, null_mut()) NO_DEVICE;
            accept(wild, null_mut(), null_mut()) NULL_PLACE;
            accept(wild, &raw mut at.object, null_mut()) NO_LISTENER;
            isend(wild, at.bytes(), usize::MAX, 0, wild, null_mut()) NULL_PLACE;
            isend(wild, at.bytes(), usize::MAX, 0, wild, &raw mut at.object) NO_SENDER;
        );
        refused_receives!(table, wild, at, [usize::MAX].as_mut_ptr(), 9);
    }
    refused_devices!(table, at, VProps4, 4, 5);
    assert!(table.get_device_mr.is_none() && table.irecv_consumed.is_none());
}

#[test]
fn no_call_of_v10_trusts_its_arguments() {
    let table = &v10::ncclNetPlugin_v10;
    let mut at = Places::new();
    for wild in wild() {
        refused_in_every_version!(table, wild, at);
        refused!(table;
            listen(-1, at.bytes(), null_mut()) NULL_PLACE;
            listen(-1, null_mut(), &raw mut at.object) NULL_PLACE;
            listen(-1, at.bytes(), &raw mut at.object) NO_DEVICE;
            connect(-1, null_mut(), at.bytes(), null_mut(), null_mut()) NULL_PLACE;
            connect(-1, null_mut(), null_mut(), &raw mut at.object, null_mut())
                "NCCL passed a null handle";
            connect(-1, null_mut(), at.bytes(), &raw mut at.object, null_mut()) NO_DEVICE;
            accept(wild, null_mut(), null_mut()) NULL_PLACE;
            accept(wild, &raw mut at.object, null_mut()) NO_LISTENER;
            isend(wild, at.bytes(), usize::MAX, 0, wild, null_mut(), null_mut()) NULL_PLACE;
            isend(wild, at.bytes(), usize::MAX, 0, wild, null_mut(), &raw mut at.object) NO_SENDER;
        );
        refused_receives!(table, wild, at, [usize::MAX].as_mut_ptr(), 9, null_mut());
    }
    refused_devices!(table, at, VProps4, 4, 5);
    assert!(table.get_device_mr.is_none() && table.irecv_consumed.is_none());
}

#[test]
fn no_call_of_v11_and_v12_trusts_its_arguments() {
    let mut at = Places::new();
    macro_rules! check {
        ($table:expr, $parts:ident, $most:literal, $more:literal) => {
            for wild in wild() {
                // Checked before the device.
                let no_context = if wild.addr() as u64 == context() { NO_DEVICE } else { NO_CONTEXT };
                refused_in_every_version!($table, wild, at);
                refused!($table;
                    init(null_mut(), 0, null_mut(), None, None) NULL_PLACE;
                    listen(wild, -1, at.bytes(), null_mut()) NULL_PLACE;
                    listen(wild, -1, null_mut(), &raw mut at.object) NULL_PLACE;
                    listen(wild, -1, at.bytes(), &raw mut at.object) no_context;
                    connect(wild, -1, at.bytes(), null_mut(), null_mut()) NULL_PLACE;
                    connect(wild, -1, null_mut(), &raw mut at.object, null_mut())
                        "NCCL passed a null handle";
                    connect(wild, -1, at.bytes(), &raw mut at.object, null_mut()) no_context;
                    accept(wild, null_mut(), null_mut()) NULL_PLACE;
                    accept(wild, &raw mut at.object, null_mut()) NO_LISTENER;
                    isend(wild, at.bytes(), usize::MAX, 0, wild, null_mut(), null_mut()) NULL_PLACE;
                    isend(wild, at.bytes(), usize::MAX, 0, wild, null_mut(), &raw mut at.object) NO_SENDER;
                );
                refused_receives!($table, wild, at, [usize::MAX].as_mut_ptr(), 9, null_mut());
                // Another test of this process may start the plugin meanwhile, so the reason differs.
                // SAFETY: a number that the call does not follow.
                let code = unsafe { $table.finalize.expect("every table has it")(wild) };
                assert_ne!(code, ResultCode::SUCCESS);
            }
            refused_devices!($table, at, $parts, $most, $more);
            assert!($table.get_device_mr.is_none() && $table.irecv_consumed.is_none());
            assert!($table.set_net_attr.is_none());
        };
    }
    check!(&v11::ncclNetPlugin_v11, VProps4, 4, 5);
    check!(&v12::ncclNetPlugin_v12, VProps8, 8, 9);
}

#[test]
fn the_init_of_every_version_gives_a_code() {
    let _captured = Captured::start();
    for init in [
        v6::ncclNetPlugin_v6.init,
        v7::ncclNetPlugin_v7.init,
        v8::ncclNetPlugin_v8.init,
        v9::ncclNetPlugin_v9.init,
    ] {
        // SAFETY: a missing logger is allowed.
        let code = unsafe { init.expect("every table has it")(None) };
        assert!(code.name().is_some());
    }
    // SAFETY: as above.
    let code = unsafe { v10::ncclNetPlugin_v10.init.expect("every table has it")(None, None) };
    assert!(code.name().is_some());
}

#[test]
fn a_failed_call_leaves_no_place_as_it_was() {
    let captured = Captured::start();
    let table = &v12::ncclNetPlugin_v12;
    let stale = ptr::without_provenance_mut::<c_void>(1);
    let mut handle = [0xaa_u8; 128];
    let mut object;
    let mut done = 7;
    let mut sizes = [7; 8];
    let (mut data, mut tags, mut regions) = ([null_mut(); 8], [0; 8], [null_mut(); 8]);
    let mut lengths = [0_usize; 8];
    let garbage = ptr::without_provenance_mut::<c_void>(0xdead_beef);

    /// Sets the out-parameter, calls, and checks that it was written.
    macro_rules! written {
        ($call:ident($($argument:expr),*)) => {
            object = stale;
            // SAFETY: every pointer is a place of the kind that the call writes, or a number that it does not follow.
            let code = unsafe { table.$call.expect("every table has it")($($argument),*) };
            assert_ne!(code, ResultCode::SUCCESS, "{}", stringify!($call));
            assert!(object.is_null(), "{} left {object:?}", stringify!($call));
        };
    }
    written!(listen(garbage, 0, handle.as_mut_ptr().cast(), &raw mut object));
    assert_eq!(handle, [0; 128]);
    written!(listen(garbage, 0, null_mut(), &raw mut object));
    written!(connect(garbage, 0, handle.as_mut_ptr().cast(), &raw mut object, null_mut()));
    written!(connect(garbage, 0, null_mut(), &raw mut object, null_mut()));
    written!(accept(garbage, &raw mut object, null_mut()));
    written!(reg_mr(garbage, handle.as_mut_ptr().cast(), 128, 1, &raw mut object));
    written!(reg_mr(garbage, handle.as_mut_ptr().cast(), 128, 4, &raw mut object));
    written!(reg_mr_dma_buf(garbage, handle.as_mut_ptr().cast(), 128, 2, 0, 0, &raw mut object));
    written!(isend(garbage, null_mut(), 0, 0, null_mut(), null_mut(), &raw mut object));
    for count in [c_int::MIN, -1, 0, 1, 8, 9, c_int::MAX] {
        written!(irecv(
            garbage,
            count,
            data.as_mut_ptr(),
            lengths.as_mut_ptr(),
            tags.as_mut_ptr(),
            regions.as_mut_ptr(),
            null_mut(),
            &raw mut object
        ));
        written!(iflush(
            garbage,
            count,
            data.as_mut_ptr(),
            sizes.as_mut_ptr(),
            regions.as_mut_ptr(),
            &raw mut object
        ));
    }
    // SAFETY: places for the answer and for eight sizes.
    let code = unsafe {
        table.test.expect("every table has it")(garbage, &raw mut done, sizes.as_mut_ptr())
    };
    assert_eq!((code, done), (ResultCode::INVALID_ARGUMENT, 0));
    assert_eq!(sizes, [0, 7, 7, 7, 7, 7, 7, 7]);
    done = 7;
    // SAFETY: as above, with no sizes.
    let code =
        unsafe { table.test.expect("every table has it")(garbage, &raw mut done, null_mut()) };
    assert_eq!((code, done), (ResultCode::INVALID_ARGUMENT, 0));
    assert!(
        captured
            .lines()
            .iter()
            .all(|(level, text)| *level == 2 && text.starts_with("NET/Ironrail : "))
    );
}

#[test]
fn the_properties_of_a_device_that_does_not_exist_are_all_written() {
    let _captured = Captured::start();
    macro_rules! check {
        ($($table:expr => $properties:ident)*) => {
            $(
                let mut properties = MaybeUninit::<$properties>::uninit();
                // SAFETY: bytes that are no pointer, no size: what NCCL's stack may hold.
                unsafe { properties.as_mut_ptr().write_bytes(0xaa, 1) };
                // SAFETY: a place for the properties.
                let code = unsafe { $table.get_properties.expect("every table has it")(-1, properties.as_mut_ptr()) };
                assert_ne!(code, ResultCode::SUCCESS);
                // SAFETY: written on every path, which is what this test is about.
                let properties = unsafe { properties.assume_init() };
                // SAFETY: not the bytes from above, as the next line would not hold with them.
                assert_eq!(unsafe { CStr::from_ptr(properties.name) }, c"");
                assert_eq!((properties.ptr_support, properties.max_recvs, properties.port), (1, 1, 0));
            )*
        };
    }
    check!(
        v6::ncclNetPlugin_v6 => PropertiesV6
        v7::ncclNetPlugin_v7 => PropertiesV7
        v8::ncclNetPlugin_v8 => PropertiesV8
        v9::ncclNetPlugin_v9 => PropertiesV9
        v10::ncclNetPlugin_v10 => PropertiesV10
        v11::ncclNetPlugin_v11 => PropertiesV11
        v12::ncclNetPlugin_v12 => PropertiesV12
    );
}

#[test]
fn every_table_has_one_word_as_its_name() {
    for name in [
        v6::ncclNetPlugin_v6.name,
        v7::ncclNetPlugin_v7.name,
        v8::ncclNetPlugin_v8.name,
        v9::ncclNetPlugin_v9.name,
        v10::ncclNetPlugin_v10.name,
        v11::ncclNetPlugin_v11.name,
        v12::ncclNetPlugin_v12.name,
    ] {
        // SAFETY: a C string that lives as long as the library.
        assert_eq!(unsafe { CStr::from_ptr(name) }, c"Ironrail");
    }
}

/// docs/protocol.md says of every entry whether it is there, in the table's order.
#[test]
fn the_page_lists_which_entries_are_there() {
    let table = &v12::ncclNetPlugin_v12;
    macro_rules! entries {
        ($($name:literal $field:ident),* $(,)?) => {
            vec![("name", !table.name.is_null()), $(($name, table.$field.is_some())),*]
        };
    }
    let entries = entries![
        "init" init, "devices" devices, "getProperties" get_properties, "listen" listen,
        "connect" connect, "accept" accept, "regMr" reg_mr, "regMrDmaBuf" reg_mr_dma_buf,
        "deregMr" dereg_mr, "isend" isend, "irecv" irecv, "iflush" iflush, "test" test,
        "closeSend" close_send, "closeRecv" close_recv, "closeListen" close_listen,
        "getDeviceMr" get_device_mr, "irecvConsumed" irecv_consumed,
        "makeVDevice" make_v_device, "finalize" finalize, "setNetAttr" set_net_attr,
    ];
    assert_eq!(size_of_val(table), entries.len() * size_of::<usize>(), "every entry is here");
    let page = include_str!("../../docs/protocol.md");
    let (_, section) = page.split_once("\n## 18. NCCL's table\n").expect("the page has it");
    let row = |line: &str| {
        let mut cells = line.strip_prefix("| `")?.split('|').map(str::trim);
        let name = cells.next()?.trim_end_matches('`').to_owned();
        let is_there = cells.next()? == "there";
        Some((name, is_there))
    };
    let on_page: Vec<_> = section.lines().filter_map(row).collect();
    let there: Vec<_> = entries.into_iter().map(|(name, there)| (name.to_owned(), there)).collect();
    assert_eq!(on_page, there);
}
