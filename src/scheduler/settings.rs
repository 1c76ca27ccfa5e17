//! What the scheduler is told once.

use crate::admission::{QueueLimits, RequestLimits};
use crate::memory::ShapeKind;
use crate::units::Micros;

/// How the size of a batch is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Batching {
    /// By the profile, the headroom and the deadlines.
    #[default]
    Profile,
    /// So many rows, or as many as wait, whatever memory and time that takes: the control arm of comparisons. Its
    /// leases are cut to what there is, and its true peaks go beyond them.
    Fixed(u32),
}

/// Settings of one device's scheduler.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// How batches are sized.
    pub batching: Batching,
    /// K: in how many steps of its lane a request may be overtaken by younger ones of its class; at least 1. Raising
    /// it leaves more freedom to batch rows of like length; lowering it makes waiting times more alike.
    pub overtaking_max: u32,
    /// Most padded tokens for each real token in a padded batch; at least 1. Raising it makes batches larger and
    /// wastes device time on padding.
    pub padding_max: f64,
    /// Share of device time, as a part of the lane's own, that measuring its profile gets while requests wait.
    pub survey_share: f64,
    /// How long a request may wait for memory that its smallest step needs before it is refused.
    pub memory_wait_max: Micros,
    /// How long rows that the device had no memory for, although the books had said so, are tried again before their
    /// request is refused; zero: not at all.
    pub denied_wait_max: Micros,
    /// After how long a device that is idle because nothing fits is tried again, if nothing else happens before.
    pub memory_retry: Micros,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            batching: Batching::Profile,
            overtaking_max: 64,
            padding_max: 1.2,
            survey_share: 0.05,
            memory_wait_max: Micros::secs(10),
            denied_wait_max: Micros::secs(10),
            memory_retry: Micros::millis(20),
        }
    }
}

/// Settings of one model's lane.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LaneSettings {
    /// The form of its steps.
    pub kind: ShapeKind,
    /// Weight in the division of device time; above 0.
    pub share: f64,
    /// Time in which a step should be done. A single row is run even where it takes longer.
    pub target_latency: Option<Micros>,
    /// How long the oldest request may wait for others to join its batch; zero: not at all.
    pub max_linger: Micros,
    /// What one request may ask for.
    pub request: RequestLimits,
    /// How much may wait.
    pub queue: QueueLimits,
    /// Whether requests may wait while the model is not loaded: they are what makes the engine load it.
    pub while_not_ready: WhileNotReady,
    /// How long a request may wait for the model to be loaded.
    pub load_timeout: Micros,
}

/// What happens to a request for a model that is not loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhileNotReady {
    /// It waits, and the engine loads the model because of it.
    Wait,
    /// It is refused.
    Refuse,
}
