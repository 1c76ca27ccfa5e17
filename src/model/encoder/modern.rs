//! What only a ModernBERT's configuration says: how each layer attends, which parts have biases, what its classifier is.
//!
//! Two spellings are read. Files of transformers 4 have `global_attn_every_n_layers`, `global_rope_theta` and
//! `local_rope_theta`; those of transformers 5 have `layer_types` and `rope_parameters`, which win where both are there.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::config::{Attention, Biases, Classifier, POSITIONS_MAX, Parts};
use super::keys;
use super::variant::Between;
use crate::config::Pooling;
use crate::model::error::ModelError;
use crate::ops::{Activation, Sight};

/// What transformers assumes where the file says nothing.
const EVERY: u64 = 3;
const WINDOW: u64 = 128;
const GLOBAL_BASE: f64 = 160_000.0;
const LOCAL_BASE: f64 = 10_000.0;

const GLOBAL: &str = "full_attention";
const LOCAL: &str = "sliding_attention";

#[derive(Deserialize)]
struct Keys {
    layer_types: Option<Vec<String>>,
    global_attn_every_n_layers: Option<u64>,
    local_attention: Option<u64>,
    rope_parameters: Option<BTreeMap<String, Option<Rope>>>,
    rope_scaling: Option<Value>,
    global_rope_theta: Option<f64>,
    /// `None` where it is null: as in the global layers.
    #[serde(default = "local_base")]
    local_rope_theta: Option<f64>,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
    norm_bias: Option<bool>,
    classifier_bias: Option<bool>,
    classifier_pooling: Option<String>,
    classifier_activation: Option<Value>,
}

#[derive(Deserialize)]
struct Rope {
    rope_type: Option<String>,
    rope_theta: Option<f64>,
    partial_rotary_factor: Option<f64>,
}

fn local_base() -> Option<f64> {
    Some(LOCAL_BASE)
}

impl Parts {
    /// Those of a ModernBERT. `layers` is the number of them, which is known to be sensible.
    pub(super) fn of_modern(place: &str, bytes: &[u8], layers: usize) -> Result<Parts, ModelError> {
        let keys: Keys = keys::read(place, bytes, "the keys of a ModernBERT configuration")?;
        let at = |key: &str| format!("{place}: {key}");
        if let Some(scaling) = &keys.rope_scaling {
            let allowed = "null: angles grow with the position as they are";
            return Err(ModelError::invalid(at("rope_scaling"), scaling, allowed));
        }
        let window = keys.local_attention.unwrap_or(WINDOW);
        if !(1..=2 * POSITIONS_MAX).contains(&window) {
            return Err(ModelError::invalid(at("local_attention"), window, format!("1 to {}", 2 * POSITIONS_MAX)));
        }
        let [global_base, local_base] = keys.bases(place)?;
        let attention = |local: bool| match local {
            // Half of the window on either side; the position itself comes on top.
            true => Attention { sight: Sight::around(window as usize / 2), rotary_base: Some(local_base) },
            false => Attention { sight: Sight::EVERYTHING, rotary_base: Some(global_base) },
        };
        let activation = match &keys.classifier_activation {
            None => Activation::Gelu,
            Some(name) => name
                .as_str()
                .and_then(Activation::named)
                .ok_or_else(|| ModelError::invalid(at("classifier_activation"), name, Activation::NAMES))?,
        };
        let pooling = match keys.classifier_pooling.as_deref() {
            None | Some("cls") => Pooling::Cls,
            Some("mean") => Pooling::Mean,
            Some(other) => {
                return Err(ModelError::invalid(at("classifier_pooling"), format!("'{other}'"), "cls, mean"));
            }
        };
        Ok(Parts {
            layers: keys.local_layers(place, layers)?.into_iter().map(attention).collect(),
            biases: Biases {
                attention: keys.attention_bias.unwrap_or(false),
                feed_forward: keys.mlp_bias.unwrap_or(false),
                norms: keys.norm_bias.unwrap_or(false),
                classifier: keys.classifier_bias.unwrap_or(false),
            },
            classifier: Classifier {
                pooling,
                between: Between::Activation(activation),
                is_normed: true,
                is_deep_for_tokens: true,
            },
        })
    }
}

