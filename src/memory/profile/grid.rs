//! Where a profile is measured: columns of equal extent, each with its own batches.
//!
//! The columns are independent of one another: a cell between two of them is interpolated along each column first and
//! then between them, which needs no common batches. So a column can end where its envelope ends, and be split alone.

use crate::memory::{Axes, ShapeKind};

/// Extents stand a factor of sqrt(2) apart: linear interpolation of a quadratic is then at most 3 % above it.
const EXTENT_RATIO: f64 = std::f64::consts::SQRT_2;
/// Batches stand a factor of 2 apart: memory is linear in the batch between switches of the code path.
const BATCH_RATIO: f64 = 2.0;

/// In which order columns are measured and come into use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    /// Every doubling of the extent, the ends, and both sides of each switch: enough to serve every legal row.
    Coarse,
    /// Those in between.
    Fine,
    /// Added where a held-out point missed.
    Split,
}

/// One extent and the batches that are measured at it.
#[derive(Clone, Debug)]
pub(super) struct Column {
    /// The extent.
    pub(super) extent: u32,
    /// When it is measured.
    pub(super) rank: Rank,
    /// Batches in increasing order, measured in this order; the first is the smallest legal one. Never empty.
    pub(super) batches: Vec<u32>,
    /// Batches added inside the column where a held-out point missed, in increasing order.
    pub(super) extra: Vec<u32>,
}

impl Column {
    /// The column at `extent` with its batches as the axes have them.
    pub(super) fn new(axes: &Axes, extent: u32, rank: Rank) -> Column {
        let (first, last) = (first_batch(axes, extent), last_batch(axes, extent));
        let mut batches = match axes.kind {
            ShapeKind::Padded => doubled(first, last),
            ShapeKind::Ragged | ShapeKind::Generate => halved(first, last),
        };
        batches.extend([first, last]);
        push_switches(&mut batches, &axes.batch.splits, first, last);
        batches.sort_unstable();
        batches.dedup();
        Column { extent, rank, batches, extra: Vec::new() }
    }

    /// Adds a batch inside the column; nothing happens if it has it.
    pub(super) fn add_extra(&mut self, batch: u32) {
        if self.batches.binary_search(&batch).is_err()
            && let Err(place) = self.extra.binary_search(&batch)
        {
            self.extra.insert(place, batch);
        }
    }
}

/// The first batch, twice as many, and so on. One closer to the last than half a step tells nothing that the last does
/// not.
fn doubled(first: u32, last: u32) -> Vec<u32> {
    let values = std::iter::successors(Some(f64::from(first)), |value| Some(value * BATCH_RATIO));
    let up_to = values.take_while(|value| value * BATCH_RATIO.sqrt() <= f64::from(last));
    up_to.map(|value| value.round() as u32).collect()
}

/// The last batch, half of it, and so on, but none closer to the first than half a step. So numbers of tokens are the
/// same whatever the longest row is: whether one of them is a good one to compute (whole waves of tiles on a card) can be
/// said only where all columns have it.
fn halved(first: u32, last: u32) -> Vec<u32> {
    let values = std::iter::successors(Some(f64::from(last)), |value| Some(value / BATCH_RATIO));
    let down_to = values.take_while(|value| *value >= f64::from(first) * BATCH_RATIO.sqrt());
    down_to.map(|value| value.round() as u32).collect()
}

/// The smallest batch that a step of this extent can have. Where the batch counts tokens it is one row.
pub(super) fn first_batch(axes: &Axes, extent: u32) -> u32 {
    match axes.kind {
        ShapeKind::Padded => axes.batch.min,
        ShapeKind::Ragged | ShapeKind::Generate => axes.batch.min.max(extent),
    }
    .max(1)
}

/// The largest batch of the envelope at this extent. A single row is inside it whatever its length.
pub(super) fn last_batch(axes: &Axes, extent: u32) -> u32 {
    let by_tokens = match axes.kind {
        ShapeKind::Padded => axes.step_tokens_max / extent.max(1),
        ShapeKind::Ragged | ShapeKind::Generate => axes.step_tokens_max,
    };
    by_tokens.min(axes.batch.max).max(first_batch(axes, extent))
}

/// The columns of a profile of these axes, in increasing order of extent.
pub(super) fn columns(axes: &Axes) -> Vec<Column> {
    let (min, max) = (axes.extent.min.max(1), axes.extent.max.max(1));
    let mut coarse = vec![min, max];
    let mut fine = Vec::new();
    let mut value = f64::from(max) / EXTENT_RATIO;
    let mut is_fine = true;
    while value >= f64::from(min) * EXTENT_RATIO.sqrt() {
        let extent = value.round() as u32;
        if is_fine {
            fine.push(extent)
        } else {
            coarse.push(extent)
        }
        is_fine = !is_fine;
        value /= EXTENT_RATIO;
    }
    push_switches(&mut coarse, &axes.extent.splits, min, max);
    coarse.sort_unstable();
    coarse.dedup();
    fine.retain(|extent| !coarse.contains(extent));
    fine.dedup();

    let coarse = coarse.into_iter().map(|extent| Column::new(axes, extent, Rank::Coarse));
    let fine = fine.into_iter().map(|extent| Column::new(axes, extent, Rank::Fine));
    let mut columns: Vec<Column> = coarse.chain(fine).collect();
    columns.sort_unstable_by_key(|column| column.extent);
    columns
}

