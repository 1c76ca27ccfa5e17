//! What reaches the engine's thread. One inbox, so that everything happens in one order.

use tokio::sync::oneshot;

use super::answer::{Answer, Failure};
use super::changes::{Change, ChangeRefusal, Changed};
use super::control::{BudgetError, Released};
use super::memory_view::{MemorySnapshot, PlanError};
use super::submission::Submission;
use super::traces::{MemoryTrace, TraceError};
use crate::device::Report;
use crate::memory::{Budget, BudgetChange, FitPlan};
use crate::units::{Bytes, ModelId, RequestId, Timestamp};

/// Where the answer to a control call goes. The caller may have gone: then nobody is told.
pub(super) type Reply<T> = oneshot::Sender<T>;

/// One thing that happened outside.
pub(super) enum Message {
    /// A request. Its id is larger than those of all requests before it in the inbox.
    Submit {
        id: RequestId,
        submission: Submission,
        deadline: Option<Timestamp>,
        responder: Reply<Result<Answer, Failure>>,
    },
    /// The client of this request has gone.
    Cancel(RequestId),
    /// The device's thread has done something.
    Report(Report),
    /// The device's thread is gone: no report comes any more.
    DeviceEnded,
    Apply {
        changes: Vec<Change>,
        reply: Reply<Result<Vec<Changed>, ChangeRefusal>>,
    },
    Load {
        model: ModelId,
        reply: Reply<Result<(), Failure>>,
    },
    Unload {
        model: ModelId,
        reply: Reply<Result<Released, Failure>>,
    },
    Pin {
        model: ModelId,
        pinned: bool,
        reply: Reply<()>,
    },
    SetBudget {
        model: ModelId,
        budget: Budget,
        expected_revision: Option<u64>,
        reply: Reply<Result<BudgetChange, BudgetError>>,
    },
    Memory {
        reply: Reply<MemorySnapshot>,
    },
    Plan {
        models: Vec<ModelId>,
        budget: Option<Bytes>,
        reply: Reply<Result<FitPlan, PlanError>>,
    },
    Trace {
        model: ModelId,
        rows: u32,
        length: u32,
        reply: Reply<Result<MemoryTrace, TraceError>>,
    },
    /// Stop admitting; answer when every accepted request is answered.
    Drain {
        reply: Reply<()>,
    },
    /// Answer what is left with a rejection and end the thread.
    Stop,
}
