//! Where the rows of a batch lie.

/// The rows of a step over `tokens` positions. Row `i` owns the positions from `starts[i]` on, `lengths[i]` of which
/// are real; positions that belong to no row are padding, and no real position ever sees them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rows {
    starts: Vec<usize>,
    lengths: Vec<usize>,
    tokens: usize,
}

impl Rows {
    /// Rows laid end to end: nothing is computed that is not asked for.
    pub(crate) fn ragged(lengths: Vec<usize>) -> Rows {
        let mut tokens = 0;
        let mut starts = Vec::with_capacity(lengths.len());
        for length in &lengths {
            starts.push(tokens);
            tokens += length;
        }
        Rows { starts, lengths, tokens }
    }

    /// Rows padded to the longest.
    pub(crate) fn padded(lengths: Vec<usize>) -> Rows {
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let starts = (0..lengths.len()).map(|row| row * longest).collect();
        Rows { starts, tokens: longest * lengths.len(), lengths }
    }

    /// Positions that are computed, padding included.
    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }

    /// (start, real length) of each row.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = (usize, usize)> + '_ {
        self.starts.iter().copied().zip(self.lengths.iter().copied())
    }
}
