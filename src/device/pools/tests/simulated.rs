//! A driver in a few lines, with the habits that were measured on a card.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};

use super::super::arena::CHUNK;
use super::super::{DriverError, Memory, Pointer, PoolDriver, Request, VirtualMemory};
use crate::device::Kind;

/// What a pool takes at a time.
pub(super) const GRANULE: u64 = 32 << 20;

/// Pools reserve whole granules and hand out steps of 512 bytes. What is freed is used again at once in the stream's
/// order, but goes back to the card only when the stream has come there. When the card is full, the driver takes all of
/// the other pools' cache, not only what is needed. A neighbour gets none of it.
pub(super) struct Simulated {
    has_pools: bool,
    capacity: u64,
    card: Mutex<CardState>,
    /// Calls so far, of all kinds.
    pub(super) calls: AtomicU64,
    /// The number of the call that fails; 0 for none.
    pub(super) fails_at: AtomicU64,
    /// What somebody else has of the card.
    pub(super) neighbour: AtomicU64,
    /// Times that the driver helped itself to the cache of pools.
    pub(super) raids: AtomicU64,
}

#[derive(Default)]
struct CardState {
    pools: BTreeMap<u32, PoolState>,
    plain: BTreeMap<Pointer, u64>,
    /// Ranges of addresses that are kept apart, and which chunks are memory.
    spans: BTreeMap<Pointer, u64>,
    mapped: BTreeSet<Pointer>,
    homes: BTreeMap<Pointer, (u32, u64)>,
    next_pool: u32,
    next_pointer: Pointer,
    /// Something was queued since the last synchronization.
    working: bool,
}

#[derive(Clone, Copy, Default)]
struct PoolState {
    reserved: u64,
    used: u64,
    /// Freed, but the stream has not come there.
    pending: u64,
}

impl PoolState {
    fn shrink(&mut self, keep: u64) {
        let least = (self.used + self.pending).next_multiple_of(GRANULE);
        self.reserved = self.reserved.min(keep.next_multiple_of(GRANULE).max(least));
    }
}

/// The pool that streams allocate from by themselves.
const DEFAULT_POOL: u32 = 0;

impl Simulated {
    pub(super) fn new(capacity: u64) -> Simulated {
        let mut card = CardState { next_pool: 1, next_pointer: 0x7000_0000_0000, ..CardState::default() };
        card.pools.insert(DEFAULT_POOL, PoolState::default());
        Simulated {
            has_pools: true,
            capacity,
            card: Mutex::new(card),
            calls: AtomicU64::new(0),
            fails_at: AtomicU64::new(0),
            neighbour: AtomicU64::new(0),
            raids: AtomicU64::new(0),
        }
    }

    pub(super) fn without_pools(self) -> Simulated {
        Simulated { has_pools: false, ..self }
    }

    /// Bytes that something lives in, everywhere.
    pub(super) fn living(&self) -> u64 {
        let card = self.card();
        let mapped = card.mapped.len() as u64 * CHUNK;
        card.pools.values().map(|pool| pool.used).sum::<u64>() + card.plain.values().sum::<u64>() + mapped
    }

    /// Ranges of addresses that are kept apart.
    pub(super) fn span_count(&self) -> usize {
        self.card().spans.len()
    }

    /// Whether all of these bytes are memory.
    pub(super) fn is_memory(&self, start: Pointer, bytes: u64) -> bool {
        let card = self.card();
        (start / CHUNK..(start + bytes).div_ceil(CHUNK)).all(|chunk| card.mapped.contains(&(chunk * CHUNK)))
    }

    /// Pools beside the default one.
    pub(super) fn pool_count(&self) -> usize {
        self.card().pools.len() - 1
    }

    /// Queues work on whatever memory somebody has.
    pub(super) fn work(&self) {
        self.card().working = true;
    }

    fn card(&self) -> MutexGuard<'_, CardState> {
        self.card.lock().expect("nothing panics in the simulation")
    }

    fn call(&self, otherwise: DriverError) -> Result<(), DriverError> {
        let number = self.calls.fetch_add(1, Relaxed) + 1;
        if number == self.fails_at.load(Relaxed) { Err(otherwise) } else { Ok(()) }
    }

    fn free_of(&self, card: &CardState) -> u64 {
        let reserved: u64 = card.pools.values().map(|pool| pool.reserved).sum();
        let mapped = card.mapped.len() as u64 * CHUNK;
        let taken = reserved + mapped + card.plain.values().sum::<u64>() + self.neighbour.load(Relaxed);
        self.capacity.saturating_sub(taken)
    }

    /// Takes `bytes` from the card, at the cost of other pools' cache if need be.
    fn take(&self, card: &mut CardState, bytes: u64, but: Option<u32>) -> Result<(), DriverError> {
        if bytes <= self.free_of(card) {
            return Ok(());
        }
        self.raids.fetch_add(1, Relaxed);
        for (_, pool) in card.pools.iter_mut().filter(|(id, _)| Some(**id) != but) {
            pool.pending = 0;
            pool.shrink(0);
        }
        if bytes <= self.free_of(card) { Ok(()) } else { Err(DriverError::OUT_OF_MEMORY) }
    }
}

/// An error that no trim cures.
pub(super) const BROKEN: DriverError = DriverError(999);

impl PoolDriver for Simulated {
    type Pool = u32;
    type Stream = u8;

    fn has_pools(&self) -> bool {
        self.has_pools
    }

