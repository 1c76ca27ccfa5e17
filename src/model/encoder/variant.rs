//! What tells the encoders of the family apart. Beside these facts and the names of their tensors they are one
//! computation.

use candle_core::{Result, Tensor};

use crate::model::layers::Order;
use crate::ops::Activation;

/// An encoder of the family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
    /// Word, position and type embeddings; a classifier reads the pooler's state.
    Bert,
    /// BERT whose positions begin behind the padding's id and whose classifier has a layer of its own. XLM-RoBERTa and
    /// CamemBERT are RoBERTa with other vocabularies.
    Roberta,
    /// BERT without types, with other names and with a classifier that cuts off what is negative.
    DistilBert,
    /// Rotated queries and keys, windows in most layers, gated feed-forward blocks, norms before the blocks.
    ModernBert,
}

/// What `model_type` may say, and what the names of the model's classes begin with.
pub(super) const MODEL_TYPES: [(&str, &str, Variant); 6] = [
    ("bert", "Bert", Variant::Bert),
    ("roberta", "Roberta", Variant::Roberta),
    ("xlm-roberta", "XLMRoberta", Variant::Roberta),
    ("camembert", "Camembert", Variant::Roberta),
    ("distilbert", "DistilBert", Variant::DistilBert),
    ("modernbert", "ModernBert", Variant::ModernBert),
];

/// The function between the two layers of a classifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Between {
    Tanh,
    Activation(Activation),
}

impl Variant {
    /// Where norms stand.
    pub(super) const fn order(self) -> Order {
        match self {
            Variant::Bert | Variant::Roberta | Variant::DistilBert => Order::After,
            Variant::ModernBert => Order::Before,
        }
    }

    /// Whether feed-forward blocks are gated.
    pub(super) const fn is_gated(self) -> bool {
        match self {
            Variant::Bert | Variant::Roberta | Variant::DistilBert => false,
            Variant::ModernBert => true,
        }
    }
}

impl Between {
    pub(super) fn of(self, x: &Tensor) -> Result<Tensor> {
        match self {
            Between::Tanh => x.tanh(),
            Between::Activation(activation) => activation.of(x),
        }
    }
}
