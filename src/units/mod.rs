//! The types that every other module counts in. Only lawful arithmetic is implemented on them.

mod bytes;
mod ids;
mod time;

pub use bytes::{Bytes, ParseBytesError};
pub use ids::{ModelId, RequestId, StepId};
pub use time::{Micros, Timestamp};
