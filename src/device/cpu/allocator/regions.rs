//! The cache of large workspace blocks: regions mapped from the system once and used again and again.
//!
//! A region belongs to one block as long as the block lives; freed, it waits in the list of its size class, pages and
//! all, for the next block. Touching a fresh page costs a fault and the zeroing of it, which for the activations of a
//! layer is as dear as the arithmetic on them; a step in a steady state takes every block from here.
//!
//! What the cache holds counts against the device's budget. While a step runs, live and cached regions together stay
//! below its ceiling as long as there is something cached to give back; outside of steps the engine decides
//! ([`trim_cache`]).

use std::ptr::{self, NonNull};
use std::sync::{Mutex, PoisonError};

use super::classes::{CLASSES, PAGE, class_for};
use crate::units::Bytes;

/// From here on a region asks for huge pages: 2 MiB are then one fault instead of 512.
/// Below, the alignment that they need would not be met inside the region.
const HUGE_FROM: usize = 4 << 20;

/// How much larger than asked for a cached region may be and still be used: one part in this many.
/// More means fewer faults when shapes change, and more memory reserved than the step asked for.
const SLACK_DIVISOR: usize = 8;

/// A free region, written into its own first bytes: the cache needs no memory besides the regions.
struct FreeRegion {
    next: Option<NonNull<FreeRegion>>,
    bytes: usize,
}

struct Cache {
    /// Free regions by class, the last freed first: its pages are the likeliest to be in the processor's caches.
    lists: [Option<NonNull<FreeRegion>>; CLASSES],
    balance: CacheBalance,
    /// What live and cached regions may come to; `u64::MAX` between steps.
    ceiling: u64,
}

// SAFETY: the regions behind the pointers are owned by the cache alone; no thread keeps a reference to one.
unsafe impl Send for Cache {}

// The lock is a futex: it neither allocates nor needs set-up. A child of `fork` that was started while another
// thread held it must not allocate workspace before `exec`, and has no reason to: it is in no scope.
static CACHE: Mutex<Cache> = Mutex::new(Cache {
    lists: [None; CLASSES],
    balance: CacheBalance { live: 0, asked: 0, cached: 0, cached_peak: 0, hits: 0, maps: 0, unmaps: 0 },
    ceiling: u64::MAX,
});

/// The books of the cache. Bytes are those of whole regions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheBalance {
    /// Bytes of regions that a block lives in.
    pub live: u64,
    /// What those blocks asked for.
    pub asked: u64,
    /// Bytes of regions that wait for one.
    pub cached: u64,
    /// Largest `cached` so far.
    pub cached_peak: u64,
    /// Blocks served by a cached region.
    pub hits: u64,
    /// Regions mapped from the system.
    pub maps: u64,
    /// Regions given back to it.
    pub unmaps: u64,
}

impl CacheBalance {
    /// Live and cached.
    pub fn reserved(&self) -> Bytes {
        Bytes::new(self.live + self.cached)
    }
}

/// A region that now belongs to a block.
pub(super) struct Region {
    pub(super) start: NonNull<u8>,
    pub(super) bytes: usize,
    /// Fresh from the system, hence all zero.
    pub(super) is_zero: bool,
}

/// The books at this moment.
pub fn cache_balance() -> CacheBalance {
    lock().balance
}

/// Gives cached regions back to the system, the largest first, until at most `keep` bytes are cached. Returns the
/// bytes given back.
pub fn trim_cache(keep: Bytes) -> Bytes {
    let mut cache = lock();
    let before = cache.balance.cached;
    cache.shrink_to(keep.get());
    Bytes::new(before - cache.balance.cached)
}

/// A step begins: what is reserved shall stay within its ceiling.
pub(super) fn begin(ceiling: Bytes) {
    let mut cache = lock();
    cache.ceiling = ceiling.get();
    cache.make_room(0);
}

/// The step has ended. What it used stays cached until [`trim_cache`].
pub(super) fn end() {
    lock().ceiling = u64::MAX;
}

/// A region of at least `bytes`. `None` if the system refuses, or for more than the largest class.
pub(super) fn take(bytes: usize) -> Option<Region> {
    let (class, size) = class_for(bytes)?;
    let mut cache = lock();
    if let Some((start, found)) = cache.best_fit(class, size + size / SLACK_DIVISOR) {
        cache.balance.hits += 1;
        cache.balance.cached -= found as u64;
        cache.balance.live += found as u64;
        cache.balance.asked += bytes as u64;
        return Some(Region { start, bytes: found, is_zero: false });
    }
    cache.make_room(size as u64);
    // Counted before it is mapped, so that no other thread sees room that is about to be used; the call itself is
    // made without the lock.
    cache.balance.live += size as u64;
    cache.balance.asked += bytes as u64;
    cache.balance.maps += 1;
    drop(cache);
    let start = map(size);
    if start.is_none() {
        let mut cache = lock();
        cache.balance.live -= size as u64;
        cache.balance.asked -= bytes as u64;
        cache.balance.maps -= 1;
    }
    Some(Region { start: start?, bytes: size, is_zero: true })
}

