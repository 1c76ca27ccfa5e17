//! What can be seen of the lanes from outside: for metrics, lists and logs.

use super::core::Scheduler;
use super::draft::alone;
use super::lane::{LaneState, Shortage};
use crate::admission::Occupancy;
use crate::memory::{Profile, ProfileState};
use crate::units::{Bytes, Micros, ModelId, Timestamp};

/// One lane at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct LaneView {
    /// The model.
    pub model: ModelId,
    /// Whether steps may be chosen and requests may join.
    pub state: LaneState,
    /// What waits.
    pub occupancy: Occupancy,
    /// When the oldest request that still waits for some of its rows came.
    pub oldest: Option<Timestamp>,
    /// Factor on predicted peaks.
    pub drift: f64,
    /// How far its profile is.
    pub profile: Option<ProfileState>,
    /// Device time used so far.
    pub device_time: Micros,
    /// End of its last step.
    pub last_step: Timestamp,
    /// What its oldest request lacks, if the last attempt to serve it failed for memory: evicting idle models may help.
    pub shortage: Option<Shortage>,
}

impl Scheduler {
    /// All lanes, in the order of their models.
    pub fn lanes(&self) -> impl Iterator<Item = LaneView> + '_ {
        self.lanes.iter().map(|(&model, lane)| LaneView {
            model,
            state: lane.state,
            occupancy: lane.occupancy,
            oldest: lane.oldest_waiting().map(|id| self.requests[&id].facts.arrival),
            drift: lane.drift.factor(),
            profile: lane.profile.as_ref().map(Profile::state),
            device_time: lane.device_time,
            last_step: lane.last_step,
            shortage: lane.shortfall,
        })
    }

    /// The profile of a model, once it has been loaded: to be stored, or printed.
    pub fn profile(&self, model: ModelId) -> Option<&Profile> {
        self.lanes.get(&model)?.profile.as_ref()
    }

    /// What a step of a model's longest row needs, once that is measured.
    pub fn least_workspace(&self, model: ModelId) -> Option<Bytes> {
        let lane = self.lanes.get(&model)?;
        let profile = lane.profile.as_ref()?;
        let longest = alone(profile.axes().kind, profile.axes().extent.max);
        profile.predicted(longest).map(|peak| lane.drift.on(peak))
    }

    /// Whether the profile of a model is measured as far as `headroom` allows.
    pub fn is_surveyed(&self, model: ModelId, headroom: Bytes) -> bool {
        let Some(lane) = self.lanes.get(&model) else { return false };
        lane.profile.as_ref().is_some_and(|profile| {
            profile.state() != ProfileState::Stale && profile.next_probe(lane.drift.within(headroom)).is_none()
        })
    }

    /// The largest batch (rows, or tokens of ragged models) that a step over rows of `tokens` could have within
    /// `headroom`; `None` while nothing is measured at that length.
    pub fn batch_max(&self, model: ModelId, tokens: u32, headroom: Bytes) -> Option<u32> {
        let lane = self.lanes.get(&model)?;
        let within = lane.settings.target_latency.unwrap_or(Micros::MAX);
        let largest = lane.profile.as_ref()?.largest_batch(tokens, lane.drift.within(headroom), within)?;
        Some(largest.batch)
    }

    /// Requests that are accepted and not answered.
    pub fn open_requests(&self) -> usize {
        self.requests.len()
    }

    /// How often the watchdog has found an idle device with work and no way on. Anything but 0 is a defect.
    pub fn watchdog_bites(&self) -> u64 {
        self.watchdog.bites()
    }
}
