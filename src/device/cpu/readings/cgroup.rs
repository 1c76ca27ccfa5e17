//! Control groups, versions 1 and 2: where ours are, and what they leave us.

use std::path::{Path, PathBuf};

use super::reread::Reread;
use crate::units::Bytes;

/// The two versions write the same facts under different names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    V1,
    V2,
}

impl Version {
    fn files(self) -> Files {
        match self {
            Version::V1 => Files {
                limit: "memory.limit_in_bytes",
                usage: "memory.usage_in_bytes",
                // The plain `inactive_file` of version 1 leaves out the groups below.
                inactive: "total_inactive_file",
            },
            Version::V2 => Files { limit: "memory.max", usage: "memory.current", inactive: "inactive_file" },
        }
    }
}

struct Files {
    limit: &'static str,
    usage: &'static str,
    inactive: &'static str,
}

/// Where the memory controller of this process is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hierarchy {
    pub(super) version: Version,
    /// Where the hierarchy is mounted.
    mount: PathBuf,
    /// Our group below it.
    group: PathBuf,
}

impl Hierarchy {
    /// Finds it from the texts of `/proc/self/mountinfo` and `/proc/self/cgroup`. A machine may mount both versions;
    /// the one that has the memory controller counts, and version 1 names its controllers.
    pub(super) fn find(mounts: &str, membership: &str) -> Option<Hierarchy> {
        let memberships = || membership.lines().filter_map(Membership::parse);
        let v1 = memberships().find(|group| group.controllers.split(',').any(|name| name == "memory"));
        let v2 = memberships().find(|group| group.controllers.is_empty());
        let mounts = || mounts.lines().filter_map(Mount::parse);
        if let Some(group) = v1 {
            let mount =
                mounts().find(|mount| mount.kind == "cgroup" && mount.options.split(',').any(|o| o == "memory"))?;
            return Some(mount.hierarchy(Version::V1, group.path));
        }
        let mount = mounts().find(|mount| mount.kind == "cgroup2")?;
        Some(mount.hierarchy(Version::V2, v2?.path))
    }

    /// Our group, its parent, and so on up to the mount: each may have a limit.
    pub(super) fn folders(&self) -> impl Iterator<Item = PathBuf> {
        self.group.ancestors().map(|group| self.mount.join(group))
    }
}

/// A line of `/proc/self/cgroup`: `4:memory:/some/group` or `0::/some/group`.
struct Membership<'a> {
    controllers: &'a str,
    path: &'a str,
}

impl<'a> Membership<'a> {
    fn parse(line: &'a str) -> Option<Membership<'a>> {
        let mut fields = line.splitn(3, ':');
        let _id = fields.next()?;
        Some(Membership { controllers: fields.next()?, path: fields.next()? })
    }
}

/// A line of `/proc/self/mountinfo`: `36 31 0:33 ROOT MOUNT options [tags] - KIND source OPTIONS`.
struct Mount<'a> {
    /// The group that the mount shows as its top.
    root: &'a str,
    at: &'a str,
    kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str) -> Option<Mount<'a>> {
        let (place, source) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let mut source = source.split(' ');
        let (root, at) = (place.next()?, place.next()?);
        let (kind, _, options) = (source.next()?, source.next()?, source.next()?);
        Some(Mount { root, at, kind, options })
    }

    fn hierarchy(&self, version: Version, group: &str) -> Hierarchy {
        // In a container the mount may show only our own part of the tree. A group outside of what it shows (written
        // with `..` when namespaces differ) leaves the top of the mount as the best that can be seen.
        let below = Path::new(group).strip_prefix(self.root).unwrap_or(Path::new(""));
        let is_inside = !below.components().any(|part| part.as_os_str() == "..");
        let group = if is_inside { below } else { Path::new("") };
        Hierarchy { version, mount: self.at.into(), group: group.into() }
    }
}

/// What one group leaves us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GroupMemory {
    pub(super) limit: Bytes,
    /// `limit - (usage - file pages that the kernel would drop first)`, or zero.
    pub(super) headroom: Bytes,
}

/// The open files of one group.
pub(super) struct Group {
    version: Version,
    limit: Reread,
    usage: Reread,
    stat: Reread,
}

impl Group {
    /// `None` for a folder without the files: the root of version 2 has none.
    pub(super) fn open(version: Version, folder: &Path) -> Option<Group> {
        let files = version.files();
        let open = |name: &str| Reread::open(&folder.join(name)).ok();
        Some(Group { version, limit: open(files.limit)?, usage: open(files.usage)?, stat: open("memory.stat")? })
    }

    /// `None` for a group without a limit. The limit is read each time: it may be changed while we run.
    pub(super) fn read(&mut self) -> Option<GroupMemory> {
        let limit = parse_limit(self.limit.text().ok()?)?;
        let usage = self.usage.text().ok()?.trim().parse().ok()?;
        let inactive = parse_stat(self.stat.text().ok()?, self.version.files().inactive);
        Some(headroom(limit, Bytes::new(usage), inactive))
    }
}

