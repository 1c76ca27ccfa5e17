//! Attention of every position to the positions of its own row, without a matrix of scores.

use std::ops::Range;

use candle_core::{D, Result, Tensor};
use candle_nn::ops::softmax;

use super::math::exp;
use super::parallel::{self, Pieces};
use super::tile::{self, Instructions, Operands, ROWS, Strides, VECTOR};
use super::{Picked, Rows, Sight, host};

/// Queries of a tile, side by side in four vectors: keys and values are read where they are. With the keys of a tile and a
/// head of 64 values a tile's memory is about 64 KiB a thread.
const QUERIES: usize = 4 * VECTOR;
/// Keys of a tile: most texts need one or two.
const KEYS: usize = 128;

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
    attention_by(Instructions::detect(), qkv, bias, picked, (heads, sight), [out, scratch])
}

fn attention_by(
    instructions: Instructions,
    qkv: &Tensor,
    bias: Option<&Tensor>,
    picked: &Picked,
    (heads, sight): (usize, Sight),
    [out, scratch]: [&Tensor; 2],
) -> Result<()> {
    let (count, width) = out.dims2()?;
    assert!(qkv.dims() == [picked.rows().tokens(), 3 * width] && picked.alone().tokens() == count);
    let size = width / heads;
    host::read(qkv, |qkv: &[f32]| {
        host::read_or_zeros(bias, 3 * width, |bias| {
            host::write(out, |out| {
                let tasks = tasks(picked, heads, width);
                let out = Pieces::new(out, width);
                host::write(scratch, |scratch| {
                    parallel::for_each_task(tasks.into_iter(), scratch, Tile::elements(size), |queries, scratch| {
                        for head in queries.heads.clone() {
                            let layer = Layer { qkv, bias, width, size, head };
                            let mut tile = Tile::new(instructions, layer, scratch);
                            // SAFETY: `out` has the picked positions and all heads, as asserted; no two tasks have the same
                            // position and head.
                            unsafe { tile.attend(&queries, sight, &out) };
                        }
                    });
                })
            })?
        })
    })??
}

/// Some queries of one row, by some heads.
struct Queries {
    /// First position and real length of the row.
    start: usize,
    length: usize,
    /// Which of its positions.
    queries: Range<usize>,
    /// Where the first one's result goes.
    to: usize,
    heads: Range<usize>,
}

/// Cuts the rows into tiles of queries, and where these are few, each by heads. One task is for what is not worth more.
fn tasks(picked: &Picked, heads: usize, width: usize) -> Vec<Queries> {
    let products: usize = picked.iter().map(|(_, length, queries, _)| 2 * length * queries.len() * width).sum();
    let tiles = picked.iter().map(|(_, _, queries, _)| queries.len().div_ceil(QUERIES)).sum::<usize>().max(1);
    let parts = parallel::parts(products).div_ceil(tiles);
    let heads_each = heads.div_ceil(parts.min(heads));
    let mut tasks = Vec::with_capacity(tiles * heads.div_ceil(heads_each));
    for (start, length, queries, to) in picked.iter() {
        for first in queries.clone().step_by(QUERIES) {
            let (to, mine) = (to + first - queries.start, first..queries.end.min(first + QUERIES));
            tasks.extend((0..heads).step_by(heads_each).map(|head| {
                let heads = head..heads.min(head + heads_each);
                Queries { start, length, queries: mine.clone(), to, heads }
            }));
        }
    }
    tasks
}

/// One head's view of the input.
#[derive(Clone, Copy)]
struct Layer<'a> {
    qkv: &'a [f32],
    bias: &'a [f32],
    width: usize,
    /// Values of a head.
    size: usize,
    head: usize,
}

impl<'a> Layer<'a> {
    /// Elements from a position to the next.
    fn step(self) -> usize {
        3 * self.width
    }

    /// The input from the head's part of position `at` on: queries (0), keys (1) or values (2).
    fn from(self, at: usize, which: usize) -> &'a [f32] {
        &self.qkv[at * self.step() + which * self.width + self.head * self.size..]
    }

    /// The head's part of the bias.
    fn bias(self, which: usize) -> &'a [f32] {
        &self.bias[which * self.width + self.head * self.size..][..self.size]
    }
}

/// A tile's memory. Of what it holds for each query, what lies beyond the last one is computed and thrown away.
struct Tile<'a> {
    instructions: Instructions,
    layer: Layer<'a>,
    /// Values of a head, rounded up to whole vectors.
    size_padded: usize,
    /// (vectors of QUERIES, size, VECTOR): scaled queries with their bias.
    queries: &'a mut [f32],
    /// (KEYS, QUERIES): scores, then weights.
    scores: &'a mut [f32],
    /// (KEYS, size_padded): values, zero beyond the head's; empty where heads fill whole vectors.
    values: &'a mut [f32],
    /// (QUERIES, size_padded): weighted sums of values so far.
    sums: &'a mut [f32],
    /// (QUERIES): largest score and sum of weights so far.
    largest: &'a mut [f32],
    totals: &'a mut [f32],
}

