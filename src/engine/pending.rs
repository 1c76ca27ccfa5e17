//! Payloads and responders of accepted requests: all that the scheduler does not need to know.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::answer::{Answer, Failure, StepFacts};
use super::clock::Clock;
use crate::model::TokenRow;
use crate::units::{Micros, ModelId, RequestId, Timestamp};

/// One accepted request that has not been answered.
#[derive(Debug)]
pub(super) struct PendingRequest {
    pub(super) rows: Vec<Arc<TokenRow>>,
    model: ModelId,
    accepted_at: Timestamp,
    responder: oneshot::Sender<Result<Answer, Failure>>,
    results: Vec<Option<Vec<f32>>>,
    first_step_at: Option<Timestamp>,
    steps: Vec<StepFacts>,
}

impl PendingRequest {
    pub(super) fn new(
        model: ModelId,
        rows: Vec<Arc<TokenRow>>,
        accepted_at: Timestamp,
        responder: oneshot::Sender<Result<Answer, Failure>>,
    ) -> PendingRequest {
        let results = vec![None; rows.len()];
        PendingRequest { model, rows, accepted_at, responder, results, first_step_at: None, steps: Vec::new() }
    }

    /// Notes that a step with rows of this request was chosen.
    pub(super) fn started(&mut self, now: Timestamp) {
        self.first_step_at.get_or_insert(now);
    }

    /// Stores the result of one row. It comes once, however often the row was tried.
    pub(super) fn put(&mut self, index: usize, vector: Vec<f32>) {
        let slot = &mut self.results[index];
        debug_assert!(slot.is_none(), "row {index} was computed twice");
        *slot = Some(vector);
    }

    /// Notes a finished step that rows of this request took part in.
    pub(super) fn took_part(&mut self, facts: StepFacts) {
        self.steps.push(facts);
    }

    fn ended(&self) -> Ended {
        Ended {
            model: self.model,
            accepted_at: self.accepted_at,
            rows: self.rows.len() as u64,
            queued: Micros::ZERO,
            compute: Micros::ZERO,
        }
    }

    fn answer(self, clock: &Clock) -> (oneshot::Sender<Result<Answer, Failure>>, Answer) {
        let rows = self
            .results
            .into_iter()
            .map(|row| row.expect("the scheduler reports a request as finished only when every row has run"))
            .collect();
        let queued = self.first_step_at.unwrap_or(self.accepted_at).since(self.accepted_at);
        let accepted = clock.instant(self.accepted_at);
        (self.responder, Answer { rows, accepted, queued, steps: self.steps })
    }
}

/// Every accepted request that has not been answered, by id. Taking one out is what makes answering it once certain.
#[derive(Debug, Default)]
pub(super) struct Pending {
    requests: BTreeMap<RequestId, PendingRequest>,
}

impl Pending {
    pub(super) fn insert(&mut self, id: RequestId, request: PendingRequest) {
        let taken = self.requests.insert(id, request);
        debug_assert!(taken.is_none(), "ids are never reused");
    }

    pub(super) fn get_mut(&mut self, id: RequestId) -> Option<&mut PendingRequest> {
        self.requests.get_mut(&id)
    }

    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(super) fn ids(&self) -> Vec<RequestId> {
        self.requests.keys().copied().collect()
    }

    /// Takes out a request whose rows have all run, to be counted and then answered. `None` if it was answered before.
    pub(super) fn succeed(&mut self, id: RequestId, clock: &Clock) -> Option<(Ended, Delivery)> {
        let request = self.requests.remove(&id)?;
        let mut ended = request.ended();
        let (responder, answer) = request.answer(clock);
        ended.queued = answer.queued;
        ended.compute = answer.steps.iter().fold(Micros::ZERO, |sum, step| sum + step.compute);
        Some((ended, Delivery { responder, result: Ok(answer) }))
    }

    /// Takes out a request that fails, to be counted and then answered. `None` if it was answered before.
    pub(super) fn fail(&mut self, id: RequestId, failure: Failure) -> Option<(Ended, Delivery)> {
        let request = self.requests.remove(&id)?;
        let ended = request.ended();
        Some((ended, Delivery { responder: request.responder, result: Err(failure) }))
    }
}

/// An answer on its way out. It is sent when the request has been counted, so that whoever has an answer finds it in the
/// statistics.
#[must_use = "the request has to be answered"]
pub(super) struct Delivery {
    responder: oneshot::Sender<Result<Answer, Failure>>,
    result: Result<Answer, Failure>,
}

impl Delivery {
    /// Sends it. The client may have gone in the meantime: then there is nobody to tell.
    pub(super) fn send(self) {
        let _ = self.responder.send(self.result);
    }
}

/// What the books need of a request that has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    pub(super) model: ModelId,
    pub(super) accepted_at: Timestamp,
    pub(super) rows: u64,
    /// From acceptance to its first step; zero if it failed.
    pub(super) queued: Micros,
    /// Time of its steps; zero if it failed.
    pub(super) compute: Micros,
}
