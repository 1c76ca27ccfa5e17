//! Starting the engine: the registry, the books, the device, the thread.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Instant;
use std::{io, iter};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use tokio::sync::watch;

use super::clock::Clock;
use super::core::Core;
use super::handle::{EngineHandle, Shared};
use super::health::{HealthView, Pulse};
use super::inbox::Message;
use super::lifecycle::Lifecycle;
use super::loads::LoadRules;
use super::registry::{Definition, Registry};
use super::rig::Rig;
use super::status::{Board, ModelState, ModelStatus, Statistics};
use crate::admission::{QueueLimits, RequestLimits};
use crate::config::{LoadPolicy, ModelConfig};
use crate::device::profile_store::ProfileStore;
use crate::device::{Device, OnShortfall, Report};
use crate::memory::{Budget, BudgetRefusal, DeviceBooks, Ledger, Reading, Terms, TrimPolicy};
use crate::model::Blueprint;
use crate::scheduler::{LaneSettings, Scheduler, Settings, WhileNotReady};
use crate::telemetry::Metrics;
use crate::units::{Bytes, Micros, ModelId};

/// Messages taken in before the engine does what is due, so that a flood of submissions does not hold up a step.
const MESSAGES_PER_TURN: usize = 256;

/// What the engine is told once.
#[derive(Clone, Debug)]
pub struct EngineSettings {
    /// How steps are chosen.
    pub scheduler: Settings,
    /// What happens when a step runs short.
    pub on_shortfall: OnShortfall,
    /// When cached workspace goes back.
    pub trim: TrimPolicy,
    /// How much may wait for one model.
    pub queue: QueueLimits,
    /// Rows of one request.
    pub request_rows_max: u32,
    /// How long requests wait for a model that is being loaded.
    pub load_timeout: Micros,
    /// How long a model stays at least before another may evict it.
    pub minimum_residency: Micros,
}

/// One model that the engine is to know.
pub struct Offer {
    /// Its name; no two are the same.
    pub name: String,
    /// The server is not ready without it.
    pub required: bool,
    /// Its configuration and what its files say, for any kind of device; `Err` holds the reason why it is broken.
    pub model: Result<(ModelConfig, Blueprint), String>,
}

/// Why the engine does not start.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The system refused something.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The whole budget cannot work.
    #[error("{0}")]
    Memory(BudgetRefusal),
    /// A model's budget cannot be kept.
    #[error("the budget of '{name}' cannot be kept: {refusal}")]
    Budget {
        /// The model.
        name: String,
        /// The numbers.
        refusal: BudgetRefusal,
    },
    /// The server could never become ready.
    #[error(
        "'{name}' is required at the start and needs {needed} to load, and {available} can be had: give more memory, or \
         write required = false in its model.toml"
    )]
    NeverFits {
        /// The model.
        name: String,
        /// Bytes that loading it takes when nothing else is loaded.
        needed: Bytes,
        /// Bytes that it may have then.
        available: Bytes,
    },
}

/// A running engine. Dropping it answers what is left with a rejection and waits for its threads to end; drain it
/// first ([`EngineHandle::drain`]).
pub struct Engine {
    handle: EngineHandle,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    /// Starts the engine over a device. `device` gets the engine's start and the function that takes in its reports;
    /// `books` makes the books from the first reading and how the device hands out memory.
    ///
    /// Models whose policy says so begin to load at once.
    ///
    /// # Errors
    /// An [`EngineError`]; nothing is left running then.
    pub fn start(
        settings: EngineSettings,
        offers: Vec<Offer>,
        metrics: &Metrics,
        profiles: ProfileStore,
        device: impl FnOnce(Instant, Box<dyn FnMut(Report) + Send>) -> io::Result<Box<dyn Device>>,
        books: impl FnOnce(&Reading, Terms) -> DeviceBooks,
    ) -> Result<Engine, EngineError> {
        let clock = Clock::new();
        let (inbox, messages) = unbounded();
        let device = device(clock.epoch(), reports_into(inbox.clone()))?;
        let reading = device.reading(clock.now())?;
        let books = books(&reading, device.terms());
        let core = assemble(settings, offers, metrics, profiles, (device, reading), books, (clock, inbox))?;
        let shared = core.shared.clone();
        let thread = thread::Builder::new().name("engine".into()).spawn(move || turn(core, &messages))?;
        Ok(Engine { handle: EngineHandle::new(shared), thread: Some(thread) })
    }

    /// A way to the engine.
    pub fn handle(&self) -> EngineHandle {
        self.handle.clone()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.handle.stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the engine's thread had panicked");
        }
    }
}

/// Sends reports to the inbox, and at last word that no more come: when the device's thread is gone, however it ended.
fn reports_into(inbox: Sender<Message>) -> Box<dyn FnMut(Report) + Send> {
    struct Reports(Sender<Message>);
    impl Drop for Reports {
        fn drop(&mut self) {
            // Without the engine there is nobody to tell.
            let _ = self.0.send(Message::DeviceEnded);
        }
    }
    let reports = Reports(inbox);
    Box::new(move |report| {
        let Reports(inbox) = &reports;
        let _ = inbox.send(Message::Report(report));
    })
}

