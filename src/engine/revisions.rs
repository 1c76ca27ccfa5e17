//! How revisions of models follow each other while the server serves.
//!
//! A revision that shall replace another is loaded beside it if both fit, and its name stands for it from the moment that
//! it can serve. If they do not fit together the name stands for the new one at once: requests for it wait while the old
//! one finishes what it has, leaves, and the new one is loaded. Either way a call that has found the old one, and has been
//! tokenized for it, is served by it: an old revision leaves when nobody holds it any more.

use std::sync::Arc;

use super::core::Core;
use super::lifecycle::{Lifecycle, Role};
use super::register::budget;
use super::status::ModelState;
use crate::admission::Rejection;
use crate::memory::{Budget, LoadNeed, LoadPlan, Reading};
use crate::telemetry::ModelLevels;
use crate::units::{Bytes, Micros, ModelId, Timestamp};

/// How long calls that hold an old revision are waited for. A call that takes longer than this to be tokenized and
/// submitted is refused, and its client told to send it again.
const LEAVE_WITHIN: Micros = Micros::secs(60);

impl Core {
    /// Puts budget and pin of a configuration in force. Of a guarantee that others' bytes are in the way of, when those are
    /// back: until then there is none.
    pub(super) fn grant(&mut self, id: ModelId) {
        let Ok(definition) = self.shared.registry.get(id).definition.clone() else { return };
        let (wanted, pinned) = (budget(&definition.config, self.ledger.books().available()), definition.config.pinned);
        self.ledger.pin(id, pinned);
        let granted = self.ledger.set_budget(id, wanted).is_ok();
        let in_force = if granted { wanted } else { Budget { guaranteed: Bytes::ZERO, ..wanted } };
        if !granted && let Err(refusal) = self.ledger.set_budget(id, in_force) {
            tracing::warn!(model = self.name(id), "the budget of {} is as before: {refusal}", self.name(id));
            return;
        }
        self.life(id).guarantee_due = !granted;
        self.shared.board.with(id, |status| (status.budget, status.pinned) = (in_force, pinned));
    }

    /// Gives guarantees that could not be given before, as far as they can be now. What else was set meanwhile stays.
    pub(super) fn grant_what_is_due(&mut self) {
        for id in self.model_ids() {
            let Lifecycle { guarantee_due, role, .. } = *self.life(id);
            let Ok(definition) = self.shared.registry.get(id).definition.clone() else { continue };
            if !guarantee_due || role != Role::Current {
                continue;
            }
            let Budget { guaranteed, .. } = budget(&definition.config, self.ledger.books().available());
            let Budget { limit, .. } = self.shared.board.copy(id).budget;
            let wanted = Budget { guaranteed, limit };
            if self.ledger.set_budget(id, wanted).is_ok() {
                self.life(id).guarantee_due = false;
                self.shared.board.with(id, |status| {
                    status.budget = wanted;
                    status.revision += 1;
                });
            }
        }
    }

    /// A successor takes the place of the one before it: from now on its name stands for it.
    pub(super) fn take_over(&mut self, now: Timestamp, new: ModelId) {
        let Role::Successor { of: old } = self.life(new).role else { return };
        // Whoever has unloaded the model has unloaded this revision, too.
        let stays_away = self.life(old).unloaded_by_hand;
        let life = self.life(new);
        (life.role, life.unloaded_by_hand) = (Role::Current, stays_away);
        self.shared.registry.point_to(new);
        self.part(now, old);
        self.grant(new);
        let registered = self.shared.registry.get(new);
        let (state, name) = (self.life(new).state, registered.name.clone());
        self.rig.model_metrics(new).state(state.as_str());
        tracing::info!(model = name, version = registered.version(), "{name} is version {} now", registered.version());
        self.publish_health();
    }

    /// Whether a successor that does not fit beside the one before would in its place, idle models evicted.
    pub(super) fn fits_in_its_place(&self, now: Timestamp, new: ModelId, need: LoadNeed, reading: &Reading) -> bool {
        let Role::Successor { of: old } = self.models[new.get() as usize].role else { return false };
        let mut without = self.ledger.clone();
        without.pin(old, false);
        // Lowering a guarantee is never refused.
        let _ = without.set_budget(old, Budget::SHARED);
        let mut may_go = vec![old];
        may_go.extend(self.evictable(now, new).0.into_iter().filter(|other| *other != old));
        !matches!(without.plan_load(new, need, reading, &may_go), LoadPlan::Refuse(_))
    }

