//! Bytes alive over the time of a step, as a picture.

use plotters::prelude::*;

use super::{Moment, Trace};
use crate::units::Bytes;

const SIZE: (u32, u32) = (900, 420);
/// Points that a picture has room for; of more, the highest and the lowest of each stretch are drawn.
const POINTS_MAX: usize = 1_800;

impl Trace {
    /// The timeline as SVG under `title`, the peak marked.
    ///
    /// # Errors
    /// What the drawing library says; there is no reason known.
    pub fn svg(&self, title: &str) -> Result<String, String> {
        render(self, title).map_err(|error| error.to_string())
    }
}

fn render(trace: &Trace, title: &str) -> Result<String, Box<dyn std::error::Error>> {
    let point = |moment: &Moment| (moment.at.get() as f64 / 1e3, mebibytes(moment.live));
    let end = trace.timeline.last().map_or(1.0, |last| point(last).0).max(1e-3);
    let peak = (trace.peak_at.get() as f64 / 1e3, mebibytes(trace.peak));
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&root)
            .caption(title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(36)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..end * 1.02, 0.0..(peak.1 * 1.1).max(1e-3))?;
        chart.configure_mesh().x_desc("ms").y_desc("MiB alive").draw()?;
        let steps = staircase(thinned(&trace.timeline).iter().map(point));
        chart.draw_series(AreaSeries::new(steps, 0.0, BLUE.mix(0.15)).border_style(BLUE))?;
        chart.draw_series([Circle::new(peak, 4, RED.filled())])?;
        let style = ("sans-serif", 13).into_font().color(&RED);
        // At the left, above the curve: the peak itself may be at the right edge.
        let place = (end * 0.02, peak.1 * 1.08);
        chart.draw_series([Text::new(format!("peak: {} at {:.2} ms", trace.peak, peak.0), place, style)])?;
        root.present()?;
    }
    Ok(svg)
}

/// What is alive stays alive until the next event.
fn staircase(points: impl Iterator<Item = (f64, f64)>) -> Vec<(f64, f64)> {
    let mut steps = vec![(0.0, 0.0)];
    for (at, live) in points {
        let before = steps[steps.len() - 1].1;
        steps.extend([(at, before), (at, live)]);
    }
    steps
}

/// At most [`POINTS_MAX`] moments, among them the peak.
fn thinned(timeline: &[Moment]) -> Vec<Moment> {
    if timeline.len() <= POINTS_MAX {
        return timeline.to_vec();
    }
    let stretch = timeline.len().div_ceil(POINTS_MAX / 2);
    let ends = |moments: &[Moment]| {
        let by_live = |index: &usize| moments[*index].live;
        let highest = (0..moments.len()).max_by_key(by_live)?;
        let lowest = (0..moments.len()).min_by_key(by_live)?;
        Some([moments[highest.min(lowest)], moments[highest.max(lowest)]])
    };
    timeline.chunks(stretch).filter_map(ends).flatten().collect()
}

fn mebibytes(bytes: Bytes) -> f64 {
    bytes.as_f64() / f64::from(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Micros;

    fn moments(count: u64, peak: u64) -> Vec<Moment> {
        let live = |at: u64| Bytes::new(if at == peak { 1_000_000 } else { at % 100 });
        (0..count).map(|at| Moment { at: Micros::new(at), live: live(at) }).collect()
    }

    #[test]
    fn thinning_keeps_the_peak_and_the_order() {
        for (count, peak) in [(1, 0), (POINTS_MAX as u64, 3), (100_000, 77_777)] {
            let all = moments(count, peak);
            let few = thinned(&all);
            assert!(few.len() <= POINTS_MAX.min(all.len()));
            assert!(few.contains(&all[peak as usize]), "the peak of {count}");
            assert!(few.is_sorted_by_key(|moment| moment.at));
        }
    }

    #[test]
    fn the_picture_names_the_peak() {
        let timeline = moments(10, 4);
        let trace = Trace {
            peak: Bytes::new(1_000_000),
            peak_at: Micros::new(4),
            holders: Vec::new(),
            timeline,
            blocks: 10,
            missed: 0,
        };
        let svg = trace.svg("a step").expect("nothing known goes wrong");
        assert!(svg.starts_with("<svg") && svg.contains("a step") && svg.contains(&trace.peak.to_string()));
    }
}
