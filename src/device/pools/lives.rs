//! The lives of models and of steps: from an open account to nothing left.

use std::sync::{MutexGuard, PoisonError};

use super::arena::CHUNK;
use super::books::{Closed, Slot};
use super::tally::OutOfMemory;
use super::{Mode, PoolDriver, PooledAllocator};
use crate::device::trace::{Recorder, Recording};
use crate::device::{Kind, Need, Resident, StepUse};
use crate::units::{Bytes, ModelId};

/// What a step used, and why it got no more if it did not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepBooks {
    /// What it used.
    pub used: StepUse,
    /// Its first allocation that failed.
    pub shortfall: Option<OutOfMemory>,
}

/// What steps have found of earlier ones in the workspace, in whole chunks: the most of the last steps. What was once found
/// is forgotten after one to two times so many. The models here leave nothing; a library may.
#[derive(Debug)]
pub(super) struct Leftovers {
    current: u64,
    before: u64,
    steps: u32,
}

impl Leftovers {
    /// What is taken to be left before anything was found.
    const AT_FIRST: u64 = 2 * CHUNK;
    const WINDOW_STEPS: u32 = 1024;

    pub(super) fn new() -> Leftovers {
        Leftovers { current: Leftovers::AT_FIRST, before: Leftovers::AT_FIRST, steps: 0 }
    }

    fn most(&self) -> u64 {
        self.current.max(self.before)
    }

    /// A step finds so much.
    fn find(&mut self, found: u64) {
        if self.steps == Leftovers::WINDOW_STEPS {
            (self.before, self.current, self.steps) = (self.current, 0, 0);
        }
        self.steps += 1;
        self.current = self.current.max(found);
    }
}

impl<D: PoolDriver> PooledAllocator<D> {
    /// Opens the books of a model that is going to be loaded. The slot is the scope of its load.
    pub fn open_model(&self, model: ModelId) -> Slot {
        self.books().open(model)
    }

    /// Bytes that a slot has alive.
    pub fn live(&self, slot: Slot) -> u64 {
        self.books().tally(slot).live
    }

    /// Sets what a model's memory of one kind may reach: of its weights the lease of their load, until it is settled.
    pub fn set_ceiling(&self, slot: Slot, ceiling: Bytes) {
        self.books().tally_mut(slot).ceiling = ceiling.get();
    }

    /// Takes the record of the slot's first failure since the last time.
    pub fn take_shortfall(&self, slot: Slot) -> Option<OutOfMemory> {
        self.books().tally_mut(slot).shortfall.take()
    }

    /// Ends a load: returns what it took for a while, and its lease.
    pub fn settle_model(&self, weights: Slot) {
        self.wait();
        let pools: Vec<_> = {
            let mut books = self.books();
            books.tally_mut(weights).ceiling = u64::MAX;
            [Kind::Weights, Kind::Kv].into_iter().filter_map(|kind| books.pool_of(weights.with(kind))).collect()
        };
        for (_, pool) in pools {
            self.trim_pool(pool, 0);
        }
    }

    /// What a model holds: the pools of its weights and KV as a whole, and what its steps have left behind.
    pub fn resident(&self, weights: Slot) -> Resident {
        let books = self.books();
        let held = |kind: Kind| {
            let slot = weights.with(kind);
            let live = books.tally(slot).live;
            books.pool_of(slot).map_or(live, |(_, pool)| self.driver.reserved(pool).max(live))
        };
        Resident {
            weights: Bytes::new(held(Kind::Weights) + held(Kind::Kv)),
            weights_peak: Bytes::new(books.tally(weights).peak),
            library: Bytes::new(books.tally(weights.with(Kind::Library)).live),
        }
    }

    /// Ends a model's books and destroys its pools, once its tensors are dropped. Returns what is still alive of it,
    /// which is nobody's now.
    pub fn close_model(&self, weights: Slot) -> Bytes {
        // What was freed in the stream's order has to be free in fact before a pool goes.
        self.wait();
        let Closed { empty, left } = self.books().close(weights);
        self.destroy(&empty);
        Bytes::new(left)
    }

