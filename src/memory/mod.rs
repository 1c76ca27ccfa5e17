//! What a step costs and what may be spent: pure, deterministic, in bytes.
//!
//! `Shape` says how large a step is; `Profile` predicts its peak; `Ledger` keeps the books of one device and gives a
//! `Lease`; the device's allocator holds the step to it and answers with what was `Observed`, which moves the model's
//! `Drift`. `Ladder` says what to do when a step runs short all the same.

mod budget;
mod lease;
mod reading;
mod shape;
mod profile;
mod drift;
mod ledger;
mod ladder;

pub use budget::{Budget, BudgetChange};
pub use drift::{Drift, DriftVerdict};
pub use ladder::{Evictable, Ladder, Rung};
pub use lease::{Lease, Observed, Outcome, Rungs};
pub use ledger::{
    Bound, BrokenBooks, BudgetRefusal, DeviceBooks, Exhaustion, FitLine, FitPlan, Headroom, Ledger, LedgerSnapshot,
    LoadNeed, LoadPlan, ModelBooks, Readings, Shortfall, Terms, TrimPolicy, Verdict, fit_plan,
};
pub use profile::{
    Largest, LargestBound, Measured, PROBE_RUNS, Probe, ProbeRuns, Profile, ProfileState, Role, Slack, Table,
    TableError, TableLine,
};
pub use reading::Reading;
pub use shape::{Axes, Axis, RowFacts, Shape, ShapeKind};
