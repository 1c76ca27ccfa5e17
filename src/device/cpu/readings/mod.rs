//! How much memory the machine, or our share of it, could still give.
//!
//! Two authorities bound a process: the machine (`MemAvailable`) and every control group that it is in, up to the root.
//! What can still be taken is the smallest of them, and of what a file says where there is one.

mod cgroup;
mod meminfo;
mod reread;

use std::io;
use std::path::{Path, PathBuf};

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
    /// Says how much may still be taken. It is replaced as a whole, so that it has to be opened again.
    file: Option<PathBuf>,
}

impl SystemReadings {
    /// Opens them. Groups that cannot be found (no such file system, or none mounted) are taken as no limit.
    ///
    /// # Errors
    /// If `/proc/meminfo` cannot be opened.
    pub fn open() -> io::Result<SystemReadings> {
        SystemReadings::beside(None)
    }

    /// The same, with a file that has a number of bytes as its text: no more than so many may be taken.
    ///
    /// # Errors
    /// As [`SystemReadings::open`].
    pub fn beside(file: Option<PathBuf>) -> io::Result<SystemReadings> {
        let meminfo = Reread::open("/proc/meminfo".as_ref())?;
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let membership = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let groups = Hierarchy::find(&mounts, &membership)
            .map(|hierarchy| {
                hierarchy.folders().filter_map(|folder| cgroup::Group::open(hierarchy.version, &folder)).collect()
            })
            .unwrap_or_default();
        Ok(SystemReadings { meminfo, groups, file })
    }

    /// Reads them all.
    ///
    /// # Errors
    /// If `/proc/meminfo` or the file cannot be read or is not in its form. A group that has vanished is skipped.
    pub fn read(&mut self) -> io::Result<SystemMemory> {
        let machine = Meminfo::parse(self.meminfo.text()?).map_err(io::Error::other)?;
        let whole = SystemMemory { free: machine.available, total: machine.total };
        let system = self.groups.iter_mut().filter_map(cgroup::Group::read).fold(whole, |smallest, group| {
            // A limit above the machine's memory binds nothing, which is also how version 1 writes "unlimited".
            SystemMemory { free: smallest.free.min(group.headroom), total: smallest.total.min(group.limit) }
        });
        let told = self.file.as_deref().map(told).transpose()?;
        Ok(SystemMemory { free: system.free.min(told.unwrap_or(Bytes::MAX)), ..system })
    }
}

/// The number of bytes that a file says.
fn told(path: &Path) -> io::Result<Bytes> {
    let said = |error: &dyn std::fmt::Display| io::Error::other(format!("{}: {error}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| said(&error))?;
    let bytes = text.trim().parse().map_err(|_| said(&format_args!("'{}' is no number of bytes", text.trim())))?;
    Ok(Bytes::new(bytes))
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
    fn a_file_bounds_what_the_system_says() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("free");
        let mut readings = SystemReadings::beside(Some(path.clone())).unwrap();
        let error = readings.read().unwrap_err().to_string();
        assert!(error.contains(path.to_str().unwrap()), "{error}");
        // Replaced as a whole, as its writers do.
        for (text, expected) in [("1048576\n", Bytes::mib(1)), ("0", Bytes::ZERO)] {
            let new = path.with_extension("new");
            std::fs::write(&new, text).unwrap();
            std::fs::rename(&new, &path).unwrap();
            assert_eq!(readings.read().unwrap().free, expected);
        }
        let system = SystemReadings::open().unwrap().read().unwrap();
        std::fs::write(&path, u64::MAX.to_string()).unwrap();
        let memory = readings.read().unwrap();
        assert!(memory.free <= system.total && memory.total == system.total);
        std::fs::write(&path, "much").unwrap();
        assert!(readings.read().unwrap_err().to_string().contains("'much' is no number of bytes"));
    }

    #[test]
    fn what_is_touched_is_missing_from_the_next_reading() {
        // Others on the machine free memory too, and what was freed a moment ago waits in lists of each processor, where it
        // counts as taken already: so several blocks are held, until one is missed, with a wide margin.
        let mut readings = SystemReadings::open().unwrap();
        let mut held = Vec::new();
        let mut is_missed = || {
            let before = readings.read().unwrap().free;
            held.push(std::hint::black_box(vec![1u8; 256 << 20]));
            before.saturating_sub(readings.read().unwrap().free) > Bytes::mib(128)
        };
        assert!((0..10).any(|_| is_missed()), "2.5 GiB were taken and not missed");
    }
}
