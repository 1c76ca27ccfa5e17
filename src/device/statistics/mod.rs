//! What a device has done and what it holds, for people and for metrics.

mod events;
mod card;
mod snapshot;
mod tally;

pub use card::{CardBlock, CardEvent, CardPart, CardPool, CardUse};
pub use events::{Event, PastEvent};
pub use snapshot::{DeviceSnapshot, ModelUse, Use, WorkspaceUse};
pub use tally::{Counters, Statistics};
