//! Pools of ours on the driver's virtual memory: each a range of addresses, of which as much is memory as its blocks need.
//!
//! The driver's own pools take 32 MiB at a time, in pieces between which no block can lie, and nobody can say beforehand
//! how many of them a step will need. An [`Arena`] takes 2 MiB at a time where they are missing, never more than its
//! limit, and where its blocks lie depends on the step and on what is left of others.
//!
//! What is freed is used again at once: what works with a pool's memory is queued on one stream. When another stream asks
//! for memory or frees some, the device is waited for: that is right for any number of streams, and good for one.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::arena::{Arena, CHUNK, Lying};
use super::pointers::PointerMap;
use super::{DriverError, Memory, Pointer, PoolDriver, Request};
use crate::device::Kind;

/// Addresses of a pool beside as many as the device has bytes: what blocks leave between them is not memory.
const SPAN_BESIDE: u64 = 4 << 30;

/// Addresses that become memory and cease to be.
///
/// A port like [`PoolDriver`]: the card's driver implements it, and so does the simulation of the tests. Chunks are of
/// 2 MiB, at multiples of that.
pub trait VirtualMemory: PoolDriver {
    /// Whether the device can keep addresses and memory apart.
    fn has_virtual_memory(&self) -> bool;
    /// Addresses that nobody else gets, none of them memory.
    ///
    /// # Errors
    /// If the driver has none.
    fn reserve_addresses(&self, bytes: u64) -> Result<Pointer, DriverError>;
    /// Gives addresses back; none of them is memory.
    ///
    /// # Errors
    /// If the driver refuses.
    fn release_addresses(&self, start: Pointer, bytes: u64) -> Result<(), DriverError>;
    /// Makes whole chunks memory, all or none.
    ///
    /// # Errors
    /// [`DriverError::OUT_OF_MEMORY`], or whatever else ails the device.
    fn map(&self, start: Pointer, bytes: u64) -> Result<(), DriverError>;
    /// Gives the memory of whole chunks back, which the device does not use any more.
    ///
    /// # Errors
    /// If the driver refuses.
    fn unmap(&self, start: Pointer, bytes: u64) -> Result<(), DriverError>;
}

/// A driver whose pools are arenas where the device can have them, and the driver's own elsewhere.
pub struct Arenas<D: PoolDriver> {
    inner: D,
    has_arenas: bool,
    /// Addresses of a pool.
    span: u64,
    all: Mutex<All<D::Stream>>,
}

struct All<S>(Vec<Option<Held<S>>>);

/// An arena and where it is.
struct Held<S> {
    base: Pointer,
    arena: Arena,
    /// In whose order its memory is used.
    stream: Option<S>,
    /// Where each block lies, by its address.
    blocks: PointerMap<Lying>,
    /// It goes with its last block.
    doomed: bool,
}

/// A pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArenaPool<P> {
    /// One of ours, by its number.
    Arena(u32),
    /// One of the driver's.
    Driver(P),
}

impl<D: VirtualMemory> Arenas<D> {
    /// Over a driver.
    pub fn new(inner: D) -> Arenas<D> {
        // candle asks for memory in a stream's order where there are pools, and else in another way.
        let has_arenas = inner.has_pools() && inner.has_virtual_memory();
        let total = inner.memory().map_or(0, |memory| memory.total);
        let span = total.saturating_add(total / 4 + SPAN_BESIDE).next_multiple_of(CHUNK);
        Arenas { inner, has_arenas, span, all: Mutex::new(All(Vec::new())) }
    }

    /// The driver under it.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Whether its pools are arenas.
    pub fn has_arenas(&self) -> bool {
        self.has_arenas
    }

    fn all(&self) -> MutexGuard<'_, All<D::Stream>> {
        // Nothing panics between two halves of a change but for broken invariants.
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a method says of an arena that exists.
    fn of<T>(&self, number: u32, told: impl FnOnce(&Arena) -> T, otherwise: T) -> T {
        match self.all().0.get(number as usize) {
            Some(Some(held)) => told(&held.arena),
            _ => otherwise,
        }
    }

    /// Returns memory of an arena. The device is waited for while nobody can free or place a block: what is free now, it
    /// does not use any more. What the driver does not take back stays memory.
    fn shrink(&self, held: &mut Held<D::Stream>, keep: u64) -> Result<(), DriverError> {
        if !held.arena.could_shrink(keep) {
            return Ok(());
        }
        self.unmap_idle(held, |arena| arena.shrink(keep))
    }

