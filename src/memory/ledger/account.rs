//! The account of one model.

use crate::memory::Budget;
use crate::units::Bytes;

/// What a model has on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Residence {
    /// Nothing.
    Absent,
    /// A load is under way that may take so much.
    Loading {
        /// Bytes set aside: resident and transient.
        claim: Bytes,
        /// Its place in the order of the device's work.
        turn: u64,
    },
    /// Its weights.
    Resident {
        /// Measured bytes.
        weights: Bytes,
    },
}

/// One model's line in the books.
#[derive(Clone, Copy, Debug)]
pub(super) struct Account {
    pub(super) budget: Budget,
    pub(super) pinned: bool,
    pub(super) residence: Residence,
    /// KV cache, exact; zero for models without one.
    pub(super) kv: Bytes,
    /// Workspace of its smallest useful step, as said at its load.
    pub(super) least_workspace: Bytes,
    /// The largest peak of its steps since it was loaded.
    pub(super) peak: Bytes,
}

impl Account {
    pub(super) fn new(budget: Budget, pinned: bool) -> Account {
        Account {
            budget,
            pinned,
            residence: Residence::Absent,
            kv: Bytes::ZERO,
            least_workspace: Bytes::ZERO,
            peak: Bytes::ZERO,
        }
    }

    /// Weights and KV cache, or what a load under way may take.
    pub(super) fn held(&self) -> Bytes {
        let weights = match self.residence {
            Residence::Absent => Bytes::ZERO,
            Residence::Loading { claim, .. } => claim,
            Residence::Resident { weights } => weights,
        };
        weights + self.kv
    }

    /// What it holds while the step of this turn runs: a load that comes later has not begun.
    pub(super) fn held_before(&self, turn: u64) -> Bytes {
        match self.residence {
            Residence::Loading { turn: load, .. } if load > turn => self.kv,
            _ => self.held(),
        }
    }

    /// What nobody else's weights may take: what it holds, and what it is guaranteed.
    pub(super) fn reserved(&self) -> Bytes {
        self.held().max(self.budget.guaranteed)
    }

    pub(super) fn is_resident(&self) -> bool {
        matches!(self.residence, Residence::Resident { .. })
    }
}
