//! How models come and go: loaded when asked for, served, drained, evicted.
//!
//! One load at a time: two at once would each see the room that the other is about to take. A load that needs room
//! waits for the evictions that make it, and is planned anew when they are done.

use std::collections::VecDeque;

use super::answer::Failure;
use super::control::Released;
use super::core::Core;
use super::errand::Errand;
use super::inbox::Reply;
use super::status::ModelState;
use crate::admission::Rejection;
use crate::config::LoadPolicy;
use crate::device::{self, Loaded};
use crate::memory::{FitPlan, LoadNeed, LoadPlan, Profile, ProfileState, Reading};
use crate::model::{Blueprint, Fault};
use crate::telemetry::logs::{ModelReady, model_ready};
use crate::units::{Bytes, Micros, ModelId, Timestamp};

/// When to try again what did not fit: about what the requests before it take.
const RETRY_AFTER: Micros = Micros::secs(2);

/// Loads that are asked for and not done, in the order in which they were asked for.
#[derive(Debug, Default)]
pub(super) struct Loads {
    queue: VecDeque<ModelId>,
    /// When the first of the queue is to be planned again although nothing happens: a minimum residency ends.
    retry_at: Option<Timestamp>,
}

impl Loads {
    pub(super) fn wake_at(&self) -> Option<Timestamp> {
        self.retry_at
    }
}

impl Core {
    /// Publishes the first states and asks for the models that load at the start.
    pub(super) fn begin(&mut self, now: Timestamp) {
        for model in self.model_ids() {
            let (state, registered) = (self.life(model).state, self.shared.registry.get(model).clone());
            self.rig.model_metrics(model).state(state.as_str());
            match &registered.definition {
                Ok(definition) if definition.config.load == LoadPolicy::Startup => self.enqueue_load(now, model),
                Ok(_) => {}
                Err(reason) => tracing::error!(model = registered.name, "{} is broken: {reason}", registered.name),
            }
        }
        self.publish_health();
    }

    /// Loads a model for a caller.
    pub(super) fn load(&mut self, now: Timestamp, model: ModelId, reply: Reply<Result<(), Failure>>) {
        let life = self.life(model);
        life.unloaded_by_hand = false;
        match life.state {
            ModelState::Ready => drop(reply.send(Ok(()))),
            ModelState::Broken if life.blueprint.is_none() => {
                drop(reply.send(Err(Failure::Rejected(Rejection::Broken))));
            }
            // One that failed to load may have been mended.
            ModelState::Broken | ModelState::NotLoaded => {
                life.load_waiters.push(reply);
                self.enqueue_load(now, model);
            }
            ModelState::Loading => life.load_waiters.push(reply),
            // It is loaded again once it is gone.
            ModelState::Draining => {
                life.load_waiters.push(reply);
                self.queue_behind(model);
            }
        }
    }

    /// Queues a load.
    pub(super) fn enqueue_load(&mut self, now: Timestamp, model: ModelId) {
        self.life(model).load_began = now;
        self.scheduler.lane_loading(model);
        self.set_state(model, ModelState::Loading, None);
        self.queue_behind(model);
    }

    fn queue_behind(&mut self, model: ModelId) {
        if !self.loads.queue.contains(&model) {
            self.loads.queue.push_back(model);
        }
    }

    /// Unloads a model for a caller: no more is admitted, what is accepted is finished.
    pub(super) fn unload(&mut self, model: ModelId, reply: Reply<Result<Released, Failure>>) {
        let life = self.life(model);
        match life.state {
            ModelState::Ready => {
                life.unloaded_by_hand = true;
                life.unload_waiters.push(reply);
                self.begin_drain(model);
            }
            ModelState::Draining => {
                life.unloaded_by_hand = true;
                life.unload_waiters.push(reply);
            }
            ModelState::NotLoaded | ModelState::Broken => {
                drop(reply.send(Err(Failure::Rejected(Rejection::NotLoaded))));
            }
            ModelState::Loading => {
                drop(reply.send(Err(Failure::Rejected(Rejection::Loading { retry_after: RETRY_AFTER }))));
            }
        }
    }

    fn begin_drain(&mut self, model: ModelId) {
        self.scheduler.lane_draining(model);
        self.set_state(model, ModelState::Draining, None);
    }