/// The block in a region has another size from now on; only the books change.
pub(super) fn resized(from: usize, to: usize) {
    let balance = &mut lock().balance;
    balance.asked = balance.asked - from as u64 + to as u64;
}

/// Takes a region back into the cache; `asked` is what its block last asked for.
///
/// # Safety
/// `start` and `bytes` are those of a [`Region`] from [`take`] that is given back once and not used any more.
pub(super) unsafe fn give_back(start: NonNull<u8>, bytes: usize, asked: usize) {
    let mut cache = lock();
    cache.balance.live -= bytes as u64;
    cache.balance.asked -= asked as u64;
    let over = cache.balance.live + cache.balance.cached + bytes as u64 > cache.ceiling;
    if over {
        cache.balance.unmaps += 1;
        drop(cache);
        // SAFETY: the caller gives up the region, and it is not in the cache.
        unsafe { unmap(start, bytes) };
        return;
    }
    // SAFETY: the same promise makes the region the cache's.
    unsafe { cache.put(start, bytes) };
}

fn lock() -> std::sync::MutexGuard<'static, Cache> {
    // Nothing under the lock panics; were it to, the lists are consistent between any two statements.
    CACHE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cache {
    /// Takes the smallest free region of `class` or above that has at most `bytes_max`.
    fn best_fit(&mut self, class: usize, bytes_max: usize) -> Option<(NonNull<u8>, usize)> {
        let last = class_for(bytes_max).map_or(CLASSES - 1, |(last, _)| last);
        let list = self.lists[class..=last].iter_mut().find(|list| list.is_some())?;
        let region = list.take()?;
        // SAFETY: everything in the lists was written by `put` and is untouched since.
        let FreeRegion { next, bytes } = unsafe { region.read() };
        *list = next;
        Some((region.cast(), bytes))
    }

    /// # Safety
    /// The cache owns the `bytes` at `start`: a whole region of a class's exact size.
    unsafe fn put(&mut self, start: NonNull<u8>, bytes: usize) {
        let Some((class, _)) = class_for(bytes) else { return };
        let region = start.cast::<FreeRegion>();
        // SAFETY: a region is page-aligned and larger than the record.
        unsafe { region.write(FreeRegion { next: self.lists[class], bytes }) };
        self.lists[class] = Some(region);
        self.balance.cached += bytes as u64;
        self.balance.cached_peak = self.balance.cached_peak.max(self.balance.cached);
    }

    /// Gives cached regions back until `bytes` more fit under the ceiling, or nothing is cached.
    fn make_room(&mut self, bytes: u64) {
        let allowed = self.ceiling.saturating_sub(self.balance.live.saturating_add(bytes));
        self.shrink_to(allowed);
    }

    fn shrink_to(&mut self, cached: u64) {
        let mut class = CLASSES;
        while self.balance.cached > cached && class > 0 {
            class -= 1;
            while self.balance.cached > cached {
                let Some(region) = self.lists[class].take() else { break };
                // SAFETY: as in `best_fit`.
                let FreeRegion { next, bytes } = unsafe { region.read() };
                self.lists[class] = next;
                self.balance.cached -= bytes as u64;
                self.balance.unmaps += 1;
                // SAFETY: it is out of the list; nobody else knows it.
                unsafe { unmap(region.cast(), bytes) };
            }
        }
    }
}

fn map(bytes: usize) -> Option<NonNull<u8>> {
    debug_assert!(bytes.is_multiple_of(PAGE));
    // SAFETY: an anonymous private mapping at an address of the kernel's choice touches no existing memory.
    let start = unsafe {
        libc::mmap(
            ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return None;
    }
    #[cfg(target_os = "linux")]
    if bytes >= HUGE_FROM {
        // SAFETY: the range is ours. A refusal only means small pages.
        unsafe { libc::madvise(start, bytes, libc::MADV_HUGEPAGE) };
    }
    NonNull::new(start.cast())
}

/// # Safety
/// The `bytes` at `start` are a whole mapping from [`map`] that nothing refers to any more.
unsafe fn unmap(start: NonNull<u8>, bytes: usize) {
    // SAFETY: by the caller's promise. It can fail only for a range that is no mapping.
    let result = unsafe { libc::munmap(start.as_ptr().cast(), bytes) };
    debug_assert_eq!(result, 0);
}
