//! The `config.json` of an encoder, validated.

use std::collections::BTreeMap;

use super::keys::{Common, Keyed, ModelType, Own, Positions, read};
use super::variant::{Between, MODEL_TYPES, Variant};
use crate::config::Pooling;
use crate::model::error::ModelError;
use crate::ops::{Activation, Sight};

/// Bounds no encoder of the family comes near, far below what would overflow or exhaust memory by itself.
const WIDTH_MAX: u64 = 16_384;
const LAYERS_MAX: u64 = 256;
const VOCABULARY_MAX: u64 = 4_000_000;
pub(super) const POSITIONS_MAX: u64 = 1 << 20;
const LABELS_MAX: u64 = 65_536;

/// The shape of an encoder.
#[derive(Clone, Debug)]
pub(crate) struct EncoderConfig {
    pub(crate) variant: Variant,
    pub(crate) architecture: String,
    pub(crate) vocabulary: usize,
    pub(crate) width: usize,
    pub(crate) layers: Vec<Attention>,
    pub(crate) heads: usize,
    pub(crate) inner_width: usize,
    pub(crate) activation: Activation,
    /// Positions that a text can have.
    pub(crate) positions: usize,
    /// The row of the table of positions for a text's first token, the next rows being for the next tokens: no padding
    /// comes between them. `first_position + positions` is all rows. `None`: there is no such table.
    pub(crate) first_position: Option<usize>,
    /// Rows of the table of types; `None`: there is no such table.
    pub(crate) types: Option<usize>,
    pub(crate) epsilon: f32,
    pub(crate) biases: Biases,
    pub(crate) classifier: Classifier,
    pub(crate) classifies: Classifies,
    /// Names of the classes; empty unless the architecture is a classifier's.
    pub(crate) labels: Vec<String>,
}

/// What an architecture gives labels to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Classifies {
    /// It has no classifier.
    Nothing,
    Texts,
    Tokens,
}

/// How a layer attends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Attention {
    pub(crate) sight: Sight,
    /// What the angles by which queries and keys are turned are powers of; `None`: they are not turned.
    pub(crate) rotary_base: Option<f64>,
}

/// Which parts of an encoder have biases. A classifier's last layer always has one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Biases {
    pub(crate) attention: bool,
    pub(crate) feed_forward: bool,
    pub(crate) norms: bool,
    pub(crate) classifier: bool,
}

/// What comes before a classifier's last layer: of texts a vector of the states, then a layer, a function, and perhaps a
/// norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Classifier {
    pub(crate) pooling: Pooling,
    pub(crate) between: Between,
    pub(crate) is_normed: bool,
    /// Whether a classifier of tokens has that layer too.
    pub(crate) is_deep_for_tokens: bool,
}

/// What an encoder consists of, beside its sizes.
pub(super) struct Parts {
    pub(super) layers: Vec<Attention>,
    pub(super) biases: Biases,
    pub(super) classifier: Classifier,
}

impl Parts {
    /// Those of the older variants: positions are in the embeddings, every layer sees everything, all has its bias.
    fn of_bert(layers: usize, between: Between) -> Parts {
        Parts {
            layers: vec![Attention { sight: Sight::EVERYTHING, rotary_base: None }; layers],
            biases: Biases { attention: true, feed_forward: true, norms: true, classifier: true },
            classifier: Classifier { pooling: Pooling::Cls, between, is_normed: false, is_deep_for_tokens: false },
        }
    }
}

