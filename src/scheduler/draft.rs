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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::Waiting;
    use crate::scheduler::request::Request;
    use crate::units::{Bytes, ModelId, RequestId, StepId};

    const ANY: Wanted = Wanted { tokens_max: u32::MAX, deadline_min: Timestamp::START, batch_max: u32::MAX };

    /// Rows of a draft around the oldest of single-row requests of these lengths, as positions in the list.
    fn draft_of(kind: ShapeKind, lengths: &[u32], overtaking: &Overtaking, wanted: &Wanted) -> Vec<u64> {
        let (mut queue, mut requests) = (Queue::default(), Requests::new());
        for (id, &tokens) in (0u64..).zip(lengths) {
            let facts = Waiting {
                id: RequestId::new(id),
                model: ModelId::new(0),
                rows: vec![RowFacts { tokens }],
                host_bytes: Bytes::ZERO,
                arrival: Timestamp::START,
                // Every fifth request is in a hurry.
                deadline: (id % 5 == 4).then_some(Timestamp::new(100)),
                priority: Priority::Normal,
            };
            let request = Request::new(facts);
            queue.push(&request);
            requests.insert(request.facts.id, request);
        }
        queue.fill_window(&requests, usize::MAX);
        let row = Row { request: RequestId::new(0), index: 0, tokens: lengths[0], deadline: Timestamp::NEVER };
        let mut draft = Draft::new(kind, 1.2, Pick { row, class: Priority::Normal });
        draft.extend(Priority::Normal, &queue, overtaking, &requests, wanted);
        draft.picks(draft.len()).iter().map(|pick| pick.row.request.get()).collect()
    }

    #[test]
    fn padded_rows_are_taken_by_length_within_the_waste_bound() {
        let none = Overtaking::new(100);
        let check = |lengths: &[u32], expected: &[u64]| {
            assert_eq!(draft_of(ShapeKind::Padded, lengths, &none, &ANY), expected, "{lengths:?}");
        };
        check(&[10], &[0]);
        check(&[10, 10, 10], &[0, 1, 2]);
        check(&[100, 400, 90, 110, 100], &[0, 4, 2, 3]);
        // 2 x 60 of 110 real tokens is within 1.2, 3 x 60 of 145 is not.
        check(&[50, 60, 35], &[0, 1]);
        // 120 / 100 for two rows, exactly at the bound: (2 * 60) / (40 + 60).
        check(&[60, 40], &[0, 1]);
        check(&[60, 39], &[0]);
    }

    #[test]
    fn ragged_rows_are_taken_by_age() {
        let none = Overtaking::new(100);
        assert_eq!(draft_of(ShapeKind::Ragged, &[10, 500, 10, 3], &none, &ANY), [0, 1, 2, 3]);
        let wanted = Wanted { batch_max: 500, ..ANY };
        // One more than the bound, so that cutting can name it.
        assert_eq!(draft_of(ShapeKind::Ragged, &[10, 500, 10, 3], &none, &wanted), [0, 1]);
    }

    #[test]
    fn what_is_not_wanted_is_passed_over() {
        let none = Overtaking::new(100);
        let lengths = [100, 101, 99, 100, 100, 102];
        let check = |wanted: Wanted, expected: &[u64]| {
            assert_eq!(draft_of(ShapeKind::Padded, &lengths, &none, &wanted), expected, "{wanted:?}");
        };
        check(ANY, &[0, 3, 4, 2, 1, 5]);
        check(Wanted { tokens_max: 100, ..ANY }, &[0, 3, 4, 2]);
        check(Wanted { deadline_min: Timestamp::new(100), ..ANY }, &[0, 3, 4, 2, 1, 5]);
        check(Wanted { deadline_min: Timestamp::new(101), ..ANY }, &[0, 3, 2, 1, 5]);
        check(Wanted { batch_max: 2, ..ANY }, &[0, 3, 4]);
    }

    #[test]
    fn who_may_not_be_overtaken_comes_first_or_ends_the_batch() {
        let mut exhausted = Overtaking::new(1);
        // Everybody older than request 3 has been overtaken as often as may be.
        exhausted.record(StepId::new(0), RequestId::new(3));
        let check = |lengths: &[u32], expected: &[u64]| {
            assert_eq!(draft_of(ShapeKind::Padded, lengths, &exhausted, &ANY), expected, "{lengths:?}");
        };
        check(&[100, 110, 90, 100, 100], &[0, 1, 2, 3, 4]);
        // Request 2 does not go with the others: nobody younger passes it.
        check(&[100, 110, 20, 100, 100], &[0, 1]);
        check(&[100, 300, 100, 100, 100], &[0]);
    }
}