    /// Moves every model on that can be moved: announces those that can serve, throws out those that are drained,
    /// starts the next load.
    pub(super) fn advance_lives(&mut self, now: Timestamp, reading: &Reading) {
        for model in self.model_ids() {
            self.keep_profile(model);
            if self.life(model).state == ModelState::Loading && self.can_serve(model) {
                self.become_ready(now, model, reading);
            }
        }
        if self.errand.is_some() || self.poisoned {
            return;
        }
        let drained = |core: &Core, model: &ModelId| {
            core.models[model.get() as usize].state == ModelState::Draining && core.scheduler.is_drained(*model)
        };
        if let Some(model) = self.model_ids().find(|model| drained(self, model)) {
            self.rig.unload(model);
            self.errand = Some(Errand::Unload(model));
            return;
        }
        if !self.is_draining() {
            for model in self.scheduler.wanted_models() {
                if self.life(model).state == ModelState::NotLoaded {
                    self.enqueue_load(now, model);
                }
            }
            self.start_load(now, reading);
        }
    }

    /// Starts the load at the head of the queue, or the evictions that it needs.
    fn start_load(&mut self, now: Timestamp, reading: &Reading) {
        self.loads.retry_at = None;
        let Some(&model) = self.loads.queue.front() else { return };
        if self.life(model).state == ModelState::Draining {
            return;
        }
        let Some(blueprint) = self.life(model).blueprint.clone() else { return };
        let need = self.load_need(&blueprint);
        let (idle, young) = self.evictable(now, model);
        match self.ledger.plan_load(model, need, reading, &idle) {
            LoadPlan::Fits => {
                self.loads.queue.pop_front();
                self.life(model).load_began = now;
                self.scheduler.lane_loading(model);
                self.set_state(model, ModelState::Loading, None);
                self.ledger.loading(model, need);
                self.rig.load(model, blueprint);
                self.errand = Some(Errand::Load(model));
            }
            LoadPlan::Evict(victims) => {
                for victim in victims {
                    tracing::info!(
                        model = self.name(victim),
                        "{} is evicted to make room for {}",
                        self.name(victim),
                        self.name(model)
                    );
                    self.rig.model_metrics(victim).evicted();
                    self.begin_drain(victim);
                }
            }
            // It may fit once models have been here for long enough to be evicted, or have become idle.
            LoadPlan::Refuse(_) if young.is_some() => self.loads.retry_at = young,
            LoadPlan::Refuse(plan) => {
                self.loads.queue.pop_front();
                self.does_not_fit(now, model, &plan);
            }
        }
    }

    fn load_need(&self, blueprint: &Blueprint) -> LoadNeed {
        let axes = blueprint.axes();
        let least = axes.kind.of_rows([crate::memory::RowFacts { tokens: axes.extent.max }]);
        let stored = self.rig.stored_profile(blueprint);
        LoadNeed {
            resident: blueprint.resident(),
            transient: blueprint.transient(),
            least_workspace: stored.and_then(|profile| profile.predicted(least)).unwrap_or(Bytes::ZERO),
        }
    }

    /// Models that may be evicted for another: loaded, idle, unpinned, and here for the minimum time; the least
    /// recently used first. And when the next one will have been here for long enough, if any is not yet.
    pub(super) fn evictable(&mut self, now: Timestamp, other_than: ModelId) -> (Vec<ModelId>, Option<Timestamp>) {
        let mut idle = Vec::new();
        let mut next: Option<Timestamp> = None;
        for model in self.scheduler.idle_models() {
            let life = &self.models[model.get() as usize];
            if model == other_than || life.state != ModelState::Ready || self.shared.board.lock(model).pinned {
                continue;
            }
            let from = life.ready_at + self.minimum_residency;
            if from <= now {
                idle.push(model);
            } else {
                next = Some(next.map_or(from, |earlier| earlier.min(from)));
            }
        }
        (idle, next)
    }

    fn does_not_fit(&mut self, now: Timestamp, model: ModelId, plan: &FitPlan) {
        let rejection =
            Rejection::DoesNotFit { needed: plan.needed, available: plan.available, retry_after: RETRY_AFTER };
        let reason = format!(
            "it needs {} with the models that cannot be evicted, and {} can be had",
            plan.needed, plan.available
        );
        tracing::warn!(model = self.name(model), "{} is not loaded: {reason}", self.name(model));
        self.rig.model_metrics(model).load_failed();
        self.go_down(now, model, ModelState::NotLoaded, Some(reason), rejection);
    }

