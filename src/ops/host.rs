//! The elements of a tensor in the host's memory, as a slice.
//!
//! candle lets nobody write a tensor but an [`InplaceOp1`]; the one here hands its elements to a closure. An operation
//! of this module is a function over slices; its tensor form checks shapes and calls it through these two.

use std::cell::Cell;

use candle_core::{CpuStorage, InplaceOp1, Layout, Result, Storage, Tensor, WithDType, bail};

/// Calls `read` with the elements of a contiguous tensor.
pub(crate) fn read<T: WithDType, R>(tensor: &Tensor, read: impl FnOnce(&[T]) -> R) -> Result<R> {
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else { bail!("the tensor is not in the host's memory") };
    let Some((from, to)) = layout.contiguous_offsets() else { bail!("the tensor is not contiguous") };
    Ok(read(&storage.as_slice::<T>()?[from..to]))
}

/// Calls `read` with the elements of a vector of `len`, or with as many zeros: a bias, where a model has one.
pub(crate) fn read_or_zeros<R>(vector: Option<&Tensor>, len: usize, read: impl FnOnce(&[f32]) -> R) -> Result<R> {
    match vector {
        Some(vector) => {
            assert_eq!(vector.dims(), [len], "one value for each column");
            self::read(vector, read)
        }
        None => Ok(read(&vec![0.0; len])),
    }
}

/// Calls `write` with the elements of a contiguous tensor of f32. It must not [`read`] or write the same tensor.
pub(crate) fn write<R>(tensor: &Tensor, write: impl FnOnce(&mut [f32]) -> R) -> Result<R> {
    let op = Write { write: Cell::new(Some(write)), result: Cell::new(None) };
    tensor.inplace_op1(&op)?;
    Ok(op.result.into_inner().expect("candle calls an operation that succeeds once"))
}

struct Write<F, R> {
    write: Cell<Option<F>>,
    result: Cell<Option<R>>,
}

impl<R, F: FnOnce(&mut [f32]) -> R> InplaceOp1 for Write<F, R> {
    fn name(&self) -> &'static str {
        "host-write"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let CpuStorage::F32(data) = storage else { bail!("the tensor does not hold f32") };
        let Some((from, to)) = layout.contiguous_offsets() else { bail!("the tensor is not contiguous") };
        let write = self.write.take().expect("candle calls an operation once");
        self.result.set(Some(write(&mut data[from..to])));
        Ok(())
    }
}
