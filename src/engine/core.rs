//! The engine's state and what happens to it, one message at a time. It waits for nothing and reads no clock, so a test
//! drives it in virtual time with a device of its own.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use super::answer::{Answer, Failure};
use super::changes::Reloading;
use super::control::BudgetError;
use super::errand::Errand;
use super::handle::Shared;
use super::inbox::{Message, Reply};
use super::lifecycle::{Lifecycle, Role};
use super::loads::{LoadRules, Loads};
use super::pending::{Pending, PendingRequest};
use super::publish::Published;
use super::register::LaneRules;
use super::rig::Rig;
use super::status::{ModelState, ModelStatus};
use super::submission::Submission;
use super::traces::Traces;
use crate::admission::Rejection;
use crate::memory::{Budget, BudgetChange, Ledger, Reading, RowFacts, ShapeKind};
use crate::model::TokenRow;
use crate::scheduler::{Scheduler, Step, Waiting};
use crate::telemetry::logs::request_unanswered;
use crate::telemetry::{Outcome, RequestTimes};
use crate::units::{Bytes, Micros, ModelId, RequestId, Timestamp};

/// How often readings are taken while nothing happens: a neighbour that asks for memory is heard within two of these.
const READING_INTERVAL: Micros = Micros::millis(250);

/// Everything that the engine's thread owns.
///
/// Invariants: every request in `pending` is in the scheduler or in the step in flight, and the other way round; the
/// device works on at most one errand.
pub(super) struct Core {
    pub(super) shared: Arc<Shared>,
    pub(super) scheduler: Scheduler,
    pub(super) ledger: Ledger,
    pub(super) rig: Rig,
    pub(super) pending: Pending,
    pub(super) errand: Option<Errand>,
    /// A step that the device has behind the one it works on.
    pub(super) ahead: Option<Step>,
    /// Models that the step which the device works on may evict.
    pub(super) at_stake: Vec<ModelId>,
    /// Cached workspace is to be returned when the device is idle.
    pub(super) trim_due: bool,
    /// The last trim gave nothing back: the next one is due then, or after a step.
    pub(super) trims_again_at: Timestamp,
    /// By model number.
    pub(super) models: Vec<Lifecycle>,
    pub(super) loads: Loads,
    pub(super) load_rules: LoadRules,
    pub(super) lane_rules: LaneRules,
    /// A reload whose models are on their way.
    pub(super) reloading: Option<Reloading>,
    pub(super) traces: Traces,
    /// The device is lost: nothing more is run, and the process has to end.
    pub(super) poisoned: bool,
    /// Who waits for the drain to end; `None` while the server admits requests.
    pub(super) drainers: Option<Vec<Reply<()>>>,
    pub(super) published: Published,
    pub(super) stopped: bool,
}

impl Core {
    pub(super) fn new(
        shared: Arc<Shared>,
        scheduler: Scheduler,
        ledger: Ledger,
        rig: Rig,
        load_rules: LoadRules,
        lane_rules: LaneRules,
    ) -> Core {
        Core {
            shared,
            scheduler,
            ledger,
            rig,
            pending: Pending::default(),
            errand: None,
            ahead: None,
            at_stake: Vec::new(),
            trim_due: false,
            trims_again_at: Timestamp::START,
            models: Vec::new(),
            loads: Loads::default(),
            load_rules,
            lane_rules,
            reloading: None,
            traces: Traces::default(),
            poisoned: false,
            drainers: None,
            published: Published::default(),
            stopped: false,
        }
    }

    /// Whether the thread's work is done.
    pub(super) fn stopped(&self) -> bool {
        self.stopped
    }

