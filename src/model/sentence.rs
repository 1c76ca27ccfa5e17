//! What the sentence-transformers files beside a model say: pooling, normalization, longest length, prompts.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::error::ModelError;
use super::files::ModelFiles;
use crate::config::Pooling;

/// These files have a few lines; prompts may be long.
const BYTES_MAX: u64 = 1 << 20;

/// Where sentence-transformers keeps the longest length: the name that it writes now, and those of the classes that it had
/// for each architecture before.
const LENGTH_FILES: [&str; 7] = [
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
];

/// The files' answers; `None` and empty where they say nothing.
#[derive(Clone, Debug, Default)]
pub(super) struct Sentence {
    pub(super) pooling: Option<Pooling>,
    pub(super) normalize: Option<bool>,
    pub(super) length_max: Option<u64>,
    pub(super) prompts: BTreeMap<String, String>,
    pub(super) default_prompt: Option<String>,
}

#[derive(Deserialize)]
struct Module {
    #[serde(default)]
    path: String,
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Deserialize)]
struct PoolingFile {
    #[serde(default)]
    pooling_mode_cls_token: bool,
    #[serde(default)]
    pooling_mode_mean_tokens: bool,
    #[serde(default)]
    pooling_mode_max_tokens: bool,
    #[serde(default)]
    pooling_mode_mean_sqrt_len_tokens: bool,
    #[serde(default)]
    pooling_mode_weightedmean_tokens: bool,
    #[serde(default)]
    pooling_mode_lasttoken: bool,
    include_prompt: Option<bool>,
}

#[derive(Deserialize)]
struct LengthFile {
    max_seq_length: Option<u64>,
}

#[derive(Deserialize)]
struct PromptFile {
    #[serde(default)]
    prompts: BTreeMap<String, String>,
    default_prompt_name: Option<String>,
}

#[derive(Deserialize)]
struct TokenizerFile {
    model_max_length: Option<f64>,
}

impl Sentence {
    pub(super) fn read(files: &ModelFiles) -> Result<Sentence, ModelError> {
        let mut found = Sentence::default();
        let mut pooling_file = "1_Pooling/config.json".to_owned();
        if let Some(modules) = json::<Vec<Module>>(files, "modules.json")? {
            found.normalize = Some(false);
            for module in modules {
                // Libraries have moved their classes about; the last part of the name has stayed.
                match module.kind.rsplit('.').next() {
                    Some("Transformer") => {}
                    Some("Pooling") => pooling_file = format!("{}/config.json", module.path),
                    Some("Normalize") => found.normalize = Some(true),
                    _ => {
                        let allowed = "Transformer, Pooling, Normalize";
                        let place = format!("{}: type", files.place("modules.json"));
                        return Err(ModelError::invalid(place, format!("'{}'", module.kind), allowed));
                    }
                }
            }
        }
        if let Some(pooling) = json::<PoolingFile>(files, &pooling_file)? {
            found.pooling = Some(pooling.choice(&files.place(&pooling_file))?);
        }
        // A classifier has none of the files; some tokenizers say "no bound" with 1e30.
        let tokenizer = json::<TokenizerFile>(files, "tokenizer_config.json")?.and_then(|file| file.model_max_length);
        found.length_max = tokenizer.filter(|length| (1.0..1e9).contains(length)).map(|length| length as u64);
        for name in LENGTH_FILES {
            if let Some(LengthFile { max_seq_length: Some(length) }) = json(files, name)? {
                found.length_max = Some(length);
                break;
            }
        }
        if let Some(file) = json::<PromptFile>(files, "config_sentence_transformers.json")? {
            found.prompts = file.prompts;
            found.default_prompt = file.default_prompt_name;
        }
        Ok(found)
    }
}

impl PoolingFile {
    fn choice(&self, place: &str) -> Result<Pooling, ModelError> {
        let modes = [
            (self.pooling_mode_cls_token, Some(Pooling::Cls), "pooling_mode_cls_token"),
            (self.pooling_mode_mean_tokens, Some(Pooling::Mean), "pooling_mode_mean_tokens"),
            (self.pooling_mode_lasttoken, Some(Pooling::Last), "pooling_mode_lasttoken"),
            (self.pooling_mode_max_tokens, None, "pooling_mode_max_tokens"),
            (self.pooling_mode_mean_sqrt_len_tokens, None, "pooling_mode_mean_sqrt_len_tokens"),
            (self.pooling_mode_weightedmean_tokens, None, "pooling_mode_weightedmean_tokens"),
        ];
        if self.include_prompt == Some(false) {
            let place = format!("{place}: include_prompt");
            return Err(ModelError::invalid(place, false, "true: the prompt's tokens are pooled with the text's"));
        }
        let chosen: Vec<_> = modes.iter().filter(|(on, _, _)| *on).collect();
        match chosen.as_slice() {
            [(_, Some(pooling), _)] => Ok(*pooling),
            _ => {
                let names: Vec<_> = chosen.iter().map(|(_, _, name)| *name).collect();
                let found = if names.is_empty() { "no mode".to_owned() } else { names.join(" and ") };
                let allowed = "one of pooling_mode_cls_token, pooling_mode_mean_tokens, pooling_mode_lasttoken";
                Err(ModelError::invalid(place, found, allowed))
            }
        }
    }
}

fn json<T: DeserializeOwned>(files: &ModelFiles, name: &str) -> Result<Option<T>, ModelError> {
    let Some(bytes) = files.read(name, BYTES_MAX)? else { return Ok(None) };
    match serde_json::from_slice(&bytes) {
        Ok(value) => Ok(Some(value)),
        Err(error) => Err(ModelError::invalid(files.place(name), error, "the JSON that sentence-transformers writes")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_length_has_a_file_of_many_names() {
        for name in LENGTH_FILES {
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(folder.path().join("tokenizer_config.json"), r#"{"model_max_length": 512}"#).unwrap();
            let read = || Sentence::read(&ModelFiles::open(folder.path()).unwrap()).unwrap().length_max;
            assert_eq!(read(), Some(512));
            std::fs::write(folder.path().join(name), r#"{"max_seq_length": 128, "do_lower_case": false}"#).unwrap();
            assert_eq!(read(), Some(128), "{name}");
            // The name of now goes before the others.
            std::fs::write(folder.path().join(LENGTH_FILES[0]), r#"{"max_seq_length": 256}"#).unwrap();
            assert_eq!(read(), Some(256), "{name}");
        }
    }
}
