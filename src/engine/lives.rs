//! How models come and go: loaded when asked for, served, drained, evicted.

use super::answer::Failure;
use super::control::Released;
use super::core::Core;
use super::errand::Errand;
use super::inbox::Reply;
use super::status::ModelState;
use crate::admission::Rejection;
use crate::config::LoadPolicy;
use crate::device::{self, LoadFailure, Loaded};
use crate::memory::{Profile, ProfileState, Reading, RowFacts, Shape};
use crate::model::Fault;
use crate::telemetry::logs::{ModelReady, model_ready};
use crate::units::{Bytes, Micros, ModelId, Timestamp};

/// When to try again what did not fit, or is not there yet: about what the requests before it take.
pub(super) const RETRY_AFTER: Micros = Micros::secs(2);

impl Core {
    /// Publishes the first states and asks for the models that load at the start.
    pub(super) fn begin(&mut self, now: Timestamp) {
        for model in self.model_ids() {
            let (state, registered) = (self.life(model).state, self.shared.registry.get(model));
            self.rig.model_metrics(model).state(state.as_str());
            match &registered.definition {
                Ok(definition) if definition.config.load == LoadPolicy::Startup => self.enqueue_load(now, model),
                Ok(_) => {}
                Err(reason) if registered.required => {
                    tracing::error!(model = registered.name, "{} is broken: {reason}", registered.name);
                }
                // The server is ready without it.
                Err(reason) => {
                    tracing::warn!(model = registered.name, "{} cannot be served: {reason}", registered.name)
                }
            }
        }
        self.publish_health();
    }

    /// Loads a model for a caller.
    pub(super) fn load(&mut self, now: Timestamp, model: ModelId, reply: Reply<Result<(), Failure>>) {
        if self.is_draining() || self.poisoned {
            return drop(reply.send(Err(Rejection::Draining.into())));
        }
        let load_by = now + self.load_rules.timeout;
        let life = self.life(model);
        if life.blueprint.is_none() {
            return drop(reply.send(Err(Rejection::Broken.into())));
        }
        life.unloaded_by_hand = false;
        if life.state == ModelState::Ready {
            return drop(reply.send(Ok(())));
        }
        if life.load_waiters.is_empty() {
            life.load_by = load_by;
        }
        life.load_waiters.push(reply);
        match life.state {
            // One that failed to load may have been mended.
            ModelState::Broken | ModelState::NotLoaded => self.enqueue_load(now, model),
            // It is loaded again once it is gone.
            ModelState::Draining => self.queue_load(model),
            ModelState::Loading | ModelState::Ready => {}
        }
    }

    /// Unloads a model for a caller: no more is admitted, what is accepted is finished. The last word counts: callers
    /// that wait for it to be loaded are told that it is not.
    pub(super) fn unload(&mut self, now: Timestamp, model: ModelId, reply: Reply<Result<Released, Failure>>) {
        if self.poisoned {
            return drop(reply.send(Err(Rejection::Draining.into())));
        }
        let state = self.life(model).state;
        if matches!(state, ModelState::NotLoaded | ModelState::Broken) {
            return drop(reply.send(Err(Rejection::NotLoaded.into())));
        }
        let life = self.life(model);
        life.unloaded_by_hand = true;
        life.unload_waiters.push(reply);
        life.tell_load_waiters(&Err(Rejection::NotLoaded.into()));
        let was_queued = self.loads.remove(model);
        match state {
            ModelState::Ready => self.begin_drain(model),
            // It is there, and its profile is being measured.
            ModelState::Loading if self.ledger.is_resident(model) => self.begin_drain(model),
            // Nothing of it is there yet.
            ModelState::Loading if was_queued => {
                self.go_down(now, model, ModelState::NotLoaded, None, Rejection::NotLoaded);
                let free = self.rig.recent_reading(now).free;
                self.tell_unload_waiters(model, Released { released: Bytes::ZERO, free });
            }
            // It is on its way, and leaves when it has come; or it is leaving.
            ModelState::Loading | ModelState::Draining => {}
            ModelState::NotLoaded | ModelState::Broken => unreachable!("answered above"),
        }
    }

    fn tell_unload_waiters(&mut self, model: ModelId, released: Released) {
        for waiter in self.life(model).unload_waiters.drain(..) {
            let _ = waiter.send(Ok(released));
        }
    }

