//! The reference page of the metrics, made from their registration.

use std::fmt::Write;

use super::catalogue::Entry;

const INTRODUCTION: &str = "\
# Metrics

The metrics port (8002 unless configured otherwise) answers `GET /metrics` in the Prometheus text format. Units are the
last word of a name: bytes, seconds, rows, tokens, ratio. A model's series exist from its registration, a counter's at 0.

This page is generated from the code: `PLIMSOLL_REWRITE=1 cargo test --lib reference` writes it again.

";

const QUERIES: &str = "
## Useful queries

| question | PromQL |
| --- | --- |
| how much is padding? | `rate(plimsoll_tokens_computed_total[5m]) / rate(plimsoll_tokens_real_total[5m])` |
| what bounds the batches? | `sum by (model, reason) (rate(plimsoll_steps_total[5m]))` |
| who uses the device? | `sum by (model) (rate(plimsoll_device_seconds_total[5m]))` |
| how well are peaks predicted? | `histogram_quantile(0.99, rate(plimsoll_step_peak_ratio_bucket[5m]))` |
| what is refused, and why? | `sum by (model, reason) (rate(plimsoll_requests_total{outcome=\"rejected\"}[5m]))` |
";

/// The whole page.
pub(super) fn page(entries: &[Entry]) -> String {
    let mut text = String::from(INTRODUCTION);
    text.push_str("| name | type | labels | meaning |\n| --- | --- | --- | --- |\n");
    for Entry { name, kind, labels, help } in entries {
        writeln!(text, "| `{name}` | {kind} | {} | {help} |", labels.join(", "))
            .expect("writing to a String does not fail");
    }
    text.push_str(QUERIES);
    text
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::telemetry::Metrics;

    #[test]
    fn the_reference_page_is_up_to_date() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/metrics.md");
        let page = Metrics::new().reference();
        if std::env::var_os("PLIMSOLL_REWRITE").is_some() {
            std::fs::write(&path, &page).expect("docs/ can be written");
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(found == page, "docs/metrics.md is out of date: PLIMSOLL_REWRITE=1 cargo test --lib reference");
    }

    /// The page promises names with a unit at their end; a name without one counts or says a state.
    #[test]
    fn names_end_in_a_unit_or_count_something() {
        let units = ["_bytes", "_seconds", "_rows", "_tokens", "_ratio", "_total", "_state", "_info", "_ready"];
        for line in Metrics::new().reference().lines().filter(|line| line.starts_with("| `plimsoll_")) {
            let name = line.split('`').nth(1).expect("the name is between backquotes");
            assert!(units.iter().any(|unit| name.ends_with(unit)), "{name} does not end in a unit");
        }
    }

    #[test]
    fn the_queries_use_names_that_exist() {
        let page = Metrics::new().reference();
        let (table, queries) = page.split_once("## Useful queries").expect("the page has queries");
        let names = queries.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|w| w.starts_with("plimsoll_"));
        for name in names {
            let registered = name.trim_end_matches("_bucket");
            assert!(table.contains(&format!("`{registered}`")), "{name} is not registered");
        }
    }
}
