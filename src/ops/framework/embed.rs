//! The sum of word, position and type embeddings, normalized.

use candle_core::{DType, Device, Result, Tensor};

use super::norm::normalize;
use crate::ops::matrix::Held;
use crate::ops::{Indices, Matrix, Norm, Tables};

/// `norm(words[t] + positions[t] + types[t])` for every position, on `device`, as far as there are tables. Quantized tables stay quantized: only the
/// rows that are asked for are decoded, to f32, and brought to the norm's dtype once they are summed.
pub(crate) fn embed(tables: &Tables, indices: &Indices, norm: &Norm, device: &Device) -> Result<Tensor> {
    let mut sum = select(&tables.words, &indices.words, device)?;
    for (table, indices) in [(&tables.positions, &indices.positions), (&tables.types, &indices.types)] {
        if let Some(table) = table {
            sum = (sum + select(table, indices, device)?)?;
        }
    }
    normalize(norm, &sum.to_dtype(norm.weight.dtype())?)
}

fn select(table: &Matrix, indices: &[u32], device: &Device) -> Result<Tensor> {
    let indices = Tensor::new(indices, device)?;
    match table.held() {
        Held::Quantized(table) => table.embedding(&indices),
        Held::Rows(rows) => rows.index_select(&indices, 0),
        Held::Panels(_) | Held::Blocks(_) | Held::Codes { .. } => {
            table.to_f32()?.to_dtype(DType::F32)?.index_select(&indices, 0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Dtype;
    use crate::ops::embed_plain;
    use crate::ops::tests::{assert_close, framework_matrix, matrix, random};

    #[test]
    fn equals_plain_in_every_dtype() -> Result<()> {
        for (dtype, tolerance) in [(Dtype::F32, 2e-5), (Dtype::F16, 0.01), (Dtype::Bf16, 0.06), (Dtype::Q8, 0.01)] {
            let tables = |make: fn(Dtype, usize, usize) -> Matrix| Tables {
                words: make(dtype, 50, 96),
                positions: Some(make(dtype, 20, 96)),
                types: Some(make(dtype, 2, 96)),
            };
            let words_alone =
                |make: fn(Dtype, usize, usize) -> Matrix| Tables { positions: None, types: None, ..tables(make) };
            let norm = Norm { weight: random(&[96], 1.0), bias: random(&[96], 1.0), epsilon: 1e-12 };
            let indices = Indices {
                words: (0..300).map(|i| i * 7 % 50).collect(),
                positions: (0..300).map(|i| i % 20).collect(),
                types: (0..300).map(|i| i % 2).collect(),
            };
            let expected = embed_plain(&tables(matrix), &indices, &norm)?;
            let expected_alone = embed_plain(&words_alone(matrix), &indices, &norm)?;
            let narrow = |tensor: &Tensor| tensor.to_dtype(super::super::activations(dtype));
            let norm = Norm { weight: narrow(&norm.weight)?, bias: narrow(&norm.bias)?, ..norm };
            let found = embed(&tables(framework_matrix), &indices, &norm, &Device::Cpu)?;
            assert_close(&found.to_dtype(DType::F32)?, &expected, tolerance);
            let found = embed(&words_alone(framework_matrix), &indices, &norm, &Device::Cpu)?;
            assert_close(&found.to_dtype(DType::F32)?, &expected_alone, tolerance);
        }
        Ok(())
    }
}
