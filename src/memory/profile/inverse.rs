//! The inverse questions: how large may a step be, and how large is worth while.

use std::ops::Range;

use super::Profile;
use crate::memory::ShapeKind;
use crate::memory::profile::grid::first_batch;
use crate::units::{Bytes, Micros};

/// A knee is the smallest batch with this part of the best profiled throughput: what is left to gain beyond it is not
/// worth the latency.
const KNEE_PART: f64 = 0.95;

/// A deep queue is served in the smallest batches with this part of the best profiled throughput. Not in the largest: on a
/// card, activations that no longer fit its cache make steps slower by the token.
const FASTEST_PART: f64 = 0.99;

/// The largest batch that keeps every bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Largest {
    /// The batch; 0 when not even the smallest keeps the bounds.
    pub batch: u32,
    /// What the next larger one breaks.
    pub bound: LargestBound,
}

/// What keeps a batch from being larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LargestBound {
    /// The bytes.
    Memory,
    /// The time.
    Latency,
    /// The end of the envelope, or of what is measured of it.
    Envelope,
}

impl Profile {
    /// The largest batch at `extent` with `predicted <= fits` and `time <= within`, by bisection: both are monotone.
    /// `fits` is already divided by the drift factor. `None` when nothing is measured at this extent.
    pub fn largest_batch(&self, extent: u32, fits: Bytes, within: Micros) -> Option<Largest> {
        let reach = self.peaks.reach(extent)?;
        // What keeps this batch from being run; a batch below the reach is always measured.
        let broken = |batch: u32| {
            let shape = self.axes.kind.at(batch, extent);
            let (peak, time) = (self.predicted(shape)?, self.time(shape)?);
            if peak > fits { Some(LargestBound::Memory) } else { (time > within).then_some(LargestBound::Latency) }
        };
        let Some(mut bound) = broken(reach) else {
            return Some(Largest { batch: reach, bound: LargestBound::Envelope });
        };
        // Invariant: `good` keeps the bounds (or is below every batch), `bad` breaks them.
        let (mut good, mut bad) = (first_batch(&self.axes, extent).min(reach) - 1, reach);
        while bad - good > 1 {
            let middle = good + (bad - good) / 2;
            match broken(middle) {
                Some(found) => (bad, bound) = (middle, found),
                None => good = middle,
            }
        }
        let batch = if good < first_batch(&self.axes, extent) { 0 } else { good };
        Some(Largest { batch, bound })
    }

    /// The batch for a queue that is deeper than any batch, at `extent` or a little below it: of those measured the
    /// smallest with 99 % of the best throughput. `None` when nothing is measured there.
    ///
    /// Where the batch counts tokens it is one for all extents, by their mean, longer rows counting for more: how long the
    /// rows are matters little, a batch has rows of many lengths, and a few per cent are within what one measurement is
    /// off by.
    pub fn fastest(&self, extent: u32) -> Option<u32> {
        let index = self.fastest.partition_point(|(column, _)| *column < extent);
        self.fastest.get(index).map(|(_, batch)| *batch)
    }

    /// The table behind [`Profile::fastest`]: for each of these extents, which have a column in use.
    pub(super) fn find_fastest(&self, extents: &[u32]) -> Vec<(u32, u32)> {
        let throughput = |extent: u32, batch: u32| {
            let time = self.times.at(batch, extent)?;
            Some(f64::from(batch) / time.max(1) as f64)
        };
        let best = |extent: u32| {
            let all = self.times.bends(extent).into_iter().filter_map(|batch| throughput(extent, batch));
            all.fold(f64::MIN_POSITIVE, f64::max)
        };
        let bests: Vec<f64> = extents.iter().map(|&extent| best(extent)).collect();
        // Of a batch: what it has of the best throughput, on average over these columns. They count by their extent:
        // most tokens of most mixtures are in long rows, and columns are dense where rows are short. One that a column
        // does not reach, or that is less than a row there, counts nothing in it.
        let merit = |batch: u32, columns: Range<usize>| {
            let weight = |column: usize| f64::from(extents[column].max(1));
            let all: f64 = columns.clone().map(weight).sum();
            let parts = columns.filter_map(|column| {
                let possible = batch >= first_batch(&self.axes, extents[column]);
                let part = throughput(extents[column], batch).filter(|_| possible)? / bests[column];
                Some(weight(column) * part)
            });
            parts.sum::<f64>() / all.max(1.0)
        };
        let smallest_good = |columns: Range<usize>| {
            let mut batches: Vec<u32> = columns.clone().flat_map(|column| self.times.bends(extents[column])).collect();
            batches.sort_unstable();
            batches.dedup();
            let merits: Vec<f64> = batches.iter().map(|&batch| merit(batch, columns.clone())).collect();
            let best = merits.iter().copied().fold(0.0, f64::max);
            let found = merits.iter().position(|merit| *merit >= best * FASTEST_PART);
            found.map(|index| batches[index])
        };
        let all = 0..extents.len();
        match self.axes.kind {
            ShapeKind::Padded => {
                all.filter_map(|column| Some((extents[column], smallest_good(column..column + 1)?))).collect()
            }
            ShapeKind::Ragged | ShapeKind::Generate => {
                let batch = smallest_good(all);
                extents.iter().filter_map(|&extent| Some((extent, batch?))).collect()
            }
        }
    }

    /// The smallest batch at `extent` with 95 % of the best profiled throughput; `None` when nothing is measured there.
    pub fn knee(&self, extent: u32) -> Option<u32> {
        let throughput = |batch: u32| {
            let time = self.time(self.axes.kind.at(batch, extent))?;
            Some(f64::from(batch) / time.get().max(1) as f64)
        };
        let bends = self.times.bends(extent);
        let first = first_batch(&self.axes, extent);
        let candidates = || bends.iter().copied().filter(|&batch| batch >= first);
        let best = candidates().filter_map(throughput).fold(0.0, f64::max);
        let enough = |batch: u32| throughput(batch).is_some_and(|value| value >= best * KNEE_PART);
        let mut bad = first - 1;
        for mut good in candidates() {
            if !enough(good) {
                bad = good;
                continue;
            }
            // Time is linear between bends, so throughput crosses the mark once between `bad` and `good`.
            while good - bad > 1 {
                let middle = bad + (good - bad) / 2;
                if enough(middle) { good = middle } else { bad = middle }
            }
            return Some(good);
        }
        None
    }
}
