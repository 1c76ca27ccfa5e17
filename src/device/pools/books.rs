//! Who has what: every block, every owner, every pool. Plain data: it never calls a driver.

use super::Pointer;
use super::events::{Action, Ring};
use super::plain::PlainCache;
use super::pointers::PointerMap;
use super::tally::{Cause, OutOfMemory, Tally};
use crate::device::trace::Recorder;
use crate::device::{Kind, Owner};
use crate::units::{Bytes, ModelId};

/// An owner, as a number: the scope of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    entry: u32,
    /// Entries are used again; a slot of a model that is gone is not the next one's.
    generation: u32,
    kind: Kind,
}

impl Slot {
    /// Whatever belongs to no model.
    pub const NOBODY: Slot = Slot { entry: 0, generation: 0, kind: Kind::Library };

    /// For what purpose.
    pub fn kind(self) -> Kind {
        self.kind
    }

    /// The same model's, for another purpose.
    pub fn with(self, kind: Kind) -> Slot {
        Slot { kind, ..self }
    }
}

/// Where a block came from, and so where it goes when it is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Home {
    /// A pool of ours, by its index.
    Pool(u32),
    /// The stream's own way of allocating.
    Stream,
    /// The driver, outside of any stream.
    Plain,
    /// The same, and it waits in the cache for the next one of its size.
    Cached,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    /// As charged: rounded up to what the block really takes.
    pub(super) bytes: u64,
    pub(super) slot: Slot,
    pub(super) home: Home,
}

/// A pool of ours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pool<P> {
    pub(super) handle: P,
    pub(super) owner: Owner,
    blocks: u64,
    /// Its model is gone: it goes with its last block.
    doomed: bool,
}

/// A model, or at index 0 what belongs to none.
#[derive(Clone, Debug, Default)]
struct Entry {
    model: Option<ModelId>,
    open: bool,
    generation: u32,
    /// In the order of [`Kind`].
    tallies: [Tally; 4],
    pools: [Option<u32>; 4],
}

/// All books of one device. Every block is charged to exactly one owner: the sum of the blocks of a slot is its
/// tally's `live`, less what is being allocated at this moment.
#[derive(Debug)]
pub(super) struct Books<P> {
    entries: Vec<Entry>,
    blocks: PointerMap<Block>,
    pools: Vec<Option<Pool<P>>>,
    pub(super) cache: PlainCache,
    pub(super) events: Ring,
    /// Bytes in the workspace's pool that no longer belong to a step.
    strays: u64,
    /// Takes down the blocks of the step that runs, if somebody wants to know.
    pub(super) recorder: Option<Recorder>,
}

/// What [`Books::close`] found.
#[derive(Debug)]
pub(super) struct Closed<P> {
    /// Pools in which nothing lives any more, to be destroyed.
    pub(super) empty: Vec<P>,
    /// Bytes of the model that are still alive, and nobody's now.
    pub(super) left: u64,
}

impl<P: Copy> Books<P> {
    pub(super) fn new() -> Books<P> {
        let nobody = Entry { open: true, ..Entry::default() };
        Books {
            entries: vec![nobody],
            blocks: PointerMap::default(),
            pools: Vec::new(),
            cache: PlainCache::default(),
            events: Ring::default(),
            strays: 0,
            recorder: None,
        }
    }

    /// Opens a model's books. Returns its slot for `Weights`.
    pub(super) fn open(&mut self, model: ModelId) -> Slot {
        let index = self.entries.iter().position(|entry| !entry.open).unwrap_or(self.entries.len());
        if index == self.entries.len() {
            self.entries.push(Entry::default());
        }
        let generation = self.entries[index].generation.wrapping_add(1);
        self.entries[index] = Entry { model: Some(model), open: true, generation, ..Entry::default() };
        // An index is at most the number of loaded models.
        Slot { entry: index as u32, generation, kind: Kind::Weights }
    }

    /// The slot of an open model.
    pub(super) fn find(&self, model: ModelId, kind: Kind) -> Option<Slot> {
        let found = self.entries.iter().position(|entry| entry.open && entry.model == Some(model))?;
        Some(Slot { entry: found as u32, generation: self.entries[found].generation, kind })
    }

    pub(super) fn owner(&self, slot: Slot) -> Owner {
        Owner { model: self.entries[slot.entry as usize].model, kind: slot.kind }
    }

    pub(super) fn tally(&self, slot: Slot) -> &Tally {
        &self.entries[slot.entry as usize].tallies[slot.kind as usize]
    }

