//! Attention of every position to the positions of its own row, without a matrix of scores.

use std::ops::Range;

use candle_core::{D, Result, Tensor};
use candle_nn::ops::softmax;

use super::math::exp;
use super::{Picked, Rows, Sight, host, parallel};

/// Queries of a tile. With the keys of a tile and a head of 64 values a tile's memory is about 130 KiB a thread.
const QUERIES: usize = 64;
/// Keys of a tile: most texts need one or two.
const KEYS: usize = 128;
/// The block of scores that is computed in registers: 4 x 16 are 8 vectors of 8.
const BLOCK_ROWS: usize = 4;
const BLOCK_COLUMNS: usize = 16;

/// Elements of scratch that [`attention`] needs for heads of `size` values.
pub(crate) fn attention_scratch(size: usize) -> usize {
    Tile::elements(size) * parallel::threads()
}

/// `out[t]` = the values of t's row that t sees, weighted by `softmax(query[t] . key / sqrt(size))`, head by head.
///
/// `qkv` is (tokens, 3 * width): queries, keys and values side by side, without their biases, which are `bias`
/// (3 * width). Only that of the queries enters the scores: that of the keys shifts all scores of a query alike,
/// which softmax does not see; that of the values is added at the end, since the weights sum to 1.
/// `out` has the picked positions alone, and those of no row are left as they are.
pub(crate) fn attention(
    qkv: &Tensor,
    bias: Option<&Tensor>,
    picked: &Picked,
    heads: usize,
    sight: Sight,
    out: &Tensor,
    scratch: &Tensor,
) -> Result<()> {
    let (count, width) = out.dims2()?;
    assert!(qkv.dims() == [picked.rows().tokens(), 3 * width] && picked.alone().tokens() == count);
    let size = width / heads;
    host::read(qkv, |qkv: &[f32]| {
        host::read_or_zeros(bias, 3 * width, |bias| {
            host::write(out, |out| {
                let tiles = tiles(picked, out, width);
                host::write(scratch, |scratch| {
                    parallel::for_each_task(tiles.into_iter(), scratch, Tile::elements(size), |queries, scratch| {
                        for head in 0..heads {
                            let mut tile = Tile::new(scratch, qkv, bias, width, size, head);
                            tile.attend(queries.start, queries.length, queries.first, sight, queries.out);
                        }
                    });
                })
            })?
        })
    })??
}

/// Some queries of one row, and where their results go.
struct Queries<'a> {
    /// First position and real length of the row.
    start: usize,
    length: usize,
    /// First of the queries, counted from the row's start.
    first: usize,
    /// The results, as many whole positions as there are queries.
    out: &'a mut [f32],
}

/// Cuts the rows into tiles of queries. `out` is cut along with them, so that each tile owns what it writes.
fn tiles<'a>(picked: &Picked, mut out: &'a mut [f32], width: usize) -> Vec<Queries<'a>> {
    let mut tiles = Vec::new();
    let mut at = 0;
    for (start, length, queries, to) in picked.iter() {
        (_, out) = std::mem::take(&mut out).split_at_mut((to - at) * width);
        at = to + queries.len();
        for first in queries.clone().step_by(QUERIES) {
            let (mine, rest) = std::mem::take(&mut out).split_at_mut(QUERIES.min(queries.end - first) * width);
            tiles.push(Queries { start, length, first, out: mine });
            out = rest;
        }
    }
    tiles
}

/// One head's view of the input, and the tile's memory.
struct Tile<'a> {
    qkv: &'a [f32],
    bias: &'a [f32],
    width: usize,
    /// Values of a head, and the same rounded up to whole blocks: what lies between is zero.
    size: usize,
    size_padded: usize,
    head: usize,
    /// (QUERIES, size): scaled queries with their bias.
    queries: &'a mut [f32],
    /// (size, KEYS): keys, transposed, so that the scores of neighbouring keys are neighbours.
    keys: &'a mut [f32],
    /// (KEYS, size_padded).
    values: &'a mut [f32],
    /// (QUERIES, KEYS): scores, then weights.
    scores: &'a mut [f32],
    /// (QUERIES, size_padded): weighted sums of values so far.
    sums: &'a mut [f32],
    /// (QUERIES): largest score and sum of weights so far.
    largest: &'a mut [f32],
    totals: &'a mut [f32],
}

impl<'a> Tile<'a> {
    fn elements(size: usize) -> usize {
        let padded = size.next_multiple_of(BLOCK_COLUMNS);
        QUERIES * size + size * KEYS + KEYS * padded + QUERIES * KEYS + QUERIES * padded + 2 * QUERIES
    }

