//! The server's steps, put together from what the replies tell of them.

use std::collections::BTreeMap;
use std::time::Duration;

use super::client::SeenStep;

/// A step and when the first reply that tells of it arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sighting {
    /// What was told.
    pub step: SeenStep,
    /// Index of its model in the workload.
    pub model: usize,
    /// From the start of the load. A step ended shortly before it.
    pub at: Duration,
}

/// Every step once, however many replies tell of it. Some 100 bytes a step: an hour at 1,000 steps/s is 360 MB.
#[derive(Default)]
pub(super) struct StepBook {
    steps: BTreeMap<u64, Sighting>,
}

impl StepBook {
    /// Enters the steps of one reply.
    pub(super) fn enter(&mut self, model: usize, at: Duration, steps: &[SeenStep]) {
        for &step in steps {
            self.steps.entry(step.id).or_insert(Sighting { step, model, at });
        }
    }

    /// The steps in the order in which the server chose them.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Sighting> {
        self.steps.values()
    }

    /// What the steps of one model amount to.
    pub(super) fn totals(&self, model: usize) -> StepTotals {
        let mut totals = StepTotals::default();
        for Sighting { step, .. } in self.iter().filter(|sighting| sighting.model == model) {
            totals.add(step);
        }
        totals
    }
}

/// Sums over steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct StepTotals {
    /// Steps.
    pub count: u64,
    /// Rows of all callers.
    pub rows: u64,
    /// The largest batch.
    pub rows_max: u32,
    /// Tokens computed, padding included.
    pub padded_tokens: u64,
    /// Microseconds on the device.
    pub compute_us: u64,
    /// Steps by the bound that decided their size.
    pub reasons: BTreeMap<&'static str, u64>,
    /// The largest predicted workspace in bytes.
    pub predicted_max: u64,
    /// The largest true workspace in bytes.
    pub peak_max: u64,
    /// Steps that took more than was predicted.
    pub excesses: u64,
    /// The largest true peak as a part of its prediction.
    pub peak_ratio_max: f64,
}

impl StepTotals {
    fn add(&mut self, step: &SeenStep) {
        self.count += 1;
        self.rows += u64::from(step.rows);
        self.rows_max = self.rows_max.max(step.rows);
        self.padded_tokens += step.computed_tokens;
        self.compute_us += step.compute_us;
        *self.reasons.entry(step.reason).or_default() += 1;
        self.predicted_max = self.predicted_max.max(step.predicted);
        self.peak_max = self.peak_max.max(step.peak);
        self.excesses += u64::from(step.peak > step.predicted);
        if step.predicted > 0 {
            self.peak_ratio_max = self.peak_ratio_max.max(step.peak as f64 / step.predicted as f64);
        }
    }

    /// Adds the sums of other steps.
    pub(super) fn merge(&mut self, other: &StepTotals) {
        self.count += other.count;
        self.rows += other.rows;
        self.rows_max = self.rows_max.max(other.rows_max);
        self.padded_tokens += other.padded_tokens;
        self.compute_us += other.compute_us;
        for (reason, count) in &other.reasons {
            *self.reasons.entry(reason).or_default() += count;
        }
        self.predicted_max = self.predicted_max.max(other.predicted_max);
        self.peak_max = self.peak_max.max(other.peak_max);
        self.excesses += other.excesses;
        self.peak_ratio_max = self.peak_ratio_max.max(other.peak_ratio_max);
    }

    /// Rows of a step on average; 0 without steps.
    pub(super) fn rows_mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.rows as f64 / self.count as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(id: u64, rows: u32, reason: &'static str) -> SeenStep {
        SeenStep {
            id,
            rows,
            computed_tokens: u64::from(rows) * 10,
            reason,
            predicted: 100,
            peak: 80,
            headroom: 1_000,
            compute_us: 50,
        }
    }

    #[test]
    fn a_step_that_many_replies_tell_of_counts_once() {
        let mut book = StepBook::default();
        book.enter(0, Duration::from_millis(5), &[step(2, 4, "queue"), step(1, 8, "memory")]);
        book.enter(0, Duration::from_millis(9), &[step(1, 8, "memory"), step(3, 3, "queue")]);
        book.enter(1, Duration::from_millis(9), &[SeenStep { peak: 120, ..step(4, 1, "knee") }]);
        assert_eq!(
            book.iter().map(|seen| (seen.step.id, seen.at.as_millis())).collect::<Vec<_>>(),
            [(1, 5), (2, 5), (3, 9), (4, 9)]
        );
        let totals = book.totals(0);
        assert_eq!((totals.count, totals.rows, totals.rows_max, totals.padded_tokens), (3, 15, 8, 150));
        assert_eq!((totals.compute_us, totals.excesses), (150, 0));
        assert_eq!(totals.reasons, BTreeMap::from([("memory", 1), ("queue", 2)]));
        assert_eq!(totals.rows_mean(), 5.0);
        assert_eq!((book.totals(1).excesses, book.totals(1).peak_ratio_max), (1, 1.2));
        assert_eq!(book.totals(2), StepTotals::default());
    }
}
