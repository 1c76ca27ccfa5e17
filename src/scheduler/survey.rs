//! Steps that measure a profile.

use super::core::{InFlight, Scheduler};
use super::draft::alone;
use super::lane::Claim;
use super::step::{Purpose, Reason, Step};
use super::turn::Turn;
use crate::memory::{Ledger, PROBE_RUNS, Reading, Shape};
use crate::units::{Bytes, Micros, Timestamp};

/// A wait that a client does not notice: probes that take no longer need no quiet time.
const UNNOTICED: Micros = Micros::millis(50);

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
        let lane = &self.lanes[&turn.model];
        let probe = lane.profile.as_ref()?.next_probe(lane.drift.within(headroom));
        // In a class's turn only what its oldest request waits for is measured, not whatever else is left.
        let probe = probe.filter(|probe| turn.claim == Claim::Survey || is_smallest(probe.shape));
        // Who comes while a probe runs waits for its end. So while nothing waits here, a probe is run only once nobody has
        // been served for as long as it takes; but for those without which the model cannot serve at all.
        if let Some(probe) = probe
            && turn.claim == Claim::Survey
            && lane.is_empty()
            && !is_smallest(probe.shape)
        {
            let served = self.lanes.values().map(|lane| lane.last_step).max().unwrap_or(Timestamp::START);
            let takes = Micros::new(probe.expected.get().saturating_mul(u64::from(PROBE_RUNS)));
            let quiet = served + takes;
            if takes > UNNOTICED && served > Timestamp::START && now < quiet {
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

/// Whether a step of this shape holds a single row.
fn is_smallest(shape: Shape) -> bool {
    let (_, extent) = shape.position();
    shape == alone(shape.kind(), extent)
}
