//! The view as lines of text, for a terminal and for a log alike. Colours repeat what characters say, or point at what
//! is wrong.

use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

use super::figures::{bytes, count, percent, seconds, share_out};
use super::table;
use super::view::{Condition, DeviceView, Event, ModelView, Part, View};

/// Models' colours, in turn; red is kept for what is wrong.
const COLOURS: [Color; 6] = [Color::Cyan, Color::Yellow, Color::Magenta, Color::Green, Color::Blue, Color::LightCyan];
const GOOD: Style = Style::new().fg(Color::Green);
const WARN: Style = Style::new().fg(Color::Yellow);
const BAD: Style = Style::new().fg(Color::Red);
const HEAD: Style = Style::new().add_modifier(Modifier::BOLD);
const DIM: Style = Style::new().add_modifier(Modifier::DIM);

const COLUMNS_IN_WORDS: &str = "queue: rows that wait; share: of the device's time; batch: mean rows of a step";
/// Cells of the bar of reasons.
const REASON_CELLS: usize = 16;

/// The whole view, in lines of at most `width` cells.
pub(super) fn lines(view: &View, width: usize) -> Vec<Line<'static>> {
    let mut lines = vec![title(view)];
    let condition = condition(&view.condition);
    lines.extend(condition.map(Line::from));
    for device in &view.devices {
        lines.push(Line::default());
        lines.extend(memory(device, &view.models, width));
    }
    if !view.models.is_empty() {
        lines.push(Line::default());
        lines.extend(table::models(&view.models, width));
        lines.push(Line::styled(COLUMNS_IN_WORDS, DIM));
        lines.push(Line::default());
        lines.extend(reasons(&view.models, width));
        lines.push(Line::default());
        lines.extend(events(view, width));
    }
    lines
}

/// The style of the model with this index.
pub(super) fn model_style(index: usize) -> Style {
    Style::new().fg(COLOURS[index % COLOURS.len()])
}

/// The model's name, cut or filled to this many cells.
pub(super) fn name(name: &str, index: usize, width: usize) -> Span<'static> {
    Span::styled(fill(name, width), model_style(index))
}

/// What a model's state looks like: nothing is said of the one that it should be in.
pub(super) fn state_style(state: &str) -> Style {
    match state {
        "broken" => BAD,
        "loading" | "draining" => WARN,
        _ => Style::new(),
    }
}

/// Cut or filled to this many cells.
pub(super) fn fill(text: &str, width: usize) -> String {
    let cells = |text: &str| Span::raw(text).width();
    let mut text = text.to_owned();
    if cells(&text) > width {
        while cells(&text) >= width.max(1) {
            text.pop();
        }
        text.push('…');
    }
    let missing = width.saturating_sub(cells(&text));
    text + &" ".repeat(missing)
}

fn title(view: &View) -> Line<'static> {
    let mut spans = vec![Span::styled(format!("Plimsoll {}", view.version).trim_end().to_owned(), HEAD)];
    spans.push(Span::raw(format!(" at {}", view.address)));
    if matches!(view.condition, Condition::Ready) {
        spans.push(Span::raw(", "));
        spans.push(Span::styled("ready", GOOD));
    }
    if !view.window.is_zero() {
        spans.push(Span::raw(format!("; rates over {:.0} s", view.window.as_secs_f64().max(1.0))));
    }
    Line::from(spans)
}

/// What is not as it should be.
fn condition(condition: &Condition) -> Option<Span<'static>> {
    match condition {
        Condition::Ready => None,
        Condition::Asking => Some(Span::raw("asking ...")),
        Condition::NotReady(reason) => Some(Span::styled(format!("not ready: {reason}"), WARN)),
        Condition::Away { since, reason } => {
            Some(Span::styled(format!("no answer for {} s, asked again: {reason}", since.as_secs()), BAD))
        }
    }
}

