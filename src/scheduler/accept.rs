//! Requests coming in, and going without a step.

use super::core::Scheduler;
use super::draft::alone;
use super::lane::LaneState;
use super::request::{Blocked, Request};
use super::timers::Expiry;
use super::waiting::Waiting;
use crate::admission::{self, LateAt, Rejection, TooLarge};
use crate::memory::Ledger;
use crate::units::{Bytes, Micros, RequestId, Timestamp};

impl Scheduler {
    /// Takes in a request, or says why not. An accepted one is answered exactly once, later.
    ///
    /// # Errors
    /// A [`Rejection`] with numbers: it can never fit, the queue is full, its deadline cannot be met, or the model is
    /// not there.
    ///
    /// # Panics
    /// When the model has no lane, or the id is not larger than all before it.
    pub fn submit(&mut self, now: Timestamp, facts: Waiting, ledger: &Ledger) -> Result<(), Rejection> {
        let ahead = self.remainder(now);
        let lane = self.lanes.get(&facts.model).expect("the engine names models that it has registered");
        admission::servable(&facts.rows, &lane.settings.request)?;
        lane.is_open()?;
        let longest = facts.rows.iter().map(|row| row.tokens).max().unwrap_or(0);
        let profile = lane.profile.as_ref().filter(|_| lane.is_serving());
        let smallest = alone(lane.settings.kind, longest);
        if let Some(needed) = profile.and_then(|profile| profile.predicted(smallest)) {
            // Without the drift factor: that passes, and a client told "never" does not come back.
            let possible = ledger.headroom_ever(facts.model);
            if needed > possible {
                return Err(Rejection::TooLarge(TooLarge::Workspace { needed, possible }));
            }
        }
        let request = Request::new(facts);
        lane.occupancy.admit(request.occupancy(), &lane.settings.queue, &lane.drain)?;
        let time = profile.and_then(|profile| profile.time(smallest)).unwrap_or(Micros::ZERO);
        admission::in_time(now, request.facts.deadline, ahead, time)?;
        self.accept(request);
        Ok(())
    }

    fn accept(&mut self, mut request: Request) {
        let (id, arrival, deadline) = (request.facts.id, request.facts.arrival, request.deadline());
        assert!(self.requests.last_key_value().is_none_or(|(&last, _)| last < id), "request ids grow with time");
        let lane = self.lanes.get_mut(&request.facts.model).expect("found by the caller");
        lane.occupancy = lane.occupancy.plus(request.occupancy());
        request.load_by = (!lane.is_serving()).then(|| arrival + lane.settings.load_timeout);
        let class = lane.class_mut(request.facts.priority);
        if class.queue.oldest().is_none() {
            self.clock.enter(&mut class.flow);
        }
        class.queue.push(&request);
        self.timers.set(deadline, id, Expiry::Deadline);
        if let Some(load_by) = request.load_by {
            self.timers.set(load_by, id, Expiry::Load);
        }
        self.requests.insert(id, request);
    }

    /// The client has gone: takes the request out. Rows of it that are in flight run to their end for nothing. `None`
    /// when it is answered already.
    pub fn cancel(&mut self, id: RequestId) -> Option<Waiting> {
        self.forget(id)
    }

    /// The next request whose time has run out, taken out, and what to answer. Call until it gives nothing.
    #[must_use = "the request has to be answered"]
    pub fn poll_expired(&mut self, now: Timestamp) -> Option<(RequestId, Rejection)> {
        while let Some((id, expiry)) = self.timers.pop(now) {
            if let Some(rejection) = self.expired(now, id, expiry) {
                self.forget(id);
                return Some((id, rejection));
            }
        }
        None
    }

    /// What to answer a request whose timer has gone off, if the timer's reason still holds.
    fn expired(&mut self, now: Timestamp, id: RequestId, expiry: Expiry) -> Option<Rejection> {
        let request = self.requests.get(&id)?;
        let lane = &self.lanes[&request.facts.model];
        match expiry {
            Expiry::Deadline => {
                let at = if request.in_flight() > 0 { LateAt::Step } else { LateAt::Queue };
                Some(Rejection::Late { at, waited: now.since(request.facts.arrival) })
            }
            Expiry::Load => match lane.state {
                LaneState::Ready | LaneState::Draining => None,
                LaneState::Loading | LaneState::Down(_) => {
                    Some(Rejection::Loading { retry_after: lane.settings.load_timeout })
                }
            },
            Expiry::Hold => {
                self.release(id);
                None
            }
            Expiry::Memory => self.still_blocked(now, id).map(|blocked| self.out_of_memory(blocked)),
            Expiry::Stuck => {
                let nothing =
                    Blocked { since: now, seen: now, unmeasured: false, needed: Bytes::ZERO, available: Bytes::ZERO };
                Some(self.out_of_memory(request.blocked.unwrap_or(nothing)))
            }
        }
    }

    fn out_of_memory(&self, Blocked { needed, available, .. }: Blocked) -> Rejection {
        Rejection::OutOfMemory { needed, available, retry_after: self.settings.memory_wait_max }
    }

    /// What a request lacks whose time to wait for memory is over, if it lacks it still. If that is not so, or not known, it
    /// begins to wait anew once it is seen to.
    fn still_blocked(&mut self, now: Timestamp, id: RequestId) -> Option<Blocked> {
        let request = self.requests.get_mut(&id)?;
        let blocked = request.blocked?;
        let lane = &self.lanes[&request.facts.model];
        // Rows in flight show that it fits after all. And where somebody older has been found to fit since, nobody has looked
        // at this one.
        let fits = request.in_flight() > 0 || blocked.seen < lane.class(request.facts.priority).searched;
        if fits {
            request.blocked = None;
            return None;
        }
        if blocked.unmeasured && lane.probed > blocked.since {
            // Measuring goes on, and what it waits for will be measured.
            request.blocked = Some(Blocked { since: now, ..blocked });
            self.timers.set(now + self.settings.memory_wait_max, id, Expiry::Memory);
            return None;
        }
        Some(blocked)
    }
}
