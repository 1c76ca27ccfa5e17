//! Where the elements of a tensor lie on the card.
//!
//! candle lets nobody write a tensor but its own operations. Those of this module write to memory that a step has set
//! aside for them, by its address; what they write and read is checked here, once for all of them.

use candle_core::backend::BackendDevice;
use candle_core::{DType, Device, DeviceLocation, Result, Storage, Tensor, bail};
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use half::{bf16, f16};

/// An address on the card.
pub(super) type Address = u64;

/// What 16-byte accesses need of an address.
const ALIGNMENT: Address = 16;

/// The address of a contiguous tensor with elements of `dtype`, a multiple of 16.
pub(super) fn address(tensor: &Tensor, dtype: DType) -> Result<Address> {
    if tensor.dtype() != dtype {
        bail!("the tensor holds {:?} where {dtype:?} is expected", tensor.dtype());
    }
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cuda(storage) = &*storage else { bail!("the tensor is not on a card") };
    let Some((from, _)) = layout.contiguous_offsets() else { bail!("the tensor is not contiguous") };
    let stream = storage.device.cuda_stream();
    let start = match dtype {
        DType::F32 => start(storage.as_cuda_slice::<f32>()?, &stream),
        DType::F16 => start(storage.as_cuda_slice::<f16>()?, &stream),
        DType::BF16 => start(storage.as_cuda_slice::<bf16>()?, &stream),
        DType::U32 => start(storage.as_cuda_slice::<u32>()?, &stream),
        DType::U8 => start(storage.as_cuda_slice::<u8>()?, &stream),
        other => bail!("no operation here is over {other:?}"),
    };
    let address = start + (from * dtype.size_in_bytes()) as Address;
    if !address.is_multiple_of(ALIGNMENT) {
        bail!("the tensor does not begin at a multiple of {ALIGNMENT} bytes");
    }
    Ok(address)
}

/// The same for a tensor of a shape: what does not have it is a mistake of ours.
pub(super) fn address_of(tensor: &Tensor, dtype: DType, shape: &[usize]) -> Result<Address> {
    assert_eq!(tensor.dims(), shape, "an operation is given tensors of its shapes");
    address(tensor, dtype)
}

fn start<T>(slice: &CudaSlice<T>, stream: &CudaStream) -> Address {
    // There is one stream and no event tracking: what is dropped here does nothing.
    let (address, _order) = slice.device_ptr(stream);
    address
}

/// Memory for so many elements that holds whatever was there before: for operations that write all that is read.
pub(crate) fn memory(elements: usize, dtype: DType, device: &Device) -> Result<Tensor> {
    // SAFETY: on a card any bytes are values, and nothing here decides by them.
    unsafe { Tensor::empty(elements, dtype, device) }
}

/// The number of a device, if it is a card.
pub(super) fn ordinal(device: &Device) -> Option<usize> {
    match device {
        Device::Cuda(device) => match device.location() {
            DeviceLocation::Cuda { gpu_id } => Some(gpu_id),
            DeviceLocation::Cpu | DeviceLocation::Metal { .. } => None,
        },
        Device::Cpu | Device::Metal(_) => None,
    }
}
