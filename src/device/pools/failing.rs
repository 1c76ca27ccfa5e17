//! A driver that fails on purpose: to see, on the card as in simulation, that nobody notices.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{DriverError, Memory, Pointer, PoolDriver, Request};
use crate::device::Kind;

/// Which allocations fail.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Failures {
    /// None.
    Never,
    /// Each with this probability, drawn anew for each call and so for each retry.
    Random {
        /// From 0 to 1.
        probability: f64,
        /// The same seed, the same calls, the same failures.
        seed: u64,
    },
    /// Those of workspace above a size, so that half a batch goes through.
    Above {
        /// Bytes.
        bytes: u64,
    },
}

/// Allocations that failed on purpose, by whose they were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Hits {
    /// For weights.
    pub weights: u64,
    /// For KV.
    pub kv: u64,
    /// For workspace.
    pub workspace: u64,
    /// For libraries.
    pub library: u64,
}

impl Hits {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.weights + self.kv + self.workspace + self.library
    }
}

/// Any driver, some of whose allocations fail.
pub struct FailingDriver<D> {
    inner: D,
    failures: Failures,
    /// State of the random numbers.
    state: AtomicU64,
    hits: [AtomicU64; 4],
}

impl<D> FailingDriver<D> {
    /// Wraps `inner`.
    pub fn new(inner: D, failures: Failures) -> FailingDriver<D> {
        let seed = match failures {
            Failures::Random { seed, .. } => seed,
            Failures::Never | Failures::Above { .. } => 0,
        };
        FailingDriver { inner, failures, state: AtomicU64::new(seed), hits: Default::default() }
    }

    /// The driver under it.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// What fails.
    pub fn failures(&self) -> Failures {
        self.failures
    }

    /// What has failed so far.
    pub fn hits(&self) -> Hits {
        let [weights, kv, workspace, library] = Kind::ALL.map(|kind| self.hits[kind as usize].load(Relaxed));
        Hits { weights, kv, workspace, library }
    }

    #[inline]
    fn admit(&self, bytes: u64, kind: Kind) -> Result<(), DriverError> {
        let fails = match self.failures {
            Failures::Never => return Ok(()),
            Failures::Random { probability, .. } => self.draw() < probability,
            Failures::Above { bytes: most } => kind == Kind::Workspace && bytes > most,
        };
        if fails {
            self.hits[kind as usize].fetch_add(1, Relaxed);
            return Err(DriverError::OUT_OF_MEMORY);
        }
        Ok(())
    }

    /// From 0 to 1. SplitMix64: a counter, mixed, so that threads draw without a lock.
    fn draw(&self) -> f64 {
        const STRIDE: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut mixed = self.state.fetch_add(STRIDE, Relaxed).wrapping_add(STRIDE);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

impl<D: PoolDriver> PoolDriver for FailingDriver<D> {
    type Pool = D::Pool;
    type Stream = D::Stream;

    fn has_pools(&self) -> bool {
        self.inner.has_pools()
    }

    fn create_pool(&self) -> Result<D::Pool, DriverError> {
        self.inner.create_pool()
    }

    fn destroy_pool(&self, pool: D::Pool) -> Result<(), DriverError> {
        self.inner.destroy_pool(pool)
    }

    #[inline]
    fn alloc(&self, pool: Option<D::Pool>, request: Request<D::Stream>) -> Result<Pointer, DriverError> {
        self.admit(request.bytes, request.kind)?;
        self.inner.alloc(pool, request)
    }

    #[inline]
    fn free(&self, pointer: Pointer, stream: D::Stream) -> Result<(), DriverError> {
        self.inner.free(pointer, stream)
    }

    fn alloc_plain(&self, bytes: u64, kind: Kind) -> Result<Pointer, DriverError> {
        self.admit(bytes, kind)?;
        self.inner.alloc_plain(bytes, kind)
    }

    fn free_plain(&self, pointer: Pointer) -> Result<(), DriverError> {
        self.inner.free_plain(pointer)
    }

    fn trim(&self, pool: D::Pool, reserved: u64) -> Result<(), DriverError> {
        self.inner.trim(pool, reserved)
    }

    fn bound(&self, pool: D::Pool, reserved: u64) -> Result<(), DriverError> {
        self.inner.bound(pool, reserved)
    }

    fn could_bound(&self, pool: D::Pool, reserved: u64) -> bool {
        self.inner.could_bound(pool, reserved)
    }

    fn held(&self, pool: D::Pool) -> u64 {
        self.inner.held(pool)
    }

    fn reached(&self, pool: D::Pool) -> u64 {
        self.inner.reached(pool)
    }

    #[inline]
    fn reserved(&self, pool: D::Pool) -> u64 {
        self.inner.reserved(pool)
    }

    fn used(&self, pool: D::Pool) -> u64 {
        self.inner.used(pool)
    }

    fn synchronize(&self) -> Result<(), DriverError> {
        self.inner.synchronize()
    }

    fn memory(&self) -> Result<Memory, DriverError> {
        self.inner.memory()
    }
}
