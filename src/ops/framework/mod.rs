//! The operations of an encoder as lean as the framework's own allow: for a device that has none of ours.
//!
//! Activations have the model's dtype and the shape (rows * length, width): rows are padded, since the framework's
//! attention knows no others. What these operations are careful about on CUDA:
//! - A launch over something that is not contiguous uploads its strides first: a small allocation and a copy. A layer
//!   has six such launches: one for each of its four biases, one that sorts queries, keys and values by head, and one
//!   that puts the heads back together.
//! - Nothing is as large as the scores (rows * heads * length^2) but the scores and their softmax: the mask of padding
//!   travels inside the product that makes them. That of a window cannot, and is added where a row is longer than that.
//! - Kernels index with 32 bits: the model's axes keep every tensor below [`ELEMENTS_MAX`].

mod padding;
mod embed;
mod linear;
mod attention;
mod norm;
mod pool;

pub(crate) use attention::{attention, score_elements_per_token};
pub(crate) use embed::embed;
pub(crate) use linear::{linear, linear_activated, linear_biased};
pub(crate) use norm::{add_norm, normalize};
pub(crate) use padding::Padding;
pub(crate) use pool::pool;

use candle_core::DType;

use crate::config::Dtype;

/// Most elements of a tensor: kernels of the framework hold an element's index as a signed number of 32 bits.
pub(crate) const ELEMENTS_MAX: u64 = i32::MAX as u64;

/// What activations are held as for weights of this form. 8-bit forms have f16: their products are computed from 8 bits
/// of the activations in any case, which f16 tells apart as well as f32 does, and everything between the products,
/// the scores above all, takes half the memory and half the time. With q8_0 it costs a conversion on both sides of every
/// product of more than 8 rows, which the framework computes through f32.
pub(crate) const fn activations(dtype: Dtype) -> DType {
    match dtype {
        Dtype::F32 => DType::F32,
        Dtype::F16 | Dtype::Q8 | Dtype::Int8 | Dtype::Fp8 => DType::F16,
        Dtype::Bf16 => DType::BF16,
    }
}

/// Rows of a quantized product up to which the framework takes another way through: no conversions, less memory.
pub(crate) const QUANTIZED_SWITCH: u32 = 8;
