//! Our kernels on the card beside the plain versions in f32 on the CPU, over sizes of every kind.

use anyhow::ensure;
use candle_core::{DType, Device, Result, Tensor};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::stage::Stage;
use crate::config::{Dtype, Pooling};
use crate::ops::card::{self, AttentionKernels, Codes, Epilogue, Layout, Operations, Summed};
use crate::ops::{
    Activation, EightBit, Indices, Matrix, MatrixBuilder, Norm, Rotation, Rows, Sight, Tables, attention_plain,
    embed_plain, linear_plain, pool_plain, rotate_plain,
};
use crate::units::{Bytes, ModelId};

/// Lengths of rows, so that tiles of attention end everywhere: empty rows, rows of one token, and both sides of a tile.
/// The last are long enough for long tiles.
const LENGTHS: [&[usize]; 6] = [
    &[1],
    &[1, 2, 3, 7, 0, 31, 33, 0],
    &[64, 63, 65, 1, 128, 127, 129, 16],
    &[512, 3, 511, 500, 70, 0, 256],
    &[17; 40],
    &[481, 0, 512, 7, 511],
];
/// Heads and their size.
const HEADS: [(usize, usize); 5] = [(1, 64), (12, 32), (16, 64), (3, 96), (4, 128)];

/// How far positions see beside everything: no further than themselves, less than a tile, as far as one, and over several.
const REACHES: [usize; 4] = [0, 5, 64, 200];

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

pub(super) fn run(stage: &mut Stage) -> anyhow::Result<String> {
    const MODEL: ModelId = ModelId::new(8);
    let mut worst = Worst::default();
    let (device, account) = stage.load(MODEL, |device| Ok(device.clone()))?;
    let (mut cases, mut random) = (0, StdRng::seed_from_u64(8));
    for (dtype, held, tolerance) in TOLERANCES {
        for lengths in LENGTHS {
            for (heads, size) in HEADS {
                let case = Case { dtype, held, tolerance, rows: Rows::ragged(lengths.to_vec()), heads, size };
                for differences in [Case::differences, Case::differences_of_newer] {
                    let (found, _) = stage
                        .step(MODEL, Bytes::gib(4), || differences(&case, &device, &mut random))
                        .map_err(|shortfall| anyhow::anyhow!("out of memory: {shortfall:?}"))?;
                    let found = found.map_err(|fault| anyhow::anyhow!("{case:?}: {fault}"))?;
                    found.into_iter().for_each(|(name, part)| worst.note(name, part));
                }
                cases += 1;
            }
        }
    }
    drop(account);
    worst.told(cases)
}

#[derive(Debug)]
struct Case {
    dtype: DType,
    held: Dtype,
    tolerance: f32,
    rows: Rows,
    heads: usize,
    size: usize,
}

