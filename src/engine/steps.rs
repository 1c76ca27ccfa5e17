//! Steps: from the scheduler's choice to the device, and back to those who asked.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::answer::{Failure, StepFacts};
use super::core::Core;
use super::errand::Errand;
use super::status::ModelStatus;
use super::traces::TRACED_STEP;
use crate::admission::Rejection;
use crate::device::{Ran, Report, RowFailure, Shortfall};
use crate::memory::{Outcome, Reading};
use crate::model::{Batch, Fault};
use crate::scheduler::{Member, Purpose, Step, Work};
use crate::units::{Bytes, Micros, ModelId, Timestamp};

/// How long a trim that gave nothing back is not tried again while no step runs.
const TRIM_AGAIN: Micros = Micros::secs(1);

impl Core {
    /// Starts the next step, if the device is idle and there is one.
    pub(super) fn dispatch(&mut self, now: Timestamp, reading: &Reading) {
        if !self.is_idle() {
            self.dispatch_ahead(now, reading);
            return;
        }
        if self.start_trace(reading) {
            return;
        }
        let step = self.scheduler.poll_step(now, reading, &mut self.ledger);
        self.watch(now);
        self.traces_may_follow();
        let Some(step) = step else {
            self.start_trace(reading);
            return;
        };
        // A probe is worth nobody's place.
        let evictable = match step.purpose {
            Purpose::Serve => self.evictable(now, step.model).0,
            Purpose::Probe => Vec::new(),
        };
        self.at_stake.clone_from(&evictable);
        self.send(now, &step, evictable);
        self.errand = Some(Errand::Step(step));
        self.dispatch_ahead(now, reading);
    }

    /// Sends the next step behind the one that the device works on, if that is a step for requests, the device can make
    /// use of it, and nothing waits for the device to be idle. It evicts nobody: who is idle now may not be by then.
    fn dispatch_ahead(&mut self, now: Timestamp, reading: &Reading) {
        let serves = matches!(&self.errand, Some(Errand::Step(step)) if step.purpose == Purpose::Serve);
        if !serves || self.ahead.is_some() || self.poisoned || !self.rig.runs_ahead() || self.wants_idle_device() {
            return;
        }
        if let Some(step) = self.scheduler.poll_ahead(now, reading, &mut self.ledger, &self.at_stake) {
            self.send(now, &step, Vec::new());
            self.ahead = Some(step);
        }
    }

    /// Whether something waits that only an idle device can do.
    fn wants_idle_device(&self) -> bool {
        self.trim_due || self.loads_wait() || self.traces_wait() || self.models_wait()
    }

    fn send(&mut self, now: Timestamp, step: &Step, evictable: Vec<ModelId>) {
        let batch = match step.purpose {
            Purpose::Serve => self.gather(now, &step.members),
            Purpose::Probe => Batch::made_up(step.shape),
        };
        self.rig.run(step, batch, evictable);
    }

    /// Has cached workspace returned that no step needs, or that a neighbour does; only while the device has nothing else
    /// to do. Returned after a step whose successor is chosen already, it would be counted as free for that one, and be a
    /// neighbour's by the time it is needed.
    pub(super) fn trim(&mut self, now: Timestamp, reading: &Reading) {
        let keep = self.ledger.trim(now, reading).filter(|_| now >= self.trims_again_at);
        self.trim_due = keep.is_some();
        if let Some(keep) = keep.filter(|_| self.is_idle()) {
            self.trim_due = false;
            self.rig.trim(keep);
            self.errand = Some(Errand::Trim);
        }
    }

    /// The rows of a step's members, in the batch's order.
    fn gather(&mut self, now: Timestamp, members: &[Member]) -> Batch {
        let row = |member: &Member| {
            let request = self.pending.get_mut(member.request);
            let request = request.expect("what the scheduler puts into a step waits there, and is pending as long");
            request.started(now);
            Arc::clone(&request.rows[row_index(member)])
        };
        Batch::Tokens(members.iter().map(row).collect())
    }

