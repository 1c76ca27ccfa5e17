//! The engine's state, the machine and the clients, with a time that only moves when a test moves it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use crossbeam_channel::{Receiver, unbounded};
use tokio::sync::oneshot::{self, error::TryRecvError};

use super::machine::{FakeDevice, Machine, Tenant};
use crate::admission::{QueueLimits, Rejection};
use crate::config::{LoadPolicy, ModelConfig, Source};
use crate::device::OnShortfall;
use crate::device::profile_store::ProfileStore;
use crate::engine::clock::Clock;
use crate::engine::core::Core;
use crate::engine::inbox::Message;
use crate::engine::start::assemble;
use crate::engine::{Answer, EngineSettings, Failure, ModelState, Offer, Registered, Submission};
use crate::memory::{DeviceBooks, Reading, Readings, Terms, TrimPolicy};
use crate::model::{Blueprint, ModelFiles, TokenRow};
use crate::scheduler::{Priority, Settings};
use crate::telemetry::Metrics;
use crate::units::{Bytes, Micros, ModelId, RequestId, Timestamp};

/// Longest row of every model here.
pub(super) const LENGTH_MAX: u32 = 16;
/// Most tokens of a step.
pub(super) const STEP_TOKENS_MAX: u32 = 128;

/// A model's place in the offer.
pub(super) const fn id(index: u32) -> ModelId {
    ModelId::new(index)
}

/// A model that loads when the server starts.
pub(super) fn model(name: &str) -> ModelConfig {
    ModelConfig {
        length_max: Some(LENGTH_MAX),
        step_tokens_max: Some(STEP_TOKENS_MAX),
        ..ModelConfig::new(name, Source::Embedded("tiny-embed".to_owned()))
    }
}

/// A model that loads with its first request.
pub(super) fn on_demand(name: &str) -> ModelConfig {
    ModelConfig { load: LoadPolicy::OnDemand, required: false, ..model(name) }
}

/// The blueprint of such a model; its files are read once for all tests.
fn blueprint(config: &ModelConfig) -> Blueprint {
    static MADE: OnceLock<Mutex<BTreeMap<String, Blueprint>>> = OnceLock::new();
    let mut made = MADE.get_or_init(Mutex::default).lock().unwrap();
    let make = || Blueprint::new(config, ModelFiles::embedded("tiny-embed").unwrap()).unwrap();
    made.entry(config.name.clone()).or_insert_with(make).clone()
}

/// What the engine is told of a model.
pub(super) fn offer(config: ModelConfig) -> Offer {
    let blueprint = blueprint(&config);
    Offer { name: config.name.clone(), required: config.required, absent: false, model: Ok((config, blueprint)) }
}

/// Weights of one model.
pub(super) fn weights() -> Bytes {
    blueprint(&model("a")).resident()
}

/// What loading takes beside the weights.
pub(super) fn transient() -> Bytes {
    blueprint(&model("a")).transient()
}

/// What a world is made of.
pub(super) struct Setup {
    pub(super) models: Vec<Result<ModelConfig, String>>,
    /// Those that cannot be served are not broken: nothing of them was ever fetched.
    pub(super) absent: bool,
    /// Memory for models and steps.
    pub(super) budget: Bytes,
    pub(super) load_timeout: Micros,
    pub(super) minimum_residency: Micros,
    pub(super) readings: Readings,
    /// The device takes a step behind the one it works on.
    pub(super) runs_ahead: bool,
}

impl Setup {
    /// Room for all of these models and then some.
    pub(super) fn of(models: impl IntoIterator<Item = ModelConfig>) -> Setup {
        Setup {
            models: models.into_iter().map(Ok).collect(),
            absent: false,
            budget: Bytes::mib(512),
            load_timeout: Micros::secs(20),
            minimum_residency: Micros::secs(5),
            readings: Readings::Live,
            runs_ahead: false,
        }
    }

    /// Room for the weights of so many models, for the load of one more, and for their steps; not for the weights of
    /// one more.
    pub(super) fn with_room_for(self, models: u64) -> Setup {
        Setup { budget: weights() * models + transient() + Bytes::mib(2), ..self }
    }
}

/// Where the answer of a request will come from, and what its rows should come to.
type Open = (oneshot::Receiver<Result<Answer, Failure>>, Vec<Vec<f32>>);

pub(super) struct World {
    pub(super) core: Core,
    pub(super) metrics: Metrics,
    pub(super) now: Timestamp,
    machine: Arc<Mutex<Machine>>,
    /// Requests that are not answered, and what their rows should come to.
    open: BTreeMap<RequestId, Open>,
    /// When and how each request was answered.
    answers: BTreeMap<RequestId, (Timestamp, Result<Answer, Failure>)>,
    next_request: u64,
    wake_at: Timestamp,
    _inbox: Receiver<Message>,
}

