//! What is known of a model before it is loaded.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::config::{Dtype, Pooling, Task};
use crate::tokenize::TextEncoder;

/// The static facts of one model: on the host, shared by everybody, the same for as long as the revision is served.
#[derive(Clone, Debug)]
pub struct ModelCard {
    /// The name that clients use.
    pub name: String,
    /// Which revision of the model this is: 1 at the start of the server, one more with each that replaces it. Only one is
    /// served at a time.
    pub version: u32,
    /// The class in the model's own configuration, such as `BertModel`.
    pub architecture: String,
    /// What it is for.
    pub task: Task,
    /// How its matrices are held.
    pub dtype: Dtype,
    /// Longest sequence in tokens, special ones included.
    pub length_max: u32,
    /// Values of a result: of an embedding, or the number of labels.
    pub dimensions: u32,
    /// Names of the labels in the order of the logits; empty for an embedder.
    pub labels: Vec<String>,
    /// How hidden states become one vector; `None` for classifiers and rerankers.
    pub pooling: Option<Pooling>,
    /// Whether embeddings are normalized unless a request says otherwise.
    pub normalize: bool,
    /// Texts that are put before the input, by name.
    pub prompts: BTreeMap<String, String>,
    /// The prompt of requests that name none; one of `prompts`.
    pub default_prompt: Option<String>,
    /// Token ids are below this.
    pub vocab_size: u32,
    /// Type ids are below this.
    pub type_vocab_size: u32,
    /// Text to tokens.
    pub encoder: Arc<TextEncoder>,
}
