//! The engine's way to the outside: the device, the stored profiles, the metrics.

use std::thread::{self, JoinHandle};

use crossbeam_channel::{Sender, bounded};

use crate::device::profile_store::{ProfileFacts, ProfileStore};
use crate::device::statistics::DeviceSnapshot;
use crate::device::{Device, Loader, Need, OnShortfall, Order, Patience, Run, RunPurpose};
use crate::memory::{Axes, Lease, Profile, Reading, Slack, Table};
use crate::model::{Batch, Blueprint, DeviceForm};
use crate::scheduler::{Purpose, Step};
use crate::telemetry::{DeviceMetrics, Metrics, ModelMetrics};
use crate::units::{Bytes, Micros, ModelId, StepId, Timestamp};

/// A reading this young is as good as a new one for deciding whether a request may wait.
const FRESH: Micros = Micros::millis(2);

/// Everything that the engine tells or asks the outside through.
pub(super) struct Rig {
    device: Box<dyn Device>,
    name: String,
    store: ProfileStore,
    keeper: Keeper,
    last_reading: Reading,
    /// By model number.
    models: Vec<ModelMetrics>,
    all_metrics: Metrics,
    metrics: DeviceMetrics,
    /// What happens when a served step runs short.
    on_shortfall: OnShortfall,
}

/// A profile to be written.
struct Keep {
    model: String,
    facts: ProfileFacts,
    table: Table,
}

impl Rig {
    /// `last_reading` is the one that the budget was computed from.
    pub(super) fn new(
        device: Box<dyn Device>,
        store: ProfileStore,
        last_reading: Reading,
        all_metrics: Metrics,
        on_shortfall: OnShortfall,
    ) -> std::io::Result<Rig> {
        let name = device.name();
        let (models, metrics) = (Vec::new(), all_metrics.device(&name));
        let keeper = Keeper::start(store.clone())?;
        Ok(Rig { device, name, store, keeper, last_reading, models, all_metrics, metrics, on_shortfall })
    }

    /// Adds the metrics of the model with the next number: those of the revision before it, if there is one.
    pub(super) fn add_model(&mut self, name: &str, before: Option<ModelId>) {
        let metrics = match before {
            Some(before) => self.model_metrics(before).clone(),
            None => self.all_metrics.model(name),
        };
        self.models.push(metrics);
    }

    /// Which form of a model the device loads.
    pub(super) fn form(&self) -> DeviceForm {
        self.device.form()
    }

    pub(super) fn device_name(&self) -> &str {
        &self.name
    }

    pub(super) fn slack(&self, axes: &Axes) -> Slack {
        self.device.slack(axes.kind)
    }

    /// Whether the device makes use of a step that is queued behind another.
    pub(super) fn runs_ahead(&self) -> bool {
        self.device.runs_ahead()
    }

    /// How to wait for the device.
    pub(super) fn patience(&self) -> Patience {
        self.device.patience()
    }

    /// What the device takes for a model's weights.
    pub(super) fn taken_by(&self, weights: Bytes) -> Bytes {
        self.device.taken_by(weights)
    }

    pub(super) fn model_metrics(&self, model: ModelId) -> &ModelMetrics {
        &self.models[model.get() as usize]
    }

    pub(super) fn device_metrics(&self) -> &DeviceMetrics {
        &self.metrics
    }

    /// A new reading. If the device does not answer, the last one stands, as old as it is.
    pub(super) fn reading(&mut self, now: Timestamp) -> Reading {
        match self.device.reading(now) {
            Ok(reading) => self.last_reading = reading,
            Err(error) => {
                if let Some(suppressed) = crate::telemetry::logs::admit("no reading", None) {
                    tracing::warn!(suppressed, "the device does not say how much memory is free: {error}");
                }
            }
        }
        self.last_reading
    }

    /// The last reading if it is fresh, else a new one.
    pub(super) fn recent_reading(&mut self, now: Timestamp) -> Reading {
        if now.since(self.last_reading.at) <= FRESH { self.last_reading } else { self.reading(now) }
    }

    /// What the device has counted and what it holds.
    pub(super) fn device_snapshot(&self) -> std::io::Result<DeviceSnapshot> {
        self.device.snapshot()
    }

