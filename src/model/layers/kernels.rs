//! Which operations the layers run on.

use candle_core::{DType, Result};

use crate::config::Dtype;
use crate::memory::ShapeKind;
use crate::ops::{Matrix, framework};

/// Which operations the layers run on. Results are the same within the dtype's precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernels {
    /// Those of `ops`, written for the device. Activations are f32.
    Fused,
    /// The framework's, in f32 and as plain as they can be: slow, and independent of ours. What the others are tested
    /// against.
    Plain,
    /// The framework's as they are meant to be used: padded rows, activations in the model's dtype. What a card runs in
    /// dtypes that ours do not know.
    Framework,
    /// Those of `ops` for a card: rows laid end to end, activations in f16 or bf16.
    Card,
}

impl Kernels {
    /// The form of an encoder's steps that they are best at.
    pub(crate) const fn steps(self) -> ShapeKind {
        match self {
            Kernels::Fused | Kernels::Plain | Kernels::Card => ShapeKind::Ragged,
            Kernels::Framework => ShapeKind::Padded,
        }
    }

    /// Whether they are those of a kind of device and run nowhere else.
    pub(crate) const fn are_of_a_device(self) -> bool {
        matches!(self, Kernels::Framework | Kernels::Card)
    }

    /// What activations are held as, and with them biases and norms.
    pub(crate) const fn activations(self, dtype: Dtype) -> DType {
        match self {
            Kernels::Fused | Kernels::Plain => DType::F32,
            Kernels::Framework | Kernels::Card => framework::activations(dtype),
        }
    }

    /// What the matrices of layers are held as. Where nothing multiplies codes with codes, int8 is q8_0: weights of 8 bits,
    /// arithmetic of more.
    pub(crate) const fn layers(self, dtype: Dtype) -> Dtype {
        match (self, dtype) {
            (Kernels::Fused | Kernels::Framework, Dtype::Int8) => Dtype::Q8,
            (_, dtype) => dtype,
        }
    }

    /// What tables of embeddings and the matrices of heads are held as: nothing multiplies those as codes.
    pub(crate) const fn elsewhere(self, dtype: Dtype) -> Dtype {
        match self.layers(dtype) {
            Dtype::Int8 | Dtype::Fp8 => Dtype::F16,
            other => other,
        }
    }

    /// What the cosines and sines of rotations are held as. The framework takes no others than its activations'.
    pub(crate) const fn rotations(self, dtype: Dtype) -> DType {
        match self {
            Kernels::Fused | Kernels::Plain | Kernels::Card => DType::F32,
            Kernels::Framework => self.activations(dtype),
        }
    }

    /// A linear layer's matrix as these operations read it fastest.
    pub(crate) fn lay_out(self, matrix: Matrix) -> Result<Matrix> {
        match self {
            Kernels::Fused => matrix.into_panels(),
            Kernels::Plain | Kernels::Framework | Kernels::Card => Ok(matrix),
        }
    }
}