    /// The device has loaded a model, or has not.
    pub(super) fn load_done(&mut self, now: Timestamp, model: ModelId, result: Result<Loaded, Fault>) {
        match result {
            Ok(loaded) => {
                self.ledger.loaded(model, loaded.resident);
                self.hold(model, loaded.resident);
                self.rig.model_metrics(model).loaded(loaded.time);
                let blueprint = self.life(model).blueprint.clone().expect("only models with a blueprint are loaded");
                let stored = self.rig.stored_profile(&blueprint);
                self.life(model).profile_kept = stored.is_some();
                let profile = stored.unwrap_or_else(|| Profile::new(loaded.axes, self.rig.slack()));
                self.scheduler.lane_ready(now, model, profile);
            }
            Err(fault) => {
                tracing::error!(model = self.name(model), "{} could not be loaded: {fault}", self.name(model));
                self.ledger.load_failed(model);
                self.rig.model_metrics(model).load_failed();
                self.go_down(now, model, ModelState::Broken, Some(fault.to_string()), Rejection::Broken);
            }
        }
    }

    /// The device has thrown a model out.
    pub(super) fn unload_done(&mut self, now: Timestamp, gone: device::Released, reading: &Reading) {
        let model = gone.model;
        self.ledger.unloaded(model);
        self.hold(model, Bytes::ZERO);
        tracing::info!(
            model = self.name(model),
            released_bytes = gone.released.get(),
            free_bytes = reading.free.get(),
            "{} is unloaded: {} released",
            self.name(model),
            gone.released
        );
        let again = std::mem::take(&mut self.life(model).load_waiters);
        // Before anybody is told, so that whoever is told finds it so.
        self.go_down(now, model, ModelState::NotLoaded, None, Rejection::NotLoaded);
        let released = Released { released: gone.released, free: reading.free };
        for waiter in std::mem::take(&mut self.life(model).unload_waiters) {
            let _ = waiter.send(Ok(released));
        }
        if !again.is_empty() {
            self.life(model).load_waiters = again;
            self.enqueue_load(now, model);
        }
    }

    /// The ladder has thrown an idle model out.
    pub(super) fn evicted_by_ladder(&mut self, now: Timestamp, gone: device::Released) {
        self.rig.model_metrics(gone.model).evicted();
        let reading = self.rig.recent_reading(now);
        self.unload_done(now, gone, &reading);
    }

    /// A model stops being served; everybody who waits for it is told why.
    fn go_down(&mut self, now: Timestamp, model: ModelId, state: ModelState, reason: Option<String>, why: Rejection) {
        self.set_state(model, state, reason);
        for (id, rejection) in self.scheduler.lane_down(model, why) {
            self.reject(now, id, rejection);
        }
        self.life(model).tell_load_waiters(&Err(Failure::Rejected(why)));
    }

    /// Whether any row that the model takes could be run now: the smallest batch is measured at every length.
    fn can_serve(&self, model: ModelId) -> bool {
        let Some(profile) = self.scheduler.profile(model) else { return false };
        let axes = profile.axes();
        let longest = axes.kind.of_rows([crate::memory::RowFacts { tokens: axes.extent.max }]);
        self.ledger.is_resident(model) && profile.predicted(longest).is_some()
    }

    fn become_ready(&mut self, now: Timestamp, model: ModelId, reading: &Reading) {
        self.set_state(model, ModelState::Ready, None);
        let life = self.life(model);
        life.ready_at = now;
        life.tell_load_waiters(&Ok(()));
        let (took, resident) = (now.since(life.load_began), life.resident);
        let length_max = life.blueprint.as_ref().map_or(0, |blueprint| blueprint.card().length_max);
        let dtype = life.blueprint.as_ref().map_or("", |blueprint| blueprint.card().dtype.as_str());
        model_ready(&ModelReady {
            model: self.name(model),
            dtype,
            resident,
            profile: profile_word(self.scheduler.profile(model).map(Profile::state)),
            batch_rows_max: self.batch_rows_max(model, reading),
            length_max,
            took,
        });
    }

    /// Writes a profile down once it is complete, and again after it was measured anew.
    fn keep_profile(&mut self, model: ModelId) {
        let Some(profile) = self.scheduler.profile(model) else { return };
        let complete = profile.state() == ProfileState::Complete;
        let life = &mut self.models[model.get() as usize];
        if complete
            && !life.profile_kept
            && let Some(blueprint) = &life.blueprint
        {
            self.rig.keep_profile(blueprint, profile);
        }
        life.profile_kept = complete;
    }

    /// Books what a model holds.
    pub(super) fn hold(&mut self, model: ModelId, resident: Bytes) {
        self.life(model).resident = resident;
        self.shared.board.lock(model).resident = resident;
    }
}

/// The word for a profile's state in metrics and logs.
pub(super) fn profile_word(state: Option<ProfileState>) -> &'static str {
    match state {
        None => "none",
        Some(ProfileState::Empty | ProfileState::Measuring) => "measuring",
        Some(ProfileState::Complete) => "complete",
        Some(ProfileState::Stale) => "stale",
    }
}
