//! The function that the command `ironrail` calls to describe settings and devices. NCCL never calls it.

use std::ffi::c_char;
use std::panic::catch_unwind;
use std::ptr;

use crate::plugin;

/// Writes the settings in effect, and the devices once the plugin has started, as JSON: as much as fits into `bytes` bytes, a NUL among
/// them. Returns the length of all of it without the NUL, as snprintf(3) does; 0 after a bug.
///
/// # Safety
///
/// `text` has room for `bytes` bytes.
#[unsafe(no_mangle)]
#[expect(unreachable_pub, reason = "a symbol is public")]
pub unsafe extern "C" fn ironrail_explain(text: *mut c_char, bytes: usize) -> usize {
    let json = catch_unwind(plugin::explain).unwrap_or_default();
    if let Some(room) = bytes.checked_sub(1) {
        let fits = json.len().min(room);
        // SAFETY: the caller vouches for more bytes than that, and a new string does not overlap them.
        unsafe { ptr::copy_nonoverlapping(json.as_ptr(), text.cast::<u8>(), fits) };
        // SAFETY: `fits` is below `bytes`.
        let end = unsafe { text.add(fits) };
        // SAFETY: as above.
        unsafe { end.write(0) };
    }
    json.len()
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    #[test]
    fn a_text_that_does_not_fit_is_cut_and_its_length_returned() {
        let mut place = [c_char::MAX; 64];
        // SAFETY: there is room for 16 bytes.
        let whole = unsafe { ironrail_explain(place.as_mut_ptr(), 16) };
        assert!(whole > 1000, "{whole}");
        assert_eq!(place[15], 0);
        assert!(
            place[16..].iter().all(|byte| *byte == c_char::MAX),
            "nothing is written past the buffer"
        );
        // SAFETY: a buffer of 0 bytes is allowed.
        assert!(unsafe { ironrail_explain(ptr::null_mut(), 0) } > 1000);
    }

    #[test]
    fn a_text_that_fits_is_one_object() {
        let mut place = vec![0; 1 << 16];
        // SAFETY: there is so much room.
        let whole = unsafe { ironrail_explain(place.as_mut_ptr(), place.len()) };
        // SAFETY: a NUL ends it.
        let text = unsafe { CStr::from_ptr(place.as_ptr()) }.to_str().unwrap();
        assert_eq!(text.len(), whole);
        assert!(text.starts_with('{') && text.ends_with('}'));
        assert!(text.contains("\"name\":\"IRONRAIL_MAX_RAILS\""), "{text}");
    }
}
