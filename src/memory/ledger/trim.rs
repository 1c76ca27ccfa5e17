//! When cached workspace goes back to the device.
//!
//! Two reasons. *Decay*: what no step of the last window needed is returned, so a large batch does not hold its
//! workspace for ever and a neighbour that asks for memory finds it within two windows. *Pressure*: a neighbour is
//! taking memory now, so the cache is returned at once, down to a floor.

use super::{Ledger, Readings};
use crate::memory::Reading;
use crate::units::{Bytes, Micros, Timestamp};

/// How eagerly cached workspace is returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrimPolicy {
    /// Never returned. Raising it saves small steps from asking the device; lowering it leaves more to neighbours.
    pub floor: Bytes,
    /// Length of a window: cache that no step needed for one to two windows is returned. Longer ones cost neighbours
    /// time; shorter ones make bursts ask the device for the same memory again.
    pub window: Micros,
    /// A fall of free memory between two readings that is not ours and larger than this is a neighbour taking memory;
    /// so is free memory less than this above the safety margin.
    pub pressure: Bytes,
}

impl Default for TrimPolicy {
    /// 8 MiB, 0.8 s, 64 MiB.
    fn default() -> TrimPolicy {
        TrimPolicy { floor: Bytes::mib(8), window: Micros::millis(800), pressure: Bytes::mib(64) }
    }
}

/// What steps needed lately.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Demand {
    /// Largest peak of the window now running, and of the one before.
    current: Bytes,
    before: Bytes,
    window_start: Timestamp,
    /// Cached workspace at the last look: while there is some, there is something to decide.
    cached: Bytes,
    /// Bytes that nobody else had at the last look: free ones and those of our workspace.
    ours_or_free: Option<Bytes>,
}

impl Demand {
    /// A step needed so much.
    pub(super) fn used(&mut self, peak: Bytes) {
        self.current = self.current.max(peak);
    }

    /// Moves on to the window that `now` is in.
    fn advance(&mut self, now: Timestamp, window: Micros) {
        let passed = now.since(self.window_start);
        if passed < window {
            return;
        }
        let only_one = passed < window + window;
        self.before = if only_one { self.current } else { Bytes::ZERO };
        self.current = Bytes::ZERO;
        self.window_start = now;
    }
}

impl Ledger {
    /// Replaces the policy.
    pub fn set_trim_policy(&mut self, policy: TrimPolicy) {
        self.trim_policy = policy;
    }

    /// The workspace to keep, if some of what is cached should be returned now; the device's thread does so between two
    /// steps. To be asked after every step and at [`Ledger::wake_at`].
    pub fn trim(&mut self, now: Timestamp, reading: &Reading) -> Option<Bytes> {
        let TrimPolicy { floor, window, .. } = self.trim_policy;
        self.demand.advance(now, window);
        let pressed = self.under_pressure(reading);
        self.demand.cached = reading.workspace_cached;
        let keep = if pressed { floor } else { floor.max(self.demand.current).max(self.demand.before) };
        // Not for less than a granule: it would not even reach the device.
        let gives = reading.workspace_cached > keep + self.books.granule;
        if gives {
            self.demand.cached = keep;
        }
        gives.then_some(keep)
    }

    /// Whether a neighbour is taking memory: little is left, or what is not ours has grown since the last look.
    fn under_pressure(&mut self, reading: &Reading) -> bool {
        if self.books.readings == Readings::Off {
            return false;
        }
        let pressure = self.trim_policy.pressure;
        let ours_or_free = reading.free + reading.workspace_reserved + reading.library + self.held();
        let before = self.demand.ours_or_free.replace(ours_or_free);
        let low = reading.free < self.books.safety + pressure;
        let falling = before.is_some_and(|before| ours_or_free + pressure < before);
        low || falling
    }

    /// When [`Ledger::trim`] is to be asked again although no step has ended: at the end of the window, as long as
    /// there is cache that could be returned then.
    pub fn wake_at(&self) -> Option<Timestamp> {
        let idle = self.leases.is_empty() && self.demand.cached > self.trim_policy.floor + self.books.granule;
        idle.then(|| self.demand.window_start + self.trim_policy.window)
    }
}
