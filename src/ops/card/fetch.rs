//! Results on their way from the card to the host.
//!
//! A copy into the host's pageable memory is one that its caller waits for. So results go into page-locked memory, which
//! is kept: locking pages takes longer than a small step.

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{DType, Result, Tensor};
use cudarc::driver::sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING;
use cudarc::driver::sys::cuMemcpyDtoHAsync_v2;
use cudarc::driver::{CudaEvent, CudaStream, PinnedHostSlice};
use half::{bf16, f16};

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

/// Values of rows that are being copied.
pub(crate) struct Fetch {
    operations: Arc<Operations>,
    /// `None` once it is given back.
    piece: Mutex<Option<PinnedHostSlice<f32>>>,
    arrived: CudaEvent,
    /// As which they lie in the piece, end to end.
    dtype: DType,
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
    queue(operations, DType::F32, &[(address(tensor, DType::F32)?, elements)], of_rows)
}

/// Queues the copies of rows of hidden states (tokens, width) in f16 or bf16, of which the first token and the number of
/// tokens are given; the tensor may be dropped afterwards. They become f32 on the host: the card needs no memory for it.
pub(crate) fn fetch_states(operations: &Arc<Operations>, hidden: &Tensor, places: &[(usize, usize)]) -> Result<Fetch> {
    let (dtype, (tokens, width)) = (hidden.dtype(), hidden.dims2()?);
    if !matches!(dtype, DType::F16 | DType::BF16) {
        candle_core::bail!("states are fetched in f16 or bf16, not in {dtype:?}");
    }
    if let Some((first, length)) = places.iter().find(|(first, length)| first + length > tokens) {
        candle_core::bail!("{length} tokens from {first} on, of {tokens}");
    }
    let from = address(hidden, dtype)?;
    let of = |(first, length): &(usize, usize)| (from + (first * width * dtype.size_in_bytes()) as u64, length * width);
    let spans: Vec<(u64, usize)> = places.iter().map(of).collect();
    let of_rows = spans.iter().map(|(_, elements)| *elements).collect();
    queue(operations, dtype, &spans, of_rows)
}

/// Queues copies of spans of elements on the card, which come to lie end to end.
fn queue(operations: &Arc<Operations>, dtype: DType, spans: &[(u64, usize)], of_rows: Vec<usize>) -> Result<Fetch> {
    let stream = &operations.stream;
    let size = dtype.size_in_bytes();
    let elements: usize = spans.iter().map(|(_, elements)| elements).sum();
    let piece = operations.pages.take((elements * size).div_ceil(size_of::<f32>()), stream)?;
    let mut to = piece.as_ptr().map_err(candle_core::Error::wrap)?.cast_mut().cast::<u8>();
    for (from, elements) in spans {
        let bytes = elements * size;
        // SAFETY: the spans are in tensors, and the piece has room for all of them; it is not read, freed or given to
        // anybody before the event that is recorded behind the copies.
        unsafe {
            cuMemcpyDtoHAsync_v2(to.cast(), *from, bytes, stream.cu_stream())
                .result()
                .map_err(candle_core::Error::wrap)?;
            to = to.add(bytes);
        }
    }
    let arrived = stream.record_event(Some(CU_EVENT_DISABLE_TIMING)).map_err(candle_core::Error::wrap)?;
    Ok(Fetch { operations: operations.clone(), piece: Mutex::new(Some(piece)), arrived, dtype, of_rows })
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
        let bytes = self.of_rows.iter().sum::<usize>() * self.dtype.size_in_bytes();
        let values = &piece.as_slice().map_err(candle_core::Error::wrap)?[..bytes.div_ceil(size_of::<f32>())];
        let rows = match self.dtype {
            DType::F16 => self.split(&halves(values), |bits| f16::from_bits(*bits).to_f32()),
            DType::BF16 => self.split(&halves(values), |bits| bf16::from_bits(*bits).to_f32()),
            _ => self.split(values, |value| *value),
        };
        self.operations.pages.give_back(piece);
        Ok(rows)
    }
}

impl Fetch {
    /// What each row has of values that lie end to end.
    fn split<T>(&self, values: &[T], read: impl Fn(&T) -> f32) -> Vec<Vec<f32>> {
        let mut rest = values;
        let rows = self.of_rows.iter().map(|count| {
            let (row, others) = rest.split_at(*count);
            rest = others;
            row.iter().map(&read).collect()
        });
        rows.collect()
    }
}

/// The two halves of each word, in the order in which they lie.
fn halves(words: &[f32]) -> Vec<u16> {
    let of = |word: &f32| {
        let [a, b, c, d] = word.to_ne_bytes();
        [u16::from_ne_bytes([a, b]), u16::from_ne_bytes([c, d])]
    };
    words.iter().flat_map(of).collect()
}

impl Drop for Fetch {
    fn drop(&mut self) {
        // What nobody waited for may still be on its way: its memory is freed after it has arrived.
        let _ = self.arrived.synchronize();
    }
}
