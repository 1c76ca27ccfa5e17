//! The hidden states of tokens against transformers: what it labels tokens by, and what it pools.

use candle_core::{DType, Device, Tensor};
use plimsoll::config::{Dtype, ModelConfig, Pooling, Task};
use plimsoll::memory::ShapeKind;
use plimsoll::model::{Blueprint, DeviceForm, Kernels, ModelFiles, TokenRow, Wanted};
use plimsoll::tokenize::Truncate;

use crate::relatives::{data, items};
use crate::support::{config, difference, load, numbers, step};

/// An embedder of the encoder in a folder.
fn embedder(name: &str, pooling: Pooling) -> Blueprint {
    let config = ModelConfig { task: Some(Task::Embed), pooling: Some(pooling), ..config(name, Dtype::F32) };
    Blueprint::new(&config, ModelFiles::open(&data(name)).unwrap()).unwrap()
}

fn with_states(row: &TokenRow) -> TokenRow {
    TokenRow { wanted: Wanted::States, ..row.clone() }
}

/// The kinds of operations that a CPU can run.
fn variants(blueprint: Blueprint) -> [Blueprint; 4] {
    let of_framework = blueprint.clone().for_device(DeviceForm::Cuda).with_kernels(Kernels::Framework);
    let plain = blueprint.clone().with_kernels(Kernels::Plain);
    [blueprint.clone(), plain, blueprint.with_form(ShapeKind::Padded), of_framework]
}

#[test]
fn each_token_has_its_own() {
    for name in ["bert-tokens", "roberta-tokens", "distilbert-tokens"] {
        let weights = candle_core::safetensors::load(data(name).join("model.safetensors"), &Device::Cpu).unwrap();
        let of = |name: &str| weights[name].to_dtype(DType::F32).unwrap();
        let (weight, bias) = (of("classifier.weight"), of("classifier.bias"));
        let items = items(name);
        for blueprint in variants(embedder(name, Pooling::Mean)) {
            let encoder = &blueprint.card().encoder;
            let rows = items.iter().map(|item| encoder.encode(item["text"].as_str().unwrap(), None, Truncate::No));
            let rows: Vec<TokenRow> = rows.map(|row| with_states(&row.unwrap())).collect();
            let states = step(&mut *load(&blueprint), &rows);
            for ((item, row), states) in items.iter().zip(&rows).zip(states) {
                let states = Tensor::from_vec(states, (row.ids.len(), weight.dim(1).unwrap()), &Device::Cpu).unwrap();
                let logits = states.matmul(&weight.t().unwrap()).unwrap().broadcast_add(&bias).unwrap();
                for (token, (found, expected)) in
                    logits.to_vec2().unwrap().iter().zip(item["logits"].as_array().unwrap()).enumerate()
                {
                    let worst = difference(found, &numbers(expected, |value| value as f32));
                    assert!(worst <= 1e-4, "{name}, token {token} of {}: off by {worst}", row.ids.len());
                }
            }
        }
    }
}

#[test]
fn beside_them_others_have_their_usual_answers() {
    for name in ["roberta", "modernbert"] {
        for blueprint in variants(embedder(name, Pooling::Mean)) {
            let items = items(name);
            let encoder = &blueprint.card().encoder;
            let usual = items.iter().map(|item| {
                encoder.encode(item["text"].as_str().unwrap(), item["pair"].as_str(), Truncate::End).unwrap()
            });
            // Each once so and once so, side by side.
            let rows: Vec<TokenRow> = usual.flat_map(|row| [with_states(&row), row]).collect();
            let found = step(&mut *load(&blueprint), &rows);
            for ((item, rows), found) in items.iter().zip(rows.chunks_exact(2)).zip(found.chunks_exact(2)) {
                let (mean, first) = (numbers(&item["mean"], |v| v as f32), numbers(&item["first"], |v| v as f32));
                let (states, tokens) = (&found[0], rows[0].ids.len());
                assert_eq!(states.len(), tokens * mean.len());
                let mut pooled = vec![0.0; mean.len()];
                for token in states.chunks_exact(mean.len()) {
                    pooled.iter_mut().zip(token).for_each(|(sum, value)| *sum += value / tokens as f32);
                }
                for (what, found, expected) in [
                    ("mean", &pooled, &mean),
                    ("first", &states[..first.len()].to_vec(), &first),
                    ("usual", &found[1], &mean),
                ] {
                    let worst = difference(found, expected);
                    assert!(worst <= 1e-4, "{name}: {what} of {tokens} tokens: off by {worst}");
                }
            }
        }
    }
}

/// Where only one token of a text is looked at the last layer leaves the others out, unless somebody wants the states.
#[test]
fn the_one_that_is_looked_at_is_what_it_is_among_all() {
    for name in ["bert-tokens", "roberta", "modernbert"] {
        for pooling in Pooling::ALL {
            let blueprint = embedder(name, *pooling);
            let encoder = &blueprint.card().encoder;
            let encode = |item: &serde_json::Value| encoder.encode(item["text"].as_str().unwrap(), None, Truncate::End);
            let mut rows: Vec<TokenRow> = items(name).iter().map(|item| encode(item).unwrap()).collect();
            rows.push(TokenRow::new(vec![7], Vec::new()));
            let of_variants = |rows: &[TokenRow]| variants(blueprint.clone()).map(|kind| step(&mut *load(&kind), rows));
            let [usual, plain, padded, framework] = of_variants(&rows);
            for (at, expected) in plain.iter().enumerate() {
                for found in [&usual[at], &padded[at], &framework[at]] {
                    assert!(difference(found, expected) <= 2e-5, "{name}, {pooling}: row {at}");
                }
            }
            rows.push(with_states(&rows[0]));
            for beside in of_variants(&rows) {
                for (at, expected) in plain.iter().enumerate() {
                    assert!(difference(&beside[at], expected) <= 2e-5, "{name}, {pooling}: row {at} beside states");
                }
                let (width, states) = (plain[0].len(), &beside[rows.len() - 1]);
                let token = match pooling {
                    Pooling::Cls => &states[..width],
                    Pooling::Last => &states[states.len() - width..],
                    Pooling::Mean => continue,
                };
                assert!(difference(token, &plain[0]) <= 2e-5, "{name}, {pooling}: the token among its states");
            }
        }
    }
}

#[test]
fn only_embedders_tell_them() {
    let config = config("bert-tokens", Dtype::F32);
    let blueprint = Blueprint::new(&config, ModelFiles::open(&data("bert-tokens")).unwrap()).unwrap();
    let row = with_states(&TokenRow::new(vec![2, 7, 3], Vec::new()));
    let batch = plimsoll::model::Batch::Tokens(vec![std::sync::Arc::new(row)]);
    let fault = load(&blueprint).step(&batch).unwrap_err().to_string();
    assert!(fault.contains("only embedders tell states"), "{fault}");
}
