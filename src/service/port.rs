//! What the services need of the engine. Two ports, so that tests can stand in for it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::watch;

use crate::engine::{
    Answer, BudgetError, ChangeRefusal, Changed, EngineHandle, Failure, HealthView, MemorySnapshot, MemoryTrace,
    ModelStatus, PlanError, Registered, Released, Submission, TraceError,
};
use crate::memory::{Budget, BudgetChange, FitPlan};
use crate::units::{Bytes, ModelId};

/// The data plane.
pub trait Inference: Clone + Send + Sync + 'static {
    /// The model of this name, whatever its state.
    fn find(&self, name: &str) -> Option<Arc<Registered>>;

    /// The name of a model, whichever of its revisions this is.
    fn name(&self, model: ModelId) -> String;

    /// The status of every model, in the order of registration, as last published.
    fn statuses(&self) -> Vec<ModelStatus>;

    /// Health as it changes.
    fn health(&self) -> watch::Receiver<HealthView>;

    /// Whether the engine's loop turns.
    fn alive(&self) -> bool;

    /// The device's name, for people, once it can be asked.
    fn device(&self) -> impl Future<Output = Option<String>> + Send {
        async { None }
    }

    /// Runs a request; answers at its deadline at the latest. Dropping the future cancels it.
    ///
    /// # Errors
    /// The rejection or fault.
    fn infer(&self, submission: Submission) -> impl Future<Output = Result<Answer, Failure>> + Send;
}

/// The control plane.
pub trait Operations: Clone + Send + Sync + 'static {
    /// Loads a model and waits until it is ready.
    fn load(&self, model: ModelId) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Unloads a model and waits until its bytes are back.
    fn unload(&self, model: ModelId) -> impl Future<Output = Result<Released, Failure>> + Send;

    /// Pins or unpins a model.
    fn pin(&self, model: ModelId, pinned: bool) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Sets a model's budget, if its settings are still at `expected_revision` (where one is given).
    fn set_budget(
        &self,
        model: ModelId,
        budget: Budget,
        expected_revision: Option<u64>,
    ) -> impl Future<Output = Result<Result<BudgetChange, BudgetError>, Failure>> + Send;

    /// The books and the readings, now.
    fn memory(&self) -> impl Future<Output = Result<MemorySnapshot, Failure>> + Send;

    /// Would these models fit together under this budget (`None`: the server's own)?
    fn plan(
        &self,
        models: Vec<ModelId>,
        budget: Option<Bytes>,
    ) -> impl Future<Output = Result<Result<FitPlan, PlanError>, Failure>> + Send;

    /// Where the memory of a step of so many rows of this length goes.
    fn trace(
        &self,
        model: ModelId,
        rows: u32,
        length: u32,
    ) -> impl Future<Output = Result<Result<MemoryTrace, TraceError>, Failure>> + Send;
}

/// Reading again what the server was started from.
pub trait Reload: Send + Sync {
    /// Reads configuration and repository, checks all of it, and does all of it or nothing. Answers when every model that
    /// it loads is there or has failed.
    fn reload(&self) -> Pin<Box<dyn Future<Output = Result<Reloaded, ReloadRefusal>> + Send + '_>>;
}

/// What a reload has done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reloaded {
    /// What became of each model that differed.
    pub models: Vec<Changed>,
    /// `setting: from -> to` for those that hold from the next start.
    pub after_restart: Vec<String>,
}

/// Why nothing of a reload was done.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ReloadRefusal {
    /// The files are not what they should be: all that is wrong with them.
    #[error("{0}")]
    Configuration(String),
    /// What they say cannot be served.
    #[error(transparent)]
    Changes(#[from] ChangeRefusal),
}

impl Inference for EngineHandle {
    fn find(&self, name: &str) -> Option<Arc<Registered>> {
        EngineHandle::find(self, name)
    }

    fn name(&self, model: ModelId) -> String {
        EngineHandle::name(self, model)
    }

    fn statuses(&self) -> Vec<ModelStatus> {
        self.models()
    }

    fn health(&self) -> watch::Receiver<HealthView> {
        EngineHandle::health(self)
    }

    fn alive(&self) -> bool {
        self.pulse().alive()
    }

    async fn device(&self) -> Option<String> {
        EngineHandle::memory(self).await.ok().map(|snapshot| snapshot.device)
    }

    async fn infer(&self, submission: Submission) -> Result<Answer, Failure> {
        EngineHandle::infer(self, submission).await
    }
}

impl Operations for EngineHandle {
    async fn load(&self, model: ModelId) -> Result<(), Failure> {
        EngineHandle::load(self, model).await
    }

    async fn unload(&self, model: ModelId) -> Result<Released, Failure> {
        EngineHandle::unload(self, model).await
    }

    async fn pin(&self, model: ModelId, pinned: bool) -> Result<(), Failure> {
        EngineHandle::pin(self, model, pinned).await
    }

    async fn set_budget(
        &self,
        model: ModelId,
        budget: Budget,
        expected_revision: Option<u64>,
    ) -> Result<Result<BudgetChange, BudgetError>, Failure> {
        EngineHandle::set_budget(self, model, budget, expected_revision).await
    }

    async fn memory(&self) -> Result<MemorySnapshot, Failure> {
        EngineHandle::memory(self).await
    }

    async fn plan(&self, models: Vec<ModelId>, budget: Option<Bytes>) -> Result<Result<FitPlan, PlanError>, Failure> {
        EngineHandle::plan(self, models, budget).await
    }

    async fn trace(&self, model: ModelId, rows: u32, length: u32) -> Result<Result<MemoryTrace, TraceError>, Failure> {
        EngineHandle::trace(self, model, rows, length).await
    }
}
