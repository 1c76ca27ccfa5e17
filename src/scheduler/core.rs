//! The scheduler of one device.

use std::collections::{BTreeMap, VecDeque};

use super::fair::FairClock;
use super::lane::{Claim, Lane, LaneState};
use super::queue::Requests;
use super::request::Request;
use super::settings::{LaneSettings, Settings, WhileNotReady};
use super::timers::{Expiry, Timers};
use super::waiting::{Priority, Waiting};
use super::watchdog::Watchdog;
use crate::admission::{Occupancy, Rejection};
use crate::memory::Profile;
use crate::units::{Micros, ModelId, RequestId, StepId, Timestamp};

/// Chooses every step of one device.
///
/// Feed it facts (`submit`, `cancel`, `complete`, lanes coming and going). After each, and at the time that
/// [`Scheduler::poll_timeout`] gives, call [`Scheduler::poll_expired`] until it gives nothing, then
/// [`Scheduler::poll_step`]; a step that it gives goes to the device and comes back through [`Scheduler::complete`].
///
/// Invariants, checked by [`Scheduler::check`] in tests:
/// - an accepted request is in exactly one of waiting, in flight (some of its rows at least) and answered: it is here
///   until exactly one of `cancel`, `poll_expired`, `complete` and `lane_down` names it;
/// - at most one step is in flight, and one behind it that [`Scheduler::poll_ahead`] gave;
/// - every step for requests contains the oldest one that fits of the class whose turn it is, and no request is overtaken
///   by younger ones of its class in more than K steps of its lane (how often other classes go first is bounded by
///   their share of device time); but for those held back because the device had no memory for them just now;
/// - an idle device with something to run yields a step, or a time at which to ask again.
#[derive(Debug)]
pub struct Scheduler {
    pub(super) settings: Settings,
    pub(super) lanes: BTreeMap<ModelId, Lane>,
    pub(super) requests: Requests,
    pub(super) timers: Timers,
    pub(super) clock: FairClock,
    pub(super) watchdog: Watchdog,
    /// The step that the device works on, and the one that waits behind it.
    pub(super) in_flight: VecDeque<InFlight>,
    pub(super) next_step: u64,
    /// About how long a step takes: what a request loses when another step goes first.
    pub(super) usual_step: Micros,
    /// When to ask again for a step although nothing happens: memory may be free then, or a linger over.
    pub(super) ask_again: Option<Timestamp>,
}

/// What is remembered of the step that runs.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) id: StepId,
    pub(super) model: ModelId,
    pub(super) predicted_time: Micros,
    pub(super) predicted_end: Timestamp,
    /// Who is charged for which part of it.
    pub(super) charges: Vec<(Claim, f64)>,
}

impl Scheduler {
    /// A scheduler without lanes.
    pub fn new(settings: Settings) -> Scheduler {
        Scheduler {
            settings,
            lanes: BTreeMap::new(),
            requests: Requests::new(),
            timers: Timers::default(),
            clock: FairClock::default(),
            watchdog: Watchdog::default(),
            in_flight: VecDeque::new(),
            next_step: 0,
            usual_step: Micros::ZERO,
            ask_again: None,
        }
    }

    /// Registers a model. Its lane is down, as not loaded.
    ///
    /// # Panics
    /// When the model has a lane.
    pub fn add_lane(&mut self, model: ModelId, settings: LaneSettings) {
        let before = self.lanes.insert(model, Lane::new(settings, &self.settings));
        assert!(before.is_none(), "a model is registered once");
    }

    /// Takes a model's lane away. To be called when nothing of it waits or is in flight.
    ///
    /// # Panics
    /// When something does.
    pub fn remove_lane(&mut self, model: ModelId) {
        assert!(self.is_drained(model), "a request waits in the lane that is taken away");
        self.lanes.remove(&model);
    }

    /// Changes a lane's settings. They hold from the next step on; what it has used so far counts as it was counted.
    pub fn set_lane(&mut self, model: ModelId, settings: LaneSettings) {
        let survey_share = self.settings.survey_share;
        self.lane_mut(model).set(settings, survey_share);
    }

