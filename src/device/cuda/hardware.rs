//! A GPU under the device's thread.

use std::mem;

use super::card::Card;
use super::context::Tensors;
use super::interpose::Scope;
use crate::device::pools::{Cause, Mode, OutOfMemory, PoolDriver, Slot};
use crate::device::trace::Recording;
use crate::device::{Hardware, LoadFailure, Need, Patience, Resident, Shortfall, StepUse};
use crate::memory::Readings;
use crate::model::Fault;
use crate::ops::card;
use crate::units::{Bytes, ModelId};

/// Steps after a load in which something may still be compiled at its first use.
const WARM_AFTER: u32 = 8;

/// The GPU: scopes of the interposed allocator, and errors sorted into those that end a step and those that end it all.
pub struct Cuda {
    card: &'static Card,
    tensors: Tensors,
    /// With `Live`, a step does not start while the card cannot give what it is predicted to need.
    live: Readings,
    /// Steps until the card counts as warm.
    cold: u32,
    /// What operations had made of things that stay, at the last look.
    made: u64,
    record_next: bool,
    recording: Option<Recording>,
}

/// The books of a loaded model. Dropping it ends them: drop the model first.
pub struct CudaAccount {
    card: &'static Card,
    weights: Slot,
    closed: bool,
}

impl CudaAccount {
    fn close(&mut self) -> Bytes {
        if self.closed {
            return Bytes::ZERO;
        }
        self.closed = true;
        self.card.allocator().close_model(self.weights)
    }
}

impl Drop for CudaAccount {
    fn drop(&mut self) {
        self.close();
    }
}

impl Cuda {
    /// The device of an open card. Belongs to one thread from its first use on.
    pub fn new(card: &'static Card, tensors: Tensors, live: Readings) -> Cuda {
        Cuda { card, tensors, live, cold: WARM_AFTER, made: 0, record_next: false, recording: None }
    }

    /// Whether the card still works. An error in work that is done does not go away: every later call returns it.
    fn healthy(&self) -> Result<(), Fault> {
        let lost = |message: String| Fault::DeviceLost { message };
        self.card.driver().synchronize().map_err(|error| lost(error.to_string()))
    }

    /// Looks after a body that failed: takes out what would be reported by somebody else's next call.
    fn after_failure(&self) -> Result<(), Fault> {
        self.healthy()?;
        if let Some(error) = self.tensors.drain() {
            tracing::debug!("an error of a drop is forgotten: {error}");
        }
        if let Some(error) = self.card.allocator().fault() {
            tracing::warn!("the allocator met an error that did not last: {error}");
        }
        Ok(())
    }

    /// Bytes that a step could have: what is free, and what is held for it.
    fn available(&self) -> Option<Bytes> {
        let free = self.card.memory().ok()?.free;
        Some(Bytes::new(free) + self.card.allocator().workspace().reserved)
    }

    fn shortfall(&self, record: OutOfMemory) -> Shortfall {
        let needed = record.held + record.requested;
        let available = match record.cause {
            Cause::Ceiling => record.ceiling,
            Cause::Driver => self.available().unwrap_or(record.held),
        };
        // The driver may refuse what is free: in pieces, or on purpose.
        Shortfall { needed, available: available.min(needed.saturating_sub(Bytes::new(1))) }
    }

    /// The same for a load, of which nothing is left any more. It came to `reached` and would have gone on.
    fn load_shortfall(&self, reached: Bytes, cause: Cause, ceiling: Bytes) -> LoadFailure {
        let (needed, available) = match cause {
            Cause::Ceiling => (reached, ceiling),
            // One without a lease has not said what it needs.
            Cause::Driver if ceiling == Bytes::MAX => (reached, self.available().unwrap_or(reached)),
            Cause::Driver => (reached.max(ceiling), self.available().unwrap_or(reached)),
        };
        let available = available.min(needed.saturating_sub(Bytes::new(1)));
        LoadFailure::OutOfMemory(Shortfall { needed, available })
    }
}

impl Hardware for Cuda {
    type Account = CudaAccount;

    fn tensors(&self) -> &candle_core::Device {
        self.tensors.device()
    }

    fn patience(&self) -> Patience {
        Patience::of_a_card()
    }