/// The device's bytes in one bar, with what each character means below it.
fn memory(device: &DeviceView, models: &[ModelView], width: usize) -> Vec<Line<'static>> {
    let facts = [
        format!("{} used of a budget of {}", bytes(device.used), bytes(device.budget)),
        format!("{} headroom", bytes(device.headroom)),
    ];
    let busy = device.busy.map(|busy| format!("busy {}", percent(busy)));
    let facts = facts.into_iter().chain(busy).map(|fact| vec![Span::raw(fact)]);
    let head = std::iter::once(vec![Span::styled(device.name.clone(), HEAD)]);
    let mut bar = vec![Span::raw("[")];
    let mut legend = Vec::new();
    let values: Vec<f64> = device.parts.iter().map(|(_, bytes)| *bytes).collect();
    // Two brackets and the mark at the end of the budget.
    let cells = share_out(&values, width.saturating_sub(3));
    let in_budget = |part: Part| !matches!(part, Part::Fixed | Part::Others | Part::Beyond);
    let end = device.parts.iter().take_while(|(part, _)| in_budget(*part)).count();
    for (index, ((part, value), cells)) in device.parts.iter().zip(cells).enumerate() {
        if index == end {
            bar.push(Span::styled("|", HEAD));
        }
        let (symbol, style) = symbol(*part);
        // What is taken is filled.
        let taken = !matches!(part, Part::Headroom | Part::Beyond);
        let filled = if taken { style.add_modifier(Modifier::REVERSED) } else { style };
        bar.push(Span::styled(symbol.to_string().repeat(cells), filled));
        let text = format!("{symbol} {} {}", part_name(*part, models), bytes(*value));
        legend.push(vec![Span::styled(text, style)]);
    }
    if end == device.parts.len() {
        bar.push(Span::styled("|", HEAD));
    }
    bar.push(Span::raw("]"));
    legend.push(vec![Span::styled("|", HEAD), Span::raw(" end of the budget")]);
    let mut lines = flow(vec![], head.chain(facts).collect(), width);
    lines.push(Line::from(bar));
    lines.extend(flow(vec![], legend, width));
    lines
}

fn symbol(part: Part) -> (char, Style) {
    // With more than 26 models letters are used again, as colours are.
    let letter = |first: u8, index: usize| char::from(first + (index % 26) as u8);
    match part {
        Part::Weights(index) => (letter(b'A', index), model_style(index)),
        Part::KvCache(index) => (letter(b'a', index), model_style(index)),
        Part::Workspace => ('#', Style::new()),
        Part::CachedWorkspace => ('+', Style::new()),
        Part::Libraries => ('=', Style::new()),
        Part::Headroom => ('.', GOOD),
        Part::Fixed => ('%', Style::new()),
        Part::Others => ('/', WARN),
        Part::Beyond => ('_', Style::new()),
    }
}

fn part_name(part: Part, models: &[ModelView]) -> String {
    let model = |index: usize| models.get(index).map(|model| model.name.clone()).unwrap_or_default();
    match part {
        Part::Weights(index) => model(index),
        Part::KvCache(index) => format!("{} KV cache", model(index)),
        Part::Workspace => "workspace".to_owned(),
        Part::CachedWorkspace => "workspace kept".to_owned(),
        Part::Libraries => "libraries".to_owned(),
        Part::Headroom => "headroom".to_owned(),
        Part::Fixed => "fixed".to_owned(),
        Part::Others => "others".to_owned(),
        Part::Beyond => "free".to_owned(),
    }
}

/// Why the steps of each model that had any were not larger.
fn reasons(models: &[ModelView], width: usize) -> Vec<Line<'static>> {
    let mut lines = vec![Line::styled("Why batches were not larger, by steps", HEAD)];
    let names = table::name_width(models, width);
    for (index, model) in models.iter().enumerate().filter(|(_, model)| !model.reasons.is_empty()) {
        let shares: Vec<f64> = model.reasons.iter().map(|(_, share)| *share).collect();
        let mut head = vec![name(&model.name, index, names), Span::raw(" ")];
        let mut entries = Vec::new();
        for ((reason, share), cells) in model.reasons.iter().zip(share_out(&shares, REASON_CELLS)) {
            let (symbol, meaning, style) = reason_words(reason);
            head.push(Span::styled(symbol.repeat(cells), style));
            entries.push(vec![Span::styled(format!("{symbol} {meaning} {}", percent(*share)), style)]);
        }
        head.push(Span::raw(" "));
        lines.extend(flow(head, entries, width));
    }
    if lines.len() == 1 {
        lines.push(Line::raw("no steps"));
    }
    lines
}

