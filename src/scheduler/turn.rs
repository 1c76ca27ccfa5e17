//! In which order the claims on the device are tried.

use std::cmp::Reverse;

use super::core::Scheduler;
use super::draft::alone;
use super::lane::{Claim, Lane, LaneState};
use super::waiting::Priority;
use crate::memory::ProfileState;
use crate::units::{ModelId, Timestamp};

/// When a step is to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// The device is free.
    Now,
    /// Once the device is done with the one before it.
    Ahead,
}

/// One claim on the device that may be served now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    pub(super) model: ModelId,
    pub(super) claim: Claim,
    /// Its fair tag.
    tag: f64,
    /// The deadline that its oldest request will miss if another step goes first; `NEVER` if there is none.
    urgent: Timestamp,
    /// It is tried before its turn.
    pub(super) jumps: bool,
}

impl Scheduler {
    /// All claims in the order in which they are tried: those about to miss a deadline, then by fair tag. The order is
    /// total, so that the same inputs give the same steps.
    pub(super) fn turns(&self, now: Timestamp) -> Vec<Turn> {
        let mut turns = Vec::new();
        for (&model, lane) in self.lanes.iter().filter(|(_, lane)| lane.is_serving()) {
            for priority in lane.ready_classes() {
                let tag = lane.class(priority).flow.tag();
                let urgent = self.urgent_deadline(now, lane, priority).unwrap_or(Timestamp::NEVER);
                turns.push(Turn { model, claim: Claim::Class(priority), tag, urgent, jumps: false });
            }
            if wants_survey(lane) {
                let (tag, urgent) = (lane.survey.tag(), Timestamp::NEVER);
                turns.push(Turn { model, claim: Claim::Survey, tag, urgent, jumps: false });
            }
        }
        let first = turns.iter().map(|turn| turn.tag).fold(f64::INFINITY, f64::min);
        for turn in &mut turns {
            turn.jumps = turn.urgent != Timestamp::NEVER && turn.tag > first;
        }
        // Of equal ones the more urgent class, then the older model.
        let name = |turn: &Turn| (Reverse(turn.claim), turn.model);
        turns.sort_by(|a, b| a.urgent.cmp(&b.urgent).then(a.tag.total_cmp(&b.tag)).then_with(|| name(a).cmp(&name(b))));
        turns
    }

    /// The deadline of the oldest request of a class if it can be kept by a step now and not by one after the next.
    fn urgent_deadline(&self, now: Timestamp, lane: &Lane, priority: Priority) -> Option<Timestamp> {
        let class = lane.class(priority);
        let request = &self.requests[&class.queue.oldest()?];
        let deadline = request.facts.deadline.filter(|_| class.flow.may_jump())?;
        let (_, tokens) = request.waiting_rows().next()?;
        let time = lane.profile.as_ref()?.time(alone(lane.settings.kind, tokens))?;
        let starts = now + self.remainder(now);
        let (soonest, next) = (starts + time, starts + self.usual_step + time);
        (soonest <= deadline && deadline < next).then_some(deadline)
    }
}

fn wants_survey(lane: &Lane) -> bool {
    let state = lane.profile.as_ref().map(|profile| profile.state());
    lane.state == LaneState::Ready && state.is_some_and(|state| state != ProfileState::Complete)
}
