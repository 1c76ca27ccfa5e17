//! A validated, tokenized request on its way in.

use std::sync::Arc;
use std::time::Instant;

use crate::model::TokenRow;
use crate::scheduler::Priority;
use crate::units::ModelId;

/// What a service hands to the engine. Everything the wire could get wrong has been checked before one is built.
#[derive(Clone, Debug)]
pub struct Submission {
    /// The model.
    pub model: ModelId,
    /// Its rows; their results come back in this order.
    pub rows: Vec<Arc<TokenRow>>,
    /// When the answer is of no more use. It is answered at this moment even if a step is running.
    pub deadline: Option<Instant>,
    /// Its class.
    pub priority: Priority,
}
