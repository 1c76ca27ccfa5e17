//! What the allocator needs of a driver.

use std::fmt::Debug;

use crate::device::Kind;

/// An address on the device. 0 is what an allocation of no bytes gives.
pub type Pointer = u64;

/// A call that the driver refused, by the number of its `CUresult`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the CUDA driver said {0}")]
pub struct DriverError(pub u32);

impl DriverError {
    /// `CUDA_ERROR_NOT_INITIALIZED`: there is no driver to speak of.
    pub const NOT_INITIALIZED: DriverError = DriverError(3);
    /// `CUDA_ERROR_OUT_OF_MEMORY`.
    pub const OUT_OF_MEMORY: DriverError = DriverError(2);
    /// `CUDA_ERROR_INVALID_VALUE`.
    pub const INVALID_VALUE: DriverError = DriverError(1);
}

/// One allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<S> {
    /// Bytes; not 0.
    pub bytes: u64,
    /// The stream in whose order the memory is used and freed.
    pub stream: S,
    /// Whose it will be. Only a driver that fails on purpose looks at it.
    pub kind: Kind,
}

/// What the device says about all of its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Bytes that anybody could still take.
    pub free: u64,
    /// All bytes.
    pub total: u64,
}

/// A driver of one device. Every method may be called from any thread.
///
/// A port: [`super::FailingDriver`] wraps any, the card's implements it, and so does the simulation of the tests. An
/// error of `free` and `trim` is reported, never hidden: the caller decides what it means.
pub trait PoolDriver: Send + Sync {
    /// A memory pool.
    type Pool: Copy + Debug + PartialEq + Send;
    /// A stream.
    type Stream: Copy + Debug + PartialEq + Send;

    /// Whether the device has memory pools.
    fn has_pools(&self) -> bool;
    /// A new, empty pool that keeps what is freed into it.
    ///
    /// # Errors
    /// If the driver refuses.
    fn create_pool(&self) -> Result<Self::Pool, DriverError>;
    /// Destroys a pool. Nothing lives there but for what is being freed at this moment.
    ///
    /// # Errors
    /// If the driver refuses.
    fn destroy_pool(&self, pool: Self::Pool) -> Result<(), DriverError>;
    /// Memory from a pool; from the stream's own way of allocating where `pool` is `None`.
    ///
    /// # Errors
    /// [`DriverError::OUT_OF_MEMORY`], or whatever else ails the device.
    fn alloc(&self, pool: Option<Self::Pool>, request: Request<Self::Stream>) -> Result<Pointer, DriverError>;
    /// Frees what [`PoolDriver::alloc`] gave, in the stream's order.
    ///
    /// # Errors
    /// If the driver refuses, or reports an error of earlier work.
    fn free(&self, pointer: Pointer, stream: Self::Stream) -> Result<(), DriverError>;
    /// Memory that belongs to no pool and no stream.
    ///
    /// # Errors
    /// As [`PoolDriver::alloc`].
    fn alloc_plain(&self, bytes: u64, kind: Kind) -> Result<Pointer, DriverError>;
    /// Frees what [`PoolDriver::alloc_plain`] gave. Waits for the device.
    ///
    /// # Errors
    /// As [`PoolDriver::free`].
    fn free_plain(&self, pointer: Pointer) -> Result<(), DriverError>;
    /// Returns cached memory of a pool until it holds at most `reserved` bytes, or as few as what lives in it allows.
    /// What was freed in a stream's order counts as cached once the stream has come there.
    ///
    /// # Errors
    /// If the driver refuses.
    fn trim(&self, pool: Self::Pool, reserved: u64) -> Result<(), DriverError>;
    /// From now on a pool takes no more memory than to hold `reserved` bytes, and holds no more if what lives in it allows
    /// it; what is held is counted anew. A driver whose pools know no bounds does nothing.
    ///
    /// # Errors
    /// If the driver refuses.
    fn bound(&self, pool: Self::Pool, reserved: u64) -> Result<(), DriverError> {
        let _ = (pool, reserved);
        Ok(())
    }
    /// Whether [`PoolDriver::bound`] would return something, for which the device has to be waited for.
    fn could_bound(&self, pool: Self::Pool, reserved: u64) -> bool {
        let _ = (pool, reserved);
        false
    }
    /// The most that what was placed in the pool since [`PoolDriver::bound`] has held at once, by what a pool takes at a
    /// time: what a pool would have to hold for it. 0 where nobody counts.
    fn held(&self, pool: Self::Pool) -> u64 {
        let _ = pool;
        0
    }
    /// The most that it has had since then as memory and placed something in, used or idle between uses: with so much, what
    /// comes and goes finds memory wherever it is placed. No less than [`PoolDriver::held`]; 0 where nobody counts.
    fn reached(&self, pool: Self::Pool) -> u64 {
        let _ = pool;
        0
    }
    /// Bytes that a pool holds.
    fn reserved(&self, pool: Self::Pool) -> u64;
    /// Bytes of a pool that something lives in, as far as the host has asked for it; of a pool of ours by whole chunks, which
    /// is what cannot be returned.
    fn used(&self, pool: Self::Pool) -> u64;
    /// Waits until the device has done everything.
    ///
    /// # Errors
    /// Whatever went wrong in what it did.
    fn synchronize(&self) -> Result<(), DriverError>;
    /// What the device says is free.
    ///
    /// # Errors
    /// If it no longer says anything.
    fn memory(&self) -> Result<Memory, DriverError>;
}