    pub(super) fn begin_drain(&mut self, model: ModelId) {
        self.scheduler.lane_draining(model);
        self.set_state(model, ModelState::Draining, None);
    }

    /// Moves every model on that can be moved: announces those that can serve, throws out those that are drained,
    /// starts the next load.
    pub(super) fn advance_lives(&mut self, now: Timestamp, reading: &Reading) {
        self.tell_late_load_waiters(now);
        self.see_off(now);
        for model in self.model_ids() {
            self.keep_profile(model, reading);
            if self.life(model).state == ModelState::Loading && self.can_serve(model) {
                self.become_ready(now, model, reading);
            }
        }
        if !self.is_idle() {
            return;
        }
        if let Some(model) = self.drained() {
            self.rig.unload(model);
            self.errand = Some(Errand::Unload(model));
            return;
        }
        for model in self.scheduler.wanted_models() {
            if self.life(model).state == ModelState::NotLoaded {
                self.enqueue_load(now, model);
            }
        }
        self.start_load(now, reading);
    }

    /// A model that is to go and has nothing left to do.
    fn drained(&self) -> Option<ModelId> {
        let is_drained = |model: &ModelId| {
            self.models[model.get() as usize].state == ModelState::Draining && self.scheduler.is_drained(*model)
        };
        self.model_ids().find(is_drained)
    }

    /// Whether a model waits for the device to be thrown out, or one that is not there is waited for.
    pub(super) fn models_wait(&self) -> bool {
        self.drained().is_some() || !self.scheduler.wanted_models().is_empty()
    }

