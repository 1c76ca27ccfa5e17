//! The books of one device: who holds what, and who may have what.
//!
//! Bytes are of four kinds. *Fixed* were taken before any model was loaded. *Library* is scratch that no model is
//! charged for. *Held* bytes are a model's weights and KV cache. *Workspace* is one line for all models: steps run one
//! after another, so it is as large as the largest lease in force, and the cache that one model leaves serves the next.
//!
//! The invariant, checked by [`Ledger::check`] after every step:
//!
//! ```text
//! fixed + library + sum(held) + largest ceiling in force <= capacity - safety
//! sum(guaranteed) + least workspace                      <= capacity - safety - fixed
//! ```
//!
//! The device's thread runs loads and steps one after another too. So a load that is planned while a step runs may
//! count on that step's workspace, and a lease that is given while a load runs is given what the load leaves.

mod account;
mod terms;
mod budgets;
mod leases;
mod loads;
mod fit_plan;
mod trim;
mod snapshot;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod random_actions;

use std::collections::BTreeMap;

pub use budgets::BudgetRefusal;
pub use fit_plan::{FitLine, FitPlan, Verdict, fit_plan};
pub use leases::{Bound, Headroom, Shortfall};
pub use loads::{LoadNeed, LoadPlan};
pub use snapshot::{LedgerSnapshot, ModelBooks};
pub use terms::{Exhaustion, Terms};
pub use trim::TrimPolicy;

use self::account::{Account, Residence};
use self::leases::InForce;
use self::trim::Demand;
use super::Reading;
use crate::units::{Bytes, ModelId};

/// Whether live readings of the device bound what may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Readings {
    /// They do: a neighbour's memory is not ours.
    Live,
    /// Only the books do: the device is believed to be ours alone. The control arm of comparisons.
    Off,
}

/// What the ledger starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceBooks {
    /// The budget: all that this server may use of the device.
    pub capacity: Bytes,
    /// Kept free, of the budget and of the device: covers the noise of readings and what others take between two.
    pub safety: Bytes,
    /// Taken before any model was loaded and counted against the capacity; 0 where the capacity leaves it out.
    pub fixed: Bytes,
    /// How the device hands out memory.
    pub terms: Terms,
    /// Whether the device's free memory counts.
    pub readings: Readings,
}

impl DeviceBooks {
    /// What models and their steps can have together.
    pub fn available(&self) -> Bytes {
        self.capacity.saturating_sub(self.safety).saturating_sub(self.fixed)
    }

    /// The smallest workspace that is of any use.
    pub fn workspace_min(&self) -> Bytes {
        self.terms.workspace_min
    }
}

/// The books. Every decision takes the reading it rests on as an argument.
#[derive(Clone, Debug)]
pub struct Ledger {
    books: DeviceBooks,
    accounts: BTreeMap<ModelId, Account>,
    leases: Vec<InForce>,
    /// Numbers loads and leases in the order in which the device runs them.
    next_turn: u64,
    /// Library scratch at the last decision.
    library: Bytes,
    trim_policy: TrimPolicy,
    demand: Demand,
}

/// Books that do not balance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BrokenBooks {
    /// More is claimed than there is.
    #[error("{claimed} are claimed of {available}")]
    Overcommitted {
        /// Library scratch, all that models hold, and the largest lease.
        claimed: Bytes,
        /// The budget less safety and fixed bytes.
        available: Bytes,
    },
    /// A model's lease lifts it above its limit.
    #[error("{model} may use {used} of its limit {limit}")]
    AboveLimit {
        /// The model.
        model: ModelId,
        /// What it holds and its lease.
        used: Bytes,
        /// Its limit when the lease was given.
        limit: Bytes,
    },
    /// A lease predicts more than its ceiling, or belongs to a model without an account.
    #[error("the lease of {model} is void")]
    VoidLease {
        /// The model.
        model: ModelId,
    },
    /// The guarantees cannot all be kept.
    #[error("{guaranteed} are guaranteed of {available}")]
    Guarantees {
        /// Their sum and the smallest workspace.
        guaranteed: Bytes,
        /// The budget less safety and fixed bytes.
        available: Bytes,
    },
}

