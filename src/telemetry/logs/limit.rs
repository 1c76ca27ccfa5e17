//! One line per cause and second, so that a flood of requests is not also a flood of lines.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::units::ModelId;

const PERIOD: Duration = Duration::from_secs(1);

static LINES: Limiter = Limiter { causes: Mutex::new(BTreeMap::new()) };

/// May a line about this cause be written now? `Some(n)`: yes, and `n` lines about it were suppressed since the last
/// one, which the line should say. `None`: one was written less than a second ago; this one is counted.
///
/// What the end of a burst suppressed is told by the next line of its cause; the metrics count every request anyway.
///
/// ```
/// # use plimsoll::telemetry::logs;
/// if let Some(suppressed) = logs::admit("queue_full", None) {
///     tracing::warn!(suppressed, "the queue is full");
/// }
/// ```
///
/// The memory it takes is bounded: causes are words of the program, models those of the repository.
pub fn admit(cause: &'static str, model: Option<ModelId>) -> Option<u64> {
    LINES.admit_at(cause, model, Instant::now())
}

type Cause = (&'static str, Option<ModelId>);

struct Limiter {
    causes: Mutex<BTreeMap<Cause, Window>>,
}

struct Window {
    opened: Instant,
    suppressed: u64,
}

impl Limiter {
    fn admit_at(&self, cause: &'static str, model: Option<ModelId>, now: Instant) -> Option<u64> {
        let mut causes = self.causes.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(window) = causes.get_mut(&(cause, model)) else {
            causes.insert((cause, model), Window { opened: now, suppressed: 0 });
            return Some(0);
        };
        if now.saturating_duration_since(window.opened) < PERIOD {
            window.suppressed += 1;
            return None;
        }
        window.opened = now;
        Some(std::mem::take(&mut window.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_per_cause_and_second_and_the_next_tells_how_many_were_suppressed() {
        let limiter = Limiter { causes: Mutex::default() };
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let (a, b) = (Some(ModelId::new(0)), Some(ModelId::new(1)));
        assert_eq!(limiter.admit_at("full", a, at(0)), Some(0));
        assert_eq!(limiter.admit_at("full", a, at(1)), None);
        assert_eq!(limiter.admit_at("full", a, at(999)), None);
        assert_eq!(limiter.admit_at("full", b, at(999)), Some(0), "another model has its own line");
        assert_eq!(limiter.admit_at("late", a, at(999)), Some(0), "another cause has its own line");
        assert_eq!(limiter.admit_at("full", a, at(1000)), Some(2));
        assert_eq!(limiter.admit_at("full", a, at(2000)), Some(0));
    }
}
