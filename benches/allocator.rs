//! What accounting costs, and what the cache of regions saves: `cargo bench --bench allocator`.
//!
//! Each case allocates, touches and frees one block. `system` is the system's allocator alone; `server` the accounted
//! one on a thread of the server; `step` the same inside a step, where large blocks come from the cache of regions.

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;

use divan::Bencher;
use plimsoll::device::cpu::allocator::{AccountedAllocator, StepAccount, trim_cache, tune_system_allocator};
use plimsoll::units::{Bytes, ModelId};

const SIZES: [usize; 6] = [64, 4 << 10, 60 << 10, 256 << 10, 4 << 20, 32 << 20];

fn main() {
    tune_system_allocator();
    divan::main();
}

/// One block, from allocation to free; a byte of each page is written, as a tensor's first use would.
fn use_block(allocator: &impl GlobalAlloc, bytes: usize) {
    let layout = Layout::from_size_align(bytes, 4).expect("a small power of two is an alignment");
    // SAFETY: the layout is not empty; writes stay inside the block; it is freed once with its layout.
    unsafe {
        let block = allocator.alloc(layout);
        assert!(!block.is_null());
        for offset in (0..bytes).step_by(4096) {
            block.add(offset).write_volatile(1);
        }
        allocator.dealloc(black_box(block), layout);
    }
}

#[divan::bench(args = SIZES)]
fn system(bencher: Bencher, bytes: usize) {
    bencher.bench_local(|| use_block(&System, bytes));
}

#[divan::bench(args = SIZES)]
fn server(bencher: Bencher, bytes: usize) {
    bencher.bench_local(|| use_block(&AccountedAllocator, bytes));
}

#[divan::bench(args = SIZES)]
fn step(bencher: Bencher, bytes: usize) {
    let step = StepAccount::open(ModelId::new(0), Bytes::MAX);
    let _scope = step.enter();
    bencher.bench_local(|| use_block(&AccountedAllocator, bytes));
}

/// A step whose blocks fit nothing that is cached: every page is fresh.
#[divan::bench(args = [256 << 10, 4 << 20, 32 << 20])]
fn step_cold(bencher: Bencher, bytes: usize) {
    let step = StepAccount::open(ModelId::new(0), Bytes::MAX);
    let _scope = step.enter();
    bencher.bench_local(|| {
        use_block(&AccountedAllocator, bytes);
        trim_cache(Bytes::ZERO);
    });
}

/// Two threads of the server at once: the accounts must not be a cache line that they fight for.
#[divan::bench(args = [64, 4 << 10], threads = 2)]
fn server_contended(bencher: Bencher, bytes: usize) {
    bencher.bench(|| use_block(&AccountedAllocator, bytes));
}
