//! The series of a model: their names, meanings and buckets.

use std::sync::Mutex;
use std::time::Instant;

use prometheus_client::metrics::family::Family;

use super::super::catalogue::{Amount, Buckets, Catalogue, Counter, Gauge, Histogram, Labels};
use super::super::outcome::WORDS;
use crate::scheduler::Reason;

/// The states of a model, in the order of its life.
pub const MODEL_STATES: [&str; 5] = ["not_loaded", "loading", "ready", "draining", "broken"];
/// The states of a model's profile.
pub const PROFILE_STATES: [&str; 4] = ["none", "measuring", "complete", "stale"];

pub(super) const REASONS: [Reason; 5] = [Reason::Memory, Reason::Latency, Reason::Knee, Reason::Queue, Reason::Limit];
pub(super) const OUTCOMES: [&str; 3] = ["answered", "rejected", "faulted"];
pub(super) const RUNGS: [&str; 4] = ["trim", "halve", "evict", "refuse"];

/// From a step of one row of a tiny model to one of a large model on a slow CPU.
const SECONDS: Buckets =
    Buckets(&[0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0]);
const ROWS: Buckets = Buckets(&[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0]);
const TOKENS: Buckets =
    Buckets(&[16.0, 64.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0, 65536.0, 131072.0]);
const PADDED: Buckets = Buckets(&[1.0, 1.05, 1.1, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0]);
/// Close together around 1: the accuracy of the prediction is what one looks for here.
const PEAKS: Buckets = Buckets(&[0.25, 0.5, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 1.0, 1.02, 1.05, 1.1, 1.25, 1.5, 2.0]);

/// The families of all models' series.
#[derive(Debug)]
pub(in crate::telemetry::metrics) struct Families {
    requests: Family<Labels, Counter>,
    rows: Family<Labels, Counter>,
    request_seconds: Family<Labels, Histogram, Buckets>,
    request_queue_seconds: Family<Labels, Histogram, Buckets>,
    queue_rows: Family<Labels, Gauge>,
    queue_tokens: Family<Labels, Gauge>,
    queue_age: Family<Labels, Gauge>,
    steps: Family<Labels, Counter>,
    steps_failed: Family<Labels, Counter>,
    batch_rows: Family<Labels, Histogram, Buckets>,
    batch_tokens: Family<Labels, Histogram, Buckets>,
    batch_padded: Family<Labels, Histogram, Buckets>,
    tokens_real: Family<Labels, Counter>,
    tokens_computed: Family<Labels, Counter>,
    step_seconds: Family<Labels, Histogram, Buckets>,
    device_seconds: Family<Labels, Amount>,
    predicted_peak: Family<Labels, Gauge>,
    peak: Family<Labels, Gauge>,
    peak_max: Family<Labels, Gauge>,
    peak_ratio: Family<Labels, Histogram, Buckets>,
    lease: Family<Labels, Gauge>,
    step_headroom: Family<Labels, Gauge>,
    overruns: Family<Labels, Counter>,
    ladder: Family<Labels, Counter>,
    probes: Family<Labels, Counter>,
    loads: Family<Labels, Counter>,
    load_seconds: Family<Labels, Gauge>,
    evictions: Family<Labels, Counter>,
    state: Family<Labels, Gauge>,
    profile_state: Family<Labels, Gauge>,
    guaranteed: Family<Labels, Gauge>,
    limit: Family<Labels, Gauge>,
    resident: Family<Labels, Gauge>,
    kv: Family<Labels, Gauge>,
    headroom: Family<Labels, Gauge>,
    drift: Family<Labels, Gauge>,
    batch_rows_max: Family<Labels, Gauge>,
}

