//! Steps that show where their memory goes, run on request between the steps for requests.
//!
//! They are the engine's own: no lane is charged for them, so they are kept few. Between two of them the scheduler is
//! asked for a step.

use std::collections::VecDeque;

use super::answer::Failure;
use super::core::Core;
use super::errand::Errand;
use super::inbox::Reply;
use super::status::ModelState;
use crate::admission::Rejection;
use crate::device::trace::Trace;
use crate::device::{Ran, RowFailure};
use crate::memory::{Axes, Lease, Outcome, Reading, Shape, ShapeKind};
use crate::model::{Batch, Fault};
use crate::units::{Bytes, Micros, ModelId, StepId, Timestamp};

/// Traces that may wait; each is a step that nobody is served by.
const WAITING_MAX: usize = 4;

/// The number of a traced step. The scheduler counts up from 0 and never gets there.
pub(super) const TRACED_STEP: StepId = StepId::new(u64::MAX);

/// A trace of one step.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryTrace {
    /// The step's size.
    pub shape: Shape,
    /// Peak workspace that the profile predicts.
    pub predicted: Bytes,
    /// Peak workspace as the device measured it.
    pub peak: Bytes,
    /// Time that the recorded step took.
    pub time: Micros,
    /// Who held what.
    pub trace: Trace,
}

/// Why there is no trace.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TraceError {
    /// No step can have this size.
    #[error("{found} is no step of this model: {allowed}")]
    Outside {
        /// What was asked for.
        found: String,
        /// What is allowed.
        allowed: String,
    },
    /// It is not known how much memory the step takes, so that it cannot be run.
    #[error("the profile does not reach a step of {shape} yet: wait until it is measured, or ask for a smaller one")]
    NotMeasured {
        /// The step.
        shape: Shape,
    },
    /// There is no room for it now.
    #[error("a step of {shape} needs {needed} and {available} can be had now")]
    NoRoom {
        /// The step.
        shape: Shape,
        /// What it needs.
        needed: Bytes,
        /// What there is.
        available: Bytes,
    },
    /// Enough others wait.
    #[error("{waiting} traces wait already")]
    Busy {
        /// How many.
        waiting: usize,
    },
    /// The device cannot do it.
    #[error("this device does not record what a step allocates")]
    NotRecorded,
    /// The model is not ready, or the step failed.
    #[error("{0:?}")]
    Failed(Failure),
}

impl From<Rejection> for TraceError {
    fn from(rejection: Rejection) -> TraceError {
        TraceError::Failed(Failure::Rejected(rejection))
    }
}

/// Where the answer goes.
type Answer = Reply<Result<MemoryTrace, TraceError>>;

/// Traces that are asked for.
#[derive(Debug, Default)]
pub(super) struct Traces {
    waiting: VecDeque<Wanted>,
    /// A trace was run last: it is a step's turn.
    after: bool,
}

#[derive(Debug)]
struct Wanted {
    model: ModelId,
    rows: u32,
    length: u32,
    reply: Answer,
}

/// A traced step that is under way.
#[derive(Debug)]
pub(super) struct Traced {
    pub(super) model: ModelId,
    shape: Shape,
    lease: Lease,
    reply: Answer,
}

impl Core {
    /// Queues a trace.
    pub(super) fn want_trace(&mut self, model: ModelId, rows: u32, length: u32, reply: Answer) {
        let waiting = self.traces.waiting.len();
        let refused = match () {
            _ if self.is_draining() || self.poisoned => Some(Rejection::Draining.into()),
            _ if waiting >= WAITING_MAX => Some(TraceError::Busy { waiting }),
            _ => self.not_ready(model).map(TraceError::from),
        };
        match refused {
            Some(error) => drop(reply.send(Err(error))),
            None => self.traces.waiting.push_back(Wanted { model, rows, length, reply }),
        }
    }

    /// Starts the trace that is due, if there is one and it is not a step's turn. The device is idle. Whether it has
    /// something to do now.
    pub(super) fn start_trace(&mut self, reading: &Reading) -> bool {
        while !self.traces.after
            && let Some(Wanted { model, rows, length, reply }) = self.traces.waiting.pop_front()
        {
            match self.plan_trace(model, rows, length, reading) {
                Ok((shape, lease)) => {
                    self.rig.trace(TRACED_STEP, &lease, Batch::made_up(shape));
                    self.errand = Some(Errand::Trace(Traced { model, shape, lease, reply }));
                    self.traces.after = true;
                    return true;
                }
                Err(error) => drop(reply.send(Err(error))),
            }
        }
        false
    }

