//! What happens to a request if nothing else does.

use std::collections::BTreeSet;

use crate::units::{RequestId, Timestamp};

/// Why a request's time can run out, or come. In the order in which two of one moment are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Expiry {
    /// Its deadline.
    Deadline,
    /// It waited too long for its model to be loaded.
    Load,
    /// It waited too long for memory.
    Memory,
    /// It has been held back for long enough.
    Hold,
    /// It waits although it could be run: a fault of the scheduler's.
    Stuck,
}

/// All timers of accepted requests. A timer whose reason is gone is not hunted down: whoever takes it out checks that
/// the reason still holds.
#[derive(Debug, Default)]
pub(super) struct Timers {
    by_time: BTreeSet<(Timestamp, RequestId, Expiry)>,
}

impl Timers {
    /// Sets a timer; one that would never go off is not kept.
    pub(super) fn set(&mut self, at: Timestamp, id: RequestId, expiry: Expiry) {
        if at != Timestamp::NEVER {
            self.by_time.insert((at, id, expiry));
        }
    }

    /// Clears a timer, if it is set.
    pub(super) fn clear(&mut self, at: Timestamp, id: RequestId, expiry: Expiry) {
        self.by_time.remove(&(at, id, expiry));
    }

    /// Whether it is set.
    pub(super) fn contains(&self, at: Timestamp, id: RequestId, expiry: Expiry) -> bool {
        self.by_time.contains(&(at, id, expiry))
    }

    /// Takes out the first timer that has gone off.
    pub(super) fn pop(&mut self, now: Timestamp) -> Option<(RequestId, Expiry)> {
        let &(at, id, expiry) = self.by_time.first()?;
        if at > now {
            return None;
        }
        self.by_time.pop_first();
        Some((id, expiry))
    }

    /// When the next one goes off.
    pub(super) fn next(&self) -> Option<Timestamp> {
        self.by_time.first().map(|&(at, ..)| at)
    }
}
