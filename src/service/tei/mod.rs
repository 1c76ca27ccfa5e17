//! The interface of text-embeddings-inference: over gRPC here, over HTTP in `http`. What both ask is `ask`.

pub(crate) mod answered;
pub(crate) mod ask;
pub(crate) mod cut;
mod facts;
mod grpc;
mod info;
pub(crate) mod similarity;
mod tokens;

pub(crate) use grpc::Tei;
