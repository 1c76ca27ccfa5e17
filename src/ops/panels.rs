//! Matrix products with weights that were laid out for them when they were loaded.
//!
//! A panel is 16 rows of a matrix (n, k), transposed: for each of the k columns the 16 weights that are multiplied by
//! the same value of x stand side by side. A panel takes exactly the place of its rows, so that a matrix is turned
//! into panels where it lies. A tile of the product is computed in registers and handed to what follows the product
//! while it is in the first-level cache; x is read as it is.

use rayon::prelude::*;

use super::parallel;
use super::tile::{self, Instructions, Operands, ROWS, Strides, VECTOR};

/// Rows of a matrix in one panel.
pub(super) const PANEL: usize = VECTOR;
/// Bytes of x that a thread works on at a time: they and four panels stay in a second-level cache of 1 MiB.
const CHUNK_BYTES: usize = 256 << 10;
/// Fewer rows than this would fetch the weights from the third-level cache more often than the sums can hide.
const CHUNK_ROWS: usize = 8 * ROWS;
/// Multiplications below which waking another thread costs more than it saves: about 10 us of one core.
const SERIAL_BELOW: usize = 1 << 19;

/// Turns the matrix, `columns` wide and a multiple of [`PANEL`] high, into panels, in place.
pub(super) fn pack(matrix: &mut [f32], columns: usize) {
    transpose_each(matrix, columns, |row, column| (row * columns + column, column * PANEL + row));
}

/// Turns panels back into the matrix.
pub(super) fn unpack(panels: &mut [f32], columns: usize) {
    transpose_each(panels, columns, |row, column| (column * PANEL + row, row * columns + column));
}

/// Moves the elements of each panel: `places` says from where to where.
fn transpose_each(data: &mut [f32], columns: usize, places: impl Fn(usize, usize) -> (usize, usize)) {
    assert_eq!(data.len() % (PANEL * columns), 0, "panels are whole");
    let mut before = vec![0f32; PANEL * columns];
    for panel in data.chunks_exact_mut(PANEL * columns) {
        before.copy_from_slice(panel);
        for column in 0..columns {
            for row in 0..PANEL {
                let (from, to) = places(row, column);
                panel[to] = before[from];
            }
        }
    }
}

/// Where rows of x and panels lie, `k` columns of them.
#[derive(Clone, Copy)]
struct Panels {
    k: usize,
}

impl Strides for Panels {
    fn x(self) -> [usize; 2] {
        [self.k, 1]
    }

    fn w(self) -> [usize; 2] {
        [self.k * PANEL, PANEL]
    }
}

/// `out (m, n) = finish(x (m, k) * w (n, k) transposed)`, `w` in panels. `finish` is called once for each piece of a
/// row of the product, with the piece's first column, while the piece is in the first-level cache.
pub(super) fn times_panels(
    x: &[f32],
    w: &[f32],
    out: &mut [f32],
    dims: [usize; 3],
    finish: impl Fn(usize, &mut [f32]) + Sync,
) {
    product(Instructions::detect(), x, w, out, dims, finish);
}

fn product(
    instructions: Instructions,
    x: &[f32],
    w: &[f32],
    out: &mut [f32],
    [m, n, k]: [usize; 3],
    finish: impl Fn(usize, &mut [f32]) + Sync,
) {
    assert!(x.len() == m * k && w.len() == n * k && out.len() == m * n, "a product's operands fit each other");
    assert!(n % PANEL == 0 && n > 0 && k > 0, "panels are whole");
    let threads = if m * n * k < SERIAL_BELOW { 1 } else { parallel::threads() };
    // Four parts a thread even out what the system's other work takes from one of them.
    let rows = m.div_ceil(4 * threads).max(CHUNK_ROWS).min(m.div_ceil(threads));
    let rows = rows.min((CHUNK_BYTES / 4 / k).next_multiple_of(ROWS)).max(1);
    let chunk = |(x, out): (&[f32], &mut [f32])| chunk(instructions, x, w, out, [n, k], &finish);
    if threads == 1 {
        return x.chunks(rows * k).zip(out.chunks_mut(rows * n)).for_each(chunk);
    }
    x.par_chunks(rows * k).zip(out.par_chunks_mut(rows * n)).with_max_len(1).for_each(chunk);
}

/// Some rows of the product. Panels are the outer loop: one tile's panels serve all the rows from the cache.
fn chunk(
    instructions: Instructions,
    x: &[f32],
    w: &[f32],
    out: &mut [f32],
    [n, k]: [usize; 2],
    finish: &impl Fn(usize, &mut [f32]),
) {
    let height = tile::height(x.len() / k);
    for (column, width) in instructions.cut(n) {
        let w = &w[column * k..(column + width) * k];
        for (x, out) in x.chunks(height * k).zip(out.chunks_mut(height * n)) {
            let rows = x.len() / k;
            Operands { x, w, depth: k, strides: Panels { k } }.tile(instructions, [rows, width], &mut out[column..], n);
            for out in out.chunks_exact_mut(n) {
                finish(column, &mut out[column..column + width]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::tests::random;
    use crate::ops::tile::tests::every;

    fn values(count: usize) -> Vec<f32> {
        random(&[count], 1.0).to_vec1().unwrap()
    }

    #[test]
    fn unpacking_undoes_packing() {
        for (rows, columns) in [(16, 1), (32, 7), (48, 16)] {
            let matrix = values(rows * columns);
            let mut panels = matrix.clone();
            pack(&mut panels, columns);
            assert_eq!(panels[PANEL * (columns - 1) + 3], matrix[3 * columns + columns - 1]);
            unpack(&mut panels, columns);
            assert_eq!(panels, matrix);
        }
    }

    /// Against sums in f64, over heights around those of tiles and chunks and widths with and without narrow tiles.
    #[test]
    fn every_path_is_the_product_and_finishes_each_element_once() {
        let finish = |first: usize, piece: &mut [f32]| {
            piece.iter_mut().enumerate().for_each(|(at, value)| *value += (first + at) as f32);
        };
        for (n, k) in [(16, 1), (48, 5), (64, 33), (144, 96)] {
            let w = values(n * k);
            let mut panels = w.clone();
            pack(&mut panels, k);
            for m in [1, 2, 3, 4, 5, 6, 7, 8, 13, 95, 193, 700] {
                let x = values(m * k);
                let mut products = every().into_iter().map(|instructions| {
                    let mut out = vec![f32::NAN; m * n];
                    product(instructions, &x, &panels, &mut out, [m, n, k], finish);
                    out
                });
                let baseline = products.next().expect("there always is a baseline");
                for (at, found) in baseline.iter().enumerate() {
                    let (row, column) = (at / n, at % n);
                    let terms = (0..k).map(|i| f64::from(x[row * k + i]) * f64::from(w[column * k + i]));
                    let exact = terms.sum::<f64>() + column as f64;
                    let error = (f64::from(*found) - exact).abs();
                    assert!(error <= 3e-5, "{m} x {n} x {k}, element {at}: {found} where {exact} is expected");
                }
                for product in products {
                    assert!(product == baseline, "{m} x {n} x {k}: the same sums in the same order");
                }
            }
        }
    }
}
