//! Loading: does it fit, who has to go, and what it took in the end.

use super::{Account, FitLine, FitPlan, Ledger, Residence, fit_plan};
use crate::memory::Reading;
use crate::units::{Bytes, ModelId};

/// What loading a model takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadNeed {
    /// Bytes of its weights once it is loaded.
    pub resident: Bytes,
    /// Needed beside them while it loads: the largest tensor's conversion.
    pub transient: Bytes,
    /// Workspace of its smallest useful step. A model that could be loaded but never run is not loaded.
    pub least_workspace: Bytes,
}

impl LoadNeed {
    /// What it takes of the device while it loads: the lease of the load.
    pub fn claim(&self) -> Bytes {
        self.resident + self.transient
    }

    /// All that has to be there at once. The transient is gone before the first step.
    fn total(&self, least_workspace_of_others: Bytes) -> Bytes {
        self.resident + self.transient.max(self.least_workspace).max(least_workspace_of_others)
    }
}

/// Whether a model can be loaded now.
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadPlan {
    /// It can. Cached workspace may have to be returned first: the device's thread trims before it loads.
    Fits,
    /// It can, once these are unloaded: as few bytes as suffice, the least recently used first.
    Evict(Vec<ModelId>),
    /// It cannot, whoever is evicted.
    Refuse(FitPlan),
}

impl Ledger {
    /// Plans a load. `idle` are the models that could be evicted, the least recently used first; pinned ones and ones
    /// that are not resident are left alone even if they are named. Unknown models do not fit.
    ///
    /// A load respects what is guaranteed to others, loaded or not, and leaves room for the smallest step of every
    /// resident model.
    pub fn plan_load(&self, model: ModelId, need: LoadNeed, reading: &Reading, idle: &[ModelId]) -> LoadPlan {
        let need = LoadNeed { least_workspace: self.books.terms.taken(need.least_workspace), ..need };
        let Some(account) = self.accounts.get(&model) else { return self.refuse(model, need, reading, &[]) };
        if need.resident + account.kv + need.transient.max(need.least_workspace) > account.budget.limit {
            return self.refuse(model, need, reading, &[]);
        }
        let can_go = |id: &ModelId| {
            let other = self.accounts.get(id).filter(|other| other.is_resident() && !other.pinned);
            *id != model && other.is_some() && !self.leases.iter().any(|lease| lease.model == *id)
        };
        let candidates: Vec<ModelId> = idle.iter().copied().filter(can_go).collect();
        let mut gone: Vec<ModelId> = Vec::new();
        for candidate in candidates.iter().copied().map(Some).chain([None]) {
            if self.fits(model, need, reading, &gone) {
                return if gone.is_empty() { LoadPlan::Fits } else { LoadPlan::Evict(gone) };
            }
            gone.extend(candidate);
            if self.fits(model, need, reading, &gone) {
                self.spare(model, need, reading, &mut gone);
            }
        }
        self.refuse(model, need, reading, &candidates)
    }

    /// Takes out of the list whom the load can do without, the most recently used first.
    fn spare(&self, model: ModelId, need: LoadNeed, reading: &Reading, gone: &mut Vec<ModelId>) {
        for index in (0..gone.len()).rev() {
            let spared = gone.remove(index);
            if !self.fits(model, need, reading, gone) {
                gone.insert(index, spared);
            }
        }
    }

    fn fits(&self, model: ModelId, need: LoadNeed, reading: &Reading, gone: &[ModelId]) -> bool {
        self.load_needed(model, need, gone) <= self.load_room(model, reading, gone)
    }

    /// What a load needs when `gone` are gone.
    fn load_needed(&self, model: ModelId, need: LoadNeed, gone: &[ModelId]) -> Bytes {
        let others = self.accounts.iter().filter(|(id, _)| **id != model && !gone.contains(*id));
        let least = others.filter(|(_, other)| other.held() > Bytes::ZERO).map(|(_, other)| other.least_workspace);
        need.total(least.max().unwrap_or(Bytes::ZERO))
    }

