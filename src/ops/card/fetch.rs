//! Results on their way from the card to the host.
//!
//! A copy into the host's pageable memory is one that its caller waits for. So results go into page-locked memory, which
//! is kept: locking pages takes longer than a small step.

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{DType, Result, Tensor};
use cudarc::driver::sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING;
use cudarc::driver::sys::cuMemcpyDtoHAsync_v2;
use cudarc::driver::{CudaEvent, CudaStream, PinnedHostSlice};

use super::operations::Operations;
use super::tensors::address;

/// Page-locked memory that nothing is on its way to: at most one piece for each step that is in flight.
#[derive(Default)]
pub(super) struct Pages(Mutex<Vec<PinnedHostSlice<f32>>>);

impl Pages {
    /// A piece for at least so many elements.
    fn take(&self, elements: usize, stream: &CudaStream) -> Result<PinnedHostSlice<f32>> {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match free.iter().position(|piece| piece.len() >= elements) {
            Some(index) => Ok(free.swap_remove(index)),
            None => {
                // One that is too small goes: pieces grow to what steps need, and do not add up.
                free.pop();
                let elements = elements.next_power_of_two();
                // SAFETY: it is read only after a copy has filled what is read.
                unsafe { stream.context().alloc_pinned_with_flags(elements, 0) }.map_err(candle_core::Error::wrap)
            }
        }
    }

    fn give_back(&self, piece: PinnedHostSlice<f32>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(piece);
    }
}

/// Values of rows, in f32, that are being copied.
pub(crate) struct Fetch {
    operations: Arc<Operations>,
    /// `None` once it is given back.
    piece: Mutex<Option<PinnedHostSlice<f32>>>,
    arrived: CudaEvent,
    /// How many values each row has.
    of_rows: Vec<usize>,
}

/// Queues the copy of a tensor in f32, which may be dropped afterwards. Its values are those of rows end to end, so many
/// of each as `of_rows` says.
pub(crate) fn fetch(operations: &Arc<Operations>, tensor: &Tensor, of_rows: Vec<usize>) -> Result<Fetch> {
    let elements = tensor.elem_count();
    if of_rows.iter().sum::<usize>() != elements {
        candle_core::bail!("rows of {} values in all, of a tensor of {elements}", of_rows.iter().sum::<usize>());
    }
    let from = address(tensor, DType::F32)?;
    let stream = &operations.stream;
    let piece = operations.pages.take(elements, stream)?;
    let to = piece.as_ptr().map_err(candle_core::Error::wrap)?.cast_mut();
    // SAFETY: both have room for the elements; the piece is not read, freed or given to anybody before the event that is
    // recorded behind the copy.
    unsafe { cuMemcpyDtoHAsync_v2(to.cast(), from, elements * size_of::<f32>(), stream.cu_stream()) }
        .result()
        .map_err(candle_core::Error::wrap)?;
    let arrived = stream.record_event(Some(CU_EVENT_DISABLE_TIMING)).map_err(candle_core::Error::wrap)?;
    Ok(Fetch { operations: operations.clone(), piece: Mutex::new(Some(piece)), arrived, of_rows })
}

impl Fetch {
    /// Whether the rows are there, or never will be.
    pub(crate) fn is_there(&self) -> bool {
        !matches!(self.arrived.try_is_complete(), Ok(false))
    }

    /// Waits for the rows.
    ///
    /// # Errors
    /// What the driver says of the work before; if they were waited for already.
    pub(crate) fn wait(&self) -> Result<Vec<Vec<f32>>> {
        self.arrived.synchronize().map_err(candle_core::Error::wrap)?;
        let piece = self.piece.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(piece) = piece else { candle_core::bail!("these rows were taken already") };
        let mut rest = piece.as_slice().map_err(candle_core::Error::wrap)?;
        let rows = self.of_rows.iter().map(|count| {
            let (row, others) = rest.split_at(*count);
            rest = others;
            row.to_vec()
        });
        let rows = rows.collect();
        self.operations.pages.give_back(piece);
        Ok(rows)
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        // What nobody waited for may still be on its way: its memory is freed after it has arrived.
        let _ = self.arrived.synchronize();
    }
}
