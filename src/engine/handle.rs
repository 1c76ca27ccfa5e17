//! The engine as its callers see it: cheap to clone, callable from any task.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crossbeam_channel::Sender;
use tokio::sync::{oneshot, watch};

use super::answer::{Answer, Failure};
use super::changes::{Change, ChangeRefusal, Changed};
use super::clock::Clock;
use super::control::{BudgetError, Released};
use super::health::{HealthView, Pulse};
use super::inbox::{Message, Reply};
use super::memory_view::{MemorySnapshot, PlanError};
use super::registry::{Registered, Registry};
use super::status::{Board, ModelStatus};
use super::submission::Submission;
use super::traces::{MemoryTrace, TraceError};
use crate::admission::{QueueLimit, Rejection};
use crate::memory::{Budget, BudgetChange, FitPlan};
use crate::units::{Bytes, Micros, ModelId, RequestId};

/// Submissions that may wait for the engine's thread to look at them. It looks at hundreds of thousands in a second,
/// so this is met only if the thread is held up; it bounds the host memory of payloads that no queue counts yet.
const INBOX_MAX: usize = 16_384;

/// When to come back to an inbox that is full.
const INBOX_RETRY: Micros = Micros::millis(100);

/// A way to the engine.
#[derive(Clone)]
pub struct EngineHandle {
    shared: Arc<Shared>,
}

/// What the engine's thread and its callers have in common.
pub(super) struct Shared {
    pub(super) registry: Registry,
    pub(super) board: Board,
    pub(super) clock: Clock,
    pub(super) pulse: Pulse,
    /// Submissions in the inbox that the thread has not seen.
    pub(super) unseen: AtomicUsize,
    pub(super) health: watch::Sender<HealthView>,
    pub(super) inbox: Sender<Message>,
    /// The next request's number. Held while sending, so that numbers follow the order of the inbox.
    pub(super) next_request: Mutex<u64>,
}

impl EngineHandle {
    pub(super) fn new(shared: Arc<Shared>) -> EngineHandle {
        EngineHandle { shared }
    }

    /// The model of this name, whatever its state.
    pub fn find(&self, name: &str) -> Option<Arc<Registered>> {
        self.shared.registry.find(name)
    }

    /// Every model in its present revision, in the order of registration.
    pub fn registered(&self) -> Vec<Arc<Registered>> {
        self.shared.registry.current()
    }

    /// The status of every model in its present revision as last published; asks nobody.
    pub fn models(&self) -> Vec<ModelStatus> {
        self.registered().iter().map(|model| self.shared.board.copy(model.id)).collect()
    }

    /// The name of a model, whichever of its revisions this is.
    pub fn name(&self, model: ModelId) -> String {
        self.shared.registry.get(model).name.clone()
    }

    /// The status of one model as last published.
    pub fn status(&self, model: ModelId) -> ModelStatus {
        self.shared.board.copy(model)
    }

    /// Health as it changes.
    pub fn health(&self) -> watch::Receiver<HealthView> {
        self.shared.health.subscribe()
    }

    /// Whether the engine's loop turns.
    pub fn pulse(&self) -> Pulse {
        self.shared.pulse.clone()
    }

    /// Runs a request. Dropping the future cancels it: a row that has not started never reaches the device.
    ///
    /// # Errors
    /// The rejection or fault. Each request is answered exactly once, also while the server goes down.
    pub async fn infer(&self, submission: Submission) -> Result<Answer, Failure> {
        let (responder, response) = oneshot::channel();
        let mut call = self.submit(submission, responder)?;
        let answer = response.await;
        call.answered = true;
        // Without an answer the thread is gone, which it is only after the drain.
        answer.unwrap_or(Err(Failure::Rejected(Rejection::Draining)))
    }

    fn submit(&self, submission: Submission, responder: Reply<Result<Answer, Failure>>) -> Result<Call, Rejection> {
        let waiting = self.shared.unseen.fetch_add(1, Ordering::Relaxed);
        if waiting >= INBOX_MAX {
            self.shared.unseen.fetch_sub(1, Ordering::Relaxed);
            return Err(Rejection::QueueFull {
                limit: QueueLimit::Rows,
                waiting: waiting as u64,
                asked: submission.rows.len() as u64,
                allowed: INBOX_MAX as u64,
                retry_after: INBOX_RETRY,
            });
        }
        let deadline = submission.deadline.map(|moment| self.shared.clock.timestamp(moment));
        let mut next = self.shared.next_request.lock().unwrap_or_else(PoisonError::into_inner);
        let id = RequestId::new(*next);
        *next += 1;
        self.send(Message::Submit { id, submission, deadline, responder })?;
        Ok(Call { id, inbox: self.shared.inbox.clone(), answered: false })
    }

