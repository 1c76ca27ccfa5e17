//! Lines that several places would otherwise each phrase in their own way.

use crate::units::{Bytes, Micros};

/// A model that can be asked from now on.
#[derive(Clone, Copy, Debug)]
pub struct ModelReady<'a> {
    /// Its name.
    pub model: &'a str,
    /// How its matrices are held.
    pub dtype: &'static str,
    /// Its weights, as measured.
    pub resident: Bytes,
    /// The state of its profile; see [`crate::telemetry::PROFILE_STATES`].
    pub profile: &'static str,
    /// Rows of its longest length that fit one step now.
    pub batch_rows_max: u32,
    /// Its longest length in tokens.
    pub length_max: u32,
    /// From the order to load it.
    pub took: Micros,
}

/// The one line that a model gets when it becomes ready.
pub fn model_ready(ready: &ModelReady<'_>) {
    tracing::info!(
        model = ready.model,
        dtype = ready.dtype,
        resident_bytes = ready.resident.get(),
        profile = ready.profile,
        batch_rows_max = ready.batch_rows_max,
        length_max = ready.length_max,
        took_us = ready.took.get(),
        "{} is ready: {} of weights in {}, profile {}, up to {} rows of {} tokens in a step",
        ready.model,
        ready.resident,
        ready.dtype,
        ready.profile,
        ready.batch_rows_max,
        ready.length_max,
    );
}
