//! Durations on the command line and in scripts.

use std::time::Duration;

/// `250us`, `40ms`, `1.5s`, `2m`: a number and its unit, which must be said.
///
/// # Errors
/// A sentence with what was found and what is allowed.
pub(in crate::cli) fn parse_duration(text: &str) -> Result<Duration, String> {
    let error = || format!("'{text}' is not a duration: write a number with us, ms, s or m, such as 40ms or 1.5s");
    let trimmed = text.trim();
    let digits = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(error)?;
    let (number, unit) = trimmed.split_at(digits);
    let value: f64 = number.parse().map_err(|_| error())?;
    let seconds = match unit.trim() {
        "us" => value / 1e6,
        "ms" => value / 1e3,
        "s" => value,
        "m" => value * 60.0,
        _ => return Err(error()),
    };
    Duration::try_from_secs_f64(seconds).map_err(|_| error())
}

/// Milliseconds as a float, for reports.
pub(super) fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_required() {
        let check = |text: &str, expected: Option<u64>| {
            assert_eq!(parse_duration(text).ok(), expected.map(Duration::from_micros), "{text}");
        };
        check("250us", Some(250));
        check("40ms", Some(40_000));
        check("1.5s", Some(1_500_000));
        check("2m", Some(120_000_000));
        check("0s", Some(0));
        check("5", None);
        check("ms", None);
        check("-1s", None);
        check("1h", None);
        check("1.2.3s", None);
    }
}
