//! BERT's relatives against transformers, over small checkpoints with random weights: `make_checkpoints.py` writes both.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle_core::quantized::GgmlDType;
use candle_core::{Device, Tensor};
use plimsoll::config::{Dtype, ModelConfig, Pooling, Task};
use plimsoll::model::{Blueprint, DeviceForm, Kernels, ModelFiles, TokenRow};
use plimsoll::tokenize::{TokenizeError, Truncate};
use serde_json::Value;

use crate::files::write_gguf;
use crate::support::{config, cosine, difference, load, numbers, step};

const NAMES: [&str; 5] = ["roberta", "xlm-roberta", "distilbert", "modernbert", "modernbert-rerank"];

/// Largest difference from transformers, which computes in f64.
const MOST: f32 = 1e-4;

pub(crate) fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/data").join(name)
}

/// The classifier in a folder, or its encoder with a pooling.
fn blueprint(folder: &Path, dtype: Dtype, pooling: Option<Pooling>) -> Blueprint {
    let task = pooling.map(|_| Task::Embed);
    let config = ModelConfig { task, pooling, ..config("relative", dtype) };
    Blueprint::new(&config, ModelFiles::open(folder).unwrap()).unwrap()
}

/// The items of the model's reference.
pub(crate) fn items(name: &str) -> Vec<Value> {
    let file: Value = serde_json::from_slice(&std::fs::read(data(name).join("reference.json")).unwrap()).unwrap();
    file["items"].as_array().unwrap().clone()
}

/// The item's row, which the model's own tokenizer makes.
fn row(blueprint: &Blueprint, item: &Value) -> TokenRow {
    let text = item["text"].as_str().unwrap();
    blueprint.card().encoder.encode(text, item["pair"].as_str(), Truncate::End).unwrap()
}

/// Every item alone and all in one step, on these operations: result `key` of the reference.
fn check(blueprint: &Blueprint, items: &[Value], key: &str) {
    let mut model = load(blueprint);
    let rows: Vec<_> = items.iter().map(|item| row(blueprint, item)).collect();
    let together = step(&mut *model, &rows);
    for ((item, row), together) in items.iter().zip(&rows).zip(&together) {
        let expected = numbers(&item[key], |value| value as f32);
        let alone = step(&mut *model, std::slice::from_ref(row)).remove(0);
        for (how, found) in [("alone", &alone), ("together", together)] {
            let worst = difference(found, &expected);
            assert!(worst <= MOST, "{key} of {} tokens {how}: off by {worst}", row.ids.len());
        }
    }
}

/// Logits, and both poolings that the reference has, on the CPU's operations, the plain ones and the framework's.
pub(crate) fn check_folder(folder: &Path, items: &[Value]) {
    for (pooling, key) in [(None, "logits"), (Some(Pooling::Mean), "mean"), (Some(Pooling::Cls), "first")] {
        let blueprint = blueprint(folder, Dtype::F32, pooling);
        check(&blueprint, items, key);
        check(&blueprint.clone().with_kernels(Kernels::Plain), items, key);
        check(&blueprint.for_device(DeviceForm::Cuda).with_kernels(Kernels::Framework), items, key);
    }
}

#[test]
fn they_give_what_transformers_gives() {
    for name in NAMES {
        check_folder(&data(name), &items(name));
    }
}

#[test]
fn they_are_what_their_files_say() {
    let check = |name: &str, architecture: &str, task: Task, labels: usize| {
        let blueprint = blueprint(&data(name), Dtype::F32, None);
        let card = blueprint.card();
        assert_eq!((card.architecture.as_str(), card.task, card.labels.len()), (architecture, task, labels));
        assert_eq!((card.length_max, card.type_vocab_size), (64, 1));
    };
    check("roberta", "RobertaForSequenceClassification", Task::Classify, 3);
    check("xlm-roberta", "XLMRobertaForSequenceClassification", Task::Rerank, 1);
    check("distilbert", "DistilBertForSequenceClassification", Task::Classify, 2);
    check("modernbert", "ModernBertForSequenceClassification", Task::Classify, 3);
    check("modernbert-rerank", "ModernBertForSequenceClassification", Task::Rerank, 1);
}

#[test]
fn their_tokenizers_make_the_ids_of_transformers_and_no_types() {
    for name in NAMES {
        let blueprint = blueprint(&data(name), Dtype::F32, None);
        for item in items(name) {
            let TokenRow { ids, types, .. } = row(&blueprint, &item);
            assert_eq!(ids, numbers(&item["input_ids"], |id| id as u32), "{name}: {}", item["text"]);
            assert!(types.is_empty(), "{name} has no types");
        }
    }
}

/// A table of 66 positions that begin at 2 is good for 64 tokens, whatever the tokenizer's files say. Where there is no
/// table, the configuration has the last word all the same.
#[test]
fn the_longest_text_ends_with_the_positions() {
    for name in NAMES {
        let (folder, _) = without_weights(name);
        std::fs::copy(data(name).join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
        let blueprint = blueprint(folder.path(), Dtype::F32, None);
        assert_eq!(blueprint.card().length_max, 64, "{name}");
        let row = |tokens: usize| TokenRow::new(vec![5; tokens], Vec::new());
        let refused = blueprint.card().encoder.checked(row(65)).unwrap_err();
        assert_eq!(refused, TokenizeError::TooLong { tokens: 65, allowed: 64 });
        step(&mut *load(&blueprint), &[row(64)]);
    }
}

/// Clients of the Open Inference Protocol may send types of 0 to any model.
#[test]
fn types_of_zero_are_no_types() {
    for name in NAMES {
        let blueprint = blueprint(&data(name), Dtype::F32, None);
        let row = |types: &[u32]| TokenRow::new(vec![7, 8], types.to_vec());
        let [without, with] = [row(&[]), row(&[0, 0])].map(|row| step(&mut *load(&blueprint), &[row]));
        assert_eq!(without, with);
        let refused = blueprint.card().encoder.checked(row(&[0, 1])).unwrap_err();
        assert_eq!(refused, TokenizeError::UnknownType { id: 1, position: 1, last: 0 });
    }
}

/// A folder with a model's configuration and tokenizer, and its weights.
pub(crate) fn without_weights(name: &str) -> (tempfile::TempDir, HashMap<String, Tensor>) {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "tokenizer.json"] {
        std::fs::copy(data(name).join(file), folder.path().join(file)).unwrap();
    }
    let weights = candle_core::safetensors::load(data(name).join("model.safetensors"), &Device::Cpu).unwrap();
    (folder, weights)
}

