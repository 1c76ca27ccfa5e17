//! A tile of a matrix product: as many sums as the processor has registers for.
//!
//! A tile's columns are vectors of 16 that stand side by side in memory; what they are multiplied by is read value by
//! value, wherever it lies, and spread over a register. So only one of a product's operands ever has to be laid out.

/// Columns that lie side by side: two registers of 8, or one of 16.
pub(super) const VECTOR: usize = 16;
/// Rows of a tile, at most. 6 x 16 sums are 12 of the 16 registers of AVX2, and 6 x 64, four vectors, are 24 of the 32 of
/// AVX-512; 12 x 32 and 8 x 48 are 2 to 8 % slower on Zen 4.
pub(super) const ROWS: usize = 6;
/// Columns of a tile, at most.
pub(super) const COLUMNS: usize = 4 * VECTOR;

/// The instructions that a tile is computed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Instructions {
    /// Those that the program is built for; the specification of the others.
    Baseline,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Instructions {
    /// The fastest that this processor has. The answer is cached by the standard library.
    pub(super) fn detect() -> Instructions {
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

    /// Vectors of the next tile, of those that are left.
    fn vectors(self, left: usize) -> usize {
        match self {
            Instructions::Baseline => 1,
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => 1,
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 => match left {
                4.. => 4,
                2 | 3 => 2,
                _ => 1,
            },
        }
    }

    /// Cuts `columns`, whole vectors, into those of tiles: the first of each, and how many.
    pub(super) fn cut(self, columns: usize) -> impl Iterator<Item = (usize, usize)> {
        let mut first = 0;
        std::iter::from_fn(move || {
            let width = VECTOR * self.vectors(columns.checked_sub(first).filter(|left| *left > 0)? / VECTOR);
            first += width;
            Some((first - width, width))
        })
    }
}

/// Heights of tiles for `rows`: equal ones, so that 8 rows are 4 + 4 and not 6 + 2, since a low tile waits for its loads.
pub(super) fn height(rows: usize) -> usize {
    rows.div_ceil(rows.div_ceil(ROWS))
}

/// Where the operands of `x (rows, depth) * w (depth, columns)` lie.
#[derive(Clone, Copy)]
pub(super) struct Strides {
    /// Elements of x from row to row, and from one column to the next.
    pub(super) x: [usize; 2],
    /// Elements of w from vector to vector, and from row to row.
    pub(super) w: [usize; 2],
}

/// What a tile is the product of. Both slices begin with the tile's first element and may be longer than the tile.
#[derive(Clone, Copy)]
pub(super) struct Operands<'a> {
    pub(super) x: &'a [f32],
    pub(super) w: &'a [f32],
    pub(super) depth: usize,
    pub(super) strides: Strides,
}

