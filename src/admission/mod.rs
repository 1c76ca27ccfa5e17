//! May this request wait here at all? Pure: facts in, a [`Rejection`] with numbers out.

mod rejection;

pub use rejection::{LateAt, QueueLimit, Rejection, TooLarge};
