//! How work is spread over the threads of the CPU.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;

/// Below so many elements waking another thread costs more than it saves (about 10 us against 1 ns an element).
const SERIAL_BELOW: usize = 16 << 10;

/// Multiplications below which waking another thread costs more than it saves: about 10 us of one core.
const SERIAL_PRODUCTS_BELOW: usize = 1 << 19;

/// Parts of a thread's share: they even out what the system's other work takes from one of the threads.
const PARTS: usize = 4;

/// Threads that operations are spread over.
pub(crate) fn threads() -> usize {
    rayon::current_num_threads()
}

/// Parts that work of so many multiplications is best cut into: one, or several for each thread.
pub(super) fn parts(products: usize) -> usize {
    if products < SERIAL_PRODUCTS_BELOW || threads() == 1 { 1 } else { threads() * PARTS }
}

/// Calls `work` with (index, row) for each row of `width` elements.
pub(crate) fn for_each_row(data: &mut [f32], width: usize, work: impl Fn(usize, &mut [f32]) + Sync) {
    let serial = |(part, rows): (usize, &mut [f32]), rows_each: usize| {
        for (row, values) in rows.chunks_exact_mut(width).enumerate() {
            work(part * rows_each + row, values);
        }
    };
    let rows = data.len() / width;
    if data.len() < SERIAL_BELOW || threads() == 1 {
        return serial((0, data), rows);
    }
    let rows_each = rows.div_ceil(threads() * PARTS).max(SERIAL_BELOW / PARTS / width).max(1);
    data.par_chunks_mut(rows_each * width).enumerate().for_each(|part| serial(part, rows_each));
}

/// Runs all `tasks`, each thread with its own part of `scratch`, `each` elements long. The scratch is the caller's,
/// so that it is counted as the step's own memory and not as that of the threads.
pub(crate) fn for_each_task<T: Send>(
    tasks: impl ExactSizeIterator<Item = T> + Send,
    scratch: &mut [f32],
    each: usize,
    work: impl Fn(T, &mut [f32]) + Sync,
) {
    if tasks.len() == 1 || threads() == 1 {
        tasks.for_each(|task| work(task, &mut scratch[..each]));
        return;
    }
    let queue = Mutex::new(tasks);
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    scratch.par_chunks_exact_mut(each).with_max_len(1).for_each(|mine| {
        while let Some(task) = next() {
            work(task, mine);
        }
    });
}

/// A matrix that threads write disjoint pieces of, when these are not whole rows.
pub(super) struct Pieces<'a> {
    start: *mut f32,
    stride: usize,
    matrix: PhantomData<&'a mut [f32]>,
}

// SAFETY: the pointer is only used at disjoint places, which is what its methods ask for.
unsafe impl Sync for Pieces<'_> {}

impl<'a> Pieces<'a> {
    /// Rows of `stride` elements.
    pub(super) fn new(matrix: &'a mut [f32], stride: usize) -> Pieces<'a> {
        Pieces { start: matrix.as_mut_ptr(), stride, matrix: PhantomData }
    }

    /// Elements from a row to the next.
    pub(super) fn stride(&self) -> usize {
        self.stride
    }

    /// Where a row has a column.
    ///
    /// # Safety
    /// The matrix has both.
    pub(super) unsafe fn at(&self, row: usize, column: usize) -> *mut f32 {
        // SAFETY: the caller's promise.
        unsafe { self.start.add(row * self.stride + column) }
    }

    /// Some columns of a row.
    ///
    /// # Safety
    /// The matrix has them, and nobody else uses them while the result is alive.
    #[expect(clippy::mut_from_ref, reason = "that no two are of the same elements is what the caller promises")]
    pub(super) unsafe fn row(&self, row: usize, columns: Range<usize>) -> &mut [f32] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.at(row, columns.start), columns.len()) }
    }
}
