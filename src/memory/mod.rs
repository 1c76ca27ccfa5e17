//! What a step costs and what may be spent: pure, deterministic, in bytes.
//!
//! `Shape` says how large a step is; `Profile` predicts its peak; `Ledger` keeps the books of one device and gives a
//! `Lease`; the device's allocator holds the step to it and answers with what was `Observed`.

mod budget;
mod ladder;
mod lease;
mod reading;
mod shape;

pub use budget::{Budget, BudgetChange};
pub use ladder::{Evictable, Ladder, Rung};
pub use lease::{Lease, Observed, Outcome, Rungs};
pub use reading::Reading;
pub use shape::{Axes, Axis, RowFacts, Shape, ShapeKind};
