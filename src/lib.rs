//! Plimsoll: an inference server that knows, in bytes, what every batch will cost before it runs it.
//!
//! Modules in the order of the data flow, after the ones that everything speaks in:
//! `service` decodes a call, `engine` admits it ([`admission`]) and queues it ([`scheduler`]), which chooses a step
//! by asking the profile and the ledger ([`memory`]); [`device`] runs the step of a [`model`] on its own thread.
//! `admission`, `scheduler` and `memory` are pure: no clock, thread, channel or randomness; `tests/tidy.rs` checks it.

pub mod units;
pub mod config;
pub mod memory;
pub mod admission;
pub mod scheduler;
pub mod ops;
pub mod model;
pub mod tokenize;
pub mod device;
pub mod engine;
pub mod service;
pub mod telemetry;
pub mod server;
pub mod cli;

/// Every block of the process is charged to somebody: see [`device::cpu::allocator`].
#[global_allocator]
static ALLOCATOR: device::cpu::allocator::AccountedAllocator = device::cpu::allocator::AccountedAllocator;
