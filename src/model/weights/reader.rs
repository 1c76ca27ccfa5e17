//! Reading tensors in pieces: no tensor is ever in memory twice.

use std::ops::Range;

use candle_core::{DType, Device, Tensor};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::{Encoding, Stored, Weights};
use crate::config::Dtype;
use crate::model::error::ModelError;
use crate::model::layers::Kernels;
use crate::ops::{Matrix, MatrixBuilder, q8};

/// How much is read and converted at a time. Larger gains nothing on a local disk; it is the whole transient of a load.
const PIECE_BYTES: usize = 1 << 20;

/// One of several equal parts of what a file holds as one tensor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) index: usize,
    pub(crate) of: usize,
}

impl Part {
    const WHOLE: Part = Part { index: 0, of: 1 };

    /// The elements of this part, if each has `each`.
    fn elements(self, each: usize) -> Range<usize> {
        self.index * each..(self.index + 1) * each
    }
}

/// Reads tensors of a model onto a device, one at a time: a tensor is put together on the host in its final form, then
/// copied to a device that is not the host.
pub(crate) struct Reader<'a> {
    pub(crate) weights: &'a Weights,
    pub(crate) device: &'a Device,
    /// As configured: what computes decides how matrices are held in it.
    pub(crate) dtype: Dtype,
    /// What computes with them.
    pub(crate) kernels: Kernels,
}

