//! Peak workspace by batch, one line for each length, as SVG.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::anyhow;
use plotters::prelude::*;

use crate::memory::{Profile, Role, TableLine};

const SIZE: (u32, u32) = (900, 540);
/// Lines beyond this many cannot be told apart: the columns are thinned out evenly.
const LINES_MAX: usize = 10;

/// Writes the plot.
///
/// # Errors
/// The file cannot be written, or nothing is measured.
pub(super) fn write(path: &Path, model: &str, profile: &Profile) -> anyhow::Result<()> {
    let svg = render(model, profile)?;
    std::fs::write(path, svg).map_err(|error| anyhow!("{}: {error}", path.display()))
}

fn render(model: &str, profile: &Profile) -> anyhow::Result<String> {
    let lines: Vec<TableLine> = profile.table().lines;
    let mut columns: BTreeMap<u32, Vec<(f64, f64)>> = BTreeMap::new();
    for line in lines.iter().filter(|line| line.role == Role::Grid) {
        let (batch, extent) = line.shape.position();
        columns.entry(extent).or_default().push((f64::from(batch), line.peak.as_f64() / f64::from(1 << 20)));
    }
    let points = || columns.values().flatten();
    let largest = |of: fn(&(f64, f64)) -> f64| points().map(of).fold(0.0, f64::max);
    let (batch_max, peak_max) = (largest(|point| point.0), largest(|point| point.1));
    if batch_max == 0.0 {
        return Err(anyhow!("nothing is measured"));
    }
    let step = columns.len().div_ceil(LINES_MAX);
    let shown: Vec<_> = columns.iter().rev().step_by(step).collect();
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let batch_min = points().map(|point| point.0).fold(batch_max, f64::min);
        let mut chart = ChartBuilder::on(&root)
            .caption(format!("{model}: peak workspace of a step"), ("sans-serif", 20))
            .margin(12)
            .x_label_area_size(36)
            .y_label_area_size(56)
            .build_cartesian_2d((batch_min..batch_max * 1.1).log_scale(), 0.0..peak_max * 1.05)?;
        chart.configure_mesh().x_desc("batch (rows, or tokens of ragged models)").y_desc("MiB").draw()?;
        for (index, (extent, points)) in shown.into_iter().enumerate() {
            let color = Palette99::pick(index).to_rgba();
            chart
                .draw_series(LineSeries::new(points.iter().copied(), color.stroke_width(2)).point_size(3))?
                .label(format!("length {extent}"))
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
        }
        chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(BLACK).draw()?;
        root.present()?;
    }
    Ok(svg)
}
