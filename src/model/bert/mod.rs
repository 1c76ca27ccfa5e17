//! The BERT family: encoders for embeddings, classification and reranking.

mod config;
mod encoder;
mod load;
mod names;

pub(super) use config::BertConfig;

pub(super) use load::{Plan, check, load, resident};
