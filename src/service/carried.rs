//! What a call in which a client may send many messages carries to where they are read: who sends them, and how much memory
//! may be kept for them.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::access::Pass;
use super::errors::Problem;
use crate::units::Bytes;

/// What is kept for a stream of small messages is not counted.
const UNCOUNTED: u64 = 64 << 10;

tokio::task_local! {
    static CARRIED: Carried;
}

/// What a call carries.
#[derive(Clone, Debug)]
pub(crate) struct Carried {
    pub(crate) pass: Arc<Pass>,
    pub(crate) held: Arc<Held>,
}

impl Carried {
    /// The same future, in which [`Carried::current`] is this.
    pub(crate) async fn along<F: Future>(self, future: F) -> F::Output {
        CARRIED.scope(self, future).await
    }

    /// That of the call in which this is asked, if it carries any.
    pub(crate) fn current() -> Option<Carried> {
        CARRIED.try_with(Carried::clone).ok()
    }

    /// Of what is held, that of one more stream: nothing yet.
    pub(super) fn share(self) -> Share {
        Share { held: self.held, bytes: 0 }
    }
}

/// Host memory that open streams keep for their messages, and how much that may be.
#[derive(Debug)]
pub(crate) struct Held {
    bytes: AtomicU64,
    limit: Bytes,
}

impl Held {
    pub(crate) fn new(limit: Bytes) -> Held {
        Held { bytes: AtomicU64::new(0), limit }
    }
}

/// What one stream keeps, until this is dropped: as much as its largest message had.
#[derive(Debug)]
pub(super) struct Share {
    held: Arc<Held>,
    bytes: u64,
}

impl Share {
    /// Counts a message of so many bytes.
    ///
    /// # Errors
    /// [`Problem::StreamsTooLarge`] if all of them together would keep too much.
    pub(super) fn grow_to(&mut self, bytes: u64) -> Result<(), Problem> {
        if bytes <= self.bytes.max(UNCOUNTED) {
            return Ok(());
        }
        let more = bytes - self.bytes;
        let held = self.held.bytes.fetch_add(more, Ordering::Relaxed);
        if Bytes::new(held.saturating_add(more)) > self.held.limit {
            self.held.bytes.fetch_sub(more, Ordering::Relaxed);
            let (held, asked) = (Bytes::new(held), Bytes::new(more));
            return Err(Problem::StreamsTooLarge { held, asked, limit: self.held.limit });
        }
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.held.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_hold_their_largest_messages_until_they_end() {
        let held = Arc::new(Held::new(Bytes::mib(2)));
        let share = || Share { held: held.clone(), bytes: 0 };
        let bytes = || held.bytes.load(Ordering::Relaxed);
        let (mut first, mut second) = (share(), share());
        first.grow_to(UNCOUNTED).unwrap();
        assert_eq!(bytes(), 0);
        first.grow_to(1 << 20).unwrap();
        first.grow_to(1000).unwrap();
        assert_eq!(bytes(), 1 << 20);
        second.grow_to(1 << 20).unwrap();
        let problem = second.grow_to((1 << 20) + 1).unwrap_err();
        let (asked, limit) = (Bytes::new(1), Bytes::mib(2));
        assert_eq!(problem, Problem::StreamsTooLarge { held: limit, asked, limit });
        assert_eq!(bytes(), 2 << 20);
        drop(first);
        second.grow_to(2 << 20).unwrap();
        drop(second);
        assert_eq!(bytes(), 0);
    }
}