impl World {
    /// A world whose profiles are kept nowhere.
    pub(super) fn new(setup: Setup) -> World {
        World::over(setup, Path::new("/dev/null/nowhere"))
    }

    /// A world at its start: loads are asked for, none is done.
    pub(super) fn over(setup: Setup, profiles: &Path) -> World {
        let made = |model: Result<ModelConfig, String>| match model {
            Ok(config) => offer(config),
            Err(reason) => {
                Offer { name: "broken".to_owned(), required: false, absent: setup.absent, model: Err(reason) }
            }
        };
        let offers: Vec<Offer> = setup.models.into_iter().map(made).collect();
        let tenant = |(index, offer): (usize, &Offer)| {
            let (_, blueprint) = offer.model.as_ref().ok()?;
            Some((id(index as u32), Tenant { resident: blueprint.resident(), axes: blueprint.axes() }))
        };
        let machine = Arc::new(Mutex::new(Machine::new(offers.iter().enumerate().filter_map(tenant).collect())));
        machine.lock().unwrap().runs_ahead = setup.runs_ahead;
        let settings = EngineSettings {
            on_shortfall: OnShortfall::Ladder,
            scheduler: Settings::default(),
            trim: TrimPolicy::default(),
            queue: QueueLimits::default(),
            request_rows_max: 1024,
            load_timeout: setup.load_timeout,
            minimum_residency: setup.minimum_residency,
        };
        let total = machine.lock().unwrap().total;
        let reading = Reading {
            at: Timestamp::START,
            free: total,
            total,
            workspace_reserved: Bytes::ZERO,
            workspace_cached: Bytes::ZERO,
            library: Bytes::ZERO,
            leftovers: Bytes::ZERO,
        };
        let safety = Bytes::mib(1);
        let books = DeviceBooks {
            capacity: setup.budget + safety,
            safety,
            fixed: Bytes::ZERO,
            terms: Terms::CPU,
            readings: setup.readings,
        };
        let (inbox, messages) = unbounded();
        let device = Box::new(FakeDevice(machine.clone()));
        let store = ProfileStore::new(profiles);
        let metrics = Metrics::new();
        let core =
            assemble(settings, offers, &metrics, store, (device, reading), books, (Clock::new(), inbox)).unwrap();
        let mut world = World {
            core,
            metrics,
            now: Timestamp::START,
            machine,
            open: BTreeMap::new(),
            answers: BTreeMap::new(),
            next_request: 0,
            wake_at: Timestamp::START,
            _inbox: messages,
        };
        world.core.begin(world.now);
        world.poll();
        world
    }

    /// A world in which the models that load at the start are ready and measured.
    pub(super) fn ready(setup: Setup) -> World {
        let mut world = World::new(setup);
        world.rest();
        world
    }

    pub(super) fn machine(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap()
    }

    pub(super) fn state(&self, model: ModelId) -> ModelState {
        self.core.shared.board.copy(model).state
    }

    /// The revision that a name stands for, as a call holds it.
    pub(super) fn find(&self, name: &str) -> Option<Arc<Registered>> {
        self.core.shared.registry.find(name)
    }

    /// Whether the server says that it is ready.
    pub(super) fn is_ready(&self) -> bool {
        self.core.shared.health.borrow().ready
    }

    /// Sends one message and lets the engine do what is due.
    pub(super) fn tell(&mut self, message: Message) {
        self.core.handle(self.now, message);
        self.poll();
    }

    /// A call whose answer comes later.
    pub(super) fn ask<T>(&mut self, message: impl FnOnce(oneshot::Sender<T>) -> Message) -> Asked<T> {
        let (reply, answer) = oneshot::channel();
        self.tell(message(reply));
        Asked(answer)
    }

    pub(super) fn submit(&mut self, model: ModelId, lengths: &[u32]) -> RequestId {
        self.submit_until(model, lengths, None)
    }

    /// Submits a request with rows of these lengths, no two rows of the world alike. Its answer is checked against what
    /// the machine computes for them.
    pub(super) fn submit_until(&mut self, model: ModelId, lengths: &[u32], deadline: Option<Timestamp>) -> RequestId {
        let request = RequestId::new(self.next_request);
        self.next_request += 1;
        let row = |(index, &length): (usize, &u32)| {
            let first = (request.get() as u32) * 100 + index as u32;
            Arc::new(TokenRow::new((0..length).map(|at| if at == 0 { first } else { 1 }).collect(), vec![]))
        };
        let rows: Vec<_> = lengths.iter().enumerate().map(row).collect();
        let expected = rows.iter().map(|row| vec![row.ids.iter().sum::<u32>() as f32, row.ids.len() as f32]).collect();
        let (responder, answer) = oneshot::channel();
        self.open.insert(request, (answer, expected));
        self.core.shared.unseen.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let submission = Submission { model, rows, deadline: None, priority: Priority::Normal };
        self.tell(Message::Submit { id: request, submission, deadline, responder });
        request
    }