    /// Loads a model and waits until it is ready; at once if it is.
    ///
    /// # Errors
    /// `DoesNotFit`, `Broken`, `Loading` (not in time) or `Draining`.
    pub async fn load(&self, model: ModelId) -> Result<(), Failure> {
        self.ask(|reply| Message::Load { model, reply }).await?
    }

    /// Does what a reload asks for, or nothing of it, and waits until every model that it loads is there or has failed.
    ///
    /// # Errors
    /// The outer one if the server goes down; the inner one says why nothing was done.
    pub async fn apply(&self, changes: Vec<Change>) -> Result<Result<Vec<Changed>, ChangeRefusal>, Failure> {
        Ok(self.ask(|reply| Message::Apply { changes, reply }).await?)
    }

    /// Unloads a model: stops admitting, finishes what is accepted, and waits until the bytes are back.
    ///
    /// # Errors
    /// `NotLoaded` if it is not loaded, `Draining` if the server goes down.
    pub async fn unload(&self, model: ModelId) -> Result<Released, Failure> {
        self.ask(|reply| Message::Unload { model, reply }).await?
    }

    /// Pins or unpins a model. A pinned model is never evicted.
    ///
    /// # Errors
    /// `Draining` if the server goes down.
    pub async fn pin(&self, model: ModelId, pinned: bool) -> Result<(), Failure> {
        Ok(self.ask(|reply| Message::Pin { model, pinned, reply }).await?)
    }

    /// Sets a model's budget, if its settings are still at `expected_revision` (where one is given).
    ///
    /// # Errors
    /// The outer one if the server goes down; the inner one if the budget is refused.
    pub async fn set_budget(
        &self,
        model: ModelId,
        budget: Budget,
        expected_revision: Option<u64>,
    ) -> Result<Result<BudgetChange, BudgetError>, Failure> {
        Ok(self.ask(|reply| Message::SetBudget { model, budget, expected_revision, reply }).await?)
    }

    /// The books and the readings, now.
    ///
    /// # Errors
    /// `Draining` if the server goes down.
    pub async fn memory(&self) -> Result<MemorySnapshot, Failure> {
        Ok(self.ask(|reply| Message::Memory { reply }).await?)
    }

    /// Would these models fit together under this budget (`None`: the server's own)? Changes nothing.
    ///
    /// # Errors
    /// The outer one if the server goes down; the inner one names what cannot be planned.
    pub async fn plan(
        &self,
        models: Vec<ModelId>,
        budget: Option<Bytes>,
    ) -> Result<Result<FitPlan, PlanError>, Failure> {
        Ok(self.ask(|reply| Message::Plan { models, budget, reply }).await?)
    }

    /// Where the memory of a step of so many rows of this length goes: runs one between the steps for requests.
    ///
    /// # Errors
    /// The outer one if the server goes down; the inner one says why there is no trace.
    pub async fn trace(
        &self,
        model: ModelId,
        rows: u32,
        length: u32,
    ) -> Result<Result<MemoryTrace, TraceError>, Failure> {
        Ok(self.ask(|reply| Message::Trace { model, rows, length, reply }).await?)
    }

    /// Stops admitting and waits until every accepted request is answered. Health says so first.
    pub async fn drain(&self) {
        // An error means that the thread is gone: then there is nothing left to drain.
        let _ = self.ask(|reply| Message::Drain { reply }).await;
    }

    pub(super) fn stop(&self) {
        let _ = self.send(Message::Stop);
    }

    async fn ask<T>(&self, message: impl FnOnce(Reply<T>) -> Message) -> Result<T, Rejection> {
        let (reply, answer) = oneshot::channel();
        self.send(message(reply))?;
        answer.await.map_err(|_| Rejection::Draining)
    }

    fn send(&self, message: Message) -> Result<(), Rejection> {
        self.shared.inbox.send(message).map_err(|_| Rejection::Draining)
    }
}

/// A request on its way. Dropping it before the answer tells the engine that the client has gone.
struct Call {
    id: RequestId,
    inbox: Sender<Message>,
    answered: bool,
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.answered {
            let _ = self.inbox.send(Message::Cancel(self.id));
        }
    }
}
