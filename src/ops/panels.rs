//! Matrix products with weights that were laid out for them when they were loaded.
//!
//! A panel is 16 rows of a matrix (n, k), transposed: for each of the k columns the 16 weights that are multiplied by
//! the same value of x stand side by side. A panel takes exactly the place of its rows, so that a matrix is turned
//! into panels where it lies. A tile of the product is computed in registers and handed to what follows the product
//! while it is in the first-level cache; x is read as it is.

use rayon::prelude::*;

use super::parallel::{self, Pieces};
use super::tile::{self, COLUMNS, Instructions, Operands, ROWS, Strides, VECTOR};

/// Rows of a matrix in one panel.
pub(super) const PANEL: usize = VECTOR;
/// Bytes of x that a thread works on at a time: they and four panels stay in a second-level cache of 1 MiB.
const CHUNK_BYTES: usize = 256 << 10;
/// Fewer rows than this would fetch the weights from the third-level cache more often than the sums can hide.
const CHUNK_ROWS: usize = 8 * ROWS;

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
    let parts = parallel::parts(m * n * k);
    let [height, width] = piece(parts, [m, n, k]);
    let out = Pieces::new(out, n);
    let across = n.div_ceil(width);
    let work = |index: usize| {
        let (row, column) = (index / across * height, index % across * width);
        let (x, width) = (&x[row * k..(row + height).min(m) * k], width.min(n - column));
        let w = &w[column * k..(column + width) * k];
        // SAFETY: these are rows and columns of `out`, whose size is asserted; no two pieces share an element, and nobody
        // else uses `out` before all are done.
        unsafe { multiply(instructions, x, w, k, (&out, [row, column]), &finish) }
    };
    let pieces = 0..m.div_ceil(height) * across;
    if parts == 1 {
        return pieces.for_each(work);
    }
    pieces.into_par_iter().with_max_len(1).for_each(work);
}

/// Rows and columns of the pieces that a product is computed in: at least as many as `parts` where it is large enough. Rows
/// are cut first, but not few of them, so that no thread has to read all the weights for a handful of rows.
fn piece(parts: usize, [m, n, k]: [usize; 3]) -> [usize; 2] {
    let rows = m.div_ceil(parts).max(CHUNK_ROWS).min((CHUNK_BYTES / 4 / k).next_multiple_of(ROWS)).max(ROWS);
    let down = m.div_ceil(rows).max(1);
    let across = parts.div_ceil(down);
    // The widest tiles, four panels, where there is one for each thread, which has four parts.
    let step = if n * down >= parts * PANEL { COLUMNS } else { PANEL };
    [m.div_ceil(down).max(1), n.div_ceil(across).next_multiple_of(step)]
}

/// A piece of a product: that of rows x, (rows, k), and panels w, which begins at a row and a column of `out`. Panels are
/// the outer loop: one tile's panels serve all the rows from the cache.
///
/// # Safety
/// `out` has the rows and columns of the piece, and nobody else uses them meanwhile.
unsafe fn multiply(
    instructions: Instructions,
    x: &[f32],
    w: &[f32],
    k: usize,
    (out, [first_row, first_column]): (&Pieces<'_>, [usize; 2]),
    finish: &impl Fn(usize, &mut [f32]),
) {
    let rows = x.len() / k;
    let height = tile::height(rows);
    for (column, width) in instructions.cut(w.len() / k) {
        let (w, column) = (&w[column * k..], first_column + column);
        for row in (0..rows).step_by(height) {
            let (x, height, row) = (&x[row * k..], height.min(rows - row), first_row + row);
            let tile = Operands { x, w, depth: k, strides: Strides { x: [k, 1], w: [k * PANEL, PANEL] } };
            // SAFETY: the tile lies inside the piece, which is this call's alone.
            unsafe { tile.tile_at(instructions, [height, width], out.at(row, column), out.stride()) };
            for row in row..row + height {
                // SAFETY: the same.
                finish(column, unsafe { out.row(row, column..column + width) });
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

    #[test]
    fn pieces_are_whole_panels_and_enough_for_all_threads() {
        for (threads, parts) in [(1, 1), (1, 4), (2, 8), (3, 12), (15, 60), (64, 256)] {
            for m in [1, 5, 6, 7, 48, 100, 128, 2507, 16_384] {
                for (n, k) in [(16, 1), (384, 384), (1152, 384), (1536, 384), (384, 1536), (1024, 4096)] {
                    let [height, width] = piece(parts, [m, n, k]);
                    assert!((1..=m).contains(&height) && width > 0 && width % PANEL == 0, "{height} x {width}");
                    let (pieces, panels) = (m.div_ceil(height) * n.div_ceil(width), n / PANEL);
                    assert!(pieces >= threads.min(panels), "{pieces} pieces of {m} x {n} for {threads} threads");
                }
            }
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
