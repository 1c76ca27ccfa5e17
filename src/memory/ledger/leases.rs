//! Headroom and leases: what a step may use.

use super::{Ledger, Residence};
use crate::memory::{Lease, Observed, Outcome, Reading};
use crate::units::{Bytes, ModelId};

/// What bounds a headroom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bound {
    /// The model's own limit.
    Limit,
    /// The server's budget, less what all models hold.
    Budget,
    /// What the device has free now.
    Device,
}

/// What a step of a model may use now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headroom {
    /// Bytes of workspace and KV growth.
    pub bytes: Bytes,
    /// What keeps it from being more.
    pub bound: Bound,
}

/// A step does not fit now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{needed} are needed, {} can be had", .headroom.bytes)]
pub struct Shortfall {
    /// Predicted peak and KV growth.
    pub needed: Bytes,
    /// What there is.
    pub headroom: Headroom,
}

/// A lease that is not returned yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct InForce {
    pub(super) model: ModelId,
    pub(super) predicted: Bytes,
    pub(super) ceiling: Bytes,
    /// The model's limit when it was given: a lower one comes into force with the next lease.
    pub(super) limit: Bytes,
    /// Library scratch when it was given.
    pub(super) library: Bytes,
    pub(super) turn: u64,
}

impl Ledger {
    /// What the next step of a model may use: the least of what its limit, the budget and the device leave. All of the
    /// reserved workspace counts as free, since steps run one after another; so do guarantees that no weights use yet,
    /// since workspace is back before a load begins. Nothing for a model that is not resident.
    pub fn headroom(&self, model: ModelId, reading: &Reading) -> Headroom {
        let account = self.accounts.get(&model).filter(|account| account.is_resident());
        let Some(account) = account else { return Headroom { bytes: Bytes::ZERO, bound: Bound::Budget } };
        let loading = |residence| match residence {
            Residence::Loading { claim, .. } => claim,
            Residence::Absent | Residence::Resident { .. } => Bytes::ZERO,
        };
        // A load under way may or may not show in the reading yet; that it does not is the safe guess.
        let loads: Bytes = self.accounts.values().map(|account| loading(account.residence)).sum();
        let budget = self.books.available().saturating_sub(reading.library).saturating_sub(self.held());
        let bounds = [
            Headroom { bytes: account.budget.limit.saturating_sub(account.held()), bound: Bound::Limit },
            Headroom { bytes: budget, bound: Bound::Budget },
            Headroom { bytes: self.workspace_on_device(reading, loads, account.least_workspace), bound: Bound::Device },
        ];
        let least = bounds.into_iter().min_by_key(|headroom| headroom.bytes).expect("there are three");
        // What the device takes for a step counts, not what the step uses of it.
        Headroom { bytes: self.books.terms.usable(least.bytes), ..least }
    }

    /// The most that a step of this resident model could ever be given: with every other model evicted that may be, and
    /// no neighbour on the device. A step that needs more can be refused for good.
    pub fn headroom_ever(&self, model: ModelId) -> Bytes {
        let Some(account) = self.accounts.get(&model) else { return Bytes::ZERO };
        let of_others = |(&other, account): (&ModelId, &super::Account)| {
            if other == model || !account.pinned { Bytes::ZERO } else { account.held() }
        };
        let pinned: Bytes = self.accounts.iter().map(of_others).sum();
        let budget = self.books.available().saturating_sub(self.library).saturating_sub(pinned);
        let held = account.held();
        self.books.terms.usable(budget.saturating_sub(held).min(account.budget.limit.saturating_sub(held)))
    }

    /// Gives a step its memory: the ceiling is all that it could have now, so that a step that needs a little more than
    /// predicted still gets by.
    ///
    /// # Errors
    /// When `predicted + kv` is above the headroom. Nothing has changed then.
    pub fn lease(
        &mut self,
        model: ModelId,
        predicted: Bytes,
        kv: Bytes,
        reading: &Reading,
    ) -> Result<Lease, Shortfall> {
        let (needed, headroom) = (predicted + kv, self.headroom(model, reading));
        let account = self.accounts.get_mut(&model).filter(|account| account.is_resident());
        let Some(account) = account.filter(|_| needed <= headroom.bytes) else {
            return Err(Shortfall { needed, headroom });
        };
        account.kv += kv;
        let limit = account.budget.limit;
        let (ceiling, turn) = (headroom.bytes.saturating_sub(kv), self.turn());
        self.library = reading.library;
        self.leases.push(InForce { model, predicted, ceiling, limit, library: reading.library, turn });
        Ok(Lease { model, predicted, ceiling, kv, leftovers: reading.leftovers })
    }

    /// Takes a lease back when its step has ended, however it ended.
    pub fn give_back(&mut self, lease: Lease, seen: &Observed) {
        let Lease { model, predicted, ceiling, kv, leftovers: _ } = lease;
        let same = |other: &InForce| (other.model, other.predicted, other.ceiling) == (model, predicted, ceiling);
        if let Some(index) = self.leases.iter().position(same) {
            self.leases.remove(index);
        }
        self.demand.used(seen.reach.max(seen.peak));
        let Some(account) = self.accounts.get_mut(&model) else { return };
        account.peak = account.peak.max(seen.peak);
        match seen.outcome {
            Outcome::Done => {}
            // Its tokens were never made: the blocks went back with the step.
            Outcome::OutOfMemory | Outcome::Faulted => account.kv = account.kv.saturating_sub(kv),
        }
    }

    /// The largest ceiling in force: the line of the workspace in the books.
    pub fn leased(&self) -> Bytes {
        self.leases.iter().map(|lease| lease.ceiling).max().unwrap_or(Bytes::ZERO)
    }

    /// The largest ceiling in force of one model.
    pub(super) fn ceiling_of(&self, model: ModelId) -> Bytes {
        let own = self.leases.iter().filter(|lease| lease.model == model);
        own.map(|lease| lease.ceiling).max().unwrap_or(Bytes::ZERO)
    }
}
