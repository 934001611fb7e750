//! Receives whose completion NCCL marks as optional: their bytes tell by themselves that they are there, to a kernel that
//! looks at them.

use super::{Endpoint, Look, enqueue, open_receiver};
use crate::error::{Cause, Noun, Result};
use crate::handle::{Handle, HandleKind};
use crate::types::Poll;

impl Endpoint {
    /// The request under which a receive may end early, where that is possible; else the same. It is possible where nobody
    /// has to hear of us again: where the sender's completions prove arrival. It is a NIC that acknowledges then, and it
    /// takes the bytes in without a call of ours. (FI_PROGRESS_AUTO says less: cxi and efa, whose messages need calls,
    /// deny it for their writes too.)
    #[cold]
    pub(crate) fn may_end_early(&mut self, request: Handle) -> Handle {
        let (slot, generation) = (request.slot(), request.generation());
        let Ok(receiver) = open_receiver(self.receivers.get_mut(slot, generation), Noun::Request)
        else {
            return request;
        };
        if !receiver.hasten() {
            return request;
        }
        let refuses = receiver.refuse_eager();
        enqueue(receiver, &mut self.working, slot);
        if refuses {
            self.say_cease(slot);
        }
        let kind = HandleKind::OptionalReceiveRequest;
        Handle::new(kind, self.number, generation, slot, request.line())
    }

    /// As for any receive; else that its advert is out is enough.
    #[inline(never)]
    pub(super) fn test_optional(
        &mut self,
        request: Handle,
        sizes: &mut [usize; 8],
        look: Look,
    ) -> Result<Poll> {
        if let done @ Poll::Done { .. } = self.test_receive(request, sizes, look)? {
            return Ok(done);
        }
        let (slot, generation) = (request.slot(), request.generation());
        let receiver = open_receiver(self.receivers.get_mut(slot, generation), Noun::Request)?;
        let line = receiver.line_of(request.line()).ok_or(Cause::Stale(Noun::Request))?;
        if !receiver.end_early(line) {
            return Ok(Poll::Pending);
        }
        self.outstanding -= 1;
        self.counters.early_receives += 1;
        // The size is not known yet, and nobody asks: what NCCL flushes is never optional.
        sizes[0] = 0;
        Ok(Poll::Done { sizes: 1 })
    }
}
