//! gRPC services: wire types end here.
