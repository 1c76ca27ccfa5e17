//! The CPU as a device: a thread that owns the models, an allocator that knows whose every block is, and readings of
//! what the machine could still give.

mod device;
mod hardware;
pub mod allocator;
mod readings;
mod threads;
mod processor;

pub use device::{CpuDevice, instruction_set};
pub use hardware::Cpu;
pub use processor::missing_instructions;
pub use readings::{SystemMemory, SystemReadings};
pub use threads::{ThreadsError, compute_threads, default_compute_threads, set_compute_threads, usable_cores};