    /// Sends a step to the device. Answered by `Report::Ran`.
    pub(super) fn run(&self, step: &Step, batch: Batch, evictable: Vec<ModelId>) {
        let purpose = match step.purpose {
            Purpose::Serve => RunPurpose::Serve,
            Purpose::Probe => RunPurpose::Measure,
        };
        let need = Need::from(&step.lease);
        let (step, model, on_shortfall) = (step.id, step.model, self.on_shortfall);
        self.order(Order::Run(Run { step, model, batch, need, purpose, on_shortfall, evictable }));
    }

    /// Sends made-up rows of which the blocks are recorded. Answered by `Report::Ran`.
    pub(super) fn trace(&self, step: StepId, lease: &Lease, batch: Batch) {
        let (model, need) = (lease.model, Need::from(lease));
        let (purpose, on_shortfall, evictable) = (RunPurpose::Trace, self.on_shortfall, Vec::new());
        self.order(Order::Run(Run { step, model, batch, need, purpose, on_shortfall, evictable }));
    }

    /// Sends a load that may take up to `ceiling`. Answered by `Report::Loaded`.
    pub(super) fn load(&self, model: ModelId, blueprint: Blueprint, ceiling: Bytes) {
        let loader = move |device: &candle_core::Device| blueprint.load(device).map_err(Into::into);
        let loader: Box<dyn Loader> = Box::new(loader);
        self.order(Order::Load { model, ceiling, loader });
    }

    /// Sends an unload. Answered by `Report::Unloaded`.
    pub(super) fn unload(&self, model: ModelId) {
        self.order(Order::Unload { model });
    }

    /// Returns cached workspace beyond `keep` between two steps. Answered by `Report::Trimmed`.
    pub(super) fn trim(&self, keep: Bytes) {
        self.order(Order::Trim { keep });
    }

    fn order(&self, order: Order) {
        if self.device.send(order).is_err() {
            // It ends only with this type, or by a defect of its own, of which `Message::DeviceEnded` tells the engine.
            tracing::error!("the device's thread has ended");
        }
    }

    /// What a stored profile of this model has to be made for.
    fn facts(&self, blueprint: &Blueprint) -> ProfileFacts {
        let card = blueprint.card();
        self.device.profile_facts(blueprint.content_key(), card.dtype.as_str(), card.length_max)
    }

    /// The stored profile of a model, if there is one that can be used.
    pub(super) fn stored_profile(&self, blueprint: &Blueprint) -> Option<Profile> {
        let name = &blueprint.card().name;
        let table = match self.store.load(&self.facts(blueprint)) {
            Ok(found) => found?,
            Err(error) => {
                tracing::warn!(model = name.as_str(), "the stored profile is measured anew: {error}");
                return None;
            }
        };
        let axes = blueprint.axes();
        match Profile::from_table(&table, &axes, self.slack(&axes)) {
            Ok(profile) => Some(profile),
            Err(error) => {
                tracing::warn!(model = name.as_str(), "the stored profile is measured anew: {error}");
                None
            }
        }
    }

    /// Has a profile written, off the engine's thread.
    pub(super) fn keep_profile(&self, blueprint: &Blueprint, profile: &Profile) {
        let model = blueprint.card().name.clone();
        self.keeper.keep(Keep { model, facts: self.facts(blueprint), table: profile.table() });
    }
}

/// Writes profiles on a thread of its own: the file system may take its time. Dropping it waits for the last ones.
struct Keeper {
    queue: Option<Sender<Keep>>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    fn start(store: ProfileStore) -> std::io::Result<Keeper> {
        let (sender, queue) = bounded::<Keep>(16);
        let thread = thread::Builder::new().name("profiles".into()).spawn(move || {
            for Keep { model, facts, table } in queue {
                match store.save(&model, &facts, &table) {
                    Ok(path) => tracing::debug!(model, "profile kept in {}", path.display()),
                    Err(error) => tracing::warn!(model, "the profile is not kept: {error}"),
                }
            }
        })?;
        Ok(Keeper { queue: Some(sender), thread: Some(thread) })
    }

    /// Leaves it out if the writer is far behind: the next one is better anyway.
    fn keep(&self, profile: Keep) {
        if let Some(queue) = &self.queue {
            let _ = queue.try_send(profile);
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.queue.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that writes profiles had panicked");
        }
    }
}
