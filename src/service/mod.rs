//! gRPC services: wire types end here.

pub mod proto;
