//! Our own pages, for inboxes, shadows, messages and flush memory: the only memory that both we and NICs read and write.
//!
//! No references into pages exist, since peers change them at any time. Words are accessed by atomics, bytes by copies that are atomic word
//! by word: a reader may see a part of a concurrent write, but there is no undefined behaviour.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use libc::c_void;
use libfabric_sys as sys;

use crate::census::Class;
use crate::copies;
use crate::error::{Call, FabricError};
use crate::lockless::{load_words, store_words};

/// Zeroed pages, mapped until the last owner drops them, and not mapped in a forked child.
#[derive(Debug)]
pub struct Pages {
    base: NonNull<u8>,
    len: usize,
    /// `len` in words: at least `PAGE_WORDS_MIN`.
    words: usize,
}

// SAFETY: the mapping belongs to no thread, and every access is atomic.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    /// Maps `len` bytes, rounded up to whole pages, and at least one page.
    ///
    /// # Errors
    ///
    /// What mmap(2) or madvise(2) returned; -FI_EINVAL for a length beyond the address space.
    pub fn map(len: usize) -> Result<Self, FabricError> {
        let page = page_bytes();
        let beyond = FabricError::new(Call::mmap, sys::FI_EINVAL);
        let len = len.max(1).checked_next_multiple_of(page).ok_or(beyond)?;
        // After a fork, copy-on-write would give this process another page than the one that the NIC writes.
        Self::anonymous(len, libc::MADV_DONTFORK)
    }

    /// One page that is cleared in a forked child.
    ///
    /// # Errors
    ///
    /// What mmap(2) or madvise(2) returned: -FI_EINVAL on Linux before 4.14.
    pub(crate) fn wiped_on_fork() -> Result<Self, FabricError> {
        Self::anonymous(page_bytes(), libc::MADV_WIPEONFORK)
    }

    /// Maps `len` bytes of anonymous memory, which are whole pages.
    fn anonymous(len: usize, fork_advice: i32) -> Result<Self, FabricError> {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new anonymous mapping touches nothing that exists.
        let base = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, -1, 0) };
        Self::mapped(base, len, fork_advice)
    }

    /// Maps a new file, `len` bytes of zeros in whole pages, for others to read as well: all of its blocks are allocated, so that no store
    /// fails on a full file system. The file is locked (flock(2), shared) as long as it, or a copy of its descriptor, is open: if another
    /// process can lock it exclusively, the writer has ended.
    ///
    /// # Errors
    ///
    /// What posix_fallocate(3), flock(2), mmap(2) or madvise(2) returned; -EFBIG for a length beyond [`file_bytes_max`]; -FI_EINVAL for one
    /// beyond the address space.
    pub fn share(file: &File, len: usize) -> Result<Self, FabricError> {
        let beyond = FabricError::new(Call::mmap, sys::FI_EINVAL);
        let len = len.max(1).checked_next_multiple_of(page_bytes()).ok_or(beyond)?;
        let bytes = libc::off_t::try_from(len).map_err(|_| beyond)?;
        // The kernel would also send SIGXFSZ, which ends the process.
        if file_bytes_max() < u64::try_from(len).map_err(|_| beyond)? {
            return Err(FabricError::new(Call::posix_fallocate, libc::EFBIG));
        }
        let descriptor = file.as_raw_fd();
        // SAFETY: an open descriptor, which the file owns.
        if unsafe { libc::flock(descriptor, libc::LOCK_SH | libc::LOCK_NB) } != 0 {
            return Err(refused(Call::flock));
        }
        // SAFETY: as above.
        let code = uninterrupted(|| unsafe { libc::posix_fallocate(descriptor, 0, bytes) });
        if code != 0 {
            return Err(FabricError::new(Call::posix_fallocate, code));
        }
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping touches nothing that exists.
        let base = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, descriptor, 0) };
        // A forked child has no use for it.
        Self::mapped(base, len, libc::MADV_DONTFORK)
    }

    /// Checks the result of mmap(2), and gives `fork_advice` (madvise(2)), which decides whether a forked child inherits the mapping.
    fn mapped(base: *mut c_void, len: usize, fork_advice: i32) -> Result<Self, FabricError> {
        if base == libc::MAP_FAILED {
            return Err(refused(Call::mmap));
        }
        let no_memory = FabricError::new(Call::mmap, sys::FI_ENOMEM);
        let base = NonNull::new(base.cast::<u8>()).ok_or(no_memory)?;
        Class::Pages.opened();
        let pages = Self { base, len, words: len / WORD };
        // SAFETY: the range is our own mapping.
        if unsafe { libc::madvise(pages.base.as_ptr().cast::<c_void>(), len, fork_advice) } != 0 {
            return Err(refused(Call::madvise));
        }
        Ok(pages)
    }

    /// The first byte's address: a multiple of the page size.
    pub fn address(&self) -> u64 {
        self.base.as_ptr().expose_provenance() as u64
    }

    /// The length in bytes, whole pages.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Always false: there is at least one page.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The length in words of eight bytes.
    pub fn words(&self) -> usize {
        self.words
    }

    /// Reads a word with acquire ordering: earlier writes of its writer, on this machine, are visible afterwards.
    ///
    /// # Panics
    ///
    /// Beyond the pages.
    #[inline]
    pub fn load(&self, word: usize) -> u64 {
        self.word(word).load(Ordering::Acquire)
    }

    /// Writes a word with release ordering.
    ///
    /// # Panics
    ///
    /// Beyond the pages.
    #[inline]
    pub fn store(&self, word: usize, value: u64) {
        self.word(word).store(value, Ordering::Release);
    }

    /// Writes a word, unordered with others.
    ///
    /// # Panics
    ///
    /// Beyond the pages.
    #[inline]
    pub fn store_relaxed(&self, word: usize, value: u64) {
        self.word(word).store(value, Ordering::Relaxed);
    }

    /// Fetches the cache line of a word that will be stored soon: PREFETCHW of x86-64, PRFM PSTL1KEEP of aarch64. Does
    /// nothing on other processors.
    ///
    /// # Panics
    ///
    /// Beyond the pages.
    #[inline]
    pub fn prefetch(&self, word: usize) {
        let _place = ptr::from_ref(self.word(word));
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
            // SAFETY: a hint: it neither faults nor changes memory.
            unsafe { _mm_prefetch::<_MM_HINT_ET0>(_place.cast()) };
        }
        // The standard library's function for it is not stable.
        #[cfg(target_arch = "aarch64")]
        {
            use std::arch::asm;
            // SAFETY: as above.
            unsafe { asm!("prfm pstl1keep, [{}]", in(reg) _place, options(nostack, readonly)) };
        }
    }

    /// Copies `bytes` to `offset`, given in bytes.
    ///
    /// # Panics
    ///
    /// Beyond the pages.
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) {
        self.check_range(offset, bytes.len());
        let mut at = offset;
        let mut rest = bytes;
        while let Some((first, others)) = rest.split_first() {
            match rest.split_first_chunk::<WORD>() {
                Some((word, others)) if at.is_multiple_of(WORD) => {
                    self.store_relaxed(at / WORD, u64::from_ne_bytes(*word));
                    (at, rest) = (at + WORD, others);
                }
                _ => {
                    self.byte(at).store(*first, Ordering::Relaxed);
                    (at, rest) = (at + 1, others);
                }
            }
        }
    }

    /// Copies from `offset`, given in bytes, into `bytes`.
    ///
    /// # Panics
    ///
    /// Beyond the pages.
    pub fn copy_out(&self, offset: usize, bytes: &mut [u8]) {
        self.check_range(offset, bytes.len());
        // SAFETY: these bytes are ours, and every access of ours is atomic.
        unsafe { copies::copy_out(self.base.as_ptr().wrapping_add(offset), bytes) };
    }

    /// Writes `value` to `len` bytes from `offset` on.
    ///
    /// # Panics
    ///
    /// Beyond the pages.
    pub fn fill(&self, offset: usize, len: usize, value: u8) {
        self.check_range(offset, len);
        let end = offset + len;
        // Words, and the bytes before and after them.
        let first = offset.next_multiple_of(WORD).min(end);
        let last = first.max(end / WORD * WORD);
        for at in (offset..first).chain(last..end) {
            self.byte(at).store(value, Ordering::Relaxed);
        }
        self.fill_words(first / WORD..last / WORD, u64::from_ne_bytes([value; WORD]));
    }

    fn check_range(&self, offset: usize, len: usize) {
        let end = offset.checked_add(len);
        assert!(end.is_some_and(|end| end <= self.len), "{len} bytes at {offset} of {}", self.len);
    }

    /// Reads `COUNT` words from `first` on, each atomically, in no guaranteed order.
    ///
    /// # Panics
    ///
    /// When they are not all inside.
    #[inline(always)]
    pub fn load_words<const COUNT: usize>(&self, first: usize) -> [u64; COUNT] {
        load_words(self.places(first))
    }

    /// Stores words from `first` on, each atomically, in no guaranteed order.
    ///
    /// # Panics
    ///
    /// When they do not all fit.
    #[inline(always)]
    pub fn store_words<const COUNT: usize>(&self, first: usize, words: [u64; COUNT]) {
        store_words(self.places(first), words);
    }

    /// Writes a value into words, unordered.
    ///
    /// # Panics
    ///
    /// Beyond the pages.
    pub fn fill_words(&self, words: Range<usize>, value: u64) {
        let mut at = words.start;
        while at + 8 <= words.end {
            self.places::<8>(at).iter().for_each(|word| word.store(value, Ordering::Relaxed));
            at += 8;
        }
        (at..words.end).for_each(|word| self.store_relaxed(word, value));
    }

    /// The address of `len` bytes at `offset`; none if they are not all inside.
    pub(crate) fn place_of(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        // SAFETY: within the mapping, or its end.
        inside.then(|| unsafe { self.base.cast::<u8>().add(offset) })
    }

    #[inline(always)]
    fn places<const COUNT: usize>(&self, first: usize) -> &[AtomicU64; COUNT] {
        const { assert!(COUNT <= PAGE_WORDS_MIN) };
        // There is at least one page, so this does not wrap.
        if first > self.words.wrapping_sub(COUNT) {
            beyond(COUNT, first, self.words);
        }
        // SAFETY: the first word is inside, or one past the end with a count of none.
        let place = unsafe { self.base.as_ptr().cast::<AtomicU64>().add(first) };
        // SAFETY: all of them are inside and aligned, the memory lives as long as `self`, and is only used atomically.
        unsafe { &*place.cast::<[AtomicU64; COUNT]>() }
    }

    #[inline]
    fn word(&self, word: usize) -> &AtomicU64 {
        if word >= self.words() {
            beyond(1, word, self.words());
        }
        // SAFETY: within the mapping, by the line above.
        let place = unsafe { self.base.as_ptr().cast::<u64>().add(word) };
        // SAFETY: pages are aligned and stay mapped while borrowed. NICs and peers know nothing of our memory model; we only ever
        // read and write here atomically.
        unsafe { AtomicU64::from_ptr(place) }
    }

    #[inline]
    fn byte(&self, offset: usize) -> &AtomicU8 {
        assert!(offset < self.len, "byte {offset} of {}", self.len);
        // SAFETY: within the mapping, by the line above.
        let place = unsafe { self.base.as_ptr().add(offset) };
        // SAFETY: as in `word`.
        unsafe { AtomicU8::from_ptr(place) }
    }
}

