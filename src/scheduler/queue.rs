//! The rows that wait in one class of a lane, ordered by age and by length.

use std::collections::{BTreeMap, BTreeSet, btree_map};
use std::iter::{FlatMap, Peekable, Rev};
use std::ops::Bound;

use super::request::Request;
use crate::units::{RequestId, Timestamp};

/// All accepted requests of the scheduler; rows are looked up here.
pub(super) type Requests = BTreeMap<RequestId, Request>;

/// One row that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) request: RequestId,
    pub(super) index: u32,
    pub(super) tokens: u32,
    pub(super) deadline: Timestamp,
}

/// Rows of one length: (request, index) to deadline, the oldest first.
type Bucket = BTreeMap<(RequestId, u32), Timestamp>;

/// The waiting requests of one class.
///
/// Only the oldest rows, the *window*, are ordered by length: a batch is formed of rows that are about equally old, and
/// forming one costs the same however deep the queue is. Whole requests enter the window, in order of age.
#[derive(Debug, Default)]
pub(super) struct Queue {
    by_age: BTreeSet<RequestId>,
    /// Requests that wait and may not be chosen now. They are in neither of the orders.
    held: BTreeSet<RequestId>,
    by_length: BTreeMap<u32, Bucket>,
    window_rows: usize,
    /// Every waiting request up to this one is in the window, and none above.
    window_end: Option<RequestId>,
    rows: u64,
}

impl Queue {
    /// Adds a request, which is younger than all others here.
    pub(super) fn push(&mut self, request: &Request) {
        debug_assert!(self.by_age.last().is_none_or(|&last| last < request.facts.id), "ids grow with time");
        self.by_age.insert(request.facts.id);
        self.rows += u64::from(request.waiting());
    }

    /// Takes out all rows of a request that still wait.
    pub(super) fn remove(&mut self, request: &Request) {
        if self.withdraw(request) || self.held.remove(&request.facts.id) {
            self.rows -= u64::from(request.waiting());
        }
    }

    /// Keeps a request from being chosen until [`Queue::release`]; to be called before `returning` of its rows, which were
    /// in a step, wait again.
    pub(super) fn hold(&mut self, request: &Request, returning: u64) {
        self.withdraw(request);
        self.held.insert(request.facts.id);
        self.rows += returning;
    }

    /// Lets a request be chosen again, in its place by age.
    pub(super) fn release(&mut self, request: &Request) {
        let id = request.facts.id;
        if !self.held.remove(&id) {
            return;
        }
        self.by_age.insert(id);
        if self.in_window(id) {
            self.enter_window(request);
        }
    }

    /// Takes a request out of the orders, if it is in them.
    fn withdraw(&mut self, request: &Request) -> bool {
        let id = request.facts.id;
        let was_there = self.by_age.remove(&id);
        if was_there && self.in_window(id) {
            for (index, tokens) in request.waiting_rows() {
                self.leave_window(id, index, tokens);
            }
        }
        was_there
    }

    /// Takes out one row; `request` is its request, in which the row no longer waits.
    pub(super) fn take(&mut self, row: Row, request: &Request) {
        self.rows -= 1;
        if self.in_window(row.request) {
            self.leave_window(row.request, row.index, row.tokens);
        }
        if request.waiting() == 0 {
            self.by_age.remove(&row.request);
        }
    }

    /// Lets the oldest requests outside the window in until it holds `target` rows, or everything.
    pub(super) fn fill_window(&mut self, requests: &Requests, target: usize) {
        while self.window_rows < target {
            let next = match self.window_end {
                None => self.by_age.first(),
                Some(end) => self.by_age.range((Bound::Excluded(end), Bound::Unbounded)).next(),
            };
            let Some(&id) = next else { break };
            self.enter_window(&requests[&id]);
            self.window_end = Some(id);
        }
    }

    fn enter_window(&mut self, request: &Request) {
        for (index, tokens) in request.waiting_rows() {
            self.by_length.entry(tokens).or_default().insert((request.facts.id, index), request.deadline());
            self.window_rows += 1;
        }
    }

