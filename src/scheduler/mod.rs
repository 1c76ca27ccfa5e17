//! Which step next, and how large: facts in, steps out. Pure.
//!
//! A [`Waiting`] request joins the lane of its model. A lane has a class for each priority; classes share the device by
//! start-time fair queueing over device time (`fair`), the weight being the lane's share times the priority's factor.
//! The class whose turn it is gives a step around its oldest request that fits: rows that go well with it are drafted
//! (`draft`), then cut to the smallest bound (`bounds`). While a profile is incomplete its lane also has a survey, which
//! measures (`survey`).

mod waiting;
mod step;
mod settings;
mod core;
mod accept;
mod turn;
mod choose;
mod search;
mod form;
mod draft;
mod bounds;
mod survey;
mod complete;
mod denied;
mod view;
mod lane;
mod request;
mod queue;
mod overtaking;
mod fair;
mod timers;
mod watchdog;

pub use self::core::Scheduler;
pub use complete::Completed;
pub use lane::{LaneState, Shortage};
pub use settings::{Batching, LaneSettings, Settings, WhileNotReady};
pub use step::{Member, Purpose, Reason, Step, Work};
pub use view::LaneView;
pub use waiting::{Priority, Waiting};