    fn new(
        scratch: &'a mut [f32],
        qkv: &'a [f32],
        bias: &'a [f32],
        width: usize,
        size: usize,
        head: usize,
    ) -> Tile<'a> {
        let size_padded = size.next_multiple_of(BLOCK_COLUMNS);
        let (queries, rest) = scratch.split_at_mut(QUERIES * size);
        let (keys, rest) = rest.split_at_mut(size * KEYS);
        let (values, rest) = rest.split_at_mut(KEYS * size_padded);
        let (scores, rest) = rest.split_at_mut(QUERIES * KEYS);
        let (sums, rest) = rest.split_at_mut(QUERIES * size_padded);
        let (largest, totals) = rest.split_at_mut(QUERIES);
        Tile { qkv, bias, width, size, size_padded, head, queries, keys, values, scores, sums, largest, totals }
    }

    /// The head's part of position `at`: queries (0), keys (1) or values (2).
    fn part(&self, at: usize, which: usize) -> &'a [f32] {
        let from = at * 3 * self.width + which * self.width + self.head * self.size;
        &self.qkv[from..from + self.size]
    }

    fn bias_part(&self, which: usize) -> &'a [f32] {
        let from = which * self.width + self.head * self.size;
        &self.bias[from..from + self.size]
    }

    /// The queries from `first` on, as many as `out` has positions, over what they see of the row's `length` keys.
    fn attend(&mut self, start: usize, length: usize, first: usize, sight: Sight, out: &mut [f32]) {
        let count = out.len() / self.width;
        self.load_queries(start + first, count);
        self.sums.fill(0.0);
        self.totals.fill(0.0);
        self.largest.fill(f32::NEG_INFINITY);
        let (begin, end) = (sight.of(first, length).start, sight.of(first + count - 1, length).end);
        for key in (begin..end).step_by(KEYS) {
            let keys = KEYS.min(end - key);
            self.load_keys(start + key, keys);
            self.score(count, keys);
            self.weigh(count, keys, |query| {
                let seen = sight.of(first + query, length);
                seen.start.clamp(key, key + keys) - key..seen.end.clamp(key, key + keys) - key
            });
            self.accumulate(count, keys);
        }
        let bias = self.bias_part(2);
        for (query, out) in out.chunks_exact_mut(self.width).enumerate() {
            let total = self.totals[query];
            let sums = &self.sums[query * self.size_padded..][..self.size];
            let out = &mut out[self.head * self.size..][..self.size];
            for ((out, sum), bias) in out.iter_mut().zip(sums).zip(bias) {
                *out = sum / total + bias;
            }
        }
    }

    fn load_queries(&mut self, from: usize, count: usize) {
        let scale = 1.0 / (self.size as f32).sqrt();
        let bias = self.bias_part(0);
        for query in 0..count {
            let source = self.part(from + query, 0);
            let target = &mut self.queries[query * self.size..][..self.size];
            for ((target, value), bias) in target.iter_mut().zip(source).zip(bias) {
                *target = (value + bias) * scale;
            }
        }
        // The last block's missing queries are zero: computed and thrown away.
        self.queries[count * self.size..count.next_multiple_of(BLOCK_ROWS) * self.size].fill(0.0);
    }

    fn load_keys(&mut self, from: usize, count: usize) {
        for key in 0..count {
            for (at, value) in self.part(from + key, 1).iter().enumerate() {
                self.keys[at * KEYS + key] = *value;
            }
            let source = self.part(from + key, 2);
            let values = &mut self.values[key * self.size_padded..][..self.size_padded];
            values[..self.size].copy_from_slice(source);
            values[self.size..].fill(0.0);
        }
        for at in 0..self.size {
            self.keys[at * KEYS + count..at * KEYS + count.next_multiple_of(BLOCK_COLUMNS)].fill(0.0);
        }
    }

    /// scores = queries * keys.
    fn score(&mut self, count: usize, keys: usize) {
        for query in (0..count).step_by(BLOCK_ROWS) {
            for key in (0..keys).step_by(BLOCK_COLUMNS) {
                let block = block(&self.queries[query * self.size..], self.size, self.size, &self.keys[key..], KEYS);
                for (row, block) in block.iter().enumerate() {
                    self.scores[(query + row) * KEYS + key..][..BLOCK_COLUMNS].copy_from_slice(block);
                }
            }
        }
    }

    /// Scores become weights exp(score - largest so far), those of keys outside what `seen` says of a query become 0; what
    /// was summed before is brought to the new largest.
    fn weigh(&mut self, count: usize, keys: usize, seen: impl Fn(usize) -> Range<usize>) {
        for query in 0..count {
            let (seen, scores) = (seen(query), &mut self.scores[query * KEYS..][..keys]);
            scores[..seen.start].fill(0.0);
            scores[seen.end..].fill(0.0);
            if seen.is_empty() {
                continue;
            }
            let scores = &mut scores[seen];
            let largest = max(scores).max(self.largest[query]);
            let mut parts = [0f32; BLOCK_COLUMNS];
            for chunk in scores.chunks_mut(BLOCK_COLUMNS) {
                for (part, score) in parts.iter_mut().zip(chunk) {
                    *score = exp(*score - largest);
                    *part += *score;
                }
            }
            let before = exp(self.largest[query] - largest);
            self.totals[query] = self.totals[query].mul_add(before, parts.iter().sum::<f32>());
            self.largest[query] = largest;
            if before != 1.0 {
                self.sums[query * self.size_padded..][..self.size_padded].iter_mut().for_each(|sum| *sum *= before);
            }
        }
    }

    /// sums += weights * values.
    fn accumulate(&mut self, count: usize, keys: usize) {
        for query in (0..count).step_by(BLOCK_ROWS) {
            for column in (0..self.size_padded).step_by(BLOCK_COLUMNS) {
                let weights = &self.scores[query * KEYS..];
                let block = block(weights, KEYS, keys, &self.values[column..], self.size_padded);
                for (row, block) in block.iter().enumerate() {
                    let sums = &mut self.sums[(query + row) * self.size_padded + column..][..BLOCK_COLUMNS];
                    sums.iter_mut().zip(block).for_each(|(sum, value)| *sum += value);
                }
            }
        }
    }
}