/// `COUNT` words of pages, which stay mapped meanwhile. Their range is checked once, here, and not at each access.
#[derive(Clone, Debug)]
pub struct Words<const COUNT: usize> {
    place: NonNull<[AtomicU64; COUNT]>,
    pages: Arc<Pages>,
}

// SAFETY: as for the pages.
unsafe impl<const COUNT: usize> Send for Words<COUNT> {}
// SAFETY: as above.
unsafe impl<const COUNT: usize> Sync for Words<COUNT> {}

impl<const COUNT: usize> Words<COUNT> {
    /// The words from word `first` on.
    ///
    /// # Panics
    ///
    /// Beyond the pages.
    pub fn of(pages: &Arc<Pages>, first: usize) -> Self {
        Self { place: NonNull::from(pages.places(first)), pages: Arc::clone(pages) }
    }

    /// Whether the words are in these pages.
    pub fn are_of(&self, pages: &Arc<Pages>) -> bool {
        Arc::ptr_eq(&self.pages, pages)
    }

    /// Adds to a word that has no other writer. Readers see the old value or the new one.
    ///
    /// # Panics
    ///
    /// If `word` is not below `COUNT`.
    #[inline]
    pub fn add_relaxed(&self, word: usize, more: u64) {
        // SAFETY: the pages stay mapped as long as `self`, and are only used atomically.
        let words = unsafe { self.place.as_ref() };
        let word = &words[word];
        word.store(word.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
    }
}

/// Out of line, so that callers do not spill registers for the message.
#[cold]
#[inline(never)]
fn beyond(count: usize, first: usize, words: usize) -> ! {
    panic!("{count} words at {first} of {words}");
}

/// The code of a call that a signal interrupted is not returned, unless each of several calls was interrupted: before Linux 5.19 tmpfs gives
/// an allocation up for any signal, also for one that has a handler, as a profiler's timer.
fn uninterrupted(mut call: impl FnMut() -> libc::c_int) -> libc::c_int {
    let mut codes = (0..INTERRUPTIONS_MAX).map(|_| call());
    codes.find(|code| *code != libc::EINTR).unwrap_or(libc::EINTR)
}

/// Far more than come while a page of counters is allocated, which takes less than a millisecond.
const INTERRUPTIONS_MAX: u32 = 100;

fn refused(call: Call) -> FabricError {
    FabricError::new(call, io::Error::last_os_error().raw_os_error().unwrap_or(sys::FI_EOTHER))
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: our own mapping, unmapped once; regions over it hold a reference to it, so none exists any more.
        if unsafe { libc::munmap(self.base.as_ptr().cast::<c_void>(), self.len) } == 0 {
            Class::Pages.closed();
        } else {
            log::error!("unmapping {} bytes: {}", self.len, io::Error::last_os_error());
        }
    }
}

