//! How large a batch may be: the smallest of the bounds, by name.

use super::draft::{Draft, Size, alone};
use super::settings::Batching;
use super::step::Reason;
use crate::memory::{Drift, Profile, ShapeKind};
use crate::units::{Bytes, Micros, Timestamp};

/// Everything that a batch is held against.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds<'a> {
    pub(super) batching: Batching,
    pub(super) profile: &'a Profile,
    /// What predicted peaks are multiplied with.
    pub(super) drift: &'a Drift,
    /// Bytes that a step may have.
    pub(super) headroom: Bytes,
    /// When the step can begin.
    pub(super) starts: Timestamp,
    pub(super) target_latency: Option<Micros>,
    /// The batch beyond which throughput gains nothing; `None`: more than that waits, so throughput matters.
    pub(super) knee: Option<u32>,
}

impl Bounds<'_> {
    /// An upper bound on the batch (rows or tokens) around a seed of `tokens`: more need not be looked at.
    pub(super) fn batch_max(&self, kind: ShapeKind, tokens: u32) -> u32 {
        if let Batching::Fixed(rows) = self.batching {
            return match kind {
                ShapeKind::Padded => rows,
                ShapeKind::Ragged | ShapeKind::Generate => rows.saturating_mul(self.profile.axes().extent.max),
            };
        }
        let (_, extent) = alone(kind, tokens).position();
        let fits = self.drift.within(self.headroom);
        let within = self.target_latency.unwrap_or(Micros::MAX);
        let largest = self.profile.largest_batch(extent, fits, within).map_or(0, |largest| largest.batch);
        largest.min(self.knee.unwrap_or(u32::MAX))
    }

    /// The longest prefix of the draft that keeps every bound, and which bound ended it. The first pick is kept even
    /// where it takes longer than it should: it does not get faster by waiting.
    pub(super) fn cut(&self, draft: &Draft) -> (usize, Reason) {
        let Some(mut reason) = self.broken(draft, draft.size(draft.len())) else {
            return (draft.len(), Reason::Queue);
        };
        // Invariant: `good` picks keep the bounds, `bad` picks break `reason`. Bounds are monotone over prefixes.
        let (mut good, mut bad) = (1, draft.len());
        while bad - good > 1 {
            let middle = good + (bad - good) / 2;
            match self.broken(draft, draft.size(middle)) {
                Some(found) => (bad, reason) = (middle, found),
                None => good = middle,
            }
        }
        (good, reason)
    }

    fn broken(&self, draft: &Draft, size: Size) -> Option<Reason> {
        let shape = draft.shape(size);
        if let Batching::Fixed(rows) = self.batching {
            // Beyond the envelope the model itself may not be able to.
            let too_large = shape.tokens() > u64::from(self.profile.axes().step_tokens_max) && size.rows > 1;
            return (size.rows > rows || too_large).then_some(Reason::Limit);
        }
        let (Some(peak), Some(time)) = (self.profile.predicted(shape), self.profile.time(shape)) else {
            return Some(Reason::Limit);
        };
        // A deadline of `NEVER` is so far off that it bounds nothing.
        let within = self.target_latency.unwrap_or(Micros::MAX).min(size.deadline.since(self.starts));
        if self.drift.on(peak) > self.headroom {
            Some(Reason::Memory)
        } else if time > within {
            Some(Reason::Latency)
        } else {
            self.knee.is_some_and(|knee| shape.position().0 > knee).then_some(Reason::Knee)
        }
    }
}