impl Families {
    pub(in crate::telemetry::metrics) fn register(to: &mut Catalogue) -> Families {
        const MODEL: &[&str] = &["model"];
        Families {
            requests: to.counter(
                "requests",
                &["model", "outcome", "reason"],
                "Requests that have ended, by how (`answered`, `rejected`, `faulted`) and why",
            ),
            rows: to.counter("rows", &["model", "outcome"], "Rows of the requests that have ended"),
            request_seconds: to.histogram(
                "request_seconds",
                MODEL,
                "Time of answered requests from acceptance to the answer",
                SECONDS,
            ),
            request_queue_seconds: to.histogram(
                "request_queue_seconds",
                MODEL,
                "Time of answered requests from acceptance to the start of their first step",
                SECONDS,
            ),
            queue_rows: to.gauge("queue_rows", MODEL, "Rows that wait for a step"),
            queue_tokens: to.gauge("queue_tokens", MODEL, "Tokens of the rows that wait for a step"),
            queue_age: to.gauge("queue_age_seconds", MODEL, "For how long the oldest waiting request has waited"),
            steps: to.counter(
                "steps",
                &["model", "reason"],
                "Steps that served requests, by the bound that decided the size of their batch: `memory`, `latency`, \
                 `knee` (more gains no throughput), `queue` (there was no more), `limit` (of the profile or of the \
                 configuration)",
            ),
            steps_failed: to.counter(
                "steps_failed",
                &["model", "outcome"],
                "Steps that did not answer every row: `out_of_memory` after the whole ladder, `faulted`",
            ),
            batch_rows: to.histogram("batch_rows", MODEL, "Rows of a step", ROWS),
            batch_tokens: to.histogram("batch_tokens", MODEL, "Tokens of a step, padding included", TOKENS),
            batch_padded: to.histogram(
                "batch_padded_ratio",
                MODEL,
                "Tokens that a step computed over those that its rows have; 1 means no padding",
                PADDED,
            ),
            tokens_real: to.counter("tokens_real", MODEL, "Tokens of the rows that were served"),
            tokens_computed: to.counter("tokens_computed", MODEL, "Tokens that were computed, padding included"),
            step_seconds: to.histogram(
                "step_seconds",
                MODEL,
                "Time of a step on the device, replays included",
                SECONDS,
            ),
            device_seconds: to.amount(
                "device_seconds",
                &["model", "purpose"],
                "Time on the device: to `serve`, or to `probe` a shape for the profile",
            ),
            predicted_peak: to.gauge(
                "step_predicted_peak_bytes",
                MODEL,
                "Peak workspace predicted for the last step, drift factor included",
            ),
            peak: to.gauge("step_peak_bytes", MODEL, "True peak workspace of the last step"),
            peak_max: to.gauge("step_peak_max_bytes", MODEL, "Largest true peak workspace of a step so far"),
            peak_ratio: to.histogram(
                "step_peak_ratio",
                MODEL,
                "True peak over the predicted one; above 1 the prediction was too low",
                PEAKS,
            ),
            lease: to.gauge("step_lease_bytes", MODEL, "Ceiling of the last step's lease"),
            step_headroom: to.gauge(
                "step_headroom_bytes",
                MODEL,
                "What the last step could have used when it was chosen",
            ),
            overruns: to.counter("overruns", MODEL, "Steps whose true peak was above the ceiling of their lease"),
            ladder: to.counter(
                "ladder",
                &["model", "rung"],
                "Uses of the out-of-memory ladder: `trim` and retry, `halve` the batch, `evict` an idle model, \
                 `refuse` rows, which then wait",
            ),
            probes: to.counter("probes", MODEL, "Steps that measured a shape for the profile"),
            loads: to.counter("model_loads", &["model", "outcome"], "Loads of the model: `loaded` or `failed`"),
            load_seconds: to.gauge("model_load_seconds", MODEL, "Time of the last successful load"),
            evictions: to.counter("evictions", MODEL, "Times that the model was evicted to make room for another"),
            state: to.gauge(
                "model_state",
                &["model", "state"],
                "1 for the state that the model is in (`not_loaded`, `loading`, `ready`, `draining`, `broken`), else 0",
            ),
            profile_state: to.gauge(
                "model_profile_state",
                &["model", "state"],
                "1 for the state of the model's profile (`none`, `measuring`, `complete`, `stale`), else 0",
            ),
            guaranteed: to.gauge(
                "model_budget_guaranteed_bytes",
                MODEL,
                "Weights and KV cache that are always the model's, loaded or not",
            ),
            limit: to.gauge(
                "model_budget_limit_bytes",
                MODEL,
                "Ceiling on the model's weights, KV cache and step workspace together; +Inf for none",
            ),
            resident: to.gauge("model_resident_bytes", MODEL, "Weights of the model on the device, as measured"),
            kv: to.gauge("model_kv_bytes", MODEL, "KV cache of the model on the device"),
            headroom: to.gauge("model_headroom_bytes", MODEL, "What a step of the model may use now"),
            drift: to.gauge(
                "model_drift_ratio",
                MODEL,
                "Factor on the profile's predictions, from own peaks; 1 means that they hold",
            ),
            batch_rows_max: to.gauge(
                "model_batch_max_rows",
                MODEL,
                "Rows of the model's longest length that fit one step now",
            ),
        }
    }