/// The size of the system's pages in bytes: 4096, or 64 KiB on some machines.
pub fn page_bytes() -> usize {
    // SAFETY: sysconf has no preconditions.
    let answer = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(answer).ok().filter(|bytes| bytes.is_power_of_two()).unwrap_or(4096)
}

/// The length that this process may give to a file (RLIMIT_FSIZE, getrlimit(2)). A call that makes a file longer fails, and sends SIGXFSZ to
/// its thread: that ends the process, unless the thread blocks the signal.
pub fn file_bytes_max() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: a place of ours for the answer.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    limit.rlim_cur
}

/// The effective user of this process.
pub fn user_id() -> u32 {
    // SAFETY: geteuid has no preconditions, and cannot fail.
    unsafe { libc::geteuid() }
}

/// Whether no process holds a lock on an open file: the writer of [`Pages::share`] and all processes that inherited its descriptor have
/// ended.
pub fn is_unlocked(file: &File) -> bool {
    // SAFETY: an open descriptor, which the file owns; closing it gives the lock back.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) == 0 }
}

/// No system has smaller pages than 4096 bytes.
const PAGE_WORDS_MIN: usize = 4096 / WORD;
/// The bytes of a word.
const WORD: usize = size_of::<u64>();

#[cfg(test)]
mod tests {
    use std::os::fd::FromRawFd;

