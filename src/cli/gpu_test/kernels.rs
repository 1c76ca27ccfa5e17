//! Our kernels on the card beside the plain versions in f32 on the CPU, over sizes of every kind. Nothing of cuBLAS is in
//! it, so that a sanitizer looks at ours alone.

use candle_core::{DType, Device, Result, Tensor};
use rand::RngExt;
use rand::rngs::StdRng;

use super::cases::{self, Case};
use super::stage::Stage;
use crate::config::Pooling;
use crate::ops::card::{self, AttentionKernels, Codes, Layout, Operations, Summed};
use crate::ops::{
    Activation, EightBit, Indices, Norm, Rotation, Sight, Tables, attention_plain, embed_plain, pool_plain,
    rotate_plain,
};

/// How far positions see beside everything: no further than themselves, less than a tile, as far as one, and over several.
const REACHES: [usize; 4] = [0, 5, 64, 200];

pub(super) fn run(stage: &mut Stage) -> anyhow::Result<String> {
    cases::over_all(stage, &[Case::differences, Case::differences_of_newer])
}

impl Case {
    fn differences(&self, device: &Device, random: &mut StdRng) -> Result<Vec<(&'static str, f32)>> {
        let Case { dtype, ref rows, heads, size, .. } = *self;
        let (tokens, width) = (rows.tokens(), heads * size);
        let mut ids = |bound: u32| (0..tokens).map(|_| random.random_range(0..bound)).collect::<Vec<u32>>();
        let indices = Indices { words: ids(29), positions: ids(520), types: ids(2) };
        let layout = Layout::new(rows, &indices, device)?;
        // Those that are computed may be more than the rows have: nobody looks at what comes of them.
        let computed = layout.tokens();
        let mut tensor = |shape: &[usize], scale: f32| self.tensor(shape, scale, random);
        let (x, qkv) = (tensor(&[computed, width], 2.0)?, tensor(&[computed, 3 * width], 2.0)?);
        let (delta, delta_bias) = (tensor(&[computed, width], 2.0)?, tensor(&[width], 1.0)?);
        let norm = Norm { weight: tensor(&[width], 1.0)?, bias: tensor(&[width], 1.0)?, epsilon: 1e-6 };
        let [words, positions, types] =
            [(29, 1.0), (520, 1.0), (2, 1.0)].map(|(rows, scale)| tensor(&[rows, width], scale));
        let (words, positions, types) = (words?, positions?, types?);

        let here = |tensor: &Tensor| tensor.to_dtype(dtype)?.to_device(device);
        let empty = |shape: &[usize]| Tensor::zeros(shape, dtype, device);
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
}