    /// Whether a trace waits for the device.
    pub(super) fn traces_wait(&self) -> bool {
        !self.traces.waiting.is_empty()
    }

    /// The scheduler has had its turn.
    pub(super) fn traces_may_follow(&mut self) {
        self.traces.after = false;
    }

    /// Nobody is told any more; callers see that the server goes down.
    pub(super) fn drop_traces(&mut self) {
        self.traces.waiting.clear();
    }

    fn plan_trace(
        &mut self,
        model: ModelId,
        rows: u32,
        length: u32,
        reading: &Reading,
    ) -> Result<(Shape, Lease), TraceError> {
        if let Some(rejection) = self.not_ready(model) {
            return Err(rejection.into());
        }
        let profile =
            self.scheduler.profile(model).ok_or(TraceError::Failed(Failure::Rejected(Rejection::NotLoaded)))?;
        let shape = shape(profile.axes(), rows, length)?;
        let predicted = profile.predicted(shape).ok_or(TraceError::NotMeasured { shape })?;
        let lease = self.ledger.lease(model, predicted, Bytes::ZERO, reading);
        let lease = lease.map_err(|shortfall| TraceError::NoRoom {
            shape,
            needed: shortfall.needed,
            available: shortfall.headroom.bytes,
        })?;
        Ok((shape, lease))
    }

    fn not_ready(&mut self, model: ModelId) -> Option<Rejection> {
        match self.life(model).state {
            ModelState::Ready => None,
            ModelState::Broken => Some(Rejection::Broken),
            ModelState::Draining => Some(Rejection::Draining),
            ModelState::NotLoaded | ModelState::Loading => Some(Rejection::NotLoaded),
        }
    }

    /// A traced step has ended.
    pub(super) fn trace_done(&mut self, now: Timestamp, traced: Traced, ran: Ran) {
        let Traced { model, shape, lease, reply } = traced;
        let Ran { rows, observed, resident, recording, .. } = ran;
        let predicted = lease.predicted;
        self.ledger.give_back(lease, &observed);
        self.note_resident(model, resident);
        debug_assert_eq!(self.ledger.check(), Ok(()), "the books balance after every step");
        let fault = rows.into_iter().find_map(|row| match row {
            Err(RowFailure::Fault(fault)) => Some(fault),
            _ => None,
        });
        let result = match (observed.outcome, recording) {
            (Outcome::Done, Some(recording)) => {
                let trace = Trace::of(&recording);
                Ok(MemoryTrace { shape, predicted, peak: observed.peak, time: observed.time, trace })
            }
            (Outcome::Done, None) => Err(TraceError::NotRecorded),
            (Outcome::OutOfMemory, _) => Err(TraceError::NoRoom { shape, needed: predicted, available: Bytes::ZERO }),
            (Outcome::Faulted, _) => {
                let unknown = || Fault::Model { message: "the traced step failed".to_owned() };
                Err(TraceError::Failed(Failure::Fault(fault.clone().unwrap_or_else(unknown))))
            }
        };
        let _ = reply.send(result);
        if let Some(fault @ Fault::DeviceLost { .. }) = &fault {
            self.lose_device(fault);
            self.abandon(now);
        }
    }
}

/// The step of so many rows of this length.
fn shape(axes: &Axes, rows: u32, length: u32) -> Result<Shape, TraceError> {
    let tokens = u64::from(rows) * u64::from(length);
    let (longest, most) = (axes.extent.max, axes.step_tokens_max);
    let is_inside = rows > 0 && (1..=longest).contains(&length) && (rows == 1 || tokens <= u64::from(most));
    if !is_inside {
        let allowed = format!("1 to {longest} tokens in a row, and {most} together");
        return Err(TraceError::Outside { found: format!("{rows} x {length}"), allowed });
    }
    Ok(match axes.kind {
        ShapeKind::Padded => axes.kind.at(rows, length),
        // At most the larger of two numbers of 32 bits.
        ShapeKind::Ragged | ShapeKind::Generate => axes.kind.at(tokens as u32, length),
    })
}
