//! What can be wrong with a call, before anything is said about it.

use std::time::Duration;

use super::access::Refusal;
use super::port::ReloadRefusal;
use crate::admission::Rejection;
use crate::engine::{BudgetError, Failure, PlanError, TraceError};
use crate::units::Bytes;

/// Why a service answers with a status instead of a result.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Problem {
    /// The request is malformed. `field` is the path of the offending part, such as `texts[3]` or `inputs['TEXT']`.
    Invalid { field: String, text: String },
    /// There is nothing to work on: no rows, or a row without anything in it.
    Empty { field: String, text: String },
    /// The model that is asked is for something else, or no model is for this.
    WrongTask(String),
    /// No model of this name is registered.
    UnknownModel { asked: String, known: Vec<String> },
    /// The model is served, but not in this version.
    UnknownVersion { model: String, asked: String, served: String },
    /// The answer would be larger than a message may be.
    AnswerTooLarge { needed: Bytes, limit: Bytes },
    /// Nothing is at this path.
    NoRoute { path: String },
    /// What is at this path does not take the method.
    WrongMethod { path: String, method: String },
    /// The message is larger than one may be.
    MessageTooLarge { limit: Bytes },
    /// The message did not come within its time.
    MessageLate,
    /// The message broke off, or is not what HTTP says.
    MessageBroken,
    /// The caller may not do this.
    Refused(Refusal),
    /// The server goes down.
    GoingDown,
    /// Too many streams of inferences are open.
    TooManyStreams { limit: u32 },
    /// Open streams hold too much memory for their messages.
    StreamsTooLarge { held: Bytes, asked: Bytes, limit: Bytes },
    /// Nothing has happened on a stream for so long.
    StreamIdle { limit: Duration },
    /// Too many rows, or bytes of them, wait for the tokenizer.
    TokenizerFull { unit: &'static str, waiting: u64, asked: u64, limit: u64 },
    /// The server's own code panicked; the log has the text.
    Panicked,
    /// The protocol has this, the server does not. The text says what to do instead.
    NotOffered(&'static str),
    /// The engine has no answer.
    Failed { model: String, failure: Failure },
    /// A budget was not set.
    Budget { model: String, error: BudgetError },
    /// Nothing can be said about whether models fit.
    Plan(PlanError),
    /// Nothing was reloaded.
    Reload(ReloadRefusal),
    /// No step was traced.
    Trace { model: String, error: TraceError },
}

impl Problem {
    /// A malformed part of a request.
    pub(crate) fn invalid(field: impl Into<String>, text: impl Into<String>) -> Problem {
        Problem::Invalid { field: field.into(), text: text.into() }
    }

    /// A part of a request that has nothing in it.
    pub(crate) fn empty(field: impl Into<String>, text: impl Into<String>) -> Problem {
        Problem::Empty { field: field.into(), text: text.into() }
    }

    /// An expected failure of a request for `model`.
    pub(crate) fn rejected(model: &str, rejection: Rejection) -> Problem {
        Problem::Failed { model: model.to_owned(), failure: Failure::Rejected(rejection) }
    }
}
