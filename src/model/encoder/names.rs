//! What the tensors of an encoder are called, in the names of both file formats.

use super::variant::Variant;
use crate::model::weights::{Naming, Weights};

/// Finds names in one model's files.
pub(super) struct Names {
    naming: Naming,
    variant: Variant,
    /// `bert.` where the encoder is a part of a larger model.
    prefix: &'static str,
}

/// One linear layer or norm of an encoder's layer.
#[derive(Clone, Copy)]
pub(super) enum Part {
    Query,
    Key,
    Value,
    AttentionOutput,
    AttentionNorm,
    Up,
    Down,
    OutputNorm,
}

/// One thing's names.
#[derive(Clone, Copy)]
struct Known {
    /// BERT's, which are RoBERTa's too.
    bert: &'static str,
    distilbert: &'static str,
    gguf: &'static str,
}

const fn known(bert: &'static str, distilbert: &'static str, gguf: &'static str) -> Known {
    Known { bert, distilbert, gguf }
}

impl Part {
    const fn known(self) -> Known {
        match self {
            Part::Query => known("attention.self.query", "attention.q_lin", "attn_q"),
            Part::Key => known("attention.self.key", "attention.k_lin", "attn_k"),
            Part::Value => known("attention.self.value", "attention.v_lin", "attn_v"),
            Part::AttentionOutput => known("attention.output.dense", "attention.out_lin", "attn_output"),
            Part::AttentionNorm => known("attention.output.LayerNorm", "sa_layer_norm", "attn_output_norm"),
            Part::Up => known("intermediate.dense", "ffn.lin1", "ffn_up"),
            Part::Down => known("output.dense", "ffn.lin2", "ffn_down"),
            Part::OutputNorm => known("output.LayerNorm", "output_layer_norm", "layer_output_norm"),
        }
    }
}

const LAYERS: Known = known("encoder.layer", "transformer.layer", "blk");

impl Names {
    pub(super) fn of(weights: &Weights, variant: Variant) -> Names {
        let bare = weights.get("embeddings.word_embeddings.weight").is_some();
        let prefix = match variant {
            _ if weights.naming == Naming::Gguf || bare => "",
            Variant::Bert => "bert.",
            Variant::Roberta => "roberta.",
            Variant::DistilBert => "distilbert.",
        };
        Names { naming: weights.naming, variant, prefix }
    }

    fn choose(&self, known: Known) -> &'static str {
        match (self.naming, self.variant) {
            (Naming::Gguf, _) => known.gguf,
            (Naming::HuggingFace, Variant::Bert | Variant::Roberta) => known.bert,
            (Naming::HuggingFace, Variant::DistilBert) => known.distilbert,
        }
    }

    /// Names of what stands before the layers, where the variants agree.
    fn embedding(&self, hugging_face: &'static str, gguf: &'static str) -> String {
        format!("{}{}", self.prefix, self.choose(known(hugging_face, hugging_face, gguf)))
    }

    pub(super) fn words(&self) -> String {
        self.embedding("embeddings.word_embeddings.weight", "token_embd.weight")
    }

    pub(super) fn positions(&self) -> String {
        self.embedding("embeddings.position_embeddings.weight", "position_embd.weight")
    }

    pub(super) fn types(&self) -> String {
        self.embedding("embeddings.token_type_embeddings.weight", "token_types.weight")
    }

    /// Without `.weight` or `.bias`, as all that follow.
    pub(super) fn embeddings_norm(&self) -> String {
        self.embedding("embeddings.LayerNorm", "token_embd_norm")
    }

    pub(super) fn of_layer(&self, layer: usize, part: Part) -> String {
        format!("{}{}.{layer}.{}", self.prefix, self.choose(LAYERS), self.choose(part.known()))
    }

    /// The two layers of a classifier. They stand outside the encoder and have no prefix, BERT's pooler excepted.
    pub(super) fn classifier(&self) -> [String; 2] {
        let [first, second] = match (self.naming, self.variant) {
            (Naming::Gguf, _) => ["cls", "cls.output"],
            (Naming::HuggingFace, Variant::Bert) => {
                return [format!("{}pooler.dense", self.prefix), "classifier".into()];
            }
            (Naming::HuggingFace, Variant::Roberta) => ["classifier.dense", "classifier.out_proj"],
            (Naming::HuggingFace, Variant::DistilBert) => ["pre_classifier", "classifier"],
        };
        [first.to_owned(), second.to_owned()]
    }
}
