//! What the server tells about itself: metrics, health, logs and traces.
//!
//! The engine hands over plain facts (a step was completed, a request was finished, a reading was taken); the names,
//! units and labels of the metrics are decided here. Nothing here decides anything for the server.

pub mod logs;
pub mod traces;
mod metrics;
mod dashboard;
mod http;

pub use http::{Condition, router};
pub use metrics::{
    AllocatorCounts, DeviceBytes, DeviceMetrics, MODEL_STATES, Metrics, ModelLevels, ModelMetrics, Outcome,
    PROFILE_STATES, QueueLevels, RequestTimes,
};
