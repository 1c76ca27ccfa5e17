//! May this request wait here at all? Pure: facts in, a [`Rejection`] with numbers out.
//!
//! Three questions, asked in this order, each a function: can it ever be served ([`servable`])? is there room in the
//! queue ([`Occupancy::admit`])? can its deadline still be met ([`in_time`])?

mod rejection;
mod limits;
mod occupancy;
mod drain;
mod checks;

pub use checks::{in_time, servable};
pub use drain::DrainRate;
pub use limits::{QueueLimits, RequestLimits};
pub use occupancy::Occupancy;
pub use rejection::{LateAt, QueueLimit, Rejection, TooLarge};
