//! Messages of the hub that have not been read yet.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::frame::{Frame, News};

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
    /// Rounds that nobody waits for any more. Each is answered once.
    forgotten: HashSet<u32>,
    mail: VecDeque<(usize, Vec<u8>)>,
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
    pub(super) fn fill(self: Arc<Self>, mut stream: TcpStream) {
        while let Ok(frame) = Frame::read(&mut stream) {
            let mut inbox = self.lock();
            match frame {
                Frame::Mail { peer, bytes } => {
                    inbox.mail.push_back((peer, bytes));
                    self.waiting.store(true, Ordering::Release);
                }
                Frame::News(news) => {
                    inbox.news.push_back(news);
                    self.waiting.store(true, Ordering::Release);
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
        let mail = inbox.mail.pop_front();
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
    fn take(&mut self, wanted: Option<u32>) -> Option<Frame> {
        let index = self.answers.iter().position(|answer| answer.answers() == wanted)?;
        Some(self.answers.remove(index))
    }
}
