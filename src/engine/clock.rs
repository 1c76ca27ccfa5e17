//! The one place where a clock is read for the pure cores.

use std::time::{Duration, Instant};

use crate::units::{Micros, Timestamp};

/// Turns the system's monotonic clock into the cores' timestamps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    epoch: Instant,
}

impl Clock {
    pub(super) fn new() -> Clock {
        Clock { epoch: Instant::now() }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.timestamp(Instant::now())
    }

    /// The moment that counts as the start.
    pub(super) fn epoch(&self) -> Instant {
        self.epoch
    }

    /// The moment of a timestamp.
    pub(super) fn instant(&self, timestamp: Timestamp) -> Instant {
        self.epoch + Duration::from(timestamp.since(Timestamp::START))
    }

    /// The timestamp of a moment; the start for moments before it.
    pub(super) fn timestamp(&self, moment: Instant) -> Timestamp {
        Timestamp::START + Micros::from(moment.saturating_duration_since(self.epoch))
    }
}
