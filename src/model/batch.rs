//! What goes into a step and what comes out.

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use super::Fault;
use crate::memory::Shape;

/// One tokenized row, special tokens included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRow {
    /// Token ids; never empty, never longer than the model's longest length.
    pub ids: Vec<u32>,
    /// Segment ids (0 or 1), as long as `ids`; empty means all 0.
    pub types: Vec<u32>,
    /// What the answer is.
    pub wanted: Wanted,
}

/// What a row is answered with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wanted {
    /// What the model is for.
    #[default]
    Usual,
    /// The hidden states of all its tokens, of an embedder.
    States,
}

impl TokenRow {
    /// A row that is to be answered with what the model is for.
    pub fn new(ids: Vec<u32>, types: Vec<u32>) -> TokenRow {
        TokenRow { ids, types, wanted: Wanted::Usual }
    }
}

/// The rows of one step. Collating (padding, or laying end to end) is the model's business.
#[derive(Clone, Debug)]
pub enum Batch {
    /// Whole sequences for an encoder; never empty.
    Tokens(Vec<Arc<TokenRow>>),
}

impl Batch {
    /// Rows that make up a step of this shape, for measuring it. Their ids are in every vocabulary: neither memory nor
    /// time depends on them.
    ///
    /// # Panics
    /// For a generation step.
    pub fn made_up(shape: Shape) -> Batch {
        let row = |tokens: u32| Arc::new(TokenRow::new(vec![1; tokens as usize], Vec::new()));
        Batch::Tokens(match shape {
            Shape::Padded { rows, length } => vec![row(length); rows as usize],
            Shape::Ragged { tokens, longest } => {
                let (whole, rest) = (tokens / longest.max(1), tokens % longest.max(1));
                let mut rows = vec![row(longest); whole as usize];
                rows.extend((rest > 0).then(|| row(rest)));
                rows
            }
            Shape::Generate { .. } => unreachable!("no model here generates: {shape}"),
        })
    }

    /// Rows in the batch.
    pub fn rows(&self) -> usize {
        match self {
            Batch::Tokens(rows) => rows.len(),
        }
    }
}

/// The result of a step.
#[derive(Clone)]
pub enum Output {
    /// One vector of f32 for each row, in the batch's order: the pooled hidden state (not normalized) of an embedder, or the
    /// states of all tokens, token by token, where [`TokenRow::wanted`] says so; the logits of a classifier or reranker; the
    /// logits of a classifier of tokens, token by token.
    Vectors(Vec<Vec<f32>>),
    /// The same, once the device is done with what the step has queued there. Whatever the step had on the device is free
    /// for the next one in the device's order.
    Later(Rc<dyn Later>),
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Output::Vectors(vectors) => f.debug_tuple("Vectors").field(vectors).finish(),
            Output::Later(_) => f.write_str("Later"),
        }
    }
}

/// Vectors that are on their way to the host.
pub trait Later {
    /// Whether waiting for them would not take time.
    fn is_there(&self) -> bool;

    /// Waits for them.
    ///
    /// # Errors
    /// What went wrong on the device since the step was queued.
    fn wait(&self) -> Result<Vec<Vec<f32>>, Fault>;
}

impl Output {
    /// The vectors, however long that takes.
    ///
    /// # Errors
    /// What went wrong on the device.
    pub fn vectors(self) -> Result<Vec<Vec<f32>>, Fault> {
        match self {
            Output::Vectors(vectors) => Ok(vectors),
            Output::Later(later) => later.wait(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::RowFacts;

    #[test]
    fn made_up_rows_have_the_shape() {
        let check = |shape: Shape| {
            let Batch::Tokens(rows) = Batch::made_up(shape);
            let facts = rows.iter().map(|row| RowFacts { tokens: row.ids.len() as u32 });
            assert_eq!(shape.kind().of_rows(facts), shape);
        };
        check(Shape::Padded { rows: 1, length: 1 });
        check(Shape::Padded { rows: 5, length: 33 });
        check(Shape::Ragged { tokens: 7, longest: 7 });
        check(Shape::Ragged { tokens: 100, longest: 33 });
    }
}
