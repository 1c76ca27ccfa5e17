//! Whole models on the card beside the same in f32 on the CPU.

use std::fmt::Write;
use std::sync::Arc;

use anyhow::{Context, anyhow, bail, ensure};
use candle_core::Device;

use super::stage::Stage;
use crate::config::{Dtype, ModelConfig, Source, Task};
use crate::device::{Hardware, Need};
use crate::model::{Batch, Blueprint, DeviceForm, Fault, ModelFiles, Output, TokenRow, Wanted, embedded_names};
use crate::ops::card::FP8_FROM;
use crate::tokenize::{TextRow, Truncate};
use crate::units::ModelId;

/// The least cosine to the answers in f32 on the CPU.
const BARS: [(Dtype, f64); 6] = [
    (Dtype::F32, 0.99999),
    (Dtype::F16, 0.9999),
    (Dtype::Bf16, 0.999),
    (Dtype::Q8, 0.995),
    (Dtype::Int8, 0.998),
    (Dtype::Fp8, 0.995),
];

/// Those of the reference of all-MiniLM-L6-v2, for which the bars are, but for the longest; what is made of them is as
/// long as a model takes.
const TEXTS: [&str; 6] = [
    "The cat sits on the mat.",
    "A feline rests on a rug.",
    "Quarterly revenue grew by 12 percent.",
    "Wie wird das Wetter morgen in Zürich?",
    "a",
    "The quick brown fox jumps over the lazy dog near the river bank.",
];

pub(super) fn run(stage: &mut Stage) -> anyhow::Result<String> {
    let (models, possible) = (models(stage), possible(stage));
    let (mut lines, mut worst) = (String::new(), f64::INFINITY);
    let mut missed = Vec::new();
    for (number, (name, files)) in models.into_iter().enumerate() {
        let files = files?;
        let of = |dtype| blueprint(&name, files.clone(), dtype);
        let reference = of(Dtype::F32)?;
        let rows = rows(&reference)?;
        let expected = on_the_cpu(&reference, &rows)?;
        write!(lines, "\n  {name}:")?;
        for (dtype, bar) in BARS.into_iter().filter(|(dtype, _)| possible(*dtype)) {
            let id = ModelId::new(100 + 10 * number as u32 + dtype as u32);
            let blueprint = of(dtype)?.for_device(DeviceForm::Cuda);
            if blueprint.check_form().is_err() {
                write!(lines, " {dtype} not for its widths,")?;
                continue;
            }
            let found = on_the_card(stage, id, &blueprint, &rows, batches(rows.len()))?;
            let expected: Vec<Vec<f32>> = found.iter().map(|(row, _)| expected[*row].clone()).collect();
            let found: Vec<Vec<f32>> = found.into_iter().map(|(_, answer)| answer).collect();
            let cosine = least_cosine(&found, &expected);
            worst = worst.min(cosine);
            write!(lines, " {dtype} {cosine:.6} in {},", blueprint.resident())?;
            if cosine.is_nan() || cosine < bar {
                missed.push(format!("{name} in {dtype}: {cosine:.6}, at least {bar} is wanted"));
            }
        }
    }
    ensure!(missed.is_empty(), "{}", missed.join("; "));
    Ok(format!("smallest cosine {worst:.6}{lines}"))
}

/// The built-in models and those that were named.
pub(super) fn models(stage: &Stage) -> Vec<(String, anyhow::Result<ModelFiles>)> {
    let embedded = embedded_names().map(|name| (name.to_owned(), ModelFiles::embedded(name)));
    let folders = stage.folders.iter().map(|folder| (folder.display().to_string(), ModelFiles::open(folder)));
    embedded.chain(folders).map(|(name, files)| (name.clone(), files.context(name))).collect()
}

/// Which dtypes the card has.
pub(super) fn possible(stage: &Stage) -> impl Fn(Dtype) -> bool + Copy + use<> {
    let has_fp8 = stage.card().capability() >= FP8_FROM;
    move |dtype| dtype != Dtype::Fp8 || has_fp8
}

