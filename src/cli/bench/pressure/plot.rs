//! Free memory, batch sizes and goodput over time, one column an arm, as SVG.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use super::neighbour::Event;
use super::report::{ArmPart, PressureReport};

/// Size of one chart in pixels.
const WIDTH: u32 = 460;
const HEIGHT: u32 = 220;

/// Above the charts.
const TITLE: u32 = 34;

/// Width of a bar of the goodput in seconds.
const PART: f64 = 0.5;

/// Points of a line: more than pixels only make the file large.
const POINTS_MAX: usize = 900;

const FREE: RGBColor = RGBColor(31, 119, 180);
const HELD: RGBColor = RGBColor(220, 120, 40);
const BATCH: RGBColor = RGBColor(60, 60, 60);
const BY_MEMORY: RGBColor = RGBColor(200, 30, 60);
const GOODPUT: RGBColor = RGBColor(44, 140, 70);

/// The same axes for every arm, so that they can be compared by eye.
struct Axes {
    from_s: f64,
    until_s: f64,
    mib: f64,
    rows: f64,
    goodput: f64,
}

/// Writes the plot.
///
/// # Errors
/// A file that cannot be written.
pub(super) fn write(path: &Path, report: &PressureReport) -> anyhow::Result<()> {
    let svg = render(report)?;
    Ok(std::fs::write(path, svg)?)
}

fn render(report: &PressureReport) -> anyhow::Result<String> {
    let mut svg = String::new();
    let columns = report.arms.len() as u32;
    {
        let root = SVGBackend::with_string(&mut svg, (columns * WIDTH, TITLE + 3 * HEIGHT)).into_drawing_area();
        root.fill(&WHITE)?;
        let (title, charts) = root.split_vertically(TITLE);
        let words =
            "free memory (blue; orange: the neighbour's), rows of each step (red: memory decided), good rows/s (green)";
        title.draw_text(words, &("sans-serif", 15).into_text_style(&title), (10, 10))?;
        let axes = Axes::of(report);
        let cells = charts.split_evenly((3, columns as usize));
        for (column, arm) in report.arms.iter().enumerate() {
            let cell = |line: usize| &cells[line * columns as usize + column];
            memory(cell(0), arm, &axes)?;
            batches(cell(1), arm, &axes)?;
            goodput(cell(2), arm, &axes)?;
        }
        root.present()?;
    }
    Ok(svg)
}

impl Axes {
    fn of(report: &PressureReport) -> Axes {
        let most = |value: &dyn Fn(&ArmPart) -> f64| report.arms.iter().map(value).fold(1.0, f64::max);
        Axes {
            from_s: report.arms.iter().map(|arm| arm.timeline.begin_s).fold(0.0, f64::min),
            until_s: most(&|arm| arm.timeline.end_s),
            mib: mib(report.limit_bytes),
            rows: most(&|arm| arm.timeline.steps.iter().map(|step| f64::from(step.rows)).fold(1.0, f64::max)) * 1.05,
            goodput: most(&|arm| arm.timeline.goodput(PART).iter().map(|part| part.1).fold(1.0, f64::max)) * 1.05,
        }
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A chart with its axes; `caption` names the arm above the first one.
macro_rules! chart {
    ($area:expr, $caption:expr, $axes:expr, $top:expr, $unit:expr) => {{
        let mut chart = ChartBuilder::on($area)
            .caption($caption, ("sans-serif", 14))
            .margin(8)
            .x_label_area_size(22)
            .y_label_area_size(52)
            .build_cartesian_2d($axes.from_s..$axes.until_s, 0.0..$top)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_labels(6)
            .y_labels(5)
            .x_label_formatter(&|at| format!("{at:.0} s"))
            .y_label_formatter(&|value| format!("{value:.0}"))
            .y_desc($unit)
            .label_style(("sans-serif", 11))
            .draw()?;
        chart
    }};
}

fn memory(area: &Area<'_>, arm: &ArmPart, axes: &Axes) -> anyhow::Result<()> {
    let mut caption = format!("{}: {} failed, {:.0} good rows/s", arm.arm, arm.total.failed, arm.total.good.rows);
    if let Some(at) = arm.verdict.server_died_s {
        caption.push_str(&format!(", server died after {at:.1} s"));
    }
    if arm.did_not_start.is_some() {
        caption.push_str(", did not start");
    }
    let mut chart = chart!(area, caption, axes, axes.mib, "MiB");
    let points = &arm.timeline.memory;
    let thin = points.len().div_ceil(POINTS_MAX).max(1);
    let free = points.iter().step_by(thin).map(|point| (point.at_s, mib(point.free_bytes)));
    chart.draw_series(AreaSeries::new(free, 0.0, FREE.mix(0.25)).border_style(FREE))?;
    let held = points.iter().step_by(thin).map(|point| (point.at_s, mib(point.neighbour_bytes)));
    chart.draw_series(LineSeries::new(held, HELD))?;
    for point in &arm.timeline.events {
        if let Event::Load { .. } | Event::Waits { .. } = point.event {
            chart.draw_series(LineSeries::new([(point.at_s, 0.0), (point.at_s, axes.mib)], BLACK.mix(0.4)))?;
        }
    }
    Ok(())
}

fn batches(area: &Area<'_>, arm: &ArmPart, axes: &Axes) -> anyhow::Result<()> {
    let mut chart = chart!(area, "", axes, axes.rows, "rows");
    let dots = arm.timeline.steps.iter().map(|step| {
        let colour = if step.reason == "memory" { BY_MEMORY } else { BATCH };
        Circle::new((step.seen_s, f64::from(step.rows)), 1, colour.filled())
    });
    chart.draw_series(dots)?;
    Ok(())
}

fn goodput(area: &Area<'_>, arm: &ArmPart, axes: &Axes) -> anyhow::Result<()> {
    let mut chart = chart!(area, "", axes, axes.goodput, "rows/s");
    let parts = arm.timeline.goodput(PART).into_iter();
    let bars = parts.map(|(at, rows)| Rectangle::new([(at, 0.0), (at + PART, rows)], GOODPUT.filled()));
    chart.draw_series(bars)?;
    Ok(())
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / (1u64 << 20) as f64
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::report;
    use super::*;

    /// Goal: every arm has its three charts with its data. Method: the drawing's elements are counted.
    #[test]
    fn every_arm_is_drawn() {
        let report = report();
        let svg = render(&report).unwrap();
        assert!(svg.starts_with("<svg width=\"2300\" height=\"694\""), "{}", &svg[..80]);
        for text in ["as shipped: 0 failed, 900 good rows/s", "fixed:8: 2 failed", "server died after 2.5 s"] {
            assert!(svg.contains(text), "{text}");
        }
        let steps: usize = report.arms.iter().map(|arm| arm.timeline.steps.len()).sum();
        assert_eq!(svg.matches("<circle").count(), steps);
        assert!(svg.matches("<polygon").count() >= report.arms.len(), "an area of free memory for each arm");
    }
}