    /// Takes in one message. Call [`Core::poll`] when the inbox is empty.
    pub(super) fn handle(&mut self, now: Timestamp, message: Message) {
        match message {
            Message::Submit { id, submission, deadline, responder } => {
                self.shared.unseen.fetch_sub(1, Ordering::Relaxed);
                self.submit(now, id, submission, deadline, responder);
            }
            Message::Cancel(id) => {
                self.scheduler.cancel(id);
                self.reject(now, id, Rejection::Cancelled);
            }
            Message::Report(report) => self.report(now, report),
            Message::Apply { changes, reply } => self.apply(now, changes, reply),
            Message::Load { model, reply } => self.load(now, model, reply),
            Message::Unload { model, reply } => self.unload(now, model, reply),
            Message::Pin { model, pinned, reply } => {
                self.ledger.pin(model, pinned);
                self.shared.board.with(model, |status| {
                    status.pinned = pinned;
                    status.revision += 1;
                });
                let _ = reply.send(());
            }
            Message::SetBudget { model, budget, expected_revision, reply } => {
                let _ = reply.send(self.set_budget(model, budget, expected_revision));
            }
            Message::Memory { reply } => {
                let _ = reply.send(self.memory_snapshot(now));
            }
            Message::Plan { models, budget, reply } => {
                let reading = self.rig.reading(now);
                let _ = reply.send(self.plan(&models, budget, &reading));
            }
            Message::Trace { model, rows, length, reply } => self.want_trace(model, rows, length, reply),
            Message::Drain { reply } => self.drain(now, reply),
            Message::DeviceEnded => self.device_ended(now),
            Message::Stop => self.stop(now),
        }
    }

    /// Does everything that is due and says when to be called again at the latest.
    pub(super) fn poll(&mut self, now: Timestamp) -> Timestamp {
        let reading = self.rig.recent_reading(now);
        loop {
            while let Some((id, rejection)) = self.scheduler.poll_expired(now) {
                self.reject(now, id, rejection);
            }
            self.advance_lives(now, &reading);
            self.trim(now, &reading);
            self.dispatch(now, &reading);
            // Looking for a step may show that a request can never be served: it is given up at once. Each time round
            // answers one at least.
            if self.scheduler.next_expiry().is_none_or(|at| at > now) {
                break;
            }
        }
        self.publish(now, &reading);
        self.tell_drainers();
        self.wake_at(now)
    }

    /// When something is due although nothing happens.
    fn wake_at(&self, now: Timestamp) -> Timestamp {
        // What waits for an idle device is not due before the errand is done, which is reported.
        let scheduler = match self.is_idle() {
            true => self.scheduler.poll_timeout(),
            false => self.scheduler.next_expiry(),
        };
        [scheduler, self.ledger.wake_at(), self.loads_wake_at()]
            .into_iter()
            .flatten()
            .fold(now + READING_INTERVAL, Timestamp::min)
    }

    /// Whether the device could be given something to do.
    pub(super) fn is_idle(&self) -> bool {
        self.errand.is_none() && !self.poisoned
    }

    /// Whether the server goes down.
    pub(super) fn is_draining(&self) -> bool {
        self.drainers.is_some()
    }

    pub(super) fn life(&mut self, model: ModelId) -> &mut Lifecycle {
        &mut self.models[model.get() as usize]
    }

    /// Every revision of which something is left.
    pub(super) fn model_ids(&self) -> impl Iterator<Item = ModelId> + use<> {
        let is_here =
            |(index, life): (usize, &Lifecycle)| (life.role != Role::Retired).then(|| ModelId::new(index as u32));
        let here: Vec<ModelId> = self.models.iter().enumerate().filter_map(is_here).collect();
        here.into_iter()
    }

    pub(super) fn name(&self, model: ModelId) -> &str {
        &self.models[model.get() as usize].name
    }

