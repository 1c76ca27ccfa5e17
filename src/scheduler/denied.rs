//! Rows that the device had no memory for, although the books had said so.
//!
//! The driver may refuse what it says is free: a neighbour was faster, a library loads a kernel, what is free lies in
//! pieces. None of that lasts, so such a row waits again, a little longer each time. Its request is held back as a whole
//! meanwhile, out of everybody's way. A row that has its result has forgotten all that.

use super::core::Scheduler;
use super::request::Denied;
use super::timers::Expiry;
use crate::units::{Micros, RequestId, Timestamp};

/// The longest time between two attempts.
const HOLD_MAX: Micros = Micros::secs(1);

impl Scheduler {
    /// Lets row `index` of a request, which comes out of a step without a result, wait again. False when it has been tried
    /// for long enough: nothing has changed then.
    pub(super) fn wait_again(&mut self, now: Timestamp, id: RequestId, index: u32) -> bool {
        let request = self.requests.get_mut(&id).expect("found by the caller");
        let Denied { since, times } = request.denied.get(&index).copied().unwrap_or(Denied { since: now, times: 0 });
        if now.since(since) >= self.settings.denied_wait_max {
            return false;
        }
        let times = times.saturating_add(1);
        request.denied.insert(index, Denied { since, times });
        let lane = self.lanes.get_mut(&request.facts.model).expect("a request waits in a lane");
        lane.class_mut(request.facts.priority).queue.hold(request, 1);
        request.wait_again(index);
        lane.occupancy.rows += 1;
        lane.occupancy.tokens += u64::from(request.facts.rows[index as usize].tokens);
        if let Some(blocked) = request.blocked.take() {
            self.timers.clear(blocked.since + self.settings.memory_wait_max, id, Expiry::Memory);
        }
        // Several rows of a request may come back, at once or one step after the other.
        let mut until = now + hold(self.settings.memory_retry, times);
        if let Some(before) = request.held_until {
            self.timers.clear(before, id, Expiry::Hold);
            until = until.max(before);
        }
        request.held_until = Some(until);
        self.timers.set(until, id, Expiry::Hold);
        true
    }

    /// Lets a request be chosen again that was held back.
    pub(super) fn release(&mut self, id: RequestId) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        if request.held_until.take().is_none() {
            return;
        }
        let lane = self.lanes.get_mut(&request.facts.model).expect("a request waits in a lane");
        let class = lane.class_mut(request.facts.priority);
        if class.queue.oldest().is_none() {
            self.clock.enter(&mut class.flow);
        }
        class.queue.release(request);
    }
}

/// How long to wait after so many failures: `first`, then twice as long each time.
fn hold(first: Micros, times: u32) -> Micros {
    let doubled = first.get().saturating_mul(1 << times.saturating_sub(1).min(16));
    Micros::new(doubled.min(HOLD_MAX.get()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_are_farther_and_farther_apart_up_to_a_second() {
        let held: Vec<u64> = (1..=8).map(|times| hold(Micros::millis(20), times).get() / 1_000).collect();
        assert_eq!(held, [20, 40, 80, 160, 320, 640, 1_000, 1_000]);
        assert_eq!(hold(Micros::millis(20), u32::MAX), HOLD_MAX);
    }
}
