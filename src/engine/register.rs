//! How a revision of a model comes to be known: the registry, the books, a lane, a status, metrics.

use std::sync::Arc;

use super::core::Core;
use super::lifecycle::{Lifecycle, Role};
use super::registry::{Definition, Registered};
use super::start::Offer;
use super::status::{ModelStatus, Statistics};
use crate::admission::{QueueLimits, RequestLimits};
use crate::config::{LoadPolicy, ModelConfig};
use crate::memory::{Budget, BudgetRefusal};
use crate::model::{Blueprint, ModelCard};
use crate::scheduler::{LaneSettings, WhileNotReady};
use crate::units::{Bytes, Micros, ModelId};

/// What holds for the lanes of all models.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaneRules {
    /// How much may wait for one model.
    pub(super) queue: QueueLimits,
    /// Rows of one request.
    pub(super) request_rows_max: u32,
    /// How long requests wait for a model that is being loaded.
    pub(super) load_timeout: Micros,
}

impl LaneRules {
    /// The settings of a model's lane.
    pub(super) fn of(&self, config: &ModelConfig, blueprint: &Blueprint) -> LaneSettings {
        LaneSettings {
            kind: blueprint.axes().kind,
            share: config.share,
            target_latency: config.target_latency,
            max_linger: config.max_linger,
            request: RequestLimits { rows_max: self.request_rows_max, length_max: blueprint.card().length_max },
            queue: self.queue,
            while_not_ready: match config.load {
                LoadPolicy::Startup | LoadPolicy::OnDemand => WhileNotReady::Wait,
                LoadPolicy::Manual => WhileNotReady::Refuse,
            },
            load_timeout: self.load_timeout,
        }
    }
}

/// A model's budget by its configuration, where all models together have `available`.
pub(super) fn budget(config: &ModelConfig, available: Bytes) -> Budget {
    let limit = config.limit.map_or(Bytes::MAX, |limit| limit.of(available));
    Budget { guaranteed: config.guaranteed.of(available), limit }
}

/// When a model's guarantee is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Guarantee {
    /// From the start, or the model is not registered.
    Now,
    /// When it is granted.
    Later,
}

impl Core {
    /// The offer for the device that there is; what it cannot run is broken.
    pub(super) fn for_device(&self, offer: Offer) -> Offer {
        let form = self.rig.form();
        let model = offer.model.and_then(|(config, blueprint)| {
            let blueprint = blueprint.for_device(form);
            blueprint.check_form().map_err(|error| error.to_string())?;
            Ok((config, blueprint))
        });
        Offer { model, ..offer }
    }

    /// Bytes that loading a model takes when nothing else is loaded, and those that it may have then, where the server is
    /// not ready without it and it would never fit.
    pub(super) fn never_fits(&self, offer: &Offer) -> Option<(Bytes, Bytes)> {
        let (config, blueprint) = offer.model.as_ref().ok()?;
        let available = self.ledger.books().available();
        let available = available.min(budget(config, available).limit);
        let needed = self.rig.taken_by(blueprint.resident()) + blueprint.transient();
        let awaited = offer.required && config.load == LoadPolicy::Startup;
        (awaited && needed > available).then_some((needed, available))
    }

    /// Registers a revision that is made for the device.
    ///
    /// # Errors
    /// When the books cannot hold its budget; nothing has changed then.
    pub(super) fn register(
        &mut self,
        offer: Offer,
        role: Role,
        guarantee: Guarantee,
    ) -> Result<ModelId, BudgetRefusal> {
        let Offer { name, required, absent, model } = offer;
        let next = ModelId::new(self.models.len() as u32);
        let before = match role {
            Role::Successor { of } => Some(of),
            Role::Current | Role::Replaced { .. } | Role::Retired => None,
        };
        let mut share = 0.0;
        let mut pinned = false;
        let mut in_force = Budget::SHARED;
        if let Ok((config, blueprint)) = &model {
            let budget = budget(config, self.ledger.books().available());
            (in_force, pinned) = match guarantee {
                Guarantee::Now => (budget, config.pinned),
                Guarantee::Later => (Budget { guaranteed: Bytes::ZERO, ..budget }, false),
            };
            self.ledger.register(next, in_force, pinned)?;
            self.scheduler.add_lane(next, self.lane_rules.of(config, blueprint));
            share = config.share;
        }
        let (definition, blueprint) = match model {
            Ok((config, blueprint)) => {
                let card: Arc<ModelCard> = blueprint.card().clone();
                (Ok(Arc::new(Definition { config, card })), Some(blueprint))
            }
            Err(reason) => (Err(reason), None),
        };
        let reason = definition.as_ref().err().cloned();
        let registered = self.shared.registry.add(|id| Registered { id, name: name.clone(), required, definition });
        debug_assert_eq!(registered.id, next, "the registry and the engine number alike");
        let life = Lifecycle::new(name.clone(), role, blueprint, absent);
        self.shared.board.add(ModelStatus {
            id: next,
            name: name.clone(),
            state: life.state,
            reason,
            pinned,
            budget: in_force,
            revision: before.map_or(1, |before| self.shared.board.copy(before).revision + 1),
            resident: Bytes::ZERO,
            profile: None,
            drift: 1.0,
            batch_rows_max: 0,
            waiting_rows: 0,
            waiting_tokens: 0,
            share,
            device_time: Micros::ZERO,
            statistics: Statistics::default(),
        });
        self.models.push(life);
        self.rig.add_model(&name, before);
        if role == Role::Current {
            self.shared.registry.point_to(next);
        }
        Ok(next)
    }
}
