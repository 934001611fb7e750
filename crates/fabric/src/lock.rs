//! The lock of all shared state: parking_lot's, or with `--cfg races` pthread's.
//!
//! parking_lot's lock is eventually fair, unlike the standard library's: a thread that polls in a loop, as NCCL's do, hands it over about
//! every half millisecond. It is an RwLock without readers, whose try_lock is one compare-and-swap; that of parking_lot's Mutex is a load
//! and a loop.
//!
//! valgrind's tools understand pthread's locks, and not parking_lot's, which are futexes. So scripts/races builds with `--cfg races`.

#[cfg(not(races))]
use parking_lot::{
    RawRwLock,
    lock_api::{Mutex, MutexGuard, RawMutex, RawRwLock as _},
};

/// A value that one thread at a time may use. A panic under the lock does not poison it: the value itself records whether it is broken.
#[cfg(not(races))]
#[derive(Debug)]
pub struct Lock<T>(Mutex<ExclusiveLock, T>);

/// Access to the value; unlocks when dropped.
#[cfg(not(races))]
pub type Guard<'a, T> = MutexGuard<'a, ExclusiveLock, T>;

/// An RwLock that is only ever locked exclusively.
#[cfg(not(races))]
#[expect(missing_debug_implementations, reason = "it is inside of a `Lock`, which has one")]
pub struct ExclusiveLock(RawRwLock);

// SAFETY: the exclusive lock of an RwLock excludes all other holders.
#[cfg(not(races))]
unsafe impl RawMutex for ExclusiveLock {
    const INIT: Self = Self(RawRwLock::INIT);
    type GuardMarker = <RawRwLock as parking_lot::lock_api::RawRwLock>::GuardMarker;

    #[inline(always)]
    fn lock(&self) {
        self.0.lock_exclusive();
    }

    #[inline(always)]
    fn try_lock(&self) -> bool {
        self.0.try_lock_exclusive()
    }

    #[inline(always)]
    unsafe fn unlock(&self) {
        // SAFETY: the caller has locked it.
        unsafe { self.0.unlock_exclusive() };
    }
}

#[cfg(not(races))]
impl<T> Lock<T> {
    /// An unlocked lock.
    pub const fn new(value: T) -> Self {
        Self(Mutex::from_raw(ExclusiveLock::INIT, value))
    }

    /// Waits for the lock.
    #[inline(always)]
    pub fn lock(&self) -> Guard<'_, T> {
        self.0.lock()
    }

    /// Locks, unless another thread holds the lock.
    #[inline(always)]
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.0.try_lock()
    }
}

#[cfg(races)]
pub use pthread::{Guard, Lock};

#[cfg(races)]
mod pthread {
    use std::cell::UnsafeCell;
    use std::fmt;
    use std::ops::{Deref, DerefMut};

    /// As without `--cfg races`.
    pub struct Lock<T> {
        mutex: UnsafeCell<libc::pthread_mutex_t>,
        value: UnsafeCell<T>,
    }

    // SAFETY: the mutex gives one thread at a time access to the value, which may be sent to that thread.
    unsafe impl<T: Send> Sync for Lock<T> {}
    // SAFETY: no thread can hold the mutex of a value that is owned.
    unsafe impl<T: Send> Send for Lock<T> {}

    /// As without `--cfg races`.
    #[derive(Debug)]
    pub struct Guard<'a, T>(&'a Lock<T>);

    impl<T> Lock<T> {
        /// An unlocked lock.
        pub const fn new(value: T) -> Self {
            let mutex = UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER);
            Self { mutex, value: UnsafeCell::new(value) }
        }

        /// Waits for the lock.
        pub fn lock(&self) -> Guard<'_, T> {
            // SAFETY: initialised by its constant, and not moved while borrowed.
            let code = unsafe { libc::pthread_mutex_lock(self.mutex.get()) };
            assert_eq!(code, 0, "pthread_mutex_lock");
            Guard(self)
        }

        /// Locks, unless another thread holds the lock.
        pub fn try_lock(&self) -> Option<Guard<'_, T>> {
            // SAFETY: as in `lock`.
            let code = unsafe { libc::pthread_mutex_trylock(self.mutex.get()) };
            // Make the guard only after success: dropping one unlocks.
            (code == 0).then(|| Guard(self))
        }
    }

    impl<T> Deref for Guard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            // SAFETY: this guard holds the mutex.
            unsafe { &*self.0.value.get() }
        }
    }

    impl<T> DerefMut for Guard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            // SAFETY: as above, and the guard is borrowed exclusively.
            unsafe { &mut *self.0.value.get() }
        }
    }

    impl<T> Drop for Guard<'_, T> {
        fn drop(&mut self) {
            // SAFETY: this guard locked it, in this thread.
            unsafe { libc::pthread_mutex_unlock(self.0.mutex.get()) };
        }
    }

    impl<T> Drop for Lock<T> {
        fn drop(&mut self) {
            // SAFETY: nothing borrows it any more.
            unsafe { libc::pthread_mutex_destroy(self.mutex.get()) };
        }
    }

    impl<T> fmt::Debug for Lock<T> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Lock")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_under_the_lock_does_not_close_it() {
        static LOCK: Lock<u32> = Lock::new(1);
        let broken = std::thread::spawn(|| {
            let mut value = LOCK.lock();
            *value = 2;
            panic!("under the lock");
        });
        assert!(broken.join().is_err());
        assert_eq!(*LOCK.lock(), 2);
    }

    #[test]
    fn a_lock_that_is_held_is_not_waited_for() {
        static LOCK: Lock<u64> = Lock::new(7);
        let held = LOCK.lock();
        std::thread::scope(|scope| {
            for attempt in ["the first", "after one that failed"] {
                let other = scope.spawn(|| LOCK.try_lock().is_none());
                assert!(other.join().expect("it only tries"), "{attempt}");
            }
        });
        drop(held);
        assert_eq!(LOCK.try_lock().map(|value| *value), Some(7));
    }

    #[test]
    fn one_thread_at_a_time_has_the_value() {
        static LOCK: Lock<u64> = Lock::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| *LOCK.lock() += 1));
            }
        });
        assert_eq!(*LOCK.lock(), 40_000);
    }
}