impl Keys {
    /// Whether each layer sees its window only.
    fn local_layers(&self, place: &str, layers: usize) -> Result<Vec<bool>, ModelError> {
        let at = |key: &str| format!("{place}: {key}");
        let Some(types) = &self.layer_types else {
            return match self.global_attn_every_n_layers.unwrap_or(EVERY) {
                0 => Err(ModelError::invalid(at("global_attn_every_n_layers"), 0, "1 or more")),
                every => Ok((0..layers as u64).map(|layer| layer % every != 0).collect()),
            };
        };
        if types.len() != layers {
            let allowed = format!("{layers}, one for each of num_hidden_layers");
            return Err(ModelError::invalid(at("layer_types"), format!("{} entries", types.len()), allowed));
        }
        let is_local = |kind: &String| match kind.as_str() {
            GLOBAL => Ok(false),
            LOCAL => Ok(true),
            other => Err(ModelError::invalid(at("layer_types"), format!("'{other}'"), format!("{GLOBAL}, {LOCAL}"))),
        };
        types.iter().map(is_local).collect()
    }

    /// Of global and of local layers.
    fn bases(&self, place: &str) -> Result<[f64; 2], ModelError> {
        let no_parameters = BTreeMap::new();
        let parameters = self.rope_parameters.as_ref().unwrap_or(&no_parameters);
        if let Some(other) = parameters.keys().find(|key| ![GLOBAL, LOCAL].contains(&key.as_str())) {
            let allowed = format!("{GLOBAL}, {LOCAL}: each with a rope_theta of its own");
            return Err(ModelError::invalid(format!("{place}: rope_parameters"), format!("'{other}'"), allowed));
        }
        let base = |kind: &str, old_key: &str, old: f64| {
            let at = |key: &str| format!("{place}: rope_parameters.{kind}.{key}");
            let rope = parameters.get(kind).and_then(Option::as_ref);
            if let Some(other) = rope.and_then(|rope| rope.rope_type.as_ref()).filter(|kind| *kind != "default") {
                return Err(ModelError::invalid(at("rope_type"), format!("'{other}'"), "default"));
            }
            if let Some(part) = rope.and_then(|rope| rope.partial_rotary_factor).filter(|part| *part != 1.0) {
                return Err(ModelError::invalid(at("partial_rotary_factor"), part, "1: heads are turned whole"));
            }
            let (key, found) = match rope.and_then(|rope| rope.rope_theta) {
                Some(theta) => (at("rope_theta"), theta),
                None => (format!("{place}: {old_key}"), old),
            };
            match found {
                1.0..=1e12 => Ok(found),
                _ => Err(ModelError::invalid(key, found, "1 to 1e12")),
            }
        };
        let global = self.global_rope_theta.unwrap_or(GLOBAL_BASE);
        let local = self.local_rope_theta.unwrap_or(global);
        Ok([base(GLOBAL, "global_rope_theta", global)?, base(LOCAL, "local_rope_theta", local)?])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = r#"{"global_attn_every_n_layers": 3, "global_rope_theta": 5000.0, "local_rope_theta": 70.0,
        "local_attention": 11, "norm_bias": false, "classifier_pooling": "mean", "classifier_activation": "gelu"}"#;

