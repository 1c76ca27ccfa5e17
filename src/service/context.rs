//! What all services share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OnceCell, Semaphore, watch};

use super::errors::Problem;
use super::limits::Limits;
use super::port::{Inference, Reload};
use super::server::Count;
use super::tokenizer::Tokenizer;
use crate::admission::Rejection;
use crate::config::Task;
use crate::engine::{Definition, ModelStatus, Registered};
use crate::model::ModelCard;
use crate::telemetry::traces::Traces;
use crate::units::{Bytes, ModelId};

/// The engine, the limits, the tokenizer and what is counted here, behind one `Arc`.
pub(crate) struct Context<E> {
    pub(crate) engine: E,
    pub(crate) limits: Limits,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) traces: Traces,
    pub(crate) in_flight: Arc<Count>,
    /// True from the moment that the server is told to go down.
    pub(crate) draining: watch::Receiver<bool>,
    /// Reads configuration and repository again, where the server was started from some.
    pub(crate) reload: Option<Arc<dyn Reload>>,
    /// One permit for each stream of inferences.
    pub(crate) streams: Arc<Semaphore>,
    /// What `device_kind` has been told.
    device_kind: OnceCell<&'static str>,
    /// Time that the host spent for each model that was asked, by its number.
    host_times: Mutex<HashMap<ModelId, Arc<HostTimes>>>,
}

/// Time that the host, not the device, spent on the answered requests of a model.
#[derive(Debug, Default)]
pub(crate) struct HostTimes {
    tokenize_us: AtomicU64,
    finish_us: AtomicU64,
}

impl HostTimes {
    /// Counts one answered request.
    pub(crate) fn add(&self, tokenize: Duration, finish: Duration) {
        self.tokenize_us.fetch_add(tokenize.as_micros() as u64, Ordering::Relaxed);
        self.finish_us.fetch_add(finish.as_micros() as u64, Ordering::Relaxed);
    }

    /// Microseconds of tokenization and of what follows the device, of all requests together.
    pub(crate) fn read(&self) -> (u64, u64) {
        (self.tokenize_us.load(Ordering::Relaxed), self.finish_us.load(Ordering::Relaxed))
    }
}

/// A model that can be asked: its files are in order.
pub(crate) struct Target {
    pub(crate) registered: Arc<Registered>,
    pub(crate) definition: Arc<Definition>,
}

impl<E: Inference> Context<E> {
    pub(crate) fn new(
        engine: E,
        limits: Limits,
        traces: Traces,
        draining: watch::Receiver<bool>,
        reload: Option<Arc<dyn Reload>>,
    ) -> Result<Context<E>, std::io::Error> {
        Ok(Context {
            tokenizer: Tokenizer::new(&limits)?,
            traces,
            in_flight: Arc::new(Count::default()),
            draining,
            reload,
            streams: Arc::new(Semaphore::new(limits.streams as usize)),
            device_kind: OnceCell::new(),
            host_times: Mutex::default(),
            engine,
            limits,
        })
    }

