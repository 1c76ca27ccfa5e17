//! The model_repository extension: index, load, unload.

use crate::engine::{ModelState, ModelStatus};
use crate::service::context::Context;
use crate::service::errors::Problem;
use crate::service::port::{Inference, Operations};
use crate::service::proto::inference::repository_index_response::ModelIndex;

/// The version in which a model is served.
pub(crate) fn version<E: Inference>(context: &Context<E>, name: &str) -> String {
    context.find(name).map_or(1, |registered| registered.version()).to_string()
}

/// Every model, or every one that is ready.
pub(crate) fn index<E: Inference>(context: &Context<E>, only_ready: bool) -> Vec<ModelIndex> {
    let statuses = context.engine.statuses().into_iter();
    let shown = statuses.filter(|status| !only_ready || status.state == ModelState::Ready);
    let line = |status: ModelStatus| {
        let version = version(context, &status.name);
        line(status, version)
    };
    shown.map(line).collect()
}

fn line(status: ModelStatus, version: String) -> ModelIndex {
    let state = match status.state {
        ModelState::Ready => "READY",
        ModelState::Loading => "LOADING",
        ModelState::Draining => "UNLOADING",
        ModelState::NotLoaded | ModelState::Broken => "UNAVAILABLE",
    };
    ModelIndex { name: status.name, version, state: state.to_owned(), reason: status.reason.unwrap_or_default() }
}

/// The model that a load or unload means. Clients of one numbering of these messages put the model's name where the
/// other has the repository's.
fn name<'a>(repository: &'a str, model: &'a str) -> Result<&'a str, Problem> {
    match (repository, model) {
        ("", "") => Err(Problem::invalid("model_name", "it is empty: name the model")),
        (repository, "") => Ok(repository),
        (_, model) => Ok(model),
    }
}

/// Loads a model, waits until it is ready and gives its name.
pub(crate) async fn load<E: Inference + Operations>(
    context: &Context<E>,
    repository: &str,
    model: &str,
    overrides: bool,
) -> Result<String, Problem> {
    if overrides {
        let text = "files and configuration cannot be sent with a load: put them into the model repository";
        return Err(Problem::invalid("parameters", text));
    }
    let target = context.target(name(repository, model)?)?;
    let model = target.definition.card.name.clone();
    match context.engine.load(target.registered.id).await {
        Ok(()) => Ok(model),
        Err(failure) => Err(Problem::Failed { model, failure }),
    }
}

/// Unloads a model, waits until its memory is back and gives its name.
pub(crate) async fn unload<E: Inference + Operations>(
    context: &Context<E>,
    repository: &str,
    model: &str,
) -> Result<String, Problem> {
    let registered = context.find(name(repository, model)?)?;
    let model = registered.name.to_owned();
    match context.engine.unload(registered.id).await {
        Ok(_) => Ok(model),
        Err(failure) => Err(Problem::Failed { model, failure }),
    }
}
