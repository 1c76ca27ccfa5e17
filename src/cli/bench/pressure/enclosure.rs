//! The limit that server and neighbour share.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};

use super::card;
use super::room::Room;
use crate::units::Bytes;

/// How often the removal of a cgroup is tried, 10 ms apart.
const REMOVALS_MAX: u32 = 200;

/// How the limit is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LimitBy {
    /// A cgroup where one can be made, else virtual.
    Auto,
    /// A memory cgroup; an error where none can be made.
    Cgroup,
    /// A file with the free bytes; nothing enforces it.
    Virtual,
    /// The memory of the first GPU.
    Card,
}

/// A limit on the memory of the processes started in it. Dropping it removes it; all of them must have ended.
pub(super) struct Enclosure {
    room: Room,
    limit: Bytes,
}

impl Enclosure {
    /// Makes the limit.
    ///
    /// # Errors
    /// With [`LimitBy::Cgroup`], why no cgroup can be made.
    pub(super) fn make(limit: Bytes, by: LimitBy) -> anyhow::Result<Enclosure> {
        // Arms follow each other, and a killed one may leave its cgroup behind: each gets a name of its own.
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("plimsoll-bench-{}-{number}", std::process::id());
        let room = match by {
            LimitBy::Card => return Ok(Enclosure { room: Room::Card(0), limit: card::total(0)? }),
            LimitBy::Virtual => virtual_room(&name, limit)?,
            LimitBy::Cgroup => cgroup(&name, limit)?,
            LimitBy::Auto => match cgroup(&name, limit) {
                Ok(room) => room,
                Err(error) => {
                    eprintln!("no memory cgroup can be made ({error:#}); the limit is virtual");
                    virtual_room(&name, limit)?
                }
            },
        };
        Ok(Enclosure { room, limit })
    }

    /// Where its free memory is read.
    pub(super) fn room(&self) -> &Room {
        &self.room
    }

    /// The limit.
    pub(super) fn limit(&self) -> Bytes {
        self.limit
    }

    /// A command that runs `program` inside, from its first page on.
    pub(super) fn command(&self, program: &Path) -> Command {
        let (Room::Cgroup1(folder) | Room::Cgroup2(folder)) = &self.room else {
            return Command::new(program);
        };
        // The shell enters the cgroup and becomes the program: a process that is moved later keeps what it has.
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(folder.join("cgroup.procs")).arg(program);
        command
    }
}

impl Drop for Enclosure {
    fn drop(&mut self) {
        // What is left behind costs a few KiB; there is nobody to tell.
        match &self.room {
            Room::File(path) => {
                let _ = std::fs::remove_file(path);
            }
            Room::Card(_) => {}
            // The kernel takes a moment to clear away those that it has killed, and keeps the folder as long.
            Room::Cgroup1(folder) | Room::Cgroup2(folder) => {
                for _ in 0..REMOVALS_MAX {
                    if std::fs::remove_dir(folder).is_ok() {
                        break;
                    }
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        }
    }
}

fn virtual_room(name: &str, limit: Bytes) -> anyhow::Result<Room> {
    let room = Room::File(std::env::temp_dir().join(name));
    room.publish(limit)?;
    Ok(room)
}

/// The first place where a cgroup with a limit can be made.
fn cgroup(name: &str, limit: Bytes) -> anyhow::Result<Room> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").context("/proc/self/mounts")?;
    let membership = std::fs::read_to_string("/proc/self/cgroup").context("/proc/self/cgroup")?;
    let places = places(&mounts, &membership);
    let mut why = anyhow::anyhow!("no memory controller is mounted");
    for place in places {
        match place.make(name, limit) {
            Ok(room) => return Ok(room),
            Err(error) => why = error,
        }
    }
    Err(why)
}

/// A folder under which a cgroup may be made.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    version: u8,
    folder: PathBuf,
}

/// Our own cgroup and the root of each hierarchy with memory in it. Own ones first: they are where a container may
/// write; in version 2 one with processes in it cannot have limited children, but the root can.
fn places(mounts: &str, membership: &str) -> Vec<Place> {
    let mut places = Vec::new();
    for line in mounts.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let [_, mount, kind, options, ..] = fields.as_slice() else { continue };
        let (version, own) = match *kind {
            "cgroup2" => (2, membership.lines().find_map(|line| line.strip_prefix("0::"))),
            "cgroup" if options.split(',').any(|option| option == "memory") => {
                let own = membership.lines().find_map(|line| line.split_once(":memory:"));
                (1, own.map(|(_, path)| path))
            }
            _ => continue,
        };
        let root = PathBuf::from(mount);
        if let Some(own) = own.map(|own| own.trim_start_matches('/')).filter(|own| !own.is_empty()) {
            places.push(Place { version, folder: root.join(own) });
        }
        places.push(Place { version, folder: root });
    }
    places
}

