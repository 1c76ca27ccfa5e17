//! The recent allocations, for whoever has to find out what happened.

use std::collections::VecDeque;

use crate::device::Owner;

/// Events that are kept. A step of BERT-large makes about 2,200; at 40 bytes each this is 640 KiB, and only while
/// somebody asked for it.
const EVENTS_MAX: usize = 16_384;

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// A block was given out.
    Allocate,
    /// A block was taken back.
    Free,
    /// An allocation failed.
    Refuse,
}

/// One event. `number` counts all events since the start: what is missing between two was dropped for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocationEvent {
    /// Its number.
    pub number: u64,
    /// What.
    pub action: Action,
    /// For whom.
    pub owner: Owner,
    /// Bytes of the block.
    pub bytes: u64,
    /// What the owner had alive afterwards.
    pub live: u64,
}

/// The last events, while it is on.
#[derive(Debug, Default)]
pub(super) struct Ring {
    on: bool,
    next: u64,
    events: VecDeque<AllocationEvent>,
}

impl Ring {
    /// Starts or ends recording. Ending forgets everything.
    pub(super) fn set(&mut self, on: bool) {
        self.on = on;
        if !on {
            self.events = VecDeque::new();
        }
    }

    #[inline]
    pub(super) fn push(&mut self, action: Action, owner: impl FnOnce() -> Owner, bytes: u64, live: u64) {
        if !self.on {
            return;
        }
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(AllocationEvent { number: self.next, action, owner: owner(), bytes, live });
        self.next += 1;
    }

    pub(super) fn oldest_first(&self) -> impl Iterator<Item = &AllocationEvent> {
        self.events.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Kind;

    const OWNER: Owner = Owner { model: None, kind: Kind::Library };

    #[test]
    fn only_what_happens_while_it_is_on_is_kept_and_the_oldest_makes_room() {
        let mut ring = Ring::default();
        ring.push(Action::Allocate, || OWNER, 1, 1);
        ring.set(true);
        for bytes in 0..EVENTS_MAX as u64 + 2 {
            ring.push(Action::Free, || OWNER, bytes, 0);
        }
        let kept: Vec<_> = ring.oldest_first().map(|event| event.number).collect();
        assert_eq!((kept.len(), kept[0]), (EVENTS_MAX, 2));
        ring.set(false);
        assert_eq!(ring.oldest_first().count(), 0);
    }
}
