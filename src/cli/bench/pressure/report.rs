//! The result of `bench pressure`: the schema of its `--json`.

use serde::Serialize;

use super::arm::{Arm, ArmResult, Stage};
use super::comparison::Comparison;
use super::timeline::Timeline;
use super::verdict::Verdict;
use crate::cli::bench::report::{Part, UndisturbedPart};

/// All arms. `schema` is 1; keys may be added without a new number.
#[derive(Clone, Debug, Serialize)]
pub(super) struct PressureReport {
    schema: u32,
    /// Version of the program that measured.
    plimsoll: &'static str,
    pub(super) seed: u64,
    /// Memory of server and neighbour together.
    pub(super) limit_bytes: u64,
    /// cgroup or virtual.
    pub(super) limited_by: &'static str,
    /// What the idle server leaves of it.
    pub(super) spare_bytes: u64,
    /// What the idle server takes.
    pub(super) server_needs_bytes: u64,
    /// When calls were sent, in words.
    pub(super) pacing: String,
    pub(super) undisturbed: UndisturbedPart,
    /// An answer after this was late.
    pub(super) late_after_ms: f64,
    /// The arm of the best fixed batch: fewest failed calls, then the most good rows.
    pub(super) best_fixed: Option<String>,
    /// What the arm as shipped is worth beside those with fixed batches.
    pub(super) comparison: Option<Comparison>,
    pub(super) arms: Vec<ArmPart>,
}

/// One arm.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ArmPart {
    pub(super) arm: String,
    #[serde(skip)]
    kind: Option<Arm>,
    /// Why its server did not start beside a neighbour that was there before it; nothing else happened then.
    pub(super) did_not_start: Option<String>,
    /// Its calls and steps; rates are per second of the script.
    pub(super) total: Part,
    /// Processes that the kernel killed for want of memory.
    pub(super) kills: u64,
    /// Whether the neighbour came to the end of its script.
    pub(super) neighbour_finished: bool,
    pub(super) verdict: Verdict,
    pub(super) timeline: Timeline,
}

impl ArmPart {
    /// No call failed, nothing was overrun, nobody died.
    pub(super) fn clean(&self) -> bool {
        self.total.failed == 0 && self.survived()
    }

    pub(super) fn survived(&self) -> bool {
        let verdict = &self.verdict;
        let all_live = verdict.server_died_s.is_none() && self.neighbour_finished && self.did_not_start.is_none();
        self.kills == 0 && verdict.overrun_bytes_max == 0 && all_live
    }
}

impl PressureReport {
    pub(super) fn new(stage: &Stage, arms: Vec<ArmResult>) -> PressureReport {
        let part = |result: ArmResult| ArmPart {
            arm: result.arm.to_string(),
            kind: Some(result.arm),
            did_not_start: result.did_not_start,
            total: result.total,
            kills: result.kills,
            neighbour_finished: result.neighbour_finished,
            verdict: result.verdict,
            timeline: result.timeline,
        };
        let arms: Vec<ArmPart> = arms.into_iter().map(part).collect();
        PressureReport {
            schema: 1,
            plimsoll: env!("CARGO_PKG_VERSION"),
            seed: stage.seed(),
            limit_bytes: stage.limit.get(),
            limited_by: stage.limited_by,
            spare_bytes: stage.spare.get(),
            server_needs_bytes: stage.server_needs.get(),
            pacing: stage.pacing.to_string(),
            undisturbed: stage.undisturbed.into(),
            late_after_ms: stage.undisturbed.late_after().as_secs_f64() * 1e3,
            best_fixed: best_fixed(&arms).map(|arm| arm.arm.clone()),
            comparison: compare(&arms),
            arms,
        }
    }

    /// The arm as shipped.
    pub(super) fn shipped(&self) -> Option<&ArmPart> {
        shipped(&self.arms)
    }
}

fn shipped(arms: &[ArmPart]) -> Option<&ArmPart> {
    arms.iter().find(|arm| arm.kind == Some(Arm::Shipped))
}

fn fixed(arms: &[ArmPart]) -> impl Iterator<Item = &ArmPart> {
    arms.iter().filter(|arm| matches!(arm.kind, Some(Arm::Fixed(_))))
}

fn compare(arms: &[ArmPart]) -> Option<Comparison> {
    Some(Comparison::of(shipped(arms)?, &fixed(arms).collect::<Vec<_>>()))
}

