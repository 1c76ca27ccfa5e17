//! Allocation traces: which layer and operation of a step holds how much memory, and when.
//!
//! An allocator that is asked to record a step keeps a [`Recorder`] and tells it every block of the step that it hands
//! out or takes back, with the label of the moment. What it recorded becomes a [`Trace`] by a pure function.

mod recorder;
mod analysis;
mod timeline;

pub use analysis::{Holder, Moment, Trace};
pub use recorder::{Recorder, Recording};
