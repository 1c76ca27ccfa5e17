//! Where the free memory of an enclosure is read.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, bail};

use super::card;
use crate::units::Bytes;

/// A place that tells the free bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Room {
    /// A memory cgroup of version 2: `memory.max - (memory.current - inactive_file)`.
    Cgroup2(PathBuf),
    /// A memory cgroup of version 1, from the files of that version.
    Cgroup1(PathBuf),
    /// A file that holds the number.
    File(PathBuf),
    /// A GPU, by its number: what its driver says.
    Card(u32),
}

impl Room {
    /// Free bytes now. File pages that the kernel would drop first count as free.
    ///
    /// # Errors
    /// A file that cannot be read or holds no number.
    pub fn free(&self) -> anyhow::Result<Bytes> {
        let (limit, used) = match self {
            Room::File(path) => return number(path).map(Bytes::new),
            Room::Card(ordinal) => return card::free(*ordinal),
            Room::Cgroup2(folder) => {
                (number(&folder.join("memory.max"))?, self.used(folder, "memory.current", "inactive_file")?)
            }
            Room::Cgroup1(folder) => (
                number(&folder.join("memory.limit_in_bytes"))?,
                self.used(folder, "memory.usage_in_bytes", "total_inactive_file")?,
            ),
        };
        Ok(Bytes::new(limit).saturating_sub(Bytes::new(used)))
    }

    fn used(&self, folder: &Path, usage: &str, inactive: &str) -> anyhow::Result<u64> {
        let usage = number(&folder.join(usage))?;
        let path = folder.join("memory.stat");
        let stat = std::fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
        let reclaimable = value_of(&stat, inactive).with_context(|| format!("{} has no {inactive}", path.display()))?;
        Ok(usage.saturating_sub(reclaimable))
    }

    /// Writes what a virtual limit leaves free, for those inside to read; the kernel keeps the books of a cgroup.
    /// Readers see the old number or the new one, never half of it.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn publish(&self, free: Bytes) -> anyhow::Result<()> {
        let path = match self {
            Room::File(path) => path,
            Room::Cgroup1(_) | Room::Cgroup2(_) | Room::Card(_) => return Ok(()),
        };
        let new = path.with_extension("new");
        std::fs::write(&new, format!("{}\n", free.get()))
            .and_then(|()| std::fs::rename(&new, path))
            .with_context(|| format!("{}", path.display()))
    }

    /// Processes that the kernel has killed here for want of memory; 0 where there is no kernel limit.
    ///
    /// # Errors
    /// As [`Room::free`].
    pub fn kills(&self) -> anyhow::Result<u64> {
        let path = match self {
            Room::File(_) | Room::Card(_) => return Ok(0),
            Room::Cgroup2(folder) => folder.join("memory.events"),
            Room::Cgroup1(folder) => folder.join("memory.oom_control"),
        };
        let text = std::fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
        value_of(&text, "oom_kill").with_context(|| format!("{} has no oom_kill", path.display()))
    }
}

/// The number behind a key, in the kernel's lines of `key value`.
fn value_of(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

fn number(path: &Path) -> anyhow::Result<u64> {
    let text = std::fs::read_to_string(path).with_context(|| format!("{}", path.display()))?;
    match text.trim() {
        "max" => Ok(u64::MAX),
        digits => digits.parse().with_context(|| format!("{} holds '{digits}'", path.display())),
    }
}

impl FromStr for Room {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Room> {
        match text.split_once(':') {
            Some(("cgroup2", path)) => Ok(Room::Cgroup2(path.into())),
            Some(("cgroup1", path)) => Ok(Room::Cgroup1(path.into())),
            Some(("file", path)) => Ok(Room::File(path.into())),
            Some(("card", ordinal)) => ordinal.parse().map(Room::Card).context("the number of a GPU"),
            _ => bail!("'{text}' is not cgroup2:FOLDER, cgroup1:FOLDER, file:FILE or card:NUMBER"),
        }
    }
}

impl fmt::Display for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Room::Cgroup2(path) => write!(f, "cgroup2:{}", path.display()),
            Room::Cgroup1(path) => write!(f, "cgroup1:{}", path.display()),
            Room::File(path) => write!(f, "file:{}", path.display()),
            Room::Card(ordinal) => write!(f, "card:{ordinal}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        folder
    }

    #[test]
    fn both_versions_leave_out_what_the_kernel_would_drop() {
        let stat = "anon 5\ninactive_file 300\ntotal_inactive_file 200\nactive_file 7\n";
        let two = folder(&[
            ("memory.max", "1000\n"),
            ("memory.current", "800\n"),
            ("memory.stat", stat),
            ("memory.events", "low 0\noom 4\noom_kill 2\noom_group_kill 9\n"),
        ]);
        let room = Room::Cgroup2(two.path().into());
        assert_eq!((room.free().unwrap(), room.kills().unwrap()), (Bytes::new(500), 2));
        let one = folder(&[
            ("memory.limit_in_bytes", "1000\n"),
            ("memory.usage_in_bytes", "800\n"),
            ("memory.stat", stat),
            ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"),
        ]);
        let room = Room::Cgroup1(one.path().into());
        assert_eq!((room.free().unwrap(), room.kills().unwrap()), (Bytes::new(400), 1));
    }

    #[test]
    fn over_the_limit_nothing_is_free() {
        let two = folder(&[("memory.max", "100"), ("memory.current", "130"), ("memory.stat", "inactive_file 0\n")]);
        assert_eq!(Room::Cgroup2(two.path().into()).free().unwrap(), Bytes::ZERO);
        std::fs::remove_file(two.path().join("memory.stat")).unwrap();
        assert!(Room::Cgroup2(two.path().into()).free().is_err());
    }

    #[test]
    fn a_room_is_read_and_written_alike() {
        for text in ["cgroup2:/sys/fs/cgroup/a", "cgroup1:/a", "file:/tmp/free", "card:1"] {
            assert_eq!(text.parse::<Room>().unwrap().to_string(), text);
        }
        assert!("cgroup3:/a".parse::<Room>().is_err() && "card:a".parse::<Room>().is_err());
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "4096\n").unwrap();
        let room = Room::File(file.path().into());
        assert_eq!((room.free().unwrap(), room.kills().unwrap()), (Bytes::kib(4), 0));
    }
}