impl Place {
    fn make(&self, name: &str, limit: Bytes) -> anyhow::Result<Room> {
        let folder = self.folder.join(name);
        let parent = self.folder.display();
        if self.version == 2 {
            let controllers = std::fs::read_to_string(self.folder.join("cgroup.controllers"));
            let controllers = controllers.with_context(|| format!("{parent}/cgroup.controllers"))?;
            if !controllers.split_whitespace().any(|controller| controller == "memory") {
                bail!("{parent} has no memory controller");
            }
            // Already on in most places; where it is neither on nor can be switched on, the limit below fails.
            let _ = std::fs::write(self.folder.join("cgroup.subtree_control"), "+memory");
        }
        std::fs::create_dir(&folder).with_context(|| format!("{}", folder.display()))?;
        let limited = self.limit(&folder, limit);
        if limited.is_err() {
            let _ = std::fs::remove_dir(&folder);
        }
        limited
    }

    fn limit(&self, folder: &Path, limit: Bytes) -> anyhow::Result<Room> {
        let write = |file: &str, text: String| {
            let path = folder.join(file);
            std::fs::write(&path, text).with_context(|| format!("{}", path.display()))
        };
        match self.version {
            2 => {
                write("memory.max", limit.get().to_string())?;
                // Swapping would hide an overrun. Absent where the kernel has no swap accounting: nothing to forbid then.
                let _ = write("memory.swap.max", "0".to_owned());
                Ok(Room::Cgroup2(folder.to_owned()))
            }
            _ => {
                write("memory.limit_in_bytes", limit.get().to_string())?;
                let _ = write("memory.memsw.limit_in_bytes", limit.get().to_string());
                Ok(Room::Cgroup1(folder.to_owned()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_both_versions_are_found() {
        let mounts = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n\
                      cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let membership = "4:memory:/group/a\n1:cpu:/\n0::/\n";
        let place = |version, folder: &str| Place { version, folder: folder.into() };
        assert_eq!(
            places(mounts, membership),
            [
                place(1, "/sys/fs/cgroup/memory/group/a"),
                place(1, "/sys/fs/cgroup/memory"),
                place(2, "/sys/fs/cgroup/unified"),
            ]
        );
        assert_eq!(
            places("cgroup2 /cg cgroup2 rw 0 0", "0::/user.slice/x\n"),
            [place(2, "/cg/user.slice/x"), place(2, "/cg")]
        );
        assert!(places("proc /proc proc rw 0 0", "0::/").is_empty());
    }

    #[test]
    fn a_virtual_limit_is_a_file_as_long_as_it_lives() {
        let enclosure = Enclosure::make(Bytes::mib(7), LimitBy::Virtual).unwrap();
        let room = enclosure.room().clone();
        assert_eq!(room.free().unwrap(), Bytes::mib(7));
        room.publish(Bytes::mib(3)).unwrap();
        assert_eq!(room.free().unwrap(), Bytes::mib(3));
        assert_eq!(enclosure.command(Path::new("/bin/true")).get_program(), "/bin/true");
        drop(enclosure);
        assert!(room.free().is_err());
    }

    /// Goal: what runs in a cgroup counts there and is killed beyond its limit. Method: a shell that fills a variable
    /// with 64 MiB under a limit of 32 MiB; where no cgroup can be made, `Auto` must say so by being virtual.
    #[test]
    fn a_cgroup_kills_beyond_its_limit_or_the_limit_is_virtual() {
        let enclosure = Enclosure::make(Bytes::mib(32), LimitBy::Auto).unwrap();
        if let Room::File(_) = enclosure.room() {
            assert!(Enclosure::make(Bytes::mib(32), LimitBy::Cgroup).is_err());
            return;
        }
        assert_eq!(enclosure.room().kills().unwrap(), 0);
        let mut command = enclosure.command(Path::new("/bin/sh"));
        let fill = "x=$(head -c 67108864 /dev/zero | tr '\\0' x); echo ${#x}";
        let status = command.args(["-c", fill]).output().unwrap().status;
        assert!(!status.success());
        assert!(enclosure.room().kills().unwrap() >= 1);
        let room = enclosure.room().clone();
        drop(enclosure);
        assert!(room.free().is_err(), "the cgroup is gone");
    }
}
