//! Notices a device that is idle although there is work.

use crate::units::Timestamp;

/// Polls in a row that may end without a step or a later time to ask again. More than a handful of events of one moment
/// never come together without one of them changing something.
const POLLS_MAX: u32 = 1_000;

/// Counts idle polls. In a correct scheduler it never bites: an idle device with runnable work yields a step, or a time
/// at which to ask again.
#[derive(Debug, Default)]
pub(super) struct Watchdog {
    polls: u32,
    bites: u64,
}

impl Watchdog {
    /// A poll gave a step, or there was nothing to run.
    pub(super) fn rest(&mut self) {
        self.polls = 0;
    }

    /// There was something to run, nothing in flight and no step; `ask_again` is when to poll next. True when it bites:
    /// the oldest request then has to be failed, so that the rest can go on.
    #[must_use]
    pub(super) fn idle(&mut self, now: Timestamp, ask_again: Option<Timestamp>) -> bool {
        if ask_again.is_some_and(|at| at > now) {
            self.polls = 0;
            return false;
        }
        self.polls += 1;
        if self.polls < POLLS_MAX {
            return false;
        }
        self.polls = 0;
        self.bites += 1;
        true
    }

    /// How often it has bitten.
    pub(super) fn bites(&self) -> u64 {
        self.bites
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bites_after_so_many_polls_without_a_way_on_and_only_then() {
        let (mut watchdog, now) = (Watchdog::default(), Timestamp::new(5));
        for _ in 0..10 * POLLS_MAX {
            assert!(!watchdog.idle(now, Some(Timestamp::new(6))));
        }
        for _ in 1..POLLS_MAX {
            assert!(!watchdog.idle(now, Some(now)));
        }
        watchdog.rest();
        for _ in 1..POLLS_MAX {
            assert!(!watchdog.idle(now, None));
        }
        assert!(watchdog.idle(now, None));
        assert_eq!(watchdog.bites(), 1);
        assert!(!watchdog.idle(now, None));
    }
}
