//! Which texts are nearest to which, in every dtype beside f32: what a search would notice of it.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::Arc;

use anyhow::{anyhow, ensure};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use super::answers;
use super::stage::Stage;
use crate::config::{Dtype, Task};
use crate::model::{Blueprint, DeviceForm, TokenRow};
use crate::tokenize::{TextRow, Truncate};
use crate::units::ModelId;

/// How many texts there are, and how many of them share a step.
const TEXTS: usize = 1_200;
const BATCH: usize = 100;
/// How many neighbours are looked at.
const NEAREST: usize = 10;

/// The least part of the nearest texts in f32 that are among the nearest in a dtype. Many texts are nearly equally near
/// by design, so that small errors show; a form that has lost the sense of texts agrees in a hundredth.
const BARS: [(Dtype, f64); 5] =
    [(Dtype::F16, 0.95), (Dtype::Bf16, 0.85), (Dtype::Q8, 0.85), (Dtype::Int8, 0.75), (Dtype::Fp8, 0.6)];

const WHAT: &str = "small fast,large complete,graphical,simple command line,portable,secure,experimental,well documented,\
    distributed,interactive,minimal,old but reliable";
const KINDS: &str = "web server,mail client,parser,text editor,database,music player,image viewer,compiler,debugger,\
    backup tool,chat program,strategy game,spreadsheet,scheduler,password manager,file system checker";
const PURPOSES: &str = "for children,for scientists,with many plugins,written in Python,that needs no network,\
    with support for encryption,that runs in the terminal,for large collections of files,with a calendar,\
    that understands JSON,for astronomy,for embedded devices,with statistics and plots,that speaks several languages";

pub(super) fn run(stage: &mut Stage) -> anyhow::Result<String> {
    let (texts, possible) = (texts(7), answers::possible(stage));
    let (mut lines, mut missed, mut models) = (String::new(), Vec::new(), 0);
    for (number, (name, files)) in answers::models(stage).into_iter().enumerate() {
        let files = files?;
        let of = |dtype| answers::blueprint(&name, files.clone(), dtype);
        let reference = of(Dtype::F32)?;
        if reference.card().task != Task::Embed {
            continue;
        }
        models += 1;
        let rows = rows(&reference, &texts)?;
        let mut nearest_in = |blueprint: Blueprint| -> anyhow::Result<Vec<BTreeSet<usize>>> {
            let id = ModelId::new(300 + 10 * number as u32 + blueprint.card().dtype as u32);
            let numbers: Vec<usize> = (0..rows.len()).collect();
            let batches = numbers.chunks(BATCH).map(<[usize]>::to_vec).collect();
            let blueprint = blueprint.for_device(DeviceForm::Cuda);
            // In the order in which they were asked for.
            let vectors = answers::on_the_card(stage, id, &blueprint, &rows, batches)?;
            Ok(nearest(&vectors.into_iter().map(|(_, vector)| vector).collect::<Vec<_>>()))
        };
        let expected = nearest_in(reference)?;
        write!(lines, "\n  {name}:")?;
        for (dtype, least) in BARS.into_iter().filter(|(dtype, _)| possible(*dtype)) {
            let blueprint = of(dtype)?;
            if blueprint.clone().for_device(DeviceForm::Cuda).check_form().is_err() {
                write!(lines, " {dtype} not for its widths")?;
                continue;
            }
            let agreement = agreement(&nearest_in(blueprint)?, &expected);
            write!(lines, " {dtype} {agreement:.4}")?;
            if agreement.is_nan() || agreement < least {
                missed.push(format!("{name} in {dtype}: {agreement:.4}, at least {least} is wanted"));
            }
        }
    }
    ensure!(missed.is_empty(), "{}{lines}", missed.join("; "));
    Ok(format!("{TEXTS} texts, {models} models: part of the {NEAREST} nearest that agree{lines}"))
}

/// Descriptions of programs that do not exist, no two the same.
fn texts(seed: u64) -> Vec<String> {
    let [what, kinds, purposes] = [WHAT, KINDS, PURPOSES].map(|list| list.split(',').collect::<Vec<_>>());
    let mut all = Vec::new();
    for what in &what {
        for kind in &kinds {
            all.extend(purposes.iter().map(|purpose| format!("{what} {kind} {purpose}")));
        }
    }
    let mut random = StdRng::seed_from_u64(seed);
    all.shuffle(&mut random);
    all.truncate(TEXTS);
    // Of every third a second sentence, so that lengths differ.
    for text in all.iter_mut().step_by(3) {
        write!(text, "; a {} comes with it", kinds[random.random_range(0..kinds.len())]).expect("a String takes all");
    }
    all
}

fn rows(blueprint: &Blueprint, texts: &[String]) -> anyhow::Result<Vec<Arc<TokenRow>>> {
    let rows: Vec<_> = texts.iter().map(|text| TextRow { text: text.clone(), pair: None }).collect();
    let rows = blueprint.card().encoder.encode_batch(&rows, Truncate::End).map_err(|error| anyhow!("{:?}", error))?;
    Ok(rows.into_iter().map(Arc::new).collect())
}

/// For each vector the numbers of the [`NEAREST`] others by cosine.
fn nearest(vectors: &[Vec<f32>]) -> Vec<BTreeSet<usize>> {
    let unit: Vec<Vec<f32>> = vectors
        .iter()
        .map(|vector| {
            let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
            vector.iter().map(|value| value / length).collect()
        })
        .collect();
    let of = |index: usize| {
        let cosine = |other: &Vec<f32>| unit[index].iter().zip(other).map(|(a, b)| a * b).sum::<f32>();
        let mut others: Vec<_> = unit.iter().map(cosine).enumerate().filter(|(other, _)| *other != index).collect();
        others.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        others.into_iter().take(NEAREST).map(|(other, _)| other).collect()
    };
    (0..unit.len()).map(of).collect()
}

fn agreement(found: &[BTreeSet<usize>], expected: &[BTreeSet<usize>]) -> f64 {
    let shared: usize = found.iter().zip(expected).map(|(found, expected)| found.intersection(expected).count()).sum();
    shared as f64 / (expected.len() * NEAREST) as f64
}
