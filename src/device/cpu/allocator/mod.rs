//! The CPU's accounted allocator: every block of the process knows whose it is.
//!
//! [`AccountedAllocator`] is the program's global allocator. It writes a header before each block that names an
//! account ([`account`]); the block is charged to it until it is freed, by whichever thread. Which account an
//! allocation is charged to is decided by the calling thread ([`charge`]): the device's thread charges the scope that
//! it has entered; the threads that compute for it (rayon's and candle's pools) charge the step that runs; every other
//! thread charges the server itself.
//!
//! Large workspace blocks come from a cache of mapped regions ([`regions`]), as on CUDA they come from a pool: a page
//! that one layer has touched serves the next one without a page fault, and the cache counts against the budget.
//!
//! An allocation never fails for want of budget: a null return would end the process. On the CPU a step is held to its
//! lease before it starts; what it takes beyond that is counted as an overrun.
//!
//! The module is the only place of the CPU device with `unsafe`.

mod account;
mod charge;
mod classes;
mod global;
mod header;
mod record;
mod regions;
mod system;

pub use account::{Balance, Charged, accounts, live_of, server_live};
pub use charge::{ResidentAccount, ScopeGuard, StepAccount, mark_compute_thread};
pub use global::AccountedAllocator;
pub use regions::{CacheBalance, cache_balance, trim_cache};
pub use system::{return_free_heap, tune_system_allocator};

#[cfg(test)]
mod stress;
