//! Models: one forward pass at a time, on the device's own thread.
//!
//! [`ModelFiles`] finds a model's files, [`Blueprint`] reads and checks what they say and knows what a load will cost;
//! its [`ModelCard`] tells the host what it needs to know, and its `load` gives the device's thread a [`Model`].

mod fault;
mod error;
mod batch;
mod files;
mod embedded;
mod card;
mod form;
mod sentence;
mod blueprint;
mod weights;
mod layers;
mod encoder;

pub use batch::{Batch, Later, Output, TokenRow, Wanted};
pub use blueprint::Blueprint;
pub use card::ModelCard;
pub use embedded::embedded_names;
pub use error::ModelError;
pub use fault::Fault;
pub use files::ModelFiles;
pub use form::DeviceForm;
pub use layers::Kernels;
#[doc(hidden)]
pub use weights::read_every_tensor;

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
