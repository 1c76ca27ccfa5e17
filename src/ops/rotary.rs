//! Rotary position embedding: queries and keys turned by angles that grow with their position, so that scores depend on
//! how far apart two positions are.

use candle_core::{D, DType, Device, Result, Tensor};

use super::{host, parallel};

/// Cosines and sines of the angles, (positions, size / 2) each: the values `i` and `i + size / 2` of a head, as a point
/// in the plane, are turned by `position * base^(-2 i / size)`.
#[derive(Clone, Debug)]
pub(crate) struct Rotation {
    pub(crate) cosines: Tensor,
    pub(crate) sines: Tensor,
}

impl Rotation {
    /// For heads of `size` values, an even number. Frequencies and angles are rounded to f32, as the models were trained
    /// with them.
    pub(crate) fn new(base: f64, positions: usize, size: usize, dtype: DType, device: &Device) -> Result<Rotation> {
        let half = size / 2;
        let frequency = |pair: usize| 1.0 / base.powf(2.0 * pair as f64 / size as f64) as f32;
        let frequencies: Vec<f32> = (0..half).map(frequency).collect();
        let table = |of: fn(f64) -> f64| {
            let row = |at: usize| frequencies.iter().map(move |frequency| of(f64::from(at as f32 * frequency)) as f32);
            let values: Vec<f32> = (0..positions).flat_map(row).collect();
            Tensor::from_vec(values, (positions, half), &Device::Cpu)?.to_dtype(dtype)?.to_device(device)
        };
        Ok(Rotation { cosines: table(f64::cos)?, sines: table(f64::sin)? })
    }

    /// Bytes of both tables.
    pub(crate) fn bytes(positions: usize, size: usize, dtype: DType) -> u64 {
        (2 * positions * (size / 2) * dtype.size_in_bytes()) as u64
    }
}

/// Adds `bias` to `qkv`, (tokens, 3 * width) of queries, keys and values side by side, and turns the queries and keys of
/// every token by its position, in place. `positions` are rows of the tables.
pub(crate) fn rotate(
    qkv: &Tensor,
    bias: Option<&Tensor>,
    rotation: &Rotation,
    positions: &[u32],
    heads: usize,
) -> Result<()> {
    let (tokens, all) = qkv.dims2()?;
    let width = all / 3;
    let (size, half) = (width / heads, width / heads / 2);
    assert!(
        positions.len() == tokens && rotation.cosines.dims()[1] == half,
        "tables for heads, a position for a token"
    );
    host::read_or_zeros(bias, all, |bias| {
        host::read(&rotation.cosines, |cosines: &[f32]| {
            host::read(&rotation.sines, |sines: &[f32]| {
                host::write(qkv, |qkv| {
                    parallel::for_each_row(qkv, all, |token, row| {
                        row.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
                        let at = positions[token] as usize * half;
                        let (cosines, sines) = (&cosines[at..at + half], &sines[at..at + half]);
                        row[..2 * width].chunks_exact_mut(size).for_each(|head| turn(head, cosines, sines));
                    });
                })
            })
        })
    })???
}

/// Turns one head.
#[inline(always)]
fn turn(head: &mut [f32], cosines: &[f32], sines: &[f32]) {
    let (low, high) = head.split_at_mut(cosines.len());
    for ((low, high), (cosine, sine)) in low.iter_mut().zip(high).zip(cosines.iter().zip(sines)) {
        (*low, *high) = (*low * cosine - *high * sine, *high * cosine + *low * sine);
    }
}

/// The same in candle's operations.
pub(crate) fn rotate_plain(
    qkv: &Tensor,
    bias: Option<&Tensor>,
    rotation: &Rotation,
    positions: &[u32],
    heads: usize,
) -> Result<Tensor> {
    let (tokens, all) = qkv.dims2()?;
    let (width, half) = (all / 3, all / 3 / heads / 2);
    let qkv = match bias {
        Some(bias) => qkv.broadcast_add(bias)?,
        None => qkv.clone(),
    };
    let positions = Tensor::new(positions, qkv.device())?;
    let of = |table: &Tensor| table.index_select(&positions, 0)?.unsqueeze(1);
    let (cosines, sines) = (of(&rotation.cosines)?, of(&rotation.sines)?);
    let turned = qkv.narrow(1, 0, 2 * width)?.reshape((tokens, 2 * heads, 2 * half))?;
    let (low, high) = (turned.narrow(2, 0, half)?, turned.narrow(2, half, half)?);
    let low_turned = (low.broadcast_mul(&cosines)? - high.broadcast_mul(&sines)?)?;
    let high_turned = (high.broadcast_mul(&cosines)? + low.broadcast_mul(&sines)?)?;
    let turned = Tensor::cat(&[low_turned, high_turned], D::Minus1)?.reshape((tokens, 2 * width))?;
    Tensor::cat(&[&turned, &qkv.narrow(1, 2 * width, width)?], 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::tests::{assert_close, random};

    fn rotation(positions: usize, size: usize) -> Rotation {
        Rotation::new(100.0, positions, size, DType::F32, &Device::Cpu).unwrap()
    }

    #[test]
    fn fused_equals_plain() -> Result<()> {
        for (tokens, heads, size) in [(1, 1, 2), (7, 3, 6), (300, 2, 64)] {
            let positions: Vec<u32> = (0..tokens as u32).map(|at| at * 7 % 90).collect();
            let (qkv, bias) = (random(&[tokens, 3 * heads * size], 3.0), random(&[3 * heads * size], 1.0));
            for bias in [None, Some(&bias)] {
                let fused = qkv.copy()?;
                rotate(&fused, bias, &rotation(90, size), &positions, heads)?;
                let plain = rotate_plain(&qkv, bias, &rotation(90, size), &positions, heads)?;
                assert_close(&fused, &plain, 1e-6);
            }
        }
        Ok(())
    }

    /// The point (1, 0) turned by one radian for each position, and more slowly in the second pair.
    #[test]
    fn pairs_are_half_a_head_apart_and_turn_by_their_frequencies() -> Result<()> {
        let (tokens, size) = (5, 4);
        let qkv = Tensor::new(&[1f32, 1.0, 0.0, 0.0], &Device::Cpu)?.repeat((tokens, 3))?.contiguous()?;
        rotate(&qkv, None, &rotation(tokens, size), &[0, 1, 2, 3, 4], 1)?;
        for (at, row) in qkv.to_vec2::<f32>()?.into_iter().enumerate() {
            let (fast, slow) = (at as f32, at as f32 / 10.0);
            let turned = [fast.cos(), slow.cos(), fast.sin(), slow.sin()];
            let expected = [turned, turned, [1.0, 1.0, 0.0, 0.0]].concat();
            let close = row.iter().zip(&expected).all(|(found, expected)| (found - expected).abs() < 1e-6);
            assert!(close, "position {at}: {row:?} where {expected:?} is expected");
        }
        Ok(())
    }
}