/// How a reason is drawn and said. Memory is the one that this server is about.
fn reason_words(reason: &str) -> (&'static str, String, Style) {
    match reason {
        "queue" => ("-", "no more waited".to_owned(), Style::new()),
        "knee" => ("=", "more gains nothing".to_owned(), Style::new()),
        "memory" => ("#", "memory".to_owned(), WARN),
        "latency" => ("~", "latency".to_owned(), Style::new()),
        "limit" => ("|", "a limit".to_owned(), Style::new()),
        other => ("?", other.to_owned(), Style::new()),
    }
}

/// What each model had to do or refuse.
fn events(view: &View, width: usize) -> Vec<Line<'static>> {
    let recent = match view.recent.as_secs() {
        0 => String::new(),
        1..60 => format!(" (+ in the last {} s)", view.recent.as_secs()),
        _ => " (+ in the last minute)".to_owned(),
    };
    let title = format!("Memory that fell short, and refusals: since the start{recent}");
    let mut lines = vec![Line::styled(title, HEAD)];
    let names = table::name_width(&view.models, width);
    for (index, model) in view.models.iter().enumerate().filter(|(_, model)| !model.events.is_empty()) {
        let head = vec![name(&model.name, index, names), Span::raw(" ")];
        lines.extend(flow(head, model.events.iter().map(event).collect(), width));
    }
    if lines.len() == 1 {
        lines.push(Line::raw("none"));
    }
    lines
}

fn event(Event { what, total, recent, refused }: &Event) -> Vec<Span<'static>> {
    let style = match (*recent > 0.0, refused) {
        (false, _) => Style::new(),
        (true, false) => WARN,
        (true, true) => BAD,
    };
    let recent = if *recent > 0.0 { format!(" (+{})", count(*recent)) } else { String::new() };
    vec![Span::styled(format!("{what} {}{recent}", count(*total)), style)]
}

/// Entries one after the other behind a head, in as many lines as they take; further ones begin below the first entry.
fn flow(head: Vec<Span<'static>>, entries: Vec<Vec<Span<'static>>>, width: usize) -> Vec<Line<'static>> {
    let cells = |spans: &[Span<'static>]| spans.iter().map(Span::width).sum::<usize>();
    let indent = cells(&head);
    let mut lines = Vec::new();
    let (mut line, mut used, mut first) = (head, indent, true);
    for entry in entries {
        let needed = cells(&entry) + if first { 0 } else { 2 };
        if !first && used + needed > width {
            let next = if indent > 0 { vec![Span::raw(" ".repeat(indent))] } else { Vec::new() };
            lines.push(Line::from(std::mem::replace(&mut line, next)));
            used = indent + needed - 2;
        } else {
            if !first {
                line.push(Span::raw("  "));
            }
            used += needed;
        }
        line.extend(entry);
        first = false;
    }
    lines.push(Line::from(line));
    lines
}

/// How long a time is, or nothing where none is known.
pub(super) fn seconds_or_nothing(value: Option<f64>) -> String {
    value.map(seconds).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cut_or_filled() {
        let check = |text: &str, width: usize, expected: &str| assert_eq!(fill(text, width), expected);
        check("abc", 5, "abc  ");
        check("abcdef", 6, "abcdef");
        check("abcdef", 4, "abc…");
        check("größer", 4, "grö…");
        check("日本語", 4, "日… ");
        check("abc", 0, "…");
    }

    #[test]
    fn entries_begin_below_the_first() {
        let entry = |text: &'static str| vec![Span::raw(text)];
        let found = flow(vec![Span::raw("head ")], vec![entry("one"), entry("two"), entry("three")], 13);
        let found: Vec<_> = found.iter().map(ToString::to_string).collect();
        assert_eq!(found, ["head one  two", "     three"]);
    }
}
