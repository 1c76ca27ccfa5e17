//! The allocator over a simulated driver: books, limits, failures, and what is left after a model.

mod simulated;
mod policy;
mod failures;
mod random_actions;

use self::simulated::{GRANULE, Simulated};
use super::*;
use crate::device::Kind;
use crate::units::{Bytes, ModelId};

const MIB: u64 = 1 << 20;
const MODEL: ModelId = ModelId::new(3);
const OTHER: ModelId = ModelId::new(4);

/// An allocator on a card of `gib` GiB.
fn pooled(mode: Mode, gib: u64) -> PooledAllocator<Simulated> {
    PooledAllocator::new(Simulated::new(gib << 30), mode).expect("the card is empty")
}

/// Allocates `count` blocks of `bytes`.
#[track_caller]
fn blocks<D: PoolDriver<Stream = u8>>(on: &PooledAllocator<D>, slot: Slot, count: usize, bytes: u64) -> Vec<Pointer> {
    (0..count).map(|_| on.alloc(slot, bytes, 1).expect("there is room")).collect()
}

fn free_all<D: PoolDriver<Stream = u8>>(on: &PooledAllocator<D>, pointers: impl IntoIterator<Item = Pointer>) {
    for pointer in pointers {
        assert!(on.free(pointer, Some(1)), "it is ours");
    }
}
