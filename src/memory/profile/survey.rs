//! What to measure next: cheap and useful first.
//!
//! 1. The smallest batch over all extents, doublings first, so that every legal row can be served early.
//! 2. Larger batches at every extent, until a doubling gains less than 5 % of throughput. Padded models: the fewest tokens
//!    first. Ragged ones: the longest extent first, since a batch of so many tokens costs nearly the same whatever its
//!    rows, and what is measured there bounds every shorter extent at once.
//! 3. Held-out points; where one misses, its cell is split and the new points come before the next held-out one.
//!
//! On a CPU these are real steps between requests, so nothing is measured that no step will use.

use std::cmp::Reverse;

use super::grid::{Column, Rank, last_batch};
use super::{Measured, Place, Point, Profile};
use crate::memory::{Shape, ShapeKind};
use crate::units::{Bytes, Micros};

/// Runs of a probe, each a step of its own, so that whoever comes meanwhile waits for one of them only. The first warms
/// caches and lazily made state and is thrown away; of the others the largest peak and the shortest time are kept.
pub const PROBE_RUNS: u32 = 3;

/// A larger batch is not measured if one run of it is likely to take longer: no caller should wait so long for others,
/// and whatever a device gains by batching it has gained long before.
const STEP_TIME_MAX: Micros = Micros::millis(500);

/// A doubling of the batch that gains less than this factor of throughput is the last one.
const GAIN_MIN: f64 = 1.05;

/// A shape to be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The shape.
    pub shape: Shape,
    /// Upper estimate of its peak, for its lease: terms are at most linear in the batch and quadratic in the extent,
    /// so it follows from any smaller measured point.
    ///
    /// The very first probe has no such point. It is the smallest step that the model can run, its estimate is the
    /// constant of the slack, and what really bounds it is the ceiling of its lease.
    pub bound: Bytes,
    /// Upper estimate of the time of one run, by the same argument; zero for the first probe.
    pub expected: Micros,
}

/// The runs of one probe, as they come.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProbeRuns {
    shape: Option<Shape>,
    done: u32,
    peak: Bytes,
    time: Micros,
}

impl ProbeRuns {
    /// Takes in one run and returns the result of the last one. Runs of another shape start over.
    pub fn add(&mut self, shape: Shape, peak: Bytes, time: Micros) -> Option<Measured> {
        if self.shape != Some(shape) {
            *self = ProbeRuns { shape: Some(shape), done: 0, peak: Bytes::ZERO, time: Micros::MAX };
        }
        if self.done > 0 {
            self.peak = self.peak.max(peak);
            self.time = self.time.min(time);
        }
        self.done += 1;
        if self.done < PROBE_RUNS {
            return None;
        }
        let ProbeRuns { peak, time, .. } = std::mem::take(self);
        Some(Measured { shape, peak, time })
    }
}

/// The places of the grid whose turn could be now, the most useful first: each stands on a smaller one that is
/// measured.
pub(super) fn grid_probes(profile: &Profile) -> Vec<Place> {
    let mut places = first_batches(profile);
    let mut larger: Vec<Place> = larger_batches(profile).collect();
    match profile.axes.kind {
        ShapeKind::Padded => {
            larger.sort_unstable_by_key(|&(extent, batch)| (profile.axes.kind.at(batch, extent).tokens(), extent));
        }
        ShapeKind::Ragged | ShapeKind::Generate => {
            larger.sort_unstable_by_key(|&(extent, batch)| (Reverse(extent), batch));
        }
    }
    places.extend(larger);
    places.retain(|place| profile.too_large.get(place) != Some(&Bytes::MAX));
    places
}

/// The probes of these places, in their order.
pub(super) fn probes(profile: &Profile, places: Vec<Place>) -> Vec<Probe> {
    let open = places.into_iter().filter(|place| profile.too_large.get(place) != Some(&Bytes::MAX));
    open.map(|place| probe(profile, place)).collect()
}

