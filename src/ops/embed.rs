//! The sum of word, position and type embeddings, normalized.

use candle_core::{Result, Tensor};

use super::matrix::View;
use super::{Matrix, Norm, host, parallel};

/// Indices into the three tables, one of each for every position of the step. All are inside their tables.
#[derive(Clone, Debug, Default)]
pub(crate) struct Indices {
    pub(crate) words: Vec<u32>,
    pub(crate) positions: Vec<u32>,
    pub(crate) types: Vec<u32>,
}

/// The three tables. A model may have no types, or tell positions otherwise.
#[derive(Clone, Debug)]
pub(crate) struct Tables {
    pub(crate) words: Matrix,
    pub(crate) positions: Option<Matrix>,
    pub(crate) types: Option<Matrix>,
}

/// `out[t] = norm(words[t] + positions[t] + types[t])`, without what there is no table of.
pub(crate) fn embed(tables: &Tables, indices: &Indices, norm: &Norm, out: &Tensor) -> Result<()> {
    let (tokens, width) = out.dims2()?;
    assert_eq!((indices.words.len(), tables.words.columns()), (tokens, width), "one index for each position");
    tables.words.view(|words| {
        view(tables.positions.as_ref(), |positions| {
            view(tables.types.as_ref(), |types| {
                norm.with_parameters(|normalize| {
                    host::write(out, |out| {
                        parallel::for_each_row(out, width, |index, row| {
                            words.decode_rows(indices.words[index] as usize, row);
                            for (table, indices) in [(positions, &indices.positions), (types, &indices.types)] {
                                if let Some(table) = table {
                                    table.add_row(indices[index] as usize, row);
                                }
                            }
                            normalize.row(row);
                        });
                    })
                })
            })
        })
    })???
}

/// Calls `read` with the table's contents, or with none.
fn view<T>(table: Option<&Matrix>, read: impl FnOnce(Option<View<'_>>) -> T) -> Result<T> {
    match table {
        Some(table) => table.view(|view| read(Some(view))),
        None => Ok(read(None)),
    }
}

/// The same in candle's operations.
pub(crate) fn embed_plain(tables: &Tables, indices: &Indices, norm: &Norm) -> Result<Tensor> {
    let select = |table: &Matrix, indices: &[u32]| {
        let table = table.to_f32()?;
        table.index_select(&Tensor::new(indices, table.device())?, 0)
    };
    let mut sum = select(&tables.words, &indices.words)?;
    for (table, indices) in [(&tables.positions, &indices.positions), (&tables.types, &indices.types)] {
        if let Some(table) = table {
            sum = (sum + select(table, indices)?)?;
        }
    }
    norm.plain(&sum)
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
                let all = Tables {
                    words: matrix(dtype, 50, 96),
                    positions: Some(matrix(dtype, 20, 96)),
                    types: Some(matrix(dtype, 2, 96)),
                };
                let fewer = Tables { positions: None, types: None, ..all.clone() };
                let norm = Norm { weight: random(&[96], 1.0), bias: random(&[96], 1.0), epsilon: 1e-12 };
                let indices = Indices {
                    words: (0..tokens as u32).map(|i| i * 7 % 50).collect(),
                    positions: (0..tokens as u32).map(|i| i % 20).collect(),
                    types: (0..tokens as u32).map(|i| i % 2).collect(),
                };
                let out = Tensor::zeros((tokens, 96), candle_core::DType::F32, &Device::Cpu)?;
                for tables in [all, fewer] {
                    embed(&tables, &indices, &norm, &out)?;
                    assert_close(&out, &embed_plain(&tables, &indices, &norm)?, 2e-5);
                }
            }
        }
        Ok(())
    }
}