    fn submit(
        &mut self,
        now: Timestamp,
        id: RequestId,
        submission: Submission,
        deadline: Option<Timestamp>,
        responder: Reply<Result<Answer, Failure>>,
    ) {
        let Submission { model, rows, priority, .. } = submission;
        let facts = |row: &Arc<TokenRow>| RowFacts { tokens: u32::try_from(row.ids.len()).unwrap_or(u32::MAX) };
        let host_bytes = rows.iter().map(|row| Bytes::new(row.ids.len() as u64 + row.types.len() as u64) * 4).sum();
        let waiting =
            Waiting { id, model, rows: rows.iter().map(facts).collect(), host_bytes, arrival: now, deadline, priority };
        let life = self.life(model);
        let (is_broken, is_unloaded, state) = (life.blueprint.is_none(), life.unloaded_by_hand, life.state);
        let admitted = match state {
            _ if self.is_draining() || self.poisoned => Err(Rejection::Draining),
            _ if is_broken => Err(Rejection::Broken),
            // Requests would bring it back, and wait for that.
            ModelState::NotLoaded if is_unloaded => Err(Rejection::NotLoaded),
            ModelState::Draining if is_unloaded => Err(Rejection::Draining),
            _ => self.scheduler.submit(now, waiting, &self.ledger),
        };
        // Either way it is pending for a moment, so that there is one way to end a request.
        self.pending.insert(id, PendingRequest::new(model, rows, now, responder));
        if let Err(rejection) = admitted {
            self.reject(now, id, rejection);
        }
    }

    /// Answers a request all of whose rows have results.
    pub(super) fn succeed(&mut self, now: Timestamp, id: RequestId) {
        let Some((ended, delivery)) = self.pending.succeed(id, &self.shared.clock) else { return };
        let total = now.since(ended.accepted_at);
        let times = RequestTimes { total, queued: ended.queued };
        self.rig.model_metrics(ended.model).request_finished(Outcome::Answered(times), ended.rows);
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.shared.board.with(ended.model, |ModelStatus { statistics, .. }| {
            statistics.success.add(total);
            statistics.queue.add(ended.queued);
            statistics.compute.add(ended.compute);
            statistics.rows += ended.rows;
            statistics.last_answer_unix_ms = unix.as_millis() as u64;
        });
        delivery.send();
    }

    /// Answers a request with a rejection and counts it.
    pub(super) fn reject(&mut self, now: Timestamp, id: RequestId, rejection: Rejection) {
        self.fail(now, id, Failure::Rejected(rejection));
    }

    /// Answers a request with a failure and counts it.
    pub(super) fn fail(&mut self, now: Timestamp, id: RequestId, failure: Failure) {
        let Some((ended, delivery)) = self.pending.fail(id, failure.clone()) else { return };
        let outcome = match &failure {
            Failure::Rejected(rejection) => Outcome::Rejected(rejection),
            Failure::Fault(fault) => Outcome::Faulted(fault),
        };
        self.rig.model_metrics(ended.model).request_finished(outcome, ended.rows);
        request_unanswered(ended.model, self.name(ended.model), &outcome);
        let time = now.since(ended.accepted_at);
        self.shared.board.with(ended.model, |status| status.statistics.fail.add(time));
        delivery.send();
    }

    fn set_budget(
        &mut self,
        model: ModelId,
        budget: Budget,
        expected_revision: Option<u64>,
    ) -> Result<BudgetChange, BudgetError> {
        let ledger = &mut self.ledger;
        let changed = self.shared.board.with(model, |status| {
            if let Some(expected) = expected_revision.filter(|expected| *expected != status.revision) {
                return Err(BudgetError::Outdated { expected, current: status.revision });
            }
            let change = ledger.set_budget(model, budget).map_err(BudgetError::Refused)?;
            status.budget = budget;
            status.revision += 1;
            Ok(change)
        });
        if changed.is_ok() {
            // The last word counts.
            self.life(model).guarantee_due = false;
        }
        changed
    }

    /// The largest batch of rows of the longest length that fits now.
    pub(super) fn batch_rows_max(&self, model: ModelId, reading: &Reading) -> u32 {
        let Some(profile) = self.scheduler.profile(model) else { return 0 };
        let length = profile.axes().extent.max;
        let headroom = self.ledger.headroom(model, reading).bytes;
        let largest = self.scheduler.batch_max(model, length, headroom).unwrap_or(0);
        match profile.axes().kind {
            ShapeKind::Padded => largest,
            ShapeKind::Ragged => largest / length.max(1),
            ShapeKind::Generate => largest,
        }
    }
}
