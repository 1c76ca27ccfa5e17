//! The driver: connects the services, the pure cores and the device's thread; owns responders and payloads.
//!
//! Callers hold an [`EngineHandle`]; everything they ask for goes through one inbox to one thread, which owns the
//! scheduler, the ledger and every request that is not answered (`core`). Steps go out and come back in `steps`, models
//! come and go in `lives`, one load at a time (`loads`), and follow each other in `revisions`, as a reload asks for (`changes`); `traces` shows where a step's memory goes; `publish` shows it all, `ending` ends it. The device, the stored profiles and the metrics are reached through `rig`.

mod submission;
mod answer;
mod control;
mod handle;
mod registry;
mod register;
mod revisions;
mod changes;
mod status;
mod health;
mod memory_view;
mod start;
mod inbox;
mod core;
mod steps;
mod traces;
mod lives;
mod loads;
mod lifecycle;
mod planning;
mod errand;
mod pending;
mod publish;
mod ending;
mod rig;
mod clock;
#[cfg(test)]
mod tests;

pub use answer::{Answer, Failure, StepFacts};
pub use changes::{Change, ChangeKind, ChangeRefusal, Changed};
pub use control::{BudgetError, Released};
pub use handle::EngineHandle;
pub use health::{HealthView, Pulse};
pub use memory_view::{MemorySnapshot, PlanError};
pub use planning::fit_line;
pub use registry::{Definition, Registered};
pub use start::{Engine, EngineError, EngineSettings, Offer};
pub use status::{ModelState, ModelStatus, Statistics, Tally};
pub use submission::Submission;
pub use traces::{MemoryTrace, TraceError};

pub use crate::device::trace::{Holder as TraceHolder, Moment as TraceMoment, Trace};
