//! Encoders for embeddings, classification and reranking: the BERT family.

mod config;
mod forward;
mod load;
mod names;

pub(super) use config::EncoderConfig;

pub(super) use load::{Plan, check, framework_elements_per_token, load, resident};
