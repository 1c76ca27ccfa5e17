//! The `config.json` of an encoder, validated.

use serde::Deserialize;
use std::collections::BTreeMap;

use crate::model::error::ModelError;
use crate::ops::Activation;

/// Bounds no encoder of the family comes near, far below what would overflow or exhaust memory by itself.
const WIDTH_MAX: u64 = 16_384;
const LAYERS_MAX: u64 = 256;
const VOCABULARY_MAX: u64 = 4_000_000;
const POSITIONS_MAX: u64 = 1 << 20;
const LABELS_MAX: u64 = 65_536;

/// The keys that are used; others are left alone, as every library of the format does.
#[derive(Deserialize)]
struct Raw {
    model_type: Option<String>,
    architectures: Option<Vec<String>>,
    vocab_size: u64,
    hidden_size: u64,
    num_hidden_layers: u64,
    num_attention_heads: u64,
    intermediate_size: u64,
    hidden_act: Option<serde_json::Value>,
    max_position_embeddings: u64,
    type_vocab_size: Option<u64>,
    layer_norm_eps: Option<f64>,
    position_embedding_type: Option<String>,
    is_decoder: Option<bool>,
    id2label: Option<BTreeMap<String, String>>,
    num_labels: Option<u64>,
}

/// The shape of an encoder.
#[derive(Clone, Debug)]
pub(crate) struct EncoderConfig {
    pub(crate) architecture: String,
    pub(crate) vocabulary: usize,
    pub(crate) width: usize,
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    pub(crate) inner_width: usize,
    pub(crate) activation: Activation,
    pub(crate) positions: usize,
    pub(crate) types: usize,
    pub(crate) epsilon: f32,
    /// Names of the classes; empty unless the architecture is a classifier's.
    pub(crate) labels: Vec<String>,
}

impl EncoderConfig {
    /// Reads and checks `bytes`, which errors call `place`.
    pub(crate) fn parse(place: &str, bytes: &[u8]) -> Result<EncoderConfig, ModelError> {
        let model_type: ModelType =
            serde_json::from_slice(bytes).map_err(|error| ModelError::invalid(place, error, "a JSON object"))?;
        let at = |key: &str| format!("{place}: {key}");
        match model_type.model_type.as_deref() {
            Some("bert") => {}
            other => {
                let found = other.map_or("nothing".to_owned(), |found| format!("'{found}'"));
                return Err(ModelError::invalid(at("model_type"), found, "bert"));
            }
        }
        let raw: Raw = serde_json::from_slice(bytes)
            .map_err(|error| ModelError::invalid(place, error, "the keys of a BERT configuration"))?;
        debug_assert_eq!(raw.model_type, model_type.model_type);
        let sized = |key: &str, value: u64, most: u64| match value {
            1.. if value <= most => Ok(value as usize),
            _ => Err(ModelError::invalid(at(key), value, format!("1 to {most}"))),
        };
        let width = sized("hidden_size", raw.hidden_size, WIDTH_MAX)?;
        let heads = sized("num_attention_heads", raw.num_attention_heads, WIDTH_MAX)?;
        if width % heads != 0 {
            let allowed = format!("a divisor of hidden_size {width}");
            return Err(ModelError::invalid(at("num_attention_heads"), heads, allowed));
        }
        let epsilon = raw.layer_norm_eps.unwrap_or(1e-12);
        if !(epsilon > 0.0 && epsilon < 1.0) {
            return Err(ModelError::invalid(at("layer_norm_eps"), epsilon, "more than 0 and less than 1"));
        }
        if let Some(kind) = raw.position_embedding_type.filter(|kind| kind != "absolute") {
            return Err(ModelError::invalid(at("position_embedding_type"), format!("'{kind}'"), "absolute"));
        }
        if raw.is_decoder == Some(true) {
            return Err(ModelError::invalid(at("is_decoder"), true, "false: attention goes both ways in an encoder"));
        }
        let activation = match &raw.hidden_act {
            None => Activation::Gelu,
            Some(name) => name
                .as_str()
                .and_then(Activation::named)
                .ok_or_else(|| ModelError::invalid(at("hidden_act"), name, Activation::NAMES))?,
        };
        let architecture = match raw.architectures.as_deref() {
            Some([first, ..]) => first.clone(),
            _ => "BertModel".to_owned(),
        };
        let labels = match architecture.as_str() {
            "BertModel" | "BertForMaskedLM" | "BertForPreTraining" => Vec::new(),
            "BertForSequenceClassification" => labels(place, raw.id2label, raw.num_labels)?,
            other => {
                let allowed = "BertModel, BertForMaskedLM, BertForPreTraining, BertForSequenceClassification";
                return Err(ModelError::invalid(at("architectures"), format!("'{other}'"), allowed));
            }
        };
        Ok(EncoderConfig {
            architecture,
            vocabulary: sized("vocab_size", raw.vocab_size, VOCABULARY_MAX)?,
            width,
            layers: sized("num_hidden_layers", raw.num_hidden_layers, LAYERS_MAX)?,
            heads,
            inner_width: sized("intermediate_size", raw.intermediate_size, 8 * WIDTH_MAX)?,
            activation,
            positions: sized("max_position_embeddings", raw.max_position_embeddings, POSITIONS_MAX)?,
            types: sized("type_vocab_size", raw.type_vocab_size.unwrap_or(2), 1024)?,
            epsilon: epsilon as f32,
            labels,
        })
    }
}

