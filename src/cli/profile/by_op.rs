//! `--by-op`: which layer and operation of one step holds how much memory at its peak.

use std::io::{self, Write};
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, bail};

use super::session::Session;
use crate::cli::table;
use crate::device::trace::Trace;
use crate::memory::{Axes, Shape, ShapeKind};
use crate::units::Bytes;

/// Rows and their length, such as `32x128`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowsByLength {
    rows: u32,
    length: u32,
}

impl FromStr for RowsByLength {
    type Err = String;

    fn from_str(text: &str) -> Result<RowsByLength, String> {
        let number = |text: &str| text.trim().parse::<u32>().ok().filter(|number| *number > 0);
        let parts = text.split_once(['x', 'X']).and_then(|(rows, length)| Some((number(rows)?, number(length)?)));
        let (rows, length) = parts.ok_or("rows x length, such as 32x128")?;
        Ok(RowsByLength { rows, length })
    }
}

impl RowsByLength {
    /// The step of so many rows of this length.
    ///
    /// # Errors
    /// If the model's envelope does not contain it.
    fn shape(self, axes: &Axes) -> anyhow::Result<Shape> {
        let RowsByLength { rows, length } = self;
        if length > axes.extent.max {
            bail!("rows have at most {} tokens", axes.extent.max);
        }
        let tokens = u64::from(rows) * u64::from(length);
        if tokens > u64::from(axes.step_tokens_max) && rows > 1 {
            bail!("{rows} x {length} is {tokens} tokens, and a step has at most {}", axes.step_tokens_max);
        }
        Ok(match axes.kind {
            ShapeKind::Padded => axes.kind.at(rows, length),
            // Within the envelope, which 32 bits hold.
            ShapeKind::Ragged | ShapeKind::Generate => axes.kind.at(tokens as u32, length),
        })
    }
}

/// The envelope's corner: as many of the longest rows as a step may have.
fn largest(axes: &Axes) -> RowsByLength {
    let length = axes.extent.max;
    RowsByLength { rows: (axes.step_tokens_max / length).max(1), length }
}

/// Traces a step, prints the table, and draws the timeline where one is wanted.
///
/// # Errors
/// The step fails or is outside of the envelope, or the picture cannot be written.
pub(super) fn run(
    out: &mut impl Write,
    session: &mut Session,
    asked: Option<RowsByLength>,
    svg: Option<&Path>,
) -> anyhow::Result<()> {
    let axes = session.blueprint().axes();
    let shape = asked.unwrap_or_else(|| largest(&axes)).shape(&axes)?;
    let (trace, measured) = session.trace(shape)?;
    writeln!(out, "a step of {shape}: {} at the peak, after {}; {} blocks\n", trace.peak, trace.peak_at, trace.blocks)?;
    write_table(out, &trace)?;
    if trace.missed > 0 {
        writeln!(out, "\n{} events came too late to be recorded: the true peak may be another", trace.missed)?;
    }
    // Compute threads may be recorded in another order than they are counted in; that is worth less.
    let unseen = measured.saturating_sub(trace.peak);
    if unseen > session.slack().constant {
        writeln!(out, "\n{unseen} more were alive that no event accounts for")?;
    }
    if let Some(path) = svg {
        let title = format!("{}: memory of a step of {shape}", session.blueprint().card().name);
        let picture = trace.svg(&title).map_err(anyhow::Error::msg)?;
        std::fs::write(path, picture).with_context(|| format!("{} cannot be written", path.display()))?;
        writeln!(out, "\ntimeline in {}", path.display())?;
    }
    Ok(())
}

fn write_table(out: &mut impl Write, trace: &Trace) -> io::Result<()> {
    let mut rows = vec![["bytes", "share", "blocks", "layer", "operation", "shape"].map(str::to_owned)];
    for holder in &trace.holders {
        rows.push([
            holder.bytes.to_string(),
            share(holder.bytes, trace.peak),
            holder.blocks.to_string(),
            holder.layer.clone(),
            holder.operation.clone(),
            holder.shape.clone(),
        ]);
    }
    table::write(out, &rows)
}

fn share(part: Bytes, whole: Bytes) -> String {
    format!("{:.1} %", 100.0 * part.as_f64() / whole.as_f64().max(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Axis;

    fn axes(kind: ShapeKind) -> Axes {
        let axis = |max| Axis { min: 1, max, splits: Vec::new() };
        Axes { kind, batch: axis(1024), extent: axis(256), step_tokens_max: 1024, measured_tokens_min: 256 }
    }

    #[test]
    fn rows_by_length_become_the_shape_of_the_kind() {
        let check = |text: &str, kind, expected: Option<Shape>| {
            let asked: RowsByLength = text.parse().expect("well formed");
            assert_eq!(asked.shape(&axes(kind)).ok(), expected, "{text}");
        };
        check("4x256", ShapeKind::Padded, Some(Shape::Padded { rows: 4, length: 256 }));
        check("4 x 256", ShapeKind::Ragged, Some(Shape::Ragged { tokens: 1024, longest: 256 }));
        check("5x256", ShapeKind::Padded, None);
        check("1x257", ShapeKind::Padded, None);
        for text in ["", "4", "x", "0x3", "3x0", "4x4x4", "-1x3"] {
            assert!(text.parse::<RowsByLength>().is_err(), "{text}");
        }
        assert_eq!(largest(&axes(ShapeKind::Padded)), RowsByLength { rows: 4, length: 256 });
    }
}
