//! Running one step: attempts, the ladder between them, and a result for every row, now or when the device is done.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::panic::{self, AssertUnwindSafe};
use std::rc::Rc;
use std::time::Instant;

use super::executor::{Tenant, panic_text, unload};
use super::statistics::Statistics;
use super::trace::Recording;
use super::{Hardware, Need, OnShortfall, Ran, Released, RowFailure, Run, RunPurpose, Shortfall, StepUse};
use crate::memory::{Evictable, Ladder, Observed, Outcome, Rung, Rungs};
use crate::model::{Batch, Fault, Later, Model, Output};
use crate::ops::label;
use crate::units::{Bytes, Micros, ModelId, StepId};

/// How often a step that is only measured is tried again. One that is given up stays unmeasured for a while, and where it
/// is the smallest one its model cannot serve.
const MEASURE_RETRIES: u32 = 3;

type RowResult = Result<Vec<f32>, RowFailure>;

/// What a step runs on, borrowed from the device's thread for its duration.
pub(super) struct StepRunner<'a, H: Hardware> {
    pub(super) hardware: &'a mut H,
    pub(super) models: &'a mut BTreeMap<ModelId, Tenant<H::Account>>,
    pub(super) statistics: &'a Statistics,
}

/// How far a step is when it has been started.
pub(super) enum Progress {
    /// It has ended; models that the ladder had to evict went before.
    Done(Ran, Vec<Released>),
    /// The device works on it, and nothing stands in its way.
    Queued(Queued),
}

/// A step that the device works on. All memory that it had is free for the next one in the device's order.
pub(super) struct Queued {
    step: StepId,
    model: ModelId,
    ceiling: Bytes,
    rows: usize,
    used: StepUse,
    output: Rc<dyn Later>,
    started: Instant,
}

impl Queued {
    /// Whether the device is done with it.
    pub(super) fn is_done(&self) -> bool {
        self.output.is_there()
    }
}

/// What became of some rows.
enum Attempt {
    /// They are here.
    Rows(Vec<RowResult>),
    /// They are on their way.
    Later(Rc<dyn Later>),
}

/// What became of a step for requests.
enum Served {
    Done(Summary),
    Queued(Rc<dyn Later>, StepUse),
}

/// What became of the whole step.
struct Summary {
    rows: Vec<RowResult>,
    observed: Observed,
    evicted: Vec<Released>,
    recording: Option<Recording>,
}

