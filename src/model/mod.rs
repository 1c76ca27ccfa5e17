//! Models: one forward pass at a time, on the device's own thread.

mod fault;
mod batch;

pub use batch::{Batch, Output, TokenRow};
pub use fault::Fault;

use crate::memory::Axes;

/// A loaded model. It lives on the device's thread and never leaves it, nor does any of its tensors.
///
/// Implementations set the allocator's scope through the executor, never themselves, and allocate nothing that
/// outlives `step` (a generator's KV blocks excepted, which it owns and counts apart).
pub trait Model {
    /// What its profile is measured over: the form of its steps, the longest length, where code paths switch.
    fn axes(&self) -> Axes;

    /// One forward pass. The rows of the output are those of the batch, in order.
    ///
    /// # Errors
    /// A [`Fault`]; the caller decides from the allocator's record whether it was out of memory.
    fn step(&mut self, batch: &Batch) -> Result<Output, Fault>;
}
