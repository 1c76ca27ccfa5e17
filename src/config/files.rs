//! Which files of a folder, repository or wheel belong to a model.

use std::path::{Component, Path};

/// Whether `path`, relative to a model's folder, is a file that a model may consist of: configuration, tokenizer,
/// weights, licence; at the top, or in a numbered folder of sentence-transformers (`1_Pooling`). Everything else,
/// Python code and pickled weights above all, is never fetched.
pub fn is_model_file(path: &Path) -> bool {
    let parts: Option<Vec<&str>> = path
        .components()
        .map(|part| match part {
            Component::Normal(part) => part.to_str(),
            _ => None,
        })
        .collect();
    match parts.as_deref() {
        Some([name]) => is_fetched(name),
        Some([module, name]) => is_module(module) && is_fetched(name),
        _ => false,
    }
}

/// Whether the file holds weights that can be read without running anything.
pub fn is_weights(path: &Path) -> bool {
    has_extension(path, &["safetensors", "gguf"])
}

/// Whether the file holds weights that only Python's pickle reads, which runs whatever they contain.
pub fn is_pickle(path: &Path) -> bool {
    has_extension(path, &["bin", "pt", "pth", "ckpt", "pkl", "pickle"])
}

/// Whether `folder` is there and holds weights.
pub fn holds_weights(folder: &Path) -> bool {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    entries.flatten().any(|entry| is_weights(&entry.path()) && entry.path().is_file())
}

fn is_fetched(name: &str) -> bool {
    let path = Path::new(name);
    let hidden = name.starts_with('.');
    let document = ["LICENSE", "LICENCE", "NOTICE"].iter().any(|start| name.starts_with(start));
    let text = ["vocab.txt", "merges.txt", "chat_template.jinja"].contains(&name);
    !hidden && (is_weights(path) || has_extension(path, &["json"]) || document || text)
}

/// `1_Pooling`: a number, an underscore, a word.
fn is_module(name: &str) -> bool {
    name.split_once('_').is_some_and(|(number, word)| {
        let digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        digits && !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric())
    })
}

fn has_extension(path: &Path, extensions: &[&str]) -> bool {
    path.extension().is_some_and(|extension| extensions.iter().any(|known| extension.eq_ignore_ascii_case(known)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_the_model_are_taken() {
        let taken = [
            "config.json",
            "tokenizer.json",
            "model.safetensors",
            "model-00001-of-00002.safetensors",
            "model.safetensors.index.json",
            "model.Q8_0.gguf",
            "vocab.txt",
            "LICENSE",
            "NOTICE.txt",
            "1_Pooling/config.json",
            "2_Dense/model.safetensors",
        ];
        for name in taken {
            assert!(is_model_file(Path::new(name)), "{name}");
        }
        let left = [
            "pytorch_model.bin",
            "model.onnx",
            "modeling.py",
            ".gitattributes",
            "fp16/model.safetensors",
            "1_Pooling/x/config.json",
            "../config.json",
            "1_../config.json",
            "/config.json",
            "./config.json",
            "",
        ];
        for name in left {
            assert!(!is_model_file(Path::new(name)), "{name}");
        }
    }
}
