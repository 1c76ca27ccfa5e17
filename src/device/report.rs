//! What a device's thread tells the engine.

use super::trace::Recording;
use crate::memory::{Axes, Observed};
use crate::model::Fault;
use crate::units::{Bytes, Micros, ModelId, StepId};

/// What came of an order.
#[derive(Debug)]
pub enum Report {
    /// Of `Load`.
    Loaded {
        /// Which model.
        model: ModelId,
        /// What it holds, or why it is not loaded; then nothing of it is left.
        result: Result<Loaded, LoadFailure>,
    },
    /// Of `Run`.
    Ran(Ran),
    /// The ladder has unloaded an idle model to make room for the step whose `Ran` follows.
    Evicted(Released),
    /// Of `Unload`.
    Unloaded(Released),
    /// Of `Trim`.
    Trimmed {
        /// Cached workspace that went back to the system.
        released: Bytes,
    },
}

/// A model that is loaded now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// What it holds, counted block by block.
    pub resident: Bytes,
    /// Most that was alive at once while it was loaded.
    pub peak: Bytes,
    /// Time that loading took.
    pub time: Micros,
    /// What its profile is measured over.
    pub axes: Axes,
}

/// Why a model is not loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadFailure {
    /// Something broke.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// There was less memory than when it was begun, or it needs more than was announced.
    #[error("out of memory while loading: {} are needed and {} can be had", .0.needed, .0.available)]
    OutOfMemory(Shortfall),
}

/// A model that is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Released {
    /// Which.
    pub model: ModelId,
    /// Bytes that it held and that are free now; zero if it was not loaded.
    pub released: Bytes,
    /// Bytes that its steps left in libraries (scratch of threads): they stay, and serve the models after it.
    pub left: Bytes,
    /// What the system says is free afterwards, and what it said before; `None` where it says nothing.
    pub free: Option<Change>,
}

/// A number before and after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Before.
    pub before: Bytes,
    /// After.
    pub after: Bytes,
}

/// A step that has been run.
#[derive(Debug)]
pub struct Ran {
    /// Which.
    pub step: StepId,
    /// Whose.
    pub model: ModelId,
    /// The result of each row in the batch's order; for a step that was only measured those of the run that faulted,
    /// if one did.
    pub rows: Vec<Result<Vec<f32>, RowFailure>>,
    /// Its peak, time, rungs and outcome. For a measured step the largest peak and time of the kept runs.
    pub observed: Observed,
    /// Time that the device was occupied: all runs, replays and evictions.
    pub busy: Micros,
    /// What the model holds now: its weights, and what its steps have left behind (matrices that are packed at their
    /// first use, scratch of libraries). It grows with the first steps and then stands.
    pub resident: Bytes,
    /// The blocks of a step that was run for its trace; `None` if it failed, or its device records nothing.
    pub recording: Option<Recording>,
}

/// Why a row has no result. Only rows that it concerns have one: their neighbours in the batch are answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowFailure {
    /// Something broke.
    Fault(Fault),
    /// It did not fit, alone, with everything returned and evicted that may be.
    OutOfMemory(Shortfall),
}

/// The device could not give what a step or a load needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortfall {
    /// Bytes that it needs.
    pub needed: Bytes,
    /// Bytes that could be given.
    pub available: Bytes,
}
