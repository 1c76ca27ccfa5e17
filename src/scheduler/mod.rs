//! Which step next, and how large: facts in, steps out. Pure.

mod step;
mod waiting;

pub use step::{Member, Purpose, Reason, Step, Work};
pub use waiting::{Priority, Waiting};