impl Case {
    fn differences(&self, device: &Device, random: &mut StdRng) -> Result<Vec<(&'static str, f32)>> {
        let Case { dtype, ref rows, heads, size, .. } = *self;
        let (tokens, width) = (rows.tokens(), heads * size);
        let inner = 3 * width;
        let mut ids = |bound: u32| (0..tokens).map(|_| random.random_range(0..bound)).collect::<Vec<u32>>();
        let indices = Indices { words: ids(29), positions: ids(520), types: ids(2) };
        let layout = Layout::new(rows, &indices, device)?;
        // Those that are computed may be more than the rows have: nobody looks at what comes of them.
        let computed = layout.tokens();
        let mut tensor = |shape: &[usize], scale: f32| self.tensor(shape, scale, random);
        let (x, bias, qkv) =
            (tensor(&[computed, width], 2.0)?, tensor(&[inner], 1.0)?, tensor(&[computed, inner], 2.0)?);
        let (delta, delta_bias) = (tensor(&[computed, width], 2.0)?, tensor(&[width], 1.0)?);
        let norm = Norm { weight: tensor(&[width], 1.0)?, bias: tensor(&[width], 1.0)?, epsilon: 1e-6 };
        let weights = tensor(&[inner, width], 0.3)?;
        let [words, positions, types] =
            [(29, 1.0), (520, 1.0), (2, 1.0)].map(|(rows, scale)| tensor(&[rows, width], scale));
        let (words, positions, types) = (words?, positions?, types?);

        let here = |tensor: &Tensor| tensor.to_dtype(dtype)?.to_device(device);
        let empty = |shape: &[usize]| Tensor::zeros(shape, dtype, device);
        let (matrix, matrix_f32) = (self.matrix(&weights, device)?, self.matrix(&weights, &Device::Cpu)?);
        let tables = |device: &Device| -> Result<Tables> {
            Ok(Tables {
                words: self.matrix(&words, device)?,
                positions: Some(self.matrix(&positions, device)?),
                types: Some(self.matrix(&types, device)?),
            })
        };
        let norm_here = Norm { weight: here(&norm.weight)?, bias: here(&norm.bias)?, ..norm };
        let operations = Operations::of(&empty(&[1])?)?;
        let card = &*operations;
        let mut differences = Vec::new();
        let mut compare = |name, found: &Tensor, expected: &Tensor| -> Result<()> {
            differences.push((name, self.difference(found, expected)?));
            Ok(())
        };

        let x_here = here(&x)?;
        let product = linear_plain(&x, &matrix_f32)?;
        let gelu = Activation::GeluTanh.apply_plain(&product, Some(&bias))?;
        let relu = Activation::Relu.apply_plain(&product, Some(&bias))?;
        let biased = product.broadcast_add(&bias)?;
        let epilogues = [
            (Epilogue::None, &product),
            (Epilogue::Bias, &biased),
            (Epilogue::BiasGelu, &gelu),
            (Epilogue::BiasRelu, &relu),
        ];
        for (epilogue, expected) in epilogues {
            let y = empty(&[computed, inner])?;
            card::linear(card, &x_here, &matrix, Some(&here(&bias)?), epilogue, &y)?;
            compare("linear", &y, expected)?;
        }
        // The first of a shape finds its way, later ones go by it.
        for expected in [&biased, &product, &biased] {
            let y = here(&qkv)?.copy()?;
            let bias = if std::ptr::eq(expected, &product) { None } else { Some(here(&bias)?) };
            card::add_linear(card, &x_here, &matrix, bias.as_ref(), &y)?;
            compare("linear onto a sum", &y, &(expected + &qkv)?)?;
        }
        let filled = self.filled_rows();
        let of_rows = |tensor: &Tensor| tensor.narrow(0, 0, tokens);
        let expected = attention_plain(&of_rows(&qkv)?, None, &filled, heads, Sight::EVERYTHING)?;
        for kernels in card.attention_kernels(dtype, size)? {
            let mixed = empty(&[computed, width])?;
            card::attention_by(card, Some(kernels), &here(&qkv)?, &layout, heads, Sight::EVERYTHING, &mixed)?;
            let name = match kernels {
                AttentionKernels::General => "attention",
                AttentionKernels::Hopper => "attention for Hopper",
            };
            compare(name, &of_rows(&mixed)?, &expected)?;
        }

        let in_place = here(&x)?.copy()?;
        let (delta_here, bias_here) = (here(&delta)?, here(&delta_bias)?);
        let summed = Summed { x: &in_place, delta: Some((&delta_here, Some(&bias_here))), out: None };
        card::add_norm(card, &norm_here, summed, &layout, None)?;
        compare("norm", &in_place, &norm.add_plain(&x, &delta, Some(&delta_bias))?.1)?;
        let coded = |form| -> Result<Codes> { Codes::new(form, computed, width, device) };
        let differing = |one: &Codes, other: &Codes| -> Result<f32> {
            let ((codes, scales), (others, other_scales)) =
                (one.parts(computed, width)?, other.parts(computed, width)?);
            let same = codes.to_vec2::<u8>()? == others.to_vec2::<u8>()?;
            Ok(if same && scales.to_vec1::<f32>()? == other_scales.to_vec1::<f32>()? { 0.0 } else { 2.0 })
        };
        // A pass that writes codes writes those of its result, bit by bit.
        let mut fused = Vec::new();
        for form in [EightBit::Int8, EightBit::Fp8] {
            let (once, again) = (coded(form)?, coded(form)?);
            // In place, and where the sum is kept.
            let (in_place, sum, out) = (here(&x)?.copy()?, here(&x)?.copy()?, empty(&[computed, width])?);
            for (x, apart) in [(&in_place, None), (&sum, Some(&out))] {
                card::add_norm(card, &norm_here, Summed { x, out: apart, ..summed }, &layout, Some(&once))?;
                card::quantize(card, apart.unwrap_or(x), &again)?;
                fused.push(("codes of a norm", differing(&once, &again)?));
            }
            let (once, again, hidden) = (coded(form)?, coded(form)?, empty(&[computed, width])?);
            card::embed(card, &tables(device)?, &norm_here, &layout, &hidden, Some(&once))?;
            card::quantize(card, &hidden, &again)?;
            fused.push(("codes of embeddings", differing(&once, &again)?));
        }

        let hidden = empty(&[computed, width])?;
        card::embed(card, &tables(device)?, &norm_here, &layout, &hidden, None)?;
        compare("embeddings", &of_rows(&hidden)?, &embed_plain(&tables(&Device::Cpu)?, &indices, &norm)?)?;

        let with_tokens: Vec<u32> =
            (0u32..).zip(rows.iter()).filter(|(_, (_, length))| *length > 0).map(|(row, _)| row).collect();
        for pooling in [Pooling::Mean, Pooling::Cls, Pooling::Last] {
            let pooled = card::pool(card, &x_here, &layout, pooling)?;
            let pooled = pooled.to_device(&Device::Cpu)?;
            let all = pooled.index_select(&Tensor::new(with_tokens.as_slice(), &Device::Cpu)?, 0)?;
            let expected = pool_plain(&of_rows(&x)?, &filled, pooling)?;
            compare("pooling", &all, &Tensor::new(expected, &Device::Cpu)?)?;
        }
        differences.extend(fused);
        Ok(differences)
    }

