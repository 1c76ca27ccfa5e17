//! What fuzzing calls: each function takes bytes from outside through the way that they have in the server, and panics
//! if something is wrong that no bytes may bring about. `tests/fuzz_corpus.rs` calls the same with what is in `corpus/`.

mod engine;
mod wire;
mod files;

pub use files::{gguf, model_config, model_toml, safetensors, tokenizer};
pub use wire::{http_json, oip_tensors, rest_infer};

/// Takes the bytes of one input.
pub type Target = fn(&[u8]);

/// Every target by its name, which its folder in `corpus/` has too.
pub const TARGETS: [(&str, Target); 8] = [
    ("oip_tensors", oip_tensors),
    ("rest_infer", rest_infer),
    ("http_json", http_json),
    ("safetensors", safetensors),
    ("gguf", gguf),
    ("tokenizer", tokenizer),
    ("model_config", model_config),
    ("model_toml", model_toml),
];