impl EncoderConfig {
    /// Reads and checks `bytes`, which errors call `place`.
    pub(crate) fn parse(place: &str, bytes: &[u8]) -> Result<EncoderConfig, ModelError> {
        let at = |key: &str| format!("{place}: {key}");
        let ModelType { model_type } = read(place, bytes, "a JSON object")?;
        let known = MODEL_TYPES.iter().find(|(name, _, _)| model_type.as_deref() == Some(*name));
        let Some(&(_, class, variant)) = known else {
            let found = model_type.map_or("nothing".to_owned(), |found| format!("'{found}'"));
            return Err(ModelError::invalid(at("model_type"), found, MODEL_TYPES.map(|(name, _, _)| name).join(", ")));
        };
        let own = Own::read(variant, place, bytes)?;
        let common: Common = read(place, bytes, "the keys of an encoder's configuration")?;
        let sized = |key: &str, value: u64, most: u64| match value {
            1.. if value <= most => Ok(value as usize),
            _ => Err(ModelError::invalid(at(key), value, format!("1 to {most}"))),
        };
        let keyed = |Keyed { key, value }: Keyed<u64>, most: u64| sized(key, value, most);
        let (width_key, heads_key) = (own.width.key, own.heads.key);
        let (width, heads) = (keyed(own.width, WIDTH_MAX)?, keyed(own.heads, WIDTH_MAX)?);
        if width % heads != 0 {
            return Err(ModelError::invalid(at(heads_key), heads, format!("a divisor of {width_key} {width}")));
        }
        let Keyed { key, value: epsilon } = own.epsilon;
        if !(epsilon > 0.0 && epsilon < 1.0) {
            return Err(ModelError::invalid(at(key), epsilon, "more than 0 and less than 1"));
        }
        // ModernBERT's files say one thing or another, which nothing reads.
        let said = common.position_embedding_type.filter(|_| variant != Variant::ModernBert);
        if let Some(kind) = said.filter(|kind| kind != "absolute") {
            return Err(ModelError::invalid(at("position_embedding_type"), format!("'{kind}'"), "absolute"));
        }
        if common.is_decoder == Some(true) {
            return Err(ModelError::invalid(at("is_decoder"), true, "false: attention goes both ways in an encoder"));
        }
        let activation = match &own.activation.value {
            None => Activation::Gelu,
            Some(name) => name
                .as_str()
                .and_then(Activation::named)
                .ok_or_else(|| ModelError::invalid(at(own.activation.key), name, Activation::NAMES))?,
        };
        let architecture = match common.architectures.as_deref() {
            Some([first, ..]) => first.clone(),
            _ => format!("{class}Model"),
        };
        let classifies = match (architecture.strip_prefix(class), variant) {
            (Some("Model" | "ForMaskedLM"), _) | (Some("ForPreTraining"), Variant::Bert) => Classifies::Nothing,
            (Some("ForSequenceClassification"), _) => Classifies::Texts,
            (Some("ForTokenClassification"), _) => Classifies::Tokens,
            _ => {
                let mut allowed = format!(
                    "{class}Model, {class}ForMaskedLM, {class}ForSequenceClassification, {class}ForTokenClassification"
                );
                if variant == Variant::Bert {
                    allowed.push_str(", BertForPreTraining");
                }
                return Err(ModelError::invalid(at("architectures"), format!("'{architecture}'"), allowed));
            }
        };
        let labels = match classifies {
            Classifies::Nothing => Vec::new(),
            Classifies::Texts | Classifies::Tokens => labels(place, common.id2label, common.num_labels)?,
        };
        let table = sized("max_position_embeddings", common.max_position_embeddings, POSITIONS_MAX)?;
        let first_position = match own.positions {
            Positions::Rotation => None,
            Positions::Table => Some(0),
            Positions::TableBehind(id) if id < table as u64 - 1 => Some(id as usize + 1),
            Positions::TableBehind(id) => {
                let allowed = format!("less than {}: positions begin behind it", table - 1);
                return Err(ModelError::invalid(at("pad_token_id"), id, allowed));
            }
        };
        let layers = keyed(own.layers, LAYERS_MAX)?;
        let Parts { layers, biases, classifier } = match variant {
            Variant::ModernBert => Parts::of_modern(place, bytes, layers)?,
            Variant::Bert | Variant::Roberta => Parts::of_bert(layers, Between::Tanh),
            Variant::DistilBert => Parts::of_bert(layers, Between::Activation(Activation::Relu)),
        };
        if layers.iter().any(|layer| layer.rotary_base.is_some()) && !(width / heads).is_multiple_of(2) {
            let allowed = format!("heads of an even number of values, which {width_key} {width} is divided into");
            return Err(ModelError::invalid(at(heads_key), heads, allowed));
        }
        Ok(EncoderConfig {
            variant,
            architecture,
            vocabulary: sized("vocab_size", common.vocab_size, VOCABULARY_MAX)?,
            width,
            layers,
            heads,
            inner_width: keyed(own.inner_width, 8 * WIDTH_MAX)?,
            activation,
            positions: table - first_position.unwrap_or(0),
            first_position,
            types: own.types.map(|types| sized("type_vocab_size", types, 1024)).transpose()?,
            epsilon: epsilon as f32,
            biases,
            classifier,
            classifies,
            labels,
        })
    }