/// `a (BLOCK_ROWS, depth) * b (depth, BLOCK_COLUMNS)`, in registers.
#[inline(always)]
fn block(a: &[f32], a_stride: usize, depth: usize, b: &[f32], b_stride: usize) -> [[f32; BLOCK_COLUMNS]; BLOCK_ROWS] {
    let a: [&[f32]; BLOCK_ROWS] = std::array::from_fn(|row| &a[row * a_stride..][..depth]);
    let mut sums = [[0f32; BLOCK_COLUMNS]; BLOCK_ROWS];
    for at in 0..depth {
        let b: &[f32; BLOCK_COLUMNS] = b[at * b_stride..][..BLOCK_COLUMNS].try_into().expect("as long as it was cut");
        for (sums, a) in sums.iter_mut().zip(&a) {
            let factor = a[at];
            for (sum, b) in sums.iter_mut().zip(b) {
                *sum = factor.mul_add(*b, *sum);
            }
        }
    }
    sums
}

fn max(values: &[f32]) -> f32 {
    let mut parts = [f32::NEG_INFINITY; BLOCK_COLUMNS];
    for chunk in values.chunks(BLOCK_COLUMNS) {
        for (part, value) in parts.iter_mut().zip(chunk) {
            *part = if *value > *part { *value } else { *part };
        }
    }
    parts.into_iter().fold(f32::NEG_INFINITY, f32::max)
}

