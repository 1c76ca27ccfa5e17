//! The rim to the hardware: allocator, readings, and the thread that owns every tensor.

mod scope;
pub mod cpu;

pub use scope::{Kind, Owner};
