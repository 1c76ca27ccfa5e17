//! The rim to the hardware: allocator, readings, and the thread that owns every tensor.
//!
//! The engine sends [`Order`]s to an [`Executor`] and gets [`Report`]s. Behind it a [`DeviceThread`] runs models under
//! scopes and leases on some [`Hardware`]: the [`cpu`], or a GPU with the feature `cuda`, under the same types. [`start`]
//! chooses.

mod order;
mod report;
mod executor;
mod patience;
mod port;
mod step;
mod hardware;
mod scope;
pub mod statistics;
pub mod trace;
pub mod cpu;
pub mod pools;
#[cfg(feature = "cuda")]
pub mod cuda;
mod start;
pub mod profile_store;
pub mod drill;

pub use executor::{DeviceThread, Executor, Stopped};
pub use hardware::{Hardware, Need, Resident, StepUse};
pub use order::{Loader, OnShortfall, Order, Run, RunPurpose};
pub use patience::Patience;
pub use port::Device;
pub use report::{Change, LoadFailure, Loaded, Ran, Released, Report, RowFailure, Shortfall};
pub use scope::{Kind, Owner};
pub use start::{Choice, StartOptions, start};