    fn create_pool(&self) -> Result<u32, DriverError> {
        self.call(DriverError::OUT_OF_MEMORY)?;
        let mut card = self.card();
        let pool = card.next_pool;
        card.next_pool += 1;
        card.pools.insert(pool, PoolState::default());
        Ok(pool)
    }

    fn destroy_pool(&self, pool: u32) -> Result<(), DriverError> {
        self.call(BROKEN)?;
        let gone = self.card().pools.remove(&pool).expect("a pool is destroyed once");
        assert_eq!(gone.used, 0, "something lives in a pool that is destroyed");
        assert_eq!(gone.pending, 0, "the device still works in a pool that is destroyed");
        Ok(())
    }

    fn alloc(&self, pool: Option<u32>, request: Request<u8>) -> Result<Pointer, DriverError> {
        self.call(DriverError::OUT_OF_MEMORY)?;
        assert!(request.bytes > 0 && request.bytes.is_multiple_of(512));
        let mut card = self.card();
        let id = pool.unwrap_or(DEFAULT_POOL);
        let state = card.pools[&id];
        // The same stream uses again what it has freed.
        let missing = (state.used + request.bytes).saturating_sub(state.reserved).next_multiple_of(GRANULE);
        self.take(&mut card, missing, Some(id))?;
        let state = card.pools.get_mut(&id).expect("it was there");
        state.reserved += missing;
        state.used += request.bytes;
        state.pending = state.pending.min(state.reserved - state.used);
        let pointer = card.next_pointer;
        card.next_pointer += request.bytes;
        card.homes.insert(pointer, (id, request.bytes));
        Ok(pointer)
    }

    fn free(&self, pointer: Pointer, _: u8) -> Result<(), DriverError> {
        // Done all the same: what the driver reports here is the error of earlier work.
        let said = self.call(BROKEN);
        let mut card = self.card();
        let (id, bytes) = card.homes.remove(&pointer).expect("the address is a pool's");
        let pool = card.pools.get_mut(&id).expect("a pool outlives its blocks");
        pool.used -= bytes;
        pool.pending += bytes;
        said
    }

    fn alloc_plain(&self, bytes: u64, _: Kind) -> Result<Pointer, DriverError> {
        self.call(DriverError::OUT_OF_MEMORY)?;
        let mut card = self.card();
        self.take(&mut card, bytes, None)?;
        let pointer = card.next_pointer;
        card.next_pointer += bytes.next_multiple_of(512);
        card.plain.insert(pointer, bytes);
        Ok(pointer)
    }

    fn free_plain(&self, pointer: Pointer) -> Result<(), DriverError> {
        let said = self.call(BROKEN);
        self.card().plain.remove(&pointer).expect("the address was given out plainly");
        said
    }

    fn trim(&self, pool: u32, reserved: u64) -> Result<(), DriverError> {
        self.call(BROKEN)?;
        self.card().pools.get_mut(&pool).expect("it exists").shrink(reserved);
        Ok(())
    }

    fn reserved(&self, pool: u32) -> u64 {
        self.card().pools[&pool].reserved
    }

    fn used(&self, pool: u32) -> u64 {
        self.card().pools[&pool].used
    }

    fn synchronize(&self) -> Result<(), DriverError> {
        let said = self.call(BROKEN);
        let mut card = self.card();
        // Of what fails nobody may think that it was done.
        card.working &= said.is_err();
        for pool in card.pools.values_mut() {
            pool.pending = 0;
        }
        said
    }

    fn memory(&self) -> Result<Memory, DriverError> {
        self.call(BROKEN)?;
        Ok(Memory { free: self.free_of(&self.card()), total: self.capacity })
    }
}

impl VirtualMemory for Simulated {
    fn has_virtual_memory(&self) -> bool {
        self.has_pools
    }

    fn reserve_addresses(&self, bytes: u64) -> Result<Pointer, DriverError> {
        self.call(DriverError::OUT_OF_MEMORY)?;
        let mut card = self.card();
        let start = card.next_pointer.next_multiple_of(CHUNK);
        card.next_pointer = start + bytes;
        card.spans.insert(start, bytes);
        Ok(start)
    }

    fn release_addresses(&self, start: Pointer, bytes: u64) -> Result<(), DriverError> {
        self.call(BROKEN)?;
        let mut card = self.card();
        assert_eq!(card.spans.remove(&start), Some(bytes), "a range is released once, and as a whole");
        assert_eq!(card.mapped.range(start..start + bytes).next(), None, "something of it is memory");
        Ok(())
    }

    fn map(&self, start: Pointer, bytes: u64) -> Result<(), DriverError> {
        self.call(DriverError::OUT_OF_MEMORY)?;
        assert!(start.is_multiple_of(CHUNK) && bytes.is_multiple_of(CHUNK) && bytes > 0);
        let mut card = self.card();
        let around = card.spans.range(..=start).next_back().expect("addresses are reserved before they are memory");
        assert!(start + bytes <= around.0 + around.1, "all of them are reserved");
        self.take(&mut card, bytes, None)?;
        for chunk in (start..start + bytes).step_by(CHUNK as usize) {
            assert!(card.mapped.insert(chunk), "a chunk is mapped once");
        }
        Ok(())
    }

    fn unmap(&self, start: Pointer, bytes: u64) -> Result<(), DriverError> {
        // What fails has no effect.
        self.call(BROKEN)?;
        let mut card = self.card();
        assert!(!card.working, "the device still works");
        for chunk in (start..start + bytes).step_by(CHUNK as usize) {
            assert!(card.mapped.remove(&chunk), "only memory is unmapped");
        }
        Ok(())
    }
}
