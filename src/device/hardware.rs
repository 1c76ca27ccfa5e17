//! What the device's thread needs of a device.

use super::trace::Recording;
use super::{LoadFailure, Patience, Shortfall};
use crate::memory::Lease;
use crate::model::Fault;
use crate::units::{Bytes, ModelId};

/// A device as its thread sees it: tensors, scopes and memory. Everything is called on that one thread.
///
/// A port: implemented by [`super::cpu::Cpu`] and by `Cuda` under the feature `cuda`, and wrapped by
/// [`super::drill::Squeezed`] in tests.
pub trait Hardware {
    /// The account of a loaded model. Dropping it ends the account; drop the model first.
    type Account;

    /// Where tensors are made.
    fn tensors(&self) -> &candle_core::Device;

    /// Runs `body` (a load) with everything that it allocates charged to `model`, up to `ceiling` where the device counts
    /// before it gives.
    ///
    /// # Errors
    /// A fault of `body` as it is, or as the [`Fault::DeviceLost`] that it was the first sign of; a fault if the device can
    /// keep the books of no more models. A shortfall if an allocation failed, in which case what `body` returned is dropped.
    fn load<R>(
        &mut self,
        model: ModelId,
        ceiling: Bytes,
        body: impl FnOnce(&candle_core::Device) -> Result<R, Fault>,
    ) -> Result<(R, Self::Account), LoadFailure>;

    /// Bytes of the account: alive now, and the most at once.
    fn resident(&self, account: &Self::Account) -> Resident;

    /// Ends the account of a model whose tensors are dropped. Returns what is still alive of it: libraries keep it, and
    /// it serves whoever comes next.
    fn close(&mut self, account: Self::Account) -> Bytes;

    /// Runs `body` (one forward pass) with everything that it allocates charged to the step. A fault of `body` comes back
    /// as it is, or as the [`Fault::DeviceLost`] that it was the first sign of.
    ///
    /// # Errors
    /// If the device cannot give the step its memory: found before it starts where the device can tell, or by an
    /// allocation that failed inside, in which case what `body` returned is dropped.
    fn step<R: Clone>(
        &mut self,
        model: ModelId,
        need: Need,
        body: impl FnOnce() -> Result<R, Fault>,
    ) -> Result<(Result<R, Fault>, StepUse), Shortfall>;

    /// How its thread waits for orders.
    fn patience(&self) -> Patience {
        Patience::NONE
    }

    /// Has the blocks of the next step recorded, where the device can do that.
    fn record_next(&mut self) {}

    /// What was recorded of the last step; `None` if [`Hardware::record_next`] was not called before it, or the device
    /// records nothing.
    fn recording(&mut self) -> Option<Recording> {
        None
    }

    /// Waits for the device, then returns cached workspace to the system until `keep` bytes are cached. Returns the
    /// bytes returned.
    fn trim(&mut self, keep: Bytes) -> Bytes;

    /// Returns whatever a dropped model has left free in heaps and pools.
    fn settle(&mut self);

    /// What the system says is free; `None` where it says nothing.
    fn free(&mut self) -> Option<Bytes>;

    /// Whether the device still works. Asked after a panic.
    ///
    /// # Errors
    /// [`Fault::DeviceLost`] if it does not.
    fn check(&mut self) -> Result<(), Fault>;
}

/// What a step asks of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// Peak workspace that it is predicted to need.
    pub predicted: Bytes,
    /// Peak workspace that it may have.
    pub ceiling: Bytes,
    /// What is set aside beside that for what earlier steps have left.
    pub leftovers: Bytes,
}

impl From<&Lease> for Need {
    fn from(lease: &Lease) -> Need {
        Need { predicted: lease.predicted, ceiling: lease.ceiling, leftovers: lease.leftovers }
    }
}

impl Need {
    /// For a step that may have all that there is.
    pub const WHATEVER: Need = Need::up_to(Bytes::MAX);

    /// For a step that may have so much beside whatever earlier ones have left. Nothing is predicted, so that the device has
    /// nothing to check before.
    pub const fn up_to(ceiling: Bytes) -> Need {
        Need { predicted: Bytes::ZERO, ceiling, leftovers: Bytes::MAX }
    }

    /// Whether a device that can give so many bytes now can give what is predicted.
    ///
    /// # Errors
    /// Both numbers, if it cannot.
    pub fn check(self, available: Bytes) -> Result<(), Shortfall> {
        if available < self.predicted {
            return Err(Shortfall { needed: self.predicted, available });
        }
        Ok(())
    }
}

/// What a step used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepUse {
    /// Most workspace alive at once, and what is lost between blocks: a pool that holds so much is enough for the step.
    pub peak: Bytes,
    /// Workspace that it came by in all, at least its peak: if it is kept, the next step like it takes nothing anew.
    pub reach: Bytes,
    /// Bytes still alive at its end: charged to the model as library memory from now on.
    pub left: Bytes,
    /// Blocks that it allocated.
    pub allocated: u64,
    /// Blocks that it freed.
    pub freed: u64,
    /// Whether the peak was above the ceiling.
    pub overrun: bool,
    /// Allocations that the device refused at first and gave once everything cached was returned: rung 1 of the ladder,
    /// inside the step.
    pub retried: u32,
}

/// What a model holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resident {
    /// Weights alive now.
    pub weights: Bytes,
    /// Most of them alive at once, which is during loading.
    pub weights_peak: Bytes,
    /// What its steps have left behind.
    pub library: Bytes,
}

impl Resident {
    /// All that the model holds between steps.
    pub fn total(&self) -> Bytes {
        self.weights + self.library
    }
}
