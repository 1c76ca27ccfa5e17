//! One forward pass of one model on one device.

use crate::memory::{Lease, Shape};
use crate::units::{Bytes, Micros, ModelId, RequestId, StepId, Timestamp};

/// Which bound decided the size of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// A larger batch would not have fitted the headroom.
    Memory,
    /// A larger batch would have missed a member's deadline or the model's target latency.
    Latency,
    /// A larger batch would gain no throughput.
    Knee,
    /// There was no more.
    Queue,
    /// The envelope, or what is measured of it so far, goes no further; or the batch size is fixed by the configuration.
    Limit,
}

impl Reason {
    /// The word for metrics, logs and tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            Reason::Memory => "memory",
            Reason::Latency => "latency",
            Reason::Knee => "knee",
            Reason::Queue => "queue",
            Reason::Limit => "limit",
        }
    }
}

/// What a member does in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Work {
    /// One whole row of the request, from its first token to its result.
    Row {
        /// Index in the request.
        index: u32,
    },
    /// A chunk of the prompt of a sequence.
    Prefill {
        /// First token of the chunk.
        from: u32,
        /// Tokens in the chunk.
        tokens: u32,
    },
    /// One more token of a running sequence.
    Decode,
}

/// One part of a step, for one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    /// Whose it is.
    pub request: RequestId,
    /// What is done.
    pub work: Work,
}

/// Why a step is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// To answer its members.
    Serve,
    /// To measure its shape for the profile; it has no members, the engine makes up its rows.
    Probe,
}

/// A step that the scheduler has chosen. The engine runs it and reports it to `Scheduler::complete` exactly once,
/// whatever comes of it: the lease inside is memory.
#[must_use = "a step holds a lease and its members' turn until it is completed"]
#[derive(Debug, PartialEq, Eq)]
pub struct Step {
    /// Its id.
    pub id: StepId,
    /// Whose it is.
    pub model: ModelId,
    /// Why it is run.
    pub purpose: Purpose,
    /// Its parts in the order of the batch: those of one request keep their order.
    pub members: Vec<Member>,
    /// Its size.
    pub shape: Shape,
    /// Its memory.
    pub lease: Lease,
    /// Which bound decided its size.
    pub reason: Reason,
    /// What a step of this model could have used when this one was chosen.
    pub headroom: Bytes,
    /// Time that the profile predicts.
    pub predicted_time: Micros,
    /// When it was chosen.
    pub chosen_at: Timestamp,
}
