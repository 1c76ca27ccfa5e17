//! A server in virtual time: clients, the pure cores, a simulated device and its neighbours, one event after another.

use std::collections::{BTreeMap, VecDeque};

use plimsoll::admission::Rejection;
use plimsoll::memory::{
    Budget, BudgetChange, DeviceBooks, Ledger, LoadNeed, Outcome, Profile, ProfileState, Reading, Readings, RowFacts,
    Terms,
};
use plimsoll::scheduler::{
    Batching, LaneSettings, LaneState, Member, Priority, Purpose, Reason, Scheduler, Settings, Step, Waiting, Work,
};
use plimsoll::units::{Bytes, Micros, ModelId, RequestId, Timestamp};

use crate::coverage::Coverage;
use crate::device::{self, Conditions, Ran};
use crate::rng::Rng;
use crate::truth::Truth;

/// What a request came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Answer {
    Finished,
    Faulted,
    Cancelled,
    Rejected(Rejection),
}

/// A request and what has become of it.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) facts: Waiting,
    pub(crate) answer: Option<(Timestamp, Answer)>,
    /// In which step each row was.
    pub(crate) rows_in: Vec<Option<u64>>,
    /// In how many steps it was overtaken although it fitted.
    pub(crate) overtaken: u32,
    /// How often the device had no memory for a row, and until when the request is held back.
    pub(crate) denied: BTreeMap<u32, u32>,
    pub(crate) held_until: Timestamp,
}

impl Record {
    fn new(facts: Waiting) -> Record {
        let rows_in = vec![None; facts.rows.len()];
        Record { facts, answer: None, rows_in, overtaken: 0, denied: BTreeMap::new(), held_until: Timestamp::START }
    }
}

/// A model and its truth.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) truth: Truth,
    pub(crate) resident: Bytes,
    /// True peak over the truth's.
    pub(crate) error: f64,
    /// Part of its steps that fail.
    pub(crate) faults: f64,
    /// Part of its loads that fail.
    pub(crate) broken: f64,
    pub(crate) load_time: Micros,
    /// What was measured of it, kept over unloads.
    pub(crate) profile: Profile,
}

#[derive(Clone, Debug)]
pub(crate) enum Event {
    StepDone,
    LoadDone(ModelId),
    Neighbour(Bytes),
    DriverMax(Bytes),
    Error(ModelId, f64),
    SetBudget(ModelId, Budget),
    Unload(ModelId),
    Load(ModelId),
    Submit(Submission),
    Cancel(RequestId),
}

/// A request of a client, to come.
#[derive(Clone, Debug)]
pub(crate) struct Submission {
    pub(crate) model: ModelId,
    pub(crate) lengths: Vec<u32>,
    pub(crate) within: Option<Micros>,
    pub(crate) priority: Priority,
    pub(crate) host_bytes: Bytes,
}

/// A step that was run, for golden decisions and statistics.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Decision {
    pub(crate) at: Timestamp,
    pub(crate) model: ModelId,
    pub(crate) purpose: Purpose,
    pub(crate) rows: usize,
    pub(crate) padded_tokens: u64,
    pub(crate) real_tokens: u64,
    pub(crate) text: String,
}

pub(crate) struct World {
    pub(crate) now: Timestamp,
    pub(crate) scheduler: Scheduler,
    pub(crate) ledger: Ledger,
    pub(crate) rng: Rng,
    pub(crate) coverage: Coverage,
    pub(crate) models: BTreeMap<ModelId, Model>,
    pub(crate) requests: BTreeMap<RequestId, Record>,
    pub(crate) decisions: Vec<Decision>,
    pub(crate) polls: u64,
    pub(crate) overtaking_max: u32,
    pub(crate) batching: Batching,
    pub(crate) total: Bytes,
    pub(crate) neighbour: Bytes,
    /// The driver refuses more than this, although it says that more is free.
    pub(crate) driver_max: Bytes,
    pub(crate) workspace: Bytes,
    pub(crate) held: BTreeMap<ModelId, Bytes>,
    pub(crate) events: BTreeMap<(Timestamp, u64), Event>,
    pub(crate) next_event: u64,
    pub(crate) next_request: u64,
    /// Steps that the device has, in its order.
    pub(crate) running: VecDeque<(Step, Ran)>,
    /// Models that the step which runs may evict.
    pub(crate) at_stake: Vec<ModelId>,
    /// It takes a second one while it works on the first.
    pub(crate) runs_ahead: bool,
    pub(crate) loading: Option<ModelId>,
    /// When the device has done what it was told so far: steps and loads run one after another.
    pub(crate) device_free: Timestamp,
    /// Waiting or partly waiting requests: what the overtaking is counted over.
    pub(crate) open: BTreeMap<RequestId, ()>,
}

