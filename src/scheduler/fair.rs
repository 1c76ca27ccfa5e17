//! Start-time fair queueing: whose turn it is on the device.
//!
//! Every flow (a priority class of a lane, or a lane's survey) has a tag in virtual time: the device time that it has
//! used, divided by its weight. The smallest tag is served next. A flow that comes back after a pause starts at the
//! clock, the tag of the flow served last, so that nobody saves up turns by being idle.

use crate::units::Micros;

/// Virtual time of one device.
#[derive(Debug, Default)]
pub(super) struct FairClock {
    now: f64,
}

/// One claimant of device time.
#[derive(Debug)]
pub(super) struct Flow {
    weight: f64,
    tag: f64,
    indebted: bool,
}

impl FairClock {
    /// `flow` is served in its turn.
    pub(super) fn serve(&mut self, flow: &mut Flow) {
        self.now = self.now.max(flow.tag);
        flow.indebted = false;
    }

    /// `flow` wants time from now on and did not before, or could not use its turn: its claim starts now.
    pub(super) fn enter(&self, flow: &mut Flow) {
        flow.tag = flow.tag.max(self.now);
    }
}

impl Flow {
    /// A flow that has used nothing; its weight is at least a tiny positive number, so that no tag is infinite.
    pub(super) fn new(weight: f64) -> Self {
        Flow { weight: weight.max(1e-6), tag: 0.0, indebted: false }
    }

    /// Changes what a second of device time costs it from now on.
    pub(super) fn set_weight(&mut self, weight: f64) {
        self.weight = weight.max(1e-6);
    }

    /// Smaller is served first.
    pub(super) fn tag(&self) -> f64 {
        self.tag
    }

    /// Charges `part` of a step that is predicted to take `time`.
    pub(super) fn charge(&mut self, time: Micros, part: f64) {
        self.tag += time.get() as f64 * part / self.weight;
    }

    /// The step that was charged as `predicted` took `measured`.
    pub(super) fn correct(&mut self, predicted: Micros, measured: Micros, part: f64) {
        self.tag += (measured.get() as f64 - predicted.get() as f64) * part / self.weight;
    }

    /// The flow is served before its turn, once: it may not be again until it has had a turn of its own.
    pub(super) fn jump(&mut self) {
        self.indebted = true;
    }

    /// Whether it may be served before its turn.
    pub(super) fn may_jump(&self) -> bool {
        !self.indebted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(flows: &[Flow], wanting: &[usize]) -> usize {
        *wanting.iter().min_by(|&&a, &&b| flows[a].tag().total_cmp(&flows[b].tag())).unwrap()
    }

    /// Serves `steps` steps among `wanting`, each predicted 10 % too short, and returns the time that each flow got.
    fn run(clock: &mut FairClock, flows: &mut [Flow], wanting: &[usize], lengths: &[u64], steps: usize) -> Vec<u64> {
        let mut used = vec![0; flows.len()];
        for _ in 0..steps {
            let index = next(flows, wanting);
            let (predicted, measured) = (Micros::new(lengths[index]), Micros::new(lengths[index] * 11 / 10));
            clock.serve(&mut flows[index]);
            flows[index].charge(predicted, 1.0);
            flows[index].correct(predicted, measured, 1.0);
            used[index] += measured.get();
        }
        used
    }

    #[test]
    fn measured_time_is_divided_by_weight() {
        let (mut clock, mut flows) = (FairClock::default(), [Flow::new(1.0), Flow::new(2.0), Flow::new(1.0)]);
        let used = run(&mut clock, &mut flows, &[0, 1, 2], &[100, 700, 4_000], 2_000);
        let total: u64 = used.iter().sum();
        for (time, share) in used.iter().zip([0.25, 0.5, 0.25]) {
            assert!((*time as f64 / total as f64 - share).abs() < 0.02, "{used:?}");
        }
    }

    #[test]
    fn a_new_weight_holds_from_then_on() {
        let (mut clock, mut flows) = (FairClock::default(), [Flow::new(1.0), Flow::new(1.0)]);
        run(&mut clock, &mut flows, &[0, 1], &[100, 100], 1_000);
        flows[1].set_weight(3.0);
        let used = run(&mut clock, &mut flows, &[0, 1], &[100, 100], 1_000);
        assert!((used[1] as f64 / used[0] as f64 - 3.0).abs() < 0.05, "{used:?}");
    }

    #[test]
    fn a_pause_earns_nothing() {
        let (mut clock, mut flows) = (FairClock::default(), [Flow::new(1.0), Flow::new(1.0)]);
        run(&mut clock, &mut flows, &[0], &[100, 100], 1_000);
        clock.enter(&mut flows[1]);
        let used = run(&mut clock, &mut flows, &[0, 1], &[100, 100], 100);
        assert!(used[0].abs_diff(used[1]) <= 220, "{used:?}");
    }

    #[test]
    fn a_jump_is_allowed_once_until_a_turn_of_its_own() {
        let (mut clock, mut flow) = (FairClock::default(), Flow::new(1.0));
        assert!(flow.may_jump());
        flow.jump();
        assert!(!flow.may_jump());
        clock.serve(&mut flow);
        assert!(flow.may_jump());
    }
}
