//! Lines that several places would otherwise each phrase in their own way.

use super::admit;
use crate::admission::Rejection;
use crate::telemetry::Outcome;
use crate::units::{Bytes, Micros, ModelId};

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

/// A request that got no results: an error for a fault, a warning where the server ran short of something, else a line
/// for whoever debugs a client. At most one line a second for each model and reason. The facts are numbers and the
/// model's own errors, nothing of what the client sent.
pub fn request_unanswered(id: ModelId, model: &str, outcome: &Outcome<'_>) {
    let (_, reason) = outcome.words();
    match outcome {
        Outcome::Answered(_) => {}
        Outcome::Faulted(fault) => {
            if let Some(suppressed) = admit(reason, Some(id)) {
                tracing::error!(model, reason, suppressed, %fault, "a request failed");
            }
        }
        Outcome::Rejected(
            rejection @ (Rejection::QueueFull { .. } | Rejection::OutOfMemory { .. } | Rejection::DoesNotFit { .. }),
        ) => {
            if let Some(suppressed) = admit(reason, Some(id)) {
                tracing::warn!(model, reason, suppressed, facts = ?rejection, "a request was rejected");
            }
        }
        Outcome::Rejected(rejection) => {
            // Asked first, so that a flood of what nobody reads takes no lock.
            if tracing::enabled!(tracing::Level::DEBUG)
                && let Some(suppressed) = admit(reason, Some(id))
            {
                tracing::debug!(model, reason, suppressed, facts = ?rejection, "a request was rejected");
            }
        }
    }
}
