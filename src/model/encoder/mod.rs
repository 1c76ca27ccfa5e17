//! Encoders for embeddings, classification and reranking: the BERT family, with RoBERTa (XLM-RoBERTa, CamemBERT) and
//! DistilBERT. One computation; [`variant`], [`keys`] and [`names`] hold what differs.

mod variant;
mod keys;
mod config;
mod names;
mod forward;
mod load;

pub(super) use config::EncoderConfig;

pub(super) use load::{Plan, check, framework_elements_per_token, load, resident};