impl<'a> Tile<'a> {
    fn elements(size: usize) -> usize {
        let padded = size.next_multiple_of(VECTOR);
        QUERIES * size + KEYS * QUERIES + Self::copied(size) * padded + QUERIES * padded + 2 * QUERIES
    }

    /// Keys whose values are copied: none where heads fill whole vectors.
    fn copied(size: usize) -> usize {
        if size.is_multiple_of(VECTOR) { 0 } else { KEYS }
    }

    fn new(instructions: Instructions, layer: Layer<'a>, scratch: &'a mut [f32]) -> Tile<'a> {
        let (size, size_padded) = (layer.size, layer.size.next_multiple_of(VECTOR));
        let (queries, rest) = scratch.split_at_mut(QUERIES * size);
        let (scores, rest) = rest.split_at_mut(KEYS * QUERIES);
        let (values, rest) = rest.split_at_mut(Self::copied(size) * size_padded);
        let (sums, rest) = rest.split_at_mut(QUERIES * size_padded);
        let (largest, totals) = rest.split_at_mut(QUERIES);
        Tile { instructions, layer, size_padded, queries, scores, values, sums, largest, totals }
    }

    /// The head's results for some queries, over what they see of their row.
    ///
    /// # Safety
    /// `out` has a position for each of the queries, and nobody else uses this head's part of them meanwhile.
    unsafe fn attend(&mut self, queries: &Queries, sight: Sight, out: &Pieces<'_>) {
        let (start, length, first, count) =
            (queries.start, queries.length, queries.queries.start, queries.queries.len());
        self.load_queries(start + first, count);
        self.totals.fill(0.0);
        // Less than any score, and a number, so that differences to it are numbers.
        self.largest.fill(f32::MIN);
        let (begin, end) = (sight.of(first, length).start, sight.of(first + count - 1, length).end);
        for key in (begin..end).step_by(KEYS) {
            let keys = KEYS.min(end - key);
            self.score(start + key, count, keys);
            if sight.is_limited_in(length) {
                self.hide(count, key..key + keys, |query| sight.of(first + query, length));
            }
            let is_first = key == begin;
            self.weigh(count, keys, is_first);
            self.accumulate(start + key, count, keys, is_first);
        }
        let Layer { size, head, .. } = self.layer;
        let bias = self.layer.bias(2);
        for query in 0..count {
            // SAFETY: the caller's promise.
            let out = unsafe { out.row(queries.to + query, head * size..(head + 1) * size) };
            let (total, sums) = (self.totals[query], &self.sums[query * self.size_padded..][..size]);
            for ((out, sum), bias) in out.iter_mut().zip(sums).zip(bias) {
                *out = sum / total + bias;
            }
        }
    }

    fn load_queries(&mut self, from: usize, count: usize) {
        let size = self.layer.size;
        let scale = 1.0 / (size as f32).sqrt();
        let bias = self.layer.bias(0);
        for (vector, queries) in self.queries.chunks_exact_mut(size * VECTOR).enumerate() {
            let mine = (vector * VECTOR).min(count)..((vector + 1) * VECTOR).min(count);
            if mine.len() < VECTOR {
                queries.fill(0.0);
            }
            for (lane, query) in mine.enumerate() {
                let source = &self.layer.from(from + query, 0)[..size];
                let lanes = queries[lane..].iter_mut().step_by(VECTOR);
                for ((target, value), bias) in lanes.zip(source).zip(bias) {
                    *target = (value + bias) * scale;
                }
            }
        }
    }

    /// scores = keys from position `from` on * queries.
    fn score(&mut self, from: usize, count: usize, keys: usize) {
        let (layer, size) = (self.layer, self.layer.size);
        let strides = Strides { x: [layer.step(), 1], w: [size * VECTOR, VECTOR] };
        let height = tile::height(keys);
        for (query, width) in self.instructions.cut(count.next_multiple_of(VECTOR)) {
            for key in (0..keys).step_by(height) {
                let (x, w) = (layer.from(from + key, 1), &self.queries[query * size..]);
                let shape = [height.min(keys - key), width];
                let scores = &mut self.scores[key * QUERIES + query..];
                Operands { x, w, depth: size, strides }.tile(self.instructions, shape, scores, QUERIES);
            }
        }
    }

    /// Scores of keys outside what `seen` says of a query become less than all others.
    fn hide(&mut self, count: usize, keys: Range<usize>, seen: impl Fn(usize) -> Range<usize>) {
        for query in 0..count {
            let seen = seen(query);
            let hidden = (keys.start..seen.start.min(keys.end)).chain(seen.end.max(keys.start)..keys.end);
            hidden.for_each(|key| self.scores[(key - keys.start) * QUERIES + query] = f32::NEG_INFINITY);
        }
    }

    /// Scores become weights exp(score - largest so far), 0 for what is hidden; what was summed before is brought to the
    /// new largest.
    fn weigh(&mut self, count: usize, keys: usize, is_first: bool) {
        let scores = &mut self.scores[..keys * QUERIES];
        for vector in (0..count).step_by(VECTOR) {
            let before: [f32; VECTOR] = lanes(&mut self.largest[vector..]).to_owned();
            let mut largest = before;
            for scores in scores.chunks_exact_mut(QUERIES) {
                for (largest, score) in largest.iter_mut().zip(lanes(&mut scores[vector..])) {
                    *largest = if *score > *largest { *score } else { *largest };
                }
            }
            let mut totals = [0f32; VECTOR];
            for scores in scores.chunks_exact_mut(QUERIES) {
                for ((score, largest), total) in lanes(&mut scores[vector..]).iter_mut().zip(&largest).zip(&mut totals)
                {
                    let weight = exp(*score - largest);
                    *score = if *score == f32::NEG_INFINITY { 0.0 } else { weight };
                    *total += *score;
                }
            }
            for (lane, (before, largest)) in before.iter().zip(&largest).enumerate() {
                let (query, factor) = (vector + lane, exp(before - largest));
                self.totals[query] = self.totals[query].mul_add(factor, totals[lane]);
                if !is_first && factor != 1.0 {
                    let sums = &mut self.sums[query * self.size_padded..][..self.size_padded];
                    sums.iter_mut().for_each(|sum| *sum *= factor);
                }
            }
            *lanes(&mut self.largest[vector..]) = largest;
        }
    }

    /// sums += weights * values from position `from` on; the first ones take the place of what was there.
    fn accumulate(&mut self, from: usize, count: usize, keys: usize, is_first: bool) {
        let (layer, size, size_padded) = (self.layer, self.layer.size, self.size_padded);
        let (values, step) = if size == size_padded {
            (layer.from(from, 2), layer.step())
        } else {
            for (key, values) in self.values.chunks_exact_mut(size_padded).take(keys).enumerate() {
                values[..size].copy_from_slice(&layer.from(from + key, 2)[..size]);
                values[size..].fill(0.0);
            }
            (&*self.values, size_padded)
        };
        let strides = Strides { x: [1, QUERIES], w: [VECTOR, step] };
        let height = tile::height(count);
        for (column, width) in self.instructions.cut(size_padded) {
            for query in (0..count).step_by(height) {
                let shape = [height.min(count - query), width];
                let operands = Operands { x: &self.scores[query..], w: &values[column..], depth: keys, strides };
                let sums = &mut self.sums[query * size_padded + column..];
                if is_first {
                    operands.tile(self.instructions, shape, sums, size_padded);
                    continue;
                }
                let mut added = [0f32; ROWS * QUERIES];
                operands.tile(self.instructions, shape, &mut added, width);
                for (sums, added) in sums.chunks_mut(size_padded).zip(added[..shape[0] * width].chunks_exact(width)) {
                    sums.iter_mut().zip(added).for_each(|(sum, added)| *sum += added);
                }
            }
        }
    }
}

