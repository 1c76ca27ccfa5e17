//! Classifiers of tokens against transformers, over small checkpoints with random weights: `make_checkpoints.py` writes
//! both. What becomes of the logits is compared where it is made, in `service::spans`.

use plimsoll::config::{Dtype, ModelConfig, Task};
use plimsoll::memory::ShapeKind;
use plimsoll::model::{Blueprint, DeviceForm, Kernels, TokenRow};
use plimsoll::tokenize::Truncate;
use serde_json::Value;

use crate::relatives::{data, items};
use crate::support::{ON_A_CPU, config, cosine, difference, folder, load, numbers, step};

const NAMES: [&str; 4] = ["bert-tokens", "roberta-tokens", "distilbert-tokens", "modernbert-tokens"];
const LABELS: usize = 4;

fn rows(blueprint: &Blueprint, items: &[Value]) -> Vec<TokenRow> {
    let encode = |item: &Value| {
        let text = item["text"].as_str().unwrap();
        let (row, places) = blueprint.card().encoder.encode_placed(text, Truncate::No).unwrap();
        assert_eq!(row.ids, numbers(&item["input_ids"], |id| id as u32), "{text}");
        assert_eq!(places.len(), row.ids.len());
        row
    };
    items.iter().map(encode).collect()
}

/// The logits of all tokens of an item, end to end.
fn expected(item: &Value) -> Vec<f32> {
    item["logits"].as_array().unwrap().iter().flat_map(|row| numbers(row, |value| value as f32)).collect()
}

#[test]
fn they_give_what_transformers_gives() {
    for name in NAMES {
        let items = items(name);
        let blueprint = folder(&data(name), Dtype::F32);
        let of_framework = || blueprint.clone().for_device(DeviceForm::Cuda).with_kernels(Kernels::Framework);
        let variants = [
            blueprint.clone(),
            blueprint.clone().with_kernels(Kernels::Plain),
            blueprint.clone().with_form(ShapeKind::Padded),
            of_framework(),
        ];
        for blueprint in variants {
            let (mut model, rows) = (load(&blueprint), rows(&blueprint, &items));
            let together = step(&mut *model, &rows);
            assert_eq!(together, step(&mut *model, &rows), "the same batch gives the same bits");
            for ((item, row), together) in items.iter().zip(&rows).zip(&together) {
                let (expected, alone) = (expected(item), step(&mut *model, std::slice::from_ref(row)).remove(0));
                assert_eq!(expected.len(), row.ids.len() * LABELS);
                for (how, found) in [("alone", &alone), ("together", together)] {
                    let worst = difference(found, &expected);
                    assert!(worst <= 1e-4, "{name}, {} tokens {how}: off by {worst}", row.ids.len());
                }
            }
        }
    }
}

#[test]
fn other_dtypes_stay_near() {
    for name in NAMES {
        for dtype in ON_A_CPU {
            let blueprint = folder(&data(name), dtype);
            let found = step(&mut *load(&blueprint), &rows(&blueprint, &items(name)));
            for (item, found) in items(name).iter().zip(&found) {
                let cosine = cosine(found, &expected(item));
                assert!(cosine >= 0.99, "{name} {dtype}: cosine {cosine}");
            }
        }
    }
}

#[test]
fn they_are_what_their_files_say() {
    for name in NAMES {
        let blueprint = folder(&data(name), Dtype::F32);
        let card = blueprint.card();
        assert_eq!((card.task, card.dimensions as usize), (Task::TokenClassify, LABELS));
        assert_eq!(card.labels, ["O", "B-PER", "I-PER", "LOC"]);
    }
}

/// As an embedder it needs no classifier; as a classifier of texts it has none.
#[test]
fn the_encoder_alone_embeds_and_another_task_is_refused() {
    let of = |task| {
        let config = ModelConfig { task: Some(task), ..config("tokens", Dtype::F32) };
        Blueprint::new(&config, plimsoll::model::ModelFiles::open(&data("bert-tokens")).unwrap())
    };
    let embedder = of(Task::Embed).unwrap();
    let (whole, row) = (folder(&data("bert-tokens"), Dtype::F32), TokenRow::new(vec![2, 7, 3], Vec::new()));
    assert_eq!(step(&mut *load(&embedder), &[row])[0].len(), 64);
    let head = 4 * (LABELS as u64 * 64 + LABELS as u64);
    assert_eq!(whole.resident().get() - embedder.resident().get(), head);
    for task in [Task::Classify, Task::Rerank] {
        let refused = of(task).unwrap_err().to_string();
        assert!(refused.contains("token_classify, embed: the classifier is one of tokens"), "{refused}");
    }
}
