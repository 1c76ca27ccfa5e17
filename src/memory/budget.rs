//! What a model may use, and what comes of changing it.

use crate::units::Bytes;

/// The budget of one model on one device.
///
/// Invariant (checked where it is built): `guaranteed <= limit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Weights and KV cache that are always this model's, loaded or not.
    pub guaranteed: Bytes,
    /// Ceiling on weights + KV cache + the workspace of a step; [`Bytes::MAX`] for none.
    pub limit: Bytes,
}

impl Budget {
    /// Nothing guaranteed, no limit of its own: the model lives on what the others leave.
    pub const SHARED: Budget = Budget { guaranteed: Bytes::ZERO, limit: Bytes::MAX };
}

/// The answer to a change of budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetChange {
    /// In force.
    Applied,
    /// In force for every new lease; what the model holds is above its limit by this much until the end of a step or
    /// an unload brings it down.
    Deferred {
        /// Bytes above the new limit.
        overage: Bytes,
    },
}
