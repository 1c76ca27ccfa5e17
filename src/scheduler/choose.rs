//! Choosing the next step.

use super::core::Scheduler;
use super::draft::Pick;
use super::form::{Batch, Forming};
use super::lane::Claim;
use super::request::Request;
use super::search::{Room, search};
use super::settings::Batching;
use super::step::{Member, Purpose, Reason, Step, Work};
use super::timers::Expiry;
use super::turn::{Turn, When};
use super::waiting::Priority;
use crate::memory::{Lease, Ledger, Reading};
use crate::units::{Bytes, Micros, ModelId, StepId, Timestamp};

/// Rows of the window for each row of a batch and each step of the overtaking bound. A row leaves a window of W rows
/// after about W / batch steps; a quarter of the bound keeps those that are unlucky from reaching it, after which batches
/// can only be formed by age. Measured in `benches/scheduler.rs`, 1,000 rows of any length waiting, batches of at most 32:
/// a half gives 25 rows a step, a quarter 31, an eighth 30.
const WINDOW_PART: f64 = 0.25;
/// Fewest rows of the window: a short queue is looked at as a whole.
const WINDOW_MIN: usize = 64;

impl Scheduler {
    /// The next step, if there is something to run and nothing runs. The engine must run it and report it to
    /// [`Scheduler::complete`]. After `None`, ask again at [`Scheduler::poll_timeout`] or after the next fact.
    pub fn poll_step(&mut self, now: Timestamp, reading: &Reading, ledger: &mut Ledger) -> Option<Step> {
        if !self.in_flight.is_empty() {
            return None;
        }
        self.ask_again = None;
        let turns = self.turns(now);
        for (tried, turn) in turns.iter().enumerate() {
            let step = match turn.claim {
                Claim::Class(priority) => self.serve(now, turn, priority, reading, ledger, When::Now),
                Claim::Survey => self.survey(now, turn, reading, ledger),
            };
            if step.is_some() {
                // Those before it could not use their turn; they do not save it up.
                for skipped in &turns[..tried] {
                    let lane = self.lanes.get_mut(&skipped.model).expect("turns are of lanes");
                    self.clock.enter(lane.flow_mut(skipped.claim));
                }
                self.watchdog.rest();
                return step;
            }
        }
        if turns.iter().any(|turn| turn.claim != Claim::Survey) {
            let ask_again = self.poll_timeout();
            if self.watchdog.idle(now, ask_again) {
                self.fail_oldest(now);
            }
        } else {
            self.watchdog.rest();
        }
        None
    }

    /// The step after the one in flight, to be queued behind it so that the device does not wait for this thread in
    /// between: only a batch to which nothing that may still come could be added, of the claim whose turn it is. `None`
    /// where that has to be seen when the device is free; for a model that is in `except`; and with two in flight.
    ///
    /// Steps of different models never run at once: what is leased twice is used one after the other.
    pub fn poll_ahead(
        &mut self,
        now: Timestamp,
        reading: &Reading,
        ledger: &mut Ledger,
        except: &[ModelId],
    ) -> Option<Step> {
        if self.in_flight.len() != 1 {
            return None;
        }
        let turn = *self.turns(now).first().filter(|turn| !except.contains(&turn.model))?;
        match turn.claim {
            Claim::Class(priority) => self.serve(now, &turn, priority, reading, ledger, When::Ahead),
            Claim::Survey => None,
        }
    }

    /// The watchdog has bitten: the oldest request that waits for a serving lane is timed out, at the next
    /// [`Scheduler::poll_expired`].
    fn fail_oldest(&mut self, now: Timestamp) {
        let lanes = &self.lanes;
        let stuck = |request: &&Request| lanes[&request.facts.model].is_serving();
        if let Some(request) = self.requests.values().find(stuck) {
            self.timers.set(now, request.facts.id, Expiry::Stuck);
        }
    }

