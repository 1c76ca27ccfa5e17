//! The questions that depend on the request alone, and on the clock.

use super::{LateAt, Rejection, RequestLimits, TooLarge};
use crate::memory::RowFacts;
use crate::units::{Micros, Timestamp};

/// Can these rows ever be served, as far as the model is concerned?
///
/// # Errors
/// [`Rejection::Empty`], or [`Rejection::TooLarge`] with the first row that is too long, or the number of rows.
pub fn servable(rows: &[RowFacts], limits: &RequestLimits) -> Result<(), Rejection> {
    if rows.is_empty() {
        return Err(Rejection::Empty);
    }
    let count = u32::try_from(rows.len()).unwrap_or(u32::MAX);
    if count > limits.rows_max {
        return Err(Rejection::TooLarge(TooLarge::Rows { needed: count, possible: limits.rows_max }));
    }
    for (row, facts) in (0u32..).zip(rows) {
        if facts.tokens > limits.length_max {
            let too_large = TooLarge::Length { row, needed: facts.tokens, possible: limits.length_max };
            return Err(Rejection::TooLarge(too_large));
        }
    }
    Ok(())
}

/// Can a request that arrives now still meet `deadline`, if nothing but the remainder of what is in flight comes
/// before its own smallest step? Everything else that waits is left out: it may be gone, or jumped over, by then.
///
/// # Errors
/// [`Rejection::Late`], found at admission.
pub fn in_time(now: Timestamp, deadline: Option<Timestamp>, ahead: Micros, alone: Micros) -> Result<(), Rejection> {
    match deadline {
        Some(deadline) if now + ahead + alone > deadline || deadline <= now => {
            Err(Rejection::Late { at: LateAt::Admission, waited: Micros::ZERO })
        }
        Some(_) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_servable_up_to_both_limits() {
        let limits = RequestLimits { rows_max: 3, length_max: 8 };
        let check = |lengths: &[u32], expected: Result<(), Rejection>| {
            let rows: Vec<_> = lengths.iter().map(|&tokens| RowFacts { tokens }).collect();
            assert_eq!(servable(&rows, &limits), expected, "{lengths:?}");
        };
        let too_large = |what| Err(Rejection::TooLarge(what));
        check(&[], Err(Rejection::Empty));
        check(&[1], Ok(()));
        check(&[8, 8, 8], Ok(()));
        check(&[1, 1, 1, 1], too_large(TooLarge::Rows { needed: 4, possible: 3 }));
        check(&[8, 9, 10], too_large(TooLarge::Length { row: 1, needed: 9, possible: 8 }));
    }

    #[test]
    fn a_deadline_is_refused_only_when_it_cannot_be_met() {
        let now = Timestamp::new(1_000);
        let check = |deadline: Option<u64>, ahead: u64, alone: u64, expected: bool| {
            let found = in_time(now, deadline.map(Timestamp::new), Micros::new(ahead), Micros::new(alone));
            assert_eq!(found.is_ok(), expected, "{deadline:?} {ahead} {alone}");
        };
        check(None, 1 << 40, 1 << 40, true);
        check(Some(1_300), 100, 200, true);
        check(Some(1_299), 100, 200, false);
        check(Some(1_000), 0, 0, false);
        check(Some(1_001), 0, 0, true);
        check(Some(999), 0, 0, false);
    }
}
