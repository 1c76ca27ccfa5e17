//! What the engine does about models that come and go.

use plimsoll::admission::Rejection;
use plimsoll::memory::LoadPlan;
use plimsoll::scheduler::{LaneState, LaneView};
use plimsoll::units::{Bytes, Micros, ModelId};

use crate::world::{Answer, Event, World};

impl World {
    pub(crate) fn load(&mut self, model: ModelId) {
        if self.loading.is_some() || !matches!(self.state(model), LaneState::Down(_)) {
            return;
        }
        let (need, idle) = (self.need(model), self.scheduler.idle_models());
        match self.ledger.plan_load(model, need, &self.reading(), &idle) {
            LoadPlan::Fits => {}
            LoadPlan::Evict(models) => {
                for other in models {
                    self.coverage.hit("rung: evict for a load");
                    self.gone(other, Rejection::NotLoaded);
                }
            }
            LoadPlan::Refuse(plan) => {
                let (needed, available) = (plan.needed, plan.available);
                self.lane_down(model, Rejection::DoesNotFit { needed, available, retry_after: Micros::secs(1) });
                return;
            }
        }
        self.workspace = Bytes::ZERO;
        self.ledger.loading(model, need);
        self.scheduler.lane_loading(model);
        self.coverage.hit("lane: down to loading");
        self.loading = Some(model);
        self.device_free = self.device_free.max(self.now) + self.models[&model].load_time;
        self.at(self.device_free, Event::LoadDone(model));
    }

    pub(crate) fn load_done(&mut self, model: ModelId) {
        self.loading = None;
        let fails = self.models[&model].broken;
        if self.rng.chance(fails) {
            self.ledger.load_failed(model);
            self.coverage.hit("lane: loading to down");
            self.lane_down(model, Rejection::Broken);
            return;
        }
        let (resident, profile) = (self.models[&model].resident, self.models[&model].profile.clone());
        self.ledger.loaded(model, resident);
        self.held.insert(model, resident);
        self.coverage.hit("lane: loading to ready");
        self.scheduler.lane_ready(self.now, model, profile);
    }

    pub(crate) fn finish_draining(&mut self) {
        let draining = |lane: &LaneView| lane.state == LaneState::Draining;
        let drained: Vec<ModelId> = self.scheduler.lanes().filter(draining).map(|lane| lane.model).collect();
        for model in drained.into_iter().filter(|&model| self.scheduler.is_drained(model)).collect::<Vec<_>>() {
            self.coverage.hit("lane: draining to down");
            self.gone(model, Rejection::NotLoaded);
        }
    }

    /// A model's weights are dropped.
    pub(crate) fn gone(&mut self, model: ModelId, why: Rejection) {
        if let Some(profile) = self.scheduler.profile(model) {
            let profile = profile.clone();
            self.models.get_mut(&model).expect("registered").profile = profile;
        }
        self.ledger.unloaded(model);
        self.held.remove(&model);
        if self.state(model) == LaneState::Ready {
            self.coverage.hit("lane: ready to down");
        }
        self.lane_down(model, why);
    }

    pub(crate) fn lane_down(&mut self, model: ModelId, why: Rejection) {
        for (id, rejection) in self.scheduler.lane_down(model, why) {
            self.answered(id, Answer::Rejected(rejection));
        }
    }
}