    /// A step for the requests of a class, with what else of its lane goes well with them.
    fn serve(
        &mut self,
        now: Timestamp,
        turn: &Turn,
        priority: Priority,
        reading: &Reading,
        ledger: &mut Ledger,
        when: When,
    ) -> Option<Step> {
        let headroom = ledger.headroom(turn.model, reading).bytes;
        // What is in flight comes first.
        let starts = now + self.remainder(now);
        let lane = self.lanes.get_mut(&turn.model).expect("turns are of lanes");
        if when == When::Now {
            lane.class_mut(priority).searched = now;
        }
        let waiting: Vec<Priority> = lane.waiting_classes().collect();
        let window = f64::from(self.settings.overtaking_max) * f64::from(lane.batch_rows) * WINDOW_PART;
        for &class in &waiting {
            lane.class_mut(class).queue.fill_window(&self.requests, WINDOW_MIN.max(window as usize));
        }
        let wait_max = self.settings.memory_wait_max;
        let room = match self.settings.batching {
            Batching::Profile => Room { headroom, ever: ledger.headroom_ever(turn.model), wait_max },
            Batching::Fixed(_) => Room { headroom: Bytes::MAX, ever: Bytes::MAX, wait_max },
        };
        let search = search(lane, priority, (now, starts), room, &mut self.requests, &mut self.timers, when);
        if when == When::Ahead && (search.unmeasured || search.seed.is_none()) {
            return None;
        }
        if let Some(shortage) = search.shortage {
            lane.shortfall = Some(shortage);
            self.ask_again_at(now + self.settings.memory_retry);
        }
        if search.unmeasured {
            // What is missing to serve the oldest row is measured in its own time.
            if let Some(step) = self.survey(now, turn, reading, ledger) {
                return Some(step);
            }
        }
        let Some(seed) = search.seed else {
            // It waits for memory, for its deadline, or for a probe.
            self.ask_again_at(now + self.settings.memory_retry);
            return None;
        };
        let lane = &self.lanes[&turn.model];
        let forming = Forming {
            lane,
            requests: &self.requests,
            settings: &self.settings,
            starts,
            headroom,
            tokens_max: search.too_long.map_or(u32::MAX, |tokens| tokens - 1),
        };
        let batch = forming.around(&seed, priority)?;
        if when == When::Ahead && batch.reason == Reason::Queue {
            return None;
        }
        let profile = lane.profile.as_ref().expect("the seed was measured");
        let measured = profile.predicted(batch.shape).zip(profile.time(batch.shape));
        let linger_end = seed.arrival + lane.settings.max_linger;
        let in_time = linger_end + measured.map_or(seed.time, |(_, time)| time) <= batch.deadline;
        if batch.reason == Reason::Queue && now < linger_end && in_time {
            self.ask_again_at(linger_end);
            return None;
        }
        let (predicted, time) = match (self.settings.batching, measured) {
            (Batching::Profile, measured) => {
                let (peak, time) = measured?;
                (lane.drift.on(peak), time)
            }
            // It runs with what there is, and where nothing is measured as well.
            (Batching::Fixed(_), Some((peak, time))) => (lane.drift.on(peak).min(headroom), time),
            (Batching::Fixed(_), None) => {
                let tokens = batch.shape.tokens() as f64 / f64::from(seed.row.tokens.max(1));
                (headroom, seed.time.scale(tokens))
            }
        };
        let lease = ledger.lease(turn.model, predicted, Bytes::ZERO, reading).ok()?;
        Some(self.start(now, turn, batch, lease, headroom, time))
    }

    /// Moves the batch from waiting to in flight.
    fn start(
        &mut self,
        now: Timestamp,
        turn: &Turn,
        batch: Batch,
        lease: Lease,
        headroom: Bytes,
        time: Micros,
    ) -> Step {
        let id = StepId::new(self.next_step);
        let lane = self.lanes.get_mut(&turn.model).expect("turns are of lanes");
        lane.shortfall = None;
        // Falls slowly, so that one small batch does not narrow the choice of the next.
        lane.batch_rows = (batch.picks.len() as u32).max(lane.batch_rows - lane.batch_rows / 16);
        let mut tokens = [0u64; Priority::ALL.len()];
        let mut youngest = [None; Priority::ALL.len()];
        let mut members = Vec::with_capacity(batch.picks.len());
        for Pick { row, class } in batch.picks {
            let request = self.requests.get_mut(&row.request).expect("picks wait");
            request.start(row.index);
            lane.class_mut(class).queue.take(row, request);
            lane.occupancy.rows -= 1;
            lane.occupancy.tokens -= u64::from(row.tokens);
            tokens[class as usize] += u64::from(row.tokens);
            youngest[class as usize] = youngest[class as usize].max(Some(row.request));
            members.push(Member { request: row.request, work: Work::Row { index: row.index } });
        }
        members.sort_unstable_by_key(|member| (member.request, member.work));
        let total: u64 = tokens.iter().sum();
        let mut charges = Vec::new();
        for class in Priority::ALL {
            if let Some(youngest) = youngest[class as usize] {
                lane.class_mut(class).overtaking.record(id, youngest);
                charges.push((Claim::Class(class), tokens[class as usize] as f64 / total as f64));
            }
        }
        self.charge(turn, time, &charges);
        let id = self.launch(now, turn.model, time, charges);
        Step {
            id,
            model: turn.model,
            purpose: Purpose::Serve,
            members,
            shape: batch.shape,
            lease,
            reason: batch.reason,
            headroom,
            predicted_time: time,
            chosen_at: now,
        }
    }

    /// Charges a step to those who take part, in their turn or before it.
    pub(super) fn charge(&mut self, turn: &Turn, time: Micros, charges: &[(Claim, f64)]) {
        let lane = self.lanes.get_mut(&turn.model).expect("turns are of lanes");
        if turn.jumps {
            lane.flow_mut(turn.claim).jump();
        } else {
            self.clock.serve(lane.flow_mut(turn.claim));
        }
        for &(claim, part) in charges {
            lane.flow_mut(claim).charge(time, part);
        }
    }

    pub(super) fn ask_again_at(&mut self, at: Timestamp) {
        self.ask_again = Some(self.ask_again.map_or(at, |before| before.min(at)));
    }
}