    use super::*;

    #[test]
    fn words_come_back_as_they_were_stored() {
        let pages = Pages::map(1).unwrap();
        let last = pages.words() - 3;
        pages.store_words(last, [1, 2, 3]);
        assert_eq!(pages.load_words::<3>(last), [1, 2, 3]);
        assert_eq!(pages.load(last + 1), 2);
        assert!(std::panic::catch_unwind(|| pages.load_words::<4>(last)).is_err());
        assert!(std::panic::catch_unwind(|| pages.store_words(usize::MAX, [0; 2])).is_err());
    }

    #[test]
    fn an_allocation_that_a_signal_has_interrupted_is_repeated_within_a_bound() {
        let mut codes = [libc::EINTR, libc::EINTR, 0, libc::EIO].into_iter();
        assert_eq!(uninterrupted(|| codes.next().unwrap()), 0);
        assert_eq!(codes.next(), Some(libc::EIO), "it has succeeded");
        assert_eq!(uninterrupted(|| libc::ENOSPC), libc::ENOSPC);
        assert_eq!(uninterrupted(|| libc::EINTR), libc::EINTR);
    }

    #[test]
    fn words_of_pages_keep_the_pages_mapped_and_are_inside_of_them() {
        let pages = Arc::new(Pages::map(1).unwrap());
        let words = Words::<4>::of(&pages, 8);
        assert!(words.are_of(&pages) && !words.are_of(&Arc::new(Pages::map(1).unwrap())));
        words.add_relaxed(3, 5);
        words.add_relaxed(3, u64::MAX);
        assert_eq!(pages.load_words::<6>(7), [0, 0, 0, 0, 4, 0]);
        drop(pages);
        words.add_relaxed(0, 1);
        assert!(std::panic::catch_unwind(|| words.add_relaxed(4, 1)).is_err());
        let pages = Arc::new(Pages::map(1).unwrap());
        let beyond = pages.words() - 3;
        assert!(std::panic::catch_unwind(|| Words::<4>::of(&pages, beyond)).is_err());
    }

