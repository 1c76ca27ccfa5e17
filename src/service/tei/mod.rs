//! The interface of text-embeddings-inference: over gRPC here, over HTTP in `http`. What both ask is `ask`.

pub(crate) mod ask;
mod grpc;
mod tokens;

pub(crate) use grpc::Tei;
