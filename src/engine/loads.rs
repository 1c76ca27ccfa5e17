//! One load at a time: two at once would each see the room that the other is about to take.
//!
//! The load at the head of the queue is planned whenever the device is idle. Where others have to go for it, they go one
//! by one, and it is planned anew after each: whoever has found work in the meantime stays. One that would fit without
//! models that are busy now, or have not been here for long, waits for them until its time is up; the loads behind it
//! wait as well. So does one that the device had no memory for although it was planned: a neighbour was faster, or it
//! needs more than was announced. It is planned again a little later, a few times.

use std::collections::VecDeque;

use super::core::Core;
use super::errand::Errand;
use super::lifecycle::Role;
use super::lives::RETRY_AFTER;
use super::status::ModelState;
use crate::admission::Rejection;
use crate::device::Shortfall;
use crate::memory::{LoadNeed, LoadPlan, Reading, RowFacts};
use crate::model::Blueprint;
use crate::units::{Bytes, Micros, ModelId, Timestamp};

/// How often a load is begun that runs out of memory. Each time its weights are read again.
const TRIES_MAX: u32 = 3;

/// How long loads may take and how long what they brought stays.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadRules {
    /// How long a load is waited for.
    pub(super) timeout: Micros,
    /// How long a model stays at least before another may evict it.
    pub(super) minimum_residency: Micros,
}

/// Loads that are asked for and not begun, in the order in which they were asked for. Bounded: each model is in it once.
#[derive(Debug, Default)]
pub(super) struct Loads {
    queue: VecDeque<Wanted>,
    /// The one that the device works on.
    running: Option<Wanted>,
    /// When the first of the queue is to be planned again although nothing happens.
    retry_at: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug)]
struct Wanted {
    model: ModelId,
    need: LoadNeed,
    /// How often it was begun and ran out of memory.
    failed: u32,
    /// It is not begun again before this.
    not_before: Timestamp,
}

impl Loads {
    pub(super) fn contains(&self, model: ModelId) -> bool {
        self.queue.iter().any(|wanted| wanted.model == model)
    }

    /// Takes a load out. Whether there was one.
    pub(super) fn remove(&mut self, model: ModelId) -> bool {
        let before = self.queue.len();
        self.queue.retain(|wanted| wanted.model != model);
        self.queue.len() < before
    }

    pub(super) fn clear(&mut self) {
        *self = Loads::default();
    }

    fn models(&self) -> Vec<ModelId> {
        self.queue.iter().map(|wanted| wanted.model).collect()
    }
}

impl Core {
    /// Queues a load and says so: requests may wait for it from now on.
    pub(super) fn enqueue_load(&mut self, now: Timestamp, model: ModelId) {
        let load_by = now + self.load_rules.timeout;
        let life = self.life(model);
        (life.load_began, life.load_by) = (now, load_by);
        self.scheduler.lane_loading(model);
        self.set_state(model, ModelState::Loading, None);
        self.queue_load(model);
    }

    /// Queues a load, if it is not queued yet.
    pub(super) fn queue_load(&mut self, model: ModelId) {
        if self.loads.contains(model) {
            return;
        }
        let blueprint = self.life(model).blueprint.clone().expect("models without a blueprint are never loaded");
        // Looked up once: a load may wait, and the stored profile is a file.
        let need = self.load_need(model, &blueprint);
        self.loads.queue.push_back(Wanted { model, need, failed: 0, not_before: Timestamp::START });
    }

    fn load_need(&self, model: ModelId, blueprint: &Blueprint) -> LoadNeed {
        let axes = blueprint.axes();
        let least = axes.kind.of_rows([RowFacts { tokens: axes.extent.max }]);
        let measured = self.scheduler.least_workspace(model);
        let stored = || self.rig.stored_profile(blueprint).and_then(|profile| profile.predicted(least));
        LoadNeed {
            resident: self.rig.taken_by(blueprint.resident()),
            transient: blueprint.transient(),
            least_workspace: measured.or_else(stored).unwrap_or(Bytes::ZERO),
        }
    }

    /// Whether a load waits for the device.
    pub(super) fn loads_wait(&self) -> bool {
        !self.loads.queue.is_empty()
    }

