//! The metrics: every name, unit and label of what `/metrics` answers.
//!
//! `Metrics` is cheap to clone. A model or a device takes its handles once, when it is registered; from then on
//! recording is a few atomic additions (histograms: one short lock each), never a look-up by name.

mod catalogue;
mod outcome;
mod model;
mod device;
mod reference;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use catalogue::{Catalogue, Gauge, Labels};
pub use device::{AllocatorCounts, DeviceBytes, DeviceMetrics};
pub use model::{MODEL_STATES, ModelLevels, ModelMetrics, PROFILE_STATES, QueueLevels, RequestTimes};
pub use outcome::Outcome;
use prometheus_client::metrics::family::Family;

/// All metrics of this process.
#[derive(Clone, Debug)]
pub struct Metrics {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    catalogue: Catalogue,
    ready: Gauge,
    certificate_end: Family<Labels, Gauge>,
    models: model::Families,
    devices: device::Families,
    // Ages are computed when they are asked for, so that they grow while nothing happens.
    registered: Mutex<Vec<ModelMetrics>>,
}

impl Metrics {
    /// Metrics of a process in which nothing has happened yet: made at its start.
    pub fn new() -> Metrics {
        let mut catalogue = Catalogue::new();
        catalogue
            .gauge("build_info", &["version"], "Always 1; its label says which version is running")
            .get_or_create(&vec![("version", env!("CARGO_PKG_VERSION").to_owned())])
            .set(1.0);
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        catalogue
            .gauge("start_time_seconds", &[], "When this process started, in seconds since 1970")
            .get_or_create(&Labels::new())
            .set(since_1970.as_secs_f64());
        let ready = catalogue
            .gauge("ready", &[], "1 while `/health/ready` answers 200, else 0")
            .get_or_create_owned(&Labels::new());
        let certificate_end = catalogue.gauge(
            "tls_certificate_end_seconds",
            &[],
            "When the certificate that the server shows ends, in seconds since 1970; no series without TLS",
        );
        let models = model::Families::register(&mut catalogue);
        let devices = device::Families::register(&mut catalogue);
        Metrics {
            inner: Arc::new(Inner { catalogue, ready, certificate_end, models, devices, registered: Mutex::default() }),
        }
    }

    /// The handles of a model; its series exist, at zero, from now on. To be called once for each registered model:
    /// the number of series is bounded by the repository, never by what clients ask for.
    pub fn model(&self, name: &str) -> ModelMetrics {
        let model = ModelMetrics::new(&self.inner.models, name);
        self.inner.registered.lock().unwrap_or_else(PoisonError::into_inner).push(model.clone());
        model
    }

    /// The handles of a device. To be called once for each device.
    pub fn device(&self, name: &str) -> DeviceMetrics {
        self.inner.devices.handles(name)
    }

    /// Whether the server is ready, now.
    pub fn ready(&self, ready: bool) {
        self.inner.ready.set(f64::from(u8::from(ready)));
    }

    /// When the server's certificate ends, in seconds since 1970.
    pub fn certificate_end(&self, seconds: i64) {
        self.inner.certificate_end.get_or_create(&Labels::new()).set(seconds as f64);
    }