/// Both sides of every switch inside the range.
fn push_switches(values: &mut Vec<u32>, switches: &[u32], first: u32, last: u32) {
    for &below in switches {
        if first <= below && below < last {
            values.extend([below, below + 1]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Axis;

    fn axes(kind: ShapeKind, batch: (u32, u32), extent: (u32, u32), step_tokens_max: u32) -> Axes {
        let axis = |(min, max)| Axis { min, max, splits: vec![] };
        Axes { kind, batch: axis(batch), extent: axis(extent), step_tokens_max, measured_tokens_min: extent.1 }
    }

    fn extents(axes: &Axes) -> Vec<u32> {
        columns(axes).iter().map(|column| column.extent).collect()
    }

    #[test]
    fn extents_are_a_root_of_two_apart_and_batches_double() {
        let axes = axes(ShapeKind::Padded, (1, 64), (8, 64), 1024);
        assert_eq!(extents(&axes), [8, 11, 16, 23, 32, 45, 64]);
        let columns = columns(&axes);
        assert_eq!(columns[0].batches, [1, 2, 4, 8, 16, 32, 64]);
        assert_eq!(columns[6].batches, [1, 2, 4, 8, 16]);
        // 1024 / 45 = 22: 16 is nearer than half a step and gives way.
        assert_eq!(columns[5].batches, [1, 2, 4, 8, 22]);
        let coarse: Vec<u32> =
            columns.iter().filter(|column| column.rank == Rank::Coarse).map(|column| column.extent).collect();
        assert_eq!(coarse, [8, 16, 32, 64]);
    }

    #[test]
    fn an_extent_closer_to_the_shortest_than_half_a_step_gives_way() {
        let check = |min, expected: &[u32]| {
            assert_eq!(extents(&axes(ShapeKind::Padded, (1, 4), (min, 64), 1024)), expected, "from {min}");
        };
        check(9, &[9, 11, 16, 23, 32, 45, 64]); // 64 / sqrt(2)^6 = 8 is outside
        check(10, &[10, 16, 23, 32, 45, 64]); // 11 < 10 x 1.19
        check(38, &[38, 45, 64]);
        check(39, &[39, 64]); // 45 < 39 x 1.19
    }

    #[test]
    fn a_single_row_is_always_inside() {
        let padded = axes(ShapeKind::Padded, (1, 64), (1, 512), 128);
        assert_eq!(columns(&padded).last().unwrap().batches, [1]);
        let ragged = axes(ShapeKind::Ragged, (1, 128), (1, 512), 128);
        assert_eq!(columns(&ragged).last().unwrap().batches, [512]);
        assert_eq!(columns(&ragged)[0].batches, [1, 2, 4, 8, 16, 32, 64, 128]);
    }

    #[test]
    fn numbers_of_tokens_are_the_same_in_all_columns() {
        let axes = axes(ShapeKind::Ragged, (1, 33_792), (1, 512), 33_792);
        let columns = columns(&axes);
        assert_eq!(columns.last().unwrap().batches, [512, 1056, 2112, 4224, 8448, 16_896, 33_792]);
        // 528 is nearer to 512 than half a step; 362 rows of a token are one row of 362.
        let beside = columns.iter().find(|column| column.extent == 362).unwrap();
        assert_eq!(beside.batches, [362, 528, 1056, 2112, 4224, 8448, 16_896, 33_792]);
        for column in &columns {
            for tokens in [1056, 2112, 4224, 8448, 16_896, 33_792] {
                assert!(column.batches.contains(&tokens), "{tokens} at {}: {:?}", column.extent, column.batches);
            }
        }
    }

    #[test]
    fn the_smallest_axes_make_one_point() {
        let one = axes(ShapeKind::Padded, (1, 1), (1, 1), 1);
        assert_eq!(extents(&one), [1]);
        assert_eq!(columns(&one)[0].batches, [1]);
    }

    #[test]
    fn both_sides_of_a_switch_are_measured() {
        let mut axes = axes(ShapeKind::Padded, (1, 64), (8, 64), 4096);
        axes.batch.splits = vec![8, 64];
        axes.extent.splits = vec![20];
        let columns = columns(&axes);
        assert_eq!(columns[0].batches, [1, 2, 4, 8, 9, 16, 32, 64]);
        for side in [20, 21] {
            assert!(columns.iter().any(|column| column.extent == side && column.rank == Rank::Coarse));
        }
    }
}