    /// Starts the load at the head of the queue, or the eviction that it needs first. The device is idle.
    pub(super) fn start_load(&mut self, now: Timestamp, reading: &Reading) {
        self.loads.retry_at = None;
        while let Some(&wanted) = self.loads.queue.front() {
            let Wanted { model, need, not_before, .. } = wanted;
            // It is loaded again once it is gone.
            if self.life(model).state == ModelState::Draining {
                return;
            }
            if now < not_before {
                self.loads.retry_at = Some(not_before);
                return;
            }
            // Nobody has to go for one that is to be loaded beside another.
            let beside = matches!(self.life(model).role, Role::Successor { .. });
            let (idle, grown_up) = if beside { (Vec::new(), None) } else { self.evictable(now, model) };
            match self.ledger.plan_load(model, need, reading, &idle) {
                LoadPlan::Fits => {
                    self.loads.queue.pop_front();
                    return self.begin_load(now, wanted);
                }
                // Nobody is evicted for what a revision that leaves will give back.
                _ if !beside && self.waits_for_its_place(model) && now < self.life(model).load_by => {
                    self.loads.retry_at = Some(self.life(model).load_by);
                    return;
                }
                LoadPlan::Evict(victims) => return self.evict(now, victims[0], model),
                // In the other's place, or not at all.
                LoadPlan::Refuse(_) if beside && self.fits_in_its_place(now, model, need, reading) => {
                    self.take_place(now, model);
                }
                LoadPlan::Refuse(_) if self.may_fit_later(now, model, need, reading) => {
                    let load_by = self.life(model).load_by;
                    self.loads.retry_at = Some(grown_up.map_or(load_by, |at| at.min(load_by)));
                    return;
                }
                LoadPlan::Refuse(plan) => {
                    self.loads.queue.pop_front();
                    self.does_not_fit(now, model, plan.needed, plan.available);
                }
            }
        }
    }

    fn begin_load(&mut self, now: Timestamp, wanted: Wanted) {
        let Wanted { model, need, .. } = wanted;
        self.life(model).load_began = now;
        // It may have been queued while it was leaving, and be down by now.
        self.scheduler.lane_loading(model);
        self.set_state(model, ModelState::Loading, None);
        self.ledger.loading(model, need);
        let blueprint = self.life(model).blueprint.clone().expect("models without a blueprint are never loaded");
        self.rig.load(model, blueprint, need.claim());
        self.errand = Some(Errand::Load(model));
        self.loads.running = Some(wanted);
    }

    /// A load that was begun ran out of memory; nothing of it is left. It is planned again, or given up when it has failed
    /// often enough, its time is up, or nobody wants it any more.
    pub(super) fn load_ran_short(&mut self, now: Timestamp, model: ModelId, shortfall: Shortfall) {
        self.ledger.load_failed(model);
        let Shortfall { needed, available } = shortfall;
        // Without one the server is going down.
        let Some(mut wanted) = self.loads.running.take().filter(|wanted| wanted.model == model) else {
            return self.does_not_fit(now, model, needed, available);
        };
        wanted.failed += 1;
        wanted.not_before = now + RETRY_AFTER;
        let life = self.life(model);
        let in_time = wanted.not_before < life.load_by && life.unload_waiters.is_empty();
        let nobody_waits = self.is_draining() && self.scheduler.is_drained(model);
        if wanted.failed >= TRIES_MAX || !in_time || nobody_waits {
            self.does_not_fit(now, model, needed, available);
            return;
        }
        if needed > wanted.need.claim() {
            // It came so far and was not at its end.
            wanted.need.resident = needed;
        }
        let needs = needed.beyond(available);
        let reason = format!("it ran out of memory while loading: it needs {needs}, and {available} can be had now");
        tracing::warn!(model = self.name(model), "{} is loaded again later: {reason}", self.name(model));
        self.set_state(model, ModelState::Loading, Some(reason));
        self.loads.queue.push_front(wanted);
    }

