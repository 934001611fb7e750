//! Messages of the hub that have not been read yet.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::frame::{Frame, News};
use crate::loader::Private;

/// Filled by a thread that blocks in `read`, so that a poll only reads a flag.
#[derive(Default)]
pub(super) struct Mailbox {
    inbox: Mutex<Inbox>,
    changed: Condvar,
    /// Whether there is mail, or news that was not read yet.
    waiting: AtomicBool,
}

#[derive(Default)]
struct Inbox {
    answers: Vec<Frame>,
    /// Rounds that are not waited for any more. Each is answered once.
    forgotten: HashSet<u32>,
    mail: VecDeque<(usize, Vec<u8>)>,
    /// The cost of each rank's mail; None: it was too much, and the rank's mail is dropped.
    costs: HashMap<usize, Option<usize>>,
    news: VecDeque<News>,
    closed: bool,
}

/// Omits mail: it has handles, with which anyone could connect.
impl fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

impl Mailbox {
    /// Reads frames until the stream ends.
    pub(super) fn fill(self: Arc<Self>, stream: Private<TcpStream>) {
        while let Ok(frame) = Frame::read(&mut &*stream) {
            let mut inbox = self.lock();
            match frame {
                Frame::Mail { peer, bytes } => {
                    inbox.put_mail(peer, bytes);
                    self.settle(&inbox);
                }
                Frame::News(news) => {
                    inbox.put_news(news);
                    self.settle(&inbox);
                }
                answer if answer.answers().is_some_and(|round| inbox.forgotten.remove(&round)) => {}
                answer => inbox.answers.push(answer),
            }
            drop(inbox);
            self.changed.notify_all();
        }
        let mut inbox = self.lock();
        inbox.closed = true;
        inbox.news.push_back(News::Alone);
        self.waiting.store(true, Ordering::Release);
        drop(inbox);
        self.changed.notify_all();
    }

    /// The answer to a round, to an echo, or to a farewell; None when the hub is gone or `deadline` has passed.
    pub(super) fn answer(&self, round: Option<u32>, deadline: Instant) -> Option<Frame> {
        let mut inbox = self.lock();
        loop {
            if let Some(answer) = inbox.take(round) {
                return Some(answer);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if inbox.closed || left.is_zero() {
                return None;
            }
            let woken = self.changed.wait_timeout(inbox, left);
            inbox = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Whether the hub is gone.
    pub(super) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Drops the answer to a round, now or when it comes.
    pub(super) fn forget(&self, round: u32) {
        let mut inbox = self.lock();
        if inbox.take(Some(round)).is_none() && !inbox.closed {
            inbox.forgotten.insert(round);
        }
    }

    /// Whether [`Mailbox::mail`] or [`Mailbox::news`] has something.
    #[inline]
    pub(super) fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed)
    }

    pub(super) fn mail(&self) -> Option<(usize, Vec<u8>)> {
        let mut inbox = self.lock();
        let mail = inbox.take_mail();
        self.settle(&inbox);
        mail
    }

    pub(super) fn news(&self) -> Option<News> {
        let mut inbox = self.lock();
        let news = inbox.news.pop_front();
        self.settle(&inbox);
        news
    }

    fn settle(&self, inbox: &Inbox) {
        let waiting = !inbox.mail.is_empty() || !inbox.news.is_empty();
        self.waiting.store(waiting, Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inbox {
    /// A rank that sends more than is kept is lost.
    fn put_mail(&mut self, peer: usize, bytes: Vec<u8>) {
        let cost = self.costs.entry(peer).or_insert(Some(0));
        let Some(before) = *cost else { return };
        *cost = Some(before + cost_of(&bytes)).filter(|cost| *cost <= MAIL_BYTES_MAX);
        if cost.is_some() {
            return self.mail.push_back((peer, bytes));
        }
        let why = format!(
            "its letters over the rendezvous have more than {} MiB of unread bytes",
            MAIL_BYTES_MAX >> 20
        );
        self.put_news(News::Lost { rank: peer, why });
    }

    fn take_mail(&mut self) -> Option<(usize, Vec<u8>)> {
        let (peer, bytes) = self.mail.pop_front()?;
        if let Some(Some(cost)) = self.costs.get_mut(&peer) {
            *cost -= cost_of(&bytes);
        }
        Some((peer, bytes))
    }

    /// Adds news, unless it repeats the last one.
    fn put_news(&mut self, news: News) {
        if self.news.back() != Some(&news) {
            self.news.push_back(news);
        }
    }

    fn take(&mut self, wanted: Option<u32>) -> Option<Frame> {
        let index = self.answers.iter().position(|answer| answer.answers() == wanted)?;
        Some(self.answers.remove(index))
    }
}

/// The cost of a letter. Letters without bytes need memory, too.
fn cost_of(letter: &[u8]) -> usize {
    letter.len() + size_of::<(usize, Vec<u8>)>()
}

/// The bound for one sender. A rank sends a letter for each connection, and another at its end.
const MAIL_BYTES_MAX: usize = 8 << 20;

#[cfg(test)]
mod tests {
    use super::super::PART_BYTES_MAX;
    use super::*;

    #[test]
    fn a_rank_whose_letters_are_not_read_is_lost_past_a_bound_and_no_other_rank() {
        for len in [PART_BYTES_MAX, 0] {
            let letter = vec![0; len];
            let most = MAIL_BYTES_MAX / cost_of(&letter);
            let mut inbox = Inbox::default();
            // Any number that is read in time.
            for _ in 0..2 * most {
                inbox.put_mail(0, letter.clone());
                assert_eq!(inbox.take_mail(), Some((0, letter.clone())));
            }
            (0..most).for_each(|_| inbox.put_mail(0, letter.clone()));
            inbox.put_mail(1, letter.clone());
            assert_eq!((inbox.mail.len(), inbox.news.len()), (most + 1, 0));
            (0..most).for_each(|_| inbox.put_mail(0, letter.clone()));
            assert_eq!((inbox.mail.len(), inbox.news.len()), (most + 1, 1));
            assert!(matches!(inbox.news[0], News::Lost { rank: 0, .. }));
        }
    }

    #[test]
    fn news_that_is_not_read_is_kept_once() {
        let mut inbox = Inbox::default();
        let (silent, aborted) = (News::Silent { ranks: vec![1] }, News::Aborted { rank: 1 });
        for news in [&silent, &silent, &aborted, &silent] {
            inbox.put_news(news.clone());
        }
        assert_eq!(inbox.news, [silent.clone(), aborted, silent]);
    }
}