/// The first batch of the columns that lack it. Coarse columns come one after the other, so that each estimate stands
/// on the extent just below; then the finer ones, of which those below the next coarse one can be had before it.
fn first_batches(profile: &Profile) -> Vec<Place> {
    let lacking = |rank: Rank| {
        let columns = profile.columns.iter().filter(move |column| column.rank == rank);
        columns.map(|column| (column.extent, column.batches[0])).filter(|&place| !is_fresh(profile, place))
    };
    let next_coarse = lacking(Rank::Coarse).next();
    let finer = lacking(Rank::Fine).chain(lacking(Rank::Split));
    let below = finer.filter(|place| next_coarse.is_none_or(|next| place.0 < next.0));
    next_coarse.into_iter().chain(below).collect()
}

/// The next batch of every column that should go on, and the batches that splits have added.
fn larger_batches(profile: &Profile) -> impl Iterator<Item = Place> + '_ {
    let next = |column: &&Column| {
        let fresh: Vec<(u32, Point)> = profile.measured_batches(column).take_while(|(_, point)| point.fresh).collect();
        let batch = *column.batches.get(fresh.len()).filter(|_| !fresh.is_empty())?;
        wanted(profile, column, &fresh, batch).then_some((column.extent, batch))
    };
    let extra = |column: &Column| {
        let (extent, reach) = (column.extent, profile.column_reach(column).unwrap_or(0));
        let inside = column.extra.iter().filter(move |&&batch| batch < reach).map(move |&batch| (extent, batch));
        inside.filter(|&place| !is_fresh(profile, place)).collect::<Vec<_>>()
    };
    let next_batches = profile.columns.iter().filter_map(move |column| next(&column));
    next_batches.chain(profile.columns.iter().flat_map(extra))
}

/// Whether a column that is measured up to the last of `fresh` should go on to `batch`.
fn wanted(profile: &Profile, column: &Column, fresh: &[(u32, Point)], batch: u32) -> bool {
    // Measured before it went stale.
    if profile.points.contains_key(&(column.extent, batch)) {
        return true;
    }
    // A larger extent went there: a smaller one costs less, and the cell between them needs both.
    let (last, point) = fresh[fresh.len() - 1];
    let others = || profile.columns.iter().filter(|other| other.rank != Rank::Split);
    let reaches = |other: &Column| profile.column_reach(other).is_some_and(|reach| reach > last);
    if others().any(|other| other.extent > column.extent && reaches(other)) {
        return true;
    }
    if column.rank == Rank::Split {
        return false;
    }
    // As many tokens as the longest row costs no more than that row did, and times of tiny steps are mostly noise; and
    // what the configuration asks for is measured whatever it gains.
    let axes = &profile.axes;
    if axes.kind.at(last, column.extent).tokens() < u64::from(axes.extent.max.max(axes.measured_tokens_min))
        && last < last_batch(&profile.axes, column.extent)
    {
        return true;
    }
    if point.time.scale(f64::from(batch) / f64::from(last)) > STEP_TIME_MAX {
        return false;
    }
    // Compared with at most half the batch: the two sides of a switch are neighbours and say nothing about doubling.
    match fresh.iter().rev().find(|(other, _)| u64::from(*other) * 2 <= u64::from(last)) {
        Some(&(half, before)) => {
            let throughput = |batch: u32, time: Micros| f64::from(batch) / time.get().max(1) as f64;
            throughput(last, point.time) >= throughput(half, before.time) * GAIN_MIN
        }
        None => true,
    }
}

/// The probe of a place, with its estimates from what is measured.
fn probe(profile: &Profile, (extent, batch): Place) -> Probe {
    let scale = |&(other_extent, other_batch): &Place| {
        let grown = |to: u32, from: u32| (f64::from(to) / f64::from(from)).max(1.0);
        grown(batch, other_batch) * grown(extent, other_extent).powi(2)
    };
    let peaks = profile.points.iter().map(|(place, point)| point.peak.scale(scale(place)));
    let bound = peaks.min().map_or(profile.slack.constant, |peak| profile.slack.on(peak.get()));
    let expected = profile.points.iter().map(|(place, point)| point.time.scale(scale(place))).min();
    Probe { shape: profile.axes.kind.at(batch, extent), bound, expected: expected.unwrap_or(Micros::ZERO) }
}

fn is_fresh(profile: &Profile, place: Place) -> bool {
    profile.points.get(&place).is_some_and(|point| point.fresh)
}