    /// The same for what `taken` takes out of the arena.
    fn unmap_idle(
        &self,
        held: &mut Held<D::Stream>,
        taken: impl FnOnce(&mut Arena) -> Vec<Range<u64>>,
    ) -> Result<(), DriverError> {
        self.inner.synchronize()?;
        let mut said = Ok(());
        for range in taken(&mut held.arena) {
            for start in range.step_by(CHUNK as usize) {
                if let Err(error) = self.inner.unmap(held.base + start, CHUNK) {
                    held.arena.note_mapped(start..start + CHUNK);
                    said = Err(error);
                }
            }
        }
        said
    }

    /// Gives back all of a pool that is to go, if nothing lives there. What fails is tried again when the next pool is
    /// made or trimmed.
    fn dismiss(&self, all: &mut All<D::Stream>, number: usize) -> Result<(), DriverError> {
        let Some(held) = all.0[number].as_mut().filter(|held| held.doomed && held.arena.used() == 0) else {
            return Ok(());
        };
        self.shrink(held, 0)?;
        self.inner.release_addresses(held.base, held.arena.span())?;
        all.0[number] = None;
        Ok(())
    }

    fn dismiss_all(&self, all: &mut All<D::Stream>) {
        for number in 0..all.0.len() {
            // Whoever wanted it gone was told.
            let _ = self.dismiss(all, number);
        }
    }

    /// A block of an arena is gone, in the order of `stream`; without one the device has to be done with it.
    fn take_back(
        &self,
        all: &mut All<D::Stream>,
        number: usize,
        pointer: Pointer,
        stream: Option<D::Stream>,
    ) -> Result<(), DriverError> {
        let held = all.0[number].as_mut().ok_or(DriverError::INVALID_VALUE)?;
        if stream.is_none() || stream != held.stream {
            self.inner.synchronize()?;
        }
        let lying = held.blocks.remove(&pointer).ok_or(DriverError::INVALID_VALUE)?;
        held.arena.leave(lying);
        self.dismiss(all, number)
    }
}

impl<S: Copy> All<S> {
    fn held(&mut self, number: u32) -> Result<&mut Held<S>, DriverError> {
        self.0.get_mut(number as usize).and_then(Option::as_mut).ok_or(DriverError::INVALID_VALUE)
    }

    /// The number of the arena that an address lies in.
    fn around(&self, pointer: Pointer) -> Option<usize> {
        let lies = |held: &Held<S>| (held.base..held.base + held.arena.span()).contains(&pointer);
        self.0.iter().position(|held| held.as_ref().is_some_and(lies))
    }
}

impl<D: VirtualMemory> PoolDriver for Arenas<D> {
    type Pool = ArenaPool<D::Pool>;
    type Stream = D::Stream;

    fn has_pools(&self) -> bool {
        self.inner.has_pools()
    }

    fn create_pool(&self) -> Result<Self::Pool, DriverError> {
        if !self.has_arenas {
            return self.inner.create_pool().map(ArenaPool::Driver);
        }
        let mut all = self.all();
        self.dismiss_all(&mut all);
        let base = self.inner.reserve_addresses(self.span)?;
        let (arena, blocks) = (Arena::new(self.span), PointerMap::default());
        let held = Held { base, arena, stream: None, blocks, doomed: false };
        let number = all.0.iter().position(Option::is_none).unwrap_or(all.0.len());
        if number == all.0.len() {
            all.0.push(None);
        }
        all.0[number] = Some(held);
        Ok(ArenaPool::Arena(number as u32))
    }

    fn destroy_pool(&self, pool: Self::Pool) -> Result<(), DriverError> {
        let number = match pool {
            ArenaPool::Driver(pool) => return self.inner.destroy_pool(pool),
            ArenaPool::Arena(number) => number,
        };
        let mut all = self.all();
        all.held(number)?.doomed = true;
        self.dismiss(&mut all, number as usize)
    }

