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
use super::lifecycle::Role;
use super::loads::LoadRules;
use super::register::{Guarantee, LaneRules};
use super::registry::Registry;
use super::rig::Rig;
use super::status::Board;
use crate::admission::QueueLimits;
use crate::config::ModelConfig;
use crate::device::profile_store::ProfileStore;
use crate::device::{Device, OnShortfall, Report};
use crate::memory::{BudgetRefusal, DeviceBooks, Ledger, Reading, Terms, TrimPolicy};
use crate::model::Blueprint;
use crate::scheduler::{Scheduler, Settings};
use crate::telemetry::Metrics;
use crate::units::{Bytes, Micros};

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
    /// Its files were never fetched: it is no broken model, but one that is not there yet.
    pub absent: bool,
    /// Its configuration and what its files say, for any kind of device; `Err` holds the reason why it cannot be served.
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
        "'{name}' is required at the start and needs {} to load, and {available} can be had: give more memory, or write \
         required = false in its model.toml",
        .needed.beyond(*.available)
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
    let mut ledger = Ledger::new(books).map_err(EngineError::Memory)?;
    ledger.set_trim_policy(settings.trim);
    let scheduler = Scheduler::new(settings.scheduler);
    let rig = Rig::new(device, profiles, reading, metrics.clone(), settings.on_shortfall)?;
    let shared = Arc::new(Shared {
        registry: Registry::default(),
        board: Board::default(),
        clock,
        pulse: Pulse::new(),
        unseen: AtomicUsize::new(0),
        health: watch::Sender::new(HealthView::default()),
        inbox,
        next_request: Mutex::new(0),
    });
    let EngineSettings { queue, request_rows_max, load_timeout, minimum_residency, .. } = settings;
    let load_rules = LoadRules { timeout: load_timeout, minimum_residency };
    let lane_rules = LaneRules { queue, request_rows_max, load_timeout };
    let mut core = Core::new(shared, scheduler, ledger, rig, load_rules, lane_rules);
    for offer in offers {
        let offer = core.for_device(offer);
        let name = offer.name.clone();
        if let Some((needed, available)) = core.never_fits(&offer) {
            return Err(EngineError::NeverFits { name, needed, available });
        }
        core.register(offer, Role::Current, Guarantee::Now).map_err(|refusal| EngineError::Budget { name, refusal })?;
    }
    Ok(core)
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
