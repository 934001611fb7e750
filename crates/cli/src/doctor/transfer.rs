//! Messages around a ring, every byte compared: enough to detect a path that loses, mixes up or delays data.

use ironrail_group::check::{self, Expected};
use ironrail_group::communicator::Communicator;
use ironrail_group::error::GroupError;
use ironrail_group::loader::{Buffer, DataType};

use super::machine::Transfer;

/// Sizes in bytes: inline (eager) messages, messages of one part and of several parts.
const SIZES: [usize; 8] = [1, 8, 64, 1000, 4096, 65_536, 300_001, 1 << 20];
/// Guard bytes behind each message, which must not change.
const GUARD_BYTES: usize = 64;

/// Each rank sends a message of each size to the next and receives one from the previous.
pub(super) fn exchange(communicator: &mut Communicator) -> Result<Transfer, GroupError> {
    let largest = SIZES.into_iter().max().unwrap_or(0);
    let mut input = Buffer::new(largest)?;
    let mut output = Buffer::new(largest + GUARD_BYTES)?;
    let sending = communicator.next.register(&input)?;
    let receiving = communicator.previous.register(&output)?;
    let ring = communicator.ring();
    let mut found = Transfer::default();
    for (number, bytes) in SIZES.into_iter().enumerate() {
        check::fill(&mut input, DataType::U8, 0, bytes, ring.rank, number)?;
        check::poison(&mut output)?;
        let Communicator { next, previous, patience, .. } = communicator;
        patience.reset();
        let (mut receives, mut sends) = (false, false);
        let (mut came, mut went) = (false, false);
        while !(came && went) {
            let before = (receives, sends, came, went);
            receives = receives || previous.receive(&mut output, 0..bytes, &receiving)?;
            sends = sends || next.send(&input, 0..bytes, &sending)?;
            if let Some(length) = previous.poll()? {
                if length != bytes {
                    let why =
                        format!("a message of {bytes} bytes arrived with a length of {length}");
                    return Err(GroupError::Contract(why));
                }
                came = true;
            }
            went |= next.poll()?;
            if before == (receives, sends, came, went) {
                patience.idle(|| Communicator::awaited(next, previous))?;
            } else {
                patience.reset();
            }
        }
        let expected = Expected::Input { rank: ring.previous() };
        found.wrong += check::count_wrong(&output, DataType::U8, 0, bytes, expected, number)?;
        found.wrong += check::count_unpoisoned(&output, bytes..bytes + GUARD_BYTES)?;
        found.messages += 1;
        found.bytes += bytes as u64;
    }
    Ok(found)
}
