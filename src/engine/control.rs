//! What comes of control calls.

use crate::memory::BudgetRefusal;
use crate::units::Bytes;

/// What an unload gave back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Released {
    /// Bytes by our own books.
    pub released: Bytes,
    /// The device's reading afterwards.
    pub free: Bytes,
}

/// Why a budget was not set.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum BudgetError {
    /// The books cannot hold it.
    #[error("{0}")]
    Refused(BudgetRefusal),
    /// Somebody else changed the model's settings in the meantime.
    #[error("the settings are at revision {current}, not {expected}: read them again and decide anew")]
    Outdated {
        /// What the caller saw.
        expected: u64,
        /// What is in force.
        current: u64,
    },
}
