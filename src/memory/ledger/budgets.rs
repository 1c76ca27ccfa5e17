//! Budgets: which can be kept, and what changing one does.

use super::{Account, Ledger};
use crate::memory::{Budget, BudgetChange};
use crate::units::{Bytes, ModelId};

/// Why a budget cannot be kept. Each names what was asked for and what is possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BudgetRefusal {
    /// The whole budget leaves nothing to work with.
    #[error("a budget of {capacity} is too small: safety margin, fixed bytes and the smallest workspace are {needed}")]
    CapacityTooSmall {
        /// The budget.
        capacity: Bytes,
        /// The least that could work.
        needed: Bytes,
    },
    /// More is guaranteed than is allowed.
    #[error("guaranteed {guaranteed} is above the limit {limit}")]
    GuaranteeAboveLimit {
        /// The guarantee.
        guaranteed: Bytes,
        /// The limit.
        limit: Bytes,
    },
    /// No step could ever run under this limit.
    #[error("a limit of {limit} is too small: what the model is guaranteed and the smallest workspace are {needed}")]
    LimitTooSmall {
        /// The limit.
        limit: Bytes,
        /// The least that could work.
        needed: Bytes,
    },
    /// The guarantees of all models do not fit together.
    #[error("guarantees of {guaranteed} and a workspace of {workspace} do not fit into {available}")]
    Guarantees {
        /// The sum of all guarantees, this one included.
        guaranteed: Bytes,
        /// The smallest workspace, which has to fit beside them.
        workspace: Bytes,
        /// The budget less safety and fixed bytes.
        available: Bytes,
    },
    /// The guarantee cannot be kept now: others hold the bytes.
    #[error("a guarantee of {guaranteed} cannot be given: {free} are not held by other models")]
    Taken {
        /// The guarantee.
        guaranteed: Bytes,
        /// The most that could be guaranteed now.
        free: Bytes,
    },
    /// No model has this id.
    #[error("{0} is not registered")]
    Unknown(ModelId),
    /// The model is registered already.
    #[error("{0} is registered already")]
    Twice(ModelId),
}

impl Ledger {
    /// Opens an account for a model that is not loaded.
    ///
    /// # Errors
    /// A [`BudgetRefusal`]; nothing has changed then.
    pub fn register(&mut self, model: ModelId, budget: Budget, pinned: bool) -> Result<(), BudgetRefusal> {
        if self.accounts.contains_key(&model) {
            return Err(BudgetRefusal::Twice(model));
        }
        self.examine(model, budget)?;
        self.accounts.insert(model, Account::new(budget, pinned));
        Ok(())
    }

    /// Closes the account of a model that holds nothing and has no lease.
    ///
    /// # Panics
    /// If it does: its bytes would be nobody's.
    pub fn close(&mut self, model: ModelId) {
        let idle = self.ceiling_of(model) == Bytes::ZERO;
        if let Some(account) = self.accounts.remove(&model) {
            assert!(idle && account.held() == Bytes::ZERO, "{model} is closed while it holds {}", account.held());
        }
    }

    /// Changes a budget. It is in force for every new lease and load at once; what the model holds above a lower limit
    /// stays until the end of its step or an unload, and the answer says how much that is.
    ///
    /// # Errors
    /// A [`BudgetRefusal`]; the old budget stays then.
    pub fn set_budget(&mut self, model: ModelId, budget: Budget) -> Result<BudgetChange, BudgetRefusal> {
        if !self.accounts.contains_key(&model) {
            return Err(BudgetRefusal::Unknown(model));
        }
        self.examine(model, budget)?;
        let account = self.accounts.get_mut(&model).ok_or(BudgetRefusal::Unknown(model))?;
        account.budget = budget;
        Ok(match self.overage(model) {
            Bytes::ZERO => BudgetChange::Applied,
            overage => BudgetChange::Deferred { overage },
        })
    }

    /// Pins or unpins: a pinned model is never evicted. Unknown models have nothing to pin.
    pub fn pin(&mut self, model: ModelId, pinned: bool) {
        if let Some(account) = self.accounts.get_mut(&model) {
            account.pinned = pinned;
        }
    }

    /// What a model has above its limit now: held bytes and the ceiling of its lease.
    pub fn overage(&self, model: ModelId) -> Bytes {
        let Some(account) = self.accounts.get(&model) else { return Bytes::ZERO };
        (account.held() + self.ceiling_of(model)).saturating_sub(account.budget.limit)
    }

    /// The sum of all guarantees.
    pub(super) fn guaranteed(&self) -> Bytes {
        self.accounts.values().map(|account| account.budget.guaranteed).sum()
    }

    /// Whether a budget of this model could be kept beside the others'.
    fn examine(&self, model: ModelId, budget: Budget) -> Result<(), BudgetRefusal> {
        let Budget { guaranteed, limit } = budget;
        if guaranteed > limit {
            return Err(BudgetRefusal::GuaranteeAboveLimit { guaranteed, limit });
        }
        let workspace = self.books.workspace_min();
        if limit < guaranteed + workspace {
            return Err(BudgetRefusal::LimitTooSmall { limit, needed: guaranteed + workspace });
        }
        let available = self.books.available();
        let others = || self.accounts.iter().filter(|&(&other, _)| other != model).map(|(_, account)| account);
        let sum = others().map(|account| account.budget.guaranteed).sum::<Bytes>() + guaranteed;
        if sum + workspace > available {
            return Err(BudgetRefusal::Guarantees { guaranteed: sum, workspace, available });
        }
        // A guarantee that grows must not promise what others' weights hold already.
        let reserved = others().map(Account::reserved).sum::<Bytes>() + self.library + workspace;
        let free = available.saturating_sub(reserved);
        let before = self.accounts.get(&model).map_or(Bytes::ZERO, Account::reserved);
        if guaranteed > free && guaranteed > before {
            return Err(BudgetRefusal::Taken { guaranteed, free });
        }
        Ok(())
    }
}
