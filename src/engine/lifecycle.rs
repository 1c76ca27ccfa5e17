//! One model's life in the engine's eyes.

use std::sync::Arc;

use super::answer::Failure;
use super::control::Released;
use super::inbox::Reply;
use super::registry::Registered;
use super::status::ModelState;
use crate::model::Blueprint;
use crate::units::{Bytes, ModelId, Timestamp};

/// What a revision is to its model's name; `revisions` moves it from one to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// The name stands for it.
    Current,
    /// It is loaded beside the one that the name stands for, and takes over when it can serve.
    Successor {
        /// Whose place it takes.
        of: ModelId,
    },
    /// The name stands for another or for nothing. It serves those who hold it, and leaves when nobody does.
    Replaced {
        /// From then on those who still hold it are refused.
        leave_by: Timestamp,
    },
    /// Nothing of it is left but its number.
    Retired,
}

/// A model that the engine can load, serve and unload; `lives` moves it from state to state.
pub(super) struct Lifecycle {
    /// Its model's name.
    pub(super) name: String,
    pub(super) role: Role,
    /// Its guarantee is not in force: others hold the bytes.
    pub(super) guarantee_due: bool,
    /// As it was known before its settings were changed: somebody may still hold it.
    pub(super) known_as: Vec<Arc<Registered>>,
    /// What it is loaded from; `None` if it is broken, or absent, from the start.
    pub(super) blueprint: Option<Blueprint>,
    pub(super) state: ModelState,
    /// Answered when it is ready, or cannot be.
    pub(super) load_waiters: Vec<Reply<Result<(), Failure>>>,
    /// Answered when it is gone.
    pub(super) unload_waiters: Vec<Reply<Result<Released, Failure>>>,
    /// When its load was last ordered.
    pub(super) load_began: Timestamp,
    /// Until when it is waited for: later its callers are told, and one that found no room is given up.
    pub(super) load_by: Timestamp,
    /// It was unloaded to make room for another, and comes back with the first request for it.
    pub(super) evicted: bool,
    /// When it last became ready; it stays for a minimum time.
    pub(super) ready_at: Timestamp,
    /// What it held when it was last looked at.
    pub(super) resident: Bytes,
    /// It was unloaded by a call and stays so until a call loads it: requests do not bring it back.
    pub(super) unloaded_by_hand: bool,
    /// It is thrown out because it cannot serve, and why.
    pub(super) broken: Option<String>,
    /// Something of its profile was measured that is not written down.
    pub(super) profile_news: bool,
}

impl Lifecycle {
    /// A model that is not loaded; without a blueprint for good: broken, unless nothing of it is there (`absent`).
    pub(super) fn new(name: String, role: Role, blueprint: Option<Blueprint>, absent: bool) -> Lifecycle {
        let state = if blueprint.is_some() || absent { ModelState::NotLoaded } else { ModelState::Broken };
        Lifecycle {
            name,
            role,
            guarantee_due: false,
            known_as: Vec::new(),
            blueprint,
            state,
            load_waiters: Vec::new(),
            unload_waiters: Vec::new(),
            load_began: Timestamp::START,
            load_by: Timestamp::START,
            evicted: false,
            ready_at: Timestamp::START,
            resident: Bytes::ZERO,
            unloaded_by_hand: false,
            broken: None,
            profile_news: false,
        }
    }

    /// Tells everybody who waits for it to be ready.
    pub(super) fn tell_load_waiters(&mut self, result: &Result<(), Failure>) {
        for waiter in self.load_waiters.drain(..) {
            let _ = waiter.send(result.clone());
        }
    }
}
