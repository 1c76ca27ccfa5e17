//! Steps that measure a profile.

use super::core::{InFlight, Scheduler};
use super::step::{Purpose, Reason, Step};
use super::turn::Turn;
use crate::memory::{Ledger, PROBE_RUNS, Reading};
use crate::units::{Bytes, Micros, Timestamp};

/// After how long a probe that found no room is tried again on an idle device.
const PROBE_RETRY: Micros = Micros::secs(1);

impl Scheduler {
    /// The next probe of a lane that there is room for, in the time of the claim whose turn it is.
    pub(super) fn survey(
        &mut self,
        now: Timestamp,
        turn: &Turn,
        reading: &Reading,
        ledger: &mut Ledger,
    ) -> Option<Step> {
        let headroom = ledger.headroom(turn.model, reading).bytes;
        let lane = self.lanes.get_mut(&turn.model).expect("turns are of lanes");
        let drift = lane.drift;
        let profile = lane.profile.as_mut()?;
        let (probe, lease) = loop {
            let Some(probe) = profile.next_probe(drift.within(headroom)) else {
                self.ask_again_at(now + PROBE_RETRY);
                return None;
            };
            match ledger.lease(turn.model, drift.on(probe.bound), Bytes::ZERO, reading) {
                Ok(lease) => break (probe, lease),
                // It is asked for again when there is more room; until then there may be a smaller one.
                Err(_) => profile.defer_probe(probe.shape, headroom),
            }
        };
        let time = Micros::new(probe.expected.get().saturating_mul(u64::from(PROBE_RUNS)));
        let id = self.next_id();
        let charges = vec![(turn.claim, 1.0)];
        self.charge(turn, time, &charges);
        self.in_flight = Some(InFlight {
            id,
            model: turn.model,
            purpose: Purpose::Probe,
            predicted_time: time,
            predicted_end: now + time,
            charges,
        });
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
