//! Reading tensors in pieces: no tensor is ever in memory twice.

use candle_core::{Device, Tensor};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::{Encoding, Stored, Weights};
use crate::config::Dtype;
use crate::model::error::ModelError;
use crate::ops::{Matrix, MatrixBuilder, q8};

/// How much is read and converted at a time. Larger gains nothing on a local disk; it is the whole transient of a load.
const PIECE_BYTES: usize = 1 << 20;

/// Reads tensors of a model onto a device.
pub(crate) struct Reader<'a> {
    pub(crate) weights: &'a Weights,
    pub(crate) device: &'a Device,
}

impl Reader<'_> {
    /// The most that reading holds at a time: a piece as stored, realigned, and as f32.
    pub(crate) const TRANSIENT_BYTES: usize = 4 * PIECE_BYTES;

    /// A vector, always held as f32.
    pub(crate) fn vector(&self, name: &str, len: usize) -> Result<Tensor, ModelError> {
        let stored = self.weights.expect(name, &[len])?;
        let mut values = Vec::with_capacity(len);
        self.pieces(name, stored, len, |piece| {
            values.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(Tensor::from_vec(values, len, self.device)?)
    }

    /// Vectors end to end, in f32.
    pub(crate) fn vectors(&self, names: &[impl AsRef<str>], len: usize) -> Result<Tensor, ModelError> {
        let parts = names.iter().map(|name| self.vector(name.as_ref(), len)).collect::<Result<Vec<_>, _>>()?;
        Ok(Tensor::cat(&parts, 0)?)
    }

    /// A matrix in the form `dtype`.
    pub(crate) fn matrix(&self, name: &str, shape: [usize; 2], dtype: Dtype) -> Result<Matrix, ModelError> {
        self.matrices(&[name], shape, dtype)
    }

    /// Matrices of one shape, their rows end to end, in the form `dtype`.
    pub(crate) fn matrices(
        &self,
        names: &[impl AsRef<str>],
        shape: [usize; 2],
        dtype: Dtype,
    ) -> Result<Matrix, ModelError> {
        let [rows, columns] = shape;
        let mut builder = MatrixBuilder::new(dtype, rows * names.len(), columns);
        for name in names.iter().map(AsRef::as_ref) {
            let stored = self.weights.expect(name, &shape)?;
            if stored.encoding == Encoding::Q8 && dtype == Dtype::Int8 {
                // The blocks are what the matrix holds: quantizing again would lose a little more.
                self.raw_pieces(stored, rows * columns, |bytes, _| builder.push_blocks(bytes))
                    .map_err(|error| ModelError::unreadable(self.weights.place(name), error))?;
                continue;
            }
            self.pieces(name, stored, rows * columns, |piece| {
                builder
                    .push(piece)
                    .map_err(|error| ModelError::invalid(self.weights.place(name), error.found, error.allowed))
            })?;
        }
        Ok(builder.finish(self.device)?)
    }

    /// Calls `sink` with the tensor's values in order. Every piece is a whole number of blocks.
    fn pieces(
        &self,
        name: &str,
        stored: &Stored,
        elements: usize,
        mut sink: impl FnMut(&[f32]) -> Result<(), ModelError>,
    ) -> Result<(), ModelError> {
        let mut values = vec![0f32; elements.min(PIECE_BYTES / 2)];
        let mut result = Ok(());
        self.raw_pieces(stored, elements, |bytes, count| {
            let values = &mut values[..count];
            decode(stored.encoding, bytes, values);
            if result.is_ok() {
                result = match values.iter().find(|value| !value.is_finite()) {
                    Some(value) => Err(ModelError::invalid(self.weights.place(name), value, "finite values")),
                    None => sink(values),
                };
            }
        })
        .map_err(|error| ModelError::unreadable(self.weights.place(name), error))?;
        result
    }

    fn raw_pieces(
        &self,
        stored: &Stored,
        elements: usize,
        mut sink: impl FnMut(&[u8], usize),
    ) -> Result<(), std::io::Error> {
        let source = self.weights.source(stored);
        let bytes_of = |elements: usize| {
            let bytes = stored.encoding.bytes(elements as u64);
            bytes.expect("the header's reader refused what has no whole number of blocks") as usize
        };
        // Half a piece of elements is at most a piece as f16 and two as f32; and a multiple of every block.
        let step = elements.min(PIECE_BYTES / 2);
        let mut buffer = vec![0; bytes_of(step).max(1)];
        let (mut done, mut offset) = (0, stored.offset);
        while done < elements {
            let count = step.min(elements - done);
            let bytes = &mut buffer[..bytes_of(count)];
            source.read_at(bytes, offset)?;
            sink(bytes, count);
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
