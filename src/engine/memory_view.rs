//! What the engine tells about memory: the books, the readings, and what would fit.

use crate::memory::{LedgerSnapshot, Reading};
use crate::units::ModelId;

/// The books of the device and the reading that goes with them.
#[derive(Clone, Debug, PartialEq)]
pub struct MemorySnapshot {
    /// What the device calls itself.
    pub device: String,
    /// The reading taken for this snapshot.
    pub reading: Reading,
    /// The books.
    pub ledger: LedgerSnapshot,
}

/// Why nothing can be said about whether models fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A model's files cannot be read, so that its size is not known.
    #[error("'{name}' is broken, so its size is not known: {reason}")]
    Broken {
        /// The model.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A model that is not registered.
    #[error("no model {0} is registered")]
    Unknown(ModelId),
}
