//! An NVIDIA GPU as a device, under unmodified candle.
//!
//! The program itself defines the driver's four allocation functions ([`interpose`]), so that every tensor of candle's
//! comes out of the pools of [`super::pools`]; what they need of the real driver is looked up by name ([`driver`]). One
//! [`Card`] a process: what is interposed is the process's.

mod driver;
mod virtual_memory;
mod interpose;
mod card;
mod context;
mod fixed;
mod nvml;
mod readings;
mod watch;
mod hardware;
mod device;
mod probe;
mod bystander;

pub use bystander::{Bystander, Taken};
pub use card::{Card, CardSettings, Unusable};
pub use context::Tensors;
pub use device::CudaDevice;
pub use driver::{LibCuda, StreamHandle};
pub use fixed::{Fixed, FixedSource};
pub use hardware::{Cuda, CudaAccount};
pub use interpose::{Scope, intercepted};
pub use nvml::Nvml;
pub use probe::{Events, driver_version, free_as_candle_does, stock_stream, time_allocation};
pub use readings::Parts;
