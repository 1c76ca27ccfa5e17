//! One model's life in the engine's eyes.

use super::answer::Failure;
use super::control::Released;
use super::inbox::Reply;
use super::status::ModelState;
use crate::model::Blueprint;
use crate::units::{Bytes, Timestamp};

/// A model that the engine can load, serve and unload; `lives` moves it from state to state.
pub(super) struct Lifecycle {
    /// What it is loaded from; `None` if it is broken from the start.
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
    /// Something of its profile was measured that is not written down.
    pub(super) profile_news: bool,
}

impl Lifecycle {
    /// A model that is not loaded; broken for good if there is no blueprint.
    pub(super) fn new(blueprint: Option<Blueprint>) -> Lifecycle {
        let state = if blueprint.is_some() { ModelState::NotLoaded } else { ModelState::Broken };
        Lifecycle {
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
