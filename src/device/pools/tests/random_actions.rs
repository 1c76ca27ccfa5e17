//! Random models, steps, neighbours and failures: after each action the books and the driver agree.

use std::sync::atomic::Ordering::Relaxed;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::device::pools::arena::CHUNK;

struct Loaded {
    id: ModelId,
    weights: Slot,
    tensors: Vec<Pointer>,
}

struct World<D: OverSimulation> {
    random: SmallRng,
    card: PooledAllocator<FailingDriver<D>>,
    /// What a pool takes at a time.
    granule: u64,
    models: Vec<Loaded>,
    /// What steps have left behind.
    strays: Vec<Pointer>,
    next: u32,
}

impl<D: OverSimulation> World<D> {
    fn new(seed: u64, mode: Mode, granule: u64, over: impl Fn(Simulated) -> D) -> World<D> {
        let failures = Failures::Random { probability: 0.02, seed };
        let card = PooledAllocator::new(FailingDriver::new(over(Simulated::new(1 << 30)), failures), mode).unwrap();
        let random = SmallRng::seed_from_u64(seed);
        World { random, card, granule, models: Vec::new(), strays: Vec::new(), next: 0 }
    }

    fn simulation(&self) -> &Simulated {
        self.card.driver().inner().simulation()
    }

    fn has_arenas(&self) -> bool {
        self.granule < GRANULE
    }

    fn size(&mut self) -> u64 {
        // Log-uniform from one byte to 128 MiB.
        let log2 = self.random.random_range(0.0..27.0f64);
        log2.exp2() as u64
    }

    fn act(&mut self) {
        match self.random.random_range(0..100) {
            0..8 => self.load(),
            8..14 => self.unload(),
            14..70 => self.step(),
            70..80 => {
                let keep = Bytes::new(self.size());
                self.card.trim_workspace(keep);
                // Pools keep whole granules, ours every one that a block lies in.
                let scattered = if self.has_arenas() { 2 * self.strays.len() as u64 } else { 1 };
                assert!(self.card.workspace().cached <= keep + Bytes::new(scattered * self.granule));
            }
            80..90 => {
                let bytes = self.random.random_range(0..600) * MIB;
                self.simulation().neighbour.store(bytes, Relaxed);
            }
            90..97 => {
                if let Some(stray) = self.strays.pop() {
                    assert!(self.card.free(stray, Some(1)));
                }
            }
            _ => assert!(!self.card.free(0xdead_0000, Some(1))),
        }
    }

    fn load(&mut self) {
        let id = ModelId::new(self.next);
        self.next += 1;
        let weights = self.card.open_model(id);
        let lease = Bytes::new(if self.random.random_bool(0.5) { u64::MAX } else { 4 * self.size() });
        self.card.set_ceiling(weights, lease);
        let count = self.random.random_range(0..12);
        let wanted: Vec<_> = (0..count).map(|_| self.size()).collect();
        let tensors: Vec<_> = wanted.into_iter().filter_map(|bytes| self.card.alloc(weights, bytes, 1).ok()).collect();
        let record = self.card.take_shortfall(weights);
        let failed = record.is_some();
        assert_eq!(failed, tensors.len() < count);
        assert!(Bytes::new(self.card.live(weights)) <= lease);
        if let Some(record) = record.filter(|record| record.cause == Cause::Ceiling) {
            assert!(record.held + record.requested > lease, "{record:?}");
        }
        if failed || self.models.len() == 5 {
            free_all(&self.card, tensors);
            assert_eq!(self.card.close_model(weights), Bytes::ZERO);
        } else {
            self.card.settle_model(weights);
            self.models.push(Loaded { id, weights, tensors });
        }
    }

    fn unload(&mut self) {
        if self.models.is_empty() {
            return;
        }
        let index = self.random.random_range(0..self.models.len());
        let Loaded { weights, tensors, .. } = self.models.remove(index);
        free_all(&self.card, tensors);
        let library = self.card.resident(weights).library;
        assert_eq!(self.card.close_model(weights), library, "only what its steps left behind is left");
    }

