//! The only place where a rejection, a fault or a flaw of a request becomes a gRPC status.
//!
//! Every status has a sentence with the place, what was found and what is allowed, and `google.rpc` details: ErrorInfo
//! (domain `plimsoll`, a reason to match on), BadRequest with the field for what the caller has to change, RetryInfo
//! where trying again may help.

use std::collections::HashMap;
use std::time::Duration;

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use super::port::ReloadRefusal;
pub(crate) use super::problem::Problem;
use super::rejections;
use crate::engine::{BudgetError, ChangeRefusal, Failure, TraceError};
use crate::units::Bytes;

/// The domain of our ErrorInfo details.
pub(crate) const DOMAIN: &str = "plimsoll";

/// When to try again where a bound of the services, not of the engine, was met: a few steps' time.
const RETRY_SOON: Duration = Duration::from_millis(100);

/// The reason of [`Problem::WrongMethod`], which has a status of its own over HTTP and no code over gRPC.
pub(crate) const WRONG_METHOD: &str = "WRONG_METHOD";

/// What a status says, over whatever it is said.
pub(crate) struct Told {
    pub(crate) code: Code,
    /// To match on.
    pub(crate) reason: &'static str,
    /// For people: the place, what was found and what is allowed.
    pub(crate) text: String,
    /// What the caller has to change.
    pub(crate) field: Option<String>,
    /// When trying again may help.
    pub(crate) retry: Option<Duration>,
}

impl From<Problem> for Told {
    fn from(problem: Problem) -> Told {
        let told = tell(problem);
        Told { text: cut(told.text, TEXT_MAX), field: told.field.map(|field| cut(field, FIELD_MAX)), ..told }
    }
}

impl Told {
    pub(super) fn new(code: Code, reason: &'static str, text: String) -> Told {
        Told { code, reason, text, field: None, retry: None }
    }

    pub(super) fn field(self, field: impl Into<String>) -> Told {
        Told { field: Some(field.into()), ..self }
    }

    pub(super) fn retry(self, after: Duration) -> Told {
        Told { retry: Some(after), ..self }
    }
}

impl From<Problem> for Status {
    fn from(problem: Problem) -> Status {
        tell(problem).into_status()
    }
}

/// Longest text of a status in bytes. It travels as a header, percent-encoded and again inside the details, and clients
/// refuse headers beyond 8 KiB: a name of a megabyte that we quote must not become their error instead of ours.
const TEXT_MAX: usize = 512;
/// Longest field of a violation in bytes.
const FIELD_MAX: usize = 128;

impl Told {
    fn into_status(self) -> Status {
        let text = cut(self.text, TEXT_MAX);
        let mut details = ErrorDetails::new();
        details.set_error_info(self.reason, DOMAIN, HashMap::<String, String>::new());
        if let Some(field) = self.field {
            details.add_bad_request_violation(cut(field, FIELD_MAX), text.clone());
        }
        if self.retry.is_some() {
            details.set_retry_info(self.retry);
        }
        Status::with_error_details(self.code, text, details)
    }
}

/// At most `most` bytes of a text, with a mark where it was cut.
fn cut(mut text: String, most: usize) -> String {
    const MARK: &str = "...";
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most - MARK.len()));
        text.push_str(MARK);
    }
    text
}

