//! What the allocator holds at one moment, by pool, by owner and block by block.

use std::sync::atomic::Ordering::Relaxed;

use super::books::{Block, Pool, Slot};
use super::{AllocationEvent, Pointer, PoolDriver, PooledAllocator};
use crate::device::{Kind, Owner};
use crate::units::Bytes;

/// Blocks that a snapshot lists, the largest.
const BLOCKS_MAX: usize = 256;

/// A pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolLine {
    /// Whose; of workspace and library the device's.
    pub owner: Owner,
    /// Bytes that it holds.
    pub reserved: Bytes,
    /// The part that something lives in.
    pub used: Bytes,
}

/// What one owner has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerLine {
    /// Who.
    pub owner: Owner,
    /// Bytes alive.
    pub live: Bytes,
    /// Most of them at once: since the load, for workspace in the current step.
    pub peak: Bytes,
    /// Blocks alive.
    pub blocks: u64,
}

/// A block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockLine {
    /// Where.
    pub pointer: Pointer,
    /// Whose.
    pub owner: Owner,
    /// Bytes that it takes.
    pub bytes: Bytes,
}

/// Sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tallies {
    /// Bytes that a step finds: reserved for workspace, less what earlier steps have left there.
    pub reserved: Bytes,
    /// The part that nothing lives in.
    pub cached: Bytes,
}

/// Everything at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolsSnapshot {
    /// Every pool.
    pub pools: Vec<PoolLine>,
    /// Every owner that has or had something.
    pub owners: Vec<OwnerLine>,
    /// The largest blocks, the largest first.
    pub blocks: Vec<BlockLine>,
    /// Recorded allocations, the oldest first.
    pub events: Vec<AllocationEvent>,
    /// Frees of addresses that were not given out here.
    pub foreign_frees: u64,
    /// Times that the workspace grew.
    pub grows: u64,
    /// Times that cached memory was returned.
    pub trims: u64,
    /// Largest cache of the workspace that was seen.
    pub cached_peak: Bytes,
}

impl<D: PoolDriver> PooledAllocator<D> {
    /// The workspace now. Cheap: two numbers of the driver.
    pub fn workspace(&self) -> Tallies {
        let (pool, strays, cached, live) = {
            let books = self.books();
            let slot = Slot::NOBODY.with(Kind::Workspace);
            let workspace = books.owners().filter(|(owner, _)| owner.kind == Kind::Workspace);
            let live: u64 = workspace.map(|(_, tally)| tally.live).sum();
            (books.pool_of(slot), books.strays(), books.cache.cached, live)
        };
        let (reserved, cached) = match pool {
            Some((_, pool)) => {
                let (reserved, used) = (self.driver.reserved(pool), self.driver.used(pool));
                (reserved.saturating_sub(strays), reserved.saturating_sub(used))
            }
            None => (live + cached, cached),
        };
        self.cached_peak.fetch_max(cached, Relaxed);
        Tallies { reserved: Bytes::new(reserved), cached: Bytes::new(cached) }
    }

    /// Library memory of nobody.
    pub fn library(&self) -> Bytes {
        let books = self.books();
        let live = books.tally(Slot::NOBODY).live;
        Bytes::new(books.pool_of(Slot::NOBODY).map_or(live, |(_, pool)| self.driver.reserved(pool).max(live)))
    }

    /// All that is held from the driver: pools, single allocations, the cache of those.
    pub fn reserved(&self) -> Bytes {
        let books = self.books();
        let pools: u64 = books.pools().map(|pool| self.driver.reserved(pool.handle)).sum();
        Bytes::new(pools + books.outside_pools() + books.cache.cached)
    }

    /// Every pool.
    pub fn pools(&self) -> Vec<PoolLine> {
        // A pool that is in the books has not been destroyed: they are held while it is asked.
        let books = self.books();
        let line = |pool: Pool<D::Pool>| PoolLine {
            owner: pool.owner,
            reserved: Bytes::new(self.driver.reserved(pool.handle)),
            used: Bytes::new(self.driver.used(pool.handle)),
        };
        books.pools().map(line).collect()
    }

    /// Everything. Looks at every block: for people and for metrics, not for every tick.
    pub fn snapshot(&self) -> PoolsSnapshot {
        let pools = self.pools();
        let (mut blocks, owners, events) = {
            let books = self.books();
            let line = |(pointer, block): (Pointer, &Block)| BlockLine {
                pointer,
                owner: books.owner(block.slot),
                bytes: Bytes::new(block.bytes),
            };
            let owners = books.owners().filter(|(_, tally)| tally.peak > 0).map(|(owner, tally)| OwnerLine {
                owner,
                live: Bytes::new(tally.live),
                peak: Bytes::new(tally.peak),
                blocks: tally.blocks,
            });
            let blocks: Vec<_> = books.blocks().map(line).collect();
            (blocks, owners.collect(), books.events.oldest_first().copied().collect())
        };
        // The device's thread may go on meanwhile.
        blocks.sort_unstable_by_key(|block| (std::cmp::Reverse(block.bytes), block.pointer));
        blocks.truncate(BLOCKS_MAX);
        PoolsSnapshot {
            pools,
            owners,
            blocks,
            events,
            foreign_frees: self.foreign_frees.load(Relaxed),
            grows: self.grows.load(Relaxed),
            trims: self.trims.load(Relaxed),
            cached_peak: Bytes::new(self.cached_peak.load(Relaxed)),
        }
    }
}
