//! What a step will cost, measured in advance.
//!
//! A profile is a grid of probes. Between them it interpolates (see [`surface`] for why that is an upper bound); beyond
//! them it says nothing, so a shape is served once its cell is measured and never on a guess. It decides itself what to
//! measure next ([`survey`]) and whether its grid is fine enough ([`validation`]).

mod grid;
mod surface;
mod inverse;
mod survey;
mod validation;
mod table;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod property_tests;

use std::collections::BTreeMap;

pub use inverse::{Largest, LargestBound};
pub use survey::{PROBE_RUNS, Probe, ProbeRuns};
pub use table::{Role, Table, TableError, TableLine};

use self::grid::{Column, Rank};
use self::surface::{Growth, Surface};
use self::validation::Checks;
use super::{Axes, Shape, ShapeKind};
use crate::units::{Bytes, Micros};

/// What is added to an interpolated peak: all that predictions allow for besides what was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slack {
    /// Factor on the interpolated peak, at least 1.
    pub ratio: f64,
    /// Added after that: what a step takes that does not show in what is measured, and the rounding of small blocks.
    pub constant: Bytes,
}

impl Slack {
    /// Of the CPU's counting allocator.
    pub const CPU: Slack = Slack { ratio: 1.02, constant: Bytes::kib(64) };
    /// Of a GPU, whose pools take 2 MiB at a time. Where they are the driver's they take 32, which is the headroom's to
    /// respect: added here it would be as much as the whole step of a small model.
    pub const CUDA: Slack = Slack { ratio: 1.02, constant: Bytes::mib(2) };
    /// Of a GPU where the framework allocates: its blocks come and go, and the chunks at the ends of those that live are
    /// up to three more or fewer, from one shape to the next. (BERT's blocks placed for 300 shapes.)
    pub const CUDA_FRAMEWORK: Slack = Slack { ratio: 1.02, constant: Bytes::mib(6) };

    /// The prediction for an interpolated peak.
    fn on(self, peak: u64) -> Bytes {
        Bytes::new(peak).scale(self.ratio) + self.constant
    }
}

/// The result of a probe: its kept runs taken together, see [`ProbeRuns`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// The shape that was run.
    pub shape: Shape,
    /// Largest peak workspace of the kept runs.
    pub peak: Bytes,
    /// Time on the device of the least disturbed run.
    pub time: Micros,
}

/// How far a profile is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProfileState {
    /// Nothing is measured: no step can be predicted.
    Empty,
    /// Shapes up to those measured so far can be served; probes are left.
    Measuring,
    /// Measured as far as is useful, and checked.
    Complete,
    /// The measurements no longer agree with what steps need. They still serve, with the drift factor, while all of
    /// them are measured again.
    Stale,
}

/// A place on the grid; columns first, so that a range of the map is a column.
type Place = (u32 /* extent */, u32 /* batch */);

/// One measured point.
#[derive(Clone, Copy, Debug)]
struct Point {
    peak: Bytes,
    time: Micros,
    /// Measured since the profile was last marked stale.
    fresh: bool,
}

/// Peak memory and time of one model's steps by shape.
#[derive(Clone, Debug)]
pub struct Profile {
    axes: Axes,
    slack: Slack,
    /// In increasing order of extent.
    columns: Vec<Column>,
    points: BTreeMap<Place, Point>,
    checks: Checks,
    /// Probes that did not fit, and what they are known to need more than.
    too_large: BTreeMap<Place, Bytes>,
    stale: bool,
    /// Points of a restored profile that are measured once more before it is believed.
    spot_checks: Vec<Place>,
    // Derived from the above by `rebuild`, so that predictions and questions are cheap.
    peaks: Surface,
    times: Surface,
    /// For each extent that is measured the batch for a deep queue.
    fastest: Vec<(u32, u32)>,
    probes: Vec<Probe>,
}

impl Profile {
    /// A profile with nothing measured.
    pub fn new(axes: Axes, slack: Slack) -> Profile {
        let columns = grid::columns(&axes);
        let mut profile = Profile {
            axes,
            slack,
            columns,
            points: BTreeMap::new(),
            checks: Checks::default(),
            too_large: BTreeMap::new(),
            stale: false,
            spot_checks: Vec::new(),
            peaks: Surface::default(),
            times: Surface::default(),
            fastest: Vec::new(),
            probes: Vec::new(),
        };
        profile.rebuild();
        profile
    }

    /// What it is measured over.
    pub fn axes(&self) -> &Axes {
        &self.axes
    }

