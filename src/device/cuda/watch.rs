//! Watches for memory of ours that is in no book.
//!
//! Only NVML knows of it, and asking that takes milliseconds: more than a step's planning may wait. So a thread of its own
//! asks once a second.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::card::Card;

const INTERVAL: Duration = Duration::from_secs(1);

/// From here on it is worth a word, and again when it has changed by as much.
const ALARM_BYTES: i64 = 16 << 20;

/// Two looks that differ by more than this have caught the allocator at work, and say nothing.
const NOISE_BYTES: i64 = 4 << 20;

/// No reading.
const UNKNOWN: i64 = i64::MIN;

/// A running watch. Dropping it ends its thread.
pub(super) struct Watch {
    unattributed: Arc<AtomicI64>,
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    pub(super) fn start(card: &'static Card) -> io::Result<Watch> {
        let unattributed = Arc::new(AtomicI64::new(UNKNOWN));
        let (stop, stopped) = mpsc::channel::<()>();
        let seen = unattributed.clone();
        let thread = thread::Builder::new().name("card-watch".into()).spawn(move || {
            let mut alarm = Alarm::default();
            while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                let Some(bytes) = card.parts().ok().and_then(|parts| parts.unattributed) else { continue };
                let Some(steady) = alarm.look(bytes) else { continue };
                seen.store(steady.bytes, Relaxed);
                if steady.is_news {
                    tracing::warn!(
                        unattributed_bytes = steady.bytes,
                        "{} MiB of this process on the GPU are in no book: something allocates behind the allocator's back",
                        steady.bytes >> 20
                    );
                }
            }
        })?;
        Ok(Watch { unattributed, stop: Some(stop), thread: Some(thread) })
    }

    /// What was seen last; `None` where nothing says.
    pub(super) fn unattributed(&self) -> Option<i64> {
        Some(self.unattributed.load(Relaxed)).filter(|bytes| *bytes != UNKNOWN)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that watches the card had panicked");
        }
    }
}

/// Decides what is worth a word.
#[derive(Debug, Default)]
struct Alarm {
    last: Option<i64>,
    told: i64,
}

/// A reading that was the same twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Steady {
    bytes: i64,
    is_news: bool,
}

impl Alarm {
    fn look(&mut self, bytes: i64) -> Option<Steady> {
        let before = self.last.replace(bytes)?;
        if (bytes - before).abs() > NOISE_BYTES {
            return None;
        }
        let is_news = (bytes - self.told).abs() >= ALARM_BYTES;
        if is_news {
            self.told = bytes;
        }
        Some(Steady { bytes, is_news })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_stays_is_told_and_once() {
        const MIB: i64 = 1 << 20;
        let mut alarm = Alarm::default();
        let mut look = |mib: i64| alarm.look(mib * MIB).map(|steady| (steady.bytes / MIB, steady.is_news));
        assert_eq!(look(0), None);
        assert_eq!(look(1), Some((1, false)));
        assert_eq!(look(200), None, "a step was being allocated");
        assert_eq!(look(1), None);
        assert_eq!(look(100), None);
        assert_eq!(look(100), Some((100, true)));
        assert_eq!(look(101), Some((101, false)));
        assert_eq!(look(0), None);
        assert_eq!(look(0), Some((0, true)), "it is gone again");
    }
}
