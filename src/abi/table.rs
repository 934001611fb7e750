//! Fills a version's table: each call with the function of the module that has this version's form.
//!
//! The macro makes only the initialiser. The `static` itself is in the version's file, where cbindgen finds it.

use std::ffi::CStr;

/// The network's name, which NCCL_NET is compared with. One word, because scripts cut NCCL's log at spaces.
pub(super) const NAME: &CStr = c"Ironrail";

macro_rules! net_table {
    ($table:ident { $($module:ident: [$($call:ident),* $(,)?]),* $(,)? } without [$($absent:ident),* $(,)?]) => {
        $table {
            name: $crate::abi::table::NAME.as_ptr(),
            $($($call: Some($crate::abi::$module::$call),)*)*
            $($absent: None,)*
        }
    };
}

pub(super) use net_table;
