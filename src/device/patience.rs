//! Waiting awake, where sleeping and waking would take longer than what is waited for.

use std::hint;
use std::time::{Duration, Instant};

/// How long a thread looks for its next message before it sleeps. To wake a thread takes tens of microseconds; a small step
/// on a GPU takes 200, with four such hand-overs between its call and its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Patience(Duration);

/// With fewer cores than this others have better use for a core than a thread that waits.
const CORES_MIN: usize = 4;

/// As long as a caller takes that has its answer and sends the next call: a thread that waits longer would seldom be right.
const CARD: Duration = Duration::from_millis(1);

impl Patience {
    /// Sleeps at once.
    pub const NONE: Patience = Patience(Duration::ZERO);

    /// That of those who wait for a GPU or for its next work. At most a millisecond of a core for each message.
    pub fn of_a_card() -> Patience {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        if cores >= CORES_MIN { Patience(CARD) } else { Patience::NONE }
    }

    /// Asks for a message until there is one or patience is over, and at most `longest`. It is asked for once in any case.
    pub fn look<T>(self, longest: Duration, mut receive: impl FnMut() -> Option<T>) -> Option<T> {
        let began = Instant::now();
        let patience = self.0.min(longest);
        loop {
            if let Some(message) = receive() {
                return Some(message);
            }
            if began.elapsed() >= patience {
                return None;
            }
            hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_asks_once_without_patience_and_again_with_it() {
        let asked = |patience: Patience, longest| {
            let mut count = 0;
            let got = patience.look(longest, || {
                count += 1;
                (count == 3).then_some(count)
            });
            (got, count)
        };
        let hour = Duration::from_secs(3600);
        assert_eq!(asked(Patience::NONE, hour), (None, 1));
        assert_eq!(asked(Patience(hour), Duration::ZERO), (None, 1));
        assert_eq!(asked(Patience(hour), hour), (Some(3), 3));
    }
}
