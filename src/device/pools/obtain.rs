//! Getting memory out of the driver, and giving it back: the first rung of the ladder, and trims.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;

use super::books::{Home, Slot};
use super::{DriverError, Mode, Pointer, PoolDriver, PooledAllocator, Request};
use crate::device::Kind;
use crate::units::Bytes;

/// From here on it pays to look, before the driver is asked, whether it could give so much without emptying our cache:
/// 5 us, for allocations that models make and steps do not.
const LOOK_BEFORE: u64 = 1 << 20;

/// What a pool may take beside what it is asked for: the driver's take so much at a time.
const GRANULE: u64 = 32 << 20;

/// How often an allocation is tried again after everything cached was returned. A step has the rest of the ladder
/// above it; a load has nothing, and a driver that refuses now and then should not end it.
fn retries(kind: Kind) -> u32 {
    match kind {
        Kind::Workspace => 1,
        Kind::Weights | Kind::Kv | Kind::Library => 3,
    }
}

impl<D: PoolDriver> PooledAllocator<D> {
    /// Memory for a slot from its pool, which is made if there is none yet. Returns also how often it was tried again.
    pub(super) fn obtain(
        &self,
        slot: Slot,
        pool: Option<(u32, D::Pool)>,
        request: Request<D::Stream>,
    ) -> Result<(Pointer, Home, u32), DriverError> {
        if request.kind != Kind::Workspace && request.bytes >= LOOK_BEFORE {
            self.make_room(request.bytes);
        }
        match self.mode {
            Mode::Pools => {
                let (index, pool) = match pool {
                    Some(pool) => pool,
                    None => self.first_pool(slot)?,
                };
                let give = || self.driver.alloc(Some(pool), request);
                self.insist(request.kind, give).map(|(pointer, retried)| (pointer, Home::Pool(index), retried))
            }
            Mode::Driver => {
                let give = || self.driver.alloc(None, request);
                self.insist(request.kind, give).map(|(pointer, retried)| (pointer, Home::Stream, retried))
            }
            Mode::Plain => {
                let (pointer, retried) = self.obtain_plain(request.kind, request.bytes)?;
                Ok((pointer, Home::Cached, retried))
            }
        }
    }

    pub(super) fn obtain_plain(&self, kind: Kind, bytes: u64) -> Result<(Pointer, u32), DriverError> {
        self.insist(kind, || self.driver.alloc_plain(bytes, kind))
    }

    fn first_pool(&self, slot: Slot) -> Result<(u32, D::Pool), DriverError> {
        let (pool, _) = self.insist(slot.kind(), || self.driver.create_pool())?;
        Ok((self.books().add_pool(slot, pool), pool))
    }

    /// Rung 1: asks; when there is no memory, waits for the device, returns everything cached, and asks again.
    fn insist<T>(&self, kind: Kind, give: impl Fn() -> Result<T, DriverError>) -> Result<(T, u32), DriverError> {
        let mut retried = 0;
        loop {
            match give() {
                Err(DriverError::OUT_OF_MEMORY) if retried < retries(kind) => {
                    retried += 1;
                    self.return_everything();
                }
                other => return other.map(|given| (given, retried)),
            }
        }
    }

    /// Where pools are the driver's it takes a whole pool's cache when another needs memory: more than was needed, at a
    /// thousand times the price. So what is needed is returned before.
    fn make_room(&self, bytes: u64) {
        let needed = bytes.saturating_add(GRANULE);
        let Ok(memory) = self.driver.memory() else { return };
        if memory.free >= needed {
            return;
        }
        let cached = self.workspace().cached.get();
        if cached > 0 {
            self.trim_workspace(Bytes::new(cached.saturating_sub(needed - memory.free)));
        }
    }

    /// Waits for the device and returns everything that is cached, whosesoever.
    pub fn return_everything(&self) {
        self.wait();
        {
            // Whichever thread this is, no pool goes away under it.
            let _none_goes = self.destruction.lock().unwrap_or_else(PoisonError::into_inner);
            let pools: Vec<_> = self.books().pools().map(|pool| pool.handle).collect();
            for pool in pools {
                self.trim_pool(pool, 0);
            }
        }
        self.shrink_cache(0);
        self.trims.fetch_add(1, Relaxed);
    }

    /// Waits for the device and returns cached workspace until `keep` bytes of it are left. Returns what was returned.
    pub fn trim_workspace(&self, keep: Bytes) -> Bytes {
        self.wait();
        let pool = self.books().pool_of(Slot::NOBODY.with(Kind::Workspace));
        let returned = match pool {
            Some((_, pool)) => self.trim_pool(pool, self.driver.used(pool).saturating_add(keep.get())),
            None => self.shrink_cache(keep.get()),
        };
        self.trims.fetch_add(u64::from(returned > 0), Relaxed);
        Bytes::new(returned)
    }

    pub(super) fn trim_pool(&self, pool: D::Pool, reserved: u64) -> u64 {
        let before = self.driver.reserved(pool);
        if let Err(error) = self.driver.trim(pool, reserved) {
            self.note_fault(error);
        }
        before.saturating_sub(self.driver.reserved(pool))
    }

    fn shrink_cache(&self, keep: u64) -> u64 {
        let (pointers, returned) = {
            let mut books = self.books();
            let before = books.cache.cached;
            let pointers = books.cache.shrink(keep);
            (pointers, before - books.cache.cached)
        };
        for pointer in pointers {
            if let Err(error) = self.driver.free_plain(pointer) {
                self.note_fault(error);
            }
        }
        returned
    }
}
