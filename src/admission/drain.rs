//! How fast a queue empties, for retry hints.

use crate::units::Micros;

/// Shortest hint: a client that comes back sooner than this only costs a refusal.
const HINT_MIN: Micros = Micros::millis(10);
/// Longest hint: the estimate is worth nothing that far ahead.
const HINT_MAX: Micros = Micros::secs(60);
/// The hint before anything was served.
const HINT_UNKNOWN: Micros = Micros::secs(1);
/// Weight of the newest step in the average: about the last ten steps count.
const NEWEST: f64 = 0.2;

/// Exponentially weighted average of the time in which a queue serves one row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DrainRate {
    micros_per_row: Option<f64>,
}

impl DrainRate {
    /// `rows` rows were served in `elapsed`, which counts only time in which they could have been served.
    pub fn record(&mut self, rows: u64, elapsed: Micros) {
        if rows == 0 {
            return;
        }
        let newest = elapsed.get() as f64 / rows as f64;
        let average = self.micros_per_row.map_or(newest, |before| before + NEWEST * (newest - before));
        self.micros_per_row = Some(average);
    }

    /// When `rows` rows will have been served, within bounds that keep the hint useful.
    pub fn time_for(&self, rows: f64) -> Micros {
        match self.micros_per_row {
            None => HINT_UNKNOWN,
            Some(micros) => Micros::new((micros * rows).ceil() as u64).clamp(HINT_MIN, HINT_MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_follow_the_measured_rate_within_bounds() {
        let mut drain = DrainRate::default();
        assert_eq!(drain.time_for(5.0), HINT_UNKNOWN);
        drain.record(10, Micros::millis(100));
        assert_eq!(drain.time_for(5.0), Micros::millis(50));
        assert_eq!(drain.time_for(0.5), HINT_MIN);
        assert_eq!(drain.time_for(1e9), HINT_MAX);
        drain.record(0, Micros::secs(1));
        assert_eq!(drain.time_for(5.0), Micros::millis(50), "a step without rows says nothing");
        drain.record(10, Micros::millis(200));
        assert_eq!(drain.time_for(5.0), Micros::millis(60), "one fifth of the way to the newest rate");
    }
}