    /// Requests that may be chosen, the oldest first.
    pub(super) fn oldest_first(&self) -> impl Iterator<Item = RequestId> + '_ {
        self.by_age.iter().copied()
    }

    /// The oldest request that may be chosen.
    pub(super) fn oldest(&self) -> Option<RequestId> {
        self.by_age.first().copied()
    }

    /// The oldest request that waits, whether it may be chosen or not.
    pub(super) fn oldest_waiting(&self) -> Option<RequestId> {
        [self.by_age.first(), self.held.first()].into_iter().flatten().min().copied()
    }

    /// The rows of the window, those nearest `tokens` first.
    pub(super) fn nearest(&self, tokens: u32) -> Nearest<'_> {
        let longer = self.by_length.range(tokens..).flat_map(rows as RowsOf<'_>);
        let shorter = self.by_length.range(..tokens).rev().flat_map(rows as RowsOf<'_>);
        Nearest { tokens, longer: Some(longer.peekable()), shorter: Some(shorter.peekable()) }
    }

    /// Requests that wait and may not be chosen now.
    pub(super) fn held(&self) -> impl Iterator<Item = RequestId> + '_ {
        self.held.iter().copied()
    }

    /// Whether a request waits and may not be chosen now.
    pub(super) fn holds(&self, id: RequestId) -> bool {
        self.held.contains(&id)
    }

    /// Checks what can be seen from within.
    ///
    /// # Panics
    /// When it does not hold.
    pub(super) fn check(&self) {
        assert!(self.by_age.is_disjoint(&self.held), "a request is held back, or may be chosen");
        let rows: usize = self.by_length.values().map(BTreeMap::len).sum();
        assert_eq!(rows, self.window_rows, "the rows of the window are counted");
    }

    /// Rows that wait.
    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.by_age.is_empty() && self.held.is_empty()
    }

    fn in_window(&self, id: RequestId) -> bool {
        self.window_end.is_some_and(|end| id <= end)
    }

    fn leave_window(&mut self, id: RequestId, index: u32, tokens: u32) {
        let bucket = self.by_length.get_mut(&tokens).expect("a row of the window has a bucket");
        bucket.remove(&(id, index)).expect("a row of the window is in its bucket");
        if bucket.is_empty() {
            self.by_length.remove(&tokens);
        }
        self.window_rows -= 1;
    }
}

type RowsOf<'a> = fn((&'a u32, &'a Bucket)) -> RowsOfBucket<'a>;

/// The rows of one bucket, the oldest first.
struct RowsOfBucket<'a> {
    tokens: u32,
    rows: btree_map::Iter<'a, (RequestId, u32), Timestamp>,
}

fn rows<'a>((&tokens, bucket): (&'a u32, &'a Bucket)) -> RowsOfBucket<'a> {
    RowsOfBucket { tokens, rows: bucket.iter() }
}

impl Iterator for RowsOfBucket<'_> {
    type Item = Row;

    fn next(&mut self) -> Option<Row> {
        let (&(request, index), &deadline) = self.rows.next()?;
        Some(Row { request, index, tokens: self.tokens, deadline })
    }
}

type Longer<'a> = Peekable<FlatMap<btree_map::Range<'a, u32, Bucket>, RowsOfBucket<'a>, RowsOf<'a>>>;
type Shorter<'a> = Peekable<FlatMap<Rev<btree_map::Range<'a, u32, Bucket>>, RowsOfBucket<'a>, RowsOf<'a>>>;

/// Rows in the order of their distance from a length; of two equally near the shorter, of two equally long the older.
/// Either side can be given up while walking.
pub(super) struct Nearest<'a> {
    tokens: u32,
    longer: Option<Longer<'a>>,
    shorter: Option<Shorter<'a>>,
}

impl Nearest<'_> {
    /// Gives up the side that `row` came from: nothing farther away is wanted there.
    pub(super) fn give_up_side_of(&mut self, row: Row) {
        if row.tokens < self.tokens {
            self.shorter = None;
        } else {
            self.longer = None;
        }
    }
}

