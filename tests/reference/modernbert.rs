//! ModernBERT where it differs from the older encoders: texts longer than its windows, two spellings of its configuration,
//! and what sentence-transformers puts beside it. `relatives` compares it with transformers.

use plimsoll::config::{Dtype, ModelConfig, Pooling, Task};
use plimsoll::memory::ShapeKind;
use plimsoll::model::{Blueprint, DeviceForm, Kernels, ModelFiles, TokenRow};
use serde_json::{Value, json};

use crate::batching;
use crate::relatives::{check_folder, data, items, without_weights};
use crate::support::{ON_A_CPU, config, cosine, difference, load, step};

/// A copy of a checkpoint whose configuration `edit` has changed.
fn edited(name: &str, edit: impl FnOnce(&mut Value)) -> tempfile::TempDir {
    let (folder, _) = without_weights(name);
    std::fs::copy(data(name).join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
    let place = folder.path().join("config.json");
    let mut config = serde_json::from_slice(&std::fs::read(&place).unwrap()).unwrap();
    edit(&mut config);
    std::fs::write(place, config.to_string()).unwrap();
    folder
}

/// For texts of many windows' length, which no table has to have a row for.
fn long() -> tempfile::TempDir {
    edited("modernbert", |config| config["max_position_embeddings"] = json!(600))
}

fn embedder(folder: &tempfile::TempDir, dtype: Dtype) -> Blueprint {
    let config = ModelConfig { task: Some(Task::Embed), ..config("modernbert", dtype) };
    Blueprint::new(&config, ModelFiles::open(folder.path()).unwrap()).unwrap()
}

fn row(length: u32) -> TokenRow {
    TokenRow::new((0..length).map(|at| 5 + at * 31 % 300).collect(), Vec::new())
}

#[test]
fn batched_equals_single() {
    let folder = long();
    for dtype in &ON_A_CPU {
        // The arithmetic is f32 for all of them, so that the bound is too.
        batching::check(&embedder(&folder, *dtype), 5e-5);
    }
    batching::check(&embedder(&folder, Dtype::F32).with_form(ShapeKind::Padded), 5e-5);
}

/// Rows of one token, of a window, of a tile and one more, and of several tiles, beside each other.
#[test]
fn all_operations_agree_beyond_windows_and_tiles() {
    let folder = long();
    let rows = [1, 11, 64, 65, 129, 600].map(row);
    let expected = step(&mut *load(&embedder(&folder, Dtype::F32).with_kernels(Kernels::Plain)), &rows);
    let check = |blueprint: Blueprint, most: f32, least_cosine: f64| {
        let found = step(&mut *load(&blueprint), &rows);
        for ((found, expected), row) in found.iter().zip(&expected).zip(&rows) {
            let (worst, cosine, tokens) = (difference(found, expected), cosine(found, expected), row.ids.len());
            let dtype = blueprint.card().dtype;
            assert!(
                worst <= most && cosine >= least_cosine,
                "{dtype}, {tokens} tokens: off by {worst}, cosine {cosine}"
            );
        }
    };
    check(embedder(&folder, Dtype::F32), 1e-4, 0.999_999);
    check(embedder(&folder, Dtype::F32).with_form(ShapeKind::Padded), 1e-4, 0.999_999);
    let framework = |dtype| embedder(&folder, dtype).for_device(DeviceForm::Cuda).with_kernels(Kernels::Framework);
    check(framework(Dtype::F32), 1e-4, 0.999_999);
    check(framework(Dtype::F16), 0.1, 0.999_9);
    check(framework(Dtype::Bf16), 1.0, 0.99);
    check(framework(Dtype::Q8), 0.5, 0.995);
    // What a card computes in 8 bits, as its specification says.
    let specified = |dtype| embedder(&folder, dtype).for_device(DeviceForm::Cuda).with_kernels(Kernels::Plain);
    check(specified(Dtype::Int8), 1.0, 0.99);
    check(specified(Dtype::Fp8), 2.0, 0.97);
}

/// A position that no window reaches from the first one changes it only through the layers that see everything.
#[test]
fn windows_and_rotations_decide_what_positions_say() {
    let first = |edit: fn(&mut Value), ids: &[u32]| {
        let folder = edited("modernbert", edit);
        let config = ModelConfig { pooling: Some(Pooling::Cls), task: Some(Task::Embed), ..config("m", Dtype::F32) };
        let blueprint = Blueprint::new(&config, ModelFiles::open(folder.path()).unwrap()).unwrap();
        step(&mut *load(&blueprint), &[TokenRow::new(ids.to_vec(), Vec::new())]).remove(0)
    };
    let local = |config: &mut Value| config["layer_types"] = json!(vec!["sliding_attention"; 3]);
    let as_it_is = |_: &mut Value| {};
    let text: Vec<u32> = (0..40).map(|at| 5 + at * 7).collect();
    // Three layers that see 5 positions ahead reach the sixteenth.
    let mut other = text.clone();
    other[16..].fill(9);
    assert_eq!(first(local, &text), first(local, &other));
    assert!(difference(&first(as_it_is, &text), &first(as_it_is, &other)) > 0.01);
    other[15] = 9;
    assert!(difference(&first(local, &text), &first(local, &other)) > 1e-6);
    // The same tokens in another order.
    let mut turned = text.clone();
    turned[1..].reverse();
    assert!(difference(&first(as_it_is, &text), &first(as_it_is, &turned)) > 0.01);
}

#[test]
fn the_older_spelling_of_a_configuration_is_the_same_model() {
    for name in ["modernbert", "modernbert-rerank"] {
        let folder = edited(name, |config| {
            let keys = config.as_object_mut().unwrap();
            keys.remove("layer_types").unwrap();
            keys.remove("rope_parameters").unwrap();
            keys.insert("global_rope_theta".to_owned(), json!(1000.0));
            keys.insert("local_rope_theta".to_owned(), json!(100.0));
            assert_eq!(keys["global_attn_every_n_layers"], json!(2));
        });
        check_folder(folder.path(), &items(name));
    }
}

#[test]
fn what_sentence_transformers_says_is_honoured() {
    let folder = edited("modernbert", |config| config["architectures"] = json!(["ModernBertModel"]));
    let write = |name: &str, contents: &str| {
        let place = folder.path().join(name);
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        std::fs::write(place, contents).unwrap();
    };
    write(
        "modules.json",
        r#"[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
            {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}]"#,
    );
    write("1_Pooling/config.json", r#"{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}"#);
    write("sentence_bert_config.json", r#"{"max_seq_length": 48}"#);
    let blueprint = Blueprint::new(&config("m", Dtype::F32), ModelFiles::open(folder.path()).unwrap()).unwrap();
    let card = blueprint.card();
    assert_eq!((card.task, card.pooling, card.normalize), (Task::Embed, Some(Pooling::Cls), true));
    assert_eq!((card.length_max, card.dimensions, card.architecture.as_str()), (48, 64, "ModernBertModel"));
    assert_eq!(blueprint.axes().extent.max, 48);
}

/// Tables of angles are as long as the longest text, not as what the model could take.
#[test]
fn a_shorter_longest_text_takes_less_memory() {
    let folder = long();
    let resident = |length_max| {
        let config = ModelConfig { length_max, ..config("m", Dtype::F32) };
        Blueprint::new(&config, ModelFiles::open(folder.path()).unwrap()).unwrap().resident().get()
    };
    assert_eq!(resident(None) - resident(Some(100)), 500 * 2 * 2 * 16 * 4);
}
