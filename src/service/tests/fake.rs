//! An engine without a device: it answers at once, holds what it is given, or fails, as the test says.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::admission::{LateAt, QueueLimit, Rejection};
use crate::config::{Amount, Dtype, LoadPolicy, ModelConfig, Pooling, Source, Task, Truncate};
use crate::engine::{
    Answer, BudgetError, Definition, Failure, HealthView, MemorySnapshot, MemoryTrace, ModelState, ModelStatus,
    PlanError, Registered, Released, Statistics, StepFacts, Submission, Tally, Trace, TraceError, TraceHolder,
    TraceMoment,
};
use crate::memory::{
    Bound, Budget, BudgetChange, DeviceBooks, FitLine, FitPlan, Headroom, LedgerSnapshot, ModelBooks, ProfileState,
    Reading, Readings, Rungs, Terms, fit_plan,
};
use crate::model::{ModelCard, TokenRow, Wanted};
use crate::scheduler::Reason;
use crate::service::port::{Inference, Operations};
use crate::tokenize::TextEncoder;
use crate::units::{Bytes, Micros, ModelId, StepId, Timestamp};

/// Ids of the tokenizer that all models here share.
pub(super) const VOCABULARY: u32 = 8192;
/// Longest row of every model.
pub(super) const LENGTH_MAX: u32 = 32;
/// Values of an embedding of `embed`.
pub(super) const DIMENSIONS: u32 = 8;
/// Values of an embedding of `wide`.
pub(super) const WIDE: u32 = 1024;
/// An embedder with a default prompt, which is not served unless it is asked for.
pub(super) const PROMPTED: &str = "prompted";
/// A classifier of tokens, which is not served unless it is asked for.
pub(super) const TAGGER: &str = "tag";
/// Where `wide` is from.
pub(super) const HUB_ID: &str = "acme/wide-v1";
pub(super) const LABELS: [&str; 3] = ["doc", "devel", "golang"];

/// What becomes of a submission.
#[derive(Clone, Debug)]
pub(super) enum Behaviour {
    Answer,
    Fail(Failure),
}

#[derive(Clone)]
pub(super) struct FakeEngine(Arc<Inner>);

struct Inner {
    models: Vec<Arc<Registered>>,
    statuses: Mutex<Vec<ModelStatus>>,
    health: watch::Sender<HealthView>,
    behaviour: Mutex<Behaviour>,
    /// While false, what is accepted waits.
    running: watch::Sender<bool>,
    queue_rows_max: AtomicUsize,
    waiting_rows: watch::Sender<usize>,
    cancelled: watch::Sender<usize>,
    /// Every submission that was accepted, in order.
    accepted: Mutex<Vec<Submission>>,
    /// Submissions that ran.
    ran: AtomicUsize,
}

/// The result that the fake gives for a row: values that tell which row it was.
pub(super) fn vector(row: &TokenRow, dimensions: u32) -> Vec<f32> {
    let values = match row.wanted {
        Wanted::Usual => dimensions as usize,
        Wanted::States => dimensions as usize * row.ids.len(),
    };
    (0..values).map(|index| (row.ids[index % row.ids.len()] % 97) as f32 - index as f32).collect()
}

impl FakeEngine {
    pub(super) fn new() -> FakeEngine {
        FakeEngine::of(|name| name != PROMPTED && name != TAGGER)
    }

    /// With a classifier of tokens among its models.
    pub(super) fn with_tagger() -> FakeEngine {
        FakeEngine::of(|name| name != PROMPTED)
    }

