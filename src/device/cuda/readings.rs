//! Where every byte of a card is.

use super::fixed::Fixed;

/// The identity of a card's memory: `total = free + weights + kv + workspace + library + unpooled + fixed + graphs +
/// others`. All in bytes; of pools what they hold, not what lives in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Parts {
    /// All of the card, or of our part of it.
    pub total: u64,
    /// What anybody could take.
    pub free: u64,
    /// Pools of weights.
    pub weights: u64,
    /// Pools of KV.
    pub kv: u64,
    /// The pool of all steps.
    pub workspace: u64,
    /// The pool of what belongs to no model.
    pub library: u64,
    /// What the books hold outside of pools.
    pub unpooled: u64,
    /// Context, modules and libraries.
    pub fixed: Fixed,
    /// Memory of the driver's graphs.
    pub graphs: u64,
    /// The rest: other processes, and what this one took behind the books' back.
    pub others: u64,
    /// The part of `others` that the driver counts as this process's; below zero if it counts less than is known.
    /// `None` where it does not say.
    pub unattributed: Option<i64>,
}
