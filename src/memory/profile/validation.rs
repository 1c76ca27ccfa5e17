//! Held-out points: is the grid fine enough?
//!
//! Points in the middle of cells are measured when the grid is done and compared with what it predicts. Where one
//! misses, its cell is split. They are not part of the grid unless they missed, so a table of them shows honestly how
//! good the predictions are.

use super::surface::Surface;
use super::{Measured, Place, Slack, grid};
use crate::memory::Axes;
use crate::units::{Bytes, Micros};

/// Points held out, spread over the extents.
const HELD_OUT: usize = 5;
/// Cells split at most; each split is checked once more. The bound keeps a model whose cost is not what the grid
/// assumes from being measured for ever: the drift factor covers what is left.
const SPLITS_MAX: usize = 4;
/// A prediction this many times the measured peak is a miss, if the peak is large enough to matter.
const OVER_MAX: f64 = 1.15;
/// Below this a prediction that is too large costs nothing.
const PEAK_MIN: Bytes = Bytes::mib(1);

/// One held-out point.
#[derive(Clone, Copy, Debug)]
pub(super) struct Check {
    pub(super) place: Place,
    /// What came of it.
    pub(super) measured: Option<(Bytes, Micros)>,
}

/// The held-out points of a profile.
#[derive(Clone, Debug, Default)]
pub(super) struct Checks {
    chosen: bool,
    splits: usize,
    points: Vec<Check>,
}

impl Checks {
    /// Held-out points that were measured earlier: the validation of a restored profile.
    pub(super) fn restored(points: Vec<Check>) -> Checks {
        Checks { chosen: true, splits: 0, points }
    }

    /// All of them.
    pub(super) fn points(&self) -> &[Check] {
        &self.points
    }

    /// Those not measured yet; they are chosen at the first call.
    pub(super) fn open(&mut self, axes: &Axes, peaks: &Surface) -> Vec<Place> {
        if !self.chosen {
            self.chosen = true;
            self.points = held_out(axes, peaks).into_iter().map(|place| Check { place, measured: None }).collect();
        }
        self.points.iter().filter(|check| check.measured.is_none()).map(|check| check.place).collect()
    }

    /// Whether this place is to be measured.
    pub(super) fn asks(&self, place: Place) -> bool {
        self.points.iter().any(|check| check.place == place && check.measured.is_none())
    }

    /// Takes in a result. Returns the place at which the grid has to be split, if it missed there.
    pub(super) fn answer(&mut self, place: Place, measured: Measured, peaks: &Surface, slack: Slack) -> Option<Place> {
        let check = self.points.iter_mut().find(|check| check.place == place && check.measured.is_none())?;
        check.measured = Some((measured.peak, measured.time));
        let (extent, batch) = place;
        let interpolated = Bytes::new(peaks.at(batch, extent)?);
        if agrees(interpolated, measured.peak, slack) || self.splits == SPLITS_MAX {
            return None;
        }
        self.splits += 1;
        // Halfway to the next smaller extent: the half in which a maximum of terms bends is as likely this as the other.
        let below = peaks.cells().find(|&(_, upper)| upper >= extent).map(|(lower, _)| lower);
        let again = below.map(|lower| (middle(lower, extent), batch));
        if let Some(place) = again.filter(|&(between, _)| Some(between) != below) {
            self.points.push(Check { place, measured: None });
        }
        Some(place)
    }
}

/// Whether what was expected (without the slack) predicts the measured peak: not below it, and not far above.
pub(super) fn agrees(expected: Bytes, measured: Bytes, slack: Slack) -> bool {
    let under = slack.on(expected.get()) < measured;
    let over = measured >= PEAK_MIN && expected.scale(slack.ratio) > measured.scale(OVER_MAX);
    !under && !over
}

/// The middles of up to [`HELD_OUT`] cells, evenly spread over the extents; in every other one at the largest batches,
/// where the bytes are, else in the middle of the batches, where most steps are. A model with a single extent, such as
/// one of images, has one in the middle of its largest batches.
fn held_out(axes: &Axes, peaks: &Surface) -> Vec<Place> {
    let segment = |extent: u32, index: usize| {
        let first = grid::first_batch(axes, extent);
        let bends: Vec<u32> = peaks.bends(extent).into_iter().filter(|&batch| batch >= first).collect();
        let pairs = bends.windows(2).map(|pair| (pair[0], pair[1]));
        let segments: Vec<(u32, u32)> = pairs.filter(|(from, to)| to - from >= 2).collect();
        let chosen = if index.is_multiple_of(2) { segments.last() } else { segments.get(segments.len() / 2) };
        chosen.map(|&(from, to)| middle(from, to))
    };
    let cells: Vec<(u32, u32)> = peaks.cells().filter(|(lower, upper)| upper - lower >= 2).collect();
    if cells.is_empty() {
        let extent = axes.extent.max;
        return segment(extent, 0).map(|batch| (extent, batch)).into_iter().collect();
    }
    let count = cells.len().min(HELD_OUT);
    let chosen = (0..count).map(|index| (index, cells[(2 * index + 1) * cells.len() / (2 * count)]));
    let place = |(index, (lower, upper)): (usize, (u32, u32))| {
        let extent = middle(lower, upper);
        (extent, segment(extent, index).unwrap_or_else(|| grid::first_batch(axes, extent)))
    };
    chosen.map(place).collect()
}

