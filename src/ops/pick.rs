//! Which positions of each row a result is wanted for, and their states without the others.

use std::borrow::Cow;
use std::ops::Range;

use candle_core::{Result, Tensor};

use super::{Rows, host};
use crate::config::Pooling;

/// Which positions of each row somebody looks at. The last layer needs to compute nothing for the others but their keys and
/// values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pick {
    All,
    First,
    Last,
}

impl From<Pooling> for Pick {
    fn from(pooling: Pooling) -> Pick {
        match pooling {
            Pooling::Cls => Pick::First,
            Pooling::Last => Pick::Last,
            Pooling::Mean => Pick::All,
        }
    }
}

impl Pick {
    /// Those of a row of `length`, counted from its start.
    fn of(self, length: usize) -> Range<usize> {
        match self {
            Pick::All => 0..length,
            Pick::First => 0..length.min(1),
            Pick::Last => length.saturating_sub(1)..length,
        }
    }
}

/// The positions of a step's rows that somebody looks at.
#[derive(Debug)]
pub(crate) struct Picked<'a> {
    rows: &'a Rows,
    pick: Pick,
    alone: Cow<'a, Rows>,
}

impl<'a> Picked<'a> {
    pub(crate) fn new(rows: &'a Rows, pick: Pick) -> Picked<'a> {
        let alone = match pick {
            Pick::All => Cow::Borrowed(rows),
            Pick::First | Pick::Last => {
                Cow::Owned(Rows::ragged(rows.iter().map(|(_, length)| pick.of(length).len()).collect()))
            }
        };
        Picked { rows, pick, alone }
    }

    /// All positions.
    pub(crate) fn rows(&self) -> &'a Rows {
        self.rows
    }

    /// Where the picked ones lie when the others are left out: the rows laid end to end, unless there are no others.
    pub(crate) fn alone(&self) -> &Rows {
        &self.alone
    }

    /// Of each row where it starts, its length, the positions counted from there, and where those lie alone.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, usize, Range<usize>, usize)> + '_ {
        let pairs = self.rows.iter().zip(self.alone.iter());
        pairs.map(|((start, length), (to, _))| (start, length, self.pick.of(length), to))
    }

    /// The states (tokens, width) of the picked positions alone, in the same memory; what else is there is anything then.
    pub(crate) fn take(&self, states: &Tensor) -> Result<Tensor> {
        let (tokens, width) = states.dims2()?;
        assert_eq!(self.rows.tokens(), tokens, "states are those of the rows");
        if self.pick == Pick::All {
            return Ok(states.clone());
        }
        host::write(states, |states| {
            for (start, _, Range { start: first, end }, to) in self.iter() {
                // No further than to where they come from, and none is beyond those of the next row: nothing is overwritten
                // that is still to be taken.
                states.copy_within((start + first) * width..(start + end) * width, to * width);
            }
        })?;
        states.narrow(0, 0, self.alone.tokens())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::tests::random;

    #[test]
    fn states_are_taken_from_every_row() -> Result<()> {
        for lengths in [vec![1], vec![1, 1, 3, 1, 2], vec![40, 2, 1], vec![2; 9]] {
            for rows in [Rows::ragged(lengths.clone()), Rows::padded(lengths.clone())] {
                for (pick, position) in [(Pick::First, 0), (Pick::Last, 1)] {
                    let states = random(&[rows.tokens(), 3], 1.0);
                    let position = |(start, length): (usize, usize)| start + position * (length - 1);
                    let expected: Vec<Vec<f32>> =
                        rows.iter().map(|row| states.get(position(row))?.to_vec1()).collect::<Result<_>>()?;
                    let picked = Picked::new(&rows, pick);
                    assert_eq!(picked.take(&states)?.to_vec2::<f32>()?, expected, "{pick:?} of {lengths:?}");
                    assert_eq!(*picked.alone(), Rows::ragged(vec![1; lengths.len()]));
                }
                let states = random(&[rows.tokens(), 3], 1.0);
                let before = states.to_vec2::<f32>()?;
                let all = Picked::new(&rows, Pick::All);
                assert_eq!(all.take(&states)?.to_vec2::<f32>()?, before);
                assert_eq!(*all.alone(), rows);
            }
        }
        Ok(())
    }
}
