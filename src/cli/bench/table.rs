//! Tables of text for people, and the report of `plimsoll bench` as one.

use super::report::{Part, Report};
use crate::units::Bytes;

/// Rows of cells under a head; columns of numbers are flush right, the others flush left.
pub(super) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table with these columns.
    pub(super) fn new<const N: usize>(head: [&str; N]) -> Table {
        Table { rows: vec![head.map(str::to_owned).to_vec()] }
    }

    /// Adds a row.
    pub(super) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.to_vec());
    }

    /// The lines.
    pub(super) fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let cells = |column: usize| self.rows.iter().filter_map(move |row| row.get(column));
        let width = |column: usize| cells(column).map(|cell| cell.chars().count()).max().unwrap_or(0);
        let numbers = |column: usize| cells(column).skip(1).any(|cell| cell.starts_with(|c: char| c.is_ascii_digit()));
        let columns: Vec<(usize, bool)> = (0..columns).map(|column| (width(column), numbers(column))).collect();
        let mut text = String::new();
        for row in &self.rows {
            let line: Vec<String> = row
                .iter()
                .zip(&columns)
                .map(|(cell, &(width, numbers))| match numbers {
                    true => format!("{cell:>width$}"),
                    false => format!("{cell:<width$}"),
                })
                .collect();
            text.push_str(line.join("  ").trim_end());
            text.push('\n');
        }
        text
    }
}

/// The report in lines of text.
pub(super) fn render(report: &Report) -> String {
    let mut text = String::new();
    let mut line = |words: String| {
        text.push_str(&words);
        text.push('\n');
    };
    for (what, words) in &report.load {
        line(format!("{what:<12} {words}"));
    }
    if let Some(found) = &report.undisturbed {
        let (capacity, p99) = (found.capacity_calls_per_s, found.p99_ms);
        line(format!("undisturbed  capacity {capacity:.1} calls/s; at 70 % of it p99 {p99:.1} ms"));
    }
    line(match report.late_after_ms {
        Some(late) => format!("late         after {late:.1} ms"),
        None => "late         not judged (give --find-capacity or --late-after)".to_owned(),
    });
    line(format!("window       {:.1} s; sent at most {:.2} ms late (p99)", report.window_s, report.send_lag_p99_ms));
    let parts = || report.models.iter().chain((report.models.len() > 1).then_some(&report.total));
    for block in [calls(parts()), rates(parts()), steps(parts())].into_iter().flatten() {
        line(String::new());
        line(block.trim_end().to_owned());
    }
    if let Some(memory) = &report.memory {
        let bytes = |count: u64| Bytes::new(count).to_string();
        let mut table = Table::new(["memory", "idle", "largest", "over idle"]);
        let (idle, max, over) = (memory.idle, memory.max, memory.over_idle);
        table.row(["pss".into(), bytes(idle.pss_bytes), bytes(max.pss_bytes), bytes(over.pss_bytes)]);
        table.row(["rss".into(), bytes(idle.rss_bytes), bytes(max.rss_bytes), bytes(over.rss_bytes)]);
        table.row(["private".into(), bytes(idle.private_bytes), bytes(max.private_bytes), bytes(over.private_bytes)]);
        line(String::new());
        line(table.render().trim_end().to_owned());
        line(format!("{} samples, at most {:.1} ms apart", memory.samples, memory.gap_ms_max));
    }
    if let Some(wrong) = &report.first_wrong {
        line(String::new());
        line(format!("first wrong answer: {wrong}"));
    }
    text
}

fn calls<'a>(parts: impl Iterator<Item = &'a Part>) -> Option<String> {
    let mut table = Table::new(["calls", "due", "failed", "late", "wrong", "checked", "how they ended"]);
    for part in parts {
        let outcomes: Vec<_> = part.outcomes.iter().map(|(name, count)| format!("{name} {count}")).collect();
        table.row([
            part.model.clone(),
            part.calls.to_string(),
            part.failed.to_string(),
            part.late.to_string(),
            part.wrong.to_string(),
            part.checked.to_string(),
            outcomes.join(", "),
        ]);
    }
    Some(table.render())
}

fn rates<'a>(parts: impl Iterator<Item = &'a Part>) -> Option<String> {
    let mut table = Table::new([
        "latency, rates",
        "p50 ms",
        "p90 ms",
        "p99 ms",
        "p99.9 ms",
        "max ms",
        "calls/s",
        "rows/s",
        "tokens/s",
        "good rows/s",
    ]);
    for part in parts {
        let latency = part.latency_ms;
        table.row([
            part.model.clone(),
            format!("{:.1}", latency.p50),
            format!("{:.1}", latency.p90),
            format!("{:.1}", latency.p99),
            format!("{:.1}", latency.p999),
            format!("{:.1}", latency.max),
            format!("{:.1}", part.answered.calls),
            format!("{:.1}", part.answered.rows),
            format!("{:.0}", part.answered.tokens),
            format!("{:.1}", part.good.rows),
        ]);
    }
    Some(table.render())
}

/// `None` when the protocol tells nothing of steps.
fn steps<'a>(parts: impl Iterator<Item = &'a Part>) -> Option<String> {
    let mut table = Table::new([
        "steps",
        "count",
        "rows",
        "most rows",
        "padded",
        "device",
        "predicted peak",
        "true peak",
        "excesses",
        "reasons",
    ]);
    let mut any = false;
    for part in parts {
        let Some(steps) = &part.steps else { continue };
        any = true;
        let reasons: Vec<_> = steps
            .reasons
            .iter()
            .map(|(reason, count)| format!("{reason} {:.0} %", *count as f64 * 100.0 / steps.count as f64))
            .collect();
        table.row([
            part.model.clone(),
            steps.count.to_string(),
            format!("{:.1}", steps.rows_mean),
            steps.rows_max.to_string(),
            format!("{:.2}x", steps.padded_ratio),
            format!("{:.1} %", steps.device_share * 100.0),
            Bytes::new(steps.predicted_peak_bytes_max).to_string(),
            Bytes::new(steps.true_peak_bytes_max).to_string(),
            steps.excesses.to_string(),
            reasons.join(", "),
        ]);
    }
    any.then(|| table.render())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::bench::report::tests::report;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(["name", "n"]);
        table.row(["a long name".into(), "1".into()]);
        table.row(["b".into(), "1000".into()]);
        assert_eq!(table.render(), "name            n\na long name     1\nb            1000\n");
    }

    #[test]
    fn the_report_reads_like_this() {
        let expected = "\
pacing       open loop, poisson, 20 calls/s
seed         1
undisturbed  capacity 30.0 calls/s; at 70 % of it p99 12.0 ms
late         after 120.0 ms
window       10.0 s; sent at most 0.10 ms late (p99)

calls  due  failed  late  wrong  checked  how they ended
small   50       1     0      0        0  OK 49, RESOURCE_EXHAUSTED 1
large   50       2     0      0        0  OK 48, RESOURCE_EXHAUSTED 2
all    100       3     0      0        0  OK 97, RESOURCE_EXHAUSTED 3
";
        let text = render(&report());
        assert!(text.starts_with(expected), "{text}");
        assert!(text.contains("\nlarge      12   4.0          4   1.25x  73.5 %"), "{text}");
        assert!(text.contains("memory 100 %"), "{text}");
        assert!(!text.contains("over idle"), "memory was not sampled");
    }
}