    /// `gpu` or `cpu`. The engine is asked once: a server has one device for as long as it runs.
    pub(crate) async fn device_kind(&self) -> &'static str {
        const CPU: &str = "cpu";
        let kind = || async {
            let name = self.engine.device().await.ok_or(())?;
            Ok::<_, ()>(if name.starts_with(CPU) { CPU } else { "gpu" })
        };
        self.device_kind.get_or_try_init(kind).await.copied().unwrap_or(CPU)
    }

    /// The host's times of a model.
    pub(crate) fn host_times(&self, model: ModelId) -> Arc<HostTimes> {
        self.host_times.lock().unwrap_or_else(PoisonError::into_inner).entry(model).or_default().clone()
    }

    /// The registered model of this name, or from this repository of the Hub.
    pub(crate) fn find(&self, name: &str) -> Result<Arc<Registered>, Problem> {
        self.engine.find(name).or_else(|| self.find_by_id(name)).ok_or_else(|| Problem::UnknownModel {
            asked: name.to_owned(),
            known: self.engine.statuses().into_iter().map(|status| status.name).collect(),
        })
    }

    /// The only model from the Hub's repository of this id, `ORG/NAME`.
    fn find_by_id(&self, id: &str) -> Option<Arc<Registered>> {
        // No model's name has one.
        if !id.contains('/') {
            return None;
        }
        let is_from = |model: &Arc<Registered>| {
            let source = model.definition.as_ref().ok().and_then(|definition| definition.config.source.hub());
            source.is_some_and(|(found, _)| found == id)
        };
        let models = self.engine.statuses().into_iter().filter_map(|status| self.engine.find(&status.name));
        let mut from = models.filter(is_from);
        match (from.next(), from.next()) {
            (Some(only), None) => Some(only),
            _ => None,
        }
    }

    /// The model of this name with its card.
    pub(crate) fn target(&self, name: &str) -> Result<Target, Problem> {
        let registered = self.find(name)?;
        match registered.definition.clone() {
            Ok(definition) => Ok(Target { registered, definition }),
            Err(_) => Err(Problem::rejected(name, Rejection::Broken)),
        }
    }

    /// The model of this name for a task; an empty name means the only one there is for it.
    pub(crate) fn target_for(&self, task: Task, name: &str) -> Result<Target, Problem> {
        self.target_for_one_of(&[task], name)
    }

    /// The names of the models for one of these tasks.
    pub(crate) fn names_for(&self, tasks: &[Task]) -> Vec<String> {
        let fits = |name: &String| self.target(name).is_ok_and(|target| tasks.contains(&target.definition.card.task));
        self.engine.statuses().into_iter().map(|status| status.name).filter(fits).collect()
    }

    /// This name if a model has it, or if several are for the task; where one is, that one's. A client of a server of one
    /// model may call it anything.
    pub(crate) fn known_or_only(&self, task: Task, name: String) -> String {
        if name.is_empty() || self.find(&name).is_ok() {
            return name;
        }
        match <[String; 1]>::try_from(self.names_for(&[task])) {
            Ok([only]) => only,
            Err(_) => name,
        }
    }

    /// The model of this name for one of these tasks; an empty name means the only one there is for any of them.
    pub(crate) fn target_for_one_of(&self, tasks: &[Task], name: &str) -> Result<Target, Problem> {
        let task = || tasks.iter().map(|task| task.as_str()).collect::<Vec<_>>().join("' or '");
        if name.is_empty() {
            return match self.names_for(tasks).as_slice() {
                [only] => self.target(only),
                [] => {
                    let task = task();
                    Err(Problem::WrongTask(format!("it is empty and no model for task '{task}' is registered")))
                }
                several => Err(Problem::invalid(
                    "model",
                    format!(
                        "it is empty and several models are for task '{}': name one of {}",
                        task(),
                        several.join(", ")
                    ),
                )),
            };
        }
        let target = self.target(name)?;
        let found = target.definition.card.task;
        if !tasks.contains(&found) {
            let task = task();
            return Err(Problem::WrongTask(format!(
                "'{name}' is for task '{found}' and this call is for task '{task}'"
            )));
        }
        Ok(target)
    }

    /// Refuses every version but the served one; an empty one means that.
    pub(crate) fn check_version(&self, card: &ModelCard, asked: &str) -> Result<(), Problem> {
        let served = card.version.to_string();
        if asked.is_empty() || asked == served {
            return Ok(());
        }
        Err(Problem::UnknownVersion { model: card.name.clone(), asked: asked.to_owned(), served })
    }

    /// The published status of a model.
    pub(crate) fn status(&self, model: ModelId) -> Option<ModelStatus> {
        self.engine.statuses().into_iter().find(|status| status.id == model)
    }

    /// Refuses an answer that no message can hold, before anything is computed for it.
    pub(crate) fn check_answer(&self, needed: Bytes) -> Result<(), Problem> {
        let limit = self.limits.message;
        if needed > limit { Err(Problem::AnswerTooLarge { needed, limit }) } else { Ok(()) }
    }

    /// Whether the server is going down.
    pub(crate) fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }
}
