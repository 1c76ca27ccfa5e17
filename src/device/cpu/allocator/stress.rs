//! The allocator against an oracle, from many threads.

use std::alloc::{GlobalAlloc, Layout};
use std::sync::mpsc;
use std::thread;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::units::{Bytes, ModelId};

const ALLOCATOR: AccountedAllocator = AccountedAllocator;

/// A block that the oracle knows everything about. All its bytes are `mark`.
struct Block {
    start: *mut u8,
    layout: Layout,
    mark: u8,
}

// SAFETY: a block is plain memory, owned by whoever owns the value.
unsafe impl Send for Block {}

impl Block {
    fn new(rng: &mut SmallRng) -> Block {
        let layout = layout(rng);
        let mark = rng.random();
        let zeroed: bool = rng.random();
        // SAFETY: the layout is not empty.
        let start = unsafe { if zeroed { ALLOCATOR.alloc_zeroed(layout) } else { ALLOCATOR.alloc(layout) } };
        assert!(!start.is_null());
        assert_eq!(start as usize % layout.align(), 0, "{layout:?}");
        let block = Block { start, layout, mark };
        if zeroed {
            assert!(block.bytes(layout.size()).iter().all(|byte| *byte == 0), "zeroed means zero");
        }
        // SAFETY: the block is ours, all of it.
        unsafe { start.write_bytes(mark, layout.size()) };
        block
    }

    fn bytes(&self, count: usize) -> &[u8] {
        // SAFETY: `count` is at most the block's size, and the block is initialized by `new` or by `alloc_zeroed`.
        unsafe { std::slice::from_raw_parts(self.start, count) }
    }

    fn resize(&mut self, rng: &mut SmallRng) {
        let size = layout(rng).size();
        // SAFETY: the block is alive with this layout; the size is neither zero nor too large.
        let start = unsafe { ALLOCATOR.realloc(self.start, self.layout, size) };
        assert!(!start.is_null());
        let kept = self.layout.size().min(size);
        self.start = start;
        self.layout = Layout::from_size_align(size, self.layout.align()).unwrap();
        assert!(self.bytes(kept).iter().all(|byte| *byte == self.mark), "a moved block keeps its bytes");
        // SAFETY: as in `new`.
        unsafe { start.write_bytes(self.mark, size) };
    }

    fn free(self) {
        assert!(self.bytes(self.layout.size()).iter().all(|byte| *byte == self.mark), "nobody wrote into the block");
        // SAFETY: freed once, with its own layout.
        unsafe { ALLOCATOR.dealloc(self.start, self.layout) };
    }
}

/// Mostly small, some around the sizes at which the source changes, some over-aligned.
fn layout(rng: &mut SmallRng) -> Layout {
    let size = match rng.random_range(0..10) {
        0..6 => rng.random_range(1..2_000),
        6..8 => rng.random_range(60_000..70_000),
        8 => rng.random_range(64..512) * 1024,
        _ => rng.random_range(1..3_000_000),
    };
    let align = [1, 4, 8, 16, 32, 64, 128, 4096][rng.random_range(0..8)];
    Layout::from_size_align(size, align).unwrap()
}

/// `actions` random actions on blocks of its own and of the other threads; returns what is alive at the end.
fn churn(
    seed: u64,
    actions: usize,
    out: &mpsc::Sender<Block>,
    mut foreign: impl FnMut() -> Option<Block>,
) -> Vec<Block> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut blocks: Vec<Block> = Vec::with_capacity(64);
    for _ in 0..actions {
        match rng.random_range(0..10) {
            0..4 if blocks.len() < 64 => blocks.push(Block::new(&mut rng)),
            4..6 if !blocks.is_empty() => {
                let index = rng.random_range(0..blocks.len());
                blocks[index].resize(&mut rng);
            }
            6 if !blocks.is_empty() => out.send(blocks.swap_remove(0)).unwrap(),
            7 => {
                if let Some(block) = foreign() {
                    block.free();
                }
            }
            _ => {
                if !blocks.is_empty() {
                    let index = rng.random_range(0..blocks.len());
                    blocks.swap_remove(index).free();
                }
            }
        }
    }
    blocks
}

fn library_live(model: ModelId) -> Bytes {
    accounts().filter(|charged| charged.owner.model == Some(model)).map(|charged| charged.balance.live).sum()
}

