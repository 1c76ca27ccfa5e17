//! A row's result does not depend on what shares its batch, nor on what ran before.

use std::collections::HashMap;

use plimsoll::config::Dtype;
use plimsoll::memory::ShapeKind;
use plimsoll::model::{Blueprint, Model, TokenRow};

use crate::support::{ON_A_CPU, cosine, difference, embedded, load, step};

/// A row of `length` made-up tokens; `seed` tells rows of one length apart.
fn row(length: u32, seed: u32) -> TokenRow {
    row_of(8_000, length, seed)
}

/// The same with ids below `words` and a few more.
fn row_of(words: u32, length: u32, seed: u32) -> TokenRow {
    TokenRow::new((0..length).map(|at| 5 + (at * 131 + seed * 977) % words).collect(), Vec::new())
}

/// The batches of the case: equal lengths, mixed ones, and a small one between two large ones.
fn batches(words: u32) -> Vec<Vec<TokenRow>> {
    let row = |length, seed| row_of(words, length, seed);
    let equal = |count: u32, length: u32| (0..count).map(|seed| row(length, seed)).collect::<Vec<_>>();
    let mixed = |count: u32| (0..count).map(|seed| row(1 + seed * 53 % 140, seed)).collect::<Vec<_>>();
    let mut batches: Vec<_> = [1, 2, 3, 8, 33].into_iter().flat_map(|count| [equal(count, 40), mixed(count)]).collect();
    batches.extend([mixed(33), equal(1, 3), mixed(33)]);
    batches
}

/// Runs every batch twice, and each of its rows alone once.
pub(crate) fn check(blueprint: &Blueprint, most: f32) {
    let mut model = load(blueprint);
    let mut alone: HashMap<Vec<u32>, Vec<f32>> = HashMap::new();
    let words = blueprint.card().vocab_size.min(8_000) - 5;
    for batch in batches(words) {
        let together = step(&mut *model, &batch);
        assert_eq!(together, step(&mut *model, &batch), "the same batch gives the same bits");
        for (row, together) in batch.iter().zip(&together) {
            let single = || step(&mut *model, std::slice::from_ref(row)).remove(0);
            let alone = &*alone.entry(row.ids.clone()).or_insert_with(single);
            let (worst, cosine) = (difference(together, alone), cosine(together, alone));
            assert!(worst <= most && cosine >= 0.999_999, "{} tokens: off by {worst}, cosine {cosine}", row.ids.len());
        }
    }
}

#[test]
fn batched_equals_single_in_every_dtype() {
    for dtype in &ON_A_CPU {
        // The arithmetic is f32 for all of them, so that the bound is too.
        check(&embedded("tiny-embed", *dtype), 5e-5);
    }
}

#[test]
fn batched_equals_single_when_padded() {
    check(&embedded("tiny-embed", Dtype::F32).with_form(ShapeKind::Padded), 5e-5);
}

#[test]
fn padded_and_ragged_steps_agree() {
    let blueprint = embedded("tiny-section", Dtype::F32);
    let rows: Vec<_> = [1, 250, 16, 64].map(|length| row(length, length)).to_vec();
    let ragged = step(&mut *load(&blueprint), &rows);
    let padded = step(&mut *load(&blueprint.with_form(ShapeKind::Padded)), &rows);
    for (ragged, padded) in ragged.iter().zip(&padded) {
        assert!(difference(ragged, padded) < 5e-5);
    }
}

#[test]
fn two_models_interleaved_keep_their_own_answers() {
    // The same architecture and input shape; rerank and section differ in their weights only, up to the last layer.
    let mut models: Vec<Box<dyn Model>> =
        ["tiny-embed", "tiny-rerank", "tiny-section"].map(|name| load(&embedded(name, Dtype::F32))).into();
    let rows = [row(12, 0), row(30, 1)];
    let first: Vec<_> = models.iter_mut().map(|model| step(&mut **model, &rows)).collect();
    for round in 0..3 {
        for (model, first) in models.iter_mut().zip(&first) {
            assert_eq!(&step(&mut **model, &rows), first, "round {round}");
        }
    }
    assert_eq!(first.iter().map(|vectors| vectors[0].len()).collect::<Vec<_>>(), [192, 1, 12]);
}

#[test]
fn a_row_that_the_model_does_not_know_is_a_fault_and_the_next_step_is_fine() {
    use plimsoll::model::{Batch, Fault};
    let mut model = load(&embedded("tiny-embed", Dtype::F32));
    let mut fault = |row: TokenRow| match model.step(&Batch::Tokens(vec![row.into()])) {
        Err(Fault::Model { message }) => message,
        other => panic!("{other:?}"),
    };
    assert!(fault(TokenRow::new(vec![8192], vec![])).contains("vocabulary"));
    assert!(fault(TokenRow::new(vec![], vec![])).contains("empty"));
    assert!(fault(TokenRow::new(vec![1; 257], vec![])).contains("longer"));
    assert!(fault(TokenRow::new(vec![1, 1], vec![0])).contains("differ"));
    assert!(fault(TokenRow::new(vec![1, 1], vec![0, 2])).contains("type id"));
    step(&mut *model, &[row(5, 0)]);
}