    /// The model is being loaded.
    pub fn lane_loading(&mut self, model: ModelId) {
        self.lane_mut(model).state = LaneState::Loading;
    }

    /// The model is loaded: steps may be chosen, sized by `profile`.
    pub fn lane_ready(&mut self, now: Timestamp, model: ModelId, profile: Profile) {
        let lane = self.lanes.get_mut(&model).expect("the engine names models that it has registered");
        lane.state = LaneState::Ready;
        lane.profile = Some(profile);
        lane.last_step = now;
        // Time that passed while it was loaded is not owed to it.
        for claim in Claim::ALL {
            self.clock.enter(lane.flow_mut(claim));
        }
    }

    /// The model takes no more requests; those that wait are still served. It may be unloaded when
    /// [`Scheduler::is_drained`] says so, or at any time after [`Scheduler::lane_down`].
    pub fn lane_draining(&mut self, model: ModelId) {
        let lane = self.lane_mut(model);
        if lane.state == LaneState::Ready {
            lane.state = LaneState::Draining;
        }
    }

    /// The model is not loaded, because of `why`. Requests that wait are rejected with it; those with rows in flight as
    /// well, and what becomes of those rows is of no more interest.
    #[must_use = "each of these requests has to be answered"]
    pub fn lane_down(&mut self, model: ModelId, why: Rejection) -> Vec<(RequestId, Rejection)> {
        self.lane_mut(model).state = LaneState::Down(why);
        let ids = self.requests.iter().filter(|(_, request)| request.facts.model == model).map(|(&id, _)| id);
        let ids: Vec<_> = ids.collect();
        ids.into_iter().inspect(|&id| drop(self.forget(id))).map(|id| (id, why)).collect()
    }

    /// The model is not loaded any more: it had to make room. Requests that wait for it stay until it is loaded again,
    /// for its load timeout at most; where the lane takes none while it is down, they are rejected.
    #[must_use = "each of these requests has to be answered"]
    pub fn lane_evicted(&mut self, now: Timestamp, model: ModelId) -> Vec<(RequestId, Rejection)> {
        let lane = self.lane_mut(model);
        if lane.settings.while_not_ready == WhileNotReady::Refuse {
            return self.lane_down(model, Rejection::NotLoaded);
        }
        lane.state = LaneState::Down(Rejection::NotLoaded);
        let load_by = now + lane.settings.load_timeout;
        for (&id, request) in self.requests.iter_mut().filter(|(_, request)| request.facts.model == model) {
            // The timer of one that came before the last load has gone off, or is still set.
            if request.load_by.is_none_or(|before| before <= now) {
                request.load_by = Some(load_by);
                self.timers.set(load_by, id, Expiry::Load);
            }
        }
        Vec::new()
    }

    /// Whether nothing of the model waits or is in flight.
    pub fn is_drained(&self, model: ModelId) -> bool {
        !self.is_running(model) && self.lanes.get(&model).is_none_or(Lane::is_empty)
    }

    /// Models that are not loaded although requests wait for them, the one that has waited longest first.
    pub fn wanted_models(&self) -> Vec<ModelId> {
        let down = |lane: &Lane| matches!(lane.state, LaneState::Down(_));
        let wanted = self.lanes.iter().filter(|(_, lane)| down(lane) && !lane.is_empty());
        let mut wanted: Vec<_> = wanted.map(|(&model, lane)| (lane.oldest_waiting(), model)).collect();
        wanted.sort_unstable();
        wanted.into_iter().map(|(_, model)| model).collect()
    }

    /// Models that are loaded and have nothing to do, the least recently used first: what may be evicted, unless it is
    /// pinned or has not been there for long.
    pub fn idle_models(&self) -> Vec<ModelId> {
        let idle = |(model, lane): &(&ModelId, &Lane)| lane.is_serving() && self.is_drained(**model);
        let mut idle: Vec<_> = self.lanes.iter().filter(idle).map(|(&model, lane)| (lane.last_step, model)).collect();
        idle.sort_unstable();
        idle.into_iter().map(|(_, model)| model).collect()
    }