    /// The device has loaded a model, or has not.
    pub(super) fn load_done(&mut self, now: Timestamp, model: ModelId, result: Result<Loaded, LoadFailure>) {
        match result {
            Ok(loaded) => {
                self.ledger.loaded(model, loaded.resident);
                self.hold(model, loaded.resident);
                self.rig.model_metrics(model).loaded(loaded.time);
                let blueprint = self.life(model).blueprint.clone().expect("only models with a blueprint are loaded");
                let stored = self.rig.stored_profile(&blueprint);
                let slack = self.rig.slack(&loaded.axes);
                let profile = stored.unwrap_or_else(|| Profile::new(loaded.axes, slack));
                self.scheduler.lane_ready(now, model, profile);
                self.note_least_workspace(model);
                if !self.life(model).unload_waiters.is_empty() {
                    self.begin_drain(model);
                }
            }
            Err(LoadFailure::OutOfMemory(shortfall)) => {
                self.load_ran_short(now, model, shortfall);
                if self.life(model).state == ModelState::NotLoaded {
                    let free = self.rig.recent_reading(now).free;
                    self.tell_unload_waiters(model, Released { released: Bytes::ZERO, free });
                }
            }
            Err(LoadFailure::Fault(fault)) => {
                tracing::error!(model = self.name(model), "{} could not be loaded: {fault}", self.name(model));
                self.ledger.load_failed(model);
                self.rig.model_metrics(model).load_failed();
                self.go_down(now, model, ModelState::Broken, Some(fault.to_string()), Rejection::Broken);
                let free = self.rig.recent_reading(now).free;
                self.tell_unload_waiters(model, Released { released: Bytes::ZERO, free });
                if matches!(fault, Fault::DeviceLost { .. }) {
                    self.lose_device(&fault);
                    self.abandon(now);
                }
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
        if let Some(reason) = self.life(model).broken.take() {
            self.go_down(now, model, ModelState::Broken, Some(reason), Rejection::Broken);
        } else if self.life(model).evicted && !self.life(model).unloaded_by_hand {
            self.set_state(model, ModelState::NotLoaded, None);
        } else {
            self.go_down(now, model, ModelState::NotLoaded, None, Rejection::NotLoaded);
        }
        self.tell_unload_waiters(model, Released { released: gone.released, free: reading.free });
        if !again.is_empty() {
            let load_by = self.life(model).load_by;
            self.life(model).load_waiters = again;
            self.enqueue_load(now, model);
            // They have waited since they came.
            self.life(model).load_by = load_by;
        }
    }

    /// A step that only measures has failed in the model's own code. Where the model can never serve for that, it leaves, and
    /// is as one that could not be loaded.
    pub(super) fn probe_failed(&mut self, now: Timestamp, model: ModelId, shape: Shape, fault: &Fault) {
        let (_, longest) = shape.position();
        let tokens = shape.tokens();
        tracing::warn!(
            model = self.name(model),
            "a step of {} with {tokens} tokens, {longest} the longest row, failed while it was measured: {fault}",
            self.name(model)
        );
        if self.life(model).state != ModelState::Loading || !self.scheduler.is_hopeless(model) {
            return;
        }
        let reason = format!("a row of {longest} tokens fails: {fault}");
        tracing::error!(model = self.name(model), "{} cannot serve: {reason}", self.name(model));
        self.rig.model_metrics(model).load_failed();
        for (id, rejection) in self.scheduler.lane_down(model, Rejection::Broken) {
            self.reject(now, id, rejection);
        }
        self.life(model).broken = Some(reason.clone());
        self.life(model).tell_load_waiters(&Err(Rejection::Broken.into()));
        self.set_state(model, ModelState::Draining, Some(reason.clone()));
        self.arrived(now, model, Err(reason));
    }

    /// The ladder has thrown a model out that was idle when the step began.
    pub(super) fn evicted_by_ladder(&mut self, now: Timestamp, gone: device::Released) {
        self.leave(now, gone.model);
        let reading = self.rig.reading(now);
        self.unload_done(now, gone, &reading);
    }

    /// A model stops being served; everybody who waits for it is told why.
    pub(super) fn go_down(
        &mut self,
        now: Timestamp,
        model: ModelId,
        state: ModelState,
        reason: Option<String>,
        why: Rejection,
    ) {
        let life = self.life(model);
        life.evicted &= state == ModelState::NotLoaded && !life.unloaded_by_hand;
        self.set_state(model, state, reason);
        for (id, rejection) in self.scheduler.lane_down(model, why) {
            self.reject(now, id, rejection);
        }
        self.life(model).tell_load_waiters(&Err(Failure::Rejected(why)));
        let reason = self.shared.board.with(model, |status| status.reason.clone());
        self.arrived(now, model, Err(reason.unwrap_or_else(|| "it was unloaded".to_owned())));
    }

    /// Whether any row that the model takes could be run now: the smallest batch is measured at every length.
    fn can_serve(&self, model: ModelId) -> bool {
        let Some(profile) = self.scheduler.profile(model) else { return false };
        let axes = profile.axes();
        let longest = axes.kind.of_rows([RowFacts { tokens: axes.extent.max }]);
        self.ledger.is_resident(model) && profile.predicted(longest).is_some()
    }

    fn become_ready(&mut self, now: Timestamp, model: ModelId, reading: &Reading) {
        self.life(model).evicted = false;
        // In this order health never says that a model which is served by one revision or the other is not.
        self.set_state(model, ModelState::Ready, None);
        self.take_over(now, model);
        let life = self.life(model);
        life.ready_at = now;
        life.tell_load_waiters(&Ok(()));
        let (took, resident) = (now.since(life.load_began), life.resident);
        let length_max = life.blueprint.as_ref().map_or(0, |blueprint| blueprint.card().length_max);
        let dtype = life.blueprint.as_ref().map_or("", |blueprint| blueprint.card().dtype.as_str());
        self.arrived(now, model, Ok(()));
        if self.life(model).unloaded_by_hand {
            self.begin_drain(model);
        }
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

    /// Writes a profile down once it is measured as far as there is room, and again after more of it was.
    fn keep_profile(&mut self, model: ModelId, reading: &Reading) {
        let life = &self.models[model.get() as usize];
        if !life.profile_news || !self.scheduler.is_surveyed(model, self.ledger.headroom(model, reading).bytes) {
            return;
        }
        if let (Some(blueprint), Some(profile)) = (&life.blueprint, self.scheduler.profile(model)) {
            self.rig.keep_profile(blueprint, profile);
        }
        self.life(model).profile_news = false;
    }

    /// Books what the smallest step of a model needs, as far as it is known.
    pub(super) fn note_least_workspace(&mut self, model: ModelId) {
        if let Some(least) = self.scheduler.least_workspace(model) {
            self.ledger.set_least_workspace(model, least);
        }
    }

    /// Books what a model holds.
    pub(super) fn hold(&mut self, model: ModelId, resident: Bytes) {
        self.life(model).resident = resident;
        self.shared.board.with(model, |status| status.resident = resident);
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
