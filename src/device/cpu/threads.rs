//! How many threads compute, and telling the libraries before they start any.

use std::num::NonZeroUsize;
use std::sync::Once;
use std::thread;

use super::allocator::mark_compute_thread;
use crate::ops;

/// Why the number of threads cannot be set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ThreadsError {
    /// The libraries take it from the environment, which may be changed only while there is one thread.
    #[error(
        "the number of compute threads must be set before any thread is started; {running} are running, as under a \
         profiler: start the program with {settings} in its environment"
    )]
    TooLate {
        /// Threads of the process.
        running: usize,
        /// What would be set.
        settings: String,
    },
}

/// Tries of a waiting thread of candle's pool before it goes to sleep; candle's own value is 25,000, about 100 us on a
/// core of its own. Between two steps the core is the server's: 2,000 still bridges the gaps between the matrix
/// products of one step, which is where sleeping would cost a wake-up.
const SPIN_LIMIT: (&str, &str) = ("CANDLE_BARRIER_POOL_SPIN_LIMIT", "2000");

/// Compute threads for a machine of `cores`: all but one, which is the server's, from four cores on; on fewer a whole
/// core is too large a part to leave idle, and the server takes its turns.
///
/// More threads than free cores are far worse than fewer: candle's quantized products wait for the slowest thread.
pub fn default_compute_threads(cores: NonZeroUsize) -> NonZeroUsize {
    match cores.get() {
        few @ 1..4 => NonZeroUsize::new(few),
        many => NonZeroUsize::new(many - 1),
    }
    .unwrap_or(NonZeroUsize::MIN)
}

/// Cores that this process may use: affinity and the control group's quota are taken into account.
pub fn usable_cores() -> NonZeroUsize {
    thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// Tells rayon and candle to compute with `threads` threads. Call it first in `main`: they read it once, at their first
/// use, from the environment. A value that the user has set for candle's spinning stays.
///
/// # Errors
/// If something is to be set and the process has started a thread.
pub fn set_compute_threads(threads: NonZeroUsize) -> Result<(), ThreadsError> {
    let count = threads.to_string();
    let mut settings = vec![("RAYON_NUM_THREADS", count.as_str()), ("CANDLE_NUM_THREADS", count.as_str())];
    if std::env::var_os(SPIN_LIMIT.0).is_none() {
        settings.push(SPIN_LIMIT);
    }
    // Profilers start threads before `main`.
    settings.retain(|(name, value)| std::env::var_os(name).is_none_or(|found| found != *value));
    let running = running_threads();
    if running != 1 && !settings.is_empty() {
        let settings: Vec<_> = settings.iter().map(|(name, value)| format!("{name}={value}")).collect();
        return Err(ThreadsError::TooLate { running, settings: settings.join(" ") });
    }
    for (name, value) in settings {
        // SAFETY: this is the only thread, as counted above, so nobody else reads or writes the environment.
        unsafe { std::env::set_var(name, value) };
    }
    Ok(())
}

/// Threads that compute, as the libraries see it.
pub fn compute_threads() -> usize {
    candle_core::utils::get_num_threads()
}

fn running_threads() -> usize {
    // Without /proc the number cannot be known; "two" makes the caller refuse.
    std::fs::read_dir("/proc/self/task").map_or(2, Iterator::count)
}

/// Starts the threads of both pools and marks them as computing for the device. The calling thread takes part in
/// candle's pool and stays what it is. What each thread keeps is allocated now, before any step could be charged for it.
pub(super) fn mark_compute_threads() {
    rayon::broadcast(|_| mark_compute_thread());
    // Once: with a second device a step of the first could be charged for it.
    static WARM_UP: Once = Once::new();
    WARM_UP.call_once(|| {
        rayon::broadcast(|_| ops::warm_up_thread());
    });
    ops::warm_up_thread();
    let pool = candle_core::utils::barrier_pool();
    let workers = pool.n_workers();
    pool.execute(|thread| {
        if thread < workers {
            mark_compute_thread();
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_is_left_to_the_server_where_there_are_enough() {
        let check = |cores, threads| {
            let cores = NonZeroUsize::new(cores).unwrap();
            assert_eq!(default_compute_threads(cores).get(), threads);
        };
        check(1, 1);
        check(2, 2);
        check(3, 3);
        check(4, 3);
        check(64, 63);
    }

    #[test]
    fn a_process_with_threads_is_refused() {
        let refused = thread::spawn(|| set_compute_threads(NonZeroUsize::new(4321).unwrap())).join().unwrap();
        let refused = refused.unwrap_err();
        assert!(matches!(refused, ThreadsError::TooLate { running: 2.., .. }));
        assert!(refused.to_string().contains("RAYON_NUM_THREADS=4321 CANDLE_NUM_THREADS=4321"), "{refused}");
    }
}
