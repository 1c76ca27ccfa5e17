//! The CPU as a device.

pub mod allocator;