    /// The same for what encoders do that turn queries and keys, see windows, gate, and have their norms before the blocks.
    fn differences_of_newer(&self, device: &Device, random: &mut StdRng) -> Result<Vec<(&'static str, f32)>> {
        let Case { dtype, ref rows, heads, size, .. } = *self;
        let (tokens, width) = (rows.tokens(), heads * size);
        let filled = self.filled_rows();
        let positions: Vec<u32> = filled.iter().flat_map(|(_, length)| 0..length as u32).collect();
        let words = (0..tokens as u32).map(|at| at * 7 % 29).collect();
        let indices = Indices { words, positions, types: vec![0; tokens] };
        let layout = Layout::new(rows, &indices, device)?;
        let computed = layout.tokens();
        let of_rows = |tensor: &Tensor| tensor.narrow(0, 0, tokens);
        let mut tensor = |shape: &[usize], scale: f32| self.tensor(shape, scale, random);
        let qkv = tensor(&[computed, 3 * width], 2.0)?;
        // Some fill whole warps and blocks, some do not.
        let planes = tensor(&[2, computed, 3 * width / 2], 2.0)?;
        let biases = tensor(&[2, 3 * width / 2], 1.0)?;
        let (x, delta, delta_bias) =
            (tensor(&[computed, width], 2.0)?, tensor(&[computed, width], 2.0)?, tensor(&[width], 1.0)?);
        let norm = Norm {
            weight: tensor(&[width], 1.0)?,
            bias: Tensor::zeros(width, DType::F32, &Device::Cpu)?,
            epsilon: 1e-5,
        };
        let words = tensor(&[29, width], 1.0)?;

        let here = |tensor: &Tensor| tensor.to_dtype(dtype)?.to_device(device);
        let operations = Operations::of(&Tensor::zeros(1, dtype, device)?)?;
        let card = &*operations;
        let norm_here = Norm { weight: here(&norm.weight)?, bias: here(&norm.bias)?, ..norm };
        let mut differences = Vec::new();
        let mut compare = |name, found: &Tensor, expected: &Tensor| -> Result<()> {
            differences.push((name, self.difference(found, expected)?));
            Ok(())
        };

        let rotation = |device: &Device| Rotation::new(10_000.0, 520, size, DType::F32, device);
        let turned = here(&qkv)?.copy()?;
        card::rotate(card, &turned, &rotation(device)?, &layout, heads)?;
        let expected = rotate_plain(&of_rows(&qkv)?, None, &rotation(&Device::Cpu)?, &indices.positions, heads)?;
        compare("rotation", &of_rows(&turned)?, &expected)?;

        for reach in REACHES {
            let sight = Sight::around(reach);
            let expected = attention_plain(&of_rows(&qkv)?, None, &filled, heads, sight)?;
            for kernels in card.attention_kernels(dtype, size)? {
                let mixed = Tensor::zeros((computed, width), dtype, device)?;
                card::attention_by(card, Some(kernels), &here(&qkv)?, &layout, heads, sight, &mixed)?;
                let name = match kernels {
                    AttentionKernels::General => "window",
                    AttentionKernels::Hopper => "window for Hopper",
                };
                compare(name, &of_rows(&mixed)?, &expected)?;
            }
        }

        let [bias, gate_bias] = [biases.get(0)?, biases.get(1)?];
        for activation in [Activation::Gelu, Activation::GeluTanh, Activation::Relu] {
            let gated = here(&planes)?.copy()?;
            card::gate(card, activation, &gated, None, None)?;
            let expected = (activation.apply_plain(&planes.get(0)?, None)? * planes.get(1)?)?;
            compare("gate", &gated.get(0)?, &expected)?;
            let gated = here(&planes)?.copy()?;
            card::gate(card, activation, &gated, Some(&here(&bias)?), Some(&here(&gate_bias)?))?;
            let gates = planes.get(1)?.broadcast_add(&gate_bias)?;
            let expected = (activation.apply_plain(&planes.get(0)?, Some(&bias))? * gates)?;
            compare("gate", &gated.get(0)?, &expected)?;
        }

        let expected = norm.add_plain(&x, &delta, Some(&delta_bias))?;
        let (sum, in_place, apart) = (here(&x)?.copy()?, here(&delta)?.copy()?, here(&delta)?.zeros_like()?);
        let bias_here = here(&delta_bias)?;
        let summed = Summed { x: &sum, delta: Some((&in_place, Some(&bias_here))), out: Some(&in_place) };
        card::add_norm(card, &norm_here, summed, &layout, None)?;
        compare("sum", &sum, &expected.0)?;
        compare("norm of a sum", &in_place, &expected.1)?;
        let (sum, delta_here) = (here(&x)?.copy()?, here(&delta)?);
        let summed = Summed { x: &sum, delta: Some((&delta_here, None)), out: Some(&apart) };
        card::add_norm(card, &norm_here, summed, &layout, None)?;
        compare("norm of a sum", &apart, &norm.add_plain(&x, &delta, None)?.1)?;
        let nothing = delta.zeros_like()?;
        let expected = norm.add_plain(&x, &nothing, None)?.1;
        let (kept, in_place) = (here(&x)?.copy()?, here(&x)?.copy()?);
        for (x, out) in [(&kept, Some(&apart)), (&in_place, None)] {
            card::add_norm(card, &norm_here, Summed { x, delta: None, out }, &layout, None)?;
            compare("norm alone", out.unwrap_or(x), &expected)?;
        }
        compare("norm alone", &kept, &x)?;

        let alone = |device: &Device| -> Result<Tables> {
            Ok(Tables { words: self.matrix(&words, device)?, positions: None, types: None })
        };
        let hidden = Tensor::zeros((computed, width), dtype, device)?;
        card::embed(card, &alone(device)?, &norm_here, &layout, &hidden, None)?;
        compare("embeddings", &of_rows(&hidden)?, &embed_plain(&alone(&Device::Cpu)?, &indices, &norm)?)?;
        Ok(differences)
    }

    /// The rows that have tokens, where they lie. The plain versions know no others, which take no place.
    fn filled_rows(&self) -> Rows {
        Rows::ragged(self.rows.iter().map(|(_, length)| length).filter(|length| *length > 0).collect())
    }

    /// Random values that the dtype can hold, in f32 on the CPU.
    fn tensor(&self, shape: &[usize], scale: f32, random: &mut StdRng) -> Result<Tensor> {
        let count: usize = shape.iter().product();
        let values: Vec<f32> = (0..count).map(|_| random.random_range(-scale..scale)).collect();
        Tensor::from_vec(values, shape, &Device::Cpu)?.to_dtype(self.dtype)?.to_dtype(DType::F32)
    }

    fn matrix(&self, values: &Tensor, device: &Device) -> Result<Matrix> {
        let (rows, columns) = values.dims2()?;
        let mut builder = MatrixBuilder::new(self.held, rows, columns);
        if builder.push(&values.flatten_all()?.to_vec1::<f32>()?).is_err() {
            candle_core::bail!("the values are made to be held");
        }
        builder.finish(device)
    }

    /// The largest difference, as a part of what may be.
    fn difference(&self, found: &Tensor, expected: &Tensor) -> Result<f32> {
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