fn best_fixed(arms: &[ArmPart]) -> Option<&ArmPart> {
    fixed(arms).min_by(|a, b| {
        // One that lost a process is never the best while another survived.
        let by_life = b.survived().cmp(&a.survived());
        by_life.then(a.total.failed.cmp(&b.total.failed)).then(b.total.good.rows.total_cmp(&a.total.good.rows))
    })
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::super::neighbour::Event;
    use super::super::timeline::{CallPoint, EventPoint, MemoryPoint, StepPoint};
    use super::super::verdict::{Ask, Squeeze};
    use super::*;
    use crate::cli::bench::measure::Undisturbed;

    pub(in crate::cli::bench::pressure) fn arm(kind: Arm, failed: u64, good_rows: f64, died: Option<f64>) -> ArmPart {
        let mut total = crate::cli::bench::report::tests::report().total;
        (total.failed, total.good.rows) = (failed, good_rows);
        let point = |second: u32| MemoryPoint {
            at_s: f64::from(second),
            free_bytes: u64::from(10 - second) << 26,
            server_bytes: 200 << 20,
            neighbour_bytes: u64::from(second) << 26,
            overrun_bytes: 0,
        };
        let step = |second: u32| StepPoint {
            seen_s: f64::from(second),
            began_s: f64::from(second) - 0.1,
            rows: 32 - 3 * second,
            padded_tokens: 100,
            reason: "memory",
            predicted_bytes: 1,
            true_bytes: 1,
            headroom_bytes: 1,
        };
        ArmPart {
            arm: kind.to_string(),
            kind: Some(kind),
            did_not_start: None,
            total,
            kills: u64::from(died.is_some()),
            neighbour_finished: true,
            verdict: Verdict {
                free_bytes_min: 64 << 20,
                overrun_bytes_max: 0,
                server_died_s: died,
                memory_reason_share: 0.5,
                squeezes: vec![Squeeze {
                    taken_s: 2.0,
                    freed_s: 6.0,
                    good_rows_per_s_before: Some(20.0),
                    good_rows_per_s: 12.0,
                    good_rows_per_s_after: Some(19.0),
                    failed: 0,
                    bytes_before: Some(80 << 20),
                    bytes_during: 10 << 20,
                    bytes_after: 80 << 20,
                    shrank: true,
                    steps_still_large: Some(1),
                    grew_back_s: Some(0.25),
                }],
                asks: vec![Ask { at_s: 9.0, asked_bytes: 300 << 20, got: true, waited_ms: 1_200.0 }],
            },
            timeline: Timeline {
                memory: (0..10).map(point).collect(),
                steps: (1..10).map(step).collect(),
                calls: vec![CallPoint { done_s: 1.0, rows: 32, good: true }],
                events: vec![EventPoint { at_s: 2.0, event: Event::Holds { holds: 1 << 28 } }],
                begin_s: 0.0,
                end_s: 10.0,
                server_died_s: died,
            },
        }
    }

    pub(in crate::cli::bench::pressure) fn report() -> PressureReport {
        let arms = vec![
            arm(Arm::Shipped, 0, 900.0, None),
            arm(Arm::ReadingsOff, 400, 100.0, Some(2.5)),
            arm(Arm::Fixed(8), 2, 700.0, None),
            arm(Arm::Fixed(32), 2, 800.0, None),
            arm(Arm::Fixed(128), 0, 950.0, Some(2.25)),
        ];
        let undisturbed = Undisturbed { capacity: 40.0, p99: Duration::from_millis(80) };
        PressureReport {
            schema: 1,
            plimsoll: "0.1.0",
            seed: 1,
            limit_bytes: 1 << 30,
            limited_by: "virtual",
            spare_bytes: 800 << 20,
            server_needs_bytes: 224 << 20,
            pacing: "open loop, poisson, 28.00 calls/s".to_owned(),
            undisturbed: undisturbed.into(),
            late_after_ms: 800.0,
            best_fixed: best_fixed(&arms).map(|arm| arm.arm.clone()),
            comparison: compare(&arms),
            arms,
        }
    }

    #[test]
    fn the_best_fixed_batch_is_one_that_survived() {
        assert_eq!(report().best_fixed.as_deref(), Some("fixed:32"));
        assert!(best_fixed(&[arm(Arm::Shipped, 0, 1.0, None)]).is_none());
    }

    #[test]
    fn clean_means_nothing_failed_and_nobody_died() {
        let report = report();
        let clean: Vec<bool> = report.arms.iter().map(ArmPart::clean).collect();
        assert_eq!(clean, [true, false, false, false, false]);
        assert!(report.shipped().unwrap().clean());
    }

    #[test]
    fn the_json_has_the_points_of_the_plot() {
        let json = serde_json::to_value(report()).unwrap();
        assert_eq!(json["arms"][0]["arm"], "as shipped");
        assert_eq!(json["arms"][0]["timeline"]["steps"][0]["rows"], 29);
        assert_eq!(json["arms"][0]["timeline"]["events"][0]["event"]["holds"]["holds"], 1 << 28);
        assert_eq!(json["arms"][1]["verdict"]["server_died_s"], 2.5);
        assert_eq!(json["comparison"]["squeezes"][0]["good_rows_per_s"], 12.0);
    }
}
