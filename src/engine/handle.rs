//! Stands in for the engine's handle until the engine is merged: the same signatures, nobody behind them.

use std::future::pending;
use std::sync::Arc;

use tokio::sync::watch;

use super::answer::{Answer, Failure};
use super::control::{BudgetError, Released};
use super::health::{HealthView, Pulse};
use super::memory_view::{MemorySnapshot, PlanError};
use super::registry::Registered;
use super::status::ModelStatus;
use super::submission::Submission;
use crate::memory::{Budget, BudgetChange, FitPlan};
use crate::units::{Bytes, ModelId};

#[derive(Clone)]
pub struct EngineHandle;

#[allow(missing_docs, clippy::missing_errors_doc)]
impl EngineHandle {
    pub fn find(&self, _: &str) -> Option<Arc<Registered>> {
        None
    }
    pub fn models(&self) -> Vec<ModelStatus> {
        Vec::new()
    }
    pub fn health(&self) -> watch::Receiver<HealthView> {
        watch::Sender::new(HealthView::default()).subscribe()
    }
    pub fn pulse(&self) -> Pulse {
        Pulse::new()
    }
    pub async fn infer(&self, _: Submission) -> Result<Answer, Failure> {
        pending().await
    }
    pub async fn load(&self, _: ModelId) -> Result<(), Failure> {
        pending().await
    }
    pub async fn unload(&self, _: ModelId) -> Result<Released, Failure> {
        pending().await
    }
    pub async fn pin(&self, _: ModelId, _: bool) -> Result<(), Failure> {
        pending().await
    }
    pub async fn set_budget(
        &self,
        _: ModelId,
        _: Budget,
        _: Option<u64>,
    ) -> Result<Result<BudgetChange, BudgetError>, Failure> {
        pending().await
    }
    pub async fn memory(&self) -> Result<MemorySnapshot, Failure> {
        pending().await
    }
    pub async fn plan(&self, _: Vec<ModelId>, _: Option<Bytes>) -> Result<Result<FitPlan, PlanError>, Failure> {
        pending().await
    }
}
