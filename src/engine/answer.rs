//! What comes back for a submission.

use std::time::Instant;

use crate::admission::Rejection;
use crate::memory::Rungs;
use crate::model::Fault;
use crate::scheduler::Reason;
use crate::units::{Bytes, Micros, StepId};

/// The results of a request and how it was served.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// One vector for each row, in the request's order; see [`crate::model::Output`].
    pub rows: Vec<Vec<f32>>,
    /// When it was accepted.
    pub accepted: Instant,
    /// From acceptance to the start of its first step.
    pub queued: Micros,
    /// The steps that its rows ran in, in order of time.
    pub steps: Vec<StepFacts>,
}

/// How a step went that a request took part in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepFacts {
    /// The step.
    pub id: StepId,
    /// Rows in the batch, those of other requests included.
    pub batch_rows: u32,
    /// Tokens of its longest row.
    pub longest: u32,
    /// Tokens computed, padding included.
    pub computed_tokens: u64,
    /// Which bound decided the size.
    pub reason: Reason,
    /// Peak that the profile predicted.
    pub predicted: Bytes,
    /// True peak.
    pub peak: Bytes,
    /// Ceiling of its lease.
    pub ceiling: Bytes,
    /// What it could have used when it was chosen.
    pub headroom: Bytes,
    /// Time on the device.
    pub compute: Micros,
    /// When the device began it.
    pub began: Instant,
    /// When its end was reported.
    pub ended: Instant,
    /// What the out-of-memory ladder did for it.
    pub rungs: Rungs,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// An expected reason, as facts.
    Rejected(Rejection),
    /// Something broke while it ran.
    Fault(Fault),
}

impl From<Rejection> for Failure {
    fn from(rejection: Rejection) -> Failure {
        Failure::Rejected(rejection)
    }
}
