//! A profile as plain data: to be printed, and to be kept between runs of the server.

use super::grid::{Column, Rank};
use super::validation::{Check, Checks};
use super::{Place, Point, Profile, Slack};
use crate::memory::{Axes, Shape};
use crate::units::{Bytes, Micros};

/// What a measured point is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Predictions are interpolated between these.
    Grid,
    /// Measured to check the predictions, and not used by them.
    HeldOut,
}

/// One measured point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableLine {
    /// The shape.
    pub shape: Shape,
    /// What it is for.
    pub role: Role,
    /// Peak workspace that the profile predicts for it; not needed to restore the profile.
    pub predicted: Option<Bytes>,
    /// Measured peak workspace.
    pub peak: Bytes,
    /// Measured time.
    pub time: Micros,
}

/// All that a profile knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// What it is measured over.
    pub axes: Axes,
    /// What is measured, in order of extent and batch.
    pub lines: Vec<TableLine>,
    /// Shapes that should be measured and did not fit yet.
    pub unmeasured: Vec<Shape>,
}

/// Why a table is not a profile of this model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// It was measured over other axes: the model, its longest length or the envelope has changed.
    #[error("it was measured over other axes than this model has now")]
    OtherAxes,
    /// A shape is outside the axes, or of another kind.
    #[error("the shape {0} is not one of this model's")]
    BadShape(Shape),
    /// A shape is there twice.
    #[error("the shape {0} is there twice")]
    Twice(Shape),
    /// A peak or a time is zero.
    #[error("the shape {0} has no peak or no time")]
    NoMeasurement(Shape),
}

impl Profile {
    /// What it knows, as data.
    pub fn table(&self) -> Table {
        let line = |(extent, batch): Place, role, peak, time| {
            let shape = self.axes.kind.at(batch, extent);
            TableLine { shape, role, predicted: self.predicted(shape), peak, time }
        };
        let grid = self.points.iter().map(|(&place, point)| line(place, Role::Grid, point.peak, point.time));
        let missed = |place: &Place| self.points.contains_key(place);
        let checks = self.checks.points().iter().filter(|check| !missed(&check.place));
        let held_out = checks.filter_map(|check| {
            let (peak, time) = check.measured?;
            Some(line(check.place, Role::HeldOut, peak, time))
        });
        let mut lines: Vec<TableLine> = grid.chain(held_out).collect();
        lines.sort_by_key(|line| (line.shape.position().1, line.shape.position().0));
        let shape = |&(extent, batch): &Place| self.axes.kind.at(batch, extent);
        Table { axes: self.axes.clone(), lines, unmeasured: self.too_large.keys().map(shape).collect() }
    }

    /// The profile of a model with these axes from what was measured earlier. It serves at once; two of its points are
    /// the first probes, and where one no longer agrees the profile is stale. Shapes that did not fit then are asked
    /// for again.
    ///
    /// # Errors
    /// When the table is not one of this model, or says what cannot have been measured; the caller measures anew.
    pub fn from_table(table: &Table, axes: &Axes, slack: Slack) -> Result<Profile, TableError> {
        if table.axes != *axes {
            return Err(TableError::OtherAxes);
        }
        let mut profile = Profile::new(axes.clone(), slack);
        let mut checks = Vec::new();
        for line in &table.lines {
            let (batch, extent) = line.shape.position();
            let place = (extent, batch);
            if line.shape.kind() != axes.kind || !profile.is_legal(place) {
                return Err(TableError::BadShape(line.shape));
            }
            if line.peak == Bytes::ZERO || line.time == Micros::ZERO {
                return Err(TableError::NoMeasurement(line.shape));
            }
            let known = profile.points.contains_key(&place) || checks.iter().any(|check: &Check| check.place == place);
            if known {
                return Err(TableError::Twice(line.shape));
            }
            match line.role {
                Role::Grid => profile.restore(place, Point { peak: line.peak, time: line.time, fresh: true }),
                Role::HeldOut => checks.push(Check { place, measured: Some((line.peak, line.time)) }),
            }
        }
        if !checks.is_empty() {
            profile.checks = Checks::restored(checks);
        }
        profile.spot_checks = profile.spot_places();
        profile.rebuild();
        Ok(profile)
    }

    /// The smallest point and, halfway along the extents, the smallest batch: cheap, and of different size.
    fn spot_places(&self) -> Vec<Place> {
        let firsts: Vec<Place> = self.columns.iter().map(|column| (column.extent, column.batches[0])).collect();
        let mut places = vec![firsts[0], firsts[firsts.len() / 2]];
        places.dedup();
        places.retain(|place| self.points.contains_key(place));
        places
    }

    /// Whether a step can be there.
    fn is_legal(&self, (extent, batch): Place) -> bool {
        let (axis, first) = (&self.axes.extent, super::grid::first_batch(&self.axes, extent));
        let last = super::grid::last_batch(&self.axes, extent);
        (axis.min..=axis.max).contains(&extent) && (first..=last).contains(&batch)
    }

    /// Puts a point back, with the split column or batch that it belongs to.
    fn restore(&mut self, place: Place, point: Point) {
        let (extent, batch) = place;
        let index = match self.columns.binary_search_by_key(&extent, |column| column.extent) {
            Ok(index) => index,
            Err(index) => {
                self.columns.insert(index, Column::new(&self.axes, extent, Rank::Split));
                index
            }
        };
        self.columns[index].add_extra(batch);
        self.points.insert(place, point);
    }
}
