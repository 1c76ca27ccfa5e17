//! What the device is doing for the engine: one thing at a time.

use super::traces::Traced;
use crate::scheduler::Step;
use crate::units::ModelId;

/// The order that the device's thread is working on.
#[derive(Debug)]
pub(super) enum Errand {
    /// A step of the scheduler's.
    Step(Step),
    /// A step whose blocks are recorded.
    Trace(Traced),
    /// A model's weights are brought in.
    Load(ModelId),
    /// A model's weights are thrown out.
    Unload(ModelId),
    /// Cached workspace is returned.
    Trim,
}
