//! The keys of `config.json` that are used; others are left alone, as every library of the format does.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::variant::Variant;
use crate::model::error::ModelError;

/// Which variant the file is about.
#[derive(Deserialize)]
pub(super) struct ModelType {
    pub(super) model_type: Option<String>,
}

/// What every variant calls by the same name.
#[derive(Deserialize)]
pub(super) struct Common {
    pub(super) architectures: Option<Vec<String>>,
    pub(super) vocab_size: u64,
    pub(super) max_position_embeddings: u64,
    pub(super) position_embedding_type: Option<String>,
    pub(super) is_decoder: Option<bool>,
    pub(super) id2label: Option<BTreeMap<String, String>>,
    pub(super) num_labels: Option<u64>,
}

/// A value and the name that its variant has for it.
pub(super) struct Keyed<T> {
    pub(super) key: &'static str,
    pub(super) value: T,
}

/// What the variants have different names for, or do not all have.
pub(super) struct Own {
    pub(super) width: Keyed<u64>,
    pub(super) layers: Keyed<u64>,
    pub(super) heads: Keyed<u64>,
    pub(super) inner_width: Keyed<u64>,
    pub(super) activation: Keyed<Option<Value>>,
    /// `None`: the variant has no types.
    pub(super) types: Option<u64>,
    pub(super) epsilon: Keyed<f64>,
    pub(super) positions: Positions,
}

/// How a variant tells positions.
pub(super) enum Positions {
    /// By a table.
    Table,
    /// By a table in which they begin behind the row of this id.
    TableBehind(u64),
    /// By turning queries and keys.
    Rotation,
}

/// The older three classes assume it where the file says nothing; DistilBERT has it in its code.
const EPSILON: f64 = 1e-12;

/// What ModernBERT's class assumes.
const MODERN_EPSILON: f64 = 1e-5;

#[derive(Deserialize)]
struct Bert {
    hidden_size: u64,
    num_hidden_layers: u64,
    num_attention_heads: u64,
    intermediate_size: u64,
    hidden_act: Option<Value>,
    type_vocab_size: Option<u64>,
    layer_norm_eps: Option<f64>,
}

#[derive(Deserialize)]
struct Roberta {
    pad_token_id: Option<u64>,
}

#[derive(Deserialize)]
struct DistilBert {
    dim: u64,
    n_layers: u64,
    n_heads: u64,
    hidden_dim: u64,
    activation: Option<Value>,
}

#[derive(Deserialize)]
struct ModernBert {
    hidden_size: u64,
    num_hidden_layers: u64,
    num_attention_heads: u64,
    intermediate_size: u64,
    hidden_activation: Option<Value>,
    norm_eps: Option<f64>,
}

/// Reads one group of keys.
pub(super) fn read<T: DeserializeOwned>(place: &str, bytes: &[u8], allowed: &str) -> Result<T, ModelError> {
    serde_json::from_slice(bytes).map_err(|error| ModelError::invalid(place, error, allowed))
}

impl Own {
    pub(super) fn read(variant: Variant, place: &str, bytes: &[u8]) -> Result<Own, ModelError> {
        const BERT: &str = "the keys of a BERT configuration";
        match variant {
            Variant::Bert => Ok(Own::of_bert(read(place, bytes, BERT)?, Positions::Table)),
            Variant::Roberta => {
                let Roberta { pad_token_id } = read(place, bytes, "the keys of a RoBERTa configuration")?;
                Ok(Own::of_bert(read(place, bytes, BERT)?, Positions::TableBehind(pad_token_id.unwrap_or(1))))
            }
            Variant::DistilBert => {
                let keys: DistilBert = read(place, bytes, "the keys of a DistilBERT configuration")?;
                Ok(Own {
                    width: Keyed { key: "dim", value: keys.dim },
                    layers: Keyed { key: "n_layers", value: keys.n_layers },
                    heads: Keyed { key: "n_heads", value: keys.n_heads },
                    inner_width: Keyed { key: "hidden_dim", value: keys.hidden_dim },
                    activation: Keyed { key: "activation", value: keys.activation },
                    types: None,
                    epsilon: Keyed { key: "layer_norm_eps", value: EPSILON },
                    positions: Positions::Table,
                })
            }
            Variant::ModernBert => {
                let keys: ModernBert = read(place, bytes, "the keys of a ModernBERT configuration")?;
                Ok(Own {
                    width: Keyed { key: "hidden_size", value: keys.hidden_size },
                    layers: Keyed { key: "num_hidden_layers", value: keys.num_hidden_layers },
                    heads: Keyed { key: "num_attention_heads", value: keys.num_attention_heads },
                    inner_width: Keyed { key: "intermediate_size", value: keys.intermediate_size },
                    activation: Keyed { key: "hidden_activation", value: keys.hidden_activation },
                    types: None,
                    epsilon: Keyed { key: "norm_eps", value: keys.norm_eps.unwrap_or(MODERN_EPSILON) },
                    positions: Positions::Rotation,
                })
            }
        }
    }

    fn of_bert(keys: Bert, positions: Positions) -> Own {
        Own {
            width: Keyed { key: "hidden_size", value: keys.hidden_size },
            layers: Keyed { key: "num_hidden_layers", value: keys.num_hidden_layers },
            heads: Keyed { key: "num_attention_heads", value: keys.num_attention_heads },
            inner_width: Keyed { key: "intermediate_size", value: keys.intermediate_size },
            activation: Keyed { key: "hidden_act", value: keys.hidden_act },
            types: Some(keys.type_vocab_size.unwrap_or(2)),
            epsilon: Keyed { key: "layer_norm_eps", value: keys.layer_norm_eps.unwrap_or(EPSILON) },
            positions,
        }
    }
}
