//! What the tensors of an encoder are called, in the names of both file formats.

use crate::model::weights::{Naming, Weights};

/// Finds names in one model's files.
pub(super) struct Names {
    naming: Naming,
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

impl Names {
    pub(super) fn of(weights: &Weights) -> Names {
        let bare = weights.get("embeddings.word_embeddings.weight").is_some();
        let prefix = if weights.naming == Naming::HuggingFace && !bare { "bert." } else { "" };
        Names { naming: weights.naming, prefix }
    }

    fn choose(&self, hugging_face: &str, gguf: &str) -> String {
        match self.naming {
            Naming::HuggingFace => format!("{}{hugging_face}", self.prefix),
            Naming::Gguf => gguf.to_owned(),
        }
    }

    pub(super) fn words(&self) -> String {
        self.choose("embeddings.word_embeddings.weight", "token_embd.weight")
    }

    pub(super) fn positions(&self) -> String {
        self.choose("embeddings.position_embeddings.weight", "position_embd.weight")
    }

    pub(super) fn types(&self) -> String {
        self.choose("embeddings.token_type_embeddings.weight", "token_types.weight")
    }

    /// Without `.weight` or `.bias`, as all that follow.
    pub(super) fn embeddings_norm(&self) -> String {
        self.choose("embeddings.LayerNorm", "token_embd_norm")
    }

    pub(super) fn of_layer(&self, layer: usize, part: Part) -> String {
        let (hugging_face, gguf) = match part {
            Part::Query => ("attention.self.query", "attn_q"),
            Part::Key => ("attention.self.key", "attn_k"),
            Part::Value => ("attention.self.value", "attn_v"),
            Part::AttentionOutput => ("attention.output.dense", "attn_output"),
            Part::AttentionNorm => ("attention.output.LayerNorm", "attn_output_norm"),
            Part::Up => ("intermediate.dense", "ffn_up"),
            Part::Down => ("output.dense", "ffn_down"),
            Part::OutputNorm => ("output.LayerNorm", "layer_output_norm"),
        };
        self.choose(&format!("encoder.layer.{layer}.{hugging_face}"), &format!("blk.{layer}.{gguf}"))
    }

    pub(super) fn pooler(&self) -> String {
        self.choose("pooler.dense", "cls")
    }

    /// The classifier stands outside the encoder and never has its prefix.
    pub(super) fn classifier(&self) -> &'static str {
        match self.naming {
            Naming::HuggingFace => "classifier",
            Naming::Gguf => "cls.output",
        }
    }
}
