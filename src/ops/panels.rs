//! Matrix products with weights that were laid out for them when they were loaded.
//!
//! A panel is 16 rows of a matrix (n, k), transposed: for each of the k columns the 16 weights that are multiplied by
//! the same value of x stand side by side. A panel takes exactly the place of its rows, so that a matrix is turned
//! into panels where it lies. A tile of the product is computed in registers and handed to what follows the product
//! while it is in the first-level cache; x is read as it is.

use rayon::prelude::*;

use super::parallel;

/// Rows of a matrix in one panel: two vectors of 8, or one of 16.
pub(super) const PANEL: usize = 16;
/// Rows of x in a tile. 6 x 16 sums are 12 of the 16 registers of AVX2, and 6 x 64 are 24 of the 32 of AVX-512; 12 x 32
/// and 8 x 48 are 2 to 8 % slower on Zen 4.
const TILE_ROWS: usize = 6;
/// Panels of a tile where registers are many.
const WIDE: usize = 4;
/// Columns of the widest tile.
const TILE_COLUMNS: usize = WIDE * PANEL;
/// Bytes of x that a thread works on at a time: they and four panels stay in a second-level cache of 1 MiB.
const CHUNK_BYTES: usize = 256 << 10;
/// Fewer rows than this would fetch the weights from the third-level cache more often than the sums can hide.
const CHUNK_ROWS: usize = 8 * TILE_ROWS;
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

/// The instructions that a tile is computed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Instructions {
    /// Those that the program is built for; the specification of the others.
    Baseline,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Instructions {
    /// The fastest that this processor has. The answer is cached by the standard library.
    fn detect() -> Instructions {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512f") {
            return Instructions::Avx512;
        }
        // The compiler finds them for the baseline too, but not where it hardly optimizes.
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            return Instructions::Avx2;
        }
        Instructions::Baseline
    }
}

/// `out (m, n) = finish(x (m, k) * w (n, k) transposed)`, `w` in panels. `finish` is called once for each piece of a
/// row of the product, with the piece's first column, before the piece is stored.
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
    let rows = rows.min((CHUNK_BYTES / 4 / k).next_multiple_of(TILE_ROWS)).max(1);
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
    let rows = x.len() / k;
    // Tiles of equal height: 8 rows are 4 + 4, not 6 + 2, since a low tile waits for its loads.
    let height = rows.div_ceil(rows.div_ceil(TILE_ROWS));
    let mut sums = [0f32; TILE_ROWS * TILE_COLUMNS];
    let mut column = 0;
    while column < n {
        let panels = match instructions {
            Instructions::Baseline => 1,
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => 1,
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 => {
                if n - column >= TILE_COLUMNS {
                    WIDE
                } else {
                    1
                }
            }
        };
        let width = panels * PANEL;
        let weights = &w[column * k..(column + width) * k];
        for (x, out) in x.chunks(height * k).zip(out.chunks_mut(height * n)) {
            let sums = &mut sums[..x.len() / k * width];
            tile(instructions, x, weights, sums, k);
            for (sums, out) in sums.chunks_exact_mut(width).zip(out.chunks_exact_mut(n)) {
                finish(column, sums);
                out[column..column + width].copy_from_slice(sums);
            }
        }
        column += width;
    }
}

/// `sums (rows, width)` of up to [`TILE_ROWS`] rows of x and whole panels, `width` columns of them.
fn tile(instructions: Instructions, x: &[f32], panels: &[f32], sums: &mut [f32], k: usize) {
    let rows = x.len() / k;
    match instructions {
        Instructions::Baseline => match rows {
            1 => baseline::<1>(x, panels, sums, k),
            2 => baseline::<2>(x, panels, sums, k),
            3 => baseline::<3>(x, panels, sums, k),
            4 => baseline::<4>(x, panels, sums, k),
            5 => baseline::<5>(x, panels, sums, k),
            _ => baseline::<TILE_ROWS>(x, panels, sums, k),
        },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `Instructions::Avx2` is only made where the processor has them.
        Instructions::Avx2 => unsafe {
            match rows {
                1 => avx2::<1>(x, panels, sums, k),
                2 => avx2::<2>(x, panels, sums, k),
                3 => avx2::<3>(x, panels, sums, k),
                4 => avx2::<4>(x, panels, sums, k),
                5 => avx2::<5>(x, panels, sums, k),
                _ => avx2::<TILE_ROWS>(x, panels, sums, k),
            }
        },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `Instructions::Avx512` is only made where the processor has them.
        Instructions::Avx512 => unsafe {
            match (rows, panels.len() / k / PANEL) {
                (1, 1) => avx512::<1, 1>(x, panels, sums, k),
                (2, 1) => avx512::<2, 1>(x, panels, sums, k),
                (3, 1) => avx512::<3, 1>(x, panels, sums, k),
                (4, 1) => avx512::<4, 1>(x, panels, sums, k),
                (5, 1) => avx512::<5, 1>(x, panels, sums, k),
                (_, 1) => avx512::<TILE_ROWS, 1>(x, panels, sums, k),
                (1, _) => avx512::<1, WIDE>(x, panels, sums, k),
                (2, _) => avx512::<2, WIDE>(x, panels, sums, k),
                (3, _) => avx512::<3, WIDE>(x, panels, sums, k),
                (4, _) => avx512::<4, WIDE>(x, panels, sums, k),
                (5, _) => avx512::<5, WIDE>(x, panels, sums, k),
                (_, _) => avx512::<TILE_ROWS, WIDE>(x, panels, sums, k),
            }
        },
    }
}

