//! The bound on overtaking: who may no longer be passed by.

use std::collections::BTreeSet;

use crate::units::{RequestId, StepId};

/// Counts, for every request of one class at once, in how many steps a younger one of its class went before it.
///
/// Ids grow with time, so a step whose youngest member is `y` overtakes exactly the requests below `y` that still wait
/// (counting those that are partly in it too, which only makes the bound stricter). A request has therefore been
/// overtaken K times if, and only if, the K-th largest of all youngest members so far is above it: keeping the K largest
/// is enough, and those who are out of patience are always the oldest.
#[derive(Debug)]
pub(super) struct Overtaking {
    largest: BTreeSet<(RequestId, StepId)>,
    max: usize,
}

impl Overtaking {
    /// With K = `max`, at least 1.
    pub(super) fn new(max: u32) -> Self {
        Overtaking { largest: BTreeSet::new(), max: max.max(1) as usize }
    }

    /// `step` takes members of which `youngest` is the youngest of the class.
    pub(super) fn record(&mut self, step: StepId, youngest: RequestId) {
        self.largest.insert((youngest, step));
        if self.largest.len() > self.max {
            self.largest.pop_first();
        }
    }

    /// Whether `request`, which waits, has been overtaken as often as it may be.
    pub(super) fn exhausted(&self, request: RequestId) -> bool {
        self.largest.len() == self.max && self.largest.first().is_some_and(|&(youngest, _)| request < youngest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Method: random-looking youngest members, compared with counting per request.
    #[test]
    fn agrees_with_counting_for_each_request() {
        for max in [1u32, 2, 5] {
            let mut overtaking = Overtaking::new(max);
            let mut counts = [0u32; 40];
            for step in 0u64..60 {
                let youngest = (step * 17 + step * step * 3) % 40;
                overtaking.record(StepId::new(step), RequestId::new(youngest));
                counts.iter_mut().take(youngest as usize).for_each(|count| *count += 1);
                for (id, &count) in counts.iter().enumerate() {
                    let found = overtaking.exhausted(RequestId::new(id as u64));
                    assert_eq!(found, count >= max, "max {max}, step {step}, request {id}");
                }
            }
        }
    }
}