    fn step(&mut self) {
        if self.models.is_empty() {
            return;
        }
        let model = self.models[self.random.random_range(0..self.models.len())].id;
        let ceiling = self.size();
        let strays = self.card.books().strays() + 2 * CHUNK * self.strays.len() as u64;
        let pool = self.card.books().pool_of(Slot::NOBODY.with(Kind::Workspace)).map(|(_, pool)| pool);
        let pool = pool.filter(|_| self.has_arenas());
        let found = pool.map_or(0, |pool| self.card.driver.used(pool));
        let leftovers = [0, 2 * CHUNK, u64::MAX][self.random.random_range(0..3)];
        let need = Need { leftovers: Bytes::new(leftovers), ..Need::up_to(Bytes::new(ceiling)) };
        let step = self.card.begin_step(model, need).unwrap();
        // What is found beyond what was set aside has no room in what the step was given.
        let most = found.max(ceiling.saturating_add(found.min(leftovers)));
        let mut held = Vec::new();
        let mut refused = false;
        for _ in 0..self.random.random_range(1..30) {
            if !held.is_empty() && self.random.random_bool(0.4) {
                let index = self.random.random_range(0..held.len());
                assert!(self.card.free(held.swap_remove(index), Some(1)));
                continue;
            }
            let bytes = self.size();
            match self.card.alloc(step, bytes, 1) {
                Ok(pointer) => {
                    assert!(!self.has_arenas() || bytes == 0 || self.simulation().is_memory(pointer, bytes));
                    self.simulation().work();
                    held.push(pointer);
                }
                Err(error) => {
                    assert_eq!(error, DriverError::OUT_OF_MEMORY);
                    refused = true;
                }
            }
            assert!(self.card.live(step) <= ceiling);
            assert!(pool.is_none_or(|pool| self.card.driver.reserved(pool) <= most));
        }
        if self.strays.len() < 10 && self.random.random_bool(0.1) {
            self.strays.extend(held.pop());
        }
        free_all(&self.card, held);
        let books = self.card.end_step(step);
        // What is lost between blocks is within what the pool may hold: what the step may have, and where strays lie.
        let pool = if self.has_arenas() { strays } else { 0 };
        assert!(books.used.peak.get() <= ceiling + pool && !books.used.overrun);
        assert_eq!(books.shortfall.is_some(), refused);
    }

    fn check(&self) {
        self.card.books().check();
        let snapshot = self.card.snapshot();
        let owned: u64 = snapshot.owners.iter().map(|owner| owner.live.get()).sum();
        let cached = if self.card.mode() == Mode::Plain { self.card.workspace().cached.get() } else { 0 };
        let known = if self.has_arenas() { self.card.reserved().get() } else { owned + cached };
        assert_eq!(known, self.simulation().living(), "the driver knows of other blocks");
        assert!(!self.has_arenas() || owned <= known);
        assert_eq!(self.card.fault(), None);
    }
}

/// A hundred and fifty actions in each of forty worlds.
fn live_through<D: OverSimulation>(mode: Mode, granule: u64, over: impl Fn(Simulated) -> D) {
    for seed in 0..40 {
        let mut world = World::new(seed, mode, granule, &over);
        for _ in 0..150 {
            world.act();
            world.check();
        }
        // When everybody is gone, nothing is left.
        world.simulation().neighbour.store(0, Relaxed);
        while !world.models.is_empty() {
            world.unload();
        }
        free_all(&world.card, world.strays.drain(..));
        world.card.trim_workspace(Bytes::ZERO);
        world.check();
        assert_eq!(world.simulation().living(), 0, "{mode:?}, seed {seed}");
        match (mode, world.has_arenas()) {
            (Mode::Pools, false) => assert_eq!(world.simulation().pool_count(), 2, "seed {seed}"),
            (Mode::Pools, true) => assert_eq!(world.simulation().span_count(), 2, "seed {seed}"),
            (Mode::Plain | Mode::Driver, _) => {}
        }
    }
}

#[test]
fn the_books_agree_with_the_driver_whatever_happens() {
    for mode in [Mode::Pools, Mode::Plain, Mode::Driver] {
        live_through(mode, GRANULE, |driver| driver);
    }
}

#[test]
fn and_so_they_do_with_pools_of_ours() {
    live_through(Mode::Pools, CHUNK, Arenas::new);
}
