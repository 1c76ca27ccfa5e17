//! The models that this server knows, loaded or not.

use std::collections::HashMap;
use std::sync::Arc;

use crate::config::ModelConfig;
use crate::model::ModelCard;
use crate::units::ModelId;

/// One model of the repository. It exists from the start of the server to its end, whatever its state.
#[derive(Debug)]
pub struct Registered {
    /// Its number; dense, in the order of registration.
    pub id: ModelId,
    /// The name that clients use.
    pub name: String,
    /// The server is not ready without it.
    pub required: bool,
    /// What it is; `Err` holds the reason why it is broken.
    pub definition: Result<Arc<Definition>, String>,
}

/// What a model is, by its configuration and its files.
#[derive(Debug)]
pub struct Definition {
    /// What its configuration says.
    pub config: ModelConfig,
    /// What its files say.
    pub card: Arc<ModelCard>,
}

impl Registered {
    /// What its files say, unless it is broken.
    pub fn card(&self) -> Option<&Arc<ModelCard>> {
        self.definition.as_ref().ok().map(|definition| &definition.card)
    }
}

/// All registered models, by name and by number.
#[derive(Debug, Default)]
pub(super) struct Registry {
    models: Vec<Arc<Registered>>,
    by_name: HashMap<String, ModelId>,
}

impl Registry {
    /// Adds a model under the next number.
    ///
    /// # Panics
    /// If the name is taken: configuration refuses that first.
    pub(super) fn add(&mut self, name: String, required: bool, definition: Result<Arc<Definition>, String>) -> ModelId {
        let id = ModelId::new(u32::try_from(self.models.len()).expect("a repository has far fewer models than 2^32"));
        let taken = self.by_name.insert(name.clone(), id);
        assert!(taken.is_none(), "the name '{name}' is registered twice");
        self.models.push(Arc::new(Registered { id, name, required, definition }));
        id
    }

    /// The model of this name.
    pub(super) fn find(&self, name: &str) -> Option<&Arc<Registered>> {
        self.by_name.get(name).map(|id| self.get(*id))
    }

    /// The model with this number.
    ///
    /// # Panics
    /// If no model has it: numbers come only from this registry.
    pub(super) fn get(&self, id: ModelId) -> &Arc<Registered> {
        &self.models[id.get() as usize]
    }

    /// Every model, in the order of registration.
    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = &Arc<Registered>> {
        self.models.iter()
    }
}
