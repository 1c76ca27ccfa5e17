//! A request as the scheduler sees it: facts, never payloads.

use crate::memory::RowFacts;
use crate::units::{Bytes, ModelId, RequestId, Timestamp};

/// How urgent a request is. A class is a factor on its lane's share of device time, so that none starves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Factor 1.
    Low,
    /// Factor 4.
    #[default]
    Normal,
    /// Factor 16.
    High,
}

impl Priority {
    /// Every class, the least urgent first.
    pub const ALL: [Priority; 3] = [Priority::Low, Priority::Normal, Priority::High];

    /// The factor on the lane's share.
    pub const fn factor(self) -> u32 {
        match self {
            Priority::Low => 1,
            Priority::Normal => 4,
            Priority::High => 16,
        }
    }
}

/// A request that asks to wait. Payloads, responders and spans stay with the engine under the id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Its id; larger than those of all requests before it.
    pub id: RequestId,
    /// The model that it is for.
    pub model: ModelId,
    /// Its rows in order.
    pub rows: Vec<RowFacts>,
    /// Host memory that it holds until it is answered.
    pub host_bytes: Bytes,
    /// When it came.
    pub arrival: Timestamp,
    /// When its answer is of no more use.
    pub deadline: Option<Timestamp>,
    /// Its class.
    pub priority: Priority,
}