impl Reader<'_> {
    /// The most that reading holds at a time beside the tensor itself: a piece as stored, realigned, and as f32.
    pub(crate) const TRANSIENT_BYTES: usize = 4 * PIECE_BYTES;

    /// A vector, in the activations' dtype.
    pub(crate) fn vector(&self, name: &str, len: usize) -> Result<Tensor, ModelError> {
        self.vectors(&[name], len)
    }

    /// Vectors end to end.
    pub(crate) fn vectors(&self, names: &[impl AsRef<str>], len: usize) -> Result<Tensor, ModelError> {
        self.parts_of_vectors(names, len, Part::WHOLE)
    }

    /// Part of a vector, `len` of its values.
    pub(crate) fn vector_part(&self, name: &str, len: usize, part: Part) -> Result<Tensor, ModelError> {
        self.parts_of_vectors(&[name], len, part)
    }

    fn parts_of_vectors(&self, names: &[impl AsRef<str>], len: usize, part: Part) -> Result<Tensor, ModelError> {
        let held = self.kernels.activations(self.dtype);
        let mut values = Vec::with_capacity(len * names.len());
        for name in names.iter().map(AsRef::as_ref) {
            let stored = self.expect(name, &[part.of * len], part, len)?;
            self.pieces(name, stored, part.elements(len), |piece| {
                let largest = piece.iter().fold(0f32, |largest, value| largest.max(value.abs()));
                if held == DType::F16 && largest > f16::MAX.to_f32() {
                    let found = format!("values up to {largest}, which f16 cannot hold");
                    return Err(ModelError::invalid(
                        self.weights.place(name),
                        found,
                        "dtype bf16 or f32 for this model",
                    ));
                }
                values.extend_from_slice(piece);
                Ok(())
            })?;
        }
        let len = values.len();
        Ok(Tensor::from_vec(values, len, &Device::Cpu)?.to_dtype(held)?.to_device(self.device)?)
    }

    /// The tensor `name` of this shape, of which a part has `each` values.
    fn expect(&self, name: &str, shape: &[usize], part: Part, each: usize) -> Result<&Stored, ModelError> {
        let stored = self.weights.expect(name, shape)?;
        // The header's reader has seen to whole blocks in the whole tensor: a vector's half may end inside of one.
        if stored.encoding.bytes(each as u64).is_none() {
            let found = format!("blocks of 32 values, where each of {} parts has {each}", part.of);
            return Err(ModelError::invalid(self.weights.place(name), found, "F32, F16 or BF16"));
        }
        Ok(stored)
    }

    /// A table of embeddings, or a matrix of a head.
    pub(crate) fn table(&self, name: &str, shape: [usize; 2]) -> Result<Matrix, ModelError> {
        self.held_as(self.kernels.elsewhere(self.dtype), &[name], shape, Part::WHOLE)
    }

    /// A layer's matrix.
    pub(crate) fn matrix(&self, name: &str, shape: [usize; 2]) -> Result<Matrix, ModelError> {
        self.matrices(&[name], shape)
    }

    /// A layer's matrices of one shape, their rows end to end.
    pub(crate) fn matrices(&self, names: &[impl AsRef<str>], shape: [usize; 2]) -> Result<Matrix, ModelError> {
        self.held_as(self.kernels.layers(self.dtype), names, shape, Part::WHOLE)
    }

    /// Part of a layer's matrix, rows of it that are `shape`.
    pub(crate) fn matrix_part(&self, name: &str, shape: [usize; 2], part: Part) -> Result<Matrix, ModelError> {
        self.held_as(self.kernels.layers(self.dtype), &[name], shape, part)
    }

    fn held_as(
        &self,
        dtype: Dtype,
        names: &[impl AsRef<str>],
        [rows, columns]: [usize; 2],
        part: Part,
    ) -> Result<Matrix, ModelError> {
        let mut builder = MatrixBuilder::new(dtype, rows * names.len(), columns);
        for name in names.iter().map(AsRef::as_ref) {
            let stored = self.expect(name, &[part.of * rows, columns], part, rows * columns)?;
            let elements = part.elements(rows * columns);
            match (stored.encoding, dtype) {
                // The blocks are what the matrix holds: quantizing again would lose a little more.
                (Encoding::Q8, Dtype::Q8) => self.raw_pieces(name, stored, elements, |bytes, _| {
                    builder.push_blocks(bytes);
                    Ok(())
                })?,
                (Encoding::F16, Dtype::F16) | (Encoding::Bf16, Dtype::Bf16) => {
                    self.raw_pieces(name, stored, elements, |bytes, _| {
                        builder.push_halves(bytes).map_err(|value| self.not_finite(name, value))
                    })?;
                }
                _ => self.pieces(name, stored, elements, |piece| {
                    builder
                        .push(piece)
                        .map_err(|error| ModelError::invalid(self.weights.place(name), error.found, error.allowed))
                })?,
            }
        }
        self.finish(builder)
    }

    fn finish(&self, builder: MatrixBuilder) -> Result<Matrix, ModelError> {
        Ok(match self.kernels {
            Kernels::Fused | Kernels::Plain | Kernels::Card => builder.finish(self.device)?,
            Kernels::Framework => builder.finish_for_framework(self.device)?,
        })
    }

    /// Calls `sink` with these of the tensor's values in order. Every piece is a whole number of blocks.
    fn pieces(
        &self,
        name: &str,
        stored: &Stored,
        elements: Range<usize>,
        mut sink: impl FnMut(&[f32]) -> Result<(), ModelError>,
    ) -> Result<(), ModelError> {
        let mut values = vec![0f32; elements.len().min(PIECE_BYTES / 2)];
        self.raw_pieces(name, stored, elements, |bytes, count| {
            let values = &mut values[..count];
            decode(stored.encoding, bytes, values);
            // Many at once, where looking for the first takes one after the other.
            match values.iter().fold(true, |all, value| all & value.is_finite()) {
                true => sink(values),
                false => Err(self.not_finite(name, *values.iter().find(|v| !v.is_finite()).unwrap_or(&f32::NAN))),
            }
        })
    }

    fn not_finite(&self, name: &str, value: f32) -> ModelError {
        ModelError::invalid(self.weights.place(name), value, "finite values")
    }

    /// The same as they are stored, with the number of values of each piece.
    fn raw_pieces(
        &self,
        name: &str,
        stored: &Stored,
        elements: Range<usize>,
        mut sink: impl FnMut(&[u8], usize) -> Result<(), ModelError>,
    ) -> Result<(), ModelError> {
        let source = self.weights.source(stored);
        let bytes_of = |elements: usize| {
            let bytes = stored.encoding.bytes(elements as u64);
            bytes.expect("`expect` refused what has no whole number of blocks") as usize
        };
        // Half a piece of elements is at most a piece as f16 and two as f32; and a multiple of every block.
        let step = elements.len().min(PIECE_BYTES / 2);
        let mut buffer = vec![0; bytes_of(step).max(1)];
        let (mut done, mut offset) = (0, stored.offset + bytes_of(elements.start) as u64);
        while done < elements.len() {
            let count = step.min(elements.len() - done);
            let bytes = &mut buffer[..bytes_of(count)];
            source.read_at(bytes, offset).map_err(|error| ModelError::unreadable(self.weights.place(name), error))?;
            sink(bytes, count)?;
            done += count;
            offset += bytes.len() as u64;
        }
        Ok(())
    }
}

fn decode(encoding: Encoding, bytes: &[u8], values: &mut [f32]) {
    let bits = bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
    match encoding {
        Encoding::F32 => {
            for (value, four) in values.iter_mut().zip(bytes.chunks_exact(4)) {
                *value = f32::from_le_bytes([four[0], four[1], four[2], four[3]]);
            }
        }
        Encoding::F16 => bits.map(f16::from_bits).collect::<Vec<_>>().convert_to_f32_slice(values),
        Encoding::Bf16 => bits.map(bf16::from_bits).collect::<Vec<_>>().convert_to_f32_slice(values),
        Encoding::Q8 => q8::decode(bytes, values),
        Encoding::Other(_) => unreachable!("Weights::expect refuses what cannot be decoded"),
    }
}