    /// The series of one model.
    pub(super) fn handles(&self, name: &str) -> Handles {
        let labels = vec![("model", name.to_owned())];
        let with = |label: &'static str, value: &str| vec![("model", name.to_owned()), (label, value.to_owned())];
        Handles {
            requests: WORDS.map(|(outcome, reason)| {
                let mut labels = with("outcome", outcome);
                labels.push(("reason", reason.to_owned()));
                self.requests.get_or_create_owned(&labels)
            }),
            rows: OUTCOMES.map(|outcome| self.rows.get_or_create_owned(&with("outcome", outcome))),
            request_seconds: self.request_seconds.get_or_create_owned(&labels),
            request_queue_seconds: self.request_queue_seconds.get_or_create_owned(&labels),
            queue_rows: self.queue_rows.get_or_create_owned(&labels),
            queue_tokens: self.queue_tokens.get_or_create_owned(&labels),
            queue_age: self.queue_age.get_or_create_owned(&labels),
            queue_oldest: Mutex::new(None),
            steps: REASONS.map(|reason| self.steps.get_or_create_owned(&with("reason", reason.as_str()))),
            steps_out_of_memory: self.steps_failed.get_or_create_owned(&with("outcome", "out_of_memory")),
            steps_faulted: self.steps_failed.get_or_create_owned(&with("outcome", "faulted")),
            batch_rows: self.batch_rows.get_or_create_owned(&labels),
            batch_tokens: self.batch_tokens.get_or_create_owned(&labels),
            batch_padded: self.batch_padded.get_or_create_owned(&labels),
            tokens_real: self.tokens_real.get_or_create_owned(&labels),
            tokens_computed: self.tokens_computed.get_or_create_owned(&labels),
            step_seconds: self.step_seconds.get_or_create_owned(&labels),
            device_seconds_serve: self.device_seconds.get_or_create_owned(&with("purpose", "serve")),
            device_seconds_probe: self.device_seconds.get_or_create_owned(&with("purpose", "probe")),
            predicted_peak: self.predicted_peak.get_or_create_owned(&labels),
            peak: self.peak.get_or_create_owned(&labels),
            peak_max: self.peak_max.get_or_create_owned(&labels),
            peak_ratio: self.peak_ratio.get_or_create_owned(&labels),
            lease: self.lease.get_or_create_owned(&labels),
            step_headroom: self.step_headroom.get_or_create_owned(&labels),
            overruns: self.overruns.get_or_create_owned(&labels),
            ladder: RUNGS.map(|rung| self.ladder.get_or_create_owned(&with("rung", rung))),
            probes: self.probes.get_or_create_owned(&labels),
            loads: self.loads.get_or_create_owned(&with("outcome", "loaded")),
            loads_failed: self.loads.get_or_create_owned(&with("outcome", "failed")),
            load_seconds: self.load_seconds.get_or_create_owned(&labels),
            evictions: self.evictions.get_or_create_owned(&labels),
            state: MODEL_STATES.map(|state| self.state.get_or_create_owned(&with("state", state))),
            profile_state: PROFILE_STATES.map(|state| self.profile_state.get_or_create_owned(&with("state", state))),
            guaranteed: self.guaranteed.get_or_create_owned(&labels),
            limit: self.limit.get_or_create_owned(&labels),
            resident: self.resident.get_or_create_owned(&labels),
            kv: self.kv.get_or_create_owned(&labels),
            headroom: self.headroom.get_or_create_owned(&labels),
            drift: self.drift.get_or_create_owned(&labels),
            batch_rows_max: self.batch_rows_max.get_or_create_owned(&labels),
        }
    }
}

/// The series of one model.
#[derive(Debug)]
pub(super) struct Handles {
    pub(super) requests: [Counter; WORDS.len()],
    pub(super) rows: [Counter; OUTCOMES.len()],
    pub(super) request_seconds: Histogram,
    pub(super) request_queue_seconds: Histogram,
    pub(super) queue_rows: Gauge,
    pub(super) queue_tokens: Gauge,
    pub(super) queue_age: Gauge,
    pub(super) queue_oldest: Mutex<Option<Instant>>,
    pub(super) steps: [Counter; REASONS.len()],
    pub(super) steps_out_of_memory: Counter,
    pub(super) steps_faulted: Counter,
    pub(super) batch_rows: Histogram,
    pub(super) batch_tokens: Histogram,
    pub(super) batch_padded: Histogram,
    pub(super) tokens_real: Counter,
    pub(super) tokens_computed: Counter,
    pub(super) step_seconds: Histogram,
    pub(super) device_seconds_serve: Amount,
    pub(super) device_seconds_probe: Amount,
    pub(super) predicted_peak: Gauge,
    pub(super) peak: Gauge,
    pub(super) peak_max: Gauge,
    pub(super) peak_ratio: Histogram,
    pub(super) lease: Gauge,
    pub(super) step_headroom: Gauge,
    pub(super) overruns: Counter,
    pub(super) ladder: [Counter; RUNGS.len()],
    pub(super) probes: Counter,
    pub(super) loads: Counter,
    pub(super) loads_failed: Counter,
    pub(super) load_seconds: Gauge,
    pub(super) evictions: Counter,
    pub(super) state: [Gauge; MODEL_STATES.len()],
    pub(super) profile_state: [Gauge; PROFILE_STATES.len()],
    pub(super) guaranteed: Gauge,
    pub(super) limit: Gauge,
    pub(super) resident: Gauge,
    pub(super) kv: Gauge,
    pub(super) headroom: Gauge,
    pub(super) drift: Gauge,
    pub(super) batch_rows_max: Gauge,
}