#[test]
fn blocks_keep_their_bytes_and_accounts_balance_across_threads() {
    // One thread in a step, three that compute for it, two of the server; each frees blocks of any other.
    let model = ModelId::new(900_100);
    let (out, into) = mpsc::channel::<Block>();
    let into = std::sync::Mutex::new(into);
    let foreign = || into.lock().unwrap().try_recv().ok();
    let step = StepAccount::open(model, Bytes::mib(16));
    let mut alive = Vec::new();
    {
        let scope = step.enter();
        thread::scope(|threads| {
            let spawn = |seed: u64, computes: bool| {
                let out = out.clone();
                threads.spawn(move || {
                    if computes {
                        mark_compute_thread();
                    }
                    churn(seed, 3_000, &out, foreign)
                })
            };
            let others: Vec<_> = (1..=5).map(|seed| spawn(seed, seed <= 3)).collect();
            alive.extend(churn(0, 3_000, &out, foreign));
            for other in others {
                alive.extend(other.join().unwrap());
            }
        });
        drop(scope);
    }
    assert!(step.balance().peak >= step.balance().live);
    assert!(step.balance().peak > Bytes::mib(4), "the step and its compute threads are charged");
    drop(step);
    assert!(library_live(model) > Bytes::ZERO, "what is alive after the step is the model's library memory");
    for block in alive.into_iter().chain(std::iter::from_fn(foreign)) {
        block.free();
    }
    drop((out, into));
    assert_eq!(library_live(model), Bytes::ZERO, "every byte is discharged where it was charged");
}

#[test]
fn a_step_is_charged_exactly_what_it_asks_for() {
    let model = ModelId::new(900_101);
    let step = StepAccount::open(model, Bytes::MAX);
    let scope = step.enter();
    let a: Vec<u8> = Vec::with_capacity(1_000_000);
    let b: Vec<u8> = Vec::with_capacity(500);
    drop(a);
    let c: Vec<u8> = Vec::with_capacity(200_000);
    drop(scope);
    let outside: Vec<u8> = Vec::with_capacity(5_000_000);
    let balance = step.balance();
    assert_eq!(balance.peak, Bytes::new(1_000_500));
    assert_eq!(balance.live, Bytes::new(200_500));
    assert_eq!((balance.allocated, balance.freed), (3, 1));
    drop((b, c, outside));
    assert_eq!(step.balance().live, Bytes::ZERO);
}

#[test]
fn a_freed_region_serves_the_next_block_and_the_ceiling_bounds_the_cache() {
    let model = ModelId::new(900_102);
    // Both are far larger than what the other tests leave in the cache.
    let large = 96 << 20;
    let step = StepAccount::open(model, Bytes::mib(200));
    {
        let _scope = step.enter();
        drop(Vec::<u8>::with_capacity(large));
        let before = cache_balance();
        drop(Vec::<u8>::with_capacity(large - 4096));
        let after = cache_balance();
        assert_eq!((after.hits, after.maps), (before.hits + 1, before.maps), "served from the cache");
        // Neither region fits the other's size; 96 + 160 MiB would pass the ceiling of 200.
        let block = Vec::<u8>::with_capacity(160 << 20);
        assert!(cache_balance().reserved() <= Bytes::mib(200));
        assert!(!step.has_overrun());
        drop(block);
        // Another test may trim at any moment, so only what the cache holds afterwards is certain.
        trim_cache(Bytes::mib(100));
        assert!(cache_balance().cached <= Bytes::mib(100).get());
    }
}

#[test]
fn an_overrun_is_counted_and_not_refused() {
    let step = StepAccount::open(ModelId::new(900_103), Bytes::mib(1));
    {
        let _scope = step.enter();
        let _block = Vec::<u8>::with_capacity(2 << 20);
    }
    assert!(step.has_overrun());
    assert_eq!(step.balance().peak, Bytes::mib(2));
}

#[test]
fn a_block_may_be_freed_while_its_thread_ends() {
    // A thread-local with a destructor outlives the moment at which others are torn down.
    struct Last(Vec<u8>);
    impl Drop for Last {
        fn drop(&mut self) {
            self.0 = vec![1; 100_000];
            drop(vec![2u8; 10]);
        }
    }
    thread_local!(static LAST: std::cell::RefCell<Option<Last>> = const { std::cell::RefCell::new(None) });
    thread::spawn(|| {
        mark_compute_thread();
        LAST.with(|last| *last.borrow_mut() = Some(Last(vec![0; 100])));
    })
    .join()
    .unwrap();
}

#[test]
fn impossible_layouts_are_refused_with_null() {
    let layout = Layout::from_size_align(isize::MAX as usize - 15, 16).unwrap();
    // SAFETY: the layout is not empty.
    assert!(unsafe { ALLOCATOR.alloc(layout) }.is_null());
    let block = Layout::from_size_align(10, 1).unwrap();
    // SAFETY: allocated, resized in vain (the old block stays), freed once.
    unsafe {
        let start = ALLOCATOR.alloc(block);
        assert!(ALLOCATOR.realloc(start, block, isize::MAX as usize - 8).is_null());
        ALLOCATOR.dealloc(start, block);
    }
}
