//! How good a finished profile is on shapes that it has not seen.

use std::io::{self, Write};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::cli::table;
use crate::memory::{Measured, Profile, Shape};
use crate::units::{Bytes, Micros};

/// When a prediction is loose. Peaks up to some size are not judged by their ratio: the granule is most of it. They are
/// to lie within two granules instead.
#[derive(Clone, Copy)]
struct Bar {
    ratio: f64,
    judged_from: Bytes,
    below: Bytes,
}

impl Bar {
    /// For a device of which this much is taken at a time, or is added to every prediction.
    fn of(granule: Bytes) -> Bar {
        let (ratio, judged_from) = match granule < Bytes::mib(1) {
            true => (1.15, Bytes::mib(1)),
            false => (1.10, (granule * 16).min(Bytes::mib(256))),
        };
        Bar { ratio, judged_from, below: granule * 2 }
    }
}

/// One shape, predicted and measured.
pub(super) struct Checked {
    measured: Measured,
    /// `None`: outside of what is measured, so that no step would have this shape.
    predicted: Option<Bytes>,
}

/// What the check says in sum.
pub(super) struct Verdict {
    /// Shapes whose prediction was below what was measured.
    pub(super) under: usize,
}

impl Checked {
    pub(super) fn new(profile: &Profile, measured: Measured) -> Checked {
        Checked { measured, predicted: profile.predicted(measured.shape) }
    }

    fn ratio(&self) -> Option<f64> {
        Some(self.predicted?.as_f64() / self.measured.peak.as_f64())
    }
}

/// `count` shapes: the extent log-uniform up to the longest, the batch log-uniform up to the envelope at that extent.
pub(super) fn shapes(profile: &Profile, count: u32, seed: u64) -> Vec<Shape> {
    let mut random = StdRng::seed_from_u64(seed);
    let axes = profile.axes();
    let mut draw = |low: u32, high: u32| -> u32 {
        let (low, high) = (f64::from(low), f64::from(high.max(low)) + 1.0);
        let value = (random.random_range(low.ln()..high.ln())).exp();
        value.floor().clamp(low, high - 1.0) as u32
    };
    let mut shapes = Vec::with_capacity(count as usize);
    while shapes.len() < count as usize {
        let extent = draw(axes.extent.min, axes.extent.max);
        let smallest = axes.kind.of_rows([crate::memory::RowFacts { tokens: extent }]).position().0;
        let Some(largest) = profile.largest_batch(extent, Bytes::MAX, Micros::MAX) else { continue };
        shapes.push(axes.kind.at(draw(smallest, largest.batch), extent));
    }
    shapes
}

/// Prints every shape and the sum.
pub(super) fn write(out: &mut impl Write, checked: &[Checked], granule: Bytes, seed: u64) -> io::Result<Verdict> {
    let bar = Bar::of(granule);
    writeln!(out, "\n{} shapes that the profile has not seen, seed {seed}", checked.len())?;
    let mut rows = vec![["shape", "predicted", "measured", "ratio"].map(str::to_owned)];
    for check in checked {
        rows.push([
            check.measured.shape.to_string(),
            check.predicted.map_or_else(|| "-".to_owned(), |predicted| predicted.to_string()),
            check.measured.peak.to_string(),
            check.ratio().map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}")),
        ]);
    }
    table::write(out, &rows)?;
    let unpredicted = checked.iter().filter(|check| check.predicted.is_none()).count();
    let under = checked.iter().filter(|check| check.ratio().is_some_and(|ratio| ratio < 1.0)).count();
    let (large, small): (Vec<_>, Vec<_>) = checked
        .iter()
        .filter(|check| check.predicted.is_some())
        .partition(|check| check.measured.peak > bar.judged_from);
    let ratios: Vec<f64> = large.iter().filter_map(|check| check.ratio()).collect();
    let tight = ratios.iter().filter(|ratio| **ratio <= bar.ratio).count();
    let near = small.iter().filter(|check| check.predicted <= Some(check.measured.peak + bar.below)).count();
    writeln!(out, "\npredicted below measured: {under}; not predicted: {unpredicted}")?;
    writeln!(
        out,
        "above {}: within {} x: {tight} of {}; largest ratio: {:.3}",
        bar.judged_from,
        bar.ratio,
        ratios.len(),
        ratios.iter().copied().fold(0.0, f64::max),
    )?;
    writeln!(out, "up to there: within {} above the measured peak: {near} of {}", bar.below, small.len())?;
    Ok(Verdict { under: under + unpredicted })
}
