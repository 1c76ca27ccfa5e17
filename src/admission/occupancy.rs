//! What waits for one model, and whether there is room for more.

use super::{DrainRate, QueueLimit, QueueLimits, Rejection, TooLarge};
use crate::units::Bytes;

/// What waits for one model, in the three units that are limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// Rows that wait for the device.
    pub rows: u64,
    /// Tokens of those rows.
    pub tokens: u64,
    /// Host memory of all requests that are not answered yet.
    pub host_bytes: Bytes,
}

impl Occupancy {
    /// Is there room for `asked` beside what waits already? One rule for unary calls, streams and client batches.
    ///
    /// # Errors
    /// [`Rejection::TooLarge`] where not even an empty queue takes it. [`Rejection::QueueFull`] with the first limit that
    /// does not hold, in the order rows, tokens, host bytes; its hint is the time in which as much as is missing will have
    /// been served.
    pub fn admit(&self, asked: Occupancy, limits: &QueueLimits, drain: &DrainRate) -> Result<(), Rejection> {
        let checks = [
            (QueueLimit::Rows, self.rows, asked.rows, limits.rows),
            (QueueLimit::Tokens, self.tokens, asked.tokens, limits.tokens),
            (QueueLimit::HostBytes, self.host_bytes.get(), asked.host_bytes.get(), limits.host_bytes.get()),
        ];
        for (limit, _, needed, possible) in checks {
            if needed > possible {
                return Err(Rejection::TooLarge(TooLarge::Queue { limit, needed, possible }));
            }
        }
        for (limit, waiting, asked, allowed) in checks {
            let missing = waiting.saturating_add(asked).saturating_sub(allowed);
            if missing > 0 {
                // The part of what waits that has to go first, in rows, as if all rows were alike.
                let part = missing as f64 / waiting.max(1) as f64;
                let retry_after = drain.time_for(part * self.rows.max(1) as f64);
                return Err(Rejection::QueueFull { limit, waiting, asked, allowed, retry_after });
            }
        }
        Ok(())
    }

    /// Both together.
    pub fn plus(self, other: Occupancy) -> Occupancy {
        Occupancy {
            rows: self.rows.saturating_add(other.rows),
            tokens: self.tokens.saturating_add(other.tokens),
            host_bytes: self.host_bytes + other.host_bytes,
        }
    }

    /// What is left when `other`, a part of it, is gone.
    pub fn minus(self, other: Occupancy) -> Occupancy {
        debug_assert!(self.rows >= other.rows && self.tokens >= other.tokens && self.host_bytes >= other.host_bytes);
        Occupancy {
            rows: self.rows.saturating_sub(other.rows),
            tokens: self.tokens.saturating_sub(other.tokens),
            host_bytes: self.host_bytes.saturating_sub(other.host_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Micros;

    const LIMITS: QueueLimits = QueueLimits { rows: 100, tokens: 1_000, host_bytes: Bytes::new(10_000) };

    fn amount(rows: u64, tokens: u64, host_bytes: u64) -> Occupancy {
        Occupancy { rows, tokens, host_bytes: Bytes::new(host_bytes) }
    }

    #[test]
    fn each_limit_admits_its_last_unit_and_names_itself_after_it() {
        let check = |waiting: Occupancy, asked: Occupancy, expected: Option<QueueLimit>| {
            let found = waiting.admit(asked, &LIMITS, &DrainRate::default()).err().map(|rejection| match rejection {
                Rejection::QueueFull { limit, .. } => limit,
                other => panic!("{other:?}"),
            });
            assert_eq!(found, expected, "{waiting:?} + {asked:?}");
        };
        check(amount(0, 0, 0), amount(100, 1_000, 10_000), None);
        check(amount(99, 999, 9_999), amount(1, 1, 1), None);
        check(amount(100, 0, 0), amount(1, 1, 1), Some(QueueLimit::Rows));
        check(amount(0, 1_000, 0), amount(1, 1, 1), Some(QueueLimit::Tokens));
        check(amount(0, 0, 10_000), amount(1, 1, 1), Some(QueueLimit::HostBytes));
        check(amount(100, 1_000, 0), amount(1, 1, 1), Some(QueueLimit::Rows));
    }

    #[test]
    fn what_an_empty_queue_does_not_take_is_not_to_be_sent_again() {
        for (asked, limit, needed, possible) in [
            (amount(101, 0, 0), QueueLimit::Rows, 101, 100),
            (amount(u64::MAX, 1, 1), QueueLimit::Rows, u64::MAX, 100),
            (amount(1, 1_001, 0), QueueLimit::Tokens, 1_001, 1_000),
            (amount(1, 1, 10_001), QueueLimit::HostBytes, 10_001, 10_000),
        ] {
            for waiting in [amount(0, 0, 0), amount(100, 1_000, 10_000)] {
                let rejection = waiting.admit(asked, &LIMITS, &DrainRate::default()).unwrap_err();
                assert_eq!(rejection, Rejection::TooLarge(TooLarge::Queue { limit, needed, possible }));
                assert_eq!(rejection.retry_after(), None);
            }
        }
    }

    #[test]
    fn the_hint_is_the_time_to_serve_what_is_missing() {
        let mut drain = DrainRate::default();
        drain.record(1, Micros::millis(2));
        let rejection = amount(100, 500, 0).admit(amount(10, 10, 0), &LIMITS, &drain).unwrap_err();
        let expected = Rejection::QueueFull {
            limit: QueueLimit::Rows,
            waiting: 100,
            asked: 10,
            allowed: 100,
            retry_after: Micros::millis(20),
        };
        assert_eq!(rejection, expected);
        // 1,200 tokens wait or are asked for, 200 too many: one fifth of the 1,000 that wait, which are 50 rows.
        let rejection = amount(50, 1_000, 0).admit(amount(1, 200, 0), &LIMITS, &drain).unwrap_err();
        assert_eq!(rejection.retry_after(), Some(Micros::millis(20)));
    }

    #[test]
    fn plus_and_minus_are_inverse() {
        let (some, more) = (amount(1, 2, 3), amount(4, 5, 6));
        assert_eq!(some.plus(more), amount(5, 7, 9));
        assert_eq!(some.plus(more).minus(more), some);
    }
}