    /// When the next request's time runs out: what is due although the device is busy.
    pub fn next_expiry(&self) -> Option<Timestamp> {
        self.timers.next()
    }

    /// When to poll again if nothing else happens before.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        let ask_again = self.ask_again.filter(|_| self.in_flight.is_empty());
        [self.timers.next(), ask_again].into_iter().flatten().min()
    }

    /// Time that what is in flight will take from `now` on, as predicted.
    pub fn remainder(&self, now: Timestamp) -> Micros {
        self.in_flight.back().map_or(Micros::ZERO, |step| step.predicted_end.since(now))
    }

    /// Whether a step of the model is in flight.
    fn is_running(&self, model: ModelId) -> bool {
        self.in_flight.iter().any(|step| step.model == model)
    }

    /// Notes that the device is given a step, behind what it works on.
    pub(super) fn launch(
        &mut self,
        now: Timestamp,
        model: ModelId,
        time: Micros,
        charges: Vec<(Claim, f64)>,
    ) -> StepId {
        let id = StepId::new(self.next_step);
        self.next_step += 1;
        let predicted_end = now + self.remainder(now) + time;
        self.in_flight.push_back(InFlight { id, model, predicted_time: time, predicted_end, charges });
        id
    }

    pub(super) fn lane_mut(&mut self, model: ModelId) -> &mut Lane {
        self.lanes.get_mut(&model).expect("the engine names models that it has registered")
    }

    /// Takes a request out of everything: it is answered.
    pub(super) fn forget(&mut self, id: RequestId) -> Option<Waiting> {
        let request = self.requests.remove(&id)?;
        let facts = &request.facts;
        let lane = self.lanes.get_mut(&facts.model).expect("a request waits in a lane");
        if request.waiting() > 0 {
            lane.class_mut(facts.priority).queue.remove(&request);
        }
        lane.occupancy = lane.occupancy.minus(request.occupancy());
        if let Some(deadline) = facts.deadline {
            self.timers.clear(deadline, id, Expiry::Deadline);
        }
        if let Some(load_by) = request.load_by {
            self.timers.clear(load_by, id, Expiry::Load);
        }
        if let Some(until) = request.held_until {
            self.timers.clear(until, id, Expiry::Hold);
        }
        if let Some(blocked) = request.blocked {
            self.timers.clear(blocked.since + self.settings.memory_wait_max, id, Expiry::Memory);
        }
        Some(request.facts)
    }

    /// Checks the invariants that can be seen between two calls.
    ///
    /// # Panics
    /// When one is broken.
    pub fn check(&self) {
        for (&model, lane) in &self.lanes {
            let mine = || self.requests.values().filter(|request| request.facts.model == model);
            let occupancy = mine().map(Request::occupancy).fold(Occupancy::default(), Occupancy::plus);
            assert_eq!(lane.occupancy, occupancy, "the occupancy of {model} is that of its requests");
            let queued: u64 = lane.waiting_classes().map(|class| lane.class(class).queue.rows()).sum();
            assert_eq!(queued, occupancy.rows, "every waiting row of {model} is in its queue");
            Priority::ALL.into_iter().for_each(|class| lane.class(class).queue.check());
            for request in mine() {
                assert!(!request.is_done(), "{} is done, but not answered", request.facts.id);
                let held = lane.class(request.facts.priority).queue.holds(request.facts.id);
                assert_eq!(held, request.held_until.is_some(), "{} is held back until a time", request.facts.id);
                let timer = |until| self.timers.contains(until, request.facts.id, Expiry::Hold);
                assert!(request.held_until.is_none_or(timer), "{} is held back for good", request.facts.id);
                let running = self.is_running(model);
                assert!(request.in_flight() == 0 || running, "{} is in flight without a step", request.facts.id);
            }
        }
    }
}