impl World {
    pub(crate) fn new(seed: u64, settings: Settings, capacity: Bytes) -> World {
        let books = DeviceBooks {
            capacity,
            safety: Bytes::mib(4),
            fixed: Bytes::mib(2),
            terms: Terms::CPU,
            readings: Readings::Live,
        };
        World {
            now: Timestamp::START,
            scheduler: Scheduler::new(settings),
            ledger: Ledger::new(books).expect("the capacities of the tests are large enough"),
            rng: Rng::new(seed),
            coverage: Coverage::default(),
            models: BTreeMap::new(),
            requests: BTreeMap::new(),
            decisions: Vec::new(),
            polls: 0,
            overtaking_max: settings.overtaking_max,
            batching: settings.batching,
            total: capacity,
            neighbour: Bytes::ZERO,
            driver_max: Bytes::MAX,
            workspace: Bytes::ZERO,
            held: BTreeMap::new(),
            events: BTreeMap::new(),
            next_event: 0,
            next_request: 0,
            running: VecDeque::new(),
            at_stake: Vec::new(),
            runs_ahead: false,
            loading: None,
            device_free: Timestamp::START,
            open: BTreeMap::new(),
        }
    }

    /// Registers a model that is not loaded.
    pub(crate) fn add(&mut self, id: u32, model: Model, lane: LaneSettings, budget: Budget) -> ModelId {
        let id = ModelId::new(id);
        self.ledger.register(id, budget, false).expect("the budgets of the tests can be kept");
        self.scheduler.add_lane(id, lane);
        self.models.insert(id, model);
        id
    }

    /// Loads a model at once, without asking.
    pub(crate) fn load_now(&mut self, model: ModelId) {
        self.ledger.loading(model, self.need(model));
        self.scheduler.lane_loading(model);
        self.loading = Some(model);
        self.load_done(model);
    }

    pub(crate) fn at(&mut self, at: Timestamp, event: Event) {
        self.events.insert((at, self.next_event), event);
        self.next_event += 1;
    }

    /// Lets time pass until nothing more happens before `end`.
    pub(crate) fn run_until(&mut self, end: Timestamp) {
        self.settle();
        loop {
            let event = self.events.first_key_value().map(|(&(at, _), _)| at);
            let timer = self.scheduler.poll_timeout();
            let Some(next) = event.into_iter().chain(timer).min().filter(|&next| next <= end) else { break };
            self.now = self.now.max(next);
            if event == Some(next) {
                let (_, event) = self.events.pop_first().expect("just seen");
                self.happen(event);
            }
            self.settle();
        }
        self.now = end;
    }

    /// Lets time pass until every request is answered.
    pub(crate) fn run_to_the_end(&mut self) {
        for _ in 0..10_000 {
            if self.open.is_empty() && self.running.is_empty() {
                return;
            }
            self.run_until(self.now + Micros::millis(100));
        }
        panic!("{} requests are not answered after a thousand seconds", self.open.len());
    }

    /// A client's call; the id it was given, accepted or not.
    pub(crate) fn submit(&mut self, submission: Submission) -> RequestId {
        let id = RequestId::new(self.next_request);
        self.next_request += 1;
        let facts = Waiting {
            id,
            model: submission.model,
            rows: submission.lengths.iter().map(|&tokens| RowFacts { tokens }).collect(),
            host_bytes: submission.host_bytes,
            arrival: self.now,
            deadline: submission.within.map(|within| self.now + within),
            priority: submission.priority,
        };
        self.requests.insert(id, Record::new(facts.clone()));
        match self.scheduler.submit(self.now, facts, &self.ledger) {
            Ok(()) => drop(self.open.insert(id, ())),
            Err(rejection) => {
                self.coverage.rejection(&rejection, true);
                self.requests.get_mut(&id).expect("just put in").answer = Some((self.now, Answer::Rejected(rejection)));
            }
        }
        id
    }

    pub(crate) fn answer(&self, id: RequestId) -> Option<Answer> {
        self.requests[&id].answer.map(|(_, answer)| answer)
    }

    pub(crate) fn finished(&self, id: RequestId) -> bool {
        self.answer(id) == Some(Answer::Finished)
    }

    /// The steps for requests so far.
    pub(crate) fn served(&self) -> impl Iterator<Item = &Decision> {
        self.decisions.iter().filter(|decision| decision.purpose == Purpose::Serve)
    }