    /// Starts a step of a model; the slot is its scope. A pool of ours holds no more workspace than the ceiling from now on,
    /// and what earlier steps have left there, as far as that was set aside when the step got its lease. What
    /// [`PooledAllocator::leftovers`] says now does not matter: steps in between may have taught it more.
    pub fn begin_step(&self, model: ModelId, need: Need) -> Option<Slot> {
        let (slot, pool) = {
            let mut books = self.books();
            let slot = books.find(model, Kind::Workspace)?;
            books.tally_mut(slot).restart(need.ceiling.get());
            (slot, books.pool_of(slot))
        };
        if let Some((_, pool)) = pool {
            let found = self.driver.used(pool).next_multiple_of(CHUNK);
            self.known_leftovers().find(found);
            let most = need.ceiling.get().saturating_add(found.min(need.leftovers.get()));
            if self.driver.could_bound(pool, most) {
                // Here, where nobody waits for the pool.
                self.wait();
            }
            if let Err(error) = self.driver.bound(pool, most) {
                self.note_fault(error);
            }
        }
        Some(slot)
    }

    fn known_leftovers(&self) -> MutexGuard<'_, Leftovers> {
        self.leftovers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the next step may find of earlier ones in the workspace, as far as is known.
    pub fn leftovers(&self) -> Bytes {
        Bytes::new(if self.mode == Mode::Pools { self.known_leftovers().most() } else { 0 })
    }

    /// Takes down every block of the steps from now on, until [`PooledAllocator::take_recording`].
    pub fn record(&self) {
        // Made before the lock is taken: it sets its memory aside.
        let recorder = Recorder::new();
        self.books().recorder = Some(recorder);
    }

    /// What was taken down, if anything was.
    pub fn take_recording(&self) -> Option<Recording> {
        let recorder = self.books().recorder.take();
        recorder.map(Recorder::finish)
    }

    /// Ends a step. What is still alive of it belongs to its model's library memory.
    pub fn end_step(&self, step: Slot) -> StepBooks {
        let (left, tally, pool) = {
            let mut books = self.books();
            let left = books.end_step(step);
            let tally = *books.tally(step);
            books.tally_mut(step).restart(u64::MAX);
            (left, tally, books.pool_of(step))
        };
        let reached = pool.map_or(0, |(_, pool)| self.driver.reached(pool));
        let used = StepUse {
            reach: Bytes::new(reached.max(tally.peak)),
            // What is lost is the pool's to hold, but no step has more than its ceiling.
            peak: Bytes::new(
                (tally.peak + self.lost_between_blocks(pool, tally.peak)).min(tally.ceiling.max(tally.peak)),
            ),
            left: Bytes::new(left),
            allocated: tally.allocated,
            freed: tally.freed,
            overrun: tally.peak > tally.ceiling,
            retried: tally.retried,
        };
        StepBooks { used, shortfall: tally.shortfall }
    }

    /// What a step needed of its pool beside its blocks: blocks that come and go leave places that are too small for others.
    fn lost_between_blocks(&self, pool: Option<(u32, D::Pool)>, peak: u64) -> u64 {
        let held = pool.map_or(0, |(_, pool)| self.driver.held(pool));
        held.saturating_sub(peak.next_multiple_of(CHUNK))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_left_once_is_forgotten() {
        let mut leftovers = Leftovers::new();
        assert_eq!(leftovers.most(), Leftovers::AT_FIRST);
        leftovers.find(10 * CHUNK);
        leftovers.find(3 * CHUNK);
        assert_eq!(leftovers.most(), 10 * CHUNK);
        for _ in 0..2 * Leftovers::WINDOW_STEPS {
            leftovers.find(CHUNK);
        }
        assert_eq!(leftovers.most(), CHUNK);
    }
}
