//! Worlds and models that several tests start from.

use plimsoll::admission::{QueueLimits, RequestLimits};
use plimsoll::memory::{Budget, ShapeKind};
use plimsoll::scheduler::{LaneSettings, Priority, Settings, WhileNotReady};
use plimsoll::units::{Bytes, Micros, ModelId};

use crate::truth::Truth;
use crate::world::{Model, Submission, World};

pub(crate) fn lane(truth: &Truth) -> LaneSettings {
    LaneSettings {
        kind: truth.kind,
        share: 1.0,
        target_latency: None,
        max_linger: Micros::ZERO,
        request: RequestLimits { rows_max: 1_024, length_max: truth.length_max },
        queue: QueueLimits::default(),
        while_not_ready: WhileNotReady::Refuse,
        load_timeout: Micros::secs(5),
    }
}

/// A model that behaves, with a complete profile.
pub(crate) fn model(truth: Truth) -> Model {
    Model {
        truth,
        resident: Bytes::mib(90),
        error: 1.0,
        faults: 0.0,
        broken: 0.0,
        load_time: Micros::millis(300),
        profile: truth.profile(),
    }
}

/// A world with one small model, loaded.
pub(crate) fn one_model(capacity: Bytes, settings: Settings) -> (World, ModelId) {
    let mut world = World::new(0, settings, capacity);
    let id = world.add(0, model(Truth::SMALL), lane(&Truth::SMALL), Budget::SHARED);
    world.load_now(id);
    (world, id)
}

pub(crate) fn ragged() -> Truth {
    Truth { kind: ShapeKind::Ragged, ..Truth::SMALL }
}

/// A request of rows of these lengths, without a deadline.
pub(crate) fn request(model: ModelId, lengths: &[u32]) -> Submission {
    Submission {
        model,
        lengths: lengths.to_vec(),
        within: None,
        priority: Priority::Normal,
        host_bytes: Bytes::new(lengths.iter().map(|&tokens| 8 * u64::from(tokens)).sum()),
    }
}
