//! Forming a batch around its seed.

use super::bounds::Bounds;
use super::draft::{Draft, Pick, Wanted, alone};
use super::lane::{Class, Lane};
use super::queue::Requests;
use super::search::Seed;
use super::settings::Settings;
use super::step::Reason;
use super::waiting::Priority;
use crate::admission::Occupancy;
use crate::memory::{Shape, ShapeKind};
use crate::units::{Bytes, Timestamp};

/// A batch that is decided, but for its lease.
pub(super) struct Batch {
    pub(super) picks: Vec<Pick>,
    pub(super) shape: Shape,
    pub(super) reason: Reason,
    /// The earliest of its rows' deadlines.
    pub(super) deadline: Timestamp,
}

/// All that a batch is formed from.
pub(super) struct Forming<'a> {
    pub(super) lane: &'a Lane,
    pub(super) requests: &'a Requests,
    pub(super) settings: &'a Settings,
    /// When the step can begin.
    pub(super) starts: Timestamp,
    /// Bytes that the step may have.
    pub(super) headroom: Bytes,
    /// Longer rows do not fit, even alone.
    pub(super) tokens_max: u32,
}

impl Forming<'_> {
    /// The batch around a seed: its own class first, then the others of the lane, cut to the bounds. `None` for a lane
    /// without a profile, which has no seed.
    pub(super) fn around(&self, seed: &Seed, priority: Priority) -> Option<Batch> {
        let kind = self.lane.settings.kind;
        let bounds = Bounds {
            batching: self.settings.batching,
            profile: self.lane.profile.as_ref()?,
            drift: &self.lane.drift,
            headroom: self.headroom,
            starts: self.starts,
            target_latency: self.lane.settings.target_latency,
            knee: self.knee(seed),
        };
        let wanted = Wanted {
            tokens_max: self.tokens_max,
            deadline_min: self.starts + seed.time,
            batch_max: bounds.batch_max(kind, seed.row.tokens),
        };
        let mut draft = Draft::new(kind, self.settings.padding_max, Pick { row: seed.row, class: priority });
        let others = self.lane.waiting_classes().filter(|&class| class != priority);
        for class in std::iter::once(priority).chain(others) {
            let Class { queue, overtaking, .. } = self.lane.class(class);
            draft.extend(class, queue, overtaking, self.requests, &wanted);
        }
        let (count, reason) = bounds.cut(&draft);
        let size = draft.size(count);
        let picks = draft.picks(count).to_vec();
        Some(Batch { picks, shape: draft.shape(size), reason, deadline: size.deadline })
    }

    /// The batch beyond which a larger one only adds latency; where more than another such batch would be left waiting, the
    /// one with the most throughput.
    fn knee(&self, seed: &Seed) -> Option<u32> {
        let kind = self.lane.settings.kind;
        let (smallest, extent) = alone(kind, seed.row.tokens).position();
        let held = self.lane.waiting_classes().flat_map(|class| self.lane.class(class).queue.held());
        let held = held.map(|id| self.requests[&id].occupancy()).fold(Occupancy::default(), Occupancy::plus);
        let all = self.lane.occupancy;
        let waiting = match kind {
            ShapeKind::Padded => all.rows.saturating_sub(held.rows),
            ShapeKind::Ragged | ShapeKind::Generate => all.tokens.saturating_sub(held.tokens),
        };
        let profile = self.lane.profile.as_ref()?;
        let fastest = profile.fastest(extent)?;
        // Finding the knee takes a look at every bend of the profile, and it lies below.
        let near = waiting <= 2 * u64::from(fastest);
        let knee = near.then(|| profile.knee(extent)).flatten().filter(|knee| waiting <= 2 * u64::from(*knee));
        Some(knee.unwrap_or(fastest).max(smallest))
    }
}