    /// A successor's name stands for it before it is loaded: those who ask for it wait. The server is as ready as it was,
    /// as it is where a model had to make room and comes back.
    pub(super) fn take_place(&mut self, now: Timestamp, new: ModelId) {
        let load_by = now + LEAVE_WITHIN + self.load_rules.timeout;
        let life = self.life(new);
        (life.load_by, life.evicted) = (load_by, true);
        self.take_over(now, new);
    }

    /// A revision that no name stands for any more keeps no room from others.
    pub(super) fn part(&mut self, now: Timestamp, old: ModelId) {
        self.life(old).role = Role::Replaced { leave_by: now + LEAVE_WITHIN };
        self.ledger.pin(old, false);
        let Budget { limit, .. } = self.shared.board.copy(old).budget;
        let budget = Budget { guaranteed: Bytes::ZERO, limit };
        if self.ledger.set_budget(old, budget).is_ok() {
            self.shared.board.with(old, |status| (status.budget, status.pinned) = (budget, false));
        }
    }

    /// Lets revisions go that no name stands for and nobody holds.
    pub(super) fn see_off(&mut self, now: Timestamp) {
        self.give_up_waiting(now);
        for model in self.model_ids() {
            let Role::Replaced { leave_by } = self.life(model).role else { continue };
            if !self.scheduler.is_drained(model) {
                continue;
            }
            let former = &self.models[model.get() as usize].known_as;
            let held = self.shared.registry.is_held(model) || former.iter().any(|former| Arc::strong_count(former) > 1);
            let state = self.life(model).state;
            match state {
                ModelState::Ready if !held || now >= leave_by => {
                    // Requests do not bring it back.
                    self.life(model).unloaded_by_hand = true;
                    self.begin_drain(model);
                }
                ModelState::Loading if !held && self.loads.remove(model) => {
                    self.go_down(now, model, ModelState::NotLoaded, None, Rejection::NotLoaded);
                }
                // It is there, and its profile is being measured.
                ModelState::Loading if !held && self.ledger.is_resident(model) => self.begin_drain(model),
                ModelState::NotLoaded | ModelState::Broken if !held => self.retire(model),
                // On its way in or out, or held.
                _ => {}
            }
        }
    }

    /// Whether a revision is still there whose place this one shall have.
    pub(super) fn waits_for_its_place(&self, model: ModelId) -> bool {
        let replaced = |life: &Lifecycle| matches!(life.role, Role::Replaced { .. }) && life.resident > Bytes::ZERO;
        let name = self.name(model);
        self.models.iter().any(|life| life.name == name && replaced(life))
    }

    fn retire(&mut self, model: ModelId) {
        if self.speaks_for_its_name(model) {
            // Nobody publishes its levels from now on.
            let gone = ModelLevels {
                budget: Budget::SHARED,
                resident: Bytes::ZERO,
                kv: Bytes::ZERO,
                headroom: Bytes::ZERO,
                drift: 1.0,
                batch_rows_max: 0,
            };
            self.rig.model_metrics(model).levels(&gone);
        }
        // It may be queued without anybody waiting for it.
        self.loads.remove(model);
        self.ledger.close(model);
        self.scheduler.remove_lane(model);
        self.shared.registry.retire(model);
        let life = self.life(model);
        (life.role, life.blueprint) = (Role::Retired, None);
        life.known_as.clear();
        self.grant_what_is_due();
    }

    /// Whether what happens to a revision is what its model's metrics and health tell of: a name stands for it, or for
    /// nothing any more.
    pub(super) fn speaks_for_its_name(&self, model: ModelId) -> bool {
        match self.models[model.get() as usize].role {
            Role::Current => true,
            Role::Successor { .. } | Role::Retired => false,
            Role::Replaced { .. } => self.shared.registry.find(self.name(model)).is_none(),
        }
    }
}
