//! The allocator over a simulated driver: books, limits, failures, and what is left after a model.

mod simulated;
mod policy;
mod failures;
mod random_actions;
mod arenas;

use self::simulated::{GRANULE, Simulated};
use super::*;
use crate::device::{Kind, Need};
use crate::units::{Bytes, ModelId};

const MIB: u64 = 1 << 20;
const MODEL: ModelId = ModelId::new(3);
const OTHER: ModelId = ModelId::new(4);

/// An allocator on a card of `gib` GiB.
fn pooled(mode: Mode, gib: u64) -> PooledAllocator<Simulated> {
    PooledAllocator::new(Simulated::new(gib << 30), mode).expect("the card is empty")
}

/// The same with pools of ours.
fn with_arenas(gib: u64) -> PooledAllocator<Arenas<Simulated>> {
    PooledAllocator::new(Arenas::new(Simulated::new(gib << 30)), Mode::Pools).expect("the card is empty")
}

/// A driver with a simulation under it.
trait OverSimulation: PoolDriver<Stream = u8> {
    fn simulation(&self) -> &Simulated;
}

impl OverSimulation for Simulated {
    fn simulation(&self) -> &Simulated {
        self
    }
}

impl OverSimulation for Arenas<Simulated> {
    fn simulation(&self) -> &Simulated {
        self.inner()
    }
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
