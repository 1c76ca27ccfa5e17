//! The report in lines of text.

use super::comparison::held;
use super::report::PressureReport;
use crate::cli::bench::table::Table;
use crate::units::Bytes;

impl PressureReport {
    /// The report in lines of text.
    pub(super) fn render(&self) -> String {
        let bytes = |count: u64| Bytes::new(count).to_string();
        let mut text = format!(
            "limit {} ({}), of which the idle server takes {} and leaves {}; seed {}; {}\n\
             undisturbed: capacity {:.1} calls/s, p99 {:.1} ms at 70 % of it; late after {:.1} ms\n\n",
            bytes(self.limit_bytes),
            self.limited_by,
            bytes(self.server_needs_bytes),
            bytes(self.spare_bytes),
            self.seed,
            self.pacing,
            self.undisturbed.capacity_calls_per_s,
            self.undisturbed.p99_ms,
            self.late_after_ms,
        );
        let mut table = Table::new([
            "arm",
            "calls",
            "failed",
            "late",
            "good rows/s",
            "rows/s",
            "p99 ms",
            "kills",
            "overrun",
            "least free",
            "by memory",
            "outcome",
        ]);
        for arm in &self.arms {
            let (total, verdict) = (&arm.total, &arm.verdict);
            let best = if Some(&arm.arm) == self.best_fixed.as_ref() { " (best fixed)" } else { "" };
            let outcome = match verdict.server_died_s {
                _ if arm.did_not_start.is_some() => "did not start".to_owned(),
                Some(at) => format!("server died after {at:.1} s"),
                None if !arm.neighbour_finished => "neighbour died".to_owned(),
                None if arm.clean() => "clean".to_owned(),
                None if arm.survived() => "calls failed".to_owned(),
                None => "overran".to_owned(),
            };
            table.row([
                format!("{}{best}", arm.arm),
                total.calls.to_string(),
                total.failed.to_string(),
                total.late.to_string(),
                format!("{:.1}", total.good.rows),
                format!("{:.1}", total.answered.rows),
                format!("{:.1}", total.latency_ms.p99),
                arm.kills.to_string(),
                bytes(verdict.overrun_bytes_max),
                bytes(verdict.free_bytes_min),
                format!("{:.0} %", verdict.memory_reason_share * 100.0),
                outcome,
            ]);
        }
        text.push_str(&table.render());
        text.push('\n');
        text.push_str(&self.squeezes());
        if let Some(comparison) = &self.comparison {
            text.push('\n');
            text.push_str(&comparison.render());
        }
        text
    }

    fn squeezes(&self) -> String {
        let bytes = |count: u64| Bytes::new(count).to_string();
        let mut table = Table::new(["arm", "neighbour", "good rows/s", "workspace of a large step", "followed"]);
        for arm in &self.arms {
            for squeeze in &arm.verdict.squeezes {
                let steps = match squeeze.steps_still_large {
                    Some(0) => "shrank with the first step".to_owned(),
                    Some(1) => "shrank but for 1 step".to_owned(),
                    Some(count) => format!("shrank but for {count} steps"),
                    None => "did not shrink".to_owned(),
                };
                let growth = match (squeeze.shrank, squeeze.grew_back_s) {
                    (false, _) => String::new(),
                    (true, Some(seconds)) => format!(", grew back in {seconds:.2} s"),
                    (true, None) => ", did not grow back".to_owned(),
                };
                table.row([
                    arm.arm.clone(),
                    held(squeeze.taken_s, squeeze.freed_s),
                    [squeeze.good_rows_per_s_before, Some(squeeze.good_rows_per_s), squeeze.good_rows_per_s_after]
                        .map(|rate| rate.map_or("-".to_owned(), |rate| format!("{rate:.1}")))
                        .join(" -> "),
                    [squeeze.bytes_before, Some(squeeze.bytes_during), Some(squeeze.bytes_after)]
                        .map(|size| size.map_or("-".to_owned(), bytes))
                        .join(" -> "),
                    format!("{steps}{growth}"),
                ]);
            }
            for ask in &arm.verdict.asks {
                let wait = ask.waited_ms / 1e3;
                table.row([
                    arm.arm.clone(),
                    format!("asked for {}", Bytes::new(ask.asked_bytes)),
                    String::new(),
                    String::new(),
                    if ask.got { format!("got it in {wait:.2} s") } else { format!("waited {wait:.2} s in vain") },
                ]);
            }
        }
        table.render()
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::report;
    use super::super::verdict::Verdict;

    #[test]
    fn the_table_says_what_matters() {
        let text = report().render();
        for part in [
            "limit 1.00 GiB (virtual), of which the idle server takes 224 MiB and leaves 800 MiB; seed 1; open loop, poisson, \
             28.00 calls/s",
            "fixed:32 (best fixed)",
            "server died after 2.5 s",
            "20.0 -> 12.0 -> 19.0",
            "80.0 MiB -> 10.0 MiB -> 80.0 MiB  shrank but for 1 step, grew back in 0.25 s",
            "whole script",
            "asked for 300 MiB",
            "got it in 1.20 s",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }

    #[test]
    fn an_arm_that_did_not_start_is_told_so() {
        let mut report = report();
        let arm = &mut report.arms[1];
        (arm.did_not_start, arm.verdict) =
            (Some("the server ended with exit status: 1".to_owned()), Verdict::default());
        arm.neighbour_finished = false;
        assert!(!arm.clean());
        let text = report.render();
        assert!(text.lines().any(|line| line.starts_with("readings off") && line.ends_with("did not start")), "{text}");
        let json = serde_json::to_value(report).unwrap();
        assert_eq!(json["arms"][1]["did_not_start"], "the server ended with exit status: 1");
    }
}