/// One panel. The compiler holds the sums in registers.
fn baseline<const ROWS: usize>(x: &[f32], panel: &[f32], sums: &mut [f32], k: usize) {
    assert!(x.len() == ROWS * k && sums.len() == ROWS * PANEL && panel.len() == k * PANEL);
    let x: [&[f32]; ROWS] = std::array::from_fn(|row| &x[row * k..][..k]);
    let mut registers = [[0f32; PANEL]; ROWS];
    for (at, weights) in panel.as_chunks::<PANEL>().0.iter().enumerate() {
        for (sums, x) in registers.iter_mut().zip(&x) {
            let factor = x[at];
            for (sum, weight) in sums.iter_mut().zip(weights) {
                *sum = factor.mul_add(*weight, *sum);
            }
        }
    }
    sums.copy_from_slice(registers.as_flattened());
}

/// One panel, each row's sums in two registers. Each sum adds the same products in the same order as in [`baseline`]: the
/// same bits.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn avx2<const ROWS: usize>(x: &[f32], panel: &[f32], sums: &mut [f32], k: usize) {
    use std::arch::x86_64::*;
    const HALF: usize = PANEL / 2;
    assert!(x.len() == ROWS * k && sums.len() == ROWS * PANEL && panel.len() == k * PANEL);
    let mut registers = [[_mm256_setzero_ps(); 2]; ROWS];
    for at in 0..k {
        // SAFETY: at < k, so that both halves of 16 weights lie inside `panel`, whose length was checked.
        let weights: [__m256; 2] =
            std::array::from_fn(|half| unsafe { _mm256_loadu_ps(panel.as_ptr().add(at * PANEL + half * HALF)) });
        for (row, registers) in registers.iter_mut().enumerate() {
            // SAFETY: row < ROWS and at < k: inside `x`, whose length was checked.
            let factor = _mm256_set1_ps(unsafe { *x.get_unchecked(row * k + at) });
            for (sum, weights) in registers.iter_mut().zip(&weights) {
                *sum = _mm256_fmadd_ps(factor, *weights, *sum);
            }
        }
    }
    for (sums, register) in sums.chunks_exact_mut(HALF).zip(registers.as_flattened()) {
        // SAFETY: the chunk has 8 elements.
        unsafe { _mm256_storeu_ps(sums.as_mut_ptr(), *register) };
    }
}

/// `PANELS` panels at once. Each sum adds the same products in the same order as in [`baseline`]: the same bits.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn avx512<const ROWS: usize, const PANELS: usize>(x: &[f32], panels: &[f32], sums: &mut [f32], k: usize) {
    use std::arch::x86_64::*;
    assert!(x.len() == ROWS * k && sums.len() == ROWS * PANELS * PANEL && panels.len() == k * PANELS * PANEL);
    let mut registers = [[_mm512_setzero_ps(); PANELS]; ROWS];
    for at in 0..k {
        // SAFETY: panel < PANELS and at < k, so that the 16 weights lie inside `panels`, whose length was checked.
        let weights: [__m512; PANELS] =
            std::array::from_fn(|panel| unsafe { _mm512_loadu_ps(panels.as_ptr().add((panel * k + at) * PANEL)) });
        for (row, registers) in registers.iter_mut().enumerate() {
            // SAFETY: row < ROWS and at < k: inside `x`, whose length was checked.
            let factor = _mm512_set1_ps(unsafe { *x.get_unchecked(row * k + at) });
            for (sum, weights) in registers.iter_mut().zip(&weights) {
                *sum = _mm512_fmadd_ps(factor, *weights, *sum);
            }
        }
    }
    for (sums, register) in sums.chunks_exact_mut(PANEL).zip(registers.as_flattened()) {
        // SAFETY: the chunk has 16 elements.
        unsafe { _mm512_storeu_ps(sums.as_mut_ptr(), *register) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::tests::random;

    fn values(count: usize) -> Vec<f32> {
        random(&[count], 1.0).to_vec1().unwrap()
    }

    fn every() -> Vec<Instructions> {
        let mut all = vec![Instructions::Baseline];
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            all.push(Instructions::Avx2);
        }
        if !all.contains(&Instructions::detect()) {
            all.push(Instructions::detect());
        }
        all
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
