//! Counts of what has happened, kept by the device's thread and read by anybody.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::events::{Event, PastEvent, Ring};
use super::snapshot::ModelUse;
use crate::device::{Ran, Released, Resident, RowFailure, StepUse};
use crate::memory::{Outcome, Rungs};
use crate::units::{Bytes, Micros, ModelId};

/// Counters of one model on one device. All of them only grow, also over unloads, except the two that say "last".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counters {
    /// Loads that succeeded.
    pub loads: u64,
    /// Unloads and evictions.
    pub unloads: u64,
    /// Time of the last load.
    pub load_us_last: u64,
    /// Steps, those for measuring included.
    pub steps: u64,
    /// Steps in which a row faulted.
    pub steps_faulted: u64,
    /// Steps whose peak was above their ceiling.
    pub overruns: u64,
    /// Rung 1 of the ladder, used so often.
    pub trims: u64,
    /// Rung 2.
    pub halvings: u64,
    /// Rung 3.
    pub evictions: u64,
    /// Rows refused by rung 4.
    pub refusals: u64,
    /// Blocks that its steps allocated.
    pub blocks_allocated: u64,
    /// Blocks that its steps freed.
    pub blocks_freed: u64,
    /// Time on the device.
    pub busy_us: u64,
    /// Peak workspace of the last step.
    pub step_peak_bytes_last: u64,
    /// Largest peak workspace of a step.
    pub step_peak_bytes_max: u64,
}

#[derive(Default)]
struct Book {
    models: BTreeMap<ModelId, Counters>,
    events: Ring,
}

/// The counts of one device, shared between its thread and those who look.
#[derive(Clone)]
pub struct Statistics {
    epoch: Instant,
    book: Arc<Mutex<Book>>,
}

impl Statistics {
    /// Nothing has happened yet. Events are timed from `epoch`, the engine's start.
    pub fn new(epoch: Instant) -> Statistics {
        Statistics { epoch, book: Arc::default() }
    }

    /// The counters of every model that was ever here.
    pub fn counters(&self) -> BTreeMap<ModelId, Counters> {
        self.lock().models.clone()
    }

    /// The same, with room for what each of them holds.
    pub(in crate::device) fn models(&self) -> BTreeMap<ModelId, ModelUse> {
        let model = |(model, counters)| (model, ModelUse { counters, ..ModelUse::default() });
        self.counters().into_iter().map(model).collect()
    }

    /// The recent events, the oldest first.
    pub fn events(&self) -> Vec<PastEvent> {
        self.lock().events.oldest_first().cloned().collect()
    }

    pub(in crate::device) fn record(&self, event: Event) {
        let at_us = Micros::from(self.epoch.elapsed()).get();
        self.lock().events.push(PastEvent { at_us, event });
    }

    pub(in crate::device) fn loaded(&self, model: ModelId, resident: Resident, time: Micros) {
        self.count(model, |counters| {
            counters.loads += 1;
            counters.load_us_last = time.get();
        });
        self.record(Event::Loaded { model: model.get(), resident_bytes: resident.total().get() });
    }

    pub(in crate::device) fn unloaded(&self, gone: &Released) {
        self.count(gone.model, |counters| counters.unloads += 1);
        let (released_bytes, left_bytes) = (gone.released.get(), gone.left.get());
        self.record(Event::Unloaded { model: gone.model.get(), released_bytes, left_bytes });
    }

    pub(in crate::device) fn allocated(&self, model: ModelId, used: &StepUse) {
        self.count(model, |counters| {
            counters.blocks_allocated += used.allocated;
            counters.blocks_freed += used.freed;
            counters.overruns += u64::from(used.overrun);
            counters.step_peak_bytes_last = used.peak.get();
            counters.step_peak_bytes_max = counters.step_peak_bytes_max.max(used.peak.get());
        });
    }

    pub(in crate::device) fn ran(&self, ran: &Ran, ceiling: Bytes) {
        let observed = ran.observed;
        let Rungs { trims, halvings, evictions, refusals } = observed.rungs;
        self.count(ran.model, |counters| {
            counters.steps += 1;
            counters.steps_faulted += u64::from(observed.outcome == Outcome::Faulted);
            counters.trims += u64::from(trims);
            counters.halvings += u64::from(halvings);
            counters.evictions += u64::from(evictions);
            counters.refusals += u64::from(refusals);
            counters.busy_us += ran.busy.get();
        });
        let (model, step) = (ran.model.get(), ran.step.get());
        if observed.peak > ceiling {
            let (peak_bytes, ceiling_bytes) = (observed.peak.get(), ceiling.get());
            self.record(Event::Overrun { model, step, peak_bytes, ceiling_bytes });
        }
        if observed.rungs != Rungs::default() {
            self.record(Event::Ladder { model, step, trims, halvings, evictions, refusals });
        }
        let fault = ran.rows.iter().find_map(|row| match row {
            Err(RowFailure::Fault(fault)) => Some(fault.to_string()),
            _ => None,
        });
        if let Some(reason) = fault {
            self.record(Event::Faulted { model, step, reason });
        }
    }

    fn count(&self, model: ModelId, change: impl FnOnce(&mut Counters)) {
        change(self.lock().models.entry(model).or_default());
    }

    fn lock(&self) -> MutexGuard<'_, Book> {
        // Counters are consistent between any two of them; a panic elsewhere is no reason to stop counting.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
