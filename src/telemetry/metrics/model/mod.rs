//! The metrics of one model.

mod series;

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use super::catalogue::Gauge;
use super::outcome::{Outcome, WORDS};
use crate::memory::{Budget, Observed, Outcome as StepOutcome};
use crate::scheduler::{Purpose, Step};
use crate::units::{Bytes, Micros};
pub(super) use series::Families;
use series::{Handles, OUTCOMES, REASONS};
pub use series::{MODEL_STATES, PROFILE_STATES};

/// How long an answered request took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestTimes {
    /// From acceptance to the answer.
    pub total: Micros,
    /// From acceptance to the start of its first step.
    pub queued: Micros,
}

/// What waits for a model.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueLevels {
    /// Rows of accepted requests that no step has taken.
    pub rows: u64,
    /// Tokens of these rows.
    pub tokens: u64,
    /// When the oldest of them arrived; `None` when nothing waits.
    pub oldest: Option<Instant>,
}

/// What a model may use and uses.
#[derive(Clone, Copy, Debug)]
pub struct ModelLevels {
    /// Its budget now in force.
    pub budget: Budget,
    /// Its weights on the device.
    pub resident: Bytes,
    /// Its KV cache on the device.
    pub kv: Bytes,
    /// What a step of it may use now.
    pub headroom: Bytes,
    /// The factor on its predicted peaks.
    pub drift: f64,
    /// Rows of its longest length that fit one step now.
    pub batch_rows_max: u32,
}

/// Records what happens to one model. Cheap to clone; the clones record into the same series.
#[derive(Clone, Debug)]
pub struct ModelMetrics {
    handles: Arc<Handles>,
}

impl ModelMetrics {
    pub(super) fn new(families: &Families, name: &str) -> ModelMetrics {
        ModelMetrics { handles: Arc::new(families.handles(name)) }
    }

    /// A request has ended. To be called exactly once for each, refused ones included.
    pub fn request_finished(&self, outcome: Outcome<'_>, rows: u64) {
        let to = &self.handles;
        let words = outcome.words();
        for (known, counter) in WORDS.iter().zip(&to.requests) {
            if *known == words {
                counter.inc();
            }
        }
        for (known, counter) in OUTCOMES.iter().zip(&to.rows) {
            if *known == words.0 {
                counter.inc_by(rows);
            }
        }
        if let Outcome::Answered(times) = outcome {
            to.request_seconds.observe(times.total.as_secs_f64());
            to.request_queue_seconds.observe(times.queued.as_secs_f64());
        }
    }

    /// What waits now. To be called when it has changed; the age of the oldest grows by itself.
    pub fn queue(&self, levels: QueueLevels) {
        let to = &self.handles;
        to.queue_rows.set(levels.rows as f64);
        to.queue_tokens.set(levels.tokens as f64);
        *to.queue_oldest.lock().unwrap_or_else(PoisonError::into_inner) = levels.oldest;
    }

    /// A step has ended, whatever came of it. `tokens_real`: tokens of its rows, padding excluded.
    pub fn step_completed(&self, step: &Step, seen: &Observed, tokens_real: u64) {
        let to = &self.handles;
        match step.purpose {
            Purpose::Serve => self.step_served(step, seen, tokens_real),
            Purpose::Probe => {
                to.probes.inc();
                to.device_seconds_probe.inc_by(seen.time.as_secs_f64());
            }
        }
        to.peak_max.set(to.peak_max.get().max(seen.peak.as_f64()));
        if seen.peak > step.lease.ceiling {
            to.overruns.inc();
        }
        let rungs = [seen.rungs.trims, seen.rungs.halvings, seen.rungs.evictions, seen.rungs.refusals];
        for (counter, count) in to.ladder.iter().zip(rungs) {
            counter.inc_by(u64::from(count));
        }
    }

    fn step_served(&self, step: &Step, seen: &Observed, tokens_real: u64) {
        let to = &self.handles;
        for (reason, counter) in REASONS.iter().zip(&to.steps) {
            if *reason == step.reason {
                counter.inc();
            }
        }
        match seen.outcome {
            StepOutcome::Done => {}
            StepOutcome::OutOfMemory => _ = to.steps_out_of_memory.inc(),
            StepOutcome::Faulted => _ = to.steps_faulted.inc(),
        }
        to.batch_rows.observe(step.members.len() as f64);
        to.batch_tokens.observe(step.shape.tokens() as f64);
        to.tokens_real.inc_by(tokens_real);
        // Where no row got memory nothing was computed, and all are tried again.
        if seen.outcome != StepOutcome::OutOfMemory || tokens_real > 0 {
            to.tokens_computed.inc_by(step.shape.tokens());
        }
        if tokens_real > 0 {
            to.batch_padded.observe(step.shape.tokens() as f64 / tokens_real as f64);
        }
        to.step_seconds.observe(seen.time.as_secs_f64());
        to.device_seconds_serve.inc_by(seen.time.as_secs_f64());
        to.predicted_peak.set(step.lease.predicted.as_f64());
        to.peak.set(seen.peak.as_f64());
        to.lease.set(step.lease.ceiling.as_f64());
        to.step_headroom.set(step.headroom.as_f64());
        // A step that failed half way has not reached its peak: it says nothing about the prediction.
        if seen.outcome == StepOutcome::Done && step.lease.predicted > Bytes::ZERO {
            to.peak_ratio.observe(seen.peak.as_f64() / step.lease.predicted.as_f64());
        }
    }

    /// What the model may use and uses now.
    pub fn levels(&self, levels: &ModelLevels) {
        let to = &self.handles;
        to.guaranteed.set(levels.budget.guaranteed.as_f64());
        let limit = levels.budget.limit;
        to.limit.set(if limit == Bytes::MAX { f64::INFINITY } else { limit.as_f64() });
        to.resident.set(levels.resident.as_f64());
        to.kv.set(levels.kv.as_f64());
        to.headroom.set(levels.headroom.as_f64());
        to.drift.set(levels.drift);
        to.batch_rows_max.set(f64::from(levels.batch_rows_max));
    }

    /// The model is in this state, one of [`MODEL_STATES`].
    pub fn state(&self, state: &str) {
        choose(&MODEL_STATES, &self.handles.state, state);
    }

    /// The model's profile is in this state, one of [`PROFILE_STATES`].
    pub fn profile_state(&self, state: &str) {
        choose(&PROFILE_STATES, &self.handles.profile_state, state);
    }

    /// A load succeeded.
    pub fn loaded(&self, took: Micros) {
        self.handles.loads.inc();
        self.handles.load_seconds.set(took.as_secs_f64());
    }

    /// A load failed.
    pub fn load_failed(&self) {
        self.handles.loads_failed.inc();
    }

    /// The model was evicted to make room for another.
    pub fn evicted(&self) {
        self.handles.evictions.inc();
    }

    /// Computes what depends on the time of asking.
    pub(super) fn refresh(&self) {
        let oldest = *self.handles.queue_oldest.lock().unwrap_or_else(PoisonError::into_inner);
        self.handles.queue_age.set(oldest.map_or(0.0, |at| at.elapsed().as_secs_f64()));
    }
}

/// Sets the gauge of `chosen` to 1 and the others to 0.
fn choose(words: &[&str], gauges: &[Gauge], chosen: &str) {
    debug_assert!(words.contains(&chosen), "'{chosen}' is none of {words:?}");
    for (word, gauge) in words.iter().zip(gauges) {
        gauge.set(f64::from(u8::from(*word == chosen)));
    }
}
