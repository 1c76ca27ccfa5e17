//! The table of models: as many columns as the width has room for.

use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};

use super::figures::{bytes, count, percent};
use super::lines::{fill, name, seconds_or_nothing, state_style};
use super::view::ModelView;

/// A column: what stands above it, how wide it is, what is in it.
struct Column {
    head: &'static str,
    width: usize,
    cell: fn(&ModelView) -> String,
}

const fn column(head: &'static str, width: usize, cell: fn(&ModelView) -> String) -> Column {
    Column { head, width, cell }
}

const STATE: &str = "state";
/// What is always there; with a name of 16 it fills 80 cells.
static COLUMNS: [Column; 9] = [
    column("req/s", 5, |model| rate(model.requests)),
    column("rows/s", 6, |model| rate(model.rows)),
    column("tok/s", 5, |model| rate(model.tokens)),
    column("p50", 7, |model| seconds_or_nothing(model.p50)),
    column("p99", 7, |model| seconds_or_nothing(model.p99)),
    column("queue", 5, |model| count(model.queue)),
    column("share", 5, |model| model.share.map(percent).unwrap_or_default()),
    column("batch", 5, |model| rate(model.batch)),
    // Last, because most of the time there is nothing to see in it.
    column(STATE, 10, |model| model.state.clone()),
];
/// What is added where there is room for it, in this order.
static MORE: [Column; 3] = [
    column("oldest", 7, |model| if model.queue > 0.0 { seconds_or_nothing(Some(model.oldest)) } else { String::new() }),
    column("headroom", 9, |model| bytes(model.headroom).to_string()),
    column("weights", 9, |model| bytes(model.weights).to_string()),
];
/// The least that is seen of a name.
const NAME_MIN: usize = 5;

fn rate(value: Option<f64>) -> String {
    value.map(count).unwrap_or_default()
}

/// Each column has a space before it.
fn taken(columns: &[&Column]) -> usize {
    columns.iter().map(|column| column.width + 1).sum()
}

/// How wide the column of names is: as the longest, as far as there is room.
pub(super) fn name_width(models: &[ModelView], width: usize) -> usize {
    let longest = models.iter().map(|model| Span::raw(&model.name).width()).max().unwrap_or_default();
    let room = width.saturating_sub(taken(&COLUMNS.iter().collect::<Vec<_>>()));
    longest.min(room).max(NAME_MIN)
}

/// The heads, and a line for each model.
pub(super) fn models(models: &[ModelView], width: usize) -> Vec<Line<'static>> {
    let names = name_width(models, width);
    let mut columns: Vec<&Column> = COLUMNS.iter().collect();
    for more in &MORE {
        if names + taken(&columns) + more.width < width {
            // Before the state.
            columns.insert(columns.len() - 1, more);
        }
    }
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let heads = columns.iter().map(|column| format!(" {:>1$}", column.head, column.width));
    let mut lines = vec![Line::styled(fill("model", names) + &heads.collect::<String>(), bold)];
    for (index, model) in models.iter().enumerate() {
        let mut line = vec![name(&model.name, index, names)];
        for column in &columns {
            let style = if column.head == STATE { state_style(&model.state) } else { Style::new() };
            line.push(Span::styled(format!(" {:>1$}", (column.cell)(model), column.width), style));
        }
        lines.push(Line::from(line));
    }
    lines
}
