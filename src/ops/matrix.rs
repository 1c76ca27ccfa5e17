//! A matrix of weights in the form in which the device holds it.

use std::borrow::Cow;
use std::sync::Arc;

use candle_core::quantized::{GgmlDType, QMatMul, QStorage, QTensor};
use candle_core::{DType, Device, Result, Tensor, bail};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::eight_bit::EightBit;
use super::q8::{self, BLOCK, BLOCK_BYTES};
use super::{host, panels};
use crate::config::Dtype;

/// `rows` x `columns` weights, row-major; a row is an output of a linear layer, or a piece of a vocabulary.
#[derive(Clone, Debug)]
pub(crate) struct Matrix {
    held: Held,
    rows: usize,
    columns: usize,
}

/// The weights of a [`Matrix`] on its device.
#[derive(Clone, Debug)]
pub(crate) enum Held {
    /// f32, f16 or bf16 of shape (rows, columns).
    Rows(Tensor),
    /// f32 of the same shape whose elements lie in panels.
    Panels(Tensor),
    /// u8 of shape (rows, bytes of a row's Q8_0 blocks).
    Blocks(Tensor),
    /// The same blocks in the framework's hands.
    Quantized(QMatMul),
    /// u8 of shape (rows, columns): 8 bits a weight, to be multiplied with activations in the same form. f32 of shape
    /// (rows): what a row's codes are multiplied by.
    Codes { form: EightBit, codes: Tensor, scales: Tensor },
}

impl Matrix {
    /// The same weights, laid out for [`linear`](super::linear) in the same memory; rows can no longer be read one by
    /// one. A matrix that is not held as f32, or whose rows do not fill whole panels, stays as it is.
    pub(crate) fn into_panels(self) -> Result<Matrix> {
        match self.held {
            Held::Rows(data) if data.dtype() == DType::F32 && self.rows.is_multiple_of(panels::PANEL) => {
                host::write(&data, |data| panels::pack(data, self.columns))?;
                Ok(Matrix { held: Held::Panels(data), ..self })
            }
            held => Ok(Matrix { held, ..self }),
        }
    }

