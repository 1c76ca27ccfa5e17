//! `plimsoll.v1.Models`.

use tonic::{Request, Response, Status};

use super::{Own, convert};
use crate::engine::{Changed, Failure, Registered};
use crate::memory::BudgetChange;
use crate::service::errors::Problem;
use crate::service::port::{Inference, Operations, Reload, Reloaded};
use crate::service::proto::plimsoll as wire;
use crate::service::proto::plimsoll::models_server::Models;

#[tonic::async_trait]
impl<E: Inference + Operations> Models for Own<E> {
    async fn list(&self, _: Request<wire::ListModelsRequest>) -> Result<Response<wire::ListModelsResponse>, Status> {
        let statuses = self.context.engine.statuses().into_iter();
        let models = statuses.filter_map(|status| {
            let registered = self.context.engine.find(&status.name)?;
            Some(convert::model(&registered, status))
        });
        Ok(Response::new(wire::ListModelsResponse { models: models.collect() }))
    }

    async fn load(
        &self,
        request: Request<wire::LoadModelRequest>,
    ) -> Result<Response<wire::LoadModelResponse>, Status> {
        let registered = self.named(&request.into_inner().model)?;
        // A model whose files were broken may have been mended: the engine decides, not we.
        self.context.engine.load(registered.id).await.map_err(|failure| failed(&registered, failure))?;
        Ok(Response::new(wire::LoadModelResponse { model: self.now(&registered) }))
    }

    async fn unload(
        &self,
        request: Request<wire::UnloadModelRequest>,
    ) -> Result<Response<wire::UnloadModelResponse>, Status> {
        let registered = self.named(&request.into_inner().model)?;
        let unloaded = self.context.engine.unload(registered.id).await;
        let released = unloaded.map_err(|failure| failed(&registered, failure))?;
        Ok(Response::new(wire::UnloadModelResponse {
            released_bytes: released.released.get(),
            free_bytes: released.free.get(),
        }))
    }

    async fn pin(&self, request: Request<wire::PinModelRequest>) -> Result<Response<wire::PinModelResponse>, Status> {
        let wire::PinModelRequest { model, pinned } = request.into_inner();
        let registered = self.named(&model)?;
        let pinned = self.context.engine.pin(registered.id, pinned).await;
        pinned.map_err(|failure| failed(&registered, failure))?;
        Ok(Response::new(wire::PinModelResponse { model: self.now(&registered) }))
    }

    async fn set_budget(
        &self,
        request: Request<wire::SetBudgetRequest>,
    ) -> Result<Response<wire::SetBudgetResponse>, Status> {
        let wire::SetBudgetRequest { model, budget, expected_revision } = request.into_inner();
        let registered = self.named(&model)?;
        let budget = convert::read_budget(budget)?;
        let expected = (expected_revision != 0).then_some(expected_revision);
        let changed = self.context.engine.set_budget(registered.id, budget, expected).await;
        let changed = changed.map_err(|failure| failed(&registered, failure))?;
        let changed = changed.map_err(|error| Problem::Budget { model: registered.name.to_owned(), error })?;
        let (applied, overage_bytes) = match changed {
            BudgetChange::Applied => (true, 0),
            BudgetChange::Deferred { overage } => (false, overage.get()),
        };
        let model = self.now(&registered);
        Ok(Response::new(wire::SetBudgetResponse { applied, overage_bytes, model }))
    }

    async fn reload(&self, _: Request<wire::ReloadRequest>) -> Result<Response<wire::ReloadResponse>, Status> {
        let Reloaded { models, after_restart } = self.reloader()?.reload().await.map_err(Problem::Reload)?;
        let change = |Changed { model, kind, outcome, .. }: Changed| {
            let kind = kind.as_str().to_owned();
            let (version, error) = match outcome {
                Ok(version) => (version.to_string(), String::new()),
                Err(error) => (String::new(), error),
            };
            wire::ModelChange { model, kind, version, error }
        };
        Ok(Response::new(wire::ReloadResponse { changes: models.into_iter().map(change).collect(), after_restart }))
    }
}

impl<E: Inference> Own<E> {
    fn reloader(&self) -> Result<&dyn Reload, Problem> {
        let none = "this server was not started from a configuration that could be read again";
        self.context.reload.as_deref().ok_or(Problem::NotOffered(none))
    }

    fn named(&self, name: &str) -> Result<std::sync::Arc<Registered>, Problem> {
        if name.is_empty() {
            return Err(Problem::invalid("model", "it is empty: name the model"));
        }
        self.context.find(name)
    }

    fn now(&self, registered: &Registered) -> Option<wire::Model> {
        self.context.status(registered.id).map(|status| convert::model(registered, status))
    }
}

fn failed(registered: &Registered, failure: Failure) -> Problem {
    Problem::Failed { model: registered.name.to_owned(), failure }
}
