//! The whole server in this process, on free ports, with the embedded models, over real gRPC connections.

mod support;
mod results;
mod overload;
mod deadlines;
mod operations;
mod drain;
mod limits;
mod memory;
mod lost_device;