impl Iterator for Nearest<'_> {
    type Item = Row;

    fn next(&mut self) -> Option<Row> {
        let shorter = self.shorter.as_mut().and_then(|rows| rows.peek()).map(|row| self.tokens - row.tokens);
        let longer = self.longer.as_mut().and_then(|rows| rows.peek()).map(|row| row.tokens - self.tokens);
        match (shorter, longer) {
            (None, None) => None,
            (Some(below), Some(above)) if above < below => self.longer.as_mut()?.next(),
            (Some(_), _) => self.shorter.as_mut()?.next(),
            (None, Some(_)) => self.longer.as_mut()?.next(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::RowFacts;
    use crate::scheduler::{Priority, Waiting};
    use crate::units::{Bytes, ModelId};

    fn queue_of(requests: &[&[u32]], window: usize) -> (Queue, Requests) {
        let (mut queue, mut all) = (Queue::default(), Requests::new());
        for (id, lengths) in (0u64..).zip(requests) {
            let facts = Waiting {
                id: RequestId::new(id),
                model: ModelId::new(0),
                rows: lengths.iter().map(|&tokens| RowFacts { tokens }).collect(),
                host_bytes: Bytes::ZERO,
                arrival: Timestamp::START,
                deadline: None,
                priority: Priority::Normal,
            };
            let request = Request::new(facts);
            queue.push(&request);
            all.insert(request.facts.id, request);
        }
        queue.fill_window(&all, window);
        (queue, all)
    }

    fn walk(queue: &Queue, tokens: u32) -> Vec<(u64, u32, u32)> {
        queue.nearest(tokens).map(|row| (row.request.get(), row.index, row.tokens)).collect()
    }

    fn take(queue: &mut Queue, all: &mut Requests, row: Row) {
        let request = all.get_mut(&row.request).unwrap();
        request.start(row.index);
        queue.take(row, request);
    }

    #[test]
    fn rows_come_by_distance_then_shorter_then_older() {
        let (queue, _) = queue_of(&[&[10], &[12, 8], &[8], &[30], &[10]], usize::MAX);
        let expected = [(0, 0, 10), (4, 0, 10), (1, 1, 8), (2, 0, 8), (1, 0, 12), (3, 0, 30)];
        assert_eq!(walk(&queue, 10), expected);
        let mut nearest = queue.nearest(10);
        let short = nearest.find(|row| row.tokens == 8).unwrap();
        nearest.give_up_side_of(short);
        assert_eq!(nearest.map(|row| row.tokens).collect::<Vec<_>>(), [12, 30]);
    }

    #[test]
    fn whole_requests_enter_the_window_in_order_of_age() {
        let (mut queue, mut all) = queue_of(&[&[5], &[6, 7, 8], &[9], &[10]], 2);
        assert_eq!(walk(&queue, 1).len(), 4, "the second request enters whole");
        let row = queue.nearest(7).next().unwrap();
        take(&mut queue, &mut all, row);
        let row = queue.nearest(5).next().unwrap();
        take(&mut queue, &mut all, row);
        queue.fill_window(&all, 3);
        assert_eq!(walk(&queue, 1), [(1, 0, 6), (1, 2, 8), (2, 0, 9)]);
        assert_eq!((queue.rows(), queue.oldest_first().next()), (4, Some(RequestId::new(1))));
    }

    #[test]
    fn removing_works_inside_and_outside_the_window() {
        let (mut queue, mut all) = queue_of(&[&[5, 6], &[7], &[8, 9]], 1);
        // A row outside the window can be taken too: the rest of its request enters later.
        let outside = Row { request: RequestId::new(2), index: 0, tokens: 8, deadline: Timestamp::NEVER };
        take(&mut queue, &mut all, outside);
        queue.remove(&all[&RequestId::new(0)]);
        queue.remove(&all[&RequestId::new(0)]);
        queue.fill_window(&all, usize::MAX);
        assert_eq!(walk(&queue, 1), [(1, 0, 7), (2, 1, 9)]);
        queue.remove(&all[&RequestId::new(1)]);
        queue.remove(&all[&RequestId::new(2)]);
        assert!(queue.is_empty() && queue.rows() == 0 && walk(&queue, 1).is_empty());
    }
}
