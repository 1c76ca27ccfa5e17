//! How a device hands out memory.

use crate::units::Bytes;

/// How a device hands out memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// What it takes at a time.
    pub granule: Bytes,
    /// A smaller workspace runs no step of any model.
    pub workspace_min: Bytes,
    /// What happens to who takes more than there is.
    pub exhaustion: Exhaustion,
}

/// What becomes of a program that takes more of a device than there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Exhaustion {
    /// The system ends it: nothing touches the safety margin.
    Kills,
    /// An allocation is refused, and the ladder helps. So the margin is worth less than a model that runs: its smallest
    /// step may use it, and so may the load before that.
    Refuses,
}

impl Terms {
    /// The CPU's counting allocator over the system's.
    pub const CPU: Terms =
        Terms { granule: Bytes::kib(64), workspace_min: Bytes::kib(256), exhaustion: Exhaustion::Kills };
    /// CUDA's pools, which reserve 32 MiB at a time.
    pub const CUDA: Terms =
        Terms { granule: Bytes::mib(32), workspace_min: Bytes::mib(32), exhaustion: Exhaustion::Refuses };

    /// What of so many bytes a step can have: a pool grows by whole granules, the system's allocator by what is needed.
    pub fn usable(self, bytes: Bytes) -> Bytes {
        match self.exhaustion {
            Exhaustion::Kills => bytes,
            Exhaustion::Refuses => bytes.round_down_to(self.granule),
        }
    }

    /// The safety margin unless one is configured. What is lost where a reading was wrong is a process on one, and a part
    /// of a step on the other.
    pub fn usual_safety(self) -> Bytes {
        match self.exhaustion {
            Exhaustion::Kills => Bytes::mib(64),
            Exhaustion::Refuses => Bytes::mib(16),
        }
    }
}
