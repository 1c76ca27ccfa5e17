//! The budgeted caching allocator of a GPU: the policy, without a GPU.
//!
//! Pools do the caching: ranges of addresses of ours where the device has virtual memory ([`Arenas`]), the driver's own
//! elsewhere. What is decided here is who is charged, what a step may reach, and what happens when there is no more.
//! Weights and KV have a pool for each model, destroyed whole at unload. Workspace has one pool for all models: steps run
//! one after another, so the cache that one leaves serves the next. What belongs to no model has a pool of its own.
//! Everything is generic over a [`PoolDriver`], so that simulation, failures on purpose and the real driver run the same
//! code.

mod driver;
mod tally;
mod books;
mod pointers;
mod plain;
mod allocator;
mod obtain;
mod lives;
mod events;
mod snapshot;
mod failing;
mod arena;
mod arenas;
#[cfg(test)]
mod tests;

pub use allocator::{Mode, PooledAllocator};
#[cfg(feature = "cuda")]
pub(crate) use arena::CHUNK;
pub use arenas::{ArenaPool, Arenas, VirtualMemory};
pub use books::Slot;
pub use driver::{DriverError, Memory, Pointer, PoolDriver, Request};
pub use events::{Action, AllocationEvent};
pub use failing::{FailingDriver, Failures, Hits};
pub use lives::StepBooks;
pub use snapshot::{BlockLine, OwnerLine, PoolLine, PoolsSnapshot, Tallies};
pub use tally::{Cause, OutOfMemory};