fn tell(problem: Problem) -> Told {
    match problem {
        Problem::Invalid { field, text } => {
            Told::new(Code::InvalidArgument, "INVALID", format!("{field}: {text}")).field(field)
        }
        Problem::Empty { field, text } => {
            Told::new(Code::InvalidArgument, "EMPTY", format!("{field}: {text}")).field(field)
        }
        Problem::WrongTask(text) => {
            Told::new(Code::InvalidArgument, "WRONG_TASK", format!("model: {text}")).field("model")
        }
        Problem::UnknownModel { asked, known } => {
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            Told::new(Code::NotFound, "UNKNOWN_MODEL", format!("no model '{asked}' is registered; there are: {known}"))
        }
        Problem::UnknownVersion { model, asked, served } => Told::new(
            Code::NotFound,
            "UNKNOWN_VERSION",
            format!("model '{model}' has no version '{asked}': leave the version empty or ask for '{served}'"),
        ),
        Problem::AnswerTooLarge { needed, limit } => Told::new(
            Code::OutOfRange,
            "ANSWER_TOO_LARGE",
            format!(
                "the answer takes {needed} and a message may have {limit}: send fewer rows, ask for fewer dimensions, \
                 or raise the server's message limit"
            ),
        ),
        Problem::NoRoute { path } => {
            Told::new(Code::NotFound, "NO_ROUTE", format!("nothing is at '{path}': look for a slip in the path"))
        }
        Problem::WrongMethod { path, method } => Told::new(
            Code::Unimplemented,
            WRONG_METHOD,
            format!("'{path}' does not take {method}: the answer's header 'allow' says what it takes"),
        ),
        Problem::MessageTooLarge { limit } => Told::new(
            Code::OutOfRange,
            "MESSAGE_TOO_LARGE",
            format!("the message has more than {limit}: send fewer rows, or raise the server's message limit"),
        ),
        Problem::MessageLate => {
            Told::new(Code::DeadlineExceeded, "LATE", "the message was not there in time: send it faster".to_owned())
        }
        Problem::MessageBroken => {
            Told::new(Code::InvalidArgument, "INVALID", "the message broke off before its end".to_owned()).field("body")
        }
        Problem::Refused(refusal) => {
            let (code, reason, text) = refusal.words();
            Told::new(code, reason, text.to_owned())
        }
        Problem::GoingDown => Told::new(
            Code::Unavailable,
            "DRAINING",
            "the server is going down: try another server with what was not answered".to_owned(),
        ),
        Problem::TooManyStreams { limit } => Told::new(
            Code::ResourceExhausted,
            "TOO_MANY_STREAMS",
            format!("{limit} streams are open, which is the limit: close one, or send several requests over one"),
        )
        .retry(RETRY_SOON),
        Problem::StreamsTooLarge { held, asked, limit } => Told::new(
            Code::ResourceExhausted,
            "TOO_MANY_STREAMS",
            format!(
                "the open streams hold {held} for their largest messages, this message takes {asked} more and {limit} \
                 may be held: close streams, or send smaller messages"
            ),
        )
        .retry(RETRY_SOON),
        Problem::StreamIdle { limit } => Told::new(
            Code::DeadlineExceeded,
            "LATE",
            format!(
                "nothing was sent over the stream for {} s: open another when there is more to ask",
                limit.as_secs()
            ),
        ),
        Problem::TokenizerFull { unit, waiting, asked, limit } => Told::new(
            Code::ResourceExhausted,
            "QUEUE_FULL",
            format!(
                "{waiting} {unit} wait for the tokenizer, this call has {asked} and {limit} may wait: try again later"
            ),
        )
        .retry(RETRY_SOON),
        Problem::Panicked => Told::new(
            Code::Internal,
            "FAULT",
            "the server failed on this request and serves on; its log has the cause".to_owned(),
        ),
        Problem::NotOffered(text) => Told::new(Code::Unimplemented, "NOT_OFFERED", text.to_owned()),
        Problem::Failed { model, failure: Failure::Rejected(rejection) } => rejections::tell(&model, rejection),
        Problem::Failed { model, failure: Failure::Fault(_) } => Told::new(
            Code::Internal,
            "FAULT",
            format!("model '{model}' failed while it ran this request; the server's log has the cause"),
        ),
        Problem::Budget { model, error: error @ BudgetError::Refused(_) } => Told::new(
            Code::InvalidArgument,
            "BUDGET_REFUSED",
            format!("the budget of model '{model}' is as before: {error}"),
        )
        .field("budget"),
        Problem::Budget { model, error: error @ BudgetError::Outdated { .. } } => {
            Told::new(Code::Aborted, "OUTDATED", format!("the budget of model '{model}' is as before: {error}"))
        }
        Problem::Reload(refusal) => tell_reload(refusal),
        Problem::Trace { model, error } => tell_trace(&model, error),
        Problem::Plan(error) => Told::new(Code::FailedPrecondition, "NO_PLAN", error.to_string()),
    }
}

fn tell_reload(refusal: ReloadRefusal) -> Told {
    let text = format!("nothing was reloaded: {refusal}");
    match refusal {
        ReloadRefusal::Changes(ChangeRefusal::Draining) => Told::new(Code::Unavailable, "DRAINING", text),
        ReloadRefusal::Changes(ChangeRefusal::Busy) => Told::new(Code::Aborted, "BUSY", text).retry(RETRY_SOON),
        ReloadRefusal::Configuration(_) | ReloadRefusal::Changes(_) => {
            Told::new(Code::FailedPrecondition, "CONFIGURATION", text)
        }
    }
}

fn tell_trace(model: &str, error: TraceError) -> Told {
    let text = format!("no step of model '{model}' is traced: {error}");
    match error {
        TraceError::Outside { .. } => Told::new(Code::InvalidArgument, "INVALID", text).field("rows"),
        TraceError::NotMeasured { .. } => Told::new(Code::FailedPrecondition, "NOT_MEASURED", text),
        TraceError::NoRoom { .. } => Told::new(Code::ResourceExhausted, "OUT_OF_MEMORY", text).retry(RETRY_SOON),
        TraceError::Busy { .. } => Told::new(Code::ResourceExhausted, "QUEUE_FULL", text).retry(RETRY_SOON),
        TraceError::NotRecorded => Told::new(Code::Unimplemented, "NOT_OFFERED", text),
        TraceError::Failed(failure) => tell(Problem::Failed { model: model.to_owned(), failure }),
    }
}

/// Says in our words what the transport found wrong with a message before any service saw it; `None` for every other
/// status. The transport has no types for these two findings, so they are told by the beginnings of its texts; a test
/// over a real connection notices if those change.
pub(crate) fn rephrase_transport(status: &Status, limit: Bytes) -> Option<Status> {
    let (code, text) = (status.code(), status.message());
    let too_large = (code == Code::OutOfRange && text.starts_with("Error, decoded message length too large"))
        || (code == Code::ResourceExhausted && text.starts_with("Error decompressing: size limit"));
    let malformed = code == Code::Internal && text.starts_with("failed to decode Protobuf message");
    let told = if too_large {
        let found: Option<u64> =
            text.split_once("found ").and_then(|(_, rest)| rest.split(' ').next()).and_then(|count| count.parse().ok());
        let found = found.map_or("more".to_owned(), |count| format!("{count} bytes"));
        Told::new(
            Code::OutOfRange,
            "MESSAGE_TOO_LARGE",
            format!(
                "the message has {found} and may have {} bytes ({limit}): send fewer rows, or raise the server's \
                 message limit",
                limit.get()
            ),
        )
    } else if malformed {
        Told::new(Code::InvalidArgument, "INVALID", format!("the message is not what the protocol says: {text}"))
    } else {
        return None;
    };
    Some(told.into_status())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_between_characters() {
        let check = |text: &str, most, expected: &str| assert_eq!(cut(text.to_owned(), most), expected);
        check("short", 5, "short");
        check("longer", 5, "lo...");
        check("éééé", 6, "é...");
        check("", 5, "");
    }
}