/// The same in candle's operations, with the scores of a row in memory. Positions of no row are zero.
pub(crate) fn attention_plain(
    qkv: &Tensor,
    bias: Option<&Tensor>,
    rows: &Rows,
    heads: usize,
    sight: Sight,
) -> Result<Tensor> {
    let (tokens, width) = (qkv.dim(0)?, qkv.dim(1)? / 3);
    let size = width / heads;
    let qkv = match bias {
        Some(bias) => qkv.broadcast_add(bias)?,
        None => qkv.clone(),
    };
    let mut parts = Vec::new();
    let mut at = 0;
    let gap = |from: usize, to: usize| Tensor::zeros((to - from, width), qkv.dtype(), qkv.device());
    for (start, length) in rows.iter() {
        let part = |which: usize| -> Result<Tensor> {
            let part = qkv.narrow(0, start, length)?.narrow(1, which * width, width)?;
            part.reshape((length, heads, size))?.transpose(0, 1)?.contiguous()
        };
        let scores = (part(0)?.matmul(&part(1)?.t()?)? / (size as f64).sqrt())?;
        let mask = Tensor::from_vec(sight.mask(length, f32::NEG_INFINITY), (length, length), qkv.device())?;
        let scores = scores.broadcast_add(&mask)?;
        let mixed = softmax(&scores, D::Minus1)?.matmul(&part(2)?)?;
        parts.push(gap(at, start)?);
        parts.push(mixed.transpose(0, 1)?.reshape((length, width))?);
        at = start + length;
    }
    parts.push(gap(at, tokens)?);
    Tensor::cat(&parts, 0)
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;
    use crate::ops::Pick;
    use crate::ops::tests::{assert_close, random};

    #[test]
    fn fused_equals_plain() -> Result<()> {
        for size in [1, 5, 32, 64, 80] {
            check(Rows::ragged(vec![1]), 1, size, Sight::EVERYTHING)?;
            check(Rows::ragged(vec![3, 64, 1, 17]), 3, size, Sight::EVERYTHING)?;
            check(Rows::padded(vec![3, 64, 1, 17]), 3, size, Sight::EVERYTHING)?;
            // One tile exactly, one more, several tiles of keys.
            check(Rows::ragged(vec![64, 65, 128, 129, 300]), 2, size, Sight::EVERYTHING)?;
        }
        Ok(())
    }

    /// Windows that are nothing but the position itself, end inside tiles, are as wide as tiles, and reach over whole ones.
    #[test]
    fn fused_equals_plain_in_a_window() -> Result<()> {
        for reach in [0, 1, 5, 63, 64, 65, 130, 299, 1000] {
            check(Rows::ragged(vec![1, 2, 7, 64, 65]), 3, 5, Sight::around(reach))?;
            check(Rows::padded(vec![3, 140, 1, 17]), 1, 32, Sight::around(reach))?;
            check(Rows::ragged(vec![129, 300, 400]), 2, 17, Sight::around(reach))?;
        }
        Ok(())
    }

    fn check(rows: Rows, heads: usize, size: usize, sight: Sight) -> Result<()> {
        let width = heads * size;
        let (qkv, bias) = (random(&[rows.tokens(), 3 * width], 3.0), random(&[3 * width], 1.0));
        let out = Tensor::zeros((rows.tokens(), width), DType::F32, &Device::Cpu)?;
        let scratch = Tensor::zeros(attention_scratch(size), DType::F32, &Device::Cpu)?;
        for bias in [None, Some(&bias)] {
            let all = attention_plain(&qkv, bias, &rows, heads, sight)?;
            attention(&qkv, bias, &Picked::new(&rows, Pick::All), heads, sight, &out, &scratch)?;
            assert_close(&out, &all, 2e-5);
            for pick in [Pick::First, Pick::Last] {
                let picked = Picked::new(&rows, pick);
                let expected = picked.take(&all.copy()?)?;
                let out = Tensor::full(f32::NAN, expected.shape(), &Device::Cpu)?;
                attention(&qkv, bias, &picked, heads, sight, &out, &scratch)?;
                assert_close(&out, &expected, 2e-5);
            }
        }
        Ok(())
    }

    /// Whatever a position does not see may be anything without the result differing by a bit.
    #[test]
    fn what_is_outside_a_window_changes_nothing() -> Result<()> {
        let (length, width, sight) = (200, 8, Sight::around(20));
        let (rows, scratch) =
            (Rows::ragged(vec![length]), Tensor::zeros(attention_scratch(8), DType::F32, &Device::Cpu)?);
        let mut values: Vec<f32> = random(&[length * 3 * width], 3.0).to_vec1()?;
        let first = |values: &[f32]| -> Result<Vec<f32>> {
            let qkv = Tensor::from_slice(values, (length, 3 * width), &Device::Cpu)?;
            let out = Tensor::zeros((length, width), DType::F32, &Device::Cpu)?;
            attention(&qkv, None, &Picked::new(&rows, Pick::All), 1, sight, &out, &scratch)?;
            out.narrow(0, 0, 10)?.flatten_all()?.to_vec1()
        };
        let before = first(&values)?;
        // The tenth sees up to the thirtieth.
        values[30 * 3 * width..].fill(1e6);
        assert_eq!(first(&values)?, before);
        Ok(())
    }

    #[test]
    fn scores_far_apart_do_not_overflow() -> Result<()> {
        let rows = Rows::ragged(vec![150]);
        let (qkv, bias) = (random(&[150, 24], 200.0), random(&[24], 1.0));
        let out = Tensor::zeros((150, 8), DType::F32, &Device::Cpu)?;
        let scratch = Tensor::zeros(attention_scratch(8), DType::F32, &Device::Cpu)?;
        attention(&qkv, Some(&bias), &Picked::new(&rows, Pick::All), 1, Sight::EVERYTHING, &out, &scratch)?;
        assert_close(&out, &attention_plain(&qkv, Some(&bias), &rows, 1, Sight::EVERYTHING)?, 2e-2);
        Ok(())
    }
}
