//! What fuzzing kept goes through the same functions as there, and nothing panics: see `fuzz/README.md`.

use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use candle_core::Device;
use plimsoll::config::{ModelConfig, Source};
use plimsoll::model::{Blueprint, ModelError, ModelFiles};
use plimsoll::tokenize::TextEncoder;

#[allow(unreachable_pub, reason = "it is a library there")]
#[path = "../fuzz/src/lib.rs"]
mod targets;

use targets::TARGETS;

/// The corpus is part of every checkout.
const FILE_BYTES_MAX: u64 = 16 << 10;
const BYTES_MAX: u64 = 300 << 10;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz")
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn what_fuzzing_kept_panics_nowhere() {
    let corpus = root().join("corpus");
    assert_eq!(files(&corpus).len(), TARGETS.len(), "a folder for each target");
    let mut size = 0;
    for (name, target) in TARGETS {
        let inputs = files(&corpus.join(name));
        assert!(!inputs.is_empty(), "{name} has no inputs");
        for input in inputs {
            let bytes = fs::read(&input).unwrap();
            assert!(bytes.len() as u64 <= FILE_BYTES_MAX, "{} has {} bytes", input.display(), bytes.len());
            size += bytes.len() as u64;
            assert!(catch_unwind(|| target(&bytes)).is_ok(), "{name} panics on {}", input.display());
        }
    }
    assert!(size <= BYTES_MAX, "the corpus has {size} bytes");
}

/// Changes get as far as what they change: behind every check.
#[test]
fn fuzzing_begins_with_sound_files() {
    let load = |config: &str, weights: &str, name: &str| -> Result<(), ModelError> {
        let folder = tempfile::tempdir().unwrap();
        for (from, to) in [(config, "config.json"), ("base/tokenizer.json", "tokenizer.json"), (weights, name)] {
            fs::copy(root().join(from), folder.path().join(to)).unwrap();
        }
        let config = ModelConfig::new("test", Source::Path(folder.path().to_owned()));
        Blueprint::new(&config, ModelFiles::open(folder.path())?)?.load(&Device::Cpu).map(|_| ())
    };
    for seed in ["bert-f32", "bert-f16", "bert-bf16", "prefixed"] {
        assert_eq!(
            load("base/config.json", &format!("corpus/safetensors/{seed}"), "model.safetensors"),
            Ok(()),
            "{seed}"
        );
    }
    assert_eq!(load("corpus/model_config/bert", "base/model.safetensors", "model.safetensors"), Ok(()));
    assert_eq!(load("base/config-32.json", "corpus/gguf/bert-q8_0", "model.gguf"), Ok(()));
    assert_eq!(load("base/config-modern.json", "corpus/gguf/modern", "model.gguf"), Ok(()));
    let halves = load("base/config-modern.json", "corpus/gguf/modern-halves", "model.gguf");
    assert!(halves.as_ref().is_err_and(|error| error.to_string().contains("each of 2 parts has 16")), "{halves:?}");
    for seed in files(&root().join("corpus/tokenizer")).into_iter().filter(|seed| !is_found(seed)) {
        let read = TextEncoder::new(&fs::read(&seed).unwrap(), 24, 1024, 2);
        assert!(read.is_ok(), "{}: {read:?}", seed.display());
    }
}

fn is_found(seed: &Path) -> bool {
    seed.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"found-"))
}
