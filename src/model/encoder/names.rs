//! What the tensors of an encoder are called, in the names of both file formats.

use super::config::Classifies;
use super::variant::Variant;
use crate::model::weights::{Naming, Weights};

/// Who named the tensors.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scheme {
    /// BERT's classes, and RoBERTa's.
    Bert,
    DistilBert,
    ModernBert,
    /// llama.cpp, for all but ModernBERT.
    Gguf,
    /// llama.cpp, for ModernBERT.
    ModernGguf,
}

/// A thing's names, by scheme.
type Named = [&'static str; 5];

/// Finds names in one model's files.
pub(super) struct Names {
    scheme: Scheme,
    variant: Variant,
    /// Such as `bert.` where the encoder is a part of a larger model.
    prefix: &'static str,
}

/// One linear layer or norm of an encoder's layer.
#[derive(Clone, Copy)]
pub(super) enum Part {
    AttentionOutput,
    /// The norm of what attention was added to.
    AttentionNorm,
    /// With its gate behind it, where there is one.
    Up,
    Down,
}

impl Part {
    const fn named(self) -> Named {
        match self {
            Part::AttentionOutput => {
                ["attention.output.dense", "attention.out_lin", "attn.Wo", "attn_output", "attn_output"]
            }
            Part::AttentionNorm => {
                ["attention.output.LayerNorm", "sa_layer_norm", "mlp_norm", "attn_output_norm", "ffn_norm"]
            }
            Part::Up => ["intermediate.dense", "ffn.lin1", "mlp.Wi", "ffn_up", "ffn_up"],
            Part::Down => ["output.dense", "ffn.lin2", "mlp.Wo", "ffn_down", "ffn_down"],
        }
    }
}

const LAYERS: Named = ["encoder.layer", "transformer.layer", "layers", "blk", "blk"];
const QUERY: Named = ["attention.self.query", "attention.q_lin", "attn.Wqkv", "attn_q", "attn_qkv"];
const KEY: Named = ["attention.self.key", "attention.k_lin", "", "attn_k", ""];
const VALUE: Named = ["attention.self.value", "attention.v_lin", "", "attn_v", ""];
/// The norm of what the feed-forward block was added to; in ModernBERT that is the next layer's first, and at the end one
/// of its own.
const OUTPUT_NORM: Named = ["output.LayerNorm", "output_layer_norm", "attn_norm", "layer_output_norm", "attn_norm"];
const LAST_NORM: Named = ["", "", "final_norm", "", "output_norm"];

const BERT_WORDS: &str = "embeddings.word_embeddings.weight";
const MODERN_WORDS: &str = "embeddings.tok_embeddings.weight";
const WORDS: Named = [BERT_WORDS, BERT_WORDS, MODERN_WORDS, "token_embd.weight", "token_embd.weight"];
const POSITIONS: &str = "embeddings.position_embeddings.weight";
const TYPES: &str = "embeddings.token_type_embeddings.weight";
const BERT_NORM: &str = "embeddings.LayerNorm";
const NORM: Named = [BERT_NORM, BERT_NORM, "embeddings.norm", "token_embd_norm", "token_embd_norm"];

impl Names {
    pub(super) fn of(weights: &Weights, variant: Variant) -> Names {
        let scheme = match (weights.naming, variant) {
            (Naming::HuggingFace, Variant::Bert | Variant::Roberta) => Scheme::Bert,
            (Naming::HuggingFace, Variant::DistilBert) => Scheme::DistilBert,
            (Naming::HuggingFace, Variant::ModernBert) => Scheme::ModernBert,
            (Naming::Gguf, Variant::Bert | Variant::Roberta | Variant::DistilBert) => Scheme::Gguf,
            (Naming::Gguf, Variant::ModernBert) => Scheme::ModernGguf,
        };
        let bare = weights.get(WORDS[scheme as usize]).is_some();
        let prefix = match variant {
            _ if weights.naming == Naming::Gguf || bare => "",
            Variant::Bert => "bert.",
            Variant::Roberta => "roberta.",
            Variant::DistilBert => "distilbert.",
            Variant::ModernBert => "model.",
        };
        Names { scheme, variant, prefix }
    }

    /// The name of something of the encoder.
    fn of_encoder(&self, named: Named) -> String {
        format!("{}{}", self.prefix, named[self.scheme as usize])
    }

    fn in_layer(&self, layer: usize, named: Named) -> String {
        format!("{}.{layer}.{}", self.of_encoder(LAYERS), named[self.scheme as usize])
    }

    pub(super) fn words(&self) -> String {
        self.of_encoder(WORDS)
    }

    pub(super) fn positions(&self) -> String {
        self.of_encoder([POSITIONS, POSITIONS, "", "position_embd.weight", ""])
    }

    pub(super) fn types(&self) -> String {
        self.of_encoder([TYPES, TYPES, "", "token_types.weight", ""])
    }

    /// Without `.weight` or `.bias`, as all that follow.
    pub(super) fn embeddings_norm(&self) -> String {
        self.of_encoder(NORM)
    }

    pub(super) fn of_layer(&self, layer: usize, part: Part) -> String {
        self.in_layer(layer, part.named())
    }

    /// Of queries, keys and values, whose matrices are one or three; their rows end to end are the same.
    pub(super) fn qkv(&self, layer: usize) -> Vec<String> {
        let parts = [QUERY, KEY, VALUE].into_iter().filter(|named| !named[self.scheme as usize].is_empty());
        parts.map(|named| self.in_layer(layer, named)).collect()
    }

    /// The norm behind a layer, of `layers`.
    pub(super) fn output_norm(&self, layer: usize, layers: usize) -> String {
        match self.variant {
            Variant::Bert | Variant::Roberta | Variant::DistilBert => self.in_layer(layer, OUTPUT_NORM),
            Variant::ModernBert if layer + 1 < layers => self.in_layer(layer + 1, OUTPUT_NORM),
            Variant::ModernBert => self.of_encoder(LAST_NORM),
        }
    }

    /// The layer before a classifier's last one. Like that it stands outside the encoder and has no prefix, BERT's
    /// pooler excepted.
    pub(super) fn classifier_dense(&self) -> String {
        match (self.scheme, self.variant) {
            (Scheme::Gguf | Scheme::ModernGguf, _) => "cls".to_owned(),
            (Scheme::Bert, Variant::Roberta) => "classifier.dense".to_owned(),
            (Scheme::Bert, _) => format!("{}pooler.dense", self.prefix),
            (Scheme::DistilBert, _) => "pre_classifier".to_owned(),
            (Scheme::ModernBert, _) => "head.dense".to_owned(),
        }
    }

    /// A classifier's last layer.
    pub(super) fn classifier_output(&self, classifies: Classifies) -> &'static str {
        match (self.scheme, self.variant, classifies) {
            (Scheme::Gguf | Scheme::ModernGguf, _, _) => "cls.output",
            (Scheme::Bert, Variant::Roberta, Classifies::Texts) => "classifier.out_proj",
            _ => "classifier",
        }
    }

    /// The norm between the two, where there is one.
    pub(super) fn classifier_norm(&self) -> String {
        if self.scheme == Scheme::ModernGguf { "cls.norm".to_owned() } else { "head.norm".to_owned() }
    }
}
