//! Which rows a batch would hold if the device had no bounds, in the order in which they are wanted.

use super::overtaking::Overtaking;
use super::queue::{Queue, Requests, Row};
use super::waiting::Priority;
use crate::memory::{RowFacts, Shape, ShapeKind};
use crate::units::Timestamp;

/// A row that a batch may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pick {
    pub(super) row: Row,
    pub(super) class: Priority,
}

/// How large the batch is with the first so many picks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) rows: u32,
    pub(super) tokens: u32,
    pub(super) longest: u32,
    /// The earliest deadline of them.
    pub(super) deadline: Timestamp,
}

/// What is asked of a row before it may be picked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    /// A longer row would not fit even alone.
    pub(super) tokens_max: u32,
    /// A row whose deadline is sooner would miss it even in the smallest step.
    pub(super) deadline_min: Timestamp,
    /// Picking stops when the batch, in rows or tokens as the profile counts, is larger than this.
    pub(super) batch_max: u32,
}

/// The picks so far. Invariant: `sizes[i]` is the size of `picks[..=i]`, so every prefix is a batch.
#[derive(Debug)]
pub(super) struct Draft {
    kind: ShapeKind,
    padding_max: f64,
    picks: Vec<Pick>,
    sizes: Vec<Size>,
}

impl Draft {
    /// A batch around `seed`, its first member.
    pub(super) fn new(kind: ShapeKind, padding_max: f64, seed: Pick) -> Self {
        let size = Size { rows: 1, tokens: seed.row.tokens, longest: seed.row.tokens, deadline: seed.row.deadline };
        Draft { kind, padding_max: padding_max.max(1.0), picks: vec![seed], sizes: vec![size] }
    }

    /// Adds rows of one class.
    ///
    /// Those who may not be overtaken any more come first, in order of age, and nobody younger while one of them is left
    /// out. Then padded batches take the rows nearest the seed's length, others simply the oldest.
    pub(super) fn extend(
        &mut self,
        class: Priority,
        queue: &Queue,
        overtaking: &Overtaking,
        requests: &Requests,
        wanted: &Wanted,
    ) {
        let mut taken_up_to = None;
        for id in queue.oldest_first() {
            if self.kind == ShapeKind::Padded && !overtaking.exhausted(id) {
                break;
            }
            let request = &requests[&id];
            for (index, tokens) in request.waiting_rows() {
                let row = Row { request: id, index, tokens, deadline: request.deadline() };
                if self.is_seed(row) || !wanted.admits(row) {
                    continue;
                }
                if self.is_full(wanted) || self.wastes(tokens) {
                    return;
                }
                self.push(Pick { row, class });
            }
            taken_up_to = Some(id);
        }
        if self.kind != ShapeKind::Padded {
            return;
        }
        let mut nearest = queue.nearest(self.picks[0].row.tokens);
        while let Some(row) = nearest.next() {
            if self.is_full(wanted) {
                return;
            }
            if row.tokens > wanted.tokens_max || self.wastes(row.tokens) {
                // All beyond it on its side are worse.
                nearest.give_up_side_of(row);
            } else if !self.is_seed(row) && wanted.admits(row) && taken_up_to.is_none_or(|end| row.request > end) {
                self.push(Pick { row, class });
            }
        }
    }

    /// How many picks there are; at least 1.
    pub(super) fn len(&self) -> usize {
        self.picks.len()
    }

    /// The first `count` picks.
    pub(super) fn picks(&self, count: usize) -> &[Pick] {
        &self.picks[..count]
    }

    /// The size of the first `count` picks, at least 1.
    pub(super) fn size(&self, count: usize) -> Size {
        self.sizes[count - 1]
    }

    /// The shape of a batch of that size.
    pub(super) fn shape(&self, size: Size) -> Shape {
        match self.kind {
            ShapeKind::Padded => Shape::Padded { rows: size.rows, length: size.longest },
            ShapeKind::Ragged => Shape::Ragged { tokens: size.tokens, longest: size.longest },
            ShapeKind::Generate => Shape::Generate { new_tokens: size.tokens, sequences: size.rows },
        }
    }

    fn push(&mut self, pick: Pick) {
        let (last, row) = (self.size(self.len()), pick.row);
        self.picks.push(pick);
        self.sizes.push(Size {
            rows: last.rows + 1,
            tokens: last.tokens.saturating_add(row.tokens),
            longest: last.longest.max(row.tokens),
            deadline: last.deadline.min(row.deadline),
        });
    }

    fn is_seed(&self, row: Row) -> bool {
        let seed = self.picks[0].row;
        (row.request, row.index) == (seed.request, seed.index)
    }

    fn is_full(&self, wanted: &Wanted) -> bool {
        self.shape(self.size(self.len())).position().0 > wanted.batch_max
    }

    /// Whether the batch with one more row of `tokens` would pad too much. For padded batches only.
    fn wastes(&self, tokens: u32) -> bool {
        if self.kind != ShapeKind::Padded {
            return false;
        }
        let size = self.size(self.len());
        let padded = f64::from(size.rows + 1) * f64::from(size.longest.max(tokens));
        padded > self.padding_max * (f64::from(size.tokens) + f64::from(tokens))
    }
}

impl Wanted {
    fn admits(&self, row: Row) -> bool {
        row.tokens <= self.tokens_max && row.deadline >= self.deadline_min
    }
}

/// The shape of a step over one row of `tokens`.
pub(super) fn alone(kind: ShapeKind, tokens: u32) -> Shape {
    kind.of_rows([RowFacts { tokens }])
}