    /// Everything in the Prometheus text format (0.0.4).
    pub fn encode(&self) -> String {
        for model in self.inner.registered.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            model.refresh();
        }
        self.inner.catalogue.encode()
    }

    /// The reference page of all metrics, as Markdown.
    pub fn reference(&self) -> String {
        reference::page(self.inner.catalogue.entries())
    }
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics::new()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::admission::Rejection;
    use crate::memory::{Budget, Lease, Observed, Outcome as StepOutcome, Reading, Rungs, Shape};
    use crate::scheduler::{Member, Purpose, Reason, Step, Work};
    use crate::units::{Bytes, Micros, ModelId, RequestId, StepId, Timestamp};

    fn step(purpose: Purpose) -> Step {
        let model = ModelId::new(0);
        Step {
            id: StepId::new(1),
            model,
            purpose,
            members: vec![Member { request: RequestId::new(1), work: Work::Row { index: 0 } }; 3],
            shape: Shape::Padded { rows: 3, length: 10 },
            lease: Lease {
                model,
                predicted: Bytes::new(1000),
                ceiling: Bytes::new(1500),
                kv: Bytes::ZERO,
                leftovers: Bytes::ZERO,
            },
            reason: Reason::Memory,
            headroom: Bytes::new(1600),
            predicted_time: Micros::new(900),
            chosen_at: Timestamp::START,
        }
    }

    fn seen(peak: u64, rungs: Rungs, outcome: StepOutcome) -> Observed {
        Observed { peak: Bytes::new(peak), reach: Bytes::new(peak), time: Micros::millis(2), rungs, outcome }
    }

    /// Asserts that each line is among those of `/metrics`.
    #[track_caller]
    fn check(metrics: &Metrics, lines: &[&str]) {
        let text = metrics.encode();
        for line in lines {
            assert!(text.lines().any(|found| found == *line), "no line '{line}' in\n{text}");
        }
    }

    #[test]
    fn a_process_says_since_when_it_runs_and_whether_it_is_ready() {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_secs_f64();
        let before = now();
        let metrics = Metrics::new();
        check(&metrics, &["plimsoll_ready 0.0"]);
        metrics.ready(true);
        check(&metrics, &["plimsoll_ready 1.0"]);
        let text = metrics.encode();
        let start = text.lines().find_map(|line| line.strip_prefix("plimsoll_start_time_seconds "));
        let start: f64 = start.expect("it has a line").parse().expect("it is a number");
        assert!((before..=now()).contains(&start), "{start}");
    }

    #[test]
    fn a_step_is_counted_under_its_reason_with_its_tokens_and_peaks() {
        let metrics = Metrics::new();
        let model = metrics.model("a");
        model.step_completed(&step(Purpose::Serve), &seen(900, Rungs::default(), StepOutcome::Done), 24);
        check(
            &metrics,
            &[
                r#"plimsoll_steps_total{model="a",reason="memory"} 1"#,
                r#"plimsoll_steps_total{model="a",reason="queue"} 0"#,
                r#"plimsoll_batch_rows_sum{model="a"} 3.0"#,
                r#"plimsoll_batch_tokens_sum{model="a"} 30.0"#,
                r#"plimsoll_tokens_real_total{model="a"} 24"#,
                r#"plimsoll_tokens_computed_total{model="a"} 30"#,
                r#"plimsoll_batch_padded_ratio_sum{model="a"} 1.25"#,
                r#"plimsoll_step_predicted_peak_bytes{model="a"} 1000.0"#,
                r#"plimsoll_step_peak_bytes{model="a"} 900.0"#,
                r#"plimsoll_step_peak_ratio_sum{model="a"} 0.9"#,
                r#"plimsoll_step_lease_bytes{model="a"} 1500.0"#,
                r#"plimsoll_step_headroom_bytes{model="a"} 1600.0"#,
                r#"plimsoll_device_seconds_total{model="a",purpose="serve"} 0.002"#,
                r#"plimsoll_device_seconds_total{model="a",purpose="probe"} 0.0"#,
                r#"plimsoll_overruns_total{model="a"} 0"#,
            ],
        );
    }

    #[test]
    fn a_peak_above_the_ceiling_is_an_overrun_and_rungs_are_counted_one_by_one() {
        let metrics = Metrics::new();
        let model = metrics.model("a");
        let rungs = Rungs { trims: 1, halvings: 2, evictions: 1, refusals: 3 };
        model.step_completed(&step(Purpose::Serve), &seen(1501, rungs, StepOutcome::OutOfMemory), 30);
        model.step_completed(&step(Purpose::Serve), &seen(1500, Rungs::default(), StepOutcome::Faulted), 30);
        check(
            &metrics,
            &[
                r#"plimsoll_overruns_total{model="a"} 1"#,
                r#"plimsoll_ladder_total{model="a",rung="trim"} 1"#,
                r#"plimsoll_ladder_total{model="a",rung="halve"} 2"#,
                r#"plimsoll_ladder_total{model="a",rung="evict"} 1"#,
                r#"plimsoll_ladder_total{model="a",rung="refuse"} 3"#,
                r#"plimsoll_steps_failed_total{model="a",outcome="out_of_memory"} 1"#,
                r#"plimsoll_steps_failed_total{model="a",outcome="faulted"} 1"#,
                r#"plimsoll_step_peak_max_bytes{model="a"} 1501.0"#,
            ],
        );
    }

    #[test]
    fn a_step_that_got_memory_for_some_rows_is_computed() {
        let metrics = Metrics::new();
        let model = metrics.model("a");
        let out_of_memory = seen(900, Rungs::default(), StepOutcome::OutOfMemory);
        model.step_completed(&step(Purpose::Serve), &out_of_memory, 0);
        check(&metrics, &[r#"plimsoll_tokens_computed_total{model="a"} 0"#]);
        model.step_completed(&step(Purpose::Serve), &out_of_memory, 20);
        check(
            &metrics,
            &[r#"plimsoll_tokens_computed_total{model="a"} 30"#, r#"plimsoll_tokens_real_total{model="a"} 20"#],
        );
    }

    #[test]
    fn a_probe_is_device_time_but_no_served_batch() {
        let metrics = Metrics::new();
        let model = metrics.model("a");
        model.step_completed(&step(Purpose::Probe), &seen(900, Rungs::default(), StepOutcome::Done), 0);
        check(
            &metrics,
            &[
                r#"plimsoll_probes_total{model="a"} 1"#,
                r#"plimsoll_steps_total{model="a",reason="memory"} 0"#,
                r#"plimsoll_device_seconds_total{model="a",purpose="probe"} 0.002"#,
            ],
        );
    }

    #[test]
    fn requests_are_counted_by_outcome_and_reason() {
        let metrics = Metrics::new();
        let model = metrics.model("a");
        model.request_finished(
            Outcome::Answered(RequestTimes { total: Micros::millis(5), queued: Micros::millis(1) }),
            4,
        );
        model.request_finished(Outcome::Rejected(&Rejection::Draining), 2);
        check(
            &metrics,
            &[
                r#"plimsoll_requests_total{model="a",outcome="answered",reason="answered"} 1"#,
                r#"plimsoll_requests_total{model="a",outcome="rejected",reason="draining"} 1"#,
                r#"plimsoll_rows_total{model="a",outcome="answered"} 4"#,
                r#"plimsoll_rows_total{model="a",outcome="rejected"} 2"#,
                r#"plimsoll_request_seconds_sum{model="a"} 0.005"#,
                r#"plimsoll_request_queue_seconds_sum{model="a"} 0.001"#,
            ],
        );
    }

    #[test]
    fn levels_follow_the_last_report_and_the_age_grows_by_itself() {
        let metrics = Metrics::new();
        let model = metrics.model("a");
        let oldest = Instant::now().checked_sub(Duration::from_secs(7));
        model.queue(QueueLevels { rows: 9, tokens: 300, oldest });
        model.levels(&ModelLevels {
            budget: Budget { guaranteed: Bytes::new(50), limit: Bytes::MAX },
            resident: Bytes::new(40),
            kv: Bytes::ZERO,
            headroom: Bytes::new(60),
            drift: 1.25,
            batch_rows_max: 12,
        });
        model.state("loading");
        model.state("ready");
        check(
            &metrics,
            &[
                r#"plimsoll_queue_rows{model="a"} 9.0"#,
                r#"plimsoll_queue_tokens{model="a"} 300.0"#,
                r#"plimsoll_model_budget_limit_bytes{model="a"} +Inf"#,
                r#"plimsoll_model_resident_bytes{model="a"} 40.0"#,
                r#"plimsoll_model_drift_ratio{model="a"} 1.25"#,
                r#"plimsoll_model_state{model="a",state="ready"} 1.0"#,
                r#"plimsoll_model_state{model="a",state="loading"} 0.0"#,
            ],
        );
        let text = metrics.encode();
        let age = text.lines().find_map(|line| line.strip_prefix(r#"plimsoll_queue_age_seconds{model="a"} "#));
        let age: f64 = age.expect("the age has a line").parse().expect("the age is a number");
        assert!((7.0..60.0).contains(&age), "{age}");
    }

    #[test]
    fn a_device_reports_its_reading_and_only_the_growth_of_its_counters() {
        let metrics = Metrics::new();
        let device = metrics.device("cpu");
        device.bytes(&DeviceBytes {
            capacity: Bytes::new(900),
            safety: Bytes::new(10),
            leased: Bytes::ZERO,
            reading: Reading {
                at: Timestamp::START,
                free: Bytes::new(500),
                total: Bytes::new(1000),
                workspace_reserved: Bytes::new(70),
                workspace_cached: Bytes::new(30),
                library: Bytes::new(5),
                leftovers: Bytes::ZERO,
            },
        });
        device.allocator(AllocatorCounts { allocations: 10, frees: 8, trims: 1 });
        device.allocator(AllocatorCounts { allocations: 15, frees: 15, trims: 1 });
        device.watchdog_fired();
        assert!(!metrics.encode().contains("part="), "a CPU has no parts");
        check(&metrics, &[r#"plimsoll_device_fixed_bytes{device="cpu"} 0.0"#]);
        device.card([("free", 600), ("others", 380), ("fixed", 20)], Some(-3));
        check(
            &metrics,
            &[
                r#"plimsoll_device_part_bytes{device="cpu",part="others"} 380.0"#,
                r#"plimsoll_device_unattributed_bytes{device="cpu"} -3.0"#,
                r#"plimsoll_device_capacity_bytes{device="cpu"} 900.0"#,
                r#"plimsoll_device_fixed_bytes{device="cpu"} 20.0"#,
                r#"plimsoll_device_free_bytes{device="cpu"} 500.0"#,
                r#"plimsoll_device_workspace_cached_bytes{device="cpu"} 30.0"#,
                r#"plimsoll_allocator_events_total{device="cpu",event="allocate"} 15"#,
                r#"plimsoll_allocator_events_total{device="cpu",event="free"} 15"#,
                r#"plimsoll_allocator_events_total{device="cpu",event="trim"} 1"#,
                r#"plimsoll_watchdog_total{device="cpu"} 1"#,
            ],
        );
    }
}
