//! Messages of the hub that have not been read yet.

use std::collections::VecDeque;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::frame::{Frame, News};

/// Filled by a thread that blocks in `read`, so that a poll only reads a flag.
#[derive(Debug, Default)]
pub(super) struct Mailbox {
    inbox: Mutex<Inbox>,
    changed: Condvar,
    /// Whether there is mail, or news that was not read yet.
    waiting: AtomicBool,
}

#[derive(Debug, Default)]
struct Inbox {
    answers: VecDeque<Frame>,
    mail: VecDeque<(usize, Vec<u8>)>,
    news: VecDeque<News>,
    closed: bool,
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
                answer => inbox.answers.push_back(answer),
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

    /// The next answer; None when the hub is gone or `deadline` has passed.
    pub(super) fn answer(&self, deadline: Instant) -> Option<Frame> {
        let mut inbox = self.lock();
        loop {
            if let Some(answer) = inbox.answers.pop_front() {
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
