//! Why a request is not served, as facts. `service::errors` turns each into a status and a sentence.

use crate::units::{Bytes, Micros};

/// A limit of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QueueLimit {
    /// Rows waiting for one model.
    Rows,
    /// Tokens waiting for one model.
    Tokens,
    /// Bytes of host memory that the waiting rows of one model hold.
    HostBytes,
}

/// Where a deadline was found to be missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LateAt {
    /// Before it was queued: what is in flight and its own step alone would already miss it.
    Admission,
    /// While waiting. It never reached the device.
    Queue,
    /// While its step ran; the result is thrown away.
    Step,
}

/// What can never fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TooLarge {
    /// Tokens of row `row` against the model's longest length.
    Length {
        /// Index of the row in the request.
        row: u32,
        /// Tokens of the row.
        needed: u32,
        /// Tokens that the model takes.
        possible: u32,
    },
    /// Rows of the request against the limit of rows per request.
    Rows {
        /// Rows of the request.
        needed: u32,
        /// Rows allowed.
        possible: u32,
    },
    /// Peak workspace of the longest row alone against what the model's limit and the budget can ever give.
    Workspace {
        /// Predicted peak.
        needed: Bytes,
        /// The most that the model can ever be given.
        possible: Bytes,
    },
    /// The whole request against what an empty queue takes.
    Queue {
        /// Which limit does not hold.
        limit: QueueLimit,
        /// What the request has, in the limit's unit.
        needed: u64,
        /// The limit.
        possible: u64,
    },
}

/// An expected reason for which a request gets no answer. The client can act on each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// No rows.
    Empty,
    /// It can never be served; trying again is of no use.
    TooLarge(TooLarge),
    /// The queue is full.
    QueueFull {
        /// Which limit was met.
        limit: QueueLimit,
        /// What waits now, in the limit's unit.
        waiting: u64,
        /// What this request would add.
        asked: u64,
        /// The limit.
        allowed: u64,
        /// When to try again.
        retry_after: Micros,
    },
    /// Its deadline cannot be met, or has passed.
    Late {
        /// Where that was found.
        at: LateAt,
        /// For how long it waited.
        waited: Micros,
    },
    /// The client went away.
    Cancelled,
    /// Out of memory after the whole ladder.
    OutOfMemory {
        /// Bytes that its smallest step needs.
        needed: Bytes,
        /// Bytes that could be given.
        available: Bytes,
        /// When to try again.
        retry_after: Micros,
    },
    /// The model is registered, but not loaded, and is not going to be by this request.
    NotLoaded,
    /// The model is being loaded and did not become ready in time.
    Loading {
        /// When to try again.
        retry_after: Micros,
    },
    /// The model is being unloaded, or the server is going down.
    Draining,
    /// The model could not be loaded: it does not fit.
    DoesNotFit {
        /// Bytes that loading needs.
        needed: Bytes,
        /// Bytes that could be given, evictions included.
        available: Bytes,
        /// When to try again.
        retry_after: Micros,
    },
    /// The model is broken: loading it failed. The log has the reason.
    Broken,
}

impl Rejection {
    /// When the client may try again with a chance of success; `None` where it has none.
    pub fn retry_after(&self) -> Option<Micros> {
        match *self {
            Rejection::QueueFull { retry_after, .. }
            | Rejection::OutOfMemory { retry_after, .. }
            | Rejection::Loading { retry_after }
            | Rejection::DoesNotFit { retry_after, .. } => Some(retry_after),
            Rejection::Empty
            | Rejection::TooLarge(_)
            | Rejection::Late { .. }
            | Rejection::Cancelled
            | Rejection::NotLoaded
            | Rejection::Draining
            | Rejection::Broken => None,
        }
    }
}
