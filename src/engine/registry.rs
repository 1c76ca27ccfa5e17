//! The models that this server knows, loaded or not, and which revision of each its name stands for.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::config::ModelConfig;
use crate::model::ModelCard;
use crate::units::ModelId;

/// One revision of a model of the repository. Whoever holds it may still send requests to it: a revision that another has
/// replaced stays until nobody does.
#[derive(Debug)]
pub struct Registered {
    /// Its number; dense, in the order of registration, and never given twice.
    pub id: ModelId,
    /// The name that clients use, which stands for one revision at a time.
    pub name: String,
    /// The server is not ready without it.
    pub required: bool,
    /// What it is; `Err` holds the reason why it cannot be served.
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

    /// Which revision of the model it is: 1 at the start of the server, and of a model whose files cannot be read.
    pub fn version(&self) -> u32 {
        self.card().map_or(1, |card| card.version)
    }
}

/// All revisions by number, and those that names stand for. The engine's thread alone changes it.
#[derive(Debug, Default)]
pub(super) struct Registry {
    names: RwLock<Names>,
}

#[derive(Debug, Default)]
struct Names {
    /// By number. Of those that are gone a shell is left.
    revisions: Vec<Arc<Registered>>,
    /// What names stand for, in the order in which the names came.
    current: Vec<ModelId>,
    by_name: HashMap<String, ModelId>,
}

impl Registry {
    /// Adds a revision under the next number; no name stands for it yet.
    pub(super) fn add(&self, model: impl FnOnce(ModelId) -> Registered) -> Arc<Registered> {
        let mut names = self.write();
        let next = u32::try_from(names.revisions.len()).expect("a server sees far fewer revisions than 2^32");
        let registered = Arc::new(model(ModelId::new(next)));
        names.revisions.push(registered.clone());
        registered
    }

    /// Makes the revision's name stand for it; the one before, if there was one.
    pub(super) fn point_to(&self, id: ModelId) -> Option<ModelId> {
        let mut names = self.write();
        let name = names.revisions[id.get() as usize].name.clone();
        let before = names.by_name.insert(name, id);
        match before.and_then(|before| names.current.iter().position(|current| *current == before)) {
            Some(place) => names.current[place] = id,
            None => names.current.push(id),
        }
        before
    }

    /// Makes a name stand for nothing. Whether it stood for this revision.
    pub(super) fn forget_name(&self, id: ModelId) -> bool {
        let mut names = self.write();
        let before = names.current.len();
        names.current.retain(|current| *current != id);
        names.by_name.retain(|_, current| *current != id);
        names.current.len() < before
    }

    /// Puts what is known of a revision in place of what was known before.
    pub(super) fn amend(&self, known: Registered) {
        let place = known.id.get() as usize;
        self.write().revisions[place] = Arc::new(known);
    }

    /// Whether anybody but this registry holds a revision. Once nobody does and no name stands for it, nobody ever will.
    pub(super) fn is_held(&self, id: ModelId) -> bool {
        Arc::strong_count(&self.read().revisions[id.get() as usize]) > 1
    }

    /// Lets go of what a revision that is gone was made of: its tokenizer, its labels.
    pub(super) fn retire(&self, id: ModelId) {
        let mut names = self.write();
        let gone = &mut names.revisions[id.get() as usize];
        let (name, definition) = (gone.name.clone(), Err("another revision has replaced it".to_owned()));
        *gone = Arc::new(Registered { id, name, required: false, definition });
    }

    /// The model of this name.
    pub(super) fn find(&self, name: &str) -> Option<Arc<Registered>> {
        let names = self.read();
        names.by_name.get(name).map(|id| names.revisions[id.get() as usize].clone())
    }

    /// The revision with this number.
    ///
    /// # Panics
    /// If no revision has it: numbers come only from this registry.
    pub(super) fn get(&self, id: ModelId) -> Arc<Registered> {
        self.read().revisions[id.get() as usize].clone()
    }

    /// What names stand for, in the order in which the names came.
    pub(super) fn current(&self) -> Vec<Arc<Registered>> {
        let names = self.read();
        names.current.iter().map(|id| names.revisions[id.get() as usize].clone()).collect()
    }

    // A panic under the lock leaves whole entries: each change is one assignment after the other of independent lists.
    fn read(&self) -> RwLockReadGuard<'_, Names> {
        self.names.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Names> {
        self.names.write().unwrap_or_else(PoisonError::into_inner)
    }
}