    /// With these of its models, among them `PROMPTED` and `TAGGER`.
    pub(super) fn of(served: impl Fn(&str) -> bool) -> FakeEngine {
        let encoder = |length_max| {
            let json = include_bytes!("../../../models/tiny-embed/tokenizer.json");
            Arc::new(TextEncoder::new(json, length_max, VOCABULARY, 2).unwrap())
        };
        let encoder = encoder(LENGTH_MAX);
        let card = |name: &str, task, dimensions| ModelCard {
            name: name.to_owned(),
            version: 1,
            architecture: "BertModel".to_owned(),
            task,
            dtype: Dtype::F32,
            length_max: LENGTH_MAX,
            truncate: Truncate::No,
            dimensions,
            labels: match task {
                Task::Classify | Task::TokenClassify => LABELS.map(str::to_owned).to_vec(),
                Task::Embed | Task::Rerank => Vec::new(),
            },
            pooling: None,
            normalize: true,
            prompts: BTreeMap::from([("query".to_owned(), "search: ".to_owned())]),
            default_prompt: None,
            vocab_size: VOCABULARY,
            type_vocab_size: 2,
            encoder: encoder.clone(),
        };
        let models = [
            ("embed", Ok(card("embed", Task::Embed, DIMENSIONS))),
            (
                "wide",
                Ok(ModelCard {
                    truncate: Truncate::Start,
                    dtype: Dtype::F16,
                    pooling: Some(Pooling::Last),
                    ..card("wide", Task::Embed, WIDE)
                }),
            ),
            ("rank", Ok(card("rank", Task::Rerank, 1))),
            ("section", Ok(card("section", Task::Classify, LABELS.len() as u32))),
            (
                PROMPTED,
                Ok(ModelCard { default_prompt: Some("query".to_owned()), ..card(PROMPTED, Task::Embed, DIMENSIONS) }),
            ),
            ("broken", Err("config.json is missing".to_owned())),
            (TAGGER, Ok(card(TAGGER, Task::TokenClassify, LABELS.len() as u32))),
        ];
        let models = models.into_iter().filter(|(name, _)| served(name));
        let registered = models.enumerate().map(|(index, (name, card))| {
            let id = ModelId::new(index as u32);
            let definition = card.map(|card| Arc::new(Definition { config: config(name), card: Arc::new(card) }));
            Arc::new(Registered { id, name: name.to_owned(), required: true, definition })
        });
        let models: Vec<_> = registered.collect();
        let statuses: Vec<_> = models.iter().map(|model| status(model)).collect();
        let states = statuses.iter().map(|status| (status.name.clone(), status.state)).collect();
        let view = HealthView { ready: true, models: states, ..HealthView::default() };
        FakeEngine(Arc::new(Inner {
            models,
            statuses: Mutex::new(statuses),
            health: watch::Sender::new(view),
            behaviour: Mutex::new(Behaviour::Answer),
            running: watch::Sender::new(true),
            queue_rows_max: AtomicUsize::new(usize::MAX),
            waiting_rows: watch::Sender::new(0),
            cancelled: watch::Sender::new(0),
            accepted: Mutex::new(Vec::new()),
            ran: AtomicUsize::new(0),
        }))
    }

    pub(super) fn behave(&self, behaviour: Behaviour) {
        *self.0.behaviour.lock().unwrap() = behaviour;
    }

    /// From now on, accepted work waits.
    pub(super) fn hold(&self) {
        self.0.running.send_replace(false);
    }

    /// Lets everything run that waits.
    pub(super) fn release(&self) {
        self.0.running.send_replace(true);
    }

    pub(super) fn bound_queue(&self, rows: usize) {
        self.0.queue_rows_max.store(rows, Ordering::SeqCst);
    }

    pub(super) fn set_state(&self, name: &str, state: ModelState) {
        self.0.health.send_modify(|view| {
            view.models.iter_mut().filter(|(model, _)| model == name).for_each(|(_, found)| *found = state);
        });
        let mut statuses = self.0.statuses.lock().unwrap();
        statuses.iter_mut().filter(|status| status.name == name).for_each(|status| status.state = state);
    }

    /// Waits until exactly so many rows wait.
    pub(super) async fn rows_waiting(&self, rows: usize) {
        self.0.waiting_rows.subscribe().wait_for(|waiting| *waiting == rows).await.unwrap();
    }

    /// Waits until so many submissions were dropped before they were answered.
    pub(super) async fn were_cancelled(&self, count: usize) {
        self.0.cancelled.subscribe().wait_for(|cancelled| *cancelled == count).await.unwrap();
    }

    pub(super) fn accepted(&self) -> Vec<Submission> {
        self.0.accepted.lock().unwrap().clone()
    }

    pub(super) fn ran(&self) -> usize {
        self.0.ran.load(Ordering::SeqCst)
    }

    fn answer(&self, submission: &Submission) -> Answer {
        self.0.ran.fetch_add(1, Ordering::SeqCst);
        let model = &self.0.models[submission.model.get() as usize];
        let card = model.card().unwrap();
        let of_row = |row: &Arc<TokenRow>| match card.task {
            Task::TokenClassify => vector(row, card.dimensions * row.ids.len() as u32),
            Task::Embed | Task::Classify | Task::Rerank => vector(row, card.dimensions),
        };
        let rows: Vec<_> = submission.rows.iter().map(of_row).collect();
        let once = |tally: &mut Tally, time| *tally = Tally { count: tally.count + 1, total: tally.total + time };
        let counted = &mut self.0.statuses.lock().unwrap()[submission.model.get() as usize].statistics;
        once(&mut counted.success, Micros::new(900));
        once(&mut counted.queue, Micros::new(200));
        once(&mut counted.compute, Micros::new(700));
        once(counted.batches.entry(rows.len() as u32).or_default(), Micros::new(700));
        counted.rows += rows.len() as u64;
        counted.steps += 1;
        let accepted = std::time::Instant::now() - Duration::from_micros(900);
        let step = StepFacts {
            id: StepId::new(7),
            batch_rows: rows.len() as u32,
            longest: submission.rows.iter().map(|row| row.ids.len() as u32).max().unwrap_or(0),
            computed_tokens: submission.rows.iter().map(|row| row.ids.len() as u64).sum(),
            reason: Reason::Memory,
            predicted: Bytes::kib(100),
            peak: Bytes::kib(90),
            ceiling: Bytes::kib(120),
            headroom: Bytes::kib(130),
            compute: Micros::new(700),
            began: accepted + Duration::from_micros(200),
            ended: accepted + Duration::from_micros(900),
            rungs: Rungs { halvings: 1, ..Rungs::default() },
        };
        Answer { rows, accepted, queued: Micros::new(200), steps: vec![step] }
    }
}

