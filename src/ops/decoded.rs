//! Products with weights that are not held as f32: they are decoded some rows at a time, and multiplied while they are in
//! the cache.
//!
//! Decoded rows lie one after the other, and tiles want one operand side by side. Turning the weights would take as long as
//! multiplying them by a handful of rows; so few rows of x are turned instead, once for all weights. Many go to the library,
//! which turns what it needs: chunks of 256 turned rows take up to 1.15 times its time.

use super::gemm;
use super::matrix::View;
use super::parallel::{self, Pieces};
use super::tile::{self, Instructions, Operands, ROWS, Strides, VECTOR};

/// Rows of x that are few.
const FEW: usize = 128;

/// Rows of weights that are decoded at a time for them: whole tiles, and parts enough for many threads.
const GROUP: usize = 8 * ROWS;

/// Elements of scratch for a matrix of so many columns: few rows of x, and for each thread a group of weights and its sums,
/// or what many rows take.
pub(super) fn scratch(columns: usize) -> usize {
    let of_few = FEW * columns + GROUP * (columns + FEW) * parallel::threads();
    of_few.max(gemm::PANEL_ROWS * columns * parallel::threads())
}

/// `out (m, n) = x (m, k) * w (n, k) transposed`, all row-major.
pub(super) fn times_decoded(x: &[f32], w: View<'_>, out: &mut [f32], scratch: &mut [f32], [m, n, k]: [usize; 3]) {
    assert!(x.len() == m * k && out.len() == m * n, "a product's operands fit each other");
    match m {
        ..=FEW => few(Instructions::detect(), x, w, out, scratch, [m, n, k]),
        _ => gemm::times_decoded(x, w, out, scratch, [m, n, k]),
    }
}

/// The same for up to [`FEW`] rows of x.
fn few(
    instructions: Instructions,
    x: &[f32],
    w: View<'_>,
    out: &mut [f32],
    scratch: &mut [f32],
    [m, n, k]: [usize; 3],
) {
    let lanes = m.next_multiple_of(VECTOR);
    let (turned, scratch) = scratch.split_at_mut(lanes * k);
    turn(x, turned, k);
    let (turned, out) = (&*turned, Pieces::new(out, n));
    let groups = (0..n.div_ceil(GROUP)).map(|group| group * GROUP);
    parallel::for_each_task(groups, scratch, GROUP * (k + lanes), |first, scratch| {
        let rows = GROUP.min(n - first);
        let (decoded, sums) = scratch.split_at_mut(GROUP * k);
        w.decode_rows(first, &mut decoded[..rows * k]);
        let height = tile::height(rows);
        for (lane, width) in instructions.cut(lanes) {
            for row in (0..rows).step_by(height) {
                let strides = Strides { x: [k, 1], w: [k * VECTOR, VECTOR] };
                let tile = Operands { x: &decoded[row * k..], w: &turned[lane * k..], depth: k, strides };
                tile.tile(instructions, [height.min(rows - row), width], &mut sums[row * lanes + lane..], lanes);
            }
        }
        for row in 0..m {
            // SAFETY: `out` is m rows of n, and nobody else uses it before all groups are done; the columns of different
            // groups are disjoint, so that no two threads write one element.
            let out = unsafe { out.row(row, first..first + rows) };
            for (column, out) in out.iter_mut().enumerate() {
                *out = sums[column * lanes + row];
            }
        }
    });
}

/// Has [`VECTOR`] rows of x side by side, then the next; rows that do not exist are zeros.
fn turn(x: &[f32], turned: &mut [f32], k: usize) {
    parallel::for_each_row(turned, VECTOR * k, |index, turned| {
        let rows = &x[index * VECTOR * k..x.len().min((index + 1) * VECTOR * k)];
        turned.fill(0.0);
        for (lane, row) in rows.chunks_exact(k).enumerate() {
            for (value, to) in row.iter().zip(turned[lane..].iter_mut().step_by(VECTOR)) {
                *to = *value;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Dtype;
    use crate::ops::tests::{matrix, random};

    #[test]
    fn few_rows_have_the_same_bits_whatever_they_are_computed_with() {
        let (n, k) = (100, 64);
        for dtype in [Dtype::F16, Dtype::Bf16, Dtype::Q8] {
            let weight = matrix(dtype, n, k);
            let product = |x: &[f32]| {
                let m = x.len() / k;
                // What is left in memory that is used again must not matter.
                let (mut out, mut scratch) = (vec![f32::NAN; m * n], vec![f32::NAN; scratch(k)]);
                weight.view(|w| times_decoded(x, w, &mut out, &mut scratch, [m, n, k])).unwrap();
                out
            };
            assert_eq!(product(&[]), [0f32; 0]);
            for m in [1, 2, 15, 17, 64, FEW - 1, FEW] {
                let x: Vec<f32> = random(&[m * k], 1.0).to_vec1().unwrap();
                let all = product(&x);
                for row in [0, m / 2, m - 1] {
                    assert_eq!(all[row * n..][..n], product(&x[row * k..][..k]), "{dtype}: row {row} of {m}");
                }
            }
        }
    }
}