    /// Lets the engine do what is due, and checks everything that has to hold between two events.
    pub(super) fn poll(&mut self) {
        self.wake_at = self.core.poll(self.now);
        assert!(
            self.wake_at > self.now,
            "the engine would spin at {:?}: it wants to wake at {:?}",
            self.now,
            self.wake_at
        );
        self.check();
    }

    fn check(&mut self) {
        let core = &self.core;
        core.scheduler.check();
        assert_eq!(core.ledger.check(), Ok(()), "the books balance");
        assert_eq!(core.scheduler.watchdog_bites(), 0);
        assert_eq!(core.pending.len(), core.scheduler.open_requests(), "the scheduler and the payloads agree");
        let errands = self.machine.lock().unwrap().errands();
        assert!(errands <= 2, "the device has {errands} errands");
        if !core.poisoned {
            let known = usize::from(core.errand.is_some()) + usize::from(core.ahead.is_some());
            assert_eq!(errands, known, "{:?}, then {:?} are what the device works on", core.errand, core.ahead);
        }
        let pending: Vec<RequestId> = core.pending.ids();
        let mut still_open = BTreeMap::new();
        for (request, (mut answer, expected)) in std::mem::take(&mut self.open) {
            match answer.try_recv() {
                Ok(result) => {
                    if let Ok(answer) = &result {
                        assert_eq!(answer.rows, expected, "{request} got the rows of somebody else");
                    }
                    assert!(!pending.contains(&request), "{request} is answered and still pending");
                    self.answers.insert(request, (self.now, result));
                }
                Err(TryRecvError::Empty) => {
                    assert!(pending.contains(&request), "{request} is forgotten");
                    still_open.insert(request, (answer, expected));
                }
                Err(TryRecvError::Closed) => panic!("{request} was dropped without an answer"),
            }
        }
        self.open = still_open;
    }

    /// Moves time on, waking the engine whenever it wants to be.
    pub(super) fn advance_to(&mut self, end: Timestamp) {
        while self.wake_at <= end {
            self.now = self.wake_at;
            self.poll();
        }
        self.now = end;
    }

    pub(super) fn advance(&mut self, time: Micros) {
        self.advance_to(self.now + time);
    }

    /// Lets the device do the order that it has. False if it has none.
    pub(super) fn finish(&mut self) -> bool {
        let Some(order) = self.machine().next() else { return false };
        let (time, reports) = self.machine().carry_out(order);
        self.machine().working = true;
        self.advance(time);
        self.machine().working = false;
        let last = reports.len() - 1;
        for (index, report) in reports.into_iter().enumerate() {
            self.core.handle(self.now, Message::Report(report));
            if index == last {
                self.poll();
            }
        }
        true
    }

    /// Lets the device work until it has nothing more to do.
    pub(super) fn rest(&mut self) {
        for _ in 0..10_000 {
            if !self.finish() {
                return;
            }
        }
        panic!("the device never comes to rest");
    }

    /// How a request was answered, and when.
    pub(super) fn answered(&self, request: RequestId) -> &(Timestamp, Result<Answer, Failure>) {
        self.answers.get(&request).unwrap_or_else(|| panic!("{request} is not answered"))
    }

    pub(super) fn is_open(&self, request: RequestId) -> bool {
        self.open.contains_key(&request)
    }

    pub(super) fn open_requests(&self) -> Vec<RequestId> {
        self.open.keys().copied().collect()
    }

    /// The rejection that a request was answered with.
    pub(super) fn rejection(&self, request: RequestId) -> Rejection {
        match &self.answered(request).1 {
            Err(Failure::Rejected(rejection)) => *rejection,
            other => panic!("{request} was not rejected: {other:?}"),
        }
    }

    /// The request was answered with results, which were checked.
    pub(super) fn assert_success(&self, request: RequestId) -> &Answer {
        self.answered(request).1.as_ref().unwrap_or_else(|failure| panic!("{request} failed: {failure:?}"))
    }
}

/// The answer to a call, when it comes.
pub(super) struct Asked<T>(oneshot::Receiver<T>);

impl<T: std::fmt::Debug> Asked<T> {
    pub(super) fn answer(&mut self) -> T {
        self.0.try_recv().expect("the call is answered")
    }

    /// Nobody will answer it any more.
    pub(super) fn is_gone(&mut self) -> bool {
        matches!(self.0.try_recv(), Err(TryRecvError::Closed))
    }

    pub(super) fn assert_waits(&mut self) {
        assert_eq!(self.0.try_recv().map(drop).unwrap_err(), TryRecvError::Empty, "the call is not answered yet");
    }
}