    fn load<R>(
        &mut self,
        model: ModelId,
        ceiling: Bytes,
        body: impl FnOnce(&candle_core::Device) -> Result<R, Fault>,
    ) -> Result<(R, CudaAccount), LoadFailure> {
        let allocator = self.card.allocator();
        let weights = allocator.open_model(model);
        // Single allocations are rounded up so far, each, that the bytes of the tensors do not say what they take.
        if allocator.mode() != Mode::Plain {
            allocator.set_ceiling(weights, ceiling);
        }
        let mut account = CudaAccount { card: self.card, weights, closed: false };
        let loaded = {
            let _scope = Scope::enter(weights);
            body(self.tensors.device())
        };
        let healthy = self.after_failure();
        // Whatever the body made of it: an error, a panic, or a model that was made of memory that was never there.
        let record = allocator.take_shortfall(weights);
        let loaded = match (healthy, record, loaded) {
            (Ok(()), None, Ok(loaded)) => loaded,
            (healthy, record, loaded) => {
                let fault = loaded.map(drop).err();
                account.close();
                healthy?;
                return Err(match (record, fault) {
                    (Some(record), _) => self.load_shortfall(record.held + record.requested, record.cause, ceiling),
                    (None, Some(fault)) if ceiling < Bytes::MAX && is_exhaustion(&fault) => {
                        self.load_shortfall(Bytes::ZERO, Cause::Driver, ceiling)
                    }
                    (None, Some(fault)) => fault.into(),
                    (None, None) => unreachable!("healthy, without a record and without a fault it is loaded"),
                });
            }
        };
        allocator.settle_model(weights);
        self.cold = WARM_AFTER;
        self.card.settle_fixed();
        Ok((loaded, account))
    }

    fn resident(&self, account: &CudaAccount) -> Resident {
        self.card.allocator().resident(account.weights)
    }

    fn close(&mut self, mut account: CudaAccount) -> Bytes {
        account.close()
    }

    fn step<R: Clone>(
        &mut self,
        model: ModelId,
        need: Need,
        body: impl FnOnce() -> Result<R, Fault>,
    ) -> Result<(Result<R, Fault>, StepUse), Shortfall> {
        if self.live == Readings::Live
            && let Some(available) = self.available()
        {
            need.check(available)?;
        }
        let allocator = self.card.allocator();
        let Some(slot) = allocator.begin_step(model, need) else {
            let fault = Fault::Model { message: format!("{model} has no books on this device") };
            return Ok((Err(fault), StepUse::default()));
        };
        if mem::take(&mut self.record_next) {
            allocator.record();
        }
        let result = {
            let _scope = Scope::enter(slot);
            body()
        };
        let books = allocator.end_step(slot);
        self.recording = allocator.take_recording();
        if let Some(record) = books.shortfall {
            // Whatever the body made of it: an error, a panic, or a result that was computed with memory that was never
            // there.
            drop(result);
            return match self.after_failure() {
                Ok(()) => Err(self.shortfall(record)),
                Err(fault) => Ok((Err(fault), books.used)),
            };
        }
        let result = match result {
            Ok(rows) => Ok(rows),
            Err(fault) => match self.after_failure() {
                Err(lost) => Err(lost),
                // Modules, cuBLAS and the driver itself allocate without coming here.
                Ok(()) if is_exhaustion(&fault) => {
                    let available = need.predicted.saturating_sub(Bytes::new(1));
                    return Err(Shortfall { needed: need.predicted, available });
                }
                Ok(()) => Err(fault),
            },
        };
        let made = card::made();
        if self.cold > 0 || made > self.made {
            self.cold = self.cold.saturating_sub(1);
            self.made = made;
            self.card.settle_fixed();
        }
        Ok((result, books.used))
    }

    fn record_next(&mut self) {
        self.record_next = true;
    }

    fn recording(&mut self) -> Option<Recording> {
        self.recording.take()
    }

    fn trim(&mut self, keep: Bytes) -> Bytes {
        self.card.allocator().trim_workspace(keep)
    }

    fn settle(&mut self) {
        // Pools go with their model's account; nothing else holds on to what a model has freed.
    }

    fn free(&mut self) -> Option<Bytes> {
        self.card.memory().ok().map(|memory| Bytes::new(memory.free))
    }

    fn check(&mut self) -> Result<(), Fault> {
        self.after_failure()
    }
}

/// Whether a fault says, in any of its shapes, that memory ran out somewhere that keeps no record.
fn is_exhaustion(fault: &Fault) -> bool {
    const SHAPES: [&str; 4] =
        ["CUDA_ERROR_OUT_OF_MEMORY", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CURAND_STATUS_ALLOCATION_FAILED"];
    match fault {
        Fault::Model { message } | Fault::Panicked { message } => SHAPES.iter().any(|shape| message.contains(shape)),
        Fault::NotFinite { .. } | Fault::DeviceLost { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exhaustion_is_known_in_all_its_shapes() {
        let model = |message: &str| is_exhaustion(&Fault::Model { message: message.to_owned() });
        assert!(model("DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")"));
        assert!(model("CublasError(CUBLAS_STATUS_ALLOC_FAILED)"));
        assert!(is_exhaustion(&Fault::Panicked { message: "called unwrap(): out of memory".to_owned() }));
        assert!(!model("shape mismatch in matmul"));
        assert!(!is_exhaustion(&Fault::NotFinite { row: 0 }));
    }
}
