//! The BERT family: encoders for embeddings, classification and reranking.

mod config;
mod encoder;
mod load;
mod names;

pub(super) use config::BertConfig;

pub(super) use load::{Plan, check, framework_elements_per_token, load, resident};