    /// What those layers see that do not see everything.
    pub(crate) fn window(&self) -> Option<Sight> {
        self.layers.iter().map(|layer| layer.sight).find(|sight| *sight != Sight::EVERYTHING)
    }

    /// Values of a head.
    pub(crate) fn head_size(&self) -> usize {
        self.width / self.heads
    }

    /// Whether the classifier has a layer before its last one.
    pub(crate) fn is_deep(&self) -> bool {
        self.classifies != Classifies::Tokens || self.classifier.is_deep_for_tokens
    }

    /// Type ids that a row may name. Without a table that is 0, which is no information.
    pub(crate) fn type_count(&self) -> usize {
        self.types.unwrap_or(1)
    }
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

    const BERT: &str = r#"{"model_type": "bert", "architectures": ["BertForSequenceClassification"], "vocab_size": 100,
        "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128,
        "hidden_act": "gelu", "max_position_embeddings": 512, "type_vocab_size": 2, "layer_norm_eps": 1e-12,
        "position_embedding_type": "absolute", "id2label": {"0": "a", "1": "b"}}"#;

    const ROBERTA: &str = r#"{"model_type": "roberta", "architectures": ["RobertaForSequenceClassification"],
        "vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 128, "hidden_act": "gelu", "max_position_embeddings": 514, "type_vocab_size": 1,
        "layer_norm_eps": 1e-5, "position_embedding_type": "absolute", "pad_token_id": 1, "id2label": {"0": "a"}}"#;

    const DISTILBERT: &str = r#"{"model_type": "distilbert", "architectures": ["DistilBertForSequenceClassification"],
        "vocab_size": 100, "dim": 64, "n_layers": 2, "n_heads": 2, "hidden_dim": 128, "activation": "gelu",
        "max_position_embeddings": 512, "sinusoidal_pos_embds": false, "id2label": {"0": "a", "1": "b"}}"#;

    const MODERNBERT: &str = r#"{"model_type": "modernbert", "architectures": ["ModernBertForSequenceClassification"],
        "vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 128, "hidden_activation": "gelu", "max_position_embeddings": 512, "norm_eps": 1e-5,
        "layer_norm_eps": 7, "position_embedding_type": "sans_pos", "local_attention": 32,
        "id2label": {"0": "a", "1": "b"}}"#;

    fn parse(text: &str) -> Result<EncoderConfig, ModelError> {
        EncoderConfig::parse("config.json", text.as_bytes())
    }

    /// `good` with a change is refused, with an error that says `named`.
    #[track_caller]
    fn refused(good: &str, from: &str, to: &str, named: &str) {
        assert!(good.contains(from), "{from}");
        let error = parse(&good.replace(from, to)).unwrap_err().to_string();
        assert!(error.contains(named), "{error}");
    }

    #[test]
    fn a_good_configuration_is_read_whole() {
        for good in [BERT, ROBERTA, DISTILBERT, MODERNBERT] {
            let config = parse(good).unwrap();
            assert_eq!((config.width, config.layers.len(), config.heads, config.inner_width), (64, 2, 2, 128));
            assert_eq!((config.vocabulary, config.positions, config.activation), (100, 512, Activation::Gelu));
        }
        let [bert, roberta, distilbert, modern] =
            [BERT, ROBERTA, DISTILBERT, MODERNBERT].map(|good| parse(good).unwrap());
        assert_eq!((bert.variant, bert.first_position, bert.types), (Variant::Bert, Some(0), Some(2)));
        assert_eq!((roberta.variant, roberta.first_position, roberta.types), (Variant::Roberta, Some(2), Some(1)));
        assert_eq!(
            (distilbert.variant, distilbert.first_position, distilbert.types),
            (Variant::DistilBert, Some(0), None)
        );
        assert_eq!((modern.variant, modern.first_position, modern.types), (Variant::ModernBert, None, None));
        let all = [&bert, &roberta, &distilbert, &modern];
        assert_eq!(all.map(|config| config.epsilon), [1e-12, 1e-5, 1e-12, 1e-5]);
        assert_eq!(all.map(|config| config.labels.len()), [2, 1, 2, 2]);
        assert!(all.iter().all(|config| config.classifies == Classifies::Texts));
        assert_eq!(all.map(EncoderConfig::type_count), [2, 1, 1, 1]);
        assert_eq!(all.map(EncoderConfig::window), [None, None, None, Some(Sight::around(16))]);
        assert_eq!(modern.layers[1].rotary_base, Some(10_000.0));
    }

    #[test]
    fn classifiers_of_tokens_have_labels() {
        for good in [BERT, ROBERTA, DISTILBERT, MODERNBERT] {
            let [texts, tokens] = ["ForSequenceClassification", "ForTokenClassification"]
                .map(|class| parse(&good.replace("ForSequenceClassification", class)).unwrap());
            assert_eq!((tokens.classifies, tokens.labels), (Classifies::Tokens, texts.labels));
        }
    }

    #[test]
    fn relatives_of_roberta_differ_in_their_names() {
        let check = |model_type: &str, class: &str| {
            let text = ROBERTA.replace("\"roberta\"", &format!("\"{model_type}\"")).replace("Roberta", class);
            let config = parse(&text).unwrap();
            assert_eq!((config.variant, config.first_position), (Variant::Roberta, Some(2)));
            assert_eq!(config.architecture, format!("{class}ForSequenceClassification"));
            refused(
                &text,
                "ForSequenceClassification",
                "ForCausalLM",
                &format!("allowed: {class}Model, {class}ForMaskedLM"),
            );
        };
        check("roberta", "Roberta");
        check("xlm-roberta", "XLMRoberta");
        check("camembert", "Camembert");
    }

    #[test]
    fn what_is_not_said_is_what_transformers_assumes() {
        let without = ["\"pad_token_id\": 1,", "\"layer_norm_eps\": 1e-5,", "\"type_vocab_size\": 1,"]
            .iter()
            .fold(ROBERTA.to_owned(), |text, key| text.replace(key, ""));
        let config = parse(&without).unwrap();
        assert_eq!((config.first_position, config.epsilon, config.types), (Some(2), 1e-12, Some(2)));
    }

    #[test]
    fn what_cannot_be_served_is_named() {
        let check = |from: &str, to: &str, named: &str| refused(BERT, from, to, named);
        check(r#""hidden_size": 64"#, r#""hidden_size": 0"#, "hidden_size: found 0; allowed: 1 to 16384");
        check(r#""hidden_size": 64"#, r#""hidden_size": 18446744073709551615"#, "hidden_size");
        check(r#""hidden_size": 64"#, r#""hidden_size": -1"#, "config.json");
        check(r#""hidden_size": 64,"#, "", "hidden_size");
        check(r#""num_attention_heads": 2"#, r#""num_attention_heads": 3"#, "a divisor of hidden_size 64");
        check(r#""num_hidden_layers": 2"#, r#""num_hidden_layers": 1000000"#, "num_hidden_layers");
        check(r#""vocab_size": 100"#, r#""vocab_size": 99999999999"#, "vocab_size");
        check(
            r#""model_type": "bert""#,
            r#""model_type": "gpt2""#,
            "model_type: found 'gpt2'; allowed: bert, roberta, xlm-roberta, camembert, distilbert, modernbert",
        );
        check(r#""model_type": "bert","#, "", "model_type: found nothing; allowed: bert, roberta");
        check(r#""hidden_act": "gelu""#, r#""hidden_act": "mish""#, "allowed: gelu, gelu_new");
        check(r#""absolute""#, r#""relative_key""#, "position_embedding_type: found 'relative_key'");
        check("1e-12", "-1", "layer_norm_eps");
        check(r#""1": "b""#, r#""7": "b""#, "id2label");
        check("BertForSequenceClassification", "BertForQuestionAnswering", "architectures");
        check("{", "[", "a JSON object");
    }

    #[test]
    fn what_cannot_be_served_of_a_roberta_is_named() {
        let check = |from: &str, to: &str, named: &str| refused(ROBERTA, from, to, named);
        check(r#""absolute""#, r#""relative_key_query""#, "found 'relative_key_query'; allowed: absolute");
        check(r#""pad_token_id": 1,"#, r#""pad_token_id": 513,"#, "pad_token_id: found 513; allowed: less than 513");
        check(r#""pad_token_id": 1,"#, r#""pad_token_id": 18446744073709551615,"#, "pad_token_id");
        check(r#""pad_token_id": 1,"#, r#""pad_token_id": -1,"#, "RoBERTa");
        check("514", "0", "max_position_embeddings: found 0");
        check("514", "1", "pad_token_id");
        check(r#""type_vocab_size": 1"#, r#""type_vocab_size": 0"#, "type_vocab_size: found 0");
        check("RobertaForSequenceClassification", "BertModel", "architectures: found 'BertModel'");
        check("RobertaForSequenceClassification", "RobertaForPreTraining", "architectures");
        check(r#""pad_token_id": 1,"#, r#""is_decoder": true,"#, "is_decoder: found true");
    }

    #[test]
    fn what_cannot_be_served_of_a_modernbert_is_named_by_its_keys() {
        let check = |from: &str, to: &str, named: &str| refused(MODERNBERT, from, to, named);
        check(r#""norm_eps": 1e-5"#, r#""norm_eps": 2"#, "config.json: norm_eps: found 2; allowed: more than 0");
        check(r#""hidden_activation": "gelu""#, r#""hidden_activation": "silu""#, "hidden_activation: found \"silu\"");
        check(r#""num_attention_heads": 2"#, r#""num_attention_heads": 64"#, "heads of an even number of values");
        check(r#""local_attention": 32"#, r#""layer_types": []"#, "layer_types: found 0 entries; allowed: 2");
        check("ForSequenceClassification", "ForMultipleChoice", "allowed: ModernBertModel, ModernBertForMaskedLM");
        check("\"hidden_size\": 64,", "", "missing field `hidden_size`");
    }

    #[test]
    fn what_cannot_be_served_of_a_distilbert_is_named_by_its_keys() {
        let check = |from: &str, to: &str, named: &str| refused(DISTILBERT, from, to, named);
        check(r#""dim": 64"#, r#""hidden_size": 64"#, "missing field `dim`");
        check(r#""dim": 64"#, r#""dim": 0"#, "config.json: dim: found 0; allowed: 1 to 16384");
        check(r#""n_heads": 2"#, r#""n_heads": 3"#, "n_heads: found 3; allowed: a divisor of dim 64");
        check(r#""n_layers": 2"#, r#""n_layers": 0"#, "n_layers: found 0");
        check(r#""hidden_dim": 128"#, r#""hidden_dim": 0"#, "hidden_dim: found 0");
        check(r#""activation": "gelu""#, r#""activation": 7"#, "activation: found 7; allowed: gelu");
        check("DistilBertForSequenceClassification", "DistilBertForQuestionAnswering", "allowed: DistilBertModel");
        check(r#""dim": 64"#, r#""position_embedding_type": "rotary", "dim": 64"#, "found 'rotary'; allowed: absolute");
    }
}
