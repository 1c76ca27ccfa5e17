//! The driver: connects the services, the pure cores and the device's thread; owns responders and payloads.

mod answer;
mod submission;

pub use answer::{Answer, Failure, StepFacts};
pub use submission::Submission;
