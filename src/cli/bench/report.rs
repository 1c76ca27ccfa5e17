//! The result of `plimsoll bench` as data: the schema of `--json`.
//!
//! `schema` is 1; keys may be added without a new number, none changes its meaning. Units are in the names: `_ms`,
//! `_s`, `_bytes`, `_per_s`. A key is null when its part was not measured.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::duration::milliseconds;
use super::measure::Undisturbed;
use super::recorder::{Rates, Recorder, Tally};
use super::smaps::MemoryUse;
use super::steps::StepTotals;

/// The whole report.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// 1.
    pub schema: u32,
    /// Version of the program that measured.
    pub plimsoll: &'static str,
    /// What was asked, in words: address, protocol, pacing, lengths, rows, seed.
    pub load: BTreeMap<&'static str, String>,
    /// Capacity and p99 of the undisturbed server; null without --find-capacity.
    pub undisturbed: Option<UndisturbedPart>,
    /// An answer after this was late; null when lateness was not judged.
    pub late_after_ms: Option<f64>,
    /// Length of the window in which calls were judged, without the warm-up.
    pub window_s: f64,
    /// How late the generator sent its calls: the 99th percentile. Large values mean a machine too busy to measure.
    pub send_lag_p99_ms: f64,
    /// The first wrong answer in words; null when there was none.
    pub first_wrong: Option<String>,
    /// All models together.
    pub total: Part,
    /// Each model.
    pub models: Vec<Part>,
    /// The server's memory from outside; null without --smaps-pid.
    pub memory: Option<MemoryUse>,
}

/// The undisturbed server.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct UndisturbedPart {
    /// Calls per second that it can answer.
    pub capacity_calls_per_s: f64,
    /// The 99th percentile of the latency in an open loop at 70 % of the capacity.
    pub p99_ms: f64,
}

impl From<Undisturbed> for UndisturbedPart {
    fn from(found: Undisturbed) -> UndisturbedPart {
        UndisturbedPart { capacity_calls_per_s: found.capacity, p99_ms: milliseconds(found.p99) }
    }
}

/// The calls to one model, or to all.
#[derive(Clone, Debug, Serialize)]
pub struct Part {
    /// The model's name; `all`.
    pub model: String,
    /// Calls that fell due in the window.
    pub calls: u64,
    /// Calls that were not OK, wrong or late. Calls that the client cancelled are not among them.
    pub failed: u64,
    /// `failed / calls`.
    pub failed_ratio: f64,
    /// Answers other than the undisturbed ones.
    pub wrong: u64,
    /// Right answers after `late_after_ms`.
    pub late: u64,
    /// Answers that were compared with undisturbed ones.
    pub checked: u64,
    /// Calls by how they ended: OK, wrong, late, a status code, unanswered, not sent, cancelled by the client.
    pub outcomes: BTreeMap<String, u64>,
    /// From the moment a call was due to its answer; calls with an answer only.
    pub latency_ms: Latency,
    /// Answers that came within the window.
    pub answered: PerSecond,
    /// Good answers (OK, right, in time) that came within the window: the goodput.
    pub good: PerSecond,
    /// The server's steps; null when the protocol does not tell of them.
    pub steps: Option<Steps>,
}

/// Quantiles of a latency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The 99.9th percentile.
    pub p999: f64,
    /// The largest.
    pub max: f64,
}

impl Latency {
    /// Of a histogram of microseconds; zeros when it is empty.
    pub fn of(histogram: &Histogram<u64>) -> Latency {
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
        Latency {
            mean: histogram.mean() / 1e3,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: histogram.max() as f64 / 1e3,
        }
    }
}

/// Rates.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PerSecond {
    /// Calls per second.
    pub calls: f64,
    /// Rows per second.
    pub rows: f64,
    /// Tokens per second, without padding.
    pub tokens: f64,
}

impl PerSecond {
    fn of(rates: Rates, seconds: f64) -> PerSecond {
        let rate = |count: u64| count as f64 / seconds;
        PerSecond { calls: rate(rates.calls), rows: rate(rates.rows), tokens: rate(rates.tokens) }
    }
}