/// Rows that wait; dropped unanswered, it counts as a cancel.
struct Place<'a> {
    inner: &'a Inner,
    rows: usize,
    answered: bool,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.inner.waiting_rows.send_modify(|waiting| *waiting -= self.rows);
        if !self.answered {
            self.inner.cancelled.send_modify(|cancelled| *cancelled += 1);
        }
    }
}

impl Inference for FakeEngine {
    fn find(&self, name: &str) -> Option<Arc<Registered>> {
        self.0.models.iter().find(|model| model.name == name).cloned()
    }

    fn name(&self, model: ModelId) -> String {
        self.0.models[model.get() as usize].name.clone()
    }

    fn statuses(&self) -> Vec<ModelStatus> {
        self.0.statuses.lock().unwrap().clone()
    }

    fn health(&self) -> watch::Receiver<HealthView> {
        self.0.health.subscribe()
    }

    fn alive(&self) -> bool {
        true
    }

    async fn infer(&self, submission: Submission) -> Result<Answer, Failure> {
        let rows = submission.rows.len();
        let allowed = self.0.queue_rows_max.load(Ordering::SeqCst);
        let mut found = 0;
        let accepted = self.0.waiting_rows.send_if_modified(|waiting| {
            found = *waiting;
            let fits = found + rows <= allowed;
            *waiting += if fits { rows } else { 0 };
            fits
        });
        if !accepted {
            return Err(Failure::Rejected(Rejection::QueueFull {
                limit: QueueLimit::Rows,
                waiting: found as u64,
                asked: rows as u64,
                allowed: allowed as u64,
                retry_after: Micros::millis(250),
            }));
        }
        let mut place = Place { inner: &self.0, rows, answered: false };
        self.0.accepted.lock().unwrap().push(submission.clone());
        let mut running = self.0.running.subscribe();
        let deadline = submission.deadline.map(Instant::from_std);
        let late = async {
            match deadline {
                Some(deadline) => sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        let started = Instant::now();
        let outcome = tokio::select! {
            () = late => {
                let waited = started.elapsed().into();
                Err(Failure::Rejected(Rejection::Late { at: LateAt::Queue, waited }))
            }
            _ = running.wait_for(|running| *running) => match self.0.behaviour.lock().unwrap().clone() {
                Behaviour::Answer => Ok(self.answer(&submission)),
                Behaviour::Fail(failure) => Err(failure),
            },
        };
        place.answered = true;
        outcome
    }
}

impl Operations for FakeEngine {
    async fn load(&self, model: ModelId) -> Result<(), Failure> {
        let registered = &self.0.models[model.get() as usize];
        if registered.definition.is_err() {
            return Err(Failure::Rejected(Rejection::Broken));
        }
        self.set_state(&registered.name, ModelState::Ready);
        Ok(())
    }

    async fn unload(&self, model: ModelId) -> Result<Released, Failure> {
        self.set_state(&self.0.models[model.get() as usize].name, ModelState::NotLoaded);
        Ok(Released { released: Bytes::mib(3), free: Bytes::mib(500) })
    }

    async fn pin(&self, model: ModelId, pinned: bool) -> Result<(), Failure> {
        let status = &mut self.0.statuses.lock().unwrap()[model.get() as usize];
        status.pinned = pinned;
        status.revision += 1;
        Ok(())
    }

    async fn set_budget(
        &self,
        model: ModelId,
        budget: Budget,
        expected_revision: Option<u64>,
    ) -> Result<Result<BudgetChange, BudgetError>, Failure> {
        let status = &mut self.0.statuses.lock().unwrap()[model.get() as usize];
        if let Some(expected) = expected_revision.filter(|expected| *expected != status.revision) {
            return Ok(Err(BudgetError::Outdated { expected, current: status.revision }));
        }
        status.budget = budget;
        status.revision += 1;
        let overage = status.resident.saturating_sub(budget.limit);
        Ok(Ok(if overage == Bytes::ZERO { BudgetChange::Applied } else { BudgetChange::Deferred { overage } }))
    }

    async fn memory(&self) -> Result<MemorySnapshot, Failure> {
        let reading = Reading {
            at: Timestamp::new(5),
            free: Bytes::mib(700),
            total: Bytes::mib(1000),
            workspace_reserved: Bytes::mib(40),
            workspace_cached: Bytes::mib(30),
            library: Bytes::mib(2),
            leftovers: Bytes::ZERO,
        };
        let headroom = Headroom { bytes: Bytes::mib(55), bound: Bound::Budget };
        let books = ModelBooks {
            model: ModelId::new(0),
            weights: Bytes::mib(3),
            loading: Bytes::ZERO,
            kv: Bytes::ZERO,
            budget: Budget::SHARED,
            overage: Bytes::ZERO,
            pinned: false,
            headroom,
            step_peak: Bytes::mib(9),
        };
        let books_of_device = DeviceBooks {
            capacity: Bytes::mib(100),
            safety: Bytes::mib(5),
            fixed: Bytes::mib(1),
            terms: Terms::CPU,
            readings: Readings::Live,
        };
        let ledger = LedgerSnapshot {
            books: books_of_device,
            reading,
            leased: Bytes::mib(11),
            headroom: Bytes::mib(60),
            models: vec![books],
        };
        Ok(MemorySnapshot { device: "fake".to_owned(), reading, ledger, usage: None })
    }

    async fn plan(&self, models: Vec<ModelId>, budget: Option<Bytes>) -> Result<Result<FitPlan, PlanError>, Failure> {
        let line = |model| FitLine {
            model,
            weights: Bytes::mib(10),
            transient: Bytes::ZERO,
            workspace_knee: Some(Bytes::mib(8)),
            workspace_least: Some(Bytes::mib(1)),
            resident: false,
        };
        Ok(Ok(fit_plan(models.into_iter().map(line).collect(), budget.unwrap_or(Bytes::mib(100)))))
    }

    async fn trace(&self, _: ModelId, rows: u32, length: u32) -> Result<Result<MemoryTrace, TraceError>, Failure> {
        if rows == 0 {
            let allowed = "1 to 8 tokens in a row, and 64 together".to_owned();
            return Ok(Err(TraceError::Outside { found: format!("{rows} x {length}"), allowed }));
        }
        let holder = TraceHolder {
            layer: "layer 1".to_owned(),
            operation: "scores".to_owned(),
            shape: "2 x 8".to_owned(),
            bytes: Bytes::mib(3),
            blocks: 2,
        };
        let trace = Trace {
            peak: Bytes::mib(3),
            peak_at: Micros::new(7),
            holders: vec![holder],
            timeline: vec![TraceMoment { at: Micros::new(7), live: Bytes::mib(3) }],
            blocks: 2,
            missed: 0,
        };
        let shape = crate::memory::Shape::Padded { rows, length };
        Ok(Ok(MemoryTrace { shape, predicted: Bytes::mib(4), peak: Bytes::mib(3), time: Micros::new(9), trace }))
    }
}

fn config(name: &str) -> ModelConfig {
    ModelConfig {
        name: name.to_owned(),
        task: None,
        source: match name {
            "wide" => Source::Hub { id: HUB_ID.to_owned(), revision: "v1".to_owned() },
            _ => Source::Embedded(name.to_owned()),
        },
        sha256: BTreeMap::new(),
        dtype: Dtype::F32,
        length_max: None,
        truncate: Truncate::No,
        pooling: None,
        normalize: None,
        prompts: BTreeMap::new(),
        default_prompt: None,
        guaranteed: Amount::Bytes(Bytes::ZERO),
        limit: None,
        share: 1.0,
        target_latency: None,
        max_linger: Micros::new(300),
        step_tokens_max: None,
        load: LoadPolicy::Startup,
        required: true,
        pinned: false,
    }
}

fn status(model: &Registered) -> ModelStatus {
    let (state, reason) = match &model.definition {
        Ok(_) => (ModelState::Ready, None),
        Err(reason) => (ModelState::Broken, Some(reason.clone())),
    };
    ModelStatus {
        id: model.id,
        name: model.name.clone(),
        state,
        reason,
        pinned: false,
        budget: Budget::SHARED,
        revision: 1,
        resident: Bytes::mib(3),
        profile: Some(ProfileState::Complete),
        drift: 1.0,
        batch_rows_max: 32,
        waiting_rows: 0,
        waiting_tokens: 0,
        share: 1.0,
        device_time: Micros::ZERO,
        statistics: Statistics::default(),
    }
}
