//! The right of one step to use memory, and what came of it.

use crate::units::{Bytes, Micros, ModelId};

/// What the ledger gives a step. Holding one proves that `ceiling` bytes of workspace are set aside for it; it is
/// returned exactly once, whatever the step's outcome.
///
/// Invariant: `predicted <= ceiling`.
#[must_use = "a lease holds memory until it is returned to the ledger"]
#[derive(Debug, PartialEq, Eq)]
pub struct Lease {
    /// Whose step it is.
    pub model: ModelId,
    /// Peak workspace that the profile predicts, drift factor included.
    pub predicted: Bytes,
    /// All that the ledger may give this step now. The allocator compares with this and with nothing else.
    pub ceiling: Bytes,
    /// Growth of the KV cache, exact, apart from the workspace; zero for models without one.
    pub kv: Bytes,
    /// What earlier steps may have left in the workspace, set aside beside the ceiling: what is found out later has no room
    /// there.
    pub leftovers: Bytes,
}

/// What really happened in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observed {
    /// True peak of the step's workspace (of the largest part, if it was replayed in parts).
    pub peak: Bytes,
    /// Workspace that it came by in all, at least its peak: what the next step like it wants to find.
    pub reach: Bytes,
    /// Time on the device, all replays included.
    pub time: Micros,
    /// Rungs of the out-of-memory ladder that were used.
    pub rungs: Rungs,
    /// How it ended.
    pub outcome: Outcome,
}

/// Rungs of the ladder that one step used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rungs {
    /// Rung 1: synchronized, trimmed, retried.
    pub trims: u32,
    /// Rung 2: the batch was halved and replayed.
    pub halvings: u32,
    /// Rung 3: an idle model was evicted.
    pub evictions: u32,
    /// Rung 4: rows refused.
    pub refusals: u32,
}

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every row has its answer.
    Done,
    /// The ladder ended in a refusal.
    OutOfMemory,
    /// The model or the device failed, or a result was not finite.
    Faulted,
}
