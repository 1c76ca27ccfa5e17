//! The Open Inference Protocol: `inference.GRPCInferenceService` (`grpc`), and the same over HTTP (`rest`).

mod tensor;
mod parameters;
mod inputs;
mod outputs;
mod of_tokens;
mod infer;
mod stream;
mod metadata;
mod statistics;
mod repository;
mod settings;
mod grpc;
mod rest;

pub(crate) use grpc::Oip;
pub(crate) use infer::infer;
pub(crate) use rest::routes;
