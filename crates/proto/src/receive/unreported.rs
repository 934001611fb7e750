//! Credit to return to the sender: the cost of messages that came without an advert and are complete, until a DONE covers
//! their lines.

use crate::account::Account;
use crate::bits::count32;
use crate::credit::{self, Used};
use crate::parking::ParkedList;

/// A number of messages, and their cost.
#[derive(Clone, Copy, Debug, Default)]
struct Messages {
    count: u32,
    cost: u32,
}

/// Complete messages that no DONE has covered. The account has the sum of their cost over all connections.
#[derive(Debug, Default)]
pub(super) struct Unreported {
    all: Messages,
    /// Messages in lines that `done` has passed: the next DONE covers them.
    passed: Messages,
}

impl Unreported {
    pub(super) fn is_empty(&self) -> bool {
        self.all.cost == 0
    }

    /// A message of this cost is complete.
    #[inline]
    pub(super) fn add(&mut self, cost: u16, account: &mut Account) {
        self.all.count += 1;
        self.all.cost += u32::from(cost);
        account.unreported += u32::from(cost);
    }

    /// All lines up to that of a message of this cost are complete.
    #[inline]
    pub(super) fn pass(&mut self, cost: u16) {
        self.passed.count += 1;
        self.passed.cost += u32::from(cost);
    }

    /// A DONE covers all lines that are complete up to the oldest incomplete one.
    #[inline]
    pub(super) fn report(&mut self, account: &mut Account) {
        let passed = std::mem::take(&mut self.passed);
        self.all.count -= passed.count;
        self.all.cost -= passed.cost;
        account.unreported -= passed.cost;
    }

    /// This side closes, so the sender's use of credit ends without a DONE.
    pub(super) fn clear(&mut self, account: &mut Account) {
        account.unreported -= self.all.cost;
        *self = Self::default();
    }

    /// How much of its credit the sender has used, if a DONE would return some of it.
    pub(super) fn credit_used(&self, parked: &ParkedList, account: &Account) -> Used {
        if self.passed.cost == 0 {
            return Used::Little;
        }
        credit::used(
            self.all.count + count32(parked.len()),
            self.all.cost + parked.cost(),
            account.unreported + account.parking.cost(),
        )
    }
}
