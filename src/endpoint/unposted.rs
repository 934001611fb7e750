//! Which buffers of a rail have no receive posted, of those that are kept posted.

use fabric::{FabricError, Post};

/// Buffers whose receives are to be posted.
#[derive(Debug)]
pub(super) struct Unposted {
    buffers: Vec<u16>,
    /// The endpoint closes: none is posted any more.
    is_stopped: bool,
}

impl Unposted {
    /// All of so many buffers.
    pub(super) fn all(count: u16) -> Self {
        Self { buffers: (0..count).collect(), is_stopped: false }
    }

    /// A receive has ended: the next poll posts it again.
    #[inline]
    pub(super) fn ended(&mut self, buffer: u16) {
        if !self.is_stopped {
            self.buffers.push(buffer);
        }
    }

    /// Posts receives until the provider refuses one.
    ///
    /// # Errors
    ///
    /// That of `post`. The receive stays unposted.
    #[inline]
    pub(super) fn post(
        &mut self,
        mut post: impl FnMut(u16) -> Result<Post, FabricError>,
    ) -> Result<(), FabricError> {
        while let Some(buffer) = self.buffers.last().copied() {
            match post(buffer)? {
                Post::Accepted => self.buffers.pop(),
                Post::Again | Post::Full => return Ok(()),
            };
        }
        Ok(())
    }

    /// Posts no receives any more, also not in place of those that end.
    pub(super) fn stop(&mut self) {
        self.is_stopped = true;
        self.buffers.clear();
    }

    /// Gives up the receives that could not be posted, until others end.
    pub(super) fn skip(&mut self) {
        self.buffers.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receive_that_ends_is_posted_again_until_the_endpoint_closes() {
        let mut unposted = Unposted::all(2);
        let posted = |unposted: &mut Unposted| {
            let mut posted = Vec::new();
            let post = |buffer| {
                posted.push(buffer);
                Ok(Post::Accepted)
            };
            unposted.post(post).expect("it is accepted");
            posted
        };
        assert_eq!(posted(&mut unposted), [1, 0]);
        unposted.ended(0);
        unposted.post(|_| Ok(Post::Again)).expect("it is refused");
        assert_eq!(posted(&mut unposted), [0]);
        unposted.ended(1);
        unposted.skip();
        unposted.ended(0);
        assert_eq!(posted(&mut unposted), [0], "what was skipped is not posted");
        unposted.ended(0);
        unposted.stop();
        unposted.ended(1);
        assert_eq!(posted(&mut unposted), []);
    }
}