    pub(crate) fn reading(&self) -> Reading {
        let held: Bytes = self.held.values().copied().sum();
        let ours = held + self.workspace + Bytes::mib(2);
        Reading {
            at: self.now,
            free: self.total.saturating_sub(ours).saturating_sub(self.neighbour),
            total: self.total,
            workspace_reserved: self.workspace,
            workspace_cached: if !self.running.is_empty() { Bytes::ZERO } else { self.workspace },
            library: Bytes::ZERO,
            leftovers: Bytes::ZERO,
        }
    }

    pub(crate) fn state(&self, model: ModelId) -> LaneState {
        self.scheduler.lanes().find(|lane| lane.model == model).expect("registered").state
    }

    pub(crate) fn need(&self, model: ModelId) -> LoadNeed {
        let resident = self.models[&model].resident;
        LoadNeed { resident, transient: resident.scale(0.1), least_workspace: Bytes::mib(4) }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::StepDone => self.step_done(),
            Event::LoadDone(model) => self.load_done(model),
            Event::Neighbour(bytes) => self.neighbour = bytes,
            Event::DriverMax(bytes) => self.driver_max = bytes,
            Event::Error(model, error) => self.models.get_mut(&model).expect("registered").error = error,
            Event::SetBudget(model, budget) => match self.ledger.set_budget(model, budget) {
                Ok(BudgetChange::Applied) => self.coverage.hit("budget: applied"),
                Ok(BudgetChange::Deferred { .. }) => self.coverage.hit("budget: deferred"),
                Err(_) => self.coverage.hit("budget: refused"),
            },
            Event::Unload(model) => {
                if self.state(model) == LaneState::Ready {
                    self.scheduler.lane_draining(model);
                    self.coverage.hit("lane: ready to draining");
                }
            }
            Event::Load(model) => self.load(model),
            Event::Submit(submission) => drop(self.submit(submission)),
            Event::Cancel(id) => {
                if self.scheduler.cancel(id).is_some() {
                    self.answered(id, Answer::Cancelled);
                }
            }
        }
    }

    /// What the engine does after every event.
    fn settle(&mut self) {
        loop {
            while let Some((id, rejection)) = self.scheduler.poll_expired(self.now) {
                self.answered(id, Answer::Rejected(rejection));
            }
            self.finish_draining();
            for model in self.scheduler.wanted_models() {
                self.load(model);
            }
            self.poll();
            self.poll_ahead();
            self.check();
            // A poll can find that a request will never fit.
            if self.scheduler.poll_timeout().is_none_or(|at| at > self.now) {
                break;
            }
        }
    }

    fn poll(&mut self) {
        let idle = self.running.is_empty();
        let reading = self.reading();
        self.polls += 1;
        if let Some(step) = self.scheduler.poll_step(self.now, &reading, &mut self.ledger) {
            assert!(idle, "one step in flight");
            self.check_step(&step);
            self.begin(step);
        } else if idle {
            let busy = |lane: &plimsoll::scheduler::LaneView| {
                matches!(lane.state, LaneState::Ready | LaneState::Draining) && lane.occupancy.rows > 0
            };
            if self.scheduler.lanes().any(|lane| busy(&lane)) {
                assert!(self.scheduler.poll_timeout().is_some(), "an idle device with work yields a step or a time");
            }
            if self.scheduler.lanes().any(|lane| lane.shortage.is_some()) {
                self.coverage.hit("memory: waited");
            }
        }
    }

    /// The step behind the one that runs, on a device that makes use of it.
    fn poll_ahead(&mut self) {
        let evictable = self.at_stake.clone();
        if !self.runs_ahead || self.running.len() != 1 || self.running[0].0.purpose != Purpose::Serve {
            return;
        }
        let reading = self.reading();
        if let Some(step) = self.scheduler.poll_ahead(self.now, &reading, &mut self.ledger, &evictable) {
            assert_eq!(step.purpose, Purpose::Serve);
            assert_ne!(step.reason, Reason::Queue, "what may still come could go along");
            assert!(!evictable.contains(&step.model));
            self.coverage.hit("step: ahead");
            self.check_step(&step);
            self.begin(step);
        }
    }

    fn begin(&mut self, step: Step) {
        let model = self.models[&step.model].clone();
        // A step that waits evicts nobody.
        let idle: Vec<ModelId> = match self.running.is_empty() {
            true => self.scheduler.idle_models().into_iter().filter(|&other| other != step.model).collect(),
            false => Vec::new(),
        };
        if self.running.is_empty() {
            self.at_stake.clone_from(&idle);
        }
        let held: Bytes = self.held.values().copied().sum();
        let taken = held + self.neighbour + Bytes::mib(2);
        let conditions = Conditions {
            ceiling: step.lease.ceiling,
            device: self.total.saturating_sub(taken).min(self.driver_max),
            // A neighbour may come between the reading and the step.
            error: model.error * if self.rng.chance(0.02) { 1.0 + self.rng.unit() } else { 1.0 },
            evictable: idle.iter().map(|other| self.held[other]).collect(),
            fails: self.rng.chance(model.faults),
        };
        let ran = match step.purpose {
            Purpose::Probe => {
                let observed = device::probe(&model.truth, step.shape, conditions);
                Ran { observed, refused: Vec::new(), evicted: 0 }
            }
            Purpose::Serve => {
                let lengths: Vec<u32> =
                    step.members.iter().map(|member| self.tokens(member.request, member.work)).collect();
                device::run(&model.truth, &lengths, conditions, &mut self.rng)
            }
        };
        for &evicted in &idle[..ran.evicted] {
            self.gone(evicted, Rejection::NotLoaded);
        }
        self.workspace = self.workspace.max(ran.observed.peak.min(step.lease.ceiling));
        let took = ran.observed.time;
        self.running.push_back((step, ran));
        self.device_free = self.device_free.max(self.now) + took;
        self.at(self.device_free, Event::StepDone);
    }

    fn step_done(&mut self) {
        let (step, ran) = self.running.pop_front().expect("a step is done once");
        let (model, purpose, members) = (step.model, step.purpose, step.members.clone());
        let before = self.scheduler.profile(model).map(Profile::state);
        let done = self.scheduler.complete(self.now, step, &ran.observed, &ran.refused, &mut self.ledger);
        let after = self.scheduler.profile(model).map(Profile::state);
        if after != before {
            match after {
                Some(ProfileState::Stale) => self.coverage.hit("profile: stale"),
                Some(ProfileState::Complete) => self.coverage.hit("profile: complete"),
                Some(ProfileState::Empty | ProfileState::Measuring) | None => {}
            }
        }
        if purpose == Purpose::Probe {
            self.coverage.hit(match ran.observed.outcome {
                Outcome::Done => "profile: probe done",
                Outcome::OutOfMemory => "profile: probe out of memory",
                Outcome::Faulted => "profile: probe faulted",
            });
        }
        self.coverage.rungs(ran.observed.rungs);
        for id in done.finished {
            self.answered(id, Answer::Finished);
        }
        for id in done.faulted {
            self.answered(id, Answer::Faulted);
        }
        for (id, rejection) in done.rejected {
            self.coverage.rejection(&rejection, false);
            self.record_answer(id, Answer::Rejected(rejection));
        }
        self.denied(&members, &ran);
        if let Some(keep) = self.ledger.trim(self.now, &self.reading()) {
            self.workspace = self.workspace.min(keep);
        }
    }

    /// Rows without memory wait again, if their requests are still open.
    fn denied(&mut self, members: &[Member], ran: &Ran) {
        for (position, member) in members.iter().enumerate() {
            let Work::Row { index } = member.work else { unreachable!("nothing here generates") };
            let record = self.requests.get_mut(&member.request).expect("members are requests");
            if record.answer.is_some() {
                continue;
            }
            if !ran.refused.contains(&position) {
                record.denied.remove(&index);
                continue;
            }
            self.coverage.hit("row: waits again");
            record.rows_in[index as usize] = None;
            let times = record.denied.entry(index).or_default();
            let until = self.now + Micros::millis(20 << (*times).min(10)).min(Micros::secs(1));
            *times += 1;
            record.held_until = record.held_until.max(until);
        }
    }

    pub(crate) fn answered(&mut self, id: RequestId, answer: Answer) {
        match answer {
            Answer::Finished => self.coverage.hit("answer: finished"),
            Answer::Faulted => self.coverage.hit("answer: faulted"),
            Answer::Cancelled => self.coverage.hit("answer: cancelled"),
            Answer::Rejected(rejection) => self.coverage.rejection(&rejection, true),
        }
        self.record_answer(id, answer);
    }

    fn record_answer(&mut self, id: RequestId, answer: Answer) {
        let record = self.requests.get_mut(&id).expect("only requests are answered");
        assert_eq!(record.answer, None, "{id} is answered twice");
        if let Some(deadline) = record.facts.deadline {
            assert!(self.now <= deadline, "{id} is answered at {:?}, after its deadline {deadline:?}", self.now);
        }
        if answer == Answer::Finished {
            assert!(record.rows_in.iter().all(Option::is_some), "{id} is finished without all its rows");
        }
        assert!(record.overtaken <= self.overtaking_max, "{id} was overtaken {} times", record.overtaken);
        record.answer = Some((self.now, answer));
        self.open.remove(&id);
    }

    pub(crate) fn tokens(&self, request: RequestId, work: Work) -> u32 {
        let Work::Row { index } = work else { unreachable!("nothing here generates") };
        self.requests[&request].facts.rows[index as usize].tokens
    }
}
