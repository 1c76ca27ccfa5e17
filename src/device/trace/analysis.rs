//! From events to a table of the peak: a pure function.

use std::collections::{BTreeMap, HashMap};

use super::recorder::{Change, Recording};
use crate::ops::label::Label;
use crate::units::{Bytes, Micros};

/// Where the memory of one step went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Most bytes alive at once.
    pub peak: Bytes,
    /// When they were, from the step's beginning.
    pub peak_at: Micros,
    /// Who held them, the largest first. Their bytes sum up to the peak.
    pub holders: Vec<Holder>,
    /// Bytes alive after every event, in order.
    pub timeline: Vec<Moment>,
    /// Blocks that the step allocated.
    pub blocks: u64,
    /// Events that the recorder had no room for: the trace ends early where this is not 0.
    pub missed: u64,
}

/// What one operation of one layer held at the peak.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The layer, such as `layer 3`; `(outside)` where there was none.
    pub layer: String,
    /// The operation whose result or scratch it is; `(other)` for what a layer allocated between its operations.
    pub operation: String,
    /// Shape of the operation's result, such as `32 x 12 x 128 x 128`; empty where none was said.
    pub shape: String,
    /// Bytes.
    pub bytes: Bytes,
    /// Blocks that they are made of.
    pub blocks: u64,
}

/// Bytes alive at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// From the step's beginning.
    pub at: Micros,
    /// Bytes alive.
    pub live: Bytes,
}

impl Trace {
    /// Reads a recording.
    pub fn of(recording: &Recording) -> Trace {
        let timeline = timeline(recording);
        // The first of equal peaks: what led to it is nearest.
        let peak = timeline.iter().map(|moment| moment.live).max().unwrap_or(Bytes::ZERO);
        let position = timeline.iter().position(|moment| moment.live == peak);
        let peak_at = position.map_or(Micros::ZERO, |position| timeline[position].at);
        let holders = position.map_or_else(Vec::new, |position| holders(recording, position));
        Trace { peak, peak_at, holders, timeline, blocks: recording.blocks(), missed: recording.missed }
    }
}

/// The blocks alive while events go by.
#[derive(Default)]
struct Alive {
    blocks: HashMap<usize, (u64, Label)>,
    bytes: u64,
}

impl Alive {
    fn apply(&mut self, block: usize, change: Change) {
        let before = match change {
            Change::Allocated { bytes, label } => {
                self.bytes += bytes;
                // An address that is handed out again was freed, even if that was not seen.
                self.blocks.insert(block, (bytes, label))
            }
            Change::Freed => self.blocks.remove(&block),
        };
        self.bytes -= before.map_or(0, |(bytes, _)| bytes);
    }
}

fn timeline(recording: &Recording) -> Vec<Moment> {
    let mut alive = Alive::default();
    let moment = |event: &super::recorder::Event| {
        alive.apply(event.block, event.change);
        Moment { at: Micros::new(event.at), live: Bytes::new(alive.bytes) }
    };
    recording.events.iter().map(moment).collect()
}

/// Who holds what after the event at `position`.
fn holders(recording: &Recording, position: usize) -> Vec<Holder> {
    let mut alive = Alive::default();
    for event in &recording.events[..=position] {
        alive.apply(event.block, event.change);
    }
    let mut sums: BTreeMap<Label, (u64, u64)> = BTreeMap::new();
    for (bytes, label) in alive.blocks.into_values() {
        let (sum, blocks) = sums.entry(label).or_default();
        (*sum, *blocks) = (*sum + bytes, *blocks + 1);
    }
    let mut holders: Vec<Holder> =
        sums.into_iter().map(|(label, (bytes, blocks))| holder(label, Bytes::new(bytes), blocks)).collect();
    // Stable: of equal ones the earlier label stays first.
    holders.sort_by_key(|holder| std::cmp::Reverse(holder.bytes));
    holders
}

fn holder(label: Label, bytes: Bytes, blocks: u64) -> Holder {
    let Label { layer, index, operation, shape } = label;
    let layer = match (layer, index) {
        ("", _) => "(outside)".to_owned(),
        (name, Some(index)) => format!("{name} {index}"),
        (name, None) => name.to_owned(),
    };
    let operation = if operation.is_empty() { "(other)" } else { operation }.to_owned();
    let sizes: Vec<String> = shape.iter().take_while(|size| **size != 0).map(u32::to_string).collect();
    Holder { layer, operation, shape: sizes.join(" x "), bytes, blocks }
}

#[cfg(test)]
mod tests {
    use super::super::recorder::Event;
    use super::*;

    const SCORES: Label = Label { layer: "layer", index: Some(1), operation: "scores", shape: [2, 3, 0, 0] };
    const OTHER: Label = Label { layer: "layer", index: Some(1), operation: "", shape: [0; 4] };

    /// A block, and what was allocated for it; `None` where it is freed.
    type Step = (usize, Option<(u64, Label)>);

    fn recording(steps: &[Step]) -> Recording {
        let event = |(at, &(block, allocated)): (usize, &Step)| Event {
            at: 10 * at as u64,
            block,
            change: allocated.map_or(Change::Freed, |(bytes, label)| Change::Allocated { bytes, label }),
        };
        Recording { events: steps.iter().enumerate().map(event).collect(), missed: 0 }
    }

    fn rows(trace: &Trace) -> Vec<(&str, &str, &str, u64, u64)> {
        fn row(holder: &Holder) -> (&str, &str, &str, u64, u64) {
            let Holder { layer, operation, shape, bytes, blocks } = holder;
            (layer, operation, shape, bytes.get(), *blocks)
        }
        trace.holders.iter().map(row).collect()
    }

    #[test]
    fn the_table_is_what_is_alive_at_the_peak() {
        let trace = Trace::of(&recording(&[
            (1, Some((100, Label::NONE))),
            (2, Some((400, SCORES))),
            (3, Some((30, OTHER))),
            (3, None),
            (4, Some((500, SCORES))),
            (1, None),
            (5, Some((99, OTHER))),
        ]));
        assert_eq!((trace.peak, trace.peak_at, trace.blocks), (Bytes::new(1000), Micros::new(40), 5));
        let expected = [("layer 1", "scores", "2 x 3", 900, 2), ("(outside)", "(other)", "", 100, 1)];
        assert_eq!(rows(&trace), expected);
        let live: Vec<u64> = trace.timeline.iter().map(|moment| moment.live.get()).collect();
        assert_eq!(live, [100, 500, 530, 500, 1000, 900, 999]);
    }

    #[test]
    fn of_equal_peaks_the_first_counts() {
        let trace = Trace::of(&recording(&[(1, Some((7, OTHER))), (1, None), (2, Some((7, SCORES)))]));
        assert_eq!(trace.peak_at, Micros::ZERO);
        assert_eq!(rows(&trace), [("layer 1", "(other)", "", 7, 1)]);
    }

    #[test]
    fn blocks_from_before_and_frees_that_were_missed_do_no_harm() {
        let trace = Trace::of(&recording(&[(9, None), (1, Some((5, SCORES))), (1, Some((6, OTHER)))]));
        assert_eq!(trace.peak, Bytes::new(6));
        assert_eq!(rows(&trace), [("layer 1", "(other)", "", 6, 1)]);
    }

    #[test]
    fn nothing_recorded_is_an_empty_trace() {
        let trace = Trace::of(&Recording::default());
        assert_eq!((trace.peak, trace.holders.len(), trace.timeline.len()), (Bytes::ZERO, 0, 0));
    }
}
