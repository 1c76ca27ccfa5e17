//! How far a position sees in its row.

use std::ops::Range;

/// Positions see those of their own row that are no further away than this, in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sight {
    reach: usize,
}

impl Sight {
    /// The whole row. Kernels take the same number for no limit, which leaves room to add positions to it.
    pub(crate) const EVERYTHING: Sight = Sight { reach: 1 << 30 };

    /// Up to `reach` positions on either side.
    pub(crate) const fn around(reach: usize) -> Sight {
        if reach < Self::EVERYTHING.reach { Sight { reach } } else { Self::EVERYTHING }
    }

    /// Positions on either side.
    #[cfg(feature = "cuda")]
    pub(crate) const fn reach(self) -> usize {
        self.reach
    }

    /// Those that `position` sees in a row of `length`.
    pub(crate) fn of(self, position: usize, length: usize) -> Range<usize> {
        position.saturating_sub(self.reach)..length.min(position + self.reach + 1)
    }

    /// What is added to the scores of a row of `length`, (length, length): 0 where a position sees another, else `lowered`.
    pub(crate) fn mask(self, length: usize, lowered: f32) -> Vec<f32> {
        let mut mask = vec![lowered; length * length];
        for (position, row) in mask.chunks_exact_mut(length.max(1)).enumerate() {
            row[self.of(position, length)].fill(0.0);
        }
        mask
    }

    /// Whether there is something in a row of `length` that one of its positions does not see.
    pub(crate) const fn is_limited_in(self, length: usize) -> bool {
        self.reach + 1 < length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sight_ends_with_the_row() {
        let check = |sight: Sight, position, length, seen: Range<usize>| assert_eq!(sight.of(position, length), seen);
        check(Sight::EVERYTHING, 0, 1, 0..1);
        check(Sight::EVERYTHING, 4, 9, 0..9);
        check(Sight::around(0), 4, 9, 4..5);
        check(Sight::around(3), 1, 9, 0..5);
        check(Sight::around(3), 4, 9, 1..8);
        check(Sight::around(3), 8, 9, 5..9);
        assert_eq!(Sight::around(usize::MAX), Sight::EVERYTHING);
        let limited = [3, 4, 5].map(|length| Sight::around(3).is_limited_in(length));
        assert_eq!(Sight::around(1).mask(3, -2.0), [0.0, 0.0, -2.0, 0.0, 0.0, 0.0, -2.0, 0.0, 0.0]);
        assert_eq!((limited, Sight::EVERYTHING.is_limited_in(1 << 20)), ([false, false, true], false));
    }
}
