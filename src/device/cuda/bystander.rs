//! A process that shares a GPU without serving from it: it sees what is free, and takes memory as a neighbour would.

use std::sync::Arc;

use cudarc::driver::CudaContext;

use super::driver::{LibCuda, Real, from_cudarc};
use crate::device::pools::{DriverError, Memory, Pointer, PoolDriver};

/// A GPU seen from beside. Its own context is all that it takes until it is told to take more. Cheap to clone.
#[derive(Clone)]
pub struct Bystander {
    driver: Arc<LibCuda>,
}

/// Memory of a GPU, given back when dropped.
pub struct Taken {
    driver: Arc<LibCuda>,
    pointer: Pointer,
}

impl Bystander {
    /// Makes a context on the GPU of this number.
    ///
    /// # Errors
    /// The driver's, or that there is no driver.
    pub fn open(ordinal: usize) -> Result<Bystander, DriverError> {
        let real = Real::get().ok_or(DriverError::NOT_INITIALIZED)?;
        let context = CudaContext::new(ordinal).map_err(from_cudarc)?;
        Ok(Bystander { driver: Arc::new(LibCuda::new(context, real)) })
    }

    /// What the GPU says about all of its memory, whoever has it.
    ///
    /// # Errors
    /// The driver's.
    pub fn memory(&self) -> Result<Memory, DriverError> {
        self.driver.memory()
    }

    /// Takes memory outside of every pool; not 0 bytes. The driver rounds up to 2 MiB.
    ///
    /// # Errors
    /// [`DriverError::OUT_OF_MEMORY`] if nobody has so much left.
    pub fn take(&self, bytes: u64) -> Result<Taken, DriverError> {
        let pointer = self.driver.alloc_behind_the_books(bytes)?;
        Ok(Taken { driver: self.driver.clone(), pointer })
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        // The context is gone with the process anyway.
        let _ = self.driver.free_behind_the_books(self.pointer);
    }
}
