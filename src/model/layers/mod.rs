//! The building blocks of encoders: the one seam between the fused operations and the framework's.

mod kernels;
mod workspace;
mod embeddings;
mod residual;
mod attention;
mod feed_forward;
mod linear;

pub(crate) use attention::SelfAttention;
pub(crate) use embeddings::Embeddings;
pub(crate) use feed_forward::FeedForward;
pub use kernels::Kernels;
pub(crate) use linear::Linear;
pub(crate) use residual::{Block, Order, Residual, States};
#[cfg(feature = "cuda")]
pub(crate) use workspace::{CardMemory, OnCard};
pub(crate) use workspace::{Rest, Widths, Workspace};
