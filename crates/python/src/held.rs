//! Operations that go on without a caller, until they end. No lock is held while one is tested, waited for or dropped, which may run any code.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

#[derive(Debug)]
pub(crate) struct Held<T> {
    list: Mutex<List<T>>,
    /// A thread has put back the operations that it was testing.
    returned: Condvar,
}

#[derive(Debug)]
struct List<T> {
    held: Vec<T>,
    /// Threads that are testing some, and may put them back.
    hands: Vec<ThreadId>,
}

impl<T> Default for Held<T> {
    fn default() -> Self {
        let list = Mutex::new(List { held: Vec::new(), hands: Vec::new() });
        Self { list, returned: Condvar::new() }
    }
}

impl<T> Held<T> {
    /// Keeps `one`, unless it is over.
    pub(crate) fn keep(&self, one: T, is_over: impl FnMut(&mut T) -> bool) {
        let _hand = self.hand(&mut self.lock());
        self.put_back(vec![one], is_over);
    }

    /// Drops those that have ended.
    pub(crate) fn sweep(&self, is_over: impl FnMut(&mut T) -> bool) {
        let mut list = self.lock();
        if list.held.is_empty() {
            return;
        }
        let (all, _hand) = (std::mem::take(&mut list.held), self.hand(&mut list));
        drop(list);
        self.put_back(all, is_over);
    }

    /// Waits for each, also for those that another thread is testing.
    pub(crate) fn wait(&self, mut wait: impl FnMut(T)) {
        let own = thread::current().id();
        loop {
            let mut list = self.lock();
            // This thread may be in a sweep: an operation that is dropped there may run any code, also this call.
            while list.held.is_empty() && list.hands.iter().any(|thread| *thread != own) {
                list = self.returned.wait(list).unwrap_or_else(PoisonError::into_inner);
            }
            let all = std::mem::take(&mut list.held);
            drop(list);
            if all.is_empty() {
                return;
            }
            all.into_iter().for_each(&mut wait);
        }
    }

    fn put_back(&self, all: Vec<T>, mut is_over: impl FnMut(&mut T) -> bool) {
        for mut one in all {
            if !is_over(&mut one) {
                self.lock().held.push(one);
            }
        }
    }

    fn hand(&self, list: &mut List<T>) -> Hand<'_, T> {
        list.hands.push(thread::current().id());
        Hand(self)
    }

    fn lock(&self) -> MutexGuard<'_, List<T>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Marks that this thread is testing some. Dropped after they are put back, also by a panic.
struct Hand<'a, T>(&'a Held<T>);

impl<T> Drop for Hand<'_, T> {
    fn drop(&mut self) {
        let (own, mut list) = (thread::current().id(), self.0.lock());
        if let Some(at) = list.hands.iter().position(|thread| *thread == own) {
            list.hands.swap_remove(at);
        }
        self.0.returned.notify_all();
    }
}
