//! Posts that libfabric refused with EAGAIN, in the order they were made.
//!
//! While anything waits here, later posts on the same rail queue behind it, so that no part overtakes another for
//! ever and a refused post is neither lost nor repeated.

use std::collections::VecDeque;

use fabric::{FabricError, Post};

/// A bounded first-in-first-out of refused posts.
#[derive(Debug)]
pub(crate) struct Backlog<T> {
    waiting: VecDeque<T>,
}

impl<T> Backlog<T> {
    /// Room for `count` posts is made now, so that the hot path does not allocate.
    pub(crate) fn new(count: usize) -> Self {
        Self { waiting: VecDeque::with_capacity(count) }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) fn push(&mut self, item: T) {
        self.waiting.push_back(item);
    }

    /// Posts from the front until one is refused again. An item whose post failed is handed to `failed`, and the
    /// rest go on. Answers how many were accepted.
    pub(crate) fn flush(
        &mut self,
        mut post: impl FnMut(&T) -> Result<Post, FabricError>,
        mut failed: impl FnMut(T, FabricError),
    ) -> usize {
        let mut accepted = 0;
        while let Some(item) = self.waiting.front() {
            match post(item) {
                Ok(Post::Again) => break,
                Ok(Post::Accepted) => {
                    self.waiting.pop_front();
                    accepted += 1;
                }
                Err(error) => {
                    let item = self.waiting.pop_front().expect("the front was just looked at");
                    failed(item, error);
                }
            }
        }
        accepted
    }

    /// Takes out everything that waits.
    pub(crate) fn take_all(&mut self) -> Vec<T> {
        self.waiting.drain(..).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_posts_keep_their_order_and_are_neither_lost_nor_repeated() {
        for refusals in 0..64_u32 {
            let mut backlog = Backlog::new(8);
            (0..4).for_each(|item| backlog.push(item));
            let (mut posted, mut turn) = (Vec::new(), 0);
            while !backlog.is_empty() {
                backlog.flush(
                    |item| {
                        turn += 1;
                        if turn <= 6 && refusals >> (turn - 1) & 1 == 1 {
                            return Ok(Post::Again);
                        }
                        posted.push(*item);
                        Ok(Post::Accepted)
                    },
                    |_, _| panic!("nothing failed"),
                );
            }
            assert_eq!(posted, [0, 1, 2, 3], "refusals {refusals:06b}");
        }
    }

    #[test]
    fn a_post_that_fails_is_handed_back_and_the_rest_go_on() {
        let mut backlog = Backlog::new(4);
        (0..3).for_each(|item| backlog.push(item));
        let (mut posted, mut failed) = (Vec::new(), Vec::new());
        backlog.flush(
            |item| {
                if *item == 1 {
                    return Err(FabricError { call: "fi_write", code: -5 });
                }
                posted.push(*item);
                Ok(Post::Accepted)
            },
            |item, _| failed.push(item),
        );
        assert_eq!((posted, failed), (vec![0, 2], vec![1]));
    }
}