impl Ledger {
    /// Books with no models.
    ///
    /// # Errors
    /// When the budget leaves no workspace beside the safety margin and what is taken already.
    pub fn new(books: DeviceBooks) -> Result<Ledger, BudgetRefusal> {
        let (needed, capacity) = (books.safety + books.fixed + books.workspace_min(), books.capacity);
        if capacity < needed {
            return Err(BudgetRefusal::CapacityTooSmall { capacity, needed });
        }
        Ok(Ledger {
            books,
            accounts: BTreeMap::new(),
            leases: Vec::new(),
            next_turn: 0,
            library: Bytes::ZERO,
            trim_policy: TrimPolicy::default(),
            demand: Demand::default(),
        })
    }

    /// What it started from.
    pub fn books(&self) -> &DeviceBooks {
        &self.books
    }

    /// The next number in the order of the device's work.
    fn turn(&mut self) -> u64 {
        self.next_turn += 1;
        self.next_turn
    }

    /// All that models hold, loads under way included.
    fn held(&self) -> Bytes {
        self.accounts.values().map(Account::held).sum()
    }

    /// What the device says it could give to workspace beside loads that take `loads`. Where running
    /// short is fatal the margin is kept whatever is reserved; else what is reserved is there, the margin is kept of what
    /// is free, and a step that needs no more than `least` may use that too.
    fn workspace_on_device(&self, reading: &Reading, loads: Bytes, least: Bytes) -> Bytes {
        let DeviceBooks { safety, terms, readings, .. } = self.books;
        if readings == Readings::Off {
            return Bytes::MAX;
        }
        let whole = |bytes: Bytes| terms.usable(bytes.saturating_sub(loads));
        let Reading { free, workspace_reserved, .. } = *reading;
        match terms.exhaustion {
            Exhaustion::Kills => whole((workspace_reserved + free).saturating_sub(safety)),
            Exhaustion::Refuses => {
                let usual = whole(workspace_reserved + free.saturating_sub(safety));
                usual.max(least.min(whole(workspace_reserved + free)))
            }
        }
    }

    /// What the device says it could give to a load once `freed` bytes of ours are back. Where the margin holds, they fill
    /// it first.
    fn load_on_device(&self, reading: &Reading, freed: Bytes) -> Bytes {
        let all = reading.free + reading.workspace_reserved + freed;
        match (self.books.readings, self.books.terms.exhaustion) {
            (Readings::Live, Exhaustion::Kills) => all.saturating_sub(self.books.safety),
            (Readings::Live, Exhaustion::Refuses) => all,
            (Readings::Off, _) => Bytes::MAX,
        }
    }

    /// Checks the invariants.
    ///
    /// # Errors
    /// The first one that is broken. One fact from outside can break it: a load that took more than it had announced
    /// while a lease was given against the announcement; then the device may run short, and the ladder has to help.
    pub fn check(&self) -> Result<(), BrokenBooks> {
        let available = self.books.available();
        for lease in &self.leases {
            let Some(account) = self.accounts.get(&lease.model) else {
                return Err(BrokenBooks::VoidLease { model: lease.model });
            };
            if lease.predicted > lease.ceiling {
                return Err(BrokenBooks::VoidLease { model: lease.model });
            }
            // A model may hold more than a budget that was lowered since; it gets no workspace then.
            if lease.ceiling == Bytes::ZERO {
                continue;
            }
            // Loads that come after this step use what it gives back.
            let held: Bytes = self.accounts.values().map(|account| account.held_before(lease.turn)).sum();
            let claimed = lease.library + held + lease.ceiling;
            if claimed > available {
                return Err(BrokenBooks::Overcommitted { claimed, available });
            }
            let used = account.held() + lease.ceiling;
            if used > lease.limit {
                return Err(BrokenBooks::AboveLimit { model: lease.model, used, limit: lease.limit });
            }
        }
        let guaranteed = self.guaranteed() + self.books.workspace_min();
        if guaranteed > available {
            return Err(BrokenBooks::Guarantees { guaranteed, available });
        }
        Ok(())
    }
}
