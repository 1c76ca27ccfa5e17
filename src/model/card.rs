//! What is known of a model before it is loaded.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::encoder::{Classifies, EncoderConfig};
use super::error::ModelError;
use super::files::ModelFiles;
use super::sentence::Sentence;
use crate::config::{Dtype, ModelConfig, Pooling, Task, Truncate};
use crate::tokenize::TextEncoder;

/// Piece tables of 250,000 words are about 17 MB.
const TOKENIZER_BYTES_MAX: u64 = 128 << 20;

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
    /// What becomes of longer texts unless a request says otherwise.
    pub truncate: Truncate,
    /// Values of a result: of an embedding, or the number of labels. A classifier of tokens has so many for each token.
    pub dimensions: u32,
    /// Names of the labels in the order of the logits; empty for an embedder.
    pub labels: Vec<String>,
    /// How hidden states become one vector; `None` where the result is logits.
    pub pooling: Option<Pooling>,
    /// Whether embeddings are normalized unless a request says otherwise.
    pub normalize: bool,
    /// Texts that are put before the input, by name.
    pub prompts: BTreeMap<String, String>,
    /// The prompt of requests that say nothing of one; one of `prompts`.
    pub default_prompt: Option<String>,
    /// Token ids are below this.
    pub vocab_size: u32,
    /// Type ids are below this.
    pub type_vocab_size: u32,
    /// Text to tokens.
    pub encoder: Arc<TextEncoder>,
}

pub(super) fn task(config: &ModelConfig, model: &EncoderConfig, place: &str) -> Result<Task, ModelError> {
    let natural = match (model.classifies, model.labels.len()) {
        (Classifies::Nothing, _) => Task::Embed,
        (Classifies::Texts, 1) => Task::Rerank,
        (Classifies::Texts, _) => Task::Classify,
        (Classifies::Tokens, _) => Task::TokenClassify,
    };
    let allowed = match (config.task.unwrap_or(natural), model.classifies) {
        (Task::Embed, _) | (Task::Classify, Classifies::Texts) | (Task::TokenClassify, Classifies::Tokens) => {
            return Ok(config.task.unwrap_or(natural));
        }
        (Task::Rerank, Classifies::Texts) if model.labels.len() == 1 => return Ok(Task::Rerank),
        (_, Classifies::Nothing) => "embed: the model has no classifier",
        (Task::Rerank, Classifies::Texts) => "classify, embed: a reranker has one label",
        (_, Classifies::Texts) => "classify, rerank, embed: the classifier is one of texts",
        (_, Classifies::Tokens) => "token_classify, embed: the classifier is one of tokens",
    };
    let found = config.task.map_or("nothing", Task::as_str);
    Err(ModelError::invalid(format!("model '{}': task (with {place})", config.name), found, allowed))
}

pub(super) fn length_max(
    config: &ModelConfig,
    sentence: &Sentence,
    model: &EncoderConfig,
    place: &str,
) -> Result<u32, ModelError> {
    // Two special tokens and one of the text.
    const LEAST: u64 = 3;
    let most = model.positions as u64;
    let (length, said_by) = match (config.length_max, sentence.length_max) {
        (Some(length), _) => (u64::from(length), format!("model '{}': length_max", config.name)),
        (None, Some(length)) => (length.min(most), format!("{place}: max_position_embeddings, or max_seq_length")),
        (None, None) => (most, format!("{place}: max_position_embeddings")),
    };
    match u32::try_from(length) {
        Ok(fits) if (LEAST..=most).contains(&length) => Ok(fits),
        _ => {
            Err(ModelError::invalid(said_by, length, format!("{LEAST} to {most}, the positions that the model knows")))
        }
    }
}

pub(super) fn text_encoder(
    files: &ModelFiles,
    model: &EncoderConfig,
    length_max: u32,
) -> Result<TextEncoder, ModelError> {
    let place = files.place("tokenizer.json");
    let needed = "the tokenizer in the form of the tokenizers library";
    let bytes =
        files.read("tokenizer.json", TOKENIZER_BYTES_MAX)?.ok_or_else(|| ModelError::missing(&*place, needed))?;
    TextEncoder::new(&bytes, length_max, model.vocabulary as u32, model.type_count() as u32)
        .map_err(|error| ModelError::invalid(place, error, "a tokenizer.json that fits config.json"))
}

pub(super) fn card(
    config: &ModelConfig,
    model: &EncoderConfig,
    sentence: Sentence,
    task: Task,
    length_max: u32,
    encoder: TextEncoder,
) -> Result<ModelCard, ModelError> {
    let embeds = task == Task::Embed;
    let mut prompts = sentence.prompts;
    prompts.extend(config.prompts.iter().map(|(name, text)| (name.clone(), text.clone())));
    // An empty name is no prompt, whatever the model's own files say.
    let default_prompt = config.default_prompt.clone().or(sentence.default_prompt).filter(|name| !name.is_empty());
    if let Some(name) = default_prompt.as_ref().filter(|name| !prompts.contains_key(*name)) {
        let known: Vec<_> = prompts.keys().map(String::as_str).collect();
        let allowed = if known.is_empty() { "none: the model has no prompts".to_owned() } else { known.join(", ") };
        let place = format!("model '{}': default_prompt", config.name);
        return Err(ModelError::invalid(place, format!("'{name}'"), allowed));
    }
    let pooling = config.pooling.or(sentence.pooling);
    if embeds && pooling.is_none() {
        tracing::warn!(
            model = config.name,
            "nothing says how its embeddings are pooled, and the mean is taken: if it was trained for another, set pooling \
             in model.toml"
        );
    }
    Ok(ModelCard {
        name: config.name.clone(),
        version: 1,
        architecture: model.architecture.clone(),
        task,
        dtype: config.dtype,
        length_max,
        truncate: config.truncate,
        dimensions: if embeds { model.width } else { model.labels.len() } as u32,
        labels: if embeds { Vec::new() } else { model.labels.clone() },
        pooling: embeds.then(|| pooling.unwrap_or(Pooling::Mean)),
        normalize: embeds && config.normalize.or(sentence.normalize).unwrap_or(false),
        prompts,
        default_prompt,
        vocab_size: model.vocabulary as u32,
        type_vocab_size: model.type_count() as u32,
        encoder: Arc::new(encoder),
    })
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::config::Source;
    use crate::model::Blueprint;

    /// The card of tiny-embed with a default prompt in its own files.
    fn card(default_prompt: Option<&str>) -> Arc<ModelCard> {
        let folder = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tiny-embed");
        for name in ["config.json", "tokenizer.json", "model.safetensors"] {
            std::fs::copy(source.join(name), folder.path().join(name)).unwrap();
        }
        let prompts = r#"{"prompts": {"query": "query: "}, "default_prompt_name": "query"}"#;
        std::fs::write(folder.path().join("config_sentence_transformers.json"), prompts).unwrap();
        let default_prompt = default_prompt.map(str::to_owned);
        let config = ModelConfig { default_prompt, ..ModelConfig::new("m", Source::Path(PathBuf::new())) };
        Blueprint::new(&config, ModelFiles::open(folder.path()).unwrap()).unwrap().card().clone()
    }

    #[test]
    fn the_files_default_prompt_holds_unless_the_configuration_says_none() {
        assert_eq!(card(None).default_prompt.as_deref(), Some("query"));
        assert_eq!(card(Some("query")).default_prompt.as_deref(), Some("query"));
        assert_eq!(card(Some("")).default_prompt, None);
        assert_eq!(card(None).pooling, Some(Pooling::Mean), "where nothing says another");
    }
}
