//! An engine without a device: the built-in models are always ready, and every result is zeros.

use std::sync::Arc;
use std::time::Instant;

use plimsoll::config::{ModelConfig, Source};
use plimsoll::engine::{
    Answer, BudgetError, Definition, Failure, HealthView, MemorySnapshot, MemoryTrace, ModelState, ModelStatus,
    PlanError, Registered, Released, Statistics, Submission, TraceError,
};
use plimsoll::memory::{Budget, BudgetChange, FitPlan};
use plimsoll::model::{Blueprint, ModelFiles, embedded_names};
use plimsoll::service::{Inference, Operations};
use plimsoll::units::{Bytes, Micros, ModelId};
use tokio::sync::watch;

/// The engine.
#[derive(Clone)]
pub struct Zeros {
    models: Arc<[Arc<Registered>]>,
    health: watch::Sender<HealthView>,
}

impl Zeros {
    /// One with every built-in model.
    pub fn new() -> Zeros {
        let model = |(index, name): (usize, &'static str)| {
            let config = ModelConfig::new(name, Source::Embedded(name.to_owned()));
            let files = ModelFiles::embedded(name).expect("it is built in");
            let card = Blueprint::new(&config, files).expect("what is built in is sound").card().clone();
            let definition = Ok(Arc::new(Definition { config, card }));
            Arc::new(Registered { id: ModelId::new(index as u32), name: name.to_owned(), required: true, definition })
        };
        let models: Arc<[Arc<Registered>]> = embedded_names().enumerate().map(model).collect();
        let states = models.iter().map(|model| (model.name.clone(), ModelState::Ready)).collect();
        let view = HealthView { ready: true, draining: false, poisoned: false, models: states, awaited: Vec::new() };
        Zeros { models, health: watch::Sender::new(view) }
    }
}

impl Inference for Zeros {
    fn find(&self, name: &str) -> Option<Arc<Registered>> {
        self.models.iter().find(|model| model.name == name).cloned()
    }

    fn name(&self, model: ModelId) -> String {
        self.models[model.get() as usize].name.clone()
    }

    fn statuses(&self) -> Vec<ModelStatus> {
        self.models.iter().map(|model| status(model)).collect()
    }

    fn health(&self) -> watch::Receiver<HealthView> {
        self.health.subscribe()
    }

    fn alive(&self) -> bool {
        true
    }

    async fn infer(&self, submission: Submission) -> Result<Answer, Failure> {
        let card = self.models[submission.model.get() as usize].card().expect("what is built in is sound");
        // What the device relies on.
        for row in &submission.rows {
            assert!((1..=card.length_max as usize).contains(&row.ids.len()), "a row of {} tokens", row.ids.len());
            assert!(row.ids.iter().all(|id| *id < card.vocab_size), "an id outside the vocabulary");
            assert!(row.types.is_empty() || row.types.len() == row.ids.len(), "not a type for each token");
            assert!(row.types.iter().all(|kind| *kind < card.type_vocab_size), "a type that there is not");
        }
        let rows = vec![vec![0.0; card.dimensions as usize]; submission.rows.len()];
        Ok(Answer { rows, accepted: Instant::now(), queued: Micros::ZERO, steps: Vec::new() })
    }
}

impl Operations for Zeros {
    async fn load(&self, _: ModelId) -> Result<(), Failure> {
        Ok(())
    }

    async fn unload(&self, _: ModelId) -> Result<Released, Failure> {
        Ok(Released { released: Bytes::ZERO, free: Bytes::ZERO })
    }

    async fn pin(&self, _: ModelId, _: bool) -> Result<(), Failure> {
        Ok(())
    }

    async fn set_budget(
        &self,
        _: ModelId,
        _: Budget,
        _: Option<u64>,
    ) -> Result<Result<BudgetChange, BudgetError>, Failure> {
        Ok(Ok(BudgetChange::Applied))
    }

    async fn memory(&self) -> Result<MemorySnapshot, Failure> {
        unreachable!("no target asks for it")
    }

    async fn plan(&self, _: Vec<ModelId>, _: Option<Bytes>) -> Result<Result<FitPlan, PlanError>, Failure> {
        unreachable!("no target asks for it")
    }

    async fn trace(&self, _: ModelId, _: u32, _: u32) -> Result<Result<MemoryTrace, TraceError>, Failure> {
        unreachable!("no target asks for it")
    }
}

fn status(model: &Registered) -> ModelStatus {
    ModelStatus {
        id: model.id,
        name: model.name.clone(),
        state: ModelState::Ready,
        reason: None,
        pinned: false,
        budget: Budget::SHARED,
        revision: 1,
        resident: Bytes::ZERO,
        profile: None,
        drift: 1.0,
        batch_rows_max: 32,
        waiting_rows: 0,
        waiting_tokens: 0,
        share: 1.0,
        device_time: Micros::ZERO,
        statistics: Statistics::default(),
    }
}