    /// Peak workspace of a step of this shape: the interpolation with the slack, without the drift factor. `None`
    /// where nothing bounds it: outside what is measured, of another kind, or empty.
    pub fn predicted(&self, shape: Shape) -> Option<Bytes> {
        let (batch, extent) = self.place(shape)?;
        Some(self.slack.on(self.peaks.at(batch, extent)?))
    }

    /// Time of a step of this shape; `None` exactly where [`Profile::predicted`] is.
    pub fn time(&self, shape: Shape) -> Option<Micros> {
        let (batch, extent) = self.place(shape)?;
        self.times.at(batch, extent).map(Micros::new)
    }

    /// The position of a shape that a step can have.
    fn place(&self, shape: Shape) -> Option<(u32, u32)> {
        let (batch, extent) = shape.position();
        (shape.kind() == self.axes.kind && batch > 0 && extent > 0).then_some((batch, extent))
    }

    /// Takes in what a step of this shape needed. Of several results for one shape the largest peak and the shortest
    /// time are kept, unless the profile was marked stale in between: then the new ones replace the old.
    ///
    /// A step that served requests may be recorded like a probe. A shape that the grid does not have is ignored: one that was asked for always has a place.
    pub fn record(&mut self, measured: Measured) {
        let (batch, extent) = measured.shape.position();
        if measured.shape.kind() != self.axes.kind {
            return;
        }
        let place = (extent, batch);
        if !self.has(place) && !self.checks.asks(place) {
            return;
        }
        if let Some(spot) = self.spot_checks.iter().position(|&other| other == place) {
            self.spot_checks.swap_remove(spot);
            let before = self.points.get(&place).map_or(Bytes::ZERO, |point| point.peak);
            if !validation::agrees(before, measured.peak, self.slack) {
                self.mark_stale();
            }
        }
        if let Some(missed) = self.checks.answer(place, measured, &self.peaks, self.slack) {
            self.split(missed);
        }
        if self.has(place) {
            self.keep(place, measured);
        }
        self.too_large.remove(&place);
        self.rebuild();
    }

    /// Keeps a result as a point of the grid.
    fn keep(&mut self, place: Place, measured: Measured) {
        let new = Point { peak: measured.peak, time: measured.time, fresh: true };
        let point = self.points.entry(place).or_insert(new);
        *point = match point.fresh {
            true => Point { peak: point.peak.max(new.peak), time: point.time.min(new.time), fresh: true },
            false => new,
        };
    }

    /// The next shape worth measuring whose upper estimate fits, or `None`: nothing is left, or nothing fits now.
    ///
    /// Until its result is recorded, or it is deferred, the same one is named again. Ask with the bytes that a lease
    /// could have (already divided by the drift factor).
    pub fn next_probe(&self, fits: Bytes) -> Option<Probe> {
        let fitting = |probe: &&Probe| {
            let (batch, extent) = probe.shape.position();
            probe.bound <= fits && self.too_large.get(&(extent, batch)).is_none_or(|&less| less < fits)
        };
        self.probes.iter().find(fitting).copied()
    }

    /// Says that a probe did not get by with `ceiling`: it stays unmeasured, and is asked for again when there is more
    /// room than that, or after [`Profile::retry_deferred`]. [`Bytes::MAX`] for one that failed otherwise: it is never asked for again.
    pub fn defer_probe(&mut self, shape: Shape, ceiling: Bytes) {
        let (batch, extent) = shape.position();
        self.too_large.insert((extent, batch), ceiling);
        self.rebuild();
    }

    /// Forgets which probes did not get by: a device may have refused what it can give now.
    pub fn retry_deferred(&mut self) {
        self.too_large.retain(|_, ceiling| *ceiling == Bytes::MAX);
        self.rebuild();
    }

    /// How far it is.
    pub fn state(&self) -> ProfileState {
        if self.points.is_empty() {
            ProfileState::Empty
        } else if self.stale {
            ProfileState::Stale
        } else if self.probes.is_empty() {
            ProfileState::Complete
        } else {
            ProfileState::Measuring
        }
    }

    /// Says that the measurements no longer hold: everything is measured again, the old values serving until then.
    /// Nothing changes while that is under way already: else steps that still exceed the old values would make it start
    /// over for ever.
    pub fn mark_stale(&mut self) {
        if self.points.is_empty() || self.stale {
            return;
        }
        self.stale = true;
        self.too_large.clear();
        self.spot_checks.clear();
        self.checks = Checks::default();
        for point in self.points.values_mut() {
            point.fresh = false;
        }
        self.rebuild();
    }