impl<H: Hardware> StepRunner<'_, H> {
    /// Runs a step, or starts it where the device goes on by itself. Never fails: what goes wrong is the result of the
    /// rows that it concerns.
    pub(super) fn run(&mut self, run: Run) -> Progress {
        let started = Instant::now();
        let Run { step, model, batch, need, purpose, on_shortfall, evictable } = run;
        let ceiling = need.ceiling;
        let rows = batch.rows();
        let summary = match purpose {
            RunPurpose::Serve => match self.serve(model, batch, need, (on_shortfall, evictable)) {
                Served::Done(summary) => summary,
                Served::Queued(output, used) => {
                    return Progress::Queued(Queued { step, model, ceiling, rows, used, output, started });
                }
            },
            RunPurpose::Measure => self.measure(model, &batch, need),
            RunPurpose::Trace => self.trace(model, &batch, need),
        };
        let Summary { rows, observed, evicted, recording } = summary;
        let busy = Micros::from(started.elapsed());
        let resident = self.resident(model);
        let ran = Ran { step, model, rows, observed, busy, resident, recording };
        self.statistics.ran(&ran, ceiling);
        Progress::Done(ran, evicted)
    }

    /// Waits for a step that the device works on. It had the device to itself from `free_since` on.
    pub(super) fn finish(&mut self, queued: Queued, free_since: Instant) -> Ran {
        let Queued { step, model, ceiling, rows, used, output, started } = queued;
        let rows = self.wait(&*output, rows, 0);
        // What it kept of the step would be counted as the model's.
        drop(output);
        let time = Micros::from(started.max(free_since).elapsed());
        let rungs = Rungs { trims: used.retried, ..Rungs::default() };
        let observed = Observed { peak: used.peak, reach: used.reach, time, rungs, outcome: outcome(&rows) };
        let resident = self.resident(model);
        let ran = Ran { step, model, rows, observed, busy: time, resident, recording: None };
        self.statistics.ran(&ran, ceiling);
        ran
    }

    fn resident(&self, model: ModelId) -> Bytes {
        self.models.get(&model).map_or(Bytes::ZERO, |own| self.hardware.resident(&own.account).total())
    }

    /// Waits for rows, of which the first is row `first` of the step.
    fn wait(&mut self, output: &dyn Later, rows: usize, first: usize) -> Vec<RowResult> {
        match output.wait() {
            Ok(vectors) => checked(vectors, rows, first),
            Err(fault) => all(rows, self.hardware.check().err().unwrap_or(fault)),
        }
    }

    /// The ladder: each part of the batch is run until it goes through or is refused.
    fn serve(
        &mut self,
        model: ModelId,
        batch: Batch,
        whole: Need,
        (on_shortfall, evictable): (OnShortfall, Vec<ModelId>),
    ) -> Served {
        let started = Instant::now();
        let count = batch.rows();
        let mut evictable = VecDeque::from(evictable);
        evictable.retain(|other| *other != model && self.models.contains_key(other));
        let mut evicted = Vec::new();
        let mut ladder = Ladder::new();
        let (mut peak, mut reach) = (Bytes::ZERO, Bytes::ZERO);
        let (mut retried, mut refusals) = (0u32, 0u32);
        // Parts go through from the first row to the last, so their results come in order.
        let mut rows: Vec<RowResult> = Vec::with_capacity(count);
        let whole_batch: Range<usize> = 0..count;
        let mut parts = Vec::from([whole_batch]);
        while let Some(part) = parts.pop() {
            // Peaks grow no faster than the rows but for a constant, so a part needs at least its share.
            let need = Need { predicted: whole.predicted.scale(part.len() as f64 / count as f64), ..whole };
            let shortfall = match self.attempt(model, &slice(&batch, &part), part.start, need) {
                // The whole step at once and without the ladder: nothing has to be put together, nothing told.
                Ok((Attempt::Later(output), used)) if part == (0..count) && ladder.used() == Rungs::default() => {
                    return Served::Queued(output, used);
                }
                Ok((attempt, used)) => {
                    let results = match attempt {
                        Attempt::Rows(rows) => rows,
                        Attempt::Later(output) => self.wait(&*output, part.len(), part.start),
                    };
                    (peak, reach) = (peak.max(used.peak), reach.max(used.reach));
                    retried = retried.saturating_add(used.retried);
                    rows.extend(results);
                    ladder.part_done();
                    continue;
                }
                Err(shortfall) => shortfall,
            };
            if on_shortfall == OnShortfall::Refuse {
                refusals += 1;
                rows.extend(part.map(|_| Err(RowFailure::OutOfMemory(shortfall))));
                continue;
            }
            let victims = if evictable.is_empty() { Evictable::None } else { Evictable::Some };
            match ladder.shortfall(u32::try_from(part.len()).unwrap_or(u32::MAX), victims) {
                Rung::TrimAndRetry => {
                    self.hardware.trim(Bytes::ZERO);
                    parts.push(part);
                }
                Rung::Halve => {
                    let middle = part.start + part.len().div_ceil(2);
                    parts.extend([middle..part.end, part.start..middle]);
                }
                Rung::Evict => {
                    if let Some(victim) = evictable.pop_front() {
                        evicted.push(unload(self.hardware, self.models, self.statistics, victim));
                    }
                    parts.push(part);
                }
                Rung::Refuse => {
                    rows.extend(part.map(|_| Err(RowFailure::OutOfMemory(shortfall))));
                    ladder.part_done();
                }
            }
        }
        let mut rungs = ladder.used();
        // The same rung, climbed inside an allocation.
        rungs.trims = rungs.trims.saturating_add(retried);
        rungs.refusals = rungs.refusals.saturating_add(refusals);
        let time = Micros::from(started.elapsed());
        let observed = Observed { peak, reach, time, rungs, outcome: outcome(&rows) };
        Served::Done(Summary { rows, observed, evicted, recording: None })
    }

    /// Runs a batch for its peak and time; the rows are kept only if one of them faulted. What the device refuses below
    /// the ceiling is asked for again: half a batch would measure another shape, so there is no other rung.
    fn measure(&mut self, model: ModelId, batch: &Batch, need: Need) -> Summary {
        let mut rungs = Rungs::default();
        loop {
            let started = Instant::now();
            let (rows, used, outcome) = match self.attempt(model, batch, 0, need) {
                Ok((attempt, used)) => {
                    let rows = match attempt {
                        Attempt::Rows(rows) => rows,
                        Attempt::Later(output) => self.wait(&*output, batch.rows(), 0),
                    };
                    match outcome(&rows) {
                        Outcome::Faulted => (rows, used, Outcome::Faulted),
                        outcome => (Vec::new(), used, outcome),
                    }
                }
                Err(shortfall) if shortfall.needed <= need.ceiling && rungs.trims < MEASURE_RETRIES => {
                    rungs.trims += 1;
                    self.hardware.trim(Bytes::ZERO);
                    continue;
                }
                Err(_) => (Vec::new(), StepUse::default(), Outcome::OutOfMemory),
            };
            let time = Micros::from(started.elapsed());
            let observed = Observed { peak: used.peak, reach: used.reach, time, rungs, outcome };
            return Summary { rows, observed, evicted: Vec::new(), recording: None };
        }
    }

    /// Runs a batch twice and records the second run: what a first one leaves behind is no step's workspace.
    fn trace(&mut self, model: ModelId, batch: &Batch, need: Need) -> Summary {
        let first = self.measure(model, batch, need);
        if first.observed.outcome != Outcome::Done {
            return first;
        }
        self.hardware.record_next();
        let recorded = label::traced(|| self.measure(model, batch, need));
        Summary { recording: self.hardware.recording(), ..recorded }
    }

    /// One forward pass of some rows, of which the first is row `first` of the step.
    fn attempt(
        &mut self,
        model: ModelId,
        batch: &Batch,
        first: usize,
        need: Need,
    ) -> Result<(Attempt, StepUse), Shortfall> {
        let Some(tenant) = self.models.get_mut(&model) else {
            let fault = Fault::Model { message: format!("{model} is not loaded on this device") };
            return Ok((Attempt::Rows(all(batch.rows(), fault)), StepUse::default()));
        };
        let forward = || forward(&mut *tenant.model, batch);
        let (result, used) = self.hardware.step(model, need, forward)?;
        let attempt = match result {
            Ok(Output::Vectors(vectors)) => Attempt::Rows(checked(vectors, batch.rows(), first)),
            Ok(Output::Later(later)) => Attempt::Later(later),
            Err(fault @ Fault::Panicked { .. }) => {
                // A library that panicked may have left a lock poisoned, and then nothing works any more.
                Attempt::Rows(all(batch.rows(), self.hardware.check().err().unwrap_or(fault)))
            }
            Err(fault) => Attempt::Rows(all(batch.rows(), fault)),
        };
        self.statistics.allocated(model, &used);
        Ok((attempt, used))
    }
}