/// What the server's steps amount to, each counted once (by its id), from the start of the load to its last answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Steps {
    /// Steps.
    pub count: u64,
    /// Rows of a step on average, those of other callers included.
    pub rows_mean: f64,
    /// Rows of the largest step.
    pub rows_max: u32,
    /// Tokens computed over tokens asked for: 1 is no padding. True only while nobody else asks the server.
    pub padded_ratio: f64,
    /// Steps by the bound that decided their size: memory, latency, knee, queue, limit.
    pub reasons: BTreeMap<&'static str, u64>,
    /// The largest predicted workspace.
    pub predicted_peak_bytes_max: u64,
    /// The largest true workspace.
    pub true_peak_bytes_max: u64,
    /// Steps that took more than was predicted.
    pub excesses: u64,
    /// The largest true peak over its prediction.
    pub true_to_predicted_max: f64,
    /// Time on the device.
    pub device_s: f64,
    /// Part of the device time of all models that were asked.
    pub device_share: f64,
}

impl Steps {
    fn of(totals: &StepTotals, tokens: u64, device_us: u64) -> Option<Steps> {
        (totals.count > 0).then(|| Steps {
            count: totals.count,
            rows_mean: totals.rows_mean(),
            rows_max: totals.rows_max,
            padded_ratio: ratio(totals.padded_tokens, tokens),
            reasons: totals.reasons.clone(),
            predicted_peak_bytes_max: totals.predicted_max,
            true_peak_bytes_max: totals.peak_max,
            excesses: totals.excesses,
            true_to_predicted_max: totals.peak_ratio_max,
            device_s: totals.compute_us as f64 / 1e6,
            device_share: ratio(totals.compute_us, device_us),
        })
    }
}

/// The recorded load as a total and a part for each model; rates are over so many `seconds`.
pub(super) fn parts(recorder: &Recorder, seconds: f64) -> (Part, Vec<Part>) {
    let by_model: Vec<StepTotals> = (0..recorder.models().len()).map(|model| recorder.steps().totals(model)).collect();
    let mut all = StepTotals::default();
    by_model.iter().for_each(|totals| all.merge(totals));
    let part = |name: &str, tally: &Tally, totals: &StepTotals| Part {
        model: name.to_owned(),
        calls: tally.calls,
        failed: tally.failed,
        failed_ratio: ratio(tally.failed, tally.calls),
        wrong: tally.wrong,
        late: tally.late,
        checked: tally.checked,
        outcomes: tally.outcomes.clone(),
        latency_ms: Latency::of(&tally.latency),
        answered: PerSecond::of(tally.answers, seconds),
        good: PerSecond::of(tally.good, seconds),
        steps: Steps::of(totals, tally.tokens_ever, all.compute_us),
    };
    let models = recorder.models().iter().zip(recorder.tallies()).zip(&by_model);
    let models = models.map(|((model, tally), totals)| part(&model.name, tally, totals)).collect();
    (part("all", &recorder.total(), &all), models)
}

