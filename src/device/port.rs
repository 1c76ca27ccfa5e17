//! A device as the engine sees it: something that carries out orders and says how much memory there is.

use std::io;

use super::profile_store::ProfileFacts;
use super::statistics::DeviceSnapshot;
use super::{Executor, Patience};
use crate::memory::{Reading, ShapeKind, Slack, Terms};
use crate::model::DeviceForm;
use crate::units::{Bytes, Timestamp};

/// One device. Dropping it unloads every model and ends its thread.
pub trait Device: Executor {
    /// What people call it.
    fn name(&self) -> String;

    /// What kind of device it is: blueprints are made for it before anything else is asked of them.
    fn form(&self) -> DeviceForm;

    /// What is free now.
    ///
    /// # Errors
    /// If the device no longer says how much memory it has.
    fn reading(&self, now: Timestamp) -> io::Result<Reading>;

    /// Everything at this moment: who holds what, what was counted, what happened lately.
    ///
    /// # Errors
    /// As [`Device::reading`].
    fn snapshot(&self) -> io::Result<DeviceSnapshot>;

    /// What is added to the predictions of its profiles for models whose steps are of this kind.
    fn slack(&self, steps: ShapeKind) -> Slack;

    /// How it hands out memory.
    fn terms(&self) -> Terms;

    /// Whether it prepares a step while the one before it runs, so that it pays to queue two.
    fn runs_ahead(&self) -> bool {
        false
    }

    /// How those who wait for it wait.
    fn patience(&self) -> Patience {
        Patience::NONE
    }

    /// What the device takes for so many bytes of weights: the allocator's granule is the model's, however little of the
    /// last one is used.
    fn taken_by(&self, weights: Bytes) -> Bytes {
        weights
    }

    /// Everything that a stored profile of a model depends on.
    fn profile_facts(&self, content: String, dtype: &str, length_max: u32) -> ProfileFacts;
}
