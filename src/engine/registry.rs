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
    /// What its configuration says.
    pub config: ModelConfig,
    /// What its files say; `Err` holds the reason why the model is broken.
    pub card: Result<Arc<ModelCard>, String>,
}

impl Registered {
    /// The name that clients use.
    pub fn name(&self) -> &str {
        &self.config.name
    }
}

/// All registered models, by name and by number.
#[derive(Debug, Default)]
pub struct Registry {
    models: Vec<Arc<Registered>>,
    by_name: HashMap<String, ModelId>,
}

impl Registry {
    /// Adds a model under the next number.
    ///
    /// # Panics
    /// If the name is taken: configuration refuses that first.
    pub(super) fn add(&mut self, config: ModelConfig, card: Result<Arc<ModelCard>, String>) -> ModelId {
        let id = ModelId::new(u32::try_from(self.models.len()).expect("a repository has far fewer models than 2^32"));
        let taken = self.by_name.insert(config.name.clone(), id);
        assert!(taken.is_none(), "the name '{}' is registered twice", config.name);
        self.models.push(Arc::new(Registered { id, config, card }));
        id
    }

    /// The model of this name.
    pub fn find(&self, name: &str) -> Option<&Arc<Registered>> {
        self.by_name.get(name).map(|id| self.get(*id))
    }

    /// The model with this number.
    ///
    /// # Panics
    /// If no model has it: numbers come only from this registry.
    pub fn get(&self, id: ModelId) -> &Arc<Registered> {
        &self.models[id.get() as usize]
    }

    /// Every model, in the order of registration.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Arc<Registered>> {
        self.models.iter()
    }
}
