//! A step comes back.

use super::core::{InFlight, Scheduler};
use super::lane::Lane;
use super::step::{Member, Purpose, Step, Work};
use crate::admission::Rejection;
use crate::memory::{DriftVerdict, Ledger, Observed, Outcome, ProfileState, Shape};
use crate::units::{Bytes, Micros, RequestId, Timestamp};

/// After how long a probe that ran out of memory is tried again although there is no more room than there was: the
/// device may have refused it for reasons that the books do not know.
const DEFERRED_FOR: Micros = Micros::secs(10);

/// How often a probe is run that fails in the model's own code: what fails once may be an accident.
const PROBE_FAULTS_MAX: u32 = 3;

/// Weight of the newest step in the usual step time.
const NEWEST: f64 = 0.1;

/// What a step's end means for requests. Each named one is answered by it.
#[must_use = "each of these requests has to be answered"]
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Completed {
    /// All their rows have results.
    pub finished: Vec<RequestId>,
    /// They got no memory even after the whole ladder, for as long as they may be tried.
    pub rejected: Vec<(RequestId, Rejection)>,
    /// The step failed under them; the engine knows the fault.
    pub faulted: Vec<RequestId>,
}

impl Scheduler {
    /// Takes back a step and says which requests are answered by it. Those cancelled or expired meanwhile are not named.
    ///
    /// `refused` are the indices of the members that the ladder had to refuse, be it some or all. They wait again, for [`Settings::denied_wait_max`] at most.
    ///
    /// [`Settings::denied_wait_max`]: super::settings::Settings::denied_wait_max
    ///
    /// # Panics
    /// When the step is not the one that the device was given first of those in flight.
    pub fn complete(
        &mut self,
        now: Timestamp,
        step: Step,
        seen: &Observed,
        refused: &[usize],
        ledger: &mut Ledger,
    ) -> Completed {
        let in_flight = self.in_flight.pop_front().expect("a step comes back once, after it was given out");
        assert_eq!(in_flight.id, step.id, "steps come back in the order in which they were given out");
        let ceiling = step.lease.ceiling;
        ledger.give_back(step.lease, seen);
        let lane = self.lanes.get_mut(&step.model).expect("steps are of lanes");
        account(lane, &in_flight, seen);
        match step.purpose {
            Purpose::Probe => {
                learn_probe(now, lane, step.shape, seen, ceiling);
                Completed::default()
            }
            Purpose::Serve => {
                if learn_peak(lane, step.shape, seen) == Survey::Begins {
                    // Nothing is owed to it for the time in which there was nothing to measure.
                    self.clock.enter(&mut lane.survey);
                }
                // Members are in order of age.
                let oldest = step.members.iter().find_map(|member| self.requests.get(&member.request));
                let oldest = oldest.map_or(step.chosen_at, |request| request.facts.arrival);
                // Only time in which these rows could have been served counts.
                let began = step.chosen_at.max(lane.last_step);
                let since = lane.last_step.max(oldest).min(began);
                let served = step.members.len() - refused.len();
                lane.drain.record(served as u64, now.since(since));
                // A step in which nobody was served says nothing about how long one takes.
                if served > 0 {
                    self.usual_step = average(self.usual_step, seen.time);
                }
                lane.last_step = now;
                self.settle(now, &step.members, seen, refused, ceiling)
            }
        }
    }

    /// Moves the members of a step out of flight.
    fn settle(
        &mut self,
        now: Timestamp,
        members: &[Member],
        seen: &Observed,
        refused: &[usize],
        available: Bytes,
    ) -> Completed {
        let mut completed = Completed::default();
        for (position, member) in members.iter().enumerate() {
            let Some(request) = self.requests.get_mut(&member.request) else { continue };
            let Work::Row { index } = member.work else { unreachable!("only whole rows are chosen") };
            if seen.outcome == Outcome::Faulted {
                self.forget(member.request);
                completed.faulted.push(member.request);
                continue;
            }
            if refused.contains(&position) {
                if self.wait_again(now, member.request, index) {
                    continue;
                }
                let needed = seen.peak.max(available + Bytes::new(1));
                let retry_after = self.settings.memory_wait_max;
                self.forget(member.request);
                completed.rejected.push((member.request, Rejection::OutOfMemory { needed, available, retry_after }));
                continue;
            }
            request.finish(index);
            if request.is_done() {
                self.forget(member.request);
                completed.finished.push(member.request);
            }
        }
        completed
    }
}

/// The usual time of a step after one that took `newest`.
fn average(usual: Micros, newest: Micros) -> Micros {
    if usual == Micros::ZERO {
        return newest;
    }
    let (usual, newest) = (usual.get() as f64, newest.get() as f64);
    Micros::new((usual + NEWEST * (newest - usual)).round() as u64)
}

/// Corrects what the step was charged by what it took.
fn account(lane: &mut Lane, in_flight: &InFlight, seen: &Observed) {
    lane.device_time += seen.time;
    for &(claim, part) in &in_flight.charges {
        lane.flow_mut(claim).correct(in_flight.predicted_time, seen.time, part);
    }
}

/// Takes a run of a probe into the profile, once it is the last one.
fn learn_probe(now: Timestamp, lane: &mut Lane, shape: Shape, seen: &Observed, ceiling: Bytes) {
    let Some(profile) = &mut lane.profile else { return };
    let was_stale = profile.state() == ProfileState::Stale;
    match seen.outcome {
        Outcome::Done => {
            (lane.probed, lane.probe_faults) = (now, 0);
            match lane.probe_runs.add(shape, seen.peak, seen.time) {
                Some(measured) => profile.record(measured),
                None => return,
            }
        }
        Outcome::OutOfMemory => {
            profile.defer_probe(shape, ceiling);
            lane.retry_deferred_at.get_or_insert(now + DEFERRED_FOR);
        }
        Outcome::Faulted => {
            lane.probe_faults += 1;
            if lane.probe_faults < PROBE_FAULTS_MAX {
                return;
            }
            lane.probe_faults = 0;
            // A shape that the model cannot compute is never asked for again.
            profile.defer_probe(shape, Bytes::MAX);
        }
    }
    if was_stale && profile.state() != ProfileState::Stale {
        lane.drift.reset();
    }
}

/// Whether a profile has to be measured anew.
#[derive(PartialEq, Eq)]
enum Survey {
    Begins,
    AsBefore,
}

/// Compares a step's true peak with its prediction.
fn learn_peak(lane: &mut Lane, shape: Shape, seen: &Observed) -> Survey {
    let Some(profile) = &mut lane.profile else { return Survey::AsBefore };
    let Some(predicted) = profile.predicted(shape) else { return Survey::AsBefore };
    // A step that did not run whole says how much its parts needed: less than the whole would have.
    if seen.outcome != Outcome::Done || (seen.rungs.halvings > 0 && seen.peak <= predicted) {
        return Survey::AsBefore;
    }
    match lane.drift.observe(predicted, seen.peak) {
        DriftVerdict::Holds => Survey::AsBefore,
        DriftVerdict::Stale | DriftVerdict::Slack => {
            profile.mark_stale();
            Survey::Begins
        }
    }
}
