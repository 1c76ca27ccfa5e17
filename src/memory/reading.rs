//! What the device said about its memory at one moment.

use crate::units::{Bytes, Timestamp};

/// One live reading of a device, taken by the rim and handed to the pure cores.
///
/// `free` is what the device's own authority says (on the CPU: the smaller of `MemAvailable` and the cgroup's headroom;
/// on CUDA: `cuMemGetInfo`); the rest is our allocator's own count, taken at the same moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// When it was taken.
    pub at: Timestamp,
    /// Bytes that anybody could still take from the device.
    pub free: Bytes,
    /// All of the device's memory, or of our share of it.
    pub total: Bytes,
    /// Workspace that our allocator holds: live and cached. Reusable by the next step in full, since steps are serial.
    pub workspace_reserved: Bytes,
    /// The part of `workspace_reserved` that no tensor lives in.
    pub workspace_cached: Bytes,
    /// Scratch of libraries, thread stacks and whatever is charged to no model.
    pub library: Bytes,
    /// What a step may find of earlier ones in the workspace, as far as is known: it may hold so much beside its ceiling,
    /// since `library` has it too.
    pub leftovers: Bytes,
}