    /// What a load can have when `gone` are gone: the less of what the budget and the device leave.
    fn load_room(&self, model: ModelId, reading: &Reading, gone: &[ModelId]) -> Bytes {
        let reserved = |(id, account): (&ModelId, &Account)| {
            if *id == model {
                Bytes::ZERO
            } else if gone.contains(id) {
                account.budget.guaranteed
            } else {
                account.reserved()
            }
        };
        let reserved: Bytes = self.accounts.iter().map(reserved).sum();
        let budget = self.books.available().saturating_sub(reading.library).saturating_sub(reserved);
        let freed: Bytes = gone.iter().filter_map(|id| self.accounts.get(id)).map(Account::held).sum();
        let loading = |(id, account): (&ModelId, &Account)| match account.residence {
            Residence::Loading { claim, .. } if *id != model => claim,
            _ => Bytes::ZERO,
        };
        let loads: Bytes = self.accounts.iter().map(loading).sum();
        let device = self.load_on_device(reading, freed).saturating_sub(loads);
        budget.min(device)
    }

    /// A refusal with the numbers: all that could be had, were every one of `candidates` evicted.
    fn refuse(&self, model: ModelId, need: LoadNeed, reading: &Reading, candidates: &[ModelId]) -> LoadPlan {
        let staying = self
            .accounts
            .iter()
            .filter(|(id, account)| **id != model && account.held() > Bytes::ZERO && !candidates.contains(*id));
        let line = |model, weights, transient, least, resident| FitLine {
            model,
            weights,
            transient,
            workspace_knee: None,
            workspace_least: Some(least),
            resident,
        };
        let own = line(model, need.resident, need.transient, need.least_workspace, false);
        let others = staying.map(|(id, other)| line(*id, other.held(), Bytes::ZERO, other.least_workspace, true));
        let lines: Vec<FitLine> = [own].into_iter().chain(others).collect();
        let held: Bytes = lines.iter().filter(|line| line.resident).map(|line| line.weights).sum();
        let room = self.load_room(model, reading, candidates);
        let limit = self.accounts.get(&model).map_or(Bytes::ZERO, |account| account.budget.limit);
        LoadPlan::Refuse(fit_plan(lines, room.min(limit) + held))
    }

    /// Books a load that begins, with all that it may take.
    pub fn loading(&mut self, model: ModelId, need: LoadNeed) {
        let (turn, least_workspace) = (self.turn(), self.books.terms.taken(need.least_workspace));
        if let Some(account) = self.accounts.get_mut(&model) {
            account.residence = Residence::Loading { claim: need.claim(), turn };
            account.least_workspace = least_workspace;
            account.peak = Bytes::ZERO;
        }
    }

    /// Books a load that is done, with the bytes that it really took.
    pub fn loaded(&mut self, model: ModelId, resident: Bytes) {
        if let Some(account) = self.accounts.get_mut(&model) {
            account.residence = Residence::Resident { weights: resident };
        }
    }

    /// Books a load that failed: whatever it had taken is back.
    pub fn load_failed(&mut self, model: ModelId) {
        self.unloaded(model);
    }

    /// Says what the smallest step of a model needs: it may be known only once it is measured.
    pub fn set_least_workspace(&mut self, model: ModelId, least: Bytes) {
        let least = self.books.terms.taken(least);
        if let Some(account) = self.accounts.get_mut(&model) {
            account.least_workspace = least;
        }
    }

    /// Whether the model's weights are booked as there.
    pub fn is_resident(&self, model: ModelId) -> bool {
        self.accounts.get(&model).is_some_and(Account::is_resident)
    }

    /// Books an unload that is done: its pools are destroyed, its bytes are back.
    pub fn unloaded(&mut self, model: ModelId) {
        if let Some(account) = self.accounts.get_mut(&model) {
            account.residence = Residence::Absent;
            account.kv = Bytes::ZERO;
        }
    }
}