/// Puts the engine's state together: nothing runs yet, and nothing is asked for before [`Core::begin`].
pub(super) fn assemble(
    settings: EngineSettings,
    offers: Vec<Offer>,
    metrics: &Metrics,
    profiles: ProfileStore,
    (device, reading): (Box<dyn Device>, Reading),
    books: DeviceBooks,
    (clock, inbox): (Clock, Sender<Message>),
) -> Result<Core, EngineError> {
    let mut opening = Opening {
        registry: Registry::default(),
        scheduler: Scheduler::new(settings.scheduler),
        ledger: Ledger::new(books).map_err(EngineError::Memory)?,
        statuses: Vec::new(),
        lives: Vec::new(),
    };
    opening.ledger.set_trim_policy(settings.trim);
    let form = device.form();
    for offer in offers {
        let model = offer.model.and_then(|(config, blueprint)| {
            let blueprint = blueprint.for_device(form);
            blueprint.check_form().map_err(|error| error.to_string())?;
            Ok((config, blueprint))
        });
        opening.register(&settings, books.available(), Offer { model, ..offer })?;
    }
    let Opening { registry, scheduler, ledger, statuses, lives } = opening;
    let model_metrics = registry.iter().map(|model| metrics.model(&model.name)).collect();
    let device_metrics = metrics.device(&device.name());
    let rig = Rig::new(device, profiles, reading, model_metrics, device_metrics, settings.on_shortfall)?;
    let shared = Arc::new(Shared {
        registry,
        board: Board::new(statuses),
        clock,
        pulse: Pulse::new(),
        unseen: AtomicUsize::new(0),
        health: watch::Sender::new(HealthView::default()),
        inbox,
        next_request: Mutex::new(0),
    });
    let rules = LoadRules { timeout: settings.load_timeout, minimum_residency: settings.minimum_residency };
    Ok(Core::new(shared, scheduler, ledger, rig, lives, rules))
}

/// What is put together before the engine runs.
struct Opening {
    registry: Registry,
    scheduler: Scheduler,
    ledger: Ledger,
    statuses: Vec<ModelStatus>,
    lives: Vec<Lifecycle>,
}

impl Opening {
    fn register(&mut self, settings: &EngineSettings, available: Bytes, offer: Offer) -> Result<(), EngineError> {
        let Offer { name, required, model } = offer;
        let (definition, blueprint) = match model {
            Ok((config, blueprint)) => {
                let card = blueprint.card().clone();
                (Ok(Arc::new(Definition { config, card })), Some(blueprint))
            }
            Err(reason) => (Err(reason), None),
        };
        let mut status = ModelStatus {
            id: ModelId::new(0),
            name: name.clone(),
            state: ModelState::NotLoaded,
            reason: definition.as_ref().err().cloned(),
            pinned: false,
            budget: Budget::SHARED,
            revision: 1,
            resident: Bytes::ZERO,
            profile: None,
            drift: 1.0,
            batch_rows_max: 0,
            waiting_rows: 0,
            waiting_tokens: 0,
            share: 0.0,
            device_time: Micros::ZERO,
            statistics: Statistics::default(),
        };
        let life = Lifecycle::new(blueprint);
        status.state = life.state;
        let id = self.registry.add(name, required, definition);
        status.id = id;
        if let Ok(definition) = self.registry.get(id).definition.clone() {
            let Definition { config, card } = &*definition;
            let kind = life.blueprint.as_ref().map(|blueprint| blueprint.axes().kind);
            let kind = kind.expect("a model with a definition has a blueprint");
            let limit = config.limit.map_or(Bytes::MAX, |limit| limit.of(available));
            let budget = Budget { guaranteed: config.guaranteed.of(available), limit };
            if let Some(blueprint) = &life.blueprint
                && required
                && config.load == LoadPolicy::Startup
            {
                let (needed, available) = (blueprint.resident() + blueprint.transient(), available.min(limit));
                if needed > available {
                    return Err(EngineError::NeverFits { name: config.name.clone(), needed, available });
                }
            }
            self.ledger
                .register(id, budget, config.pinned)
                .map_err(|refusal| EngineError::Budget { name: config.name.clone(), refusal })?;
            self.scheduler.add_lane(
                id,
                LaneSettings {
                    kind,
                    share: config.share,
                    target_latency: config.target_latency,
                    max_linger: config.max_linger,
                    request: RequestLimits { rows_max: settings.request_rows_max, length_max: card.length_max },
                    queue: settings.queue,
                    while_not_ready: match config.load {
                        LoadPolicy::Startup | LoadPolicy::OnDemand => WhileNotReady::Wait,
                        LoadPolicy::Manual => WhileNotReady::Refuse,
                    },
                    load_timeout: settings.load_timeout,
                },
            );
            (status.pinned, status.budget, status.share) = (config.pinned, budget, config.share);
        }
        self.statuses.push(status);
        self.lives.push(life);
        Ok(())
    }
}

/// The engine's thread: messages in, then everything that is due, until it is told to stop.
fn turn(mut core: Core, messages: &Receiver<Message>) {
    let clock = core.shared.clock;
    let patience = core.rig.patience();
    core.begin(clock.now());
    while !core.stopped() {
        let now = clock.now();
        core.shared.pulse.beat();
        let wake_at = core.poll(now);
        let wait = Pulse::INTERVAL.min(wake_at.since(clock.now()).into());
        let soon = patience.look(wait, || messages.try_recv().ok());
        match soon.map_or_else(|| messages.recv_timeout(wait), Ok) {
            Ok(first) => {
                let now = clock.now();
                for message in iter::once(first).chain(messages.try_iter()).take(MESSAGES_PER_TURN) {
                    core.handle(now, message);
                    if core.stopped() {
                        // What comes after is answered by the end of its channel.
                        return;
                    }
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            // Unreachable while the core holds a sender; ends the thread rather than spin.
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
}
