//! How much memory the machine, or our share of it, could still give.
//!
//! Two authorities bound a process: the machine (`MemAvailable`) and every control group that it is in, up to the root.
//! What can still be taken is the smallest of them.

mod cgroup;
mod meminfo;
mod reread;

use std::io;

use cgroup::Hierarchy;
use meminfo::Meminfo;
use reread::Reread;

use crate::units::Bytes;

/// What can be taken, and of how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SystemMemory {
    /// Bytes that could be taken now without swapping or meeting a limit.
    pub free: Bytes,
    /// All of the machine's memory, or the smallest limit.
    pub total: Bytes,
}

/// Open files of the two authorities. A reading is a few `pread`s: about 20 us, most of it the kernel's formatting.
pub struct SystemReadings {
    meminfo: Reread,
    /// From our own group up to the root; empty without control groups.
    groups: Vec<cgroup::Group>,
}

impl SystemReadings {
    /// Opens them. Groups that cannot be found (no such file system, or none mounted) are taken as no limit.
    ///
    /// # Errors
    /// If `/proc/meminfo` cannot be opened.
    pub fn open() -> io::Result<SystemReadings> {
        let meminfo = Reread::open("/proc/meminfo".as_ref())?;
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let membership = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let groups = Hierarchy::find(&mounts, &membership)
            .map(|hierarchy| {
                hierarchy.folders().filter_map(|folder| cgroup::Group::open(hierarchy.version, &folder)).collect()
            })
            .unwrap_or_default();
        Ok(SystemReadings { meminfo, groups })
    }

    /// Reads them all.
    ///
    /// # Errors
    /// If `/proc/meminfo` cannot be read or is not in its form. A group that has vanished is skipped.
    pub fn read(&mut self) -> io::Result<SystemMemory> {
        let machine = Meminfo::parse(self.meminfo.text()?).map_err(io::Error::other)?;
        let whole = SystemMemory { free: machine.available, total: machine.total };
        Ok(self.groups.iter_mut().filter_map(cgroup::Group::read).fold(whole, |smallest, group| {
            // A limit above the machine's memory binds nothing, which is also how version 1 writes "unlimited".
            SystemMemory { free: smallest.free.min(group.headroom), total: smallest.total.min(group.limit) }
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_memory() {
        let mut readings = SystemReadings::open().unwrap();
        for _ in 0..3 {
            let memory = readings.read().unwrap();
            assert!(memory.free > Bytes::ZERO && memory.free <= memory.total);
        }
    }

    #[test]
    fn what_is_touched_is_missing_from_the_next_reading() {
        // Others on the machine free memory too, so one of a few attempts has to show it, with a wide margin.
        let mut readings = SystemReadings::open().unwrap();
        let mut falls = (0..5).map(|_| {
            let before = readings.read().unwrap().free;
            let block = std::hint::black_box(vec![1u8; 256 << 20]);
            let with_it = readings.read().unwrap().free;
            drop(block);
            before.saturating_sub(with_it)
        });
        assert!(falls.any(|fall| fall > Bytes::mib(128)), "256 MiB were taken and not missed");
    }
}
