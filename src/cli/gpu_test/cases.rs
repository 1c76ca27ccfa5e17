//! The cases on which kernels on the card are compared with plain code in f32 on the CPU, and how far they may be off.

use anyhow::ensure;
use candle_core::{DType, Device, Result, Tensor};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::stage::Stage;
use crate::config::Dtype;
use crate::ops::{Matrix, MatrixBuilder, Rows};
use crate::units::{Bytes, ModelId};

/// Lengths of rows, so that tiles of attention end everywhere: empty rows, rows of one token, and both sides of a tile.
/// The last two are long enough for long tiles. Those before and the last have more tiles than a card has blocks at once.
const LENGTHS: [&[usize]; 8] = [
    &[1],
    &[1, 2, 3, 7, 0, 31, 33, 0],
    &[64, 63, 65, 1, 128, 127, 129, 16],
    &[512, 3, 511, 500, 70, 0, 256],
    &[17; 40],
    &MANY,
    &[481, 0, 512, 7, 511],
    &[512; 5],
];
/// All lengths up to 150, mixed, as far as they go.
const MANY: [usize; 60] = {
    let mut lengths = [0; 60];
    let mut row = 0;
    while row < lengths.len() {
        lengths[row] = row * 37 % 151;
        row += 1;
    }
    lengths
};
/// Heads and their size.
const HEADS: [(usize, usize); 5] = [(1, 64), (12, 32), (16, 64), (3, 96), (4, 128)];

/// How far a result may be off, as a part of the largest magnitude: some units in the last place of the dtype.
pub(super) const TOLERANCES: [(DType, Dtype, f32); 2] =
    [(DType::F16, Dtype::F16, 4e-3), (DType::BF16, Dtype::Bf16, 3e-2)];

/// The largest difference of each operation, as a part of its tolerance.
#[derive(Default)]
pub(super) struct Worst(Vec<(String, f32)>);

impl Worst {
    /// What was found in so many cases; an error if anything is further off than it may be.
    pub(super) fn told(&self, cases: usize) -> anyhow::Result<String> {
        let lines: Vec<String> = self.0.iter().map(|(name, part)| format!("{name} {part:.2}")).collect();
        let text = format!("{cases} cases; largest difference by its tolerance: {}", lines.join(", "));
        ensure!(self.0.iter().all(|(_, part)| *part <= 1.0), "{text}");
        Ok(text)
    }

    pub(super) fn note(&mut self, name: &str, part: f32) {
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            // Not `max`: what is not a number has to stay.
            Some((_, worst)) if part.is_nan() || part > *worst => *worst = part,
            Some(_) => {}
            None => self.0.push((name.to_owned(), part)),
        }
    }
}

/// Evenly over all, at most so many; all if nothing is said.
pub(super) fn evenly<T>(all: Vec<T>, most: Option<usize>) -> Vec<T> {
    let (count, most) = (all.len(), most.unwrap_or(all.len()).min(all.len()));
    // The first of each of `most` equal parts.
    all.into_iter().enumerate().filter(|(at, _)| at * most % count < most).map(|(_, one)| one).collect()
}

/// The names of what a case compares, with the differences as parts of what they may be.
pub(super) type Compared = fn(&Case, &Device, &mut StdRng) -> Result<Vec<(&'static str, f32)>>;

/// Runs these over all cases of rows, heads and dtypes.
pub(super) fn over_all(stage: &mut Stage, compared: &[Compared]) -> anyhow::Result<String> {
    const MODEL: ModelId = ModelId::new(8);
    let mut worst = Worst::default();
    let (device, account) = stage.load(MODEL, |device| Ok(device.clone()))?;
    let mut random = StdRng::seed_from_u64(8);
    let cases = evenly(Case::all(), stage.cases_max);
    for case in &cases {
        for compared in compared {
            let (found, _) = stage
                .step(MODEL, Bytes::gib(4), || compared(case, &device, &mut random))
                .map_err(|shortfall| anyhow::anyhow!("out of memory: {shortfall:?}"))?;
            let found = found.map_err(|fault| anyhow::anyhow!("{case:?}: {fault}"))?;
            found.into_iter().for_each(|(name, part)| worst.note(name, part));
        }
    }
    drop(account);
    worst.told(cases.len())
}

/// Rows with so many heads, in a dtype.
#[derive(Debug)]
pub(super) struct Case {
    pub(super) dtype: DType,
    held: Dtype,
    tolerance: f32,
    pub(super) rows: Rows,
    pub(super) heads: usize,
    pub(super) size: usize,
}

impl Case {
    fn all() -> Vec<Case> {
        let mut all = Vec::new();
        for (dtype, held, tolerance) in TOLERANCES {
            for lengths in LENGTHS {
                for (heads, size) in HEADS {
                    all.push(Case { dtype, held, tolerance, rows: Rows::ragged(lengths.to_vec()), heads, size });
                }
            }
        }
        all
    }

    /// The rows that have tokens, where they lie. The plain versions know no others, which take no place.
    pub(super) fn filled_rows(&self) -> Rows {
        Rows::ragged(self.rows.iter().map(|(_, length)| length).filter(|length| *length > 0).collect())
    }

    /// Random values that the dtype can hold, in f32 on the CPU.
    pub(super) fn tensor(&self, shape: &[usize], scale: f32, random: &mut StdRng) -> Result<Tensor> {
        let count: usize = shape.iter().product();
        let values: Vec<f32> = (0..count).map(|_| random.random_range(-scale..scale)).collect();
        Tensor::from_vec(values, shape, &Device::Cpu)?.to_dtype(self.dtype)?.to_dtype(DType::F32)
    }

    pub(super) fn matrix(&self, values: &Tensor, device: &Device) -> Result<Matrix> {
        let (rows, columns) = values.dims2()?;
        let mut builder = MatrixBuilder::new(self.held, rows, columns);
        if builder.push(&values.flatten_all()?.to_vec1::<f32>()?).is_err() {
            candle_core::bail!("the values are made to be held");
        }
        builder.finish(device)
    }

    /// The largest difference, as a part of what may be.
    pub(super) fn difference(&self, found: &Tensor, expected: &Tensor) -> Result<f32> {
        let values =
            |tensor: &Tensor| tensor.to_dtype(DType::F32)?.to_device(&Device::Cpu)?.flatten_all()?.to_vec1::<f32>();
        let (found, expected) = (values(found)?, values(expected)?);
        let largest = expected.iter().fold(0f32, |largest, value| largest.max(value.abs()));
        let mut worst = 0f32;
        for (found, expected) in found.iter().zip(&expected) {
            let difference = (found - expected).abs();
            // Not `max`: what is not a number has to stay.
            if difference.is_nan() || difference > worst {
                worst = difference;
            }
        }
        Ok(worst / (self.tolerance * largest.max(1e-3)))
    }
}
