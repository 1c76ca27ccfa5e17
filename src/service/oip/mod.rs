//! The Open Inference Protocol: `inference.GRPCInferenceService`.

mod tensor;
mod parameters;
mod inputs;
mod outputs;
mod infer;
mod stream;
mod metadata;
mod statistics;
mod repository;
mod settings;
mod grpc;

pub(crate) use grpc::Oip;
