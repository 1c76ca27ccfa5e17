//! Matrix products through the `gemm` crate: the one place that hands raw pointers to it.

use gemm::Parallelism;

use super::matrix::View;
use super::parallel::{self, Pieces};

/// Rows of the matrix that are decoded at a time: 64 rows of 1,536 columns are 384 KiB, which stay in a core's
/// second-level cache between decoding and use.
pub(super) const PANEL_ROWS: usize = 64;

/// `out (m, n) = x (m, k) * w (n, k) transposed`, all row-major.
pub(super) fn times_transposed(x: &[f32], w: &[f32], out: &mut [f32], [m, n, k]: [usize; 3]) {
    assert!(x.len() == m * k && w.len() == n * k && out.len() == m * n, "a product's operands fit each other");
    // SAFETY: `out` is exclusive and as long as the assertion says.
    unsafe { product(x, w, out.as_mut_ptr(), n, [m, n, k], Parallelism::Rayon(0)) }
}

/// The same for a matrix that is not held as f32: panels of its rows are decoded into `scratch`, `PANEL_ROWS * k`
/// elements for each thread, and multiplied while they are in the cache.
pub(super) fn times_decoded(x: &[f32], w: View<'_>, out: &mut [f32], scratch: &mut [f32], [m, n, k]: [usize; 3]) {
    assert!(x.len() == m * k && out.len() == m * n, "a product's operands fit each other");
    let out = Pieces::new(out, n);
    let panels = (0..n.div_ceil(PANEL_ROWS)).map(|panel| panel * PANEL_ROWS);
    parallel::for_each_task(panels, scratch, PANEL_ROWS * k, |first, scratch| {
        let rows = PANEL_ROWS.min(n - first);
        let decoded = &mut scratch[..rows * k];
        w.decode_rows(first, decoded);
        // SAFETY: the panel's product lies in the columns `first..first + rows` of `out`, which is m rows of n and
        // outlives the call; the columns of different panels are disjoint, so no two threads write one element.
        unsafe { product(x, decoded, out.at(0, first), n, [m, rows, k], Parallelism::None) }
    });
}

/// Has the calling thread take what the library keeps for each thread at its first product: a buffer of about the size
/// of a second-level cache. Taken within a step it would count as that step's workspace, once, whichever step it is.
pub(super) fn warm_up_thread() {
    const SIDE: usize = 256;
    let (x, w) = (vec![0.0; SIDE * SIDE], vec![0.0; SIDE * SIDE]);
    let mut out = vec![0.0; SIDE * SIDE];
    // SAFETY: `out` is exclusive and has SIDE rows of SIDE.
    unsafe { product(&x, &w, out.as_mut_ptr(), SIDE, [SIDE; 3], Parallelism::None) }
}

/// # Safety
/// `out` is valid for writes of `n` elements in each of `m` rows that are `stride` elements apart, and nobody else
/// uses them during the call.
unsafe fn product(x: &[f32], w: &[f32], out: *mut f32, stride: usize, [m, n, k]: [usize; 3], threads: Parallelism) {
    assert!(x.len() == m * k && w.len() == n * k, "a product's operands fit each other");
    let (stride, step) = (stride as isize, k as isize);
    // SAFETY: x is m rows of k, w is n rows of k read as columns, both checked above; out is the caller's promise.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out,
            1,
            stride,
            false,
            x.as_ptr(),
            1,
            step,
            w.as_ptr(),
            step,
            1,
            0.0,
            1.0,
            false,
            false,
            false,
            threads,
        );
    }
}