    const NEW: &str = r#"{"layer_types": ["full_attention", "sliding_attention", "sliding_attention",
        "full_attention"], "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 5000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 70.0}}, "local_attention": 11,
        "classifier_pooling": "mean", "rope_scaling": null}"#;

    fn parse(text: &str) -> Result<Parts, ModelError> {
        Parts::of_modern("config.json", text.as_bytes(), 4)
    }

    fn attention(reach: Option<usize>, base: f64) -> Attention {
        Attention { sight: reach.map_or(Sight::EVERYTHING, Sight::around), rotary_base: Some(base) }
    }

    #[test]
    fn both_spellings_say_the_same() {
        for text in [OLD, NEW] {
            let parts = parse(text).unwrap();
            let (global, local) = (attention(None, 5000.0), attention(Some(5), 70.0));
            assert_eq!(parts.layers, [global, local, local, global]);
            assert_eq!(parts.classifier.pooling, Pooling::Mean);
        }
    }

    #[test]
    fn what_is_not_said_is_what_transformers_assumes() {
        let parts = parse("{}").unwrap();
        let (global, local) = (attention(None, 160_000.0), attention(Some(64), 10_000.0));
        assert_eq!(parts.layers, [global, local, local, global]);
        let Biases { attention, feed_forward, norms, classifier } = parts.biases;
        assert!(![attention, feed_forward, norms, classifier].contains(&true));
        let between = Between::Activation(Activation::Gelu);
        assert_eq!(
            parts.classifier,
            Classifier { pooling: Pooling::Cls, between, is_normed: true, is_deep_for_tokens: true }
        );
    }

    #[test]
    fn a_local_base_of_null_is_the_global_one() {
        let parts = parse(&OLD.replace("70.0", "null")).unwrap();
        assert_eq!(parts.layers[1].rotary_base, Some(5000.0));
    }

    #[test]
    fn new_keys_win_over_old_ones() {
        let both = NEW.replacen('{', r#"{"global_attn_every_n_layers": 1, "global_rope_theta": 3.0,"#, 1);
        assert_eq!(parse(&both).unwrap().layers, parse(NEW).unwrap().layers);
    }

    #[test]
    fn what_cannot_be_served_is_named() {
        let check = |good: &str, from: &str, to: &str, named: &str| {
            assert!(good.contains(from), "{from}");
            let error = parse(&good.replace(from, to)).err().expect(to).to_string();
            assert!(error.contains(named), "{error}");
        };
        check(OLD, r#"layers": 3"#, r#"layers": 0"#, "global_attn_every_n_layers: found 0; allowed: 1 or more");
        check(OLD, r#"attention": 11"#, r#"attention": 0"#, "local_attention: found 0; allowed: 1 to");
        check(OLD, r#"attention": 11"#, r#"attention": -1"#, "ModernBERT");
        check(OLD, "5000.0", "0.5", "global_rope_theta: found 0.5; allowed: 1 to 1e12");
        check(OLD, "70.0", "1e300", "local_rope_theta: found 1");
        check(OLD, r#""mean""#, r#""max""#, "classifier_pooling: found 'max'; allowed: cls, mean");
        check(OLD, r#""gelu""#, r#""silu""#, r#"classifier_activation: found "silu"; allowed: gelu, gelu_new"#);
        check(NEW, "\"sliding_attention\", \"sl", "\"sl", "layer_types: found 3 entries; allowed: 4");
        check(
            NEW,
            "[\"full_attention\"",
            "[\"chunked_attention\"",
            "layer_types: found 'chunked_attention'; allowed: full",
        );
        check(NEW, "5000.0", "-1.0", "rope_parameters.full_attention.rope_theta: found -1");
        check(
            NEW,
            r#""default", "rope_theta": 70.0"#,
            r#""yarn""#,
            "sliding_attention.rope_type: found 'yarn'; allowed: default",
        );
        check(NEW, "70.0", r#"70.0, "partial_rotary_factor": 0.5"#, "partial_rotary_factor: found 0.5; allowed: 1");
        check(
            NEW,
            r#""sliding_attention": {"#,
            r#""other": {"#,
            "rope_parameters: found 'other'; allowed: full_attention",
        );
        check(NEW, r#"scaling": null"#, r#"scaling": {"type": "linear"}"#, "rope_scaling: found {\"type\":\"linear\"}");
    }
}