    #[test]
    fn bytes_come_out_as_they_went_in_at_every_alignment() {
        let pages = Pages::map(1).unwrap();
        assert_eq!(pages.len(), page_bytes());
        assert_eq!(pages.address() % page_bytes() as u64, 0);
        let bytes: Vec<u8> = (1..=40).collect();
        for offset in 0..17 {
            for len in 0..bytes.len() {
                pages.fill(0, 64, 0);
                pages.copy_in(offset, &bytes[..len]);
                let mut all = [0; 64];
                pages.copy_out(0, &mut all);
                let mut expected = [0; 64];
                expected[offset..offset + len].copy_from_slice(&bytes[..len]);
                assert_eq!(all, expected);
                let mut part = vec![0; len];
                pages.copy_out(offset, &mut part);
                assert_eq!(part, bytes[..len]);
                pages.fill(offset, len, 7);
                pages.copy_out(0, &mut all);
                expected[offset..offset + len].fill(7);
                assert_eq!(all, expected);
            }
        }
    }

    /// Runs in a separate process, which may make no long files.
    #[test]
    fn a_shared_file_beyond_the_limit_of_the_process_is_refused_without_a_signal() {
        if std::env::var_os("FABRIC_TEST_ALONE").is_none() {
            let test = a_shared_file_beyond_the_limit_of_the_process_is_refused_without_a_signal;
            return harness::again(test, &[("FABRIC_TEST_ALONE", "1".as_ref())]);
        }
        // SAFETY: the name is a C string.
        let descriptor = unsafe { libc::memfd_create(c"pages".as_ptr(), 0) };
        // SAFETY: nothing else owns it.
        let file = unsafe { File::from_raw_fd(descriptor) };
        let most = page_bytes();
        let limit = libc::rlimit { rlim_cur: most as u64, rlim_max: most as u64 };
        // SAFETY: a limit of ours, of this process alone.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) }, 0);
        assert_eq!(Pages::share(&file, most).expect("it is short enough").len(), most);
        let refused = Pages::share(&file, most + 1).map(drop);
        assert_eq!(refused, Err(FabricError::new(Call::posix_fallocate, libc::EFBIG)));
    }

    #[test]
    fn words_and_bytes_are_the_same_memory() {
        let pages = Pages::map(64).unwrap();
        pages.store(3, 0x0102_0304_0506_0708);
        assert_eq!(pages.load(3), 0x0102_0304_0506_0708);
        let mut bytes = [0; 8];
        pages.copy_out(24, &mut bytes);
        assert_eq!(u64::from_ne_bytes(bytes), 0x0102_0304_0506_0708);
    }

    #[test]
    #[should_panic(expected = "8 bytes at 18446744073709551615")]
    fn a_range_that_wraps_is_refused() {
        let pages = Pages::map(1).unwrap();
        pages.copy_in(usize::MAX, &[0; 8]);
    }

    #[test]
    fn a_word_beyond_the_pages_is_refused() {
        let pages = Pages::map(4096).unwrap();
        let words = pages.words();
        let refused = std::panic::catch_unwind(|| pages.load(words)).unwrap_err();
        let said = format!("1 words at {words} of {words}");
        assert_eq!(refused.downcast_ref::<String>(), Some(&said));
    }
}