/// A limit that nothing reaches is none: version 2 writes `max`, version 1 the largest number of whole pages.
fn parse_limit(text: &str) -> Option<Bytes> {
    let limit: u64 = text.trim().parse().ok()?;
    (limit < i64::MAX as u64 - (1 << 20)).then_some(Bytes::new(limit))
}

/// One number of `memory.stat`; zero if it is not there, which only makes the headroom smaller than it is.
fn parse_stat(text: &str, name: &str) -> Bytes {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok());
    Bytes::new(value.unwrap_or(0))
}

fn headroom(limit: Bytes, usage: Bytes, inactive: Bytes) -> GroupMemory {
    GroupMemory { limit, headroom: limit.saturating_sub(usage.saturating_sub(inactive)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folders(mounts: &str, membership: &str) -> (Version, Vec<String>) {
        let hierarchy = Hierarchy::find(mounts, membership).unwrap();
        (hierarchy.version, hierarchy.folders().map(|folder| folder.display().to_string()).collect())
    }

    #[test]
    fn a_plain_version_2_machine() {
        let mounts = "25 30 0:23 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        let (version, found) = folders(mounts, "0::/system.slice/plimsoll.service\n");
        assert_eq!(version, Version::V2);
        let expected =
            ["/sys/fs/cgroup/system.slice/plimsoll.service", "/sys/fs/cgroup/system.slice", "/sys/fs/cgroup/"];
        assert_eq!(found, expected);
    }

    #[test]
    fn both_versions_are_mounted_and_version_1_has_the_controller() {
        let mounts = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
        let (version, found) = folders(mounts, "9:name=systemd:/\n4:cpu,memory:/a/b\n0::/\n");
        assert_eq!(version, Version::V1);
        assert_eq!(found, ["/sys/fs/cgroup/memory/a/b", "/sys/fs/cgroup/memory/a", "/sys/fs/cgroup/memory/"]);
    }

    #[test]
    fn a_container_sees_only_its_part_of_the_tree() {
        let mounts = "35 31 0:32 /docker/4f /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        assert_eq!(folders(mounts, "4:memory:/docker/4f\n").1, ["/sys/fs/cgroup/memory/"]);
        assert_eq!(
            folders(mounts, "4:memory:/docker/4f/inner\n").1,
            ["/sys/fs/cgroup/memory/inner", "/sys/fs/cgroup/memory/"]
        );
        // The process has been moved out of what the mount shows.
        assert_eq!(folders(mounts, "4:memory:/elsewhere\n").1, ["/sys/fs/cgroup/memory/"]);
        let own_namespace = "30 25 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        assert_eq!(folders(own_namespace, "0::/../sibling\n").1, ["/sys/fs/cgroup/"]);
    }

    #[test]
    fn without_groups_nothing_is_found() {
        assert_eq!(Hierarchy::find("", ""), None);
        assert_eq!(Hierarchy::find("garbage\n1 2 - 3\n", "garbage\n::\n"), None);
        assert_eq!(Hierarchy::find("1 2 0:1 / /proc rw - proc proc rw\n", "0::/\n"), None);
    }

    #[test]
    fn limits_may_be_absent() {
        assert_eq!(parse_limit("max\n"), None);
        assert_eq!(parse_limit("9223372036854771712\n"), None);
        assert_eq!(parse_limit(""), None);
        assert_eq!(parse_limit("1073741824\n"), Some(Bytes::gib(1)));
    }

    #[test]
    fn the_headroom_counts_droppable_file_pages_as_free() {
        let check = |usage, inactive, expected| {
            let found = headroom(Bytes::mib(100), Bytes::mib(usage), Bytes::mib(inactive)).headroom;
            assert_eq!(found, Bytes::mib(expected));
        };
        check(0, 0, 100);
        check(60, 0, 40);
        check(60, 20, 60);
        check(120, 10, 0);
        check(10, 50, 100);
    }

    #[test]
    fn the_statistics_are_found_by_their_whole_name() {
        let text = "anon 5\ninactive_file 311296\ntotal_inactive_file 746909696\n";
        assert_eq!(parse_stat(text, "inactive_file"), Bytes::new(311296));
        assert_eq!(parse_stat(text, "total_inactive_file"), Bytes::new(746909696));
        assert_eq!(parse_stat(text, "inactive"), Bytes::ZERO);
    }

    #[test]
    fn a_group_is_read_from_its_files() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("memory.max", "max\n");
        write("memory.current", "4096\n");
        assert!(Group::open(Version::V2, folder.path()).is_none(), "memory.stat is missing");
        write("memory.stat", "anon 0\ninactive_file 1024\n");
        let mut group = Group::open(Version::V2, folder.path()).unwrap();
        assert_eq!(group.read(), None, "no limit");
        write("memory.max", "8192\n");
        let expected = GroupMemory { limit: Bytes::kib(8), headroom: Bytes::kib(5) };
        assert_eq!(group.read(), Some(expected), "the limit has been set meanwhile");
    }
}
