//! The sum of word, position and type embeddings, normalized.

use candle_core::{Result, Tensor};

use super::{Matrix, Norm, host, parallel};

/// Indices into the three tables, one of each for every position of the step. All are inside their tables.
#[derive(Clone, Debug, Default)]
pub(crate) struct Indices {
    pub(crate) words: Vec<u32>,
    pub(crate) positions: Vec<u32>,
    pub(crate) types: Vec<u32>,
}

/// The three tables.
#[derive(Clone, Debug)]
pub(crate) struct Tables {
    pub(crate) words: Matrix,
    pub(crate) positions: Matrix,
    pub(crate) types: Matrix,
}

/// `out[t] = norm(words[t] + positions[t] + types[t])`.
pub(crate) fn embed(tables: &Tables, indices: &Indices, norm: &Norm, out: &Tensor) -> Result<()> {
    let (tokens, width) = out.dims2()?;
    assert_eq!((indices.words.len(), tables.words.columns()), (tokens, width), "one index for each position");
    tables.words.view(|words| {
        tables.positions.view(|positions| {
            tables.types.view(|types| {
                norm.with_parameters(|normalize| {
                    host::write(out, |out| {
                        parallel::for_each_row(out, width, |index, row| {
                            words.decode_rows(indices.words[index] as usize, row);
                            positions.add_row(indices.positions[index] as usize, row);
                            types.add_row(indices.types[index] as usize, row);
                            normalize.row(row);
                        });
                    })
                })
            })
        })
    })???
}

/// The same in candle's operations.
pub(crate) fn embed_plain(tables: &Tables, indices: &Indices, norm: &Norm) -> Result<Tensor> {
    let select = |table: &Matrix, indices: &[u32]| {
        let table = table.to_f32()?;
        table.index_select(&Tensor::new(indices, table.device())?, 0)
    };
    let sum = (select(&tables.words, &indices.words)? + select(&tables.positions, &indices.positions)?)?;
    norm.plain(&(sum + select(&tables.types, &indices.types)?)?)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::config::Dtype;
    use crate::ops::tests::{assert_close, matrix, random};

    #[test]
    fn fused_equals_plain_in_every_dtype() -> Result<()> {
        for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::Q8] {
            for tokens in [1usize, 5, 300] {
                let tables = Tables {
                    words: matrix(dtype, 50, 96),
                    positions: matrix(dtype, 20, 96),
                    types: matrix(dtype, 2, 96),
                };
                let norm = Norm { weight: random(&[96], 1.0), bias: random(&[96], 1.0), epsilon: 1e-12 };
                let indices = Indices {
                    words: (0..tokens as u32).map(|i| i * 7 % 50).collect(),
                    positions: (0..tokens as u32).map(|i| i % 20).collect(),
                    types: (0..tokens as u32).map(|i| i % 2).collect(),
                };
                let out = Tensor::zeros((tokens, 96), candle_core::DType::F32, &Device::Cpu)?;
                embed(&tables, &indices, &norm, &out)?;
                assert_close(&out, &embed_plain(&tables, &indices, &norm)?, 2e-5);
            }
        }
        Ok(())
    }
}
