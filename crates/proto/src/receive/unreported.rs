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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Inline;
    use crate::ids::Name;
    use crate::line::Line;

    /// What other connections of the channel have parked counts.
    #[test]
    fn the_credit_that_is_used_is_that_of_the_channel_if_its_share_is_the_largest() {
        let mut account = Account::new(1);
        let mut unreported = Unreported::default();
        let parked = ParkedList::default();
        unreported.add(100, &mut account);
        assert_eq!(unreported.credit_used(&parked, &account), Used::Little, "none would return");
        account.unreported += credit::CHANNEL_BYTES / 2;
        assert_eq!(unreported.credit_used(&parked, &account), Used::Little, "none would return");
        unreported.pass(100);
        assert_eq!(unreported.credit_used(&parked, &account), Used::Half);
        account.unreported = 100;
        assert_eq!(unreported.credit_used(&parked, &account), Used::Little);
        let mut others = [(); 4].map(|()| ParkedList::default());
        let (to, line) = (Name::default(), Line::FIRST);
        let inline = Inline { to, line, advertised: false, tag: 0, base: line, len: 1000 };
        for list in &mut others {
            for _ in 0..10 {
                account.parking.park(list, &inline).unwrap();
            }
        }
        account.unreported = 0;
        assert_eq!(unreported.credit_used(&parked, &account), Used::Half);
    }
}
