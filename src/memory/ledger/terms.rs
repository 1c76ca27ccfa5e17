//! How a device hands out memory.

use crate::units::Bytes;

/// How a device hands out memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// What it takes at a time.
    pub granule: Bytes,
    /// Less than this is not worth a trim, which waits for the device.
    pub trim_least: Bytes,
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
    pub const CPU: Terms = Terms {
        granule: Bytes::kib(64),
        trim_least: Bytes::kib(64),
        workspace_min: Bytes::kib(256),
        exhaustion: Exhaustion::Kills,
    };
    /// A GPU's virtual memory, in its large pages.
    pub const CUDA: Terms = Terms {
        granule: Bytes::mib(2),
        trim_least: Bytes::mib(8),
        workspace_min: Bytes::mib(8),
        exhaustion: Exhaustion::Refuses,
    };
    /// CUDA's own pools, for devices without it: they reserve 32 MiB at a time.
    pub const CUDA_POOLS: Terms = Terms {
        granule: Bytes::mib(32),
        trim_least: Bytes::mib(32),
        workspace_min: Bytes::mib(32),
        exhaustion: Exhaustion::Refuses,
    };

    /// What of so many bytes a step can have: a pool grows by whole granules, the system's allocator by what is needed.
    pub fn usable(self, bytes: Bytes) -> Bytes {
        match self.exhaustion {
            Exhaustion::Kills => bytes,
            Exhaustion::Refuses => bytes.round_down_to(self.granule),
        }
    }

    /// What the device takes for so many bytes of a step: the other way round.
    pub fn taken(self, bytes: Bytes) -> Bytes {
        match self.exhaustion {
            Exhaustion::Kills => bytes,
            Exhaustion::Refuses => bytes.round_up_to(self.granule),
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