    #[inline]
    fn alloc(&self, pool: Option<Self::Pool>, request: Request<D::Stream>) -> Result<Pointer, DriverError> {
        let number = match pool {
            None => return self.inner.alloc(None, request),
            Some(ArenaPool::Driver(pool)) => return self.inner.alloc(Some(pool), request),
            Some(ArenaPool::Arena(number)) => number,
        };
        let mut all = self.all();
        let held = all.held(number)?;
        if held.stream != Some(request.stream) {
            // Work of the other stream may still be queued with what is free.
            if held.arena.mapped() > 0 {
                self.inner.synchronize()?;
            }
            held.stream = Some(request.stream);
        }
        let place = held.arena.choose(request.bytes).ok_or(DriverError::OUT_OF_MEMORY)?;
        match held.arena.in_the_way(&place) {
            Some(0) => {}
            // Memory lies idle elsewhere: no more than that has to go.
            Some(_) => self.unmap_idle(held, |arena| arena.make_way(&place))?,
            None => return Err(DriverError::OUT_OF_MEMORY),
        }
        for range in &place.missing {
            self.inner.map(held.base + range.start, range.end - range.start)?;
            held.arena.note_mapped(range.clone());
        }
        let pointer = held.base + place.start;
        let lying = held.arena.enter(&place);
        held.blocks.insert(pointer, lying);
        Ok(pointer)
    }

    #[inline]
    fn free(&self, pointer: Pointer, stream: D::Stream) -> Result<(), DriverError> {
        let mut all = self.all();
        match all.around(pointer) {
            Some(number) => self.take_back(&mut all, number, pointer, Some(stream)),
            None => {
                drop(all);
                self.inner.free(pointer, stream)
            }
        }
    }

    fn alloc_plain(&self, bytes: u64, kind: Kind) -> Result<Pointer, DriverError> {
        self.inner.alloc_plain(bytes, kind)
    }

    fn free_plain(&self, pointer: Pointer) -> Result<(), DriverError> {
        let mut all = self.all();
        match all.around(pointer) {
            Some(number) => self.take_back(&mut all, number, pointer, None),
            None => {
                drop(all);
                self.inner.free_plain(pointer)
            }
        }
    }

    fn trim(&self, pool: Self::Pool, reserved: u64) -> Result<(), DriverError> {
        match pool {
            ArenaPool::Driver(pool) => self.inner.trim(pool, reserved),
            ArenaPool::Arena(number) => {
                let mut all = self.all();
                self.dismiss_all(&mut all);
                self.shrink(all.held(number)?, reserved)
            }
        }
    }

    fn bound(&self, pool: Self::Pool, reserved: u64) -> Result<(), DriverError> {
        match pool {
            ArenaPool::Driver(pool) => self.inner.bound(pool, reserved),
            ArenaPool::Arena(number) => {
                let mut all = self.all();
                let held = all.held(number)?;
                held.arena.begin_turn(reserved);
                self.shrink(held, reserved)
            }
        }
    }

    fn could_bound(&self, pool: Self::Pool, reserved: u64) -> bool {
        match pool {
            ArenaPool::Driver(pool) => self.inner.could_bound(pool, reserved),
            ArenaPool::Arena(number) => self.of(number, |arena| arena.could_shrink(reserved), false),
        }
    }

    fn reached(&self, pool: Self::Pool) -> u64 {
        match pool {
            ArenaPool::Driver(pool) => self.inner.reached(pool),
            ArenaPool::Arena(number) => self.of(number, Arena::reached, 0),
        }
    }

    fn held(&self, pool: Self::Pool) -> u64 {
        match pool {
            ArenaPool::Driver(pool) => self.inner.held(pool),
            ArenaPool::Arena(number) => self.of(number, Arena::held, 0),
        }
    }

    #[inline]
    fn reserved(&self, pool: Self::Pool) -> u64 {
        match pool {
            ArenaPool::Driver(pool) => self.inner.reserved(pool),
            ArenaPool::Arena(number) => self.of(number, Arena::mapped, 0),
        }
    }

    fn used(&self, pool: Self::Pool) -> u64 {
        match pool {
            ArenaPool::Driver(pool) => self.inner.used(pool),
            ArenaPool::Arena(number) => self.of(number, Arena::pinned, 0),
        }
    }

    fn synchronize(&self) -> Result<(), DriverError> {
        self.inner.synchronize()
    }

    fn memory(&self) -> Result<Memory, DriverError> {
        self.inner.memory()
    }
}
