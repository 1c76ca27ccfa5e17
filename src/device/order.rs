//! What the engine asks of a device's thread.

use std::error::Error;

use super::Need;
use crate::model::{Batch, Model};
use crate::units::{Bytes, ModelId, StepId};

/// One thing to do. Orders are carried out one after another, in the order in which they are sent; each but `Stop` is
/// answered by one [`super::Report`] of its own kind.
pub enum Order {
    /// Load a model. Answered by `Loaded`.
    Load {
        /// Its id; not loaded now.
        model: ModelId,
        /// What its lease allows: what it will hold and what it needs beside that while it loads. Where a device counts
        /// before it gives, a load that wants more fails.
        ceiling: Bytes,
        /// Makes it, on the device's thread.
        loader: Box<dyn Loader>,
    },
    /// Run a step. Answered by `Ran`, after an `Evicted` for each model that the ladder had to evict.
    Run(Run),
    /// Drop a model and return its memory. Answered by `Unloaded`, also if it was not loaded.
    Unload {
        /// Which.
        model: ModelId,
    },
    /// Return cached workspace to the system. Answered by `Trimmed`.
    Trim {
        /// Bytes that may stay cached.
        keep: Bytes,
    },
    /// Drop every model and end the thread.
    Stop,
}

/// Makes a loaded model. Called on the device's thread; everything it allocates is charged to the model.
pub trait Loader: Send {
    /// Loads it onto `device`.
    ///
    /// # Errors
    /// Any; the text goes to the log.
    fn load(self: Box<Self>, device: &candle_core::Device) -> Result<Box<dyn Model>, Box<dyn Error + Send + Sync>>;
}

impl<F> Loader for F
where
    F: FnOnce(&candle_core::Device) -> Result<Box<dyn Model>, Box<dyn Error + Send + Sync>> + Send,
{
    fn load(self: Box<Self>, device: &candle_core::Device) -> Result<Box<dyn Model>, Box<dyn Error + Send + Sync>> {
        self(device)
    }
}

/// A step to run: what the device needs to know of a [`crate::scheduler::Step`], and its rows. The step itself stays
/// with the engine, which gives its lease back when the report comes.
#[derive(Debug)]
pub struct Run {
    /// Its id, for the report.
    pub step: StepId,
    /// Whose it is.
    pub model: ModelId,
    /// Its rows.
    pub batch: Batch,
    /// What its lease says: the step does not start while the device cannot give what is predicted.
    pub need: Need,
    /// What it is run for.
    pub purpose: RunPurpose,
    /// What happens when a served step runs short.
    pub on_shortfall: OnShortfall,
    /// Idle, unpinned models that the ladder may evict, the one to go first in front. Empty where nothing may go.
    pub evictable: Vec<ModelId>,
}

/// What happens when a served step runs short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnShortfall {
    /// The ladder helps.
    #[default]
    Ladder,
    /// Its rows are refused: what servers without a ladder do. For comparisons.
    Refuse,
}

/// What a step is run for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunPurpose {
    /// For its results. On a shortfall the ladder helps, down to refusing single rows.
    Serve,
    /// To measure its shape; the results are thrown away. On a shortfall it ends: half a batch would measure another
    /// shape.
    Measure,
    /// To see where its memory goes: once to warm up, once recorded. Otherwise as a measured step.
    Trace,
}
