//! The models that are built into the program.

/// A file of an embedded model: its name relative to the model's folder, and its contents.
pub(super) type EmbeddedFile = (&'static str, &'static [u8]);

#[cfg(feature = "embedded-models")]
macro_rules! folder {
    ($name:literal: $($file:literal),+ $(,)?) => {
        ($name, &[$(($file, include_bytes!(concat!("../../models/", $name, "/", $file)) as &[u8])),+] as &[EmbeddedFile])
    };
}

#[cfg(feature = "embedded-models")]
static MODELS: &[(&str, &[EmbeddedFile])] = &[
    folder!(
        "tiny-embed": "config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors", "modules.json",
        "sentence_bert_config.json", "1_Pooling/config.json",
    ),
    folder!("tiny-rerank": "config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"),
    folder!("tiny-section": "config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"),
];

#[cfg(not(feature = "embedded-models"))]
static MODELS: &[(&str, &[EmbeddedFile])] = &[];

/// Names of the embedded models; none without the feature `embedded-models`.
pub fn embedded_names() -> impl Iterator<Item = &'static str> {
    MODELS.iter().map(|(name, _)| *name)
}

pub(super) fn find(name: &str) -> Option<&'static [EmbeddedFile]> {
    MODELS.iter().find(|(known, _)| *known == name).map(|(_, files)| *files)
}
