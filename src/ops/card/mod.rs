//! The operations of an encoder on a card: kernels of `kernels/` and products through cublasLt, over ragged rows.
//!
//! Activations have the model's dtype, f16 or bf16, and the shape (tokens, width): the rows end to end, nothing between
//! them. All memory is set aside by the step before the first operation; an operation checks shapes, dtypes and places,
//! and queues its kernel on the card's one stream. The specification of each is the operation of the same name on the
//! CPU, and what says that they agree is the tests that run on a card.

#[cfg(any(feature = "cuda", test))]
mod tiles;
#[cfg(feature = "cuda")]
mod tensors;
#[cfg(feature = "cuda")]
mod cublas_lt;
#[cfg(feature = "cuda")]
mod product;
#[cfg(feature = "cuda")]
mod gemm;
#[cfg(feature = "cuda")]
mod hopper;
#[cfg(feature = "cuda")]
mod layout;
#[cfg(feature = "cuda")]
mod operations;
#[cfg(feature = "cuda")]
mod attention;
#[cfg(feature = "cuda")]
mod layers;
#[cfg(feature = "cuda")]
mod rotary;
#[cfg(feature = "cuda")]
mod gate;
#[cfg(feature = "cuda")]
mod recordings;
#[cfg(feature = "cuda")]
mod eight_bit;
#[cfg(feature = "cuda")]
mod fetch;

#[cfg(feature = "cuda")]
pub(crate) use attention::{AttentionKernels, attention, attention_by};
#[cfg(feature = "cuda")]
pub(crate) use eight_bit::{Codes, EightBitProducts, linear_eight_bit, quantize};
#[cfg(feature = "cuda")]
pub(crate) use fetch::{Fetch, fetch, fetch_states};
#[cfg(feature = "cuda")]
pub(crate) use gate::gate;
#[cfg(feature = "cuda")]
pub(crate) use layers::{Summed, add_linear, add_norm, embed, linear, pool, pool_into, vectors};
#[cfg(feature = "cuda")]
pub(crate) use layout::Layout;
#[cfg(feature = "cuda")]
pub(crate) use operations::{Operations, capability, made};
#[cfg(feature = "cuda")]
pub(crate) use product::Epilogue;
#[cfg(feature = "cuda")]
pub(crate) use recordings::{Key, Recordings};
#[cfg(feature = "cuda")]
pub(crate) use rotary::rotate;
#[cfg(feature = "cuda")]
pub(crate) use tensors::memory;

/// Head sizes that attention is compiled for.
const HEAD_SIZES: [usize; 4] = [32, 64, 96, 128];

/// Queries of a tile of attention. Long tiles have twice as many.
#[cfg(any(feature = "cuda", test))]
const TILE: usize = 64;

/// Widths that kernels over whole rows are compiled for: one takes those up to its own.
const WIDTHS: [usize; 7] = [256, 512, 768, 1024, 2048, 4096, 8192];

/// Values of a 16-byte access: widths are multiples of this.
const VECTOR: usize = 8;

/// Widths that quantization is compiled for: one takes those up to its own.
const QUANTIZED_WIDTHS: [usize; 3] = [1024, 4096, 16_384];

/// The first compute capability with fp8.
#[cfg(feature = "cuda")]
pub(crate) const FP8_FROM: (i32, i32) = (8, 9);

/// Both sides of an 8-bit product are multiples of this: tensor cores take codes 16 bytes at a time.
const EIGHT_BIT_STEP: usize = 16;

/// Whether layers of hidden states of this width, with so many values inside the feed-forward block, can be 8-bit.
pub(crate) fn computes_eight_bit(width: usize, inner: usize) -> bool {
    [width, inner]
        .iter()
        .all(|side| side.is_multiple_of(EIGHT_BIT_STEP) && *side <= QUANTIZED_WIDTHS[QUANTIZED_WIDTHS.len() - 1])
}

/// Whether there are kernels for hidden states of this width, with heads of this size and so many values inside a
/// feed-forward block.
pub(crate) fn computes(width: usize, head_size: usize, inner_width: usize) -> bool {
    let vectors = width.is_multiple_of(VECTOR) && inner_width.is_multiple_of(VECTOR);
    HEAD_SIZES.contains(&head_size) && vectors && width <= WIDTHS[WIDTHS.len() - 1]
}
