//! The allocator: charges an owner, then asks the driver; never the other way round.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::books::{Block, Books, Home, Slot};
use super::lives::Leftovers;
use super::plain::class_of;
use super::tally::Cause;
use super::{DriverError, Pointer, PoolDriver, Request};
use crate::device::Kind;

/// The smallest piece of a pool.
pub(super) const STEP: u64 = 512;

/// Where memory comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Memory pools, of ours or of the driver.
    Pools,
    /// Single allocations of the driver, cached here: for devices without pools.
    Plain,
    /// Whatever the driver does by itself, so that profilers and sanitizers see what they know. The books are kept and
    /// ceilings hold.
    Driver,
}

impl Mode {
    /// The word for settings, logs and the keys of profiles.
    pub const fn as_str(self) -> &'static str {
        match self {
            Mode::Pools => "pools",
            Mode::Plain => "plain",
            Mode::Driver => "driver",
        }
    }
}

/// The allocator of one device. May be called from any thread; models and steps are opened and ended by one.
///
/// Memory that is charged and not given is uncharged again before the call returns; memory that is given is in the
/// books before its address is known to anybody. The lock is never held while the driver is called, but for asking what its
/// pools hold: those must not go meanwhile.
pub struct PooledAllocator<D: PoolDriver> {
    pub(super) driver: D,
    pub(super) mode: Mode,
    books: Mutex<Books<D::Pool>>,
    /// Held while pools are destroyed, and while others than their owner look at them outside of the books.
    pub(super) destruction: Mutex<()>,
    pub(super) foreign_frees: AtomicU64,
    pub(super) grows: AtomicU64,
    pub(super) trims: AtomicU64,
    /// Workspace that was reserved at the last look, to see it grow.
    reserved_seen: AtomicU64,
    pub(super) cached_peak: AtomicU64,
    pub(super) leftovers: Mutex<Leftovers>,
    /// The first error that was not for lack of memory; 0 while there is none.
    fault: AtomicU32,
}

impl<D: PoolDriver> PooledAllocator<D> {
    /// An allocator that gives what `driver` has. `mode` becomes `Plain` where the device has no pools.
    ///
    /// # Errors
    /// If the driver refuses the two pools that every device has.
    pub fn new(driver: D, mode: Mode) -> Result<PooledAllocator<D>, DriverError> {
        let mode = if mode == Mode::Pools && !driver.has_pools() { Mode::Plain } else { mode };
        let mut books = Books::new();
        if mode == Mode::Pools {
            let workspace = Slot::NOBODY.with(Kind::Workspace);
            books.add_pool(workspace, driver.create_pool()?);
            match driver.create_pool() {
                Ok(pool) => books.add_pool(Slot::NOBODY, pool),
                Err(error) => {
                    let created: Vec<_> = books.pools().map(|pool| pool.handle).collect();
                    for pool in created {
                        // The first error is the one to tell.
                        let _ = driver.destroy_pool(pool);
                    }
                    return Err(error);
                }
            };
        }
        Ok(PooledAllocator {
            driver,
            mode,
            books: Mutex::new(books),
            destruction: Mutex::new(()),
            foreign_frees: AtomicU64::new(0),
            grows: AtomicU64::new(0),
            trims: AtomicU64::new(0),
            reserved_seen: AtomicU64::new(0),
            cached_peak: AtomicU64::new(0),
            leftovers: Mutex::new(Leftovers::new()),
            fault: AtomicU32::new(0),
        })
    }

    /// The driver under it.
    pub fn driver(&self) -> &D {
        &self.driver
    }

    /// Where memory comes from.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Records each allocation from now on, or ends that and forgets them.
    pub fn record_events(&self, on: bool) {
        self.books().events.set(on);
    }

    /// Memory for `slot`, used and freed in the order of `stream`. No bytes are address 0.
    ///
    /// # Errors
    /// [`DriverError::OUT_OF_MEMORY`] above the ceiling or when the driver has no more, with a record of why; another
    /// error of the driver as it is.
    #[inline]
    pub fn alloc(&self, slot: Slot, bytes: u64, stream: D::Stream) -> Result<Pointer, DriverError> {
        if bytes == 0 {
            return Ok(0);
        }
        let charged = match self.mode {
            Mode::Pools | Mode::Driver => bytes.checked_next_multiple_of(STEP),
            Mode::Plain => (bytes <= u64::MAX / 4).then(|| class_of(bytes)),
        };
        let (charged, pool) = {
            let mut books = self.books();
            let Some(charged) = charged else {
                books.refuse(slot, bytes, Cause::Ceiling);
                return Err(DriverError::OUT_OF_MEMORY);
            };
            if !books.charge(slot, charged) {
                return Err(DriverError::OUT_OF_MEMORY);
            }
            if self.mode == Mode::Plain
                && let Some(pointer) = books.cache.take(charged)
            {
                books.enter(pointer, Block { bytes: charged, slot, home: Home::Cached });
                return Ok(pointer);
            }
            (charged, books.pool_of(slot))
        };
        let request = Request { bytes: charged, stream, kind: slot.kind() };
        match self.obtain(slot, pool, request) {
            Ok((pointer, home, retried)) => {
                let mut books = self.books();
                books.tally_mut(slot).retried += retried;
                books.enter(pointer, Block { bytes: charged, slot, home });
                drop(books);
                self.look_for_growth(slot, pool);
                Ok(pointer)
            }
            Err(error) => Err(self.refused(slot, charged, error)),
        }
    }