    /// Takes in what the device's thread has done.
    pub(super) fn report(&mut self, now: Timestamp, report: Report) {
        match report {
            Report::Ran(ran) => match self.errand.take() {
                Some(Errand::Step(step)) if step.id == ran.step => {
                    self.errand = self.ahead.take().map(Errand::Step);
                    self.at_stake.clear();
                    self.step_done(now, step, ran);
                }
                Some(Errand::Trace(traced)) if ran.step == TRACED_STEP => self.trace_done(now, traced, ran),
                other => unreachable!("{:?} was reported while the device was at {other:?}", ran.step),
            },
            Report::Loaded { model, result } => {
                let errand = self.errand.take();
                debug_assert!(matches!(errand, Some(Errand::Load(loaded)) if loaded == model), "{errand:?}");
                self.load_done(now, model, result);
            }
            Report::Unloaded(gone) => {
                let errand = self.errand.take();
                debug_assert!(matches!(errand, Some(Errand::Unload(model)) if model == gone.model), "{errand:?}");
                let reading = self.rig.reading(now);
                self.unload_done(now, gone, &reading);
            }
            // It comes before the report of the step that needed the room.
            Report::Evicted(gone) => self.evicted_by_ladder(now, gone),
            Report::Trimmed { released } => {
                let errand = self.errand.take();
                debug_assert!(matches!(errand, Some(Errand::Trim)), "{errand:?}");
                tracing::debug!(released_bytes = released.get(), "cached workspace returned");
                // What cannot be given back now, because something lies in it, would be asked for again and again.
                let again = if released == Bytes::ZERO { TRIM_AGAIN } else { Micros::ZERO };
                self.trims_again_at = now + again;
                // The last one is from before: what was ours then is anybody's now.
                self.rig.reading(now);
            }
        }
    }

    fn step_done(&mut self, now: Timestamp, step: Step, ran: Ran) {
        // A step that was sent behind another began when the device was done with that one.
        let began = Timestamp::new(now.get().saturating_sub(ran.observed.time.get())).max(step.chosen_at);
        let facts = StepFacts {
            id: step.id,
            batch_rows: step.members.len() as u32,
            longest: step.shape.position().1,
            computed_tokens: step.shape.tokens(),
            reason: step.reason,
            predicted: step.lease.predicted,
            peak: ran.observed.peak,
            ceiling: step.lease.ceiling,
            headroom: step.headroom,
            compute: ran.observed.time,
            began: self.shared.clock.instant(began),
            ended: self.shared.clock.instant(now),
            rungs: ran.observed.rungs,
        };
        // It may have freed what lay in the way of a trim.
        self.trims_again_at = now;
        let Ran { model, rows, mut observed, resident, .. } = ran;
        let shape = step.shape;
        let faults = || {
            rows.iter().filter_map(|row| match row {
                Err(RowFailure::Fault(fault)) => Some(fault),
                _ => None,
            })
        };
        let lost = faults().find(|fault| matches!(fault, Fault::DeviceLost { .. })).cloned();
        let probe_fault = (step.purpose == Purpose::Probe).then(|| faults().next().cloned()).flatten();
        if let Some(fault) = &lost {
            self.lose_device(fault);
        }
        let tokens = self.real_tokens(&step.members, &rows);
        self.rig.model_metrics(model).step_completed(&step, &observed, tokens);
        self.life(model).profile_news |= step.purpose == Purpose::Probe;
        if step.purpose == Purpose::Serve {
            self.shared.board.with(model, |ModelStatus { statistics, .. }| {
                statistics.steps += 1;
                statistics.batches.entry(facts.batch_rows).or_default().add(facts.compute);
            });
        }
        let members = step.members.clone();
        self.part_taken(&members, facts);
        let shortfalls = self.distribute(now, &members, rows);
        let refused: Vec<usize> = shortfalls.keys().copied().collect();
        // Those whose rows are at fault have been answered: for the others the step went well.
        if observed.outcome == Outcome::Faulted && step.purpose == Purpose::Serve {
            observed.outcome = Outcome::Done;
        }
        self.note_resident(model, resident);
        let completed = self.scheduler.complete(now, step, &observed, &refused, &mut self.ledger);
        self.note_least_workspace(model);
        if let Some(fault) = probe_fault {
            self.probe_failed(now, model, shape, &fault);
        }
        debug_assert_eq!(self.ledger.check(), Ok(()), "the books balance after every step");
        for id in completed.finished {
            self.succeed(now, id);
        }
        for (id, rejection) in completed.rejected {
            let refused = shortfalls.iter().find(|(position, _)| members[**position].request == id);
            self.reject(now, id, refused.map_or(rejection, |(_, shortfall)| with_numbers(rejection, shortfall)));
        }
        debug_assert!(completed.faulted.is_empty(), "a step in which rows faulted is completed as done");
        if observed.rungs.evictions > 0 || observed.rungs.refusals > 0 {
            self.log_memory(now, "ladder");
        }
        if lost.is_some() {
            self.abandon(now);
        }
    }

