//! Between the messages of `plimsoll.v1` and our types.

use std::time::Duration;

use crate::engine::{ModelState, ModelStatus, Registered, StepFacts};
use crate::memory::{Budget, ProfileState};
use crate::model::ModelCard;
use crate::scheduler::{Priority, Reason};
use crate::service::call::Arrival;
use crate::service::context::Context;
use crate::service::errors::Problem;
use crate::service::port::Inference;
use crate::service::proto::plimsoll as wire;
use crate::service::request::{Rows, Served};
use crate::tokenize::Truncate;
use crate::units::Bytes;

/// Reads a `truncate` field. Where it says nothing the model's configuration does.
pub(super) fn truncate(card: &ModelCard, number: i32) -> Result<Truncate, Problem> {
    match wire::Truncate::try_from(number) {
        Ok(wire::Truncate::Unspecified) => Ok(card.truncate),
        Ok(wire::Truncate::None) => Ok(Truncate::No),
        Ok(wire::Truncate::End) => Ok(Truncate::End),
        Ok(wire::Truncate::Start) => Ok(Truncate::Start),
        Err(_) => Err(Problem::invalid("truncate", format!("{number} is not one of its values, which are 0 to 3"))),
    }
}

/// Reads a `priority` field.
pub(super) fn priority(number: i32) -> Result<Priority, Problem> {
    match wire::Priority::try_from(number) {
        Ok(wire::Priority::Unspecified | wire::Priority::Normal) => Ok(Priority::Normal),
        Ok(wire::Priority::Low) => Ok(Priority::Low),
        Ok(wire::Priority::High) => Ok(Priority::High),
        Err(_) => Err(Problem::invalid("priority", format!("{number} is not one of its values, which are 0 to 3"))),
    }
}

/// Checks the rows of a call that may have texts or token ids.
pub(super) fn rows<E: Inference>(
    context: &Context<E>,
    card: &ModelCard,
    texts: Vec<String>,
    tokens: Vec<wire::TokenIds>,
    truncate: Truncate,
    prompt: &str,
) -> Result<Rows, Problem> {
    match (texts.is_empty(), tokens.is_empty()) {
        (false, false) => Err(Problem::invalid("tokens", "texts and token ids are mixed: send one of them")),
        (_, true) => context.texts("texts", texts, prompt, truncate),
        (true, false) => context.token_rows(card, "tokens", tokens.into_iter().map(|tokens| tokens.ids)),
    }
}

/// How a call was served.
pub(super) fn metadata(card: &ModelCard, request_id: String, arrival: Arrival, served: &Served) -> wire::Metadata {
    wire::Metadata {
        request_id,
        model: card.name.clone(),
        total_us: micros(arrival.at.elapsed()),
        tokenize_us: micros(served.tokenize),
        queue_us: served.answer.queued.get(),
        compute_us: served.compute_us(),
        tokens: served.tokens.iter().copied().fold(0, u32::saturating_add),
        steps: served.answer.steps.iter().map(step).collect(),
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn step(facts: &StepFacts) -> wire::StepFacts {
    wire::StepFacts {
        step_id: facts.id.get(),
        batch_rows: facts.batch_rows,
        longest: facts.longest,
        reason: reason(facts.reason).into(),
        predicted_peak_bytes: facts.predicted.get(),
        true_peak_bytes: facts.peak.get(),
        lease_ceiling_bytes: facts.ceiling.get(),
        compute_us: facts.compute.get(),
        headroom_bytes: facts.headroom.get(),
        computed_tokens: facts.computed_tokens,
    }
}

fn reason(reason: Reason) -> wire::BatchReason {
    match reason {
        Reason::Memory => wire::BatchReason::Memory,
        Reason::Latency => wire::BatchReason::Latency,
        Reason::Knee => wire::BatchReason::Knee,
        Reason::Queue => wire::BatchReason::Queue,
        Reason::Limit => wire::BatchReason::Limit,
    }
}

/// Reads a budget: a limit of 0 means none.
pub(super) fn read_budget(budget: Option<wire::Budget>) -> Result<Budget, Problem> {
    let budget =
        budget.ok_or_else(|| Problem::invalid("budget", "it is not there: send guaranteed and limit bytes"))?;
    let guaranteed = Bytes::new(budget.guaranteed_bytes);
    let limit = if budget.limit_bytes == 0 { Bytes::MAX } else { Bytes::new(budget.limit_bytes) };
    if guaranteed > limit {
        return Err(Problem::invalid("budget", format!("it guarantees {guaranteed}, more than its limit of {limit}")));
    }
    Ok(Budget { guaranteed, limit })
}

/// Writes a budget; the inverse of [`read_budget`].
pub(super) fn write_budget(budget: Budget) -> wire::Budget {
    let limit_bytes = if budget.limit == Bytes::MAX { 0 } else { budget.limit.get() };
    wire::Budget { guaranteed_bytes: budget.guaranteed.get(), limit_bytes }
}

/// One model with its state. What only its files tell is empty while they cannot be read.
pub(super) fn model(registered: &Registered, status: ModelStatus) -> wire::Model {
    let card = registered.card();
    wire::Model {
        name: status.name,
        version: card.map(|card| card.version.to_string()).unwrap_or_default(),
        task: card.map(|card| card.task.to_string()).unwrap_or_default(),
        dtype: card.map(|card| card.dtype.to_string()).unwrap_or_default(),
        state: state(status.state).into(),
        state_reason: status.reason.unwrap_or_default(),
        pinned: status.pinned,
        required: registered.required,
        length_max: card.map(|card| card.length_max).unwrap_or_default(),
        dimensions: card.map(|card| card.dimensions).unwrap_or_default(),
        budget: Some(write_budget(status.budget)),
        resident_bytes: status.resident.get(),
        profile: profile(status.profile).into(),
        batch_rows_max: status.batch_rows_max,
        waiting_rows: status.waiting_rows,
        share: status.share,
        drift: status.drift,
        revision: status.revision,
    }
}

fn state(state: ModelState) -> wire::ModelState {
    match state {
        ModelState::NotLoaded => wire::ModelState::NotLoaded,
        ModelState::Loading => wire::ModelState::Loading,
        ModelState::Ready => wire::ModelState::Ready,
        ModelState::Draining => wire::ModelState::Draining,
        ModelState::Broken => wire::ModelState::Broken,
    }
}

fn profile(state: Option<ProfileState>) -> wire::ProfileState {
    match state {
        None => wire::ProfileState::None,
        Some(ProfileState::Empty | ProfileState::Measuring) => wire::ProfileState::Measuring,
        Some(ProfileState::Complete) => wire::ProfileState::Complete,
        Some(ProfileState::Stale) => wire::ProfileState::Stale,
    }
}
