//! candle on a card: one device, one stream, its libraries' scratch in the books, its kernels compiled.

use std::time::Instant;

use candle_core::Device;
use candle_core::cuda_backend::{CudaDevice, kernels};
use cudarc::cublas::sys::{cublasSetWorkspace_v2, cublasStatus_t};
use cudarc::driver::{CudaSlice, DevicePtr, DevicePtrMut};

use super::card::{Card, Unusable};
use super::interpose::Scope;
use crate::device::pools::Slot;
use crate::ops::card::Operations;

/// Scratch of cuBLAS, as its makers recommend for Hopper; half of it is enough before that. Given to it so that it
/// takes none of its own at some product's first use.
const SCRATCH_BYTES: usize = 32 << 20;
const SCRATCH_BYTES_BEFORE_HOPPER: usize = 16 << 20;

/// Where tensors are made on a card. Belongs to the device's thread; fields drop in this order.
pub struct Tensors {
    device: Device,
    cuda: CudaDevice,
    /// Nothing reads it here: cuBLAS does.
    _scratch: CudaSlice<u8>,
}

impl Tensors {
    /// Makes it and compiles candle's kernels, which would otherwise happen in the first steps, and take memory there.
    ///
    /// # Errors
    /// What candle or the driver refuses.
    pub fn new(card: &'static Card) -> Result<Tensors, Unusable> {
        // Where backtraces are on, candle puts one behind its words.
        let words = |error: candle_core::Error| error.to_string().lines().next().unwrap_or_default().to_owned();
        let candle = |error| Unusable::Candle { reason: words(error) };
        let _scope = Scope::enter(Slot::NOBODY);
        let device = Device::new_cuda_with_stream(card.ordinal() as usize).map_err(candle)?;
        let cuda = device.as_cuda_device().map_err(candle)?.clone();
        // SAFETY: there is this one stream, and one thread that uses it.
        unsafe { cuda.disable_event_tracking() };
        let scratch = give_scratch(card, &cuda)?;
        compile(&cuda);
        prepare(card, &cuda, &scratch).map_err(candle)?;
        card.settle_fixed_at_start();
        Ok(Tensors { device, cuda, _scratch: scratch })
    }

    /// The device, as candle calls it.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Waits for the stream and forgets the errors of drops, which would be reported by the next unrelated call. The
    /// first of them is returned.
    pub(super) fn drain(&self) -> Option<String> {
        let context = self.cuda.cuda_stream().context().clone();
        context.check_err().err().map(|error| error.to_string())
    }
}

fn give_scratch(card: &Card, cuda: &CudaDevice) -> Result<CudaSlice<u8>, Unusable> {
    let bytes = if card.capability() >= (9, 0) { SCRATCH_BYTES } else { SCRATCH_BYTES_BEFORE_HOPPER };
    let stream = cuda.cuda_stream();
    // SAFETY: scratch is written before it is read.
    let mut scratch =
        unsafe { stream.alloc::<u8>(bytes) }.map_err(Unusable::driver("cuBLAS's scratch cannot be allocated"))?;
    let blas = cuda.cublas_handle();
    let status = {
        let (pointer, _in_order) = scratch.device_ptr_mut(&stream);
        // SAFETY: the handle lives with the device; the memory lives as long, since both are fields of one value and the
        // memory is dropped last.
        unsafe { cublasSetWorkspace_v2(*blas.handle(), pointer as *mut _, bytes) }
    };
    match status {
        cublasStatus_t::CUBLAS_STATUS_SUCCESS => Ok(scratch),
        other => Err(Unusable::Candle { reason: format!("cuBLAS does not take its scratch: {other:?}") }),
    }
}

/// Loads our own operations. Their products take the same scratch: the stream runs one at a time.
fn prepare(card: &Card, cuda: &CudaDevice, scratch: &CudaSlice<u8>) -> candle_core::Result<()> {
    let stream = cuda.cuda_stream();
    let (pointer, _in_order) = scratch.device_ptr(&stream);
    Operations::prepare(cuda, card.ordinal() as usize, (pointer, scratch.len()))
}

/// Loads the modules of all operations that models use.
fn compile(cuda: &CudaDevice) {
    let started = Instant::now();
    // A module is loaded with its first function.
    let modules = [
        ("affine_f32", &kernels::AFFINE),
        ("badd_f32", &kernels::BINARY),
        ("cast_f32_f16", &kernels::CAST),
        ("fill_f32", &kernels::FILL),
        ("is_u32_f32", &kernels::INDEXING),
        ("dequantize_block_q8_0_f32", &kernels::QUANTIZED),
        ("softmax_f32", &kernels::REDUCE),
        ("where_u32_f32", &kernels::TERNARY),
        ("ugelu_f32", &kernels::UNARY),
    ];
    for (function, module) in modules {
        if let Err(error) = cuda.get_or_load_func(function, module) {
            tracing::warn!("candle's {function} is not loaded in advance: {error}");
        }
    }
    tracing::info!("candle's kernels are ready after {} ms", started.elapsed().as_millis());
}
