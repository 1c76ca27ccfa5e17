//! Taking down what is allocated and freed.

use std::time::Instant;

use crate::ops::label::{self, Label};

/// Events that are kept: some 100 bytes each, of which only those that are used take memory. A step of a large encoder
/// on the framework's operations has about 2,200.
const EVENTS_MAX: usize = 1 << 17;

/// Records one step. Its memory is set aside when it is made: recording allocates nothing, so that an allocator can call
/// it from inside an allocation.
#[derive(Debug)]
pub struct Recorder {
    began: Instant,
    events: Vec<Event>,
    missed: u64,
}

/// Something that happened to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Event {
    /// Microseconds since recording began.
    pub(super) at: u64,
    /// The block's address; nothing else has it while the block is alive.
    pub(super) block: usize,
    pub(super) change: Change,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Allocated { bytes: u64, label: Label },
    Freed,
}

/// What was recorded of one step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    pub(super) events: Vec<Event>,
    /// Events beyond what the recorder had room for.
    pub(super) missed: u64,
}

impl Recorder {
    /// Begins to record.
    #[allow(clippy::new_without_default, reason = "it reads the clock")]
    pub fn new() -> Recorder {
        Recorder { began: Instant::now(), events: Vec::with_capacity(EVENTS_MAX), missed: 0 }
    }

    /// The step was given a block. The label is that of the calling thread.
    pub fn allocated(&mut self, block: usize, bytes: u64) {
        self.push(block, Change::Allocated { bytes, label: label::current() });
    }

    /// A block was taken back. Blocks from before the recording are of no interest, and do no harm.
    pub fn freed(&mut self, block: usize) {
        self.push(block, Change::Freed);
    }

    fn push(&mut self, block: usize, change: Change) {
        if self.events.len() == self.events.capacity() {
            self.missed += 1;
            return;
        }
        let at = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.events.push(Event { at, block, change });
    }

    /// Ends the recording.
    pub fn finish(self) -> Recording {
        let Recorder { events, missed, .. } = self;
        // A copy of the right size: the recorder's has room for a hundred thousand events.
        Recording { events: events.as_slice().to_vec(), missed }
    }
}

impl Recording {
    /// Blocks that were handed out.
    pub fn blocks(&self) -> u64 {
        self.events.iter().filter(|event| matches!(event.change, Change::Allocated { .. })).count() as u64
    }
}
