//! Why a row cannot become tokens.

/// What is wrong with one row's input. All of these are the client's to mend, but for the last.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenizeError {
    /// More tokens than the model takes, and truncation was not asked for.
    #[error("{tokens} tokens, special ones included; at most {allowed} are allowed without truncation")]
    TooLong {
        /// Tokens of the row.
        tokens: usize,
        /// The longest length.
        allowed: usize,
    },
    /// No tokens at all.
    #[error("no tokens; at least one is needed")]
    Empty,
    /// A token id that the model does not know.
    #[error("token id {id} at position {position}; the vocabulary has the ids 0 to {last}")]
    UnknownToken {
        /// The id.
        id: u64,
        /// Where in the row.
        position: usize,
        /// The largest that is allowed.
        last: u32,
    },
    /// A type id that the model does not know.
    #[error("type id {id} at position {position}; the types are 0 to {last}")]
    UnknownType {
        /// The id.
        id: u64,
        /// Where in the row.
        position: usize,
        /// The largest that is allowed.
        last: u32,
    },
    /// Not one type id for each token id.
    #[error("{types} type ids for {ids} token ids; there has to be one for each, or none")]
    TypeCount {
        /// Type ids in the row.
        types: usize,
        /// Token ids in the row.
        ids: usize,
    },
    /// The tokenizer itself failed.
    #[error("the tokenizer failed: {reason}")]
    Failed {
        /// Its words.
        reason: String,
    },
}

/// A [`TokenizeError`] and the row that it is about.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("row {row}: {error}")]
pub struct RowError {
    /// Index of the first such row in the request.
    pub row: usize,
    /// What is wrong with it.
    pub error: TokenizeError,
}