    pub(super) fn tally_mut(&mut self, slot: Slot) -> &mut Tally {
        &mut self.entries[slot.entry as usize].tallies[slot.kind as usize]
    }

    pub(super) fn owners(&self) -> impl Iterator<Item = (Owner, &Tally)> {
        let open = self.entries.iter().filter(|entry| entry.open);
        open.flat_map(|entry| {
            Kind::ALL.into_iter().map(|kind| (Owner { model: entry.model, kind }, &entry.tallies[kind as usize]))
        })
    }

    pub(super) fn blocks(&self) -> impl Iterator<Item = (Pointer, &Block)> {
        self.blocks.iter().map(|(pointer, block)| (*pointer, block))
    }

    pub(super) fn pools(&self) -> impl Iterator<Item = Pool<P>> {
        self.pools.iter().filter_map(|pool| *pool)
    }

    /// Bytes alive that are in no pool of ours.
    pub(super) fn outside_pools(&self) -> u64 {
        let outside = |block: &&Block| !matches!(block.home, Home::Pool(_));
        self.blocks.values().filter(outside).map(|block| block.bytes).sum()
    }

    /// Bytes in the workspace's pool that are not for the next step.
    pub(super) fn strays(&self) -> u64 {
        self.strays
    }

    /// The pool that serves a slot: weights and KV have their own, everybody shares the others.
    pub(super) fn pool_of(&self, slot: Slot) -> Option<(u32, P)> {
        let entry = match slot.kind {
            Kind::Weights | Kind::Kv => slot.entry as usize,
            Kind::Workspace | Kind::Library => 0,
        };
        let index = self.entries[entry].pools[slot.kind as usize]?;
        self.pools[index as usize].map(|pool| (index, pool.handle))
    }

    /// A new pool for a slot that has none.
    pub(super) fn add_pool(&mut self, slot: Slot, handle: P) -> u32 {
        let pool = Some(Pool { handle, owner: self.owner(slot), blocks: 0, doomed: false });
        let index = self.pools.iter().position(Option::is_none).unwrap_or(self.pools.len());
        if index == self.pools.len() {
            self.pools.push(pool);
        } else {
            self.pools[index] = pool;
        }
        self.entries[slot.entry as usize].pools[slot.kind as usize] = Some(index as u32);
        index as u32
    }

    /// Sets bytes aside for a block that is to be allocated, and room to write it down: what follows cannot fail.
    pub(super) fn charge(&mut self, slot: Slot, bytes: u64) -> bool {
        self.blocks.reserve(1);
        let fits = self.tally_mut(slot).charge(bytes);
        if !fits {
            self.refuse(slot, bytes, Cause::Ceiling);
        }
        fits
    }

    /// The driver gave the block that was charged for.
    pub(super) fn enter(&mut self, pointer: Pointer, block: Block) {
        let slot = block.slot;
        self.tally_mut(slot).entered();
        if let Home::Pool(index) = block.home
            && let Some(pool) = &mut self.pools[index as usize]
        {
            pool.blocks += 1;
        }
        let displaced = self.blocks.insert(pointer, block);
        debug_assert!(displaced.is_none(), "the driver gave an address twice");
        if let Some(recorder) = &mut self.recorder
            && slot.kind == Kind::Workspace
        {
            recorder.allocated(pointer as usize, block.bytes);
        }
        self.note(Action::Allocate, slot, block.bytes);
    }

    /// The driver refused the block that was charged for.
    pub(super) fn not_entered(&mut self, slot: Slot, bytes: u64, cause: Option<Cause>) {
        self.tally_mut(slot).live -= bytes;
        if let Some(cause) = cause {
            self.refuse(slot, bytes, cause);
        }
    }

    /// Records a failure, unless one is recorded already: the first is the cause of the others.
    pub(super) fn refuse(&mut self, slot: Slot, bytes: u64, cause: Cause) {
        let owner = self.owner(slot);
        let tally = self.tally_mut(slot);
        let (held, ceiling) = (Bytes::new(tally.live), Bytes::new(tally.ceiling));
        tally.shortfall.get_or_insert(OutOfMemory { owner, requested: Bytes::new(bytes), held, ceiling, cause });
        self.note(Action::Refuse, slot, bytes);
    }

