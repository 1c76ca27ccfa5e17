//! The driver: connects the services, the pure cores and the device's thread; owns responders and payloads.

mod answer;
mod submission;
mod health;
mod status;
mod registry;
mod memory_view;
mod control;
mod handle;

pub use answer::{Answer, Failure, StepFacts};
pub use control::{BudgetError, Released};
pub use handle::EngineHandle;
pub use health::{HealthView, Pulse};
pub use memory_view::{MemorySnapshot, PlanError};
pub use registry::{Definition, Registered};
pub use status::{ModelState, ModelStatus, Statistics, Tally};
pub use submission::Submission;
