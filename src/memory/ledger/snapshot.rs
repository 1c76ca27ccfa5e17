//! The books as data, for printing.

use super::{DeviceBooks, Headroom, Ledger, Residence};
use crate::memory::{Budget, Reading};
use crate::units::{Bytes, ModelId};

/// One model's line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelBooks {
    /// The model.
    pub model: ModelId,
    /// Measured bytes of its weights; zero when it is not resident.
    pub weights: Bytes,
    /// Set aside for a load under way.
    pub loading: Bytes,
    /// KV cache.
    pub kv: Bytes,
    /// Its budget.
    pub budget: Budget,
    /// What it has above its limit.
    pub overage: Bytes,
    /// Never evicted.
    pub pinned: bool,
    /// What a step of it could use now.
    pub headroom: Headroom,
    /// Largest peak of its steps since it was loaded.
    pub step_peak: Bytes,
}

/// All books of a device at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerSnapshot {
    /// What the ledger started from.
    pub books: DeviceBooks,
    /// The reading that it rests on.
    pub reading: Reading,
    /// The largest ceiling in force.
    pub leased: Bytes,
    /// What a step of a model without a limit of its own could use now.
    pub headroom: Bytes,
    /// One for each registered model, in order of id.
    pub models: Vec<ModelBooks>,
}

impl Ledger {
    /// The books, now.
    pub fn snapshot(&self, reading: &Reading) -> LedgerSnapshot {
        let line = |(&model, account): (&ModelId, &super::Account)| {
            let (weights, loading) = match account.residence {
                Residence::Absent => (Bytes::ZERO, Bytes::ZERO),
                Residence::Loading { claim, .. } => (Bytes::ZERO, claim),
                Residence::Resident { weights } => (weights, Bytes::ZERO),
            };
            ModelBooks {
                model,
                weights,
                loading,
                kv: account.kv,
                budget: account.budget,
                overage: self.overage(model),
                pinned: account.pinned,
                headroom: self.headroom(model, reading),
                step_peak: account.peak,
            }
        };
        let budget = self.books.available().saturating_sub(reading.library).saturating_sub(self.held());
        LedgerSnapshot {
            books: self.books,
            reading: *reading,
            leased: self.leased(),
            headroom: budget.min(self.workspace_on_device(reading, Bytes::ZERO, Bytes::ZERO)),
            models: self.accounts.iter().map(line).collect(),
        }
    }
}
