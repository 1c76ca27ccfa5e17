//! Steps that measure a profile: each is one run of a probe.

use super::core::Scheduler;
use super::draft::alone;
use super::lane::Claim;
use super::step::{Purpose, Reason, Step};
use super::turn::Turn;
use crate::memory::{Ledger, Reading, Shape};
use crate::units::{Bytes, Micros, ModelId, Timestamp};

/// A wait that a client does not notice: runs of probes that take no longer need no quiet time.
const UNNOTICED: Micros = Micros::millis(50);

/// After how long a probe that found no room is tried again on an idle device.
const PROBE_RETRY: Micros = Micros::secs(1);

impl Scheduler {
    /// Whether a loaded model will never be able to take a row of any length: what is missing to know the cost of the longest
    /// fails whenever it is measured.
    pub fn is_hopeless(&self, model: ModelId) -> bool {
        let profile = self.lanes.get(&model).and_then(|lane| lane.profile.as_ref());
        profile.is_some_and(|profile| {
            let axes = profile.axes();
            let smallest = profile.next_probe(Bytes::MAX).filter(|probe| is_smallest(probe.shape));
            profile.predicted(alone(axes.kind, axes.extent.max)).is_none() && smallest.is_none()
        })
    }

    /// When a run of one of the model's probes last went through.
    pub fn last_probed(&self, model: ModelId) -> Timestamp {
        self.lanes.get(&model).map_or(Timestamp::START, |lane| lane.probed)
    }

    /// The next run of a lane's probe that there is room for, in the time of the claim whose turn it is.
    pub(super) fn survey(
        &mut self,
        now: Timestamp,
        turn: &Turn,
        reading: &Reading,
        ledger: &mut Ledger,
    ) -> Option<Step> {
        let headroom = ledger.headroom(turn.model, reading).bytes;
        let lane = self.lanes.get_mut(&turn.model).expect("turns are of lanes");
        if lane.retry_deferred_at.is_some_and(|at| at <= now) {
            lane.retry_deferred_at = None;
            lane.profile.as_mut()?.retry_deferred();
        }
        let lane = &self.lanes[&turn.model];
        let probe = lane.profile.as_ref()?.next_probe(lane.drift.within(headroom));
        // In a class's turn only what its oldest request waits for is measured, not whatever else is left.
        let probe = probe.filter(|probe| turn.claim == Claim::Survey || is_smallest(probe.shape));
        // Who comes while a probe runs waits for the end of that run. So while nothing can be served here, one is started only
        // once nobody has been served for as long as it takes; but for those without which the model cannot serve.
        if let Some(probe) = probe
            && turn.claim == Claim::Survey
            && lane.ready_classes().next().is_none()
            && !is_smallest(probe.shape)
        {
            let served = self.lanes.values().map(|lane| lane.last_step).max().unwrap_or(Timestamp::START);
            let quiet = served + probe.expected;
            if probe.expected > UNNOTICED && served > Timestamp::START && now < quiet {
                self.ask_again_at(quiet);
                return None;
            }
        }
        let lease = probe.and_then(|probe| {
            let lease = ledger.lease(turn.model, lane.drift.on(probe.bound), Bytes::ZERO, reading).ok()?;
            Some((probe, lease))
        });
        let Some((probe, lease)) = lease else {
            self.ask_again_at(now + PROBE_RETRY);
            return None;
        };
        let time = probe.expected;
        let charges = vec![(turn.claim, 1.0)];
        self.charge(turn, time, &charges);
        let id = self.launch(now, turn.model, time, charges);
        Some(Step {
            id,
            model: turn.model,
            purpose: Purpose::Probe,
            members: Vec::new(),
            shape: probe.shape,
            lease,
            reason: Reason::Limit,
            headroom,
            predicted_time: time,
            chosen_at: now,
        })
    }
}

/// Whether a step of this shape holds a single row.
fn is_smallest(shape: Shape) -> bool {
    let (_, extent) = shape.position();
    shape == alone(shape.kind(), extent)
}
