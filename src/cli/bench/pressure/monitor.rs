//! Watches the memory of an enclosure from outside, and keeps the books of a virtual limit.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::enclosure::Enclosure;
use super::room::Room;
use super::timeline::MemoryPoint;
use crate::cli::bench::smaps::Usage;
use crate::units::Bytes;

/// How often memory is looked at.
const PERIOD: Duration = Duration::from_millis(10);

/// A running watch.
pub(super) struct Monitor {
    pids: Arc<Pids>,
    stop: mpsc::Sender<()>,
    watcher: JoinHandle<Watched>,
}

/// Who is watched; 0 while there is nobody.
#[derive(Default)]
struct Pids {
    server: AtomicU32,
    neighbour: AtomicU32,
}

/// What a watch has seen.
#[derive(Debug, Default)]
pub(super) struct Watched {
    /// Every 10 ms.
    pub(super) points: Vec<MemoryPoint>,
    /// When the server was first not there any more.
    pub(super) server_gone_s: Option<f64>,
}

impl Watched {
    /// Counts times from `zero_s` on, and forgets what was seen before `begin_s` of the new times.
    pub(super) fn count_from(&mut self, zero_s: f64, begin_s: f64) {
        self.points.iter_mut().for_each(|point| point.at_s -= zero_s);
        self.points.retain(|point| point.at_s >= begin_s);
        self.server_gone_s = self.server_gone_s.map(|gone_s| gone_s - zero_s);
    }
}

impl Monitor {
    /// Watches an enclosure in which nothing runs yet. Times count from `started`.
    pub(super) fn start(enclosure: &Enclosure, started: Instant) -> Monitor {
        let (stop, stopped) = mpsc::channel();
        let (room, limit) = (enclosure.room().clone(), enclosure.limit());
        let pids = Arc::<Pids>::default();
        let watched_pids = pids.clone();
        let watcher = std::thread::spawn(move || {
            let mut watched = Watched::default();
            while let Err(mpsc::RecvTimeoutError::Timeout) = stopped.recv_timeout(PERIOD) {
                let at_s = started.elapsed().as_secs_f64();
                let of = |pid: &AtomicU32| Some(pid.load(Ordering::Relaxed)).filter(|&pid| pid > 0);
                let (server, neighbour) = (of(&watched_pids.server), of(&watched_pids.neighbour));
                let server_bytes = server.and_then(resident);
                if server.is_some() && server_bytes.is_none() {
                    watched.server_gone_s.get_or_insert(at_s);
                }
                let neighbour_bytes = neighbour.and_then(resident);
                watched.points.extend(look(
                    &room,
                    limit,
                    at_s,
                    server_bytes.unwrap_or(0),
                    neighbour_bytes.unwrap_or(0),
                ));
            }
            watched
        });
        Monitor { pids, stop, watcher }
    }

    /// Watches this server from now on.
    pub(super) fn server(&self, pid: u32) {
        self.pids.server.store(pid, Ordering::Relaxed);
    }

    /// Watches this neighbour from now on.
    pub(super) fn neighbour(&self, pid: u32) {
        self.pids.neighbour.store(pid, Ordering::Relaxed);
    }

    /// Ends the watch.
    pub(super) fn finish(self) -> Watched {
        drop(self.stop);
        self.watcher.join().expect("the watcher does not panic")
    }
}

/// Bytes of a process: private ones and its part of shared ones. `None` when it is gone: a process that has ended but
/// was not waited for has an empty rollup, or none.
fn resident(pid: u32) -> Option<u64> {
    Usage::of(pid).ok().map(|usage| usage.pss_bytes).filter(|&bytes| bytes > 0)
}

