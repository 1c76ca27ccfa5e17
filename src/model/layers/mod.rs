//! The building blocks of encoders: the one seam between the fused operations and the plain ones.

mod workspace;
mod embeddings;
mod attention;
mod feed_forward;
mod linear;

pub(crate) use attention::SelfAttention;
pub(crate) use embeddings::Embeddings;
pub(crate) use feed_forward::FeedForward;
pub(crate) use linear::Linear;
pub(crate) use workspace::{Widths, Workspace};

/// Which operations the layers run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernels {
    /// Those of `ops`, written for the device.
    Fused,
    /// The framework's own: slower, and independent of ours. What the fused ones are tested against.
    Plain,
}
