//! What the engine shows of itself: each model's status, health, metrics, and its memory.

use std::sync::Arc;

use super::core::Core;
use super::health::HealthView;
use super::lifecycle::Lifecycle;
use super::lives::profile_word;
use super::memory_view::MemorySnapshot;
use super::registry::Registered;
use super::status::ModelState;
use crate::memory::{DeviceBooks, Reading};
use crate::telemetry::logs::admit;
use crate::telemetry::{AllocatorCounts, DeviceBytes, ModelLevels, QueueLevels};
use crate::units::{Bytes, Micros, ModelId, Timestamp};

/// How often levels are published while steps follow each other faster than anybody looks.
const LEVELS_INTERVAL: Micros = Micros::millis(50);

/// How often the allocator's counts are. They cost a look at the machine's own numbers.
const COUNTS_INTERVAL: Micros = Micros::millis(500);

/// What was published last, and when.
#[derive(Debug, Default)]
pub(super) struct Published {
    levels_at: Timestamp,
    counts_at: Timestamp,
    watchdog_bites: u64,
}

impl Core {
    /// Publishes what changes with time and load, unless that was just done.
    pub(super) fn publish(&mut self, now: Timestamp, reading: &Reading) {
        if now.since(self.published.levels_at) >= LEVELS_INTERVAL {
            self.published.levels_at = now;
            self.publish_levels(reading);
        }
        if now.since(self.published.counts_at) >= COUNTS_INTERVAL {
            self.published.counts_at = now;
            self.publish_counts();
        }
    }

    fn publish_levels(&mut self, reading: &Reading) {
        let lanes: Vec<_> = self.scheduler.lanes().collect();
        for lane in lanes.into_iter().filter(|lane| self.speaks_for_its_name(lane.model)) {
            let batch_rows_max = self.batch_rows_max(lane.model, reading);
            let headroom = self.ledger.headroom(lane.model, reading).bytes;
            let metrics = self.rig.model_metrics(lane.model);
            metrics.queue(QueueLevels {
                rows: lane.occupancy.rows,
                tokens: lane.occupancy.tokens,
                oldest: lane.oldest.map(|arrival| self.shared.clock.instant(arrival)),
            });
            metrics.profile_state(profile_word(lane.profile));
            let drift = lane.drift;
            let (budget, resident) = self.shared.board.with(lane.model, |status| {
                status.waiting_rows = lane.occupancy.rows;
                status.waiting_tokens = lane.occupancy.tokens;
                status.profile = lane.profile;
                status.drift = drift;
                status.batch_rows_max = batch_rows_max;
                status.device_time = lane.device_time;
                (status.budget, status.resident)
            });
            metrics.levels(&ModelLevels { budget, resident, kv: Bytes::ZERO, headroom, drift, batch_rows_max });
        }
        let books = self.ledger.snapshot(reading);
        let DeviceBooks { capacity, safety, .. } = books.books;
        // The books have the margin inside; who configures a budget does not.
        let budget = capacity.saturating_sub(safety);
        let bytes = DeviceBytes { capacity: budget, safety, leased: books.leased, reading: *reading };
        self.rig.device_metrics().bytes(&bytes);
    }

    fn publish_counts(&self) {
        // Without an answer the counters stand still until the next time.
        let Ok(snapshot) = self.rig.device_snapshot() else { return };
        let counters = || snapshot.models.values().map(|held| held.counters);
        self.rig.device_metrics().allocator(AllocatorCounts {
            allocations: counters().map(|counters| counters.blocks_allocated).sum(),
            frees: counters().map(|counters| counters.blocks_freed).sum(),
            trims: snapshot.workspace.trims,
        });
        if let Some(card) = &snapshot.card {
            let parts = card.parts.iter().map(|part| (part.part, part.bytes));
            self.rig.device_metrics().card(parts, card.unattributed_bytes);
        }
    }

    /// The books, the reading and the device's own counts, now.
    pub(super) fn memory_snapshot(&mut self, now: Timestamp) -> MemorySnapshot {
        let reading = self.rig.reading(now);
        MemorySnapshot {
            device: self.rig.device_name().to_owned(),
            reading,
            ledger: self.ledger.snapshot(&reading),
            usage: self.rig.device_snapshot().ok(),
        }
    }

    /// Writes everything that is known about memory to the log, for whoever has to find out why.
    pub(super) fn log_memory(&mut self, now: Timestamp, cause: &'static str) {
        if let Some(suppressed) = admit(cause, None) {
            let snapshot = self.memory_snapshot(now).json(|model| self.name(model).to_owned());
            tracing::warn!(cause, suppressed, %snapshot, "the state of the device's memory");
        }
    }

    /// Tells of a watchdog that has bitten since the last time: a defect of the scheduler, never of a client.
    pub(super) fn watch(&mut self, now: Timestamp) {
        let bites = self.scheduler.watchdog_bites();
        if bites == self.published.watchdog_bites {
            return;
        }
        self.published.watchdog_bites = bites;
        self.rig.device_metrics().watchdog_fired();
        let lanes: Vec<_> = self.scheduler.lanes().collect();
        tracing::error!(bites, ?lanes, "there was work and room for it, and no step: the oldest request is given up");
        self.log_memory(now, "watchdog");
    }

    /// Publishes a model's state and what follows from it for the server's health.
    pub(super) fn set_state(&mut self, model: ModelId, state: ModelState, reason: Option<String>) {
        self.life(model).state = state;
        if self.speaks_for_its_name(model) {
            self.rig.model_metrics(model).state(state.as_str());
        }
        self.shared.board.with(model, |status| (status.state, status.reason) = (state, reason));
        self.publish_health();
    }

    pub(super) fn publish_health(&mut self) {
        let current = self.shared.registry.current();
        let models = || current.iter().map(|registered| (registered, &self.models[registered.id.get() as usize]));
        // One that had to make room comes back with the first request for it.
        let serves = |life: &Lifecycle| life.state == ModelState::Ready || life.evicted;
        let state = |(registered, life): (&Arc<Registered>, &Lifecycle)| (registered.name.clone(), life.state);
        let awaited: Vec<_> =
            models().filter(|(registered, life)| registered.required && !serves(life)).map(state).collect();
        let models = models().map(state).collect();
        let (draining, poisoned) = (self.is_draining(), self.poisoned);
        let ready = awaited.is_empty() && !draining && !poisoned;
        let view = HealthView { ready, draining, poisoned, models, awaited };
        self.shared.health.send_if_modified(|current| {
            let changed = *current != view;
            *current = view;
            changed
        });
    }
}
