//! The simulated device: runs one step under its lease, climbs the ladder when it runs short.

use plimsoll::memory::{Evictable, Ladder, Observed, Outcome, RowFacts, Rung, Shape};
use plimsoll::units::{Bytes, Micros};

use crate::rng::Rng;
use crate::truth::Truth;

/// What a step finds.
pub(crate) struct Conditions {
    /// The lease's ceiling.
    pub(crate) ceiling: Bytes,
    /// What the device could really give to workspace: a neighbour may have come since the reading.
    pub(crate) device: Bytes,
    /// True peak over what the truth says.
    pub(crate) error: f64,
    /// Bytes that evicting idle models would free, one after the other.
    pub(crate) evictable: Vec<Bytes>,
    /// The step fails for another reason than memory.
    pub(crate) fails: bool,
}

/// What came of it.
pub(crate) struct Ran {
    pub(crate) observed: Observed,
    /// Indices of rows without a result.
    pub(crate) refused: Vec<usize>,
    /// How many of the evictable models went.
    pub(crate) evicted: usize,
}

/// Runs rows of these lengths as one batch; in parts where it has to be.
pub(crate) fn run(truth: &Truth, rows: &[u32], conditions: Conditions, rng: &mut Rng) -> Ran {
    let Conditions { mut ceiling, mut device, error, evictable, fails } = conditions;
    let mut ladder = Ladder::new();
    let (mut peak, mut time, mut refused, mut evicted) = (Bytes::ZERO, Micros::ZERO, Vec::new(), 0);
    // Some of what a step needs is only needed while there is no room to do better: a trim then helps.
    let elastic = rng.chance(0.3);
    let mut parts = vec![(0, rows.len(), false)];
    while let Some((from, to, trimmed)) = parts.pop() {
        let shape = truth.kind.of_rows(rows[from..to].iter().map(|&tokens| RowFacts { tokens }));
        let thrift = if elastic && trimmed { 0.85 } else { 1.0 };
        let needed = truth.peak(shape).scale(error * thrift);
        time += truth.time(shape).scale(0.95 + 0.1 * rng.unit());
        if needed <= ceiling.min(device) {
            peak = peak.max(needed);
            ladder.part_done();
            continue;
        }
        let some = if evicted < evictable.len() { Evictable::Some } else { Evictable::None };
        match ladder.shortfall((to - from) as u32, some) {
            Rung::TrimAndRetry => parts.push((from, to, true)),
            Rung::Halve => {
                let middle = from + (to - from) / 2;
                parts.push((middle, to, false));
                parts.push((from, middle, false));
            }
            Rung::Evict => {
                let freed = evictable[evicted];
                (ceiling, device, evicted) = (ceiling + freed, device + freed, evicted + 1);
                parts.push((from, to, true));
            }
            // What it did not get is no peak.
            Rung::Refuse => refused.extend(from..to),
        }
    }
    refused.sort_unstable();
    let outcome = match (fails, refused.len()) {
        (true, _) => Outcome::Faulted,
        (false, count) if count > 0 && count == rows.len() => Outcome::OutOfMemory,
        (false, _) => Outcome::Done,
    };
    Ran { observed: Observed { peak, reach: peak, time, rungs: ladder.used(), outcome }, refused, evicted }
}

/// Runs a probe: whole or not at all.
pub(crate) fn probe(truth: &Truth, shape: Shape, conditions: Conditions) -> Observed {
    let needed = truth.peak(shape).scale(conditions.error);
    let outcome = if conditions.fails {
        Outcome::Faulted
    } else if needed <= conditions.ceiling.min(conditions.device) {
        Outcome::Done
    } else {
        Outcome::OutOfMemory
    };
    Observed { peak: needed, reach: needed, time: truth.time(shape), rungs: Default::default(), outcome }
}