/// The geometric middle.
fn middle(from: u32, to: u32) -> u32 {
    (f64::from(from) * f64::from(to)).sqrt().round() as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::profile::surface::Growth;
    use crate::memory::{Axis, ShapeKind};

    fn axes(extent_max: u32, batch_max: u32) -> Axes {
        let axis = |max| Axis { min: 1, max, splits: vec![] };
        let (batch, extent) = (axis(batch_max), axis(extent_max));
        Axes { kind: ShapeKind::Padded, batch, extent, step_tokens_max: u32::MAX, measured_tokens_min: 0 }
    }

    #[test]
    fn a_miss_is_below_the_peak_or_far_above_one_that_matters() {
        let slack = Slack { ratio: 1.125, constant: Bytes::kib(64) };
        let check = |expected, measured, agreed| {
            assert_eq!(agrees(expected, measured, slack), agreed, "{expected} for {measured}");
        };
        let one = Bytes::new(1);
        let predicted = Bytes::kib(8 * 1024 * 9 / 8 + 64);
        check(Bytes::mib(8), Bytes::mib(8), true);
        check(Bytes::mib(8), predicted, true);
        check(Bytes::mib(8), predicted + one, false);
        // Without the constant, 1.15 times as much is the limit.
        check(Bytes::new(23_000_000), Bytes::new(22_500_000), true);
        check(Bytes::new(23_000_001), Bytes::new(22_500_000), false);
        // As much too large in proportion, where it costs nothing.
        check(Bytes::mib(2), Bytes::mib(1), false);
        check(Bytes::mib(2), Bytes::mib(1).saturating_sub(one), true);
    }

    #[test]
    fn held_out_points_are_spread_over_the_cells() {
        let check = |extents: &[u32], batches: &[u32], expected: &[Place]| {
            let axes = axes(*extents.last().unwrap(), *batches.last().unwrap());
            let column = |&extent| (extent, batches.iter().map(|&batch| (batch, u64::from(batch * extent))).collect());
            assert_eq!(
                held_out(&axes, &Surface::build(extents.iter().map(column), &[], Growth::Monotone)),
                expected,
                "{extents:?}"
            );
        };
        // At the largest batches, then in the middle of those between which there is one.
        check(&[8, 16, 64], &[1, 2, 4, 8, 16, 32], &[(11, 23), (32, 11)]);
        // Five of seven cells; where there is no batch between, the smallest.
        check(&[2, 4, 8, 16, 32, 64, 128, 256], &[1, 2], &[(3, 1), (11, 1), (23, 1), (45, 1), (181, 1)]);
        // Neighbouring extents have nothing between them.
        check(&[8, 9, 16], &[1, 2], &[(12, 1)]);
        check(&[10], &[1, 8, 64], &[(10, 23)]);
        check(&[10], &[1, 2], &[]);
    }

    #[test]
    fn a_miss_is_followed_by_a_check_between_it_and_the_extent_below() {
        let column = |extent| (extent, vec![(1, 1), (16, 16)]);
        let peaks = Surface::build([column(8), column(2048)], &[], Growth::Monotone);
        let axes = axes(2048, 16);
        let mut checks = Checks::default();
        let mut answer = |peak| {
            let open = checks.open(&axes, &peaks);
            let &[(extent, batch)] = &open[..] else { panic!("one at a time, not {open:?}") };
            assert!(checks.asks(open[0]) && !checks.asks((extent, batch + 1)));
            let measured = Measured { shape: axes.kind.at(batch, extent), peak, time: Micros::new(1) };
            let split = checks.answer(open[0], measured, &peaks, Slack::CPU);
            (open[0], split.is_some(), checks.open(&axes, &peaks).len())
        };
        assert_eq!(answer(Bytes::gib(1)), ((128, 4), true, 1));
        assert_eq!(answer(Bytes::gib(1)), ((32, 4), true, 1));
        assert_eq!(answer(Bytes::gib(1)), ((16, 4), true, 1));
        assert_eq!(answer(Bytes::gib(1)), ((11, 4), true, 1));
        // The splits are used up.
        assert_eq!(answer(Bytes::gib(1)), ((9, 4), false, 0));

        let mut agreed = Checks::default();
        let place = agreed.open(&axes, &peaks)[0];
        let measured = Measured { shape: axes.kind.at(place.1, place.0), peak: Bytes::new(4), time: Micros::new(1) };
        assert_eq!(agreed.answer(place, measured, &peaks, Slack::CPU), None);
        assert_eq!(agreed.open(&axes, &peaks), [], "what agrees is not checked again");
    }
}