/// One look. `None` where the room cannot be read: the neighbour would see that too, and say so.
fn look(room: &Room, limit: Bytes, at_s: f64, server_bytes: u64, neighbour_bytes: u64) -> Option<MemoryPoint> {
    let point = |free: Bytes, overrun: Bytes| MemoryPoint {
        at_s,
        free_bytes: free.get(),
        server_bytes,
        neighbour_bytes,
        overrun_bytes: overrun.get(),
    };
    match room {
        Room::Cgroup1(_) | Room::Cgroup2(_) => Some(point(room.free().ok()?, Bytes::ZERO)),
        // Who has it is not to be seen from here: all that is taken stands for both.
        Room::Card(_) => {
            let free = room.free().ok()?;
            let taken = limit.saturating_sub(free).get();
            Some(MemoryPoint { server_bytes: taken, neighbour_bytes: 0, ..point(free, Bytes::ZERO) })
        }
        Room::File(_) => {
            let held = Bytes::new(server_bytes) + Bytes::new(neighbour_bytes);
            let free = limit.saturating_sub(held);
            room.publish(free).ok()?;
            Some(point(free, held.saturating_sub(limit)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::enclosure::LimitBy;
    use super::*;

    /// Goal: a virtual limit's books say what is really held. Method: this process is watched as the server, under a
    /// limit that it does not reach and one that it exceeds.
    #[test]
    fn a_virtual_limit_counts_what_is_really_resident() {
        let check = |limit: Bytes, over: bool| {
            let enclosure = Enclosure::make(limit, LimitBy::Virtual).unwrap();
            let monitor = Monitor::start(&enclosure, Instant::now());
            monitor.server(std::process::id());
            std::thread::sleep(20 * PERIOD);
            let watched = monitor.finish();
            let last = *watched.points.last().expect("it has looked some ten times");
            assert_eq!(watched.server_gone_s, None);
            assert_eq!(enclosure.room().free().unwrap().get(), last.free_bytes);
            assert_eq!(last.overrun_bytes > 0, over, "{last:?}");
            assert_eq!(last.free_bytes == 0, over, "{last:?}");
            assert_eq!(last.free_bytes + last.server_bytes, limit.get() + last.overrun_bytes);
        };
        check(Bytes::gib(64), false);
        check(Bytes::kib(64), true);
    }

    #[test]
    fn times_count_from_when_calls_could_be_sent() {
        let point = |at_s| MemoryPoint { at_s, free_bytes: 1, server_bytes: 0, neighbour_bytes: 0, overrun_bytes: 0 };
        let mut watched = Watched { points: [1.0, 3.0, 5.0, 7.0].map(point).to_vec(), server_gone_s: Some(7.0) };
        watched.count_from(5.0, -2.0);
        assert_eq!(watched.points.iter().map(|point| point.at_s).collect::<Vec<_>>(), [-2.0, 0.0, 2.0]);
        assert_eq!(watched.server_gone_s, Some(2.0));
    }

    #[test]
    fn a_server_that_is_gone_is_noticed() {
        let limit = Bytes::mib(64);
        let enclosure = Enclosure::make(limit, LimitBy::Virtual).unwrap();
        let mut child = std::process::Command::new("/bin/sleep").arg("60").spawn().unwrap();
        let started = Instant::now();
        let monitor = Monitor::start(&enclosure, started);
        monitor.server(child.id());
        // On a busy machine a look may come much later than its time: wait for what it publishes, not for so long.
        let wait_for = |what: &dyn Fn(Bytes) -> bool| {
            while !enclosure.room().free().is_ok_and(what) {
                assert!(started.elapsed() < Duration::from_secs(30), "{:?}", enclosure.room().free());
                std::thread::sleep(PERIOD);
            }
        };
        wait_for(&|free| free < limit);
        let killed_s = started.elapsed().as_secs_f64();
        child.kill().unwrap(); // not waited for: the monitor must not take a zombie for a server
        wait_for(&|free| free == limit);
        let watched = monitor.finish();
        child.wait().unwrap();
        assert!(watched.server_gone_s.is_some_and(|at_s| at_s >= killed_s), "{:?}", watched.server_gone_s);
    }
}