    /// Whether the grid has this place.
    fn has(&self, (extent, batch): Place) -> bool {
        let column = self.columns.binary_search_by_key(&extent, |column| column.extent);
        column.is_ok_and(|index| {
            let column = &self.columns[index];
            column.batches.binary_search(&batch).is_ok() || column.extra.binary_search(&batch).is_ok()
        })
    }

    /// Splits the cell around a held-out point that missed: a new column through it, and its batch in the columns at
    /// both sides.
    fn split(&mut self, (extent, batch): Place) {
        let index = match self.columns.binary_search_by_key(&extent, |column| column.extent) {
            Ok(index) => index,
            Err(index) => {
                self.columns.insert(index, Column::new(&self.axes, extent, Rank::Split));
                index
            }
        };
        let sides = index.saturating_sub(1)..(index + 2).min(self.columns.len());
        for column in &mut self.columns[sides] {
            // Below its first batch a column has no cell to split.
            if column.batches[0] < batch {
                column.add_extra(batch);
            }
        }
    }

    /// The batches of a column that are measured without a gap from the first one on.
    fn measured_batches<'a>(&'a self, column: &'a Column) -> impl Iterator<Item = (u32, Point)> + 'a {
        let point = |batch: &u32| Some((*batch, *self.points.get(&(column.extent, *batch))?));
        column.batches.iter().map_while(point)
    }

    /// The largest batch of a column up to which it is measured without a gap.
    fn column_reach(&self, column: &Column) -> Option<u32> {
        self.measured_batches(column).last().map(|(batch, _)| batch)
    }

    /// Brings what is derived up to date: which columns are in use, the two surfaces, what to measure next.
    fn rebuild(&mut self) {
        let used = self.columns_in_use();
        let columns = || used.iter().map(|&index| &self.columns[index]);
        let curve = |column: &Column, of: fn(Point) -> u64| {
            let reach = self.column_reach(column).unwrap_or(0);
            let points = self.points.range((column.extent, 0)..=(column.extent, reach));
            (column.extent, points.map(|(&(_, batch), &point)| (batch, of(point))).collect::<Vec<_>>())
        };
        let switches = &self.axes.extent.splits;
        let of_times = match self.axes.kind {
            ShapeKind::Padded => Growth::Monotone,
            ShapeKind::Ragged | ShapeKind::Generate => Growth::Unknown,
        };
        let peaks = columns().map(|column| curve(column, |point| point.peak.get()));
        let peaks = Surface::build(peaks, switches, Growth::Monotone);
        let times = columns().map(|column| curve(column, |point| point.time.get()));
        let times = Surface::build(times, switches, of_times);
        let extents: Vec<u32> = columns().map(|column| column.extent).collect();
        (self.peaks, self.times) = (peaks, times);
        self.fastest = self.find_fastest(&extents);
        let grid = survey::grid_probes(self);
        if grid.iter().any(|place| !self.too_large.contains_key(place)) {
            self.probes = survey::probes(self, grid);
            return;
        }
        // The grid is as complete as the memory allows: what the device said earlier is replaced, and the question is
        // whether the grid is fine enough.
        self.stale = false;
        let checks = if self.points.is_empty() { Vec::new() } else { self.checks.open(&self.axes, &self.peaks) };
        let all = self.spot_checks.iter().copied().chain(grid).chain(checks).collect();
        self.probes = survey::probes(self, all);
    }

    /// Indices of the columns that predictions use. A finer column comes into use when it goes as far as the coarser
    /// ones around it do together: before that it would take away more than it gives.
    fn columns_in_use(&self) -> Vec<usize> {
        // With their reach. While one rank joins, it holds only coarser ones.
        let mut used: Vec<(usize, u32)> = Vec::new();
        for rank in [Rank::Coarse, Rank::Fine, Rank::Split] {
            let mut joining = Vec::new();
            for (index, column) in self.columns.iter().enumerate().filter(|(_, column)| column.rank == rank) {
                let Some(reach) = self.column_reach(column) else { continue };
                let place = used.partition_point(|&(other, _)| other < index);
                let needed = match (place.checked_sub(1).map(|left| used[left].1), used.get(place)) {
                    (Some(left), Some(&(_, right))) => left.min(right),
                    _ => 0,
                };
                if reach >= needed {
                    joining.push((index, reach));
                }
            }
            used.extend(joining);
            used.sort_unstable();
        }
        used.into_iter().map(|(index, _)| index).collect()
    }
}