    /// A step may leave something behind that the model holds from then on.
    pub(super) fn note_resident(&mut self, model: ModelId, resident: Bytes) {
        if self.ledger.is_resident(model) && resident != self.life(model).resident {
            self.ledger.loaded(model, resident);
            self.hold(model, resident);
        }
    }

    /// Tokens of the members that are not to be run again.
    fn real_tokens(&mut self, members: &[Member], rows: &[Result<Vec<f32>, RowFailure>]) -> u64 {
        let mut tokens = |member: &Member| {
            let request = self.pending.get_mut(member.request);
            request.map_or(0, |request| request.rows[row_index(member)].ids.len() as u64)
        };
        let ran = members.iter().zip(rows).filter(|(_, row)| !matches!(row, Err(RowFailure::OutOfMemory(_))));
        ran.map(|(member, _)| tokens(member)).sum()
    }

    /// Notes the step with each request that took part, once.
    fn part_taken(&mut self, members: &[Member], facts: StepFacts) {
        // Members of one request stand together.
        for member in members.chunk_by(|a, b| a.request == b.request) {
            if let Some(request) = self.pending.get_mut(member[0].request) {
                request.took_part(facts);
            }
        }
    }

    /// Stores the results of rows, fails the requests whose rows are at fault, and names the members that got no memory
    /// by their position in the step.
    fn distribute(
        &mut self,
        now: Timestamp,
        members: &[Member],
        rows: Vec<Result<Vec<f32>, RowFailure>>,
    ) -> BTreeMap<usize, Shortfall> {
        let mut refused = BTreeMap::new();
        for (position, (member, row)) in members.iter().zip(rows).enumerate() {
            match row {
                Ok(vector) => {
                    // It may have been cancelled or have expired meanwhile.
                    if let Some(request) = self.pending.get_mut(member.request) {
                        request.put(row_index(member), vector);
                    }
                }
                Err(RowFailure::OutOfMemory(shortfall)) => {
                    refused.insert(position, shortfall);
                }
                Err(RowFailure::Fault(fault)) => self.row_faulted(now, member, fault),
            }
        }
        refused
    }

    fn row_faulted(&mut self, now: Timestamp, member: &Member, fault: Fault) {
        // Takes its other rows out of the queue; those in this step are of no more interest.
        self.scheduler.cancel(member.request);
        self.fail(now, member.request, Failure::Fault(fault));
    }
}

/// A refusal with what the device itself said, which knows better than the prediction.
fn with_numbers(rejection: Rejection, shortfall: &Shortfall) -> Rejection {
    match rejection {
        Rejection::OutOfMemory { retry_after, .. } => {
            Rejection::OutOfMemory { needed: shortfall.needed, available: shortfall.available, retry_after }
        }
        other => other,
    }
}

/// Which row of its request a member is.
fn row_index(member: &Member) -> usize {
    match member.work {
        Work::Row { index } => index as usize,
        Work::Prefill { .. } | Work::Decode => unreachable!("no model here generates: {member:?}"),
    }
}
