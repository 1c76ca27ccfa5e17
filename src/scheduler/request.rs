//! An accepted request until it is answered.

use std::collections::BTreeMap;

use super::Waiting;
use crate::admission::Occupancy;
use crate::units::{Bytes, Timestamp};

/// Where a row is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowState {
    /// In its lane's queue.
    Waiting,
    /// In the step that runs.
    InFlight,
    /// Its result is with the engine.
    Done,
}

/// The smallest step of a request did not fit, and by how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Blocked {
    /// When that was first seen.
    pub(super) since: Timestamp,
    /// When it was last looked at.
    pub(super) seen: Timestamp,
    /// Nothing is known about what it needs yet: it waits for a measurement.
    pub(super) unmeasured: bool,
    /// Bytes that it needs.
    pub(super) needed: Bytes,
    /// Bytes that there were when it was last tried.
    pub(super) available: Bytes,
}

/// The device had no memory for a row although the books had said so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Denied {
    /// When that happened first.
    pub(super) since: Timestamp,
    /// How often it has happened.
    pub(super) times: u32,
}

/// An accepted request. Invariant: `waiting`, `in_flight` and the rows that are done sum to `facts.rows.len()`.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) facts: Waiting,
    rows: Vec<RowState>,
    waiting: u32,
    in_flight: u32,
    /// Set while its oldest waiting row does not fit.
    pub(super) blocked: Option<Blocked>,
    /// Its rows without a result for which the device had no memory, by index.
    pub(super) denied: BTreeMap<u32, Denied>,
    /// While it is held back because of them: until when.
    pub(super) held_until: Option<Timestamp>,
    /// When it gives up waiting for its model to be loaded, if it came before that.
    pub(super) load_by: Option<Timestamp>,
}

impl Request {
    pub(super) fn new(facts: Waiting) -> Self {
        let rows = vec![RowState::Waiting; facts.rows.len()];
        Request {
            waiting: rows.len() as u32,
            in_flight: 0,
            rows,
            facts,
            blocked: None,
            denied: BTreeMap::new(),
            held_until: None,
            load_by: None,
        }
    }

    /// Its rows that wait, in order: index and tokens.
    pub(super) fn waiting_rows(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        (0u32..)
            .zip(self.rows.iter().zip(&self.facts.rows))
            .filter(|(_, (state, _))| **state == RowState::Waiting)
            .map(|(index, (_, facts))| (index, facts.tokens))
    }

    /// How many of its rows wait.
    pub(super) fn waiting(&self) -> u32 {
        self.waiting
    }

    /// How many of its rows are in the step that runs.
    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Whether every row has its result.
    pub(super) fn is_done(&self) -> bool {
        self.waiting == 0 && self.in_flight == 0
    }

    /// The moment after which its answer is of no use.
    pub(super) fn deadline(&self) -> Timestamp {
        self.facts.deadline.unwrap_or(Timestamp::NEVER)
    }

    /// Row `index`, which waits, goes into a step.
    pub(super) fn start(&mut self, index: u32) {
        let row = &mut self.rows[index as usize];
        assert_eq!(*row, RowState::Waiting, "a row is in one step only");
        *row = RowState::InFlight;
        self.waiting -= 1;
        self.in_flight += 1;
    }

    /// Row `index`, which was in a step, has its result.
    pub(super) fn finish(&mut self, index: u32) {
        let row = &mut self.rows[index as usize];
        assert_eq!(*row, RowState::InFlight, "a row finishes once");
        *row = RowState::Done;
        self.in_flight -= 1;
        self.denied.remove(&index);
    }

    /// Row `index`, which was in a step, has no result and waits again.
    pub(super) fn wait_again(&mut self, index: u32) {
        let row = &mut self.rows[index as usize];
        assert_eq!(*row, RowState::InFlight, "only what was in a step waits again");
        *row = RowState::Waiting;
        self.in_flight -= 1;
        self.waiting += 1;
    }

    /// What it takes of the queue's limits now.
    pub(super) fn occupancy(&self) -> Occupancy {
        let tokens = self.waiting_rows().map(|(_, tokens)| u64::from(tokens)).sum();
        Occupancy { rows: u64::from(self.waiting), tokens, host_bytes: self.facts.host_bytes }
    }
}
