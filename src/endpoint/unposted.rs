//! The buffers of a rail whose receives have to be posted again.

use fabric::{FabricError, Post};
use proto::Moment;
use proto::bound::CONTROL_HANGS;

/// Buffers whose receives are to be posted.
#[derive(Debug)]
pub(super) struct Unposted {
    buffers: Vec<u16>,
    /// How many are kept posted.
    count: u16,
    /// Since when every post has failed, or when [`Trouble::Deaf`] was last returned.
    failing_since: Option<Moment>,
    /// The endpoint closes: no receive is posted any more.
    is_stopped: bool,
}

/// Receives that cannot be posted. They stay unposted, and the next poll posts them again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// A post has failed, after an earlier one that succeeded.
    Begins(FabricError),
    /// No receive is posted, and each post has failed for [`CONTROL_HANGS`]: the rail receives nothing. Returned again each time that this
    /// time has passed.
    Deaf(FabricError),
}

impl Unposted {
    /// `count` buffers, none of them posted.
    pub(super) fn all(count: u16) -> Self {
        Self { buffers: (0..count).collect(), count, failing_since: None, is_stopped: false }
    }

    /// A receive has ended: the next poll posts it again.
    #[inline]
    pub(super) fn ended(&mut self, buffer: u16) {
        if !self.is_stopped {
            self.buffers.push(buffer);
        }
    }

    /// Posts receives until the provider refuses one.
    #[inline]
    pub(super) fn post(
        &mut self,
        now: Moment,
        mut post: impl FnMut(u16) -> Result<Post, FabricError>,
    ) -> Option<Trouble> {
        while let Some(buffer) = self.buffers.last().copied() {
            match post(buffer) {
                Ok(Post::Accepted) => {
                    self.buffers.pop();
                    self.failing_since = None;
                }
                Ok(Post::Again | Post::Full) => return None,
                Err(error) => return self.failed(error, now),
            }
        }
        None
    }

    #[cold]
    fn failed(&mut self, error: FabricError, now: Moment) -> Option<Trouble> {
        let Some(since) = self.failing_since else {
            self.failing_since = Some(now);
            return Some(Trouble::Begins(error));
        };
        if self.buffers.len() < usize::from(self.count) || now.since(since) < CONTROL_HANGS {
            return None;
        }
        self.failing_since = Some(now);
        Some(Trouble::Deaf(error))
    }

    /// Stops posting receives, also in place of those that end.
    pub(super) fn stop(&mut self) {
        self.is_stopped = true;
        self.buffers.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Moment {
        Moment::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn a_receive_that_ends_is_posted_again_until_the_endpoint_closes() {
        let mut unposted = Unposted::all(2);
        let posted = |unposted: &mut Unposted| {
            let mut posted = Vec::new();
            let post = |buffer| {
                posted.push(buffer);
                Ok(Post::Accepted)
            };
            assert_eq!(unposted.post(at(0), post), None);
            posted
        };
        assert_eq!(posted(&mut unposted), [1, 0]);
        unposted.ended(0);
        assert_eq!(unposted.post(at(0), |_| Ok(Post::Again)), None);
        assert_eq!(posted(&mut unposted), [0]);
        unposted.ended(0);
        unposted.stop();
        unposted.ended(1);
        assert_eq!(posted(&mut unposted), []);
    }

    #[test]
    fn a_rail_is_deaf_once_none_is_posted_and_each_post_has_failed_for_a_while() {
        let (begins, deaf) = (
            Some(Trouble::Begins(FabricError::OUTSIDE)),
            Some(Trouble::Deaf(FabricError::OUTSIDE)),
        );
        let fail =
            |unposted: &mut Unposted, ms| unposted.post(at(ms), |_| Err(FabricError::OUTSIDE));
        let mut unposted = Unposted::all(2);
        assert_eq!(fail(&mut unposted, 0), begins);
        assert_eq!(fail(&mut unposted, 499), None);
        assert_eq!(unposted.post(at(500), |_| Ok(Post::Again)), None, "a refusal is no failure");
        assert_eq!([500, 501, 1000].map(|ms| fail(&mut unposted, ms)), [deaf, None, deaf]);
        let mut tries = [Ok(Post::Accepted), Err(FabricError::OUTSIDE)].into_iter();
        let one = unposted.post(at(1100), |_| tries.next().expect("it stops at the failure"));
        assert_eq!((one, fail(&mut unposted, 9000)), (begins, None), "one is posted");
        unposted.ended(1);
        assert_eq!(fail(&mut unposted, 9001), deaf);
    }
}
