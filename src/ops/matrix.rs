//! A matrix of weights in the form in which the device holds it.

use candle_core::{DType, Device, Result, Tensor};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::q8::{self, BLOCK, BLOCK_BYTES};
use super::{host, panels};
use crate::config::Dtype;

/// `rows` x `columns` weights, row-major; a row is an output of a linear layer, or a piece of a vocabulary.
#[derive(Clone, Debug)]
pub(crate) struct Matrix {
    /// f32, f16 or bf16 of shape (rows, columns); or u8 of shape (rows, bytes of a row's Q8_0 blocks).
    data: Tensor,
    rows: usize,
    columns: usize,
    /// Whether the elements lie in panels instead of in rows; only f32 does.
    in_panels: bool,
}

impl Matrix {
    /// The same weights, laid out for [`linear`](super::linear) in the same memory; rows can no longer be read one by
    /// one. A matrix that is not held as f32, or whose rows do not fill whole panels, stays as it is.
    pub(crate) fn into_panels(self) -> Result<Matrix> {
        if !self.is_f32() || self.in_panels || !self.rows.is_multiple_of(panels::PANEL) {
            return Ok(self);
        }
        host::write(&self.data, |data| panels::pack(data, self.columns))?;
        Ok(Matrix { in_panels: true, ..self })
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// Whether the weights are held as they are computed with.
    pub(crate) fn is_f32(&self) -> bool {
        self.data.dtype() == DType::F32
    }

    /// Whether [`Matrix::into_panels`] laid the weights out.
    pub(crate) fn is_in_panels(&self) -> bool {
        self.in_panels
    }

    /// Bytes that `elements` weights take in the form `dtype`.
    pub(crate) fn bytes(dtype: Dtype, elements: u64) -> u64 {
        match dtype {
            Dtype::F32 => elements.saturating_mul(4),
            Dtype::F16 | Dtype::Bf16 => elements.saturating_mul(2),
            Dtype::Int8 => elements.div_ceil(BLOCK as u64).saturating_mul(BLOCK_BYTES as u64),
        }
    }

    /// The whole matrix as f32, shape (rows, columns): for the plain versions of the operations.
    pub(crate) fn to_f32(&self) -> Result<Tensor> {
        if self.in_panels {
            let rows = self.data.copy()?;
            host::write(&rows, |rows| panels::unpack(rows, self.columns))?;
            return Ok(rows);
        }
        if self.data.dtype() != DType::U8 {
            return self.data.to_dtype(DType::F32);
        }
        let mut values = vec![0f32; self.rows * self.columns];
        self.view(|view| view.decode_rows(0, &mut values))?;
        Tensor::from_vec(values, (self.rows, self.columns), self.data.device())
    }

    /// Calls `read` with the weights of a matrix on the host.
    pub(crate) fn view<T>(&self, read: impl FnOnce(View<'_>) -> T) -> Result<T> {
        let columns = self.columns;
        match self.data.dtype() {
            DType::F32 if self.in_panels => {
                host::read(&self.data, |data| read(View { data: Data::Panels(data), columns }))
            }
            DType::F32 => host::read(&self.data, |data| read(View { data: Data::F32(data), columns })),
            DType::F16 => host::read(&self.data, |data| read(View { data: Data::F16(data), columns })),
            DType::BF16 => host::read(&self.data, |data| read(View { data: Data::Bf16(data), columns })),
            _ => host::read(&self.data, |data| read(View { data: Data::Q8(data), columns })),
        }
    }
}

/// The weights of a [`Matrix`], readable.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) data: Data<'a>,
    columns: usize,
}

/// By form.
#[derive(Clone, Copy)]
pub(crate) enum Data<'a> {
    F32(&'a [f32]),
    /// f32 in [`panels`].
    Panels(&'a [f32]),
    F16(&'a [f16]),
    Bf16(&'a [bf16]),
    Q8(&'a [u8]),
}

impl View<'_> {
    /// Whole rows from `first` on, as many as fill `values`, as f32.
    pub(crate) fn decode_rows(&self, first: usize, values: &mut [f32]) {
        let elements = first * self.columns..first * self.columns + values.len();
        match self.data {
            Data::F32(data) => values.copy_from_slice(&data[elements]),
            Data::Panels(_) => unreachable!("only linear layers are laid out in panels, and they read them whole"),
            Data::F16(data) => data[elements].convert_to_f32_slice(values),
            Data::Bf16(data) => data[elements].convert_to_f32_slice(values),
            Data::Q8(data) => {
                let blocks = elements.start / BLOCK * BLOCK_BYTES..elements.end / BLOCK * BLOCK_BYTES;
                q8::decode(&data[blocks], values);
            }
        }
    }

    /// Adds row `row` to `sum`.
    pub(crate) fn add_row(&self, row: usize, sum: &mut [f32]) {
        let elements = row * self.columns..(row + 1) * self.columns;
        match self.data {
            Data::F32(data) => sum.iter_mut().zip(&data[elements]).for_each(|(sum, value)| *sum += value),
            Data::Panels(_) => unreachable!("only linear layers are laid out in panels, and they read them whole"),
            Data::F16(data) => sum.iter_mut().zip(&data[elements]).for_each(|(sum, value)| *sum += value.to_f32()),
            Data::Bf16(data) => sum.iter_mut().zip(&data[elements]).for_each(|(sum, value)| *sum += value.to_f32()),
            Data::Q8(data) => {
                let blocks = elements.start / BLOCK * BLOCK_BYTES..elements.end / BLOCK * BLOCK_BYTES;
                for (block, sum) in data[blocks].chunks_exact(BLOCK_BYTES).zip(sum.chunks_exact_mut(BLOCK)) {
                    let scale = f16::from_le_bytes([block[0], block[1]]).to_f32();
                    for (sum, byte) in sum.iter_mut().zip(&block[2..]) {
                        *sum += f32::from(*byte as i8) * scale;
                    }
                }
            }
        }
    }
}

/// Why a value cannot be held in the form that the configuration asks for.
pub(crate) struct Unrepresentable {
    pub(crate) found: String,
    pub(crate) allowed: &'static str,
}

/// Collects a matrix in its final form, piece by piece: nothing but the matrix itself grows.
pub(crate) struct MatrixBuilder {
    data: Growing,
    rows: usize,
    columns: usize,
}

enum Growing {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
    Q8(Vec<u8>),
}

impl MatrixBuilder {
    /// For int8, `columns` is a multiple of 32; the caller has checked it where it can name the place.
    pub(crate) fn new(dtype: Dtype, rows: usize, columns: usize) -> MatrixBuilder {
        let elements = rows * columns;
        let data = match dtype {
            Dtype::F32 => Growing::F32(Vec::with_capacity(elements)),
            Dtype::F16 => Growing::F16(Vec::with_capacity(elements)),
            Dtype::Bf16 => Growing::Bf16(Vec::with_capacity(elements)),
            Dtype::Int8 => Growing::Q8(Vec::with_capacity(elements / BLOCK * BLOCK_BYTES)),
        };
        MatrixBuilder { data, rows, columns }
    }

    /// Appends values, for int8 a multiple of 32.
    pub(crate) fn push(&mut self, values: &[f32]) -> std::result::Result<(), Unrepresentable> {
        let too_large = |largest: f32| Unrepresentable {
            found: format!("weights up to {largest}, which the dtype cannot hold"),
            allowed: "dtype bf16 or f32 for this model",
        };
        let largest = || values.iter().fold(0f32, |largest, value| largest.max(value.abs()));
        match &mut self.data {
            Growing::F32(data) => data.extend_from_slice(values),
            Growing::Bf16(data) => data.extend(values.iter().map(|value| bf16::from_f32(*value))),
            Growing::F16(data) => {
                let from = data.len();
                data.resize(from + values.len(), f16::ZERO);
                data[from..].convert_from_f32_slice(values);
                if largest() > f16::MAX.to_f32() {
                    return Err(too_large(largest()));
                }
            }
            Growing::Q8(data) => {
                if !q8::encode(values, data) {
                    return Err(too_large(largest()));
                }
            }
        }
        Ok(())
    }

    /// Appends ready blocks to a matrix in int8.
    pub(crate) fn push_blocks(&mut self, blocks: &[u8]) {
        match &mut self.data {
            Growing::Q8(data) => data.extend_from_slice(blocks),
            _ => unreachable!("only called for int8"),
        }
    }

    pub(crate) fn finish(self, device: &Device) -> Result<Matrix> {
        let MatrixBuilder { data, rows, columns } = self;
        let data = match data {
            Growing::F32(data) => Tensor::from_vec(data, (rows, columns), device)?,
            Growing::F16(data) => Tensor::from_vec(data, (rows, columns), device)?,
            Growing::Bf16(data) => Tensor::from_vec(data, (rows, columns), device)?,
            Growing::Q8(data) => Tensor::from_vec(data, (rows, columns / BLOCK * BLOCK_BYTES), device)?,
        };
        Ok(Matrix { data, rows, columns, in_panels: false })
    }
}