/// The name without the encoder's, as an encoder alone has it.
fn bare(name: &str) -> &str {
    ["roberta.", "distilbert.", "model."].iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name)
}

#[test]
fn names_need_no_prefix() {
    for name in NAMES {
        let (folder, weights) = without_weights(name);
        let weights: HashMap<_, _> = weights.iter().map(|(name, tensor)| (bare(name), tensor.clone())).collect();
        candle_core::safetensors::save(&weights, folder.path().join("model.safetensors")).unwrap();
        check_folder(folder.path(), &items(name));
    }
}

#[test]
fn camembert_is_roberta_by_another_name() {
    let (folder, weights) = without_weights("roberta");
    candle_core::safetensors::save(&weights, folder.path().join("model.safetensors")).unwrap();
    let text = std::fs::read_to_string(data("roberta").join("config.json")).unwrap();
    let text = text.replace("Roberta", "Camembert").replace(r#""roberta""#, r#""camembert""#);
    std::fs::write(folder.path().join("config.json"), text).unwrap();
    check_folder(folder.path(), &items("roberta"));
}

/// The name that llama.cpp gives what a BERT calls otherwise, or does not have.
fn gguf_name(name: &str) -> String {
    let modern = [
        ("layers.", "blk."),
        ("attn.Wqkv", "attn_qkv"),
        ("attn.Wo", "attn_output"),
        ("mlp_norm", "ffn_norm"),
        ("mlp.Wi", "ffn_up"),
        ("mlp.Wo", "ffn_down"),
        ("final_norm", "output_norm"),
        ("embeddings.tok_embeddings", "token_embd"),
        ("embeddings.norm", "token_embd_norm"),
        ("head.dense", "cls"),
        ("head.norm", "cls.norm"),
    ];
    let older = [
        ("transformer.layer", "blk"),
        ("attention.q_lin", "attn_q"),
        ("attention.k_lin", "attn_k"),
        ("attention.v_lin", "attn_v"),
        ("attention.out_lin", "attn_output"),
        ("sa_layer_norm", "attn_output_norm"),
        ("ffn.lin1", "ffn_up"),
        ("ffn.lin2", "ffn_down"),
        ("output_layer_norm", "layer_output_norm"),
        ("pre_classifier", "cls"),
        ("classifier.dense", "cls"),
        ("classifier.out_proj", "cls.output"),
    ];
    modern.into_iter().chain(older).fold(bare(name).to_owned(), |name, (from, to)| name.replace(from, to))
}

/// As llama.cpp's converter does, the table of positions is cut off before the first that a text can have.
#[test]
fn gguf_holds_the_same_models() {
    for name in NAMES {
        let first_position = if name.contains("roberta") { 2 } else { 0 };
        let (folder, weights) = without_weights(name);
        let cut = |(name, tensor): (String, Tensor)| {
            let rows = if name.contains("position_embeddings") { first_position } else { 0 };
            (gguf_name(&name), tensor.narrow(0, rows, tensor.dims()[0] - rows).unwrap().contiguous().unwrap())
        };
        let weights = weights.into_iter().map(cut).collect();
        write_gguf(&folder.path().join("model.gguf"), weights, GgmlDType::F16);
        check_folder(folder.path(), &items(name));
    }
}

/// f16 holds the same weights; the others lose some, but not the sense.
#[test]
fn other_dtypes_stay_near() {
    for name in NAMES {
        for (dtype, least) in [(Dtype::F16, 0.999_999), (Dtype::Bf16, 0.999), (Dtype::Int8, 0.999)] {
            let blueprint = blueprint(&data(name), dtype, Some(Pooling::Mean));
            let mut model = load(&blueprint);
            for item in items(name) {
                let found = step(&mut *model, &[row(&blueprint, &item)]).remove(0);
                let cosine = cosine(&found, &numbers(&item["mean"], |value| value as f32));
                assert!(cosine >= least, "{name} {dtype}: cosine {cosine}");
            }
        }
    }
}

#[test]
fn what_is_loaded_is_what_was_counted() {
    // Of f32: 4 bytes for each value of the checkpoint but the classifier's, and of what is made: ModernBERT's cosines
    // and sines of 64 positions for 16 pairs and two bases, and zeros for norms without biases.
    let angles = 2 * 2 * 64 * 16;
    let made = [0, 0, 0, angles + 64, angles];
    for (name, made) in NAMES.into_iter().zip(made) {
        let (_, weights) = without_weights(name);
        let of_classifier = |name: &str| name.contains("classifier") || name.starts_with("head.");
        let encoder = weights.iter().filter(|(name, _)| !of_classifier(name));
        let values: usize = encoder.map(|(_, tensor)| tensor.elem_count()).sum();
        let resident = blueprint(&data(name), Dtype::F32, Some(Pooling::Mean)).resident();
        assert_eq!(resident.get(), 4 * (values as u64 + made), "{name}");
    }
}