    /// The weights as they are.
    pub(crate) fn held(&self) -> &Held {
        &self.held
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// Whether the weights are held as they are computed with.
    pub(crate) fn is_f32(&self) -> bool {
        matches!(&self.held, Held::Rows(data) | Held::Panels(data) if data.dtype() == DType::F32)
    }

    /// The form of its codes, if it is held as codes.
    #[cfg(feature = "cuda")]
    pub(crate) fn eight_bit(&self) -> Option<EightBit> {
        match self.held {
            Held::Codes { form, .. } => Some(form),
            _ => None,
        }
    }

    /// Whether [`Matrix::into_panels`] laid the weights out.
    pub(crate) fn is_in_panels(&self) -> bool {
        matches!(self.held, Held::Panels(_))
    }

    /// Bytes that a matrix takes in the form `dtype`, as [`MatrixBuilder`] makes it.
    pub(crate) fn bytes(dtype: Dtype, [rows, columns]: [usize; 2]) -> u64 {
        let (rows, elements) = (rows as u64, (rows as u64).saturating_mul(columns as u64));
        match dtype {
            Dtype::F32 => elements.saturating_mul(4),
            Dtype::F16 | Dtype::Bf16 => elements.saturating_mul(2),
            Dtype::Q8 => elements.div_ceil(BLOCK as u64).saturating_mul(BLOCK_BYTES as u64),
            Dtype::Int8 | Dtype::Fp8 => elements.saturating_add(rows.saturating_mul(4)),
        }
    }

    /// The whole matrix as f32, shape (rows, columns): for the plain versions of the operations.
    pub(crate) fn to_f32(&self) -> Result<Tensor> {
        match &self.held {
            Held::Rows(data) => data.to_dtype(DType::F32),
            Held::Panels(data) => {
                let rows = data.copy()?;
                host::write(&rows, |rows| panels::unpack(rows, self.columns))?;
                Ok(rows)
            }
            Held::Blocks(data) => {
                let mut values = vec![0f32; self.rows * self.columns];
                self.view(|view| view.decode_rows(0, &mut values))?;
                Tensor::from_vec(values, (self.rows, self.columns), data.device())
            }
            Held::Codes { form, codes, scales } => {
                let host = |tensor: &Tensor| tensor.to_device(&Device::Cpu);
                form.dequantize(&host(codes)?, &host(scales)?)?.to_device(codes.device())
            }
            Held::Quantized(QMatMul::QTensor(data)) => data.dequantize(&data.device()),
            Held::Quantized(QMatMul::Tensor(data) | QMatMul::TensorF16(data)) => data.to_dtype(DType::F32),
        }
    }

    /// Calls `read` with the weights of a matrix on the host.
    pub(crate) fn view<T>(&self, read: impl FnOnce(View<'_>) -> T) -> Result<T> {
        let columns = self.columns;
        match &self.held {
            Held::Panels(data) => host::read(data, |data| read(View { data: Data::Panels(data), columns })),
            Held::Blocks(data) => host::read(data, |data| read(View { data: Data::Q8(data), columns })),
            Held::Rows(data) => match data.dtype() {
                DType::F32 => host::read(data, |data| read(View { data: Data::F32(data), columns })),
                DType::F16 => host::read(data, |data| read(View { data: Data::F16(data), columns })),
                _ => host::read(data, |data| read(View { data: Data::Bf16(data), columns })),
            },
            Held::Quantized(_) => bail!("the framework's quantized matrices cannot be read in place"),
            Held::Codes { .. } => bail!("a matrix of codes is multiplied with codes, not read"),
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

/// The bits of exponents, all of which are set in what is not finite.
const F16_EXPONENT: u16 = 0x7c00;
const BF16_EXPONENT: u16 = 0x7f80;

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
    Codes {
        form: EightBit,
        /// Of the rows that are complete.
        codes: Vec<u8>,
        scales: Vec<f32>,
        /// The beginning of the next row.
        row: Vec<f32>,
    },
}

impl MatrixBuilder {
    /// The form that `dtype` names: q8_0 in blocks of 32, int8 and fp8 as codes with a scale for each row. For q8_0,
    /// `columns` is a multiple of 32; the caller has checked it where it can name the place.
    pub(crate) fn new(dtype: Dtype, rows: usize, columns: usize) -> MatrixBuilder {
        let elements = rows * columns;
        let codes = |form| Growing::Codes {
            form,
            codes: Vec::with_capacity(elements),
            scales: Vec::with_capacity(rows),
            row: Vec::with_capacity(columns),
        };
        let data = match dtype {
            Dtype::F32 => Growing::F32(Vec::with_capacity(elements)),
            Dtype::F16 => Growing::F16(Vec::with_capacity(elements)),
            Dtype::Bf16 => Growing::Bf16(Vec::with_capacity(elements)),
            Dtype::Q8 => Growing::Q8(Vec::with_capacity(elements / BLOCK * BLOCK_BYTES)),
            Dtype::Int8 => codes(EightBit::Int8),
            Dtype::Fp8 => codes(EightBit::Fp8),
        };
        MatrixBuilder { data, rows, columns }
    }

    /// Appends values, for q8_0 a multiple of 32.
    pub(crate) fn push(&mut self, values: &[f32]) -> std::result::Result<(), Unrepresentable> {
        let too_large = |largest: f32| Unrepresentable {
            found: format!("weights up to {largest}, which the dtype cannot hold"),
            allowed: "dtype bf16 or f32 for this model",
        };
        let largest = || values.iter().fold(0f32, |largest, value| largest.max(value.abs()));
        // Many at once, where the largest takes one after the other.
        let exceeds = || values.iter().fold(false, |any, value| any | (value.abs() > f16::MAX.to_f32()));
        match &mut self.data {
            Growing::F32(data) => data.extend_from_slice(values),
            Growing::Bf16(data) => data.extend(values.iter().map(|value| bf16::from_f32(*value))),
            Growing::F16(data) => {
                let from = data.len();
                data.resize(from + values.len(), f16::ZERO);
                data[from..].convert_from_f32_slice(values);
                if exceeds() {
                    return Err(too_large(largest()));
                }
            }
            Growing::Q8(data) => {
                if !q8::encode(values, data) {
                    return Err(too_large(largest()));
                }
            }
            Growing::Codes { form, codes, scales, row } => {
                // The codes could say more; the products, which are f16, could not.
                if exceeds() {
                    return Err(too_large(largest()));
                }
                let mut rest = values;
                while !rest.is_empty() {
                    let (now, later) = rest.split_at(rest.len().min(self.columns - row.len()));
                    row.extend_from_slice(now);
                    rest = later;
                    if row.len() == self.columns {
                        scales.push(form.quantize_weights(row, codes));
                        row.clear();
                    }
                }
            }
        }
        Ok(())
    }

    /// Appends values as they are stored, two bytes each, to a matrix in the same form: f16 or bf16.
    ///
    /// # Errors
    /// The first value that is not finite; what comes of the matrix then is nobody's business.
    pub(crate) fn push_halves(&mut self, stored: &[u8]) -> std::result::Result<(), f32> {
        let bits = || stored.chunks_exact(2).map(|half| u16::from_le_bytes([half[0], half[1]]));
        let no_number = |exponent: u16| {
            // Without an end before the last, so that many are looked at at once.
            let are_finite = bits().fold(true, |all, bits| all & (bits & exponent != exponent));
            if are_finite { None } else { bits().find(|bits| bits & exponent == exponent) }
        };
        match &mut self.data {
            Growing::F16(data) => match no_number(F16_EXPONENT) {
                Some(bits) => return Err(f16::from_bits(bits).to_f32()),
                None => data.extend(bits().map(f16::from_bits)),
            },
            Growing::Bf16(data) => match no_number(BF16_EXPONENT) {
                Some(bits) => return Err(bf16::from_bits(bits).to_f32()),
                None => data.extend(bits().map(bf16::from_bits)),
            },
            _ => unreachable!("only called for f16 and bf16"),
        }
        Ok(())
    }

    /// Appends ready blocks to a matrix in q8_0.
    pub(crate) fn push_blocks(&mut self, blocks: &[u8]) {
        match &mut self.data {
            Growing::Q8(data) => data.extend_from_slice(blocks),
            _ => unreachable!("only called for q8_0"),
        }
    }

    /// The matrix on `device`, for operations of ours.
    pub(crate) fn finish(self, device: &Device) -> Result<Matrix> {
        let MatrixBuilder { data, rows, columns } = self;
        let held = match data {
            Growing::F32(data) => Held::Rows(Tensor::from_vec(data, (rows, columns), device)?),
            Growing::F16(data) => Held::Rows(Tensor::from_vec(data, (rows, columns), device)?),
            Growing::Bf16(data) => Held::Rows(Tensor::from_vec(data, (rows, columns), device)?),
            Growing::Q8(data) => Held::Blocks(Tensor::from_vec(data, (rows, columns / BLOCK * BLOCK_BYTES), device)?),
            Growing::Codes { form, codes, scales, .. } => Held::Codes {
                form,
                codes: Tensor::from_vec(codes, (rows, columns), device)?,
                scales: Tensor::from_vec(scales, rows, device)?,
            },
        };
        Ok(Matrix { held, rows, columns })
    }

    /// The matrix on `device`, for the framework's operations: the bytes go there once, as they are.
    pub(crate) fn finish_for_framework(self, device: &Device) -> Result<Matrix> {
        let MatrixBuilder { data, rows, columns } = self;
        let Growing::Q8(blocks) = data else { return MatrixBuilder { data, rows, columns }.finish(device) };
        let storage = QStorage::from_data(Cow::Owned(blocks), device, GgmlDType::Q8_0)?;
        // Named, so that no environment variable has the framework decode the matrix after all.
        let product = QMatMul::QTensor(Arc::new(QTensor::new(storage, (rows, columns))?));
        Ok(Matrix { held: Held::Quantized(product), rows, columns })
    }
}
