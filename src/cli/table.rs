//! Text in columns.

use std::io::{self, Write};

/// Writes `rows` with each column as wide as its widest cell; the last column is not padded.
///
/// # Errors
/// Those of `out`.
pub(super) fn write<const N: usize>(out: &mut impl Write, rows: &[[String; N]]) -> io::Result<()> {
    let mut widths = [0; N];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    for row in rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["a", "bb", "c"], ["ccc", "ä", "dd"]].map(|row| row.map(str::to_owned));
        let mut out = Vec::new();
        super::write(&mut out, &rows).expect("a vector takes everything");
        assert_eq!(String::from_utf8(out).expect("text"), "a    bb  c\nccc  ä   dd\n");
    }
}
