//! What one owner has, and why it got no more.

use crate::device::Owner;
use crate::units::Bytes;

/// Why an allocation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It would have been above its owner's ceiling. The driver was not asked.
    Ceiling,
    /// The driver refused, also after everything that is cached was returned.
    Driver,
}

/// The record of an allocation that failed, for whoever caught the error that came of it: by then it may have become
/// a text, or a panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{requested} more were needed beside {held}; the ceiling is {ceiling} ({cause:?})")]
pub struct OutOfMemory {
    /// For whom.
    pub owner: Owner,
    /// Bytes that were asked for.
    pub requested: Bytes,
    /// Bytes that the owner had then.
    pub held: Bytes,
    /// What it may have.
    pub ceiling: Bytes,
    /// Why not.
    pub cause: Cause,
}

/// The counts of one owner. `live <= ceiling` whenever a charge has succeeded; `blocks = allocated - freed - moved out
/// + moved in`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tally {
    /// Bytes alive or about to be.
    pub(super) live: u64,
    /// Most of them at once since the last reset.
    pub(super) peak: u64,
    /// Blocks alive.
    pub(super) blocks: u64,
    pub(super) allocated: u64,
    pub(super) freed: u64,
    pub(super) ceiling: u64,
    /// Allocations that the driver gave only after a trim.
    pub(super) retried: u32,
    /// The first failure since the last reset.
    pub(super) shortfall: Option<OutOfMemory>,
}

impl Default for Tally {
    fn default() -> Tally {
        Tally { live: 0, peak: 0, blocks: 0, allocated: 0, freed: 0, ceiling: u64::MAX, retried: 0, shortfall: None }
    }
}

impl Tally {
    /// Sets `bytes` aside, if the ceiling allows it.
    pub(super) fn charge(&mut self, bytes: u64) -> bool {
        match self.live.checked_add(bytes) {
            Some(live) if live <= self.ceiling => {
                self.live = live;
                true
            }
            _ => false,
        }
    }

    /// A block that was charged for exists.
    pub(super) fn entered(&mut self) {
        self.peak = self.peak.max(self.live);
        self.blocks += 1;
        self.allocated += 1;
    }

    /// A block of it is gone.
    pub(super) fn freed(&mut self, bytes: u64) {
        self.live -= bytes;
        self.blocks -= 1;
        self.freed += 1;
    }

    /// Everything counts from what is alive now, up to a new ceiling.
    pub(super) fn restart(&mut self, ceiling: u64) {
        *self = Tally { live: self.live, peak: self.live, blocks: self.blocks, ceiling, ..Tally::default() };
    }
}
