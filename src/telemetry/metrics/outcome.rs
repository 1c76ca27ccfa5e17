//! How a request ended, in the words of the metrics and of the logs.

use super::RequestTimes;
use crate::admission::{LateAt, QueueLimit, Rejection, TooLarge};
use crate::model::Fault;

/// How an accepted or refused request ended.
#[derive(Clone, Copy, Debug)]
pub enum Outcome<'a> {
    /// With its results.
    Answered(RequestTimes),
    /// With an expected refusal.
    Rejected(&'a Rejection),
    /// With an unexpected failure.
    Faulted(&'a Fault),
}

/// Every pair of outcome and reason that [`Outcome::words`] can answer, so that each series exists from the start: a
/// counter that appears with its first event hides that event from `rate()`.
pub(super) const WORDS: [(&str, &str); 23] = [
    ("answered", "answered"),
    ("rejected", "empty"),
    ("rejected", "too_long"),
    ("rejected", "too_many_rows"),
    ("rejected", "too_much_workspace"),
    ("rejected", "too_much_at_once"),
    ("rejected", "queue_full_rows"),
    ("rejected", "queue_full_tokens"),
    ("rejected", "queue_full_bytes"),
    ("rejected", "late_at_admission"),
    ("rejected", "late_in_queue"),
    ("rejected", "late_in_step"),
    ("rejected", "cancelled"),
    ("rejected", "out_of_memory"),
    ("rejected", "not_loaded"),
    ("rejected", "loading"),
    ("rejected", "draining"),
    ("rejected", "does_not_fit"),
    ("rejected", "broken"),
    ("faulted", "model"),
    ("faulted", "panicked"),
    ("faulted", "not_finite"),
    ("faulted", "device_lost"),
];

impl Outcome<'_> {
    /// The outcome and its reason.
    pub const fn words(&self) -> (&'static str, &'static str) {
        match self {
            Outcome::Answered(_) => ("answered", "answered"),
            Outcome::Rejected(rejection) => ("rejected", rejection_word(rejection)),
            Outcome::Faulted(fault) => ("faulted", fault_word(fault)),
        }
    }
}

const fn rejection_word(rejection: &Rejection) -> &'static str {
    match rejection {
        Rejection::Empty => "empty",
        Rejection::TooLarge(TooLarge::Length { .. }) => "too_long",
        Rejection::TooLarge(TooLarge::Rows { .. }) => "too_many_rows",
        Rejection::TooLarge(TooLarge::Workspace { .. }) => "too_much_workspace",
        Rejection::TooLarge(TooLarge::Queue { .. }) => "too_much_at_once",
        Rejection::QueueFull { limit: QueueLimit::Rows, .. } => "queue_full_rows",
        Rejection::QueueFull { limit: QueueLimit::Tokens, .. } => "queue_full_tokens",
        Rejection::QueueFull { limit: QueueLimit::HostBytes, .. } => "queue_full_bytes",
        Rejection::Late { at: LateAt::Admission, .. } => "late_at_admission",
        Rejection::Late { at: LateAt::Queue, .. } => "late_in_queue",
        Rejection::Late { at: LateAt::Step, .. } => "late_in_step",
        Rejection::Cancelled => "cancelled",
        Rejection::OutOfMemory { .. } => "out_of_memory",
        Rejection::NotLoaded => "not_loaded",
        Rejection::Loading { .. } => "loading",
        Rejection::Draining => "draining",
        Rejection::DoesNotFit { .. } => "does_not_fit",
        Rejection::Broken => "broken",
    }
}

const fn fault_word(fault: &Fault) -> &'static str {
    match fault {
        Fault::Model { .. } => "model",
        Fault::Panicked { .. } => "panicked",
        Fault::NotFinite { .. } => "not_finite",
        Fault::DeviceLost { .. } => "device_lost",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{Bytes, Micros};

    /// Every variant that exists today must have its series from the start. A new variant breaks the `match`es above,
    /// which stand beside the list.
    #[test]
    fn every_outcome_has_its_series() {
        let retry_after = Micros::ZERO;
        let (needed, available) = (Bytes::ZERO, Bytes::ZERO);
        let full = |limit| Rejection::QueueFull { limit, waiting: 0, asked: 0, allowed: 0, retry_after };
        let late = |at| Rejection::Late { at, waited: Micros::ZERO };
        let rejections = [
            Rejection::Empty,
            Rejection::TooLarge(TooLarge::Length { row: 0, needed: 1, possible: 0 }),
            Rejection::TooLarge(TooLarge::Rows { needed: 1, possible: 0 }),
            Rejection::TooLarge(TooLarge::Workspace { needed, possible: available }),
            Rejection::TooLarge(TooLarge::Queue { limit: QueueLimit::Rows, needed: 1, possible: 0 }),
            full(QueueLimit::Rows),
            full(QueueLimit::Tokens),
            full(QueueLimit::HostBytes),
            late(LateAt::Admission),
            late(LateAt::Queue),
            late(LateAt::Step),
            Rejection::Cancelled,
            Rejection::OutOfMemory { needed, available, retry_after },
            Rejection::NotLoaded,
            Rejection::Loading { retry_after },
            Rejection::Draining,
            Rejection::DoesNotFit { needed, available, retry_after },
            Rejection::Broken,
        ];
        let message = String::new;
        let faults = [
            Fault::Model { message: message() },
            Fault::Panicked { message: message() },
            Fault::NotFinite { row: 0 },
            Fault::DeviceLost { message: message() },
        ];
        let times = RequestTimes { total: Micros::ZERO, queued: Micros::ZERO };
        let mut words = vec![Outcome::Answered(times).words()];
        words.extend(rejections.iter().map(|rejection| Outcome::Rejected(rejection).words()));
        words.extend(faults.iter().map(|fault| Outcome::Faulted(fault).words()));
        assert_eq!(words, WORDS);
    }
}
