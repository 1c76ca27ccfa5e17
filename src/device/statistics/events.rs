//! The recent past of a device: a ring of events.

use std::collections::VecDeque;

/// Events that are kept; older ones are dropped. At 100 bytes each, about 25 KiB a device.
pub(super) const EVENTS_MAX: usize = 256;

/// Something worth remembering. Steps that went as predicted are not among them: they would push everything else out.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A model was loaded.
    Loaded {
        /// Which.
        model: u32,
        /// What it holds.
        resident_bytes: u64,
    },
    /// A model could not be loaded.
    LoadFailed {
        /// Which.
        model: u32,
        /// Why.
        reason: String,
    },
    /// A model was unloaded or evicted.
    Unloaded {
        /// Which.
        model: u32,
        /// What is free now.
        released_bytes: u64,
        /// What stayed with libraries.
        left_bytes: u64,
    },
    /// Cached workspace went back to the system.
    Trimmed {
        /// How much.
        released_bytes: u64,
    },
    /// A step's peak was above its ceiling.
    Overrun {
        /// Whose.
        model: u32,
        /// Which step.
        step: u64,
        /// Its peak.
        peak_bytes: u64,
        /// Its ceiling.
        ceiling_bytes: u64,
    },
    /// A step climbed the ladder.
    Ladder {
        /// Whose.
        model: u32,
        /// Which step.
        step: u64,
        /// Trims.
        trims: u32,
        /// Halvings.
        halvings: u32,
        /// Evictions.
        evictions: u32,
        /// Rows refused.
        refusals: u32,
    },
    /// Rows of a step failed.
    Faulted {
        /// Whose.
        model: u32,
        /// Which step.
        step: u64,
        /// The first row's fault.
        reason: String,
    },
}

/// An event and when it was.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct PastEvent {
    /// Microseconds since the engine's start.
    pub at_us: u64,
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
}

/// The last [`EVENTS_MAX`] events.
#[derive(Debug, Default)]
pub(super) struct Ring {
    events: VecDeque<PastEvent>,
}

impl Ring {
    pub(super) fn push(&mut self, event: PastEvent) {
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    pub(super) fn oldest_first(&self) -> impl Iterator<Item = &PastEvent> {
        self.events.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_event_makes_room() {
        let mut ring = Ring::default();
        for at_us in 0..EVENTS_MAX as u64 + 3 {
            ring.push(PastEvent { at_us, event: Event::Trimmed { released_bytes: 0 } });
        }
        let kept: Vec<_> = ring.oldest_first().map(|event| event.at_us).collect();
        assert_eq!((kept.len(), kept[0]), (EVENTS_MAX, 3));
    }
}
