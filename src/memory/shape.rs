//! How large a step is, in the two numbers that its memory and time depend on.

use std::fmt;

/// The facts of one row that its cost depends on. A row is one sequence or one image of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowFacts {
    /// Tokens of the row, special ones included; at least 1. An image counts as 1.
    pub tokens: u32,
}

/// The size of a step. Two steps of one model with the same shape cost the same memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Shape {
    /// `rows` rows, each padded to `length` tokens.
    Padded {
        /// Rows in the batch.
        rows: u32,
        /// Tokens of the longest row; what every row is padded to.
        length: u32,
    },
    /// Rows of any lengths laid end to end.
    Ragged {
        /// Tokens of all rows together.
        tokens: u32,
        /// Tokens of the longest row.
        longest: u32,
    },
    /// A generation step. The KV cache is counted apart, exactly, from the block tables.
    Generate {
        /// Tokens computed in this step: one for each decoding sequence and the chunks of prompts.
        new_tokens: u32,
        /// Sequences that take part.
        sequences: u32,
    },
}

impl Shape {
    /// The kind, which is the same for every step of a model.
    pub const fn kind(self) -> ShapeKind {
        match self {
            Shape::Padded { .. } => ShapeKind::Padded,
            Shape::Ragged { .. } => ShapeKind::Ragged,
            Shape::Generate { .. } => ShapeKind::Generate,
        }
    }

    /// The position on the profile's axes, `(batch, extent)`: (rows, length), (tokens, longest) or
    /// (new tokens, sequences). Cost never falls when either grows.
    pub const fn position(self) -> (u32, u32) {
        match self {
            Shape::Padded { rows, length } => (rows, length),
            Shape::Ragged { tokens, longest } => (tokens, longest),
            Shape::Generate { new_tokens, sequences } => (new_tokens, sequences),
        }
    }

    /// Tokens that the device computes, padding included.
    pub const fn tokens(self) -> u64 {
        match self {
            Shape::Padded { rows, length } => rows as u64 * length as u64,
            Shape::Ragged { tokens, .. } => tokens as u64,
            Shape::Generate { new_tokens, .. } => new_tokens as u64,
        }
    }
}

/// `32 x 128`, `4096 tokens (longest 512)`, `48 new tokens in 32 sequences`.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Shape::Padded { rows, length } => format!("{rows} x {length}"),
            Shape::Ragged { tokens, longest } => format!("{tokens} tokens (longest {longest})"),
            Shape::Generate { new_tokens, sequences } => format!("{new_tokens} new tokens in {sequences} sequences"),
        };
        f.pad(&text)
    }
}

/// Which of the three forms a model's steps have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ShapeKind {
    /// Rows padded to the longest.
    Padded,
    /// Rows laid end to end.
    Ragged,
    /// Decode tokens and prompt chunks.
    Generate,
}

impl ShapeKind {
    /// The shape at a position on the profile's axes; the inverse of [`Shape::position`].
    pub const fn at(self, batch: u32, extent: u32) -> Shape {
        match self {
            ShapeKind::Padded => Shape::Padded { rows: batch, length: extent },
            ShapeKind::Ragged => Shape::Ragged { tokens: batch, longest: extent },
            ShapeKind::Generate => Shape::Generate { new_tokens: batch, sequences: extent },
        }
    }

    /// The shape of a step over whole rows. Saturates at `u32::MAX`, which no envelope contains.
    pub fn of_rows(self, rows: impl IntoIterator<Item = RowFacts>) -> Shape {
        let (mut count, mut total, mut longest) = (0u32, 0u32, 0u32);
        for row in rows {
            count = count.saturating_add(1);
            total = total.saturating_add(row.tokens);
            longest = longest.max(row.tokens);
        }
        match self {
            ShapeKind::Padded => Shape::Padded { rows: count, length: longest },
            ShapeKind::Ragged => Shape::Ragged { tokens: total, longest },
            ShapeKind::Generate => Shape::Generate { new_tokens: total, sequences: count },
        }
    }
}

/// One axis of a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    /// Smallest value that a step can have; at least 1.
    pub min: u32,
    /// Largest value of the envelope.
    pub max: u32,
    /// Values `v` at which the code path changes between `v` and `v + 1`: the profile probes both sides and never
    /// interpolates across.
    pub splits: Vec<u32>,
}

/// What a model's profile is measured over, and how far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axes {
    /// The form of the model's steps.
    pub kind: ShapeKind,
    /// Rows or tokens of a step.
    pub batch: Axis,
    /// Length, longest row or sequences.
    pub extent: Axis,
    /// The envelope: no step computes more tokens than this (padding included), except a single row.
    pub step_tokens_max: u32,
    /// Steps of up to so many tokens are measured even where larger batches gain no throughput.
    pub measured_tokens_min: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shape_of_rows_follows_the_kind() {
        let rows = [3, 7, 5].map(|tokens| RowFacts { tokens });
        assert_eq!(ShapeKind::Padded.of_rows(rows), Shape::Padded { rows: 3, length: 7 });
        assert_eq!(ShapeKind::Ragged.of_rows(rows), Shape::Ragged { tokens: 15, longest: 7 });
        assert_eq!(ShapeKind::Generate.of_rows(rows), Shape::Generate { new_tokens: 15, sequences: 3 });
        assert_eq!(ShapeKind::Padded.of_rows([]), Shape::Padded { rows: 0, length: 0 });
    }

    #[test]
    fn position_and_at_are_inverse() {
        for kind in [ShapeKind::Padded, ShapeKind::Ragged, ShapeKind::Generate] {
            assert_eq!(kind.at(8, 64).position(), (8, 64));
            assert_eq!(kind.at(8, 64).kind(), kind);
        }
    }
}