    /// A block is being freed: it is nobody's from here on. `None` for an address that was never given out here. Comes
    /// with the pool that is to be destroyed after it, if it was the last block of one whose model is gone.
    pub(super) fn leave(&mut self, pointer: Pointer) -> Option<(Block, Option<P>)> {
        let block = self.blocks.remove(&pointer)?;
        self.tally_mut(block.slot).freed(block.bytes);
        if let Some(recorder) = &mut self.recorder {
            recorder.freed(pointer as usize);
        }
        self.note(Action::Free, block.slot, block.bytes);
        let mut last = None;
        if let Home::Pool(index) = block.home {
            if self.is_stray(&block) {
                self.strays -= block.bytes;
            }
            if let Some(pool) = &mut self.pools[index as usize] {
                pool.blocks -= 1;
                if pool.doomed && pool.blocks == 0 {
                    last = Some(pool.handle);
                    self.pools[index as usize] = None;
                }
            }
        }
        Some((block, last))
    }

    /// What a model's step left alive is library memory of that model from now on. Returns the bytes.
    pub(super) fn end_step(&mut self, step: Slot) -> u64 {
        if self.tally(step).blocks == 0 {
            return 0;
        }
        self.move_blocks(step, Slot { kind: Kind::Library, ..step })
    }

    /// Ends a model's books. What is still alive is nobody's library memory. Nothing happens if they are ended already.
    pub(super) fn close(&mut self, weights: Slot) -> Closed<P> {
        let entry = &self.entries[weights.entry as usize];
        if !entry.open || entry.generation != weights.generation {
            return Closed { empty: Vec::new(), left: 0 };
        }
        let left = Kind::ALL.map(|kind| self.move_blocks(Slot { kind, ..weights }, Slot::NOBODY)).iter().sum();
        let entry = &mut self.entries[weights.entry as usize];
        entry.open = false;
        let indices = std::mem::take(&mut entry.pools);
        let mut empty = Vec::new();
        for index in indices.into_iter().flatten() {
            if let Some(pool) = &mut self.pools[index as usize] {
                pool.doomed = true;
                if pool.blocks == 0 {
                    empty.push(pool.handle);
                    self.pools[index as usize] = None;
                }
            }
        }
        Closed { empty, left }
    }

    fn move_blocks(&mut self, from: Slot, to: Slot) -> u64 {
        let (mut moved, mut count, mut strays) = (0, 0, 0);
        let workspace = self.entries[0].pools[Kind::Workspace as usize];
        for block in self.blocks.values_mut().filter(|block| block.slot == from) {
            block.slot = to;
            moved += block.bytes;
            count += 1;
            if from.kind == Kind::Workspace && workspace.is_some_and(|index| block.home == Home::Pool(index)) {
                strays += block.bytes;
            }
        }
        self.strays += strays;
        let tally = self.tally_mut(from);
        tally.live -= moved;
        tally.blocks -= count;
        let tally = self.tally_mut(to);
        tally.live += moved;
        tally.blocks += count;
        tally.peak = tally.peak.max(tally.live);
        moved
    }

    fn is_stray(&self, block: &Block) -> bool {
        block.slot.kind != Kind::Workspace
            && self.entries[0].pools[Kind::Workspace as usize].is_some_and(|index| block.home == Home::Pool(index))
    }

    #[inline]
    fn note(&mut self, action: Action, slot: Slot, bytes: u64) {
        let Books { entries, events, .. } = self;
        let entry = &entries[slot.entry as usize];
        let live = entry.tallies[slot.kind as usize].live;
        events.push(action, || Owner { model: entry.model, kind: slot.kind }, bytes, live);
    }

    /// Checks that everything adds up. For tests: it looks at every block.
    #[cfg(test)]
    pub(super) fn check(&self) {
        for (index, entry) in self.entries.iter().enumerate() {
            for kind in Kind::ALL {
                let slot = Slot { entry: index as u32, generation: entry.generation, kind };
                let own = || self.blocks.values().filter(|block| block.slot == slot);
                let tally = self.tally(slot);
                assert_eq!(tally.live, own().map(|block| block.bytes).sum::<u64>(), "{slot:?}");
                assert_eq!(tally.blocks, own().count() as u64, "{slot:?}");
                assert!(tally.live <= tally.ceiling && tally.live <= tally.peak.max(tally.live), "{slot:?}");
                assert!(entry.open || tally.blocks == 0, "a closed model owns {tally:?}");
            }
        }
        for (index, pool) in self.pools.iter().enumerate() {
            if let Some(pool) = pool {
                let home = Home::Pool(index as u32);
                let living = self.blocks.values().filter(|block| block.home == home).count() as u64;
                assert_eq!(pool.blocks, living);
                assert!(!pool.doomed || living > 0, "an empty pool whose model is gone");
            }
        }
        let strays = self.blocks.values().filter(|block| self.is_stray(block)).map(|block| block.bytes).sum::<u64>();
        assert_eq!(self.strays, strays);
    }
}