    /// Memory for whoever asks the driver for some that belongs to no stream: candle does on devices without pools, and
    /// then it comes from the cache, as all does there.
    ///
    /// # Errors
    /// As [`PooledAllocator::alloc`].
    pub fn alloc_unordered(&self, slot: Slot, bytes: u64) -> Result<Pointer, DriverError>
    where
        D::Stream: Default,
    {
        match self.mode {
            Mode::Plain if bytes > 0 => self.alloc(slot, bytes, D::Stream::default()),
            Mode::Plain | Mode::Pools | Mode::Driver => self.alloc_plain(slot, bytes),
        }
    }

    fn alloc_plain(&self, slot: Slot, bytes: u64) -> Result<Pointer, DriverError> {
        // The driver's own rules hold for no bytes: it refuses them.
        let charged = bytes.checked_next_multiple_of(STEP).filter(|_| bytes > 0).ok_or(DriverError::INVALID_VALUE)?;
        if !self.books().charge(slot, charged) {
            return Err(DriverError::OUT_OF_MEMORY);
        }
        match self.obtain_plain(slot.kind(), charged) {
            Ok((pointer, retried)) => {
                let mut books = self.books();
                books.tally_mut(slot).retried += retried;
                books.enter(pointer, Block { bytes: charged, slot, home: Home::Plain });
                Ok(pointer)
            }
            Err(error) => Err(self.refused(slot, charged, error)),
        }
    }

    fn refused(&self, slot: Slot, charged: u64, error: DriverError) -> DriverError {
        let cause = (error == DriverError::OUT_OF_MEMORY).then_some(Cause::Driver);
        if cause.is_none() {
            self.note_fault(error);
        }
        self.books().not_entered(slot, charged, cause);
        error
    }

    /// Takes a block back. `false` if it is none of ours: then it is the driver's. Nothing that goes wrong is said
    /// here, since nobody could do anything about it: [`PooledAllocator::fault`] tells.
    #[inline]
    pub fn free(&self, pointer: Pointer, stream: Option<D::Stream>) -> bool {
        if pointer == 0 {
            return true;
        }
        let (block, last_of) = {
            let mut books = self.books();
            let Some((block, last_of)) = books.leave(pointer) else {
                drop(books);
                self.foreign_frees.fetch_add(1, Relaxed);
                return false;
            };
            // Steps want a block of this size again; models do not.
            if block.home == Home::Cached && block.slot.kind() == Kind::Workspace {
                books.cache.put(block.bytes, pointer);
                self.cached_peak.fetch_max(books.cache.cached, Relaxed);
                return true;
            }
            (block, last_of)
        };
        let freed = match (block.home, stream) {
            (Home::Pool(_) | Home::Stream, Some(stream)) => self.driver.free(pointer, stream),
            _ => self.driver.free_plain(pointer),
        };
        if let Err(error) = freed {
            self.note_fault(error);
        }
        if let Some(pool) = last_of {
            // The free is only queued.
            self.wait();
            self.destroy(&[pool]);
        }
        true
    }

    /// The first error of the driver that was not for lack of memory, since the last time.
    pub fn fault(&self) -> Option<DriverError> {
        match self.fault.swap(0, Relaxed) {
            0 => None,
            code => Some(DriverError(code)),
        }
    }

    pub(super) fn note_fault(&self, error: DriverError) {
        let _ = self.fault.compare_exchange(0, error.0, Relaxed, Relaxed);
    }

    /// Waits for the device; what goes wrong there is noted.
    pub(super) fn wait(&self) {
        if let Err(error) = self.driver.synchronize() {
            self.note_fault(error);
        }
    }

    pub(super) fn destroy(&self, pools: &[D::Pool]) {
        let _nobody_looks = self.destruction.lock().unwrap_or_else(PoisonError::into_inner);
        for pool in pools {
            if let Err(error) = self.driver.destroy_pool(*pool) {
                self.note_fault(error);
            }
        }
    }

    fn look_for_growth(&self, slot: Slot, pool: Option<(u32, D::Pool)>) {
        if slot.kind() == Kind::Workspace
            && let Some((_, pool)) = pool
        {
            let reserved = self.driver.reserved(pool);
            if self.reserved_seen.swap(reserved, Relaxed) < reserved {
                self.grows.fetch_add(1, Relaxed);
            }
        }
    }

    pub(super) fn books(&self) -> MutexGuard<'_, Books<D::Pool>> {
        // Nothing in the books panics between two halves of a change.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
