//! What the sender of a request is told that is not served: why, with the numbers, and what to do.

use tonic::Code;

use super::errors::Told;
use crate::admission::{LateAt, QueueLimit, Rejection, TooLarge};

fn unit(limit: QueueLimit) -> &'static str {
    match limit {
        QueueLimit::Rows => "rows",
        QueueLimit::Tokens => "tokens",
        QueueLimit::HostBytes => "bytes",
    }
}

/// What its sender is told of a request for `model` that is not served.
pub(super) fn tell(model: &str, rejection: Rejection) -> Told {
    let told = match rejection {
        Rejection::Empty => {
            Told::new(Code::InvalidArgument, "EMPTY", "the request has no rows: send at least one".to_owned())
                .field("rows")
        }
        Rejection::TooLarge(TooLarge::Length { row, needed, possible }) => Told::new(
            Code::InvalidArgument,
            "TOO_LARGE",
            format!(
                "row {row} has {needed} tokens and model '{model}' takes {possible}: shorten it, or ask for truncation"
            ),
        )
        .field(format!("rows[{row}]")),
        Rejection::TooLarge(TooLarge::Rows { needed, possible }) => Told::new(
            Code::InvalidArgument,
            "TOO_LARGE",
            format!("the request has {needed} rows and may have {possible}: send it in parts"),
        )
        .field("rows"),
        Rejection::TooLarge(TooLarge::Workspace { needed, possible }) => Told::new(
            Code::InvalidArgument,
            "TOO_LARGE",
            format!(
                "the longest row alone needs {} and model '{model}' can never be given more than {possible}: shorten \
                 it, or raise the model's limit",
                needed.beyond(possible)
            ),
        )
        .field("rows"),
        Rejection::TooLarge(TooLarge::Queue { limit, needed, possible }) => {
            let unit = unit(limit);
            Told::new(
                Code::InvalidArgument,
                "TOO_LARGE",
                format!(
                    "the request has {needed} {unit} and the queue of model '{model}' takes {possible} at most: send it in \
                     parts"
                ),
            )
            .field("rows")
        }
        Rejection::QueueFull { limit, waiting, asked, allowed, .. } => {
            let unit = unit(limit);
            Told::new(
                Code::ResourceExhausted,
                "QUEUE_FULL",
                format!(
                    "the queue of model '{model}' is full: {waiting} {unit} wait, this request has {asked} and \
                     {allowed} may wait: try again later, or send less at once"
                ),
            )
        }
        Rejection::Late { at, waited } => {
            let place = match at {
                LateAt::Admission => "before it was queued: the deadline is too short for the work ahead of it",
                LateAt::Queue => "while it waited; it never ran",
                LateAt::Step => "while it ran; its result is thrown away",
            };
            Told::new(Code::DeadlineExceeded, "LATE", format!("the deadline was missed after {waited}, {place}"))
        }
        Rejection::Cancelled => Told::new(Code::Cancelled, "CANCELLED", "the client cancelled the request".to_owned()),
        Rejection::OutOfMemory { needed, available, .. } => Told::new(
            Code::ResourceExhausted,
            "OUT_OF_MEMORY",
            format!(
                "model '{model}' needs {} for the smallest step and {available} could be given: try again later",
                needed.beyond(available)
            ),
        ),
        Rejection::NotLoaded => Told::new(
            Code::Unavailable,
            "NOT_LOADED",
            format!("model '{model}' is not loaded: load it with plimsoll.v1.Models/Load or RepositoryModelLoad"),
        ),
        Rejection::Loading { .. } => Told::new(
            Code::Unavailable,
            "LOADING",
            format!("model '{model}' is being loaded and is not ready yet: try again later"),
        ),
        Rejection::Draining => Told::new(
            Code::Unavailable,
            "DRAINING",
            format!("model '{model}' is being unloaded or the server is going down: try another server"),
        ),
        Rejection::DoesNotFit { needed, available, .. } => Told::new(
            Code::ResourceExhausted,
            "DOES_NOT_FIT",
            format!(
                "loading model '{model}' needs {} and {available} can be given, evictions included: unload or unpin \
                 another model, or raise the budget",
                needed.beyond(available)
            ),
        ),
        Rejection::Broken => Told::new(
            Code::FailedPrecondition,
            "BROKEN",
            format!(
                "model '{model}' could not be loaded; the server's log and plimsoll.v1.Models/List have the reason"
            ),
        ),
    };
    match rejection.retry_after() {
        Some(after) => told.retry(after.into()),
        None => told,
    }
}
