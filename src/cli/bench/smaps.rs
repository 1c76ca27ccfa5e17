//! A server's memory, sampled from outside through `/proc/PID/smaps_rollup`.

use std::path::PathBuf;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::Serialize;

/// How often the kernel is asked.
const PERIOD: Duration = Duration::from_millis(10);

/// How long the idle server is looked at before the load.
const IDLE: Duration = Duration::from_millis(500);

/// Bytes of a process, as the kernel counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Resident, shared pages counted in full.
    pub rss_bytes: u64,
    /// Resident, shared pages divided by the processes that share them.
    pub pss_bytes: u64,
    /// Resident and of this process alone.
    pub private_bytes: u64,
}

impl Usage {
    /// Reads the usage of a process.
    ///
    /// # Errors
    /// No such process, or not ours to look at.
    pub fn of(pid: u32) -> anyhow::Result<Usage> {
        let path = PathBuf::from(format!("/proc/{pid}/smaps_rollup"));
        let text = std::fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
        Usage::parse(&text).with_context(|| format!("{} has no Rss and Pss lines", path.display()))
    }

    fn parse(text: &str) -> Option<Usage> {
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
        };
        Some(Usage {
            rss_bytes: field("Rss")?,
            pss_bytes: field("Pss")?,
            private_bytes: field("Private_Clean")? + field("Private_Dirty")?,
        })
    }

    fn max(self, other: Usage) -> Usage {
        Usage {
            rss_bytes: self.rss_bytes.max(other.rss_bytes),
            pss_bytes: self.pss_bytes.max(other.pss_bytes),
            private_bytes: self.private_bytes.max(other.private_bytes),
        }
    }
}

/// What the samples of a run amount to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryUse {
    /// The largest values of the idle server, over half a second before the first call.
    pub idle: Usage,
    /// The largest values from then on.
    pub max: Usage,
    /// `max - idle`, each value by itself.
    pub over_idle: Usage,
    /// Samples taken under load.
    pub samples: u64,
    /// The longest time between two samples: a peak shorter than this can have been missed.
    pub gap_ms_max: f64,
}

/// A running sampler.
pub struct MemoryWatch {
    idle: Usage,
    stop: mpsc::Sender<()>,
    sampler: JoinHandle<(Usage, u64, Duration)>,
}

impl MemoryWatch {
    /// Looks at the idle process `pid` for half a second, then samples it until [`MemoryWatch::finish`].
    ///
    /// # Errors
    /// As [`Usage::of`].
    pub fn start(pid: u32) -> anyhow::Result<MemoryWatch> {
        let mut idle = Usage::of(pid)?;
        let began = Instant::now();
        while began.elapsed() < IDLE {
            std::thread::sleep(PERIOD);
            idle = idle.max(Usage::of(pid)?);
        }
        let (stop, stopped) = mpsc::channel();
        let sampler = std::thread::spawn(move || sample(pid, idle, &stopped));
        Ok(MemoryWatch { idle, stop, sampler })
    }

    /// Ends the sampling.
    pub fn finish(self) -> MemoryUse {
        drop(self.stop);
        let (max, samples, gap) = self.sampler.join().expect("the sampler does not panic");
        let over_idle = Usage {
            rss_bytes: max.rss_bytes - self.idle.rss_bytes,
            pss_bytes: max.pss_bytes - self.idle.pss_bytes,
            private_bytes: max.private_bytes - self.idle.private_bytes,
        };
        MemoryUse { idle: self.idle, max, over_idle, samples, gap_ms_max: gap.as_secs_f64() * 1e3 }
    }
}

/// Samples until told to stop, or until the process is gone. The maximum starts at the idle usage.
fn sample(pid: u32, idle: Usage, stopped: &mpsc::Receiver<()>) -> (Usage, u64, Duration) {
    let (mut max, mut samples, mut gap) = (idle, 0, Duration::ZERO);
    let mut last = Instant::now();
    while let Err(mpsc::RecvTimeoutError::Timeout) = stopped.recv_timeout(PERIOD) {
        let Ok(usage) = Usage::of(pid) else { break };
        max = max.max(usage);
        samples += 1;
        gap = gap.max(last.elapsed());
        last = Instant::now();
    }
    (max, samples, gap)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_text_is_read_in_bytes() {
        let text = "55d0-7ffd ---p 00000000 00:00 0   [rollup]\nRss:    2048 kB\nPss:  1500 kB\nPss_Dirty:  7 kB\n\
                    Private_Clean:  100 kB\nPrivate_Dirty:  900 kB\n";
        let usage = Usage { rss_bytes: 2 << 20, pss_bytes: 1500 << 10, private_bytes: 1000 << 10 };
        assert_eq!(Usage::parse(text), Some(usage));
        assert_eq!(Usage::parse("Rss: 1 kB"), None);
    }

    /// Goal: a peak that comes and goes is seen. Method: this process takes 64 MiB for 100 ms after the watch began.
    #[test]
    fn a_short_peak_of_a_real_process_is_seen() {
        let watch = MemoryWatch::start(std::process::id()).unwrap();
        let peak = vec![1u8; 64 << 20];
        std::thread::sleep(Duration::from_millis(100));
        drop(std::hint::black_box(peak));
        let used = watch.finish();
        assert!(used.samples >= 3, "{used:?}");
        // Other tests of this process free and take some meanwhile.
        assert!(used.over_idle.private_bytes >= 48 << 20, "{used:?}");
    }

    #[test]
    fn a_process_that_is_not_there_is_an_error() {
        assert!(MemoryWatch::start(u32::MAX).is_err());
    }
}