pub(super) fn blueprint(name: &str, files: ModelFiles, dtype: Dtype) -> anyhow::Result<Blueprint> {
    let config = ModelConfig { dtype, ..ModelConfig::new(name, Source::Path(name.into())) };
    Blueprint::new(&config, files).with_context(|| name.to_owned())
}

/// Texts of one word to the longest that the model takes; for an embedder each a second time, to be answered with its states.
fn rows(blueprint: &Blueprint) -> anyhow::Result<Vec<Arc<TokenRow>>> {
    let card = blueprint.card();
    let pair = (card.task == Task::Rerank).then(|| TEXTS[1].to_owned());
    let long = TEXTS.join(" ").repeat(8);
    let texts = TEXTS.iter().copied().chain([long.as_str()]);
    let rows: Vec<_> = texts.map(|text| TextRow { text: text.to_owned(), pair: pair.clone() }).collect();
    let mut rows = card.encoder.encode_batch(&rows, Truncate::End).map_err(|error| anyhow!("{:?}", error))?;
    if card.task == Task::Embed {
        let with_states: Vec<_> = rows.iter().map(|row| TokenRow { wanted: Wanted::States, ..row.clone() }).collect();
        rows.extend(with_states);
    }
    Ok(rows.into_iter().map(Arc::new).collect())
}

fn on_the_cpu(blueprint: &Blueprint, rows: &[Arc<TokenRow>]) -> anyhow::Result<Vec<Vec<f32>>> {
    let mut model = blueprint.load(&Device::Cpu)?;
    let batch = Batch::Tokens(rows.to_vec());
    let vectors = model.step(&batch).and_then(Output::vectors).map_err(|fault| anyhow!("{fault}"))?;
    Ok(vectors)
}

/// Which rows a batch has: all of them, most of which is padding where the model pads; then small steps, each of a shape
/// that comes again: what is recorded of one must serve another.
fn batches(rows: usize) -> Vec<Vec<usize>> {
    let alone = (0..rows).chain(0..rows).map(|row| vec![row]);
    let pairs = (1..rows).chain(1..rows).map(|row| vec![row, row - 1]);
    std::iter::once((0..rows).collect()).chain(alone).chain(pairs).collect()
}

/// The number of a row and its answer, for every row of every batch.
pub(super) fn on_the_card(
    stage: &mut Stage,
    id: ModelId,
    blueprint: &Blueprint,
    rows: &[Arc<TokenRow>],
    batches: Vec<Vec<usize>>,
) -> anyhow::Result<Vec<(usize, Vec<f32>)>> {
    let load = |device: &Device| blueprint.load(device).map_err(|error| Fault::Model { message: error.to_string() });
    // The lease that a server gives it.
    let lease = blueprint.resident() + blueprint.transient();
    let (mut model, account) =
        stage.hardware.load(id, lease, load).map_err(|failure| anyhow!("the load failed: {failure}"))?;
    let mut answers = Vec::new();
    for numbers in batches {
        let batch = Batch::Tokens(numbers.iter().map(|number| rows[*number].clone()).collect());
        match stage.hardware.step(id, Need::WHATEVER, || model.step(&batch)) {
            Ok((Ok(output), _)) => {
                let vectors = output.vectors().map_err(|fault| anyhow!("{fault}"))?;
                answers.extend(numbers.into_iter().zip(vectors));
            }
            Ok((Err(fault), _)) => bail!("{fault}"),
            Err(short) => bail!("{} were needed, {} could be had", short.needed, short.available),
        }
    }
    drop(model);
    drop(account);
    Ok(answers)
}

/// Of each row; of all numbers together where a row has a single one.
fn least_cosine(found: &[Vec<f32>], expected: &[Vec<f32>]) -> f64 {
    if expected.iter().all(|row| row.len() == 1) {
        return cosine(&found.concat(), &expected.concat());
    }
    found.iter().zip(expected).map(|(found, expected)| cosine(found, expected)).fold(f64::INFINITY, f64::min)
}

fn cosine(found: &[f32], expected: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    dot(found, expected) / (dot(found, found) * dot(expected, expected)).sqrt()
}