    /// Whether a load that does not fit now would fit without the models that are busy, or too young to go, and there
    /// is time to wait for them.
    fn may_fit_later(&self, now: Timestamp, model: ModelId, need: LoadNeed, reading: &Reading) -> bool {
        let others: Vec<ModelId> = self.model_ids().filter(|&other| other != model).collect();
        let in_time = now < self.models[model.get() as usize].load_by;
        in_time && !matches!(self.ledger.plan_load(model, need, reading, &others), LoadPlan::Refuse(_))
    }

    /// Models that may be evicted for another: loaded, idle, unpinned, and here for the minimum time; the least
    /// recently used first. And when the next one will have been here for long enough, if any is not yet.
    pub(super) fn evictable(&self, now: Timestamp, other_than: ModelId) -> (Vec<ModelId>, Option<Timestamp>) {
        let mut idle = Vec::new();
        let mut next: Option<Timestamp> = None;
        for model in self.scheduler.idle_models() {
            let life = &self.models[model.get() as usize];
            // One that is replaced leaves by itself, and does not come back.
            if matches!(life.role, Role::Replaced { .. }) {
                continue;
            }
            if model == other_than
                || life.state != ModelState::Ready
                || self.shared.board.with(model, |status| status.pinned)
            {
                continue;
            }
            let from = life.ready_at + self.load_rules.minimum_residency;
            if from <= now {
                idle.push(model);
            } else {
                next = Some(next.map_or(from, |earlier| earlier.min(from)));
            }
        }
        (idle, next)
    }

    /// Throws an idle model out to make room. Requests for it wait from now on, and bring it back.
    fn evict(&mut self, now: Timestamp, victim: ModelId, to_load: ModelId) {
        tracing::info!(
            model = self.name(victim),
            "{} is evicted to make room for {}",
            self.name(victim),
            self.name(to_load)
        );
        self.leave(now, victim);
        self.set_state(victim, ModelState::Draining, None);
        self.rig.unload(victim);
        self.errand = Some(Errand::Unload(victim));
    }

    /// Takes a model out of service that has to make room.
    pub(super) fn leave(&mut self, now: Timestamp, victim: ModelId) {
        self.rig.model_metrics(victim).evicted();
        self.life(victim).evicted = true;
        for (id, rejection) in self.scheduler.lane_evicted(now, victim) {
            self.reject(now, id, rejection);
        }
    }

    fn does_not_fit(&mut self, now: Timestamp, model: ModelId, needed: Bytes, available: Bytes) {
        let rejection = Rejection::DoesNotFit { needed, available, retry_after: RETRY_AFTER };
        let needs = needed.beyond(available);
        let reason = format!("it needs {needs} with the models that cannot be evicted, and {available} can be had");
        tracing::warn!(model = self.name(model), "{} is not loaded: {reason}", self.name(model));
        self.rig.model_metrics(model).load_failed();
        self.go_down(now, model, ModelState::NotLoaded, Some(reason), rejection);
    }

    /// Tells callers whose time is up that their model is not ready. The load goes on.
    pub(super) fn tell_late_load_waiters(&mut self, now: Timestamp) {
        for life in self.models.iter_mut().filter(|life| life.load_by <= now && !life.load_waiters.is_empty()) {
            let late = Rejection::Loading { retry_after: RETRY_AFTER };
            life.tell_load_waiters(&Err(late.into()));
        }
    }

    /// The server goes down: models that no accepted request waits for are not loaded any more.
    pub(super) fn drop_idle_loads(&mut self, now: Timestamp) {
        for model in self.loads.models() {
            self.life(model).tell_load_waiters(&Err(Rejection::Draining.into()));
            if self.scheduler.is_drained(model) {
                self.loads.remove(model);
                if self.life(model).state == ModelState::Loading && !self.ledger.is_resident(model) {
                    self.go_down(now, model, ModelState::NotLoaded, None, Rejection::Draining);
                }
            }
        }
    }

    /// When something about loads is due although nothing happens.
    pub(super) fn loads_wake_at(&self) -> Option<Timestamp> {
        let waited_for = self.models.iter().filter(|life| !life.load_waiters.is_empty());
        let retry_at = self.loads.retry_at.filter(|_| self.is_idle());
        waited_for.map(|life| life.load_by).chain(retry_at).min()
    }
}
