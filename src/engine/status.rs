//! What the engine publishes about each model: written by its thread, read by anybody, without asking it.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError, RwLock};

use crate::memory::{Budget, ProfileState};
use crate::units::{Bytes, Micros, ModelId};

/// Where a model is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModelState {
    /// Its weights are not on the device; or its files were never fetched.
    NotLoaded,
    /// Its weights are on their way, or its profile is being checked.
    Loading,
    /// It serves.
    Ready,
    /// It finishes what was accepted, then leaves.
    Draining,
    /// It cannot be loaded.
    Broken,
}

impl ModelState {
    /// Every state.
    pub const ALL: [ModelState; 5] =
        [ModelState::NotLoaded, ModelState::Loading, ModelState::Ready, ModelState::Draining, ModelState::Broken];

    /// The word for logs, metrics and tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            ModelState::NotLoaded => "not_loaded",
            ModelState::Loading => "loading",
            ModelState::Ready => "ready",
            ModelState::Draining => "draining",
            ModelState::Broken => "broken",
        }
    }
}

/// How often something happened and how long it took in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// How often.
    pub count: u64,
    /// Time of all of them together.
    pub total: Micros,
}

impl Tally {
    /// Counts one more.
    pub(super) fn add(&mut self, time: Micros) {
        self.count += 1;
        self.total += time;
    }
}

/// Counters since the start of the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Requests answered; time from acceptance to answer.
    pub success: Tally,
    /// Requests rejected or failed after they were accepted.
    pub fail: Tally,
    /// Requests answered; time from acceptance to the first step.
    pub queue: Tally,
    /// Requests answered; time of their steps on the device.
    pub compute: Tally,
    /// Rows answered.
    pub rows: u64,
    /// Steps that answered rows.
    pub steps: u64,
    /// Steps by rows in the batch.
    pub batches: BTreeMap<u32, Tally>,
    /// Milliseconds since the Unix epoch of the last answer; 0 before the first.
    pub last_answer_unix_ms: u64,
}

/// One model, now.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelStatus {
    /// Its number.
    pub id: ModelId,
    /// Its name.
    pub name: String,
    /// Where it is in its life.
    pub state: ModelState,
    /// Why it is not loaded or broken.
    pub reason: Option<String>,
    /// Never evicted.
    pub pinned: bool,
    /// What it may use.
    pub budget: Budget,
    /// Grows with each change of `pinned` or `budget`; starts at 1.
    pub revision: u64,
    /// Bytes of its weights on the device.
    pub resident: Bytes,
    /// How far its profile is measured; `None` while it is not loaded.
    pub profile: Option<ProfileState>,
    /// Factor on predicted peaks.
    pub drift: f64,
    /// The largest batch of rows of the longest length that would fit now; 0 while it is not loaded.
    pub batch_rows_max: u32,
    /// Rows that wait.
    pub waiting_rows: u64,
    /// Tokens that wait.
    pub waiting_tokens: u64,
    /// Its share of device time in force.
    pub share: f64,
    /// Time on the device so far.
    pub device_time: Micros,
    /// Counters.
    pub statistics: Statistics,
}

/// The published status of every revision that is not gone. Each has its own lock, held for a copy only.
#[derive(Debug, Default)]
pub(super) struct Board {
    /// By number; of those that are gone the last status.
    models: RwLock<Vec<Mutex<ModelStatus>>>,
}

impl Board {
    /// Adds the status of the revision with the next number.
    pub(super) fn add(&self, status: ModelStatus) {
        let mut models = self.models.write().unwrap_or_else(PoisonError::into_inner);
        debug_assert_eq!(models.len(), status.id.get() as usize, "statuses are added in the order of their numbers");
        models.push(Mutex::new(status));
    }

    /// Reads or changes the status of one model. Do no work in `change`: others wait for it.
    pub(super) fn with<T>(&self, id: ModelId, change: impl FnOnce(&mut ModelStatus) -> T) -> T {
        // A panic under these locks leaves counters, which are good enough to publish.
        let models = self.models.read().unwrap_or_else(PoisonError::into_inner);
        let mut status = models[id.get() as usize].lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut status)
    }

    /// A copy of the status of one model.
    pub(super) fn copy(&self, id: ModelId) -> ModelStatus {
        self.with(id, |status| status.clone())
    }
}
