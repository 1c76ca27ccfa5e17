//! What goes into a step and what comes out.

use std::sync::Arc;

/// One tokenized row, special tokens included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRow {
    /// Token ids; never empty, never longer than the model's longest length.
    pub ids: Vec<u32>,
    /// Segment ids (0 or 1), as long as `ids`; empty means all 0.
    pub types: Vec<u32>,
}

/// The rows of one step. Collating (padding, or laying end to end) is the model's business.
#[derive(Clone, Debug)]
pub enum Batch {
    /// Whole sequences for an encoder; never empty.
    Tokens(Vec<Arc<TokenRow>>),
}

impl Batch {
    /// Rows in the batch.
    pub fn rows(&self) -> usize {
        match self {
            Batch::Tokens(rows) => rows.len(),
        }
    }
}

/// The result of a step on the host.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// One vector of f32 for each row, in the batch's order: the pooled hidden state (not normalized) of an embedder,
    /// the logits of a classifier or reranker.
    Vectors(Vec<Vec<f32>>),
}

impl Output {
    /// Rows in the output.
    pub fn rows(&self) -> usize {
        match self {
            Output::Vectors(rows) => rows.len(),
        }
    }
}
