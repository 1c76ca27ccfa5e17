//! Encoders for embeddings, classification and reranking: the BERT family, with RoBERTa (XLM-RoBERTa, CamemBERT),
//! DistilBERT and ModernBERT. One computation; [`variant`], [`keys`], [`modern`] and [`names`] hold what differs.

mod variant;
mod keys;
mod modern;
mod config;
mod names;
mod later;
mod forward;
mod load;

pub(super) use config::{Classifies, EncoderConfig};

pub(super) use load::{Loaded, Plan, check, framework_elements_per_token, load, resident};