/// The first vector of `values`.
fn lanes(values: &mut [f32]) -> &mut [f32; VECTOR] {
    values.first_chunk_mut().expect("memory of tiles is in whole vectors")
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
        for size in [1, 5, 32, 48, 64, 80, 128] {
            check(Rows::ragged(vec![1]), 1, size, Sight::EVERYTHING)?;
            check(Rows::ragged(vec![3, 64, 1, 17]), 3, size, Sight::EVERYTHING)?;
            check(Rows::padded(vec![3, 64, 1, 17]), 3, size, Sight::EVERYTHING)?;
            // One tile exactly, one more, several tiles of keys.
            check(Rows::ragged(vec![64, 65, 128, 129, 300]), 2, size, Sight::EVERYTHING)?;
            // So few tiles that threads share them by heads.
            check(Rows::ragged(vec![130]), 7, size, Sight::EVERYTHING)?;
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
            let everybody = Picked::new(&rows, Pick::All);
            attention(&qkv, bias, &everybody, heads, sight, &out, &scratch)?;
            assert_close(&out, &all, 2e-5);
            for instructions in tile::tests::every() {
                let again = Tensor::zeros(out.shape(), DType::F32, &Device::Cpu)?;
                attention_by(instructions, &qkv, bias, &everybody, (heads, sight), [&again, &scratch])?;
                assert_close(&again, &out, 0.0);
            }
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