impl Operands<'_> {
    /// The tile of `rows` rows, [`ROWS`] at most, and `columns` columns, as wide as [`Instructions::cut`] makes them; a row
    /// of `out` has `stride` elements.
    ///
    /// # Panics
    /// If an operand or `out` is too short.
    pub(super) fn tile(self, instructions: Instructions, shape: [usize; 2], out: &mut [f32], stride: usize) {
        assert!((shape[0] - 1) * stride + shape[1] <= out.len(), "the tile has its place");
        // SAFETY: `out` is exclusive and has place for all rows.
        unsafe { self.tile_at(instructions, shape, out.as_mut_ptr(), stride) }
    }

    /// The same where what lies between the rows of the tile is somebody else's.
    ///
    /// # Safety
    /// `out` is valid for writes of `columns` elements in each of `rows` rows, `stride` elements apart, and nobody else uses
    /// them meanwhile.
    pub(super) unsafe fn tile_at(
        self,
        instructions: Instructions,
        [rows, columns]: [usize; 2],
        out: *mut f32,
        stride: usize,
    ) {
        macro_rules! of_height {
            ($tile:ident $(, $vectors:literal)?) => {
                match rows {
                    1 => self.$tile::<1 $(, $vectors)?>(out, stride),
                    2 => self.$tile::<2 $(, $vectors)?>(out, stride),
                    3 => self.$tile::<3 $(, $vectors)?>(out, stride),
                    4 => self.$tile::<4 $(, $vectors)?>(out, stride),
                    5 => self.$tile::<5 $(, $vectors)?>(out, stride),
                    ROWS => self.$tile::<ROWS $(, $vectors)?>(out, stride),
                    _ => unreachable!("a tile has 1 to 6 rows"),
                }
            };
        }
        match instructions {
            // SAFETY: what is asked of the caller.
            Instructions::Baseline if columns == VECTOR => unsafe { of_height!(baseline) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the same; `Instructions::Avx2` is only made where the processor has them.
            Instructions::Avx2 if columns == VECTOR => unsafe { of_height!(avx2) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the same; `Instructions::Avx512` is only made where the processor has them.
            Instructions::Avx512 => unsafe {
                match columns / VECTOR {
                    1 => of_height!(avx512, 1),
                    2 => of_height!(avx512, 2),
                    4 => of_height!(avx512, 4),
                    _ => unreachable!("a tile has 1, 2 or 4 vectors"),
                }
            },
            _ => unreachable!("only AVX-512 has tiles of several vectors"),
        }
    }

    /// What the loops over a tile rely on.
    #[inline(always)]
    fn check(&self, [rows, vectors]: [usize; 2]) {
        let ([row, column], [vector, below]) = (self.strides.x, self.strides.w);
        assert!(self.depth > 0, "a product has something to sum");
        let last = self.depth - 1;
        assert!((rows - 1) * row + last * column < self.x.len(), "x has all rows of the tile");
        assert!((vectors - 1) * vector + last * below + VECTOR <= self.w.len(), "w has all columns of the tile");
    }

    /// One vector of columns. The compiler holds the sums in registers.
    ///
    /// # Safety
    /// As of [`Operands::tile_at`].
    unsafe fn baseline<const HEIGHT: usize>(self, out: *mut f32, stride: usize) {
        self.check([HEIGHT, 1]);
        let ([row, column], [_, below]) = (self.strides.x, self.strides.w);
        let mut sums = [[0f32; VECTOR]; HEIGHT];
        for at in 0..self.depth {
            let weights: &[f32; VECTOR] = self.w[at * below..][..VECTOR].try_into().expect("as long as it was cut");
            for (index, sums) in sums.iter_mut().enumerate() {
                let factor = self.x[index * row + at * column];
                for (sum, weight) in sums.iter_mut().zip(weights) {
                    *sum = factor.mul_add(*weight, *sum);
                }
            }
        }
        for (index, sums) in sums.iter().enumerate() {
            // SAFETY: the row is the caller's promise; any f32 may be written where one can lie.
            unsafe { out.add(index * stride).cast::<[f32; VECTOR]>().write(*sums) };
        }
    }

    /// One vector of columns, each row's sums in two registers. Each sum adds the same products in the same order as in
    /// [`Operands::baseline`]: the same bits.
    ///
    /// # Safety
    /// As of [`Operands::tile_at`].
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn avx2<const HEIGHT: usize>(self, out: *mut f32, stride: usize) {
        use std::arch::x86_64::*;
        const HALF: usize = VECTOR / 2;
        self.check([HEIGHT, 1]);
        let ([row, column], [_, below]) = (self.strides.x, self.strides.w);
        let mut sums = [[_mm256_setzero_ps(); 2]; HEIGHT];
        for at in 0..self.depth {
            // SAFETY: at < depth, for which `check` has found both halves of 16 weights inside w.
            let weights: [__m256; 2] =
                std::array::from_fn(|half| unsafe { _mm256_loadu_ps(self.w.as_ptr().add(at * below + half * HALF)) });
            for (index, sums) in sums.iter_mut().enumerate() {
                // SAFETY: index < HEIGHT and at < depth: inside x, as checked.
                let factor = _mm256_set1_ps(unsafe { *self.x.get_unchecked(index * row + at * column) });
                for (sum, weights) in sums.iter_mut().zip(&weights) {
                    *sum = _mm256_fmadd_ps(factor, *weights, *sum);
                }
            }
        }
        for (index, sums) in sums.iter().enumerate() {
            for (half, sums) in sums.iter().enumerate() {
                // SAFETY: the row is the caller's promise.
                unsafe { _mm256_storeu_ps(out.add(index * stride + half * HALF), *sums) };
            }
        }
    }

    /// `VECTORS` vectors of columns at once. Each sum adds the same products in the same order as in
    /// [`Operands::baseline`]: the same bits.
    ///
    /// # Safety
    /// As of [`Operands::tile_at`].
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f")]
    unsafe fn avx512<const HEIGHT: usize, const VECTORS: usize>(self, out: *mut f32, stride: usize) {
        use std::arch::x86_64::*;
        self.check([HEIGHT, VECTORS]);
        let ([row, column], [vector, below]) = (self.strides.x, self.strides.w);
        let mut sums = [[_mm512_setzero_ps(); VECTORS]; HEIGHT];
        for at in 0..self.depth {
            // SAFETY: index < VECTORS and at < depth, for which `check` has found 16 weights inside w.
            let weights: [__m512; VECTORS] = std::array::from_fn(|index| unsafe {
                _mm512_loadu_ps(self.w.as_ptr().add(index * vector + at * below))
            });
            for (index, sums) in sums.iter_mut().enumerate() {
                // SAFETY: index < HEIGHT and at < depth: inside x, as checked.
                let factor = _mm512_set1_ps(unsafe { *self.x.get_unchecked(index * row + at * column) });
                for (sum, weights) in sums.iter_mut().zip(&weights) {
                    *sum = _mm512_fmadd_ps(factor, *weights, *sum);
                }
            }
        }
        for (index, sums) in sums.iter().enumerate() {
            for (at, sums) in sums.iter().enumerate() {
                // SAFETY: the row is the caller's promise.
                unsafe { _mm512_storeu_ps(out.add(index * stride + at * VECTOR), *sums) };
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::ops::tests::random;

    /// All that this processor has, the baseline first.
    pub(in crate::ops) fn every() -> Vec<Instructions> {
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

    /// All columns of `x (rows, depth) * w (depth, columns)` by tiles, into rows of `stride`.
    fn product(
        instructions: Instructions,
        operands: Operands<'_>,
        [rows, columns]: [usize; 2],
        stride: usize,
    ) -> Vec<f32> {
        let mut out = vec![f32::NAN; rows * stride];
        for (first, width) in instructions.cut(columns) {
            let [vector, _] = operands.strides.w;
            let tile = Operands { w: &operands.w[first / VECTOR * vector..], ..operands };
            tile.tile(instructions, [rows, width], &mut out[first..], stride);
        }
        out
    }

    #[test]
    fn columns_are_cut_into_all_of_them() {
        for instructions in every() {
            for vectors in 0..12 {
                let mut next = 0;
                for (first, width) in instructions.cut(vectors * VECTOR) {
                    assert_eq!(first, next);
                    assert!([VECTOR, 2 * VECTOR, COLUMNS].contains(&width));
                    next += width;
                }
                assert_eq!(next, vectors * VECTOR);
            }
        }
    }

    /// Rows of x may be columns of memory, vectors of w may lie in each other's rows, and rows of the result apart.
    #[test]
    fn every_path_is_the_product_wherever_its_operands_lie() {
        for (rows, columns, depth) in [(1, 16, 1), (2, 48, 5), (3, 64, 33), (4, 112, 7), (5, 32, 64), (6, 144, 96)] {
            let (gap, far) = (3, columns + 5);
            for strides in [
                Strides { x: [depth, 1], w: [depth * VECTOR, VECTOR] },
                Strides { x: [depth + gap, 1], w: [VECTOR, far] },
                Strides { x: [1, rows + gap], w: [VECTOR, columns] },
            ] {
                let end = |[outer, inner]: [usize; 2], count: usize| (count - 1) * outer + (depth - 1) * inner;
                let x: Vec<f32> = random(&[end(strides.x, rows) + 1], 1.0).to_vec1().unwrap();
                let w: Vec<f32> = random(&[end(strides.w, columns / VECTOR) + VECTOR], 1.0).to_vec1().unwrap();
                let operands = Operands { x: &x, w: &w, depth, strides };
                let (stride, shape) = (columns + 1, [rows, columns]);
                let mut found = every().into_iter().map(|each| product(each, operands, shape, stride));
                let baseline = found.next().expect("there always is a baseline");
                for (row, sums) in baseline.chunks(stride).enumerate() {
                    assert!(sums[columns].is_nan(), "nothing is written beside a tile");
                    for (column, sum) in sums[..columns].iter().enumerate() {
                        let terms = (0..depth).map(|at| {
                            let weight = column / VECTOR * strides.w[0] + at * strides.w[1] + column % VECTOR;
                            f64::from(x[row * strides.x[0] + at * strides.x[1]]) * f64::from(w[weight])
                        });
                        let error = (f64::from(*sum) - terms.sum::<f64>()).abs();
                        assert!(error <= 1e-5, "{shape:?}, depth {depth}: {error} at {row}, {column}");
                    }
                }
                for found in found {
                    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
                    assert_eq!(bits(&found), bits(&baseline), "the same sums in the same order");
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "w has all columns")]
    fn an_operand_that_is_too_short_is_refused() {
        let strides = Strides { x: [4, 1], w: [VECTOR, VECTOR] };
        let operands = Operands { x: &[0.0; 8], w: &[0.0; 63], depth: 4, strides };
        operands.tile(Instructions::detect(), [2, VECTOR], &mut [0.0; 2 * VECTOR], VECTOR);
    }
}
