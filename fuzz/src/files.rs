//! Files of models and configurations: written into a folder and read from there as a start of the server does.

use std::fs;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use candle_core::Device;
use plimsoll::config::source::{self, Cache};
use plimsoll::config::{Dtype, Environment, MODEL_FILE, ModelConfig, Repository, ServeOptions, ServerConfig, Source};
use plimsoll::model::{Blueprint, ModelError, ModelFiles, read_every_tensor};
use plimsoll::tokenize::{TextEncoder, TextRow, TokenizerPool, Truncate};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// A sound model of a few kilobytes: an encoder whose states have 8 values, or 32, which blocks of Q8_0 need.
const CONFIG: &[u8] = include_bytes!("../base/config.json");
const CONFIG_32: &[u8] = include_bytes!("../base/config-32.json");
/// One whose files hold two matrices as one.
const CONFIG_MODERN: &[u8] = include_bytes!("../base/config-modern.json");
const TOKENIZER: &[u8] = include_bytes!("../base/tokenizer.json");
const WEIGHTS: &[u8] = include_bytes!("../base/model.safetensors");

fn folder(files: &[(&str, &[u8])]) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, bytes) in files {
        write(&folder.path().join(name), bytes);
    }
    folder
}

fn write(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).expect("the temporary folder takes files");
}

thread_local! {
    static FOR_SAFETENSORS: TempDir = folder(&[("config.json", CONFIG), ("tokenizer.json", TOKENIZER)]);
    static FOR_GGUF: TempDir = folder(&[("config.json", CONFIG_32), ("tokenizer.json", TOKENIZER)]);
    static FOR_MODERN: TempDir = folder(&[("config.json", CONFIG_MODERN), ("tokenizer.json", TOKENIZER)]);
    static FOR_CONFIG: TempDir = folder(&[("tokenizer.json", TOKENIZER), ("model.safetensors", WEIGHTS)]);
    static FOR_SENTENCE: TempDir =
        folder(&[("config.json", CONFIG), ("tokenizer.json", TOKENIZER), ("model.safetensors", WEIGHTS)]);
    static FOR_TOML: TempDir = TempDir::new().expect("a temporary folder");
}

/// Prepares and loads the model in the folder.
fn load(folder: &Path, dtype: Dtype) -> Result<(), ModelError> {
    let config = ModelConfig { dtype, ..ModelConfig::new("fuzzed", Source::Path(folder.to_owned())) };
    let blueprint = Blueprint::new(&config, ModelFiles::open(folder)?)?;
    blueprint.axes();
    blueprint.resident();
    blueprint.load(&Device::Cpu)?;
    Ok(())
}

/// Every tensor by itself, then those that the model needs.
fn weights(folder: &Path) {
    let files = ModelFiles::open(folder).expect("it is there");
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::Q8] {
        // An error is as good as a model.
        let _ = read_every_tensor(&files, dtype);
    }
    let _ = load(folder, Dtype::F32);
}

/// `model.safetensors`.
pub fn safetensors(data: &[u8]) {
    FOR_SAFETENSORS.with(|folder| {
        write(&folder.path().join("model.safetensors"), data);
        weights(folder.path());
    });
}

/// `model.gguf`.
pub fn gguf(data: &[u8]) {
    FOR_GGUF.with(|folder| {
        write(&folder.path().join("model.gguf"), data);
        weights(folder.path());
        let _ = load(folder.path(), Dtype::Q8);
    });
    FOR_MODERN.with(|folder| {
        write(&folder.path().join("model.gguf"), data);
        let _ = load(folder.path(), Dtype::F32);
    });
}

/// `config.json`; then the same bytes as each of the files of sentence-transformers beside it.
pub fn model_config(data: &[u8]) {
    FOR_CONFIG.with(|folder| {
        write(&folder.path().join("config.json"), data);
        let _ = load(folder.path(), Dtype::F32);
    });
    FOR_SENTENCE.with(|folder| {
        let pooling = folder.path().join("1_Pooling");
        fs::create_dir_all(&pooling).expect("the temporary folder takes folders");
        write(&pooling.join("config.json"), data);
        for name in ["tokenizer_config.json", "sentence_bert_config.json", "config_sentence_transformers.json"] {
            write(&folder.path().join(name), data);
        }
        // A list cannot be one of the others, and an object not this one.
        let modules = if data.trim_ascii_start().starts_with(b"[") { data } else { b"[]" };
        write(&folder.path().join("modules.json"), modules);
        let _ = load(folder.path(), Dtype::F32);
    });
}

static TOKENIZING: LazyLock<(Runtime, TokenizerPool)> = LazyLock::new(|| {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    (runtime, TokenizerPool::new(1).expect("a thread"))
});

/// `tokenizer.json`, with which texts are then tokenized as those of requests are.
pub fn tokenizer(data: &[u8]) {
    let encoder = match TextEncoder::new(data, 24, 1024, 2) {
        Ok(encoder) => Arc::new(encoder),
        Err(error) => return assert!(std::str::from_utf8(error.as_bytes()).is_ok(), "an error that is no text"),
    };
    let (runtime, pool) = &*TOKENIZING;
    let long = "a web, 42% of it. a web, 42% of it. a web, 42% of it. a web, 42% of it.";
    for text in ["", "ab cab", " Grüße\t東京 🦀 <mask>[SEP]\u{0}\u{301}ﬁ", long] {
        let row = TextRow { text: text.to_owned(), pair: None };
        let pair = TextRow { text: text.to_owned(), pair: Some("b c".to_owned()) };
        let pooled = runtime.block_on(pool.encode_batch(Arc::clone(&encoder), vec![row, pair], Truncate::End));
        for row in pooled.iter().flatten() {
            assert!(!row.ids.is_empty() && row.ids.len() <= 24, "{} tokens", row.ids.len());
            assert!(row.ids.iter().all(|id| *id < 1024), "an id outside the vocabulary");
        }
        let shared = Arc::clone(&encoder);
        let ids: Vec<u32> = pooled.into_iter().flatten().flat_map(|row| row.ids).collect();
        runtime.block_on(pool.run(text.len(), move || {
            let _ = shared.describe(text, true);
            let _ = shared.decode(&ids, true);
        }));
    }
}

/// `model.toml` of a repository, then the same text as `server.toml`.
pub fn model_toml(data: &[u8]) {
    FOR_TOML.with(|folder| {
        let (models, server) = (folder.path().join("models"), folder.path().join("server.toml"));
        fs::create_dir_all(models.join("fuzzed")).expect("the temporary folder takes folders");
        write(&models.join("fuzzed").join(MODEL_FILE), data);
        write(&server, data);
        let cache = Cache { root: folder.path().join("cache"), hub: folder.path().join("hub") };
        for entry in Repository::from_folder(&models).expect("it is there").entries {
            match entry.config {
                Ok(config) => {
                    config.texts();
                    let _ = source::resolve(&config.source, &cache);
                }
                Err(error) => assert!(!error.to_string().is_empty()),
            }
        }
        let options = ServeOptions { config: Some(server), ..ServeOptions::default() };
        if let Err(error) = ServerConfig::load(&options, &Environment::from([("HOME", "/home/x")])) {
            assert!(!error.to_string().is_empty());
        }
    });
}
