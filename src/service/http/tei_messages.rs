//! The messages of text-embeddings-inference in JSON.

use std::collections::BTreeMap;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::inputs::{TextList, WrittenIds, WrittenInputs, WrittenRows, WrittenTexts};

/// Which end of a text is left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) enum Direction {
    #[default]
    #[serde(alias = "right")]
    Right,
    #[serde(alias = "left")]
    Left,
}

/// What says how a call is to be sent on to a model, which changes nothing here.
type Options = BTreeMap<String, IgnoredAny>;

/// The parameters of calls that have none: some clients send an empty object with every call.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NoParameters {}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EmbedMessage {
    pub(super) inputs: WrittenInputs,
    #[serde(default)]
    pub(super) truncate: Option<bool>,
    #[serde(default)]
    pub(super) truncation_direction: Direction,
    #[serde(default)]
    pub(super) normalize: Option<bool>,
    #[serde(default)]
    pub(super) prompt_name: Option<String>,
    #[serde(default)]
    pub(super) dimensions: Option<u32>,
    #[serde(default)]
    #[allow(dead_code, reason = "it may be there")]
    parameters: Option<NoParameters>,
    #[serde(default)]
    #[allow(dead_code, reason = "it may be there")]
    options: Option<Options>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EmbedAllMessage {
    pub(super) inputs: WrittenInputs,
    #[serde(default)]
    pub(super) truncate: Option<bool>,
    #[serde(default)]
    pub(super) truncation_direction: Direction,
    #[serde(default)]
    pub(super) prompt_name: Option<String>,
    #[serde(default)]
    #[allow(dead_code, reason = "it may be there")]
    parameters: Option<NoParameters>,
    #[serde(default)]
    #[allow(dead_code, reason = "it may be there")]
    options: Option<Options>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PredictMessage {
    pub(super) inputs: WrittenRows,
    #[serde(default)]
    pub(super) truncate: Option<bool>,
    #[serde(default)]
    pub(super) truncation_direction: Direction,
    #[serde(default)]
    pub(super) raw_scores: bool,
    /// Some clients have it in every message.
    #[serde(default)]
    pub(super) parameters: Option<PredictParameters>,
    #[serde(default)]
    #[allow(dead_code, reason = "it may be there")]
    options: Option<Options>,
}

/// What clients of transformers' pipelines say of a classifier of tokens.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PredictParameters {
    #[serde(default)]
    pub(super) aggregation_strategy: Option<String>,
    #[serde(default)]
    pub(super) ignore_labels: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RerankMessage {
    pub(super) query: String,
    pub(super) texts: TextList,
    #[serde(default)]
    pub(super) truncate: Option<bool>,
    #[serde(default)]
    pub(super) truncation_direction: Direction,
    #[serde(default)]
    pub(super) raw_scores: bool,
    #[serde(default)]
    pub(super) return_text: bool,
    #[serde(default)]
    pub(super) top_n: Option<u32>,
    #[serde(default)]
    #[allow(dead_code, reason = "it may be there")]
    parameters: Option<NoParameters>,
    #[serde(default)]
    #[allow(dead_code, reason = "it may be there")]
    options: Option<Options>,
}

/// A sentence and those that it is compared with.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SimilarityMessage {
    pub(super) inputs: Sentences,
    #[serde(default)]
    pub(super) parameters: Option<SimilarityParameters>,
    #[serde(default)]
    #[allow(dead_code, reason = "it may be there")]
    options: Option<Options>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Sentences {
    pub(super) source_sentence: String,
    pub(super) sentences: TextList,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SimilarityParameters {
    #[serde(default)]
    pub(super) truncate: Option<bool>,
    #[serde(default)]
    pub(super) truncation_direction: Direction,
    #[serde(default)]
    pub(super) prompt_name: Option<String>,
}

/// A message that compares sentences, whatever else it says: inputs with names, as no other has them.
#[derive(Debug, Deserialize)]
pub(super) struct OfSentences {
    #[allow(dead_code, reason = "that it can be read is all")]
    inputs: BTreeMap<String, IgnoredAny>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TokenizeMessage {
    pub(super) inputs: WrittenTexts,
    #[serde(default = "yes")]
    pub(super) add_special_tokens: bool,
    #[serde(default)]
    pub(super) prompt_name: Option<String>,
    #[serde(default)]
    #[allow(dead_code, reason = "it may be there")]
    parameters: Option<NoParameters>,
    #[serde(default)]
    #[allow(dead_code, reason = "it may be there")]
    options: Option<Options>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DecodeMessage {
    pub(super) ids: WrittenIds,
    #[serde(default = "yes")]
    pub(super) skip_special_tokens: bool,
    #[serde(default)]
    #[allow(dead_code, reason = "it may be there")]
    parameters: Option<NoParameters>,
    #[serde(default)]
    #[allow(dead_code, reason = "it may be there")]
    options: Option<Options>,
}

fn yes() -> bool {
    true
}

#[derive(Serialize)]
pub(super) struct Token {
    pub(super) id: u32,
    pub(super) text: String,
    pub(super) special: bool,
    pub(super) start: Option<usize>,
    pub(super) stop: Option<usize>,
}

#[derive(Serialize)]
pub(super) struct Scored {
    pub(super) score: f32,
    pub(super) label: String,
}

/// A labelled part of a text; `entity` and `index` where it is a token, `entity_group` where it may be more.
#[derive(Serialize)]
pub(super) struct Labelled {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) entity: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) entity_group: Option<String>,
    pub(super) score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) index: Option<usize>,
    pub(super) word: String,
    pub(super) start: u32,
    pub(super) end: u32,
}

#[derive(Serialize)]
pub(super) struct Ranked {
    pub(super) index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) text: Option<String>,
    pub(super) score: f32,
}

#[derive(Serialize)]
pub(super) struct Info {
    pub(super) version: &'static str,
    pub(super) sha: Option<String>,
    pub(super) docker_label: Option<String>,
    pub(super) model_id: String,
    pub(super) model_sha: Option<String>,
    pub(super) model_dtype: &'static str,
    pub(super) model_type: ModelType,
    pub(super) served_model_name: String,
    pub(super) max_concurrent_requests: u32,
    pub(super) max_input_length: u32,
    pub(super) max_batch_tokens: u32,
    pub(super) max_batch_requests: Option<u32>,
    pub(super) max_client_batch_size: u32,
    pub(super) auto_truncate: bool,
    pub(super) tokenization_workers: u32,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ModelType {
    Embedding { pooling: &'static str },
    Classifier { id2label: BTreeMap<String, String>, label2id: BTreeMap<String, usize> },
    Reranker { id2label: BTreeMap<String, String>, label2id: BTreeMap<String, usize> },
}