#[derive(Deserialize)]
struct ModelType {
    model_type: Option<String>,
}

/// The names of the classes in the order of their numbers. Without any, transformers assumes two.
fn labels(place: &str, names: Option<BTreeMap<String, String>>, count: Option<u64>) -> Result<Vec<String>, ModelError> {
    let Some(names) = names else {
        let count = count.unwrap_or(2);
        if !(1..=LABELS_MAX).contains(&count) {
            return Err(ModelError::invalid(format!("{place}: num_labels"), count, format!("1 to {LABELS_MAX}")));
        }
        return Ok((0..count).map(|index| format!("LABEL_{index}")).collect());
    };
    let invalid =
        |found: String| ModelError::invalid(format!("{place}: id2label"), found, "a name for each of 0, 1, ...");
    let mut labels = vec![None; names.len()];
    for (index, name) in names {
        let slot = index.parse::<usize>().ok().and_then(|index| labels.get_mut(index));
        *slot.ok_or_else(|| invalid(format!("the number '{index}'")))? = Some(name);
    }
    let labels: Option<Vec<_>> = labels.into_iter().collect();
    labels.filter(|labels| !labels.is_empty()).ok_or_else(|| invalid("numbers that are not 0, 1, ... in a row".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"model_type": "bert", "architectures": ["BertForSequenceClassification"], "vocab_size": 100,
        "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128,
        "hidden_act": "gelu", "max_position_embeddings": 512, "type_vocab_size": 2, "layer_norm_eps": 1e-12,
        "position_embedding_type": "absolute", "id2label": {"0": "a", "1": "b"}}"#;

    #[test]
    fn a_good_configuration_is_read_whole() {
        let config = EncoderConfig::parse("config.json", GOOD.as_bytes()).unwrap();
        assert_eq!((config.width, config.layers, config.heads, config.inner_width), (64, 2, 2, 128));
        assert_eq!(config.labels, ["a", "b"]);
        assert_eq!(config.activation, Activation::Gelu);
    }

    #[test]
    fn what_cannot_be_served_is_named() {
        let check = |from: &str, to: &str, named: &str| {
            assert!(GOOD.contains(from));
            let error = EncoderConfig::parse("config.json", GOOD.replace(from, to).as_bytes()).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        };
        check(r#""hidden_size": 64"#, r#""hidden_size": 0"#, "hidden_size: found 0; allowed: 1 to 16384");
        check(r#""hidden_size": 64"#, r#""hidden_size": 18446744073709551615"#, "hidden_size");
        check(r#""hidden_size": 64"#, r#""hidden_size": -1"#, "config.json");
        check(r#""hidden_size": 64,"#, "", "hidden_size");
        check(r#""num_attention_heads": 2"#, r#""num_attention_heads": 3"#, "a divisor of hidden_size 64");
        check(r#""num_hidden_layers": 2"#, r#""num_hidden_layers": 1000000"#, "num_hidden_layers");
        check(r#""vocab_size": 100"#, r#""vocab_size": 99999999999"#, "vocab_size");
        check(r#""model_type": "bert""#, r#""model_type": "gpt2""#, "model_type: found 'gpt2'; allowed: bert");
        check(r#""hidden_act": "gelu""#, r#""hidden_act": "mish""#, "allowed: gelu, gelu_new");
        check(r#""absolute""#, r#""relative_key""#, "position_embedding_type: found 'relative_key'");
        check("1e-12", "-1", "layer_norm_eps");
        check(r#""1": "b""#, r#""7": "b""#, "id2label");
        check("BertForSequenceClassification", "BertForTokenClassification", "architectures");
        check("{", "[", "a JSON object");
    }
}