/// `a / b`; 0 when there is no `b`.
fn ratio(a: u64, b: u64) -> f64 {
    if b == 0 { 0.0 } else { a as f64 / b as f64 }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cli::bench::answer::Answer;
    use crate::cli::bench::client::{ModelFacts, Reply, SeenStep};
    use crate::cli::bench::driver::{Outcome, Sample};
    use crate::cli::bench::recorder::Bar;
    use crate::config::{Dtype, Task};

    /// Two models over ten seconds: 97 answers of 10 ms in batches of 4 and 3 refusals.
    fn recorder() -> Recorder {
        let model = |name: &str| ModelFacts {
            name: name.to_owned(),
            task: Task::Embed,
            dtype: Dtype::F32,
            length_max: 128,
            ready: true,
            settled: true,
        };
        let window = Duration::ZERO..Duration::from_secs(10);
        let mut recorder = Recorder::new(vec![model("small"), model("large")], window, Bar::default());
        for call in 0..100u64 {
            let model = (call % 2) as usize;
            let step = SeenStep {
                id: call / 8 * 2 + model as u64, // four calls of a model share a step
                rows: 4,
                computed_tokens: 80,
                reason: if model == 0 { "queue" } else { "memory" },
                predicted: 1 << 20,
                peak: 1 << 19,
                headroom: 1 << 30,
                compute_us: if model == 0 { 1_000 } else { 3_000 },
            };
            let outcome = match call {
                97.. => Outcome::Refused(tonic::Code::ResourceExhausted),
                _ => {
                    let answer = Answer { rows: vec![vec![1.0]] };
                    Outcome::Answered(Reply { answer, tokens: 16, steps: vec![step] })
                }
            };
            let intended = Duration::from_millis(call * 50);
            let done = intended + Duration::from_millis(10);
            recorder.record(&Sample { model, rows: 1, reference: None, intended, sent: intended, done, outcome });
        }
        recorder
    }

    pub(in crate::cli::bench) fn report() -> Report {
        let recorder = recorder();
        let (total, models) = parts(&recorder, recorder.window_seconds());
        let undisturbed = Undisturbed { capacity: 30.0, p99: Duration::from_millis(12) };
        Report {
            schema: 1,
            plimsoll: "0.1.0",
            load: BTreeMap::from([("pacing", "open loop, poisson, 20 calls/s".to_owned()), ("seed", "1".to_owned())]),
            undisturbed: Some(undisturbed.into()),
            late_after_ms: Some(milliseconds(undisturbed.late_after())),
            window_s: recorder.window_seconds(),
            send_lag_p99_ms: 0.1,
            first_wrong: None,
            total,
            models,
            memory: None,
        }
    }

    #[test]
    fn parts_add_up() {
        let report = report();
        let total = &report.total;
        assert_eq!((total.calls, total.failed, total.failed_ratio), (100, 3, 0.03));
        assert_eq!(total.outcomes, BTreeMap::from([("OK".to_owned(), 97), ("RESOURCE_EXHAUSTED".to_owned(), 3)]));
        assert_eq!(report.models.iter().map(|part| part.calls).sum::<u64>(), 100);
        assert!((total.answered.rows - 9.7).abs() < 1e-9 && (total.good.tokens - 9.7 * 16.0).abs() < 1e-9);
        assert!((total.latency_ms.p99 / 10.0 - 1.0).abs() < 0.002, "{}", total.latency_ms.p99);
    }

    #[test]
    fn steps_are_shared_by_device_time() {
        let report = report();
        let steps = |part: &Part| part.steps.clone().unwrap();
        let (small, large) = (steps(&report.models[0]), steps(&report.models[1]));
        assert_eq!((small.count, large.count), (13, 12)); // the last step of `large` was of refused calls only
        assert!((small.device_share - 13.0 / (13.0 + 36.0)).abs() < 1e-9);
        assert!((small.device_share + large.device_share - 1.0).abs() < 1e-9);
        assert_eq!(large.reasons, BTreeMap::from([("memory", 12)]));
        // 48 calls of 16 tokens in 12 steps of 4 x 20.
        assert!((large.padded_ratio - 1.25).abs() < 1e-9);
    }

    /// The keys are the interface of scripts.
    #[test]
    fn keys_of_the_json_are_fixed() {
        let json = serde_json::to_value(report()).unwrap();
        let keys = |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
        assert_eq!(
            keys(&json),
            "first_wrong late_after_ms load memory models plimsoll schema send_lag_p99_ms total undisturbed window_s"
        );
        assert_eq!(
            keys(&json["total"]),
            "answered calls checked failed failed_ratio good late latency_ms model outcomes steps wrong"
        );
        assert_eq!(keys(&json["total"]["latency_ms"]), "max mean p50 p90 p99 p999");
        assert_eq!(
            keys(&json["models"][1]["steps"]),
            "count device_s device_share excesses padded_ratio predicted_peak_bytes_max reasons rows_max rows_mean \
             true_peak_bytes_max true_to_predicted_max"
        );
    }
}