/// Calls the model. A panic is a fault of this step; the model is used again.
fn forward(model: &mut dyn Model, batch: &Batch) -> Result<Output, Fault> {
    panic::catch_unwind(AssertUnwindSafe(|| model.step(batch)))
        .unwrap_or_else(|payload| Err(Fault::Panicked { message: panic_text(&*payload) }))
}

/// Every row finite, or a fault of its own; a wrong number of rows is a fault of all.
fn checked(vectors: Vec<Vec<f32>>, expected: usize, first: usize) -> Vec<RowResult> {
    if vectors.len() != expected {
        let message = format!("the model returned {} rows for {expected}", vectors.len());
        return all(expected, Fault::Model { message });
    }
    let check = |(row, vector): (usize, Vec<f32>)| match vector.iter().all(|value| value.is_finite()) {
        true => Ok(vector),
        false => Err(RowFailure::Fault(Fault::NotFinite { row: first + row })),
    };
    vectors.into_iter().enumerate().map(check).collect()
}

fn all(rows: usize, fault: Fault) -> Vec<RowResult> {
    vec![Err(RowFailure::Fault(fault)); rows]
}

fn outcome(rows: &[RowResult]) -> Outcome {
    let failures = || rows.iter().filter_map(|row| row.as_ref().err());
    if failures().any(|failure| matches!(failure, RowFailure::Fault(_))) {
        Outcome::Faulted
    } else if failures().next().is_some() {
        Outcome::OutOfMemory
    } else {
        Outcome::Done
    }
}

fn slice(batch: &Batch, rows: &Range<usize>) -> Batch {
    match batch {
        Batch::Tokens(all) => Batch::Tokens(all[rows.clone()].to_vec()),
    }
}
