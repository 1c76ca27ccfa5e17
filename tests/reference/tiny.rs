//! The embedded models against transformers (f32, the same weights).

use plimsoll::config::{Dtype, Task};
use plimsoll::model::{Kernels, TokenRow};
use plimsoll::tokenize::Truncate;

use crate::support::{ON_A_CPU, cosine, difference, embedded, load, numbers, reference, step};

/// Largest difference of a logit, smallest cosine of an embedding. The weights are f16 in their files, so that f32 and
/// f16 hold the same values.
fn tolerance(dtype: Dtype) -> (f32, f64) {
    match dtype {
        Dtype::F32 | Dtype::F16 => (2e-5, 0.999_999),
        Dtype::Bf16 => (0.15, 0.9995),
        Dtype::Q8 | Dtype::Int8 => (0.15, 0.9995),
        Dtype::Fp8 => unreachable!("a CPU has none"),
    }
}

#[test]
fn tiny_embed_gives_the_reference_embeddings() {
    let reference = reference("tiny-embed");
    for dtype in &ON_A_CPU {
        let blueprint = embedded("tiny-embed", *dtype);
        let card = blueprint.card();
        assert_eq!((card.task, card.dimensions, card.length_max, card.normalize), (Task::Embed, 192, 256, true));
        let mut model = load(&blueprint);
        for item in reference["items"].as_array().unwrap() {
            let row = card.encoder.encode(item["text"].as_str().unwrap(), None, Truncate::End).unwrap();
            assert_eq!(row.ids, numbers(&item["input_ids"], |id| id as u32));
            let found = step(&mut *model, &[row]);
            let expected = numbers(&item["embedding"], |value| value as f32);
            let cosine = cosine(&found[0], &expected);
            assert!(cosine >= tolerance(*dtype).1, "{dtype}: cosine {cosine} for {}", item["text"]);
        }
    }
}

#[test]
fn tiny_rerank_gives_the_reference_scores() {
    let reference = reference("tiny-rerank");
    for dtype in &ON_A_CPU {
        let blueprint = embedded("tiny-rerank", *dtype);
        let card = blueprint.card();
        assert_eq!((card.task, card.dimensions, card.pooling), (Task::Rerank, 1, None));
        let mut model = load(&blueprint);
        for item in reference["items"].as_array().unwrap() {
            let (query, document) = (item["query"].as_str().unwrap(), item["document"].as_str().unwrap());
            let row = card.encoder.encode(query, Some(document), Truncate::End).unwrap();
            let [ids, types] = ["input_ids", "token_type_ids"].map(|key| numbers(&item[key], |id| id as u32));
            assert_eq!(row, TokenRow::new(ids, types));
            let found = step(&mut *model, &[row])[0][0];
            let expected = item["logit"].as_f64().unwrap() as f32;
            let most = tolerance(*dtype).0;
            assert!((found - expected).abs() <= most, "{dtype}: {found} instead of {expected} for {document}");
        }
    }
}

#[test]
fn tiny_section_gives_the_reference_labels() {
    let reference = reference("tiny-section");
    for dtype in &ON_A_CPU {
        let blueprint = embedded("tiny-section", *dtype);
        let card = blueprint.card();
        assert_eq!((card.task, card.labels.len(), card.labels[9].as_str()), (Task::Classify, 12, "python"));
        let mut model = load(&blueprint);
        for item in reference["items"].as_array().unwrap() {
            let row = card.encoder.encode(item["text"].as_str().unwrap(), None, Truncate::End).unwrap();
            let found = &step(&mut *model, &[row])[0];
            let expected = numbers(&item["logits"], |value| value as f32);
            let worst = difference(found, &expected);
            assert!(worst <= tolerance(*dtype).0, "{dtype}: off by {worst} for {}", item["text"]);
            let best = (0..found.len()).max_by(|a, b| found[*a].total_cmp(&found[*b])).unwrap();
            assert_eq!(card.labels[best], item["label"].as_str().unwrap());
        }
    }
}

#[test]
fn plain_kernels_agree_with_the_fused() {
    let blueprint = embedded("tiny-section", Dtype::F32);
    let row = |length: u32| TokenRow::new((0..length).map(|i| 5 + i * 31 % 8000).collect(), Vec::new());
    let rows = [row(1), row(64), row(65), row(200)];
    let fused = step(&mut *load(&blueprint), &rows);
    let plain = step(&mut *load(&blueprint.with_kernels(Kernels::Plain)), &rows);
    for (fused, plain) in fused.iter().zip(&plain) {
        assert!(difference(fused, plain) < 2e-5);
    }
}
