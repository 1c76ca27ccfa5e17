//! Addresses of a card that become memory chunk by chunk.

use std::mem;

use cudarc::driver::sys::{self, CUresult};

use super::driver::{LibCuda, said};
use crate::device::pools::{CHUNK, DriverError, Pointer, VirtualMemory};

impl LibCuda {
    /// What a chunk is.
    fn chunk_properties(&self) -> sys::CUmemAllocationProp {
        // SAFETY: as for pools.
        let mut properties: sys::CUmemAllocationProp = unsafe { mem::zeroed() };
        properties.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location = self.location();
        properties
    }

    /// Makes one chunk memory, which nothing may touch yet.
    fn map_chunk(&self, start: Pointer) -> Result<(), DriverError> {
        let mut handle = 0;
        // SAFETY: both live through the call.
        said(unsafe { sys::cuMemCreate(&mut handle, CHUNK as usize, &self.chunk_properties(), 0) })?;
        // SAFETY: the addresses are reserved, and no memory is there; the handle was just made.
        let mapped = said(unsafe { sys::cuMemMap(start, CHUNK as usize, 0, handle, 0) });
        // SAFETY: the memory lives as long as it is mapped; nobody else has the handle.
        let released = said(unsafe { sys::cuMemRelease(handle) });
        if mapped.is_ok() && released.is_err() {
            let _ = self.unmap(start, CHUNK);
        }
        mapped.and(released)
    }
}

impl VirtualMemory for LibCuda {
    fn has_virtual_memory(&self) -> bool {
        let attribute = sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
        let supported = self.context().attribute(attribute).is_ok_and(|supported| supported != 0);
        let mut granularity = 0usize;
        // SAFETY: both live through the call.
        let result = unsafe {
            sys::cuMemGetAllocationGranularity(
                &mut granularity,
                &self.chunk_properties(),
                sys::CUmemAllocationGranularity_flags_enum::CU_MEM_ALLOC_GRANULARITY_MINIMUM,
            )
        };
        let fits = result == CUresult::CUDA_SUCCESS && granularity > 0 && (CHUNK as usize).is_multiple_of(granularity);
        supported && fits
    }

    fn reserve_addresses(&self, bytes: u64) -> Result<Pointer, DriverError> {
        self.bind()?;
        let mut start = 0;
        // SAFETY: `start` lives through the call.
        said(unsafe { sys::cuMemAddressReserve(&mut start, bytes as usize, CHUNK as usize, 0, 0) })?;
        Ok(start)
    }

    fn release_addresses(&self, start: Pointer, bytes: u64) -> Result<(), DriverError> {
        self.bind()?;
        // SAFETY: they are reserved, and nothing of them is mapped.
        said(unsafe { sys::cuMemAddressFree(start, bytes as usize) })
    }

    fn map(&self, start: Pointer, bytes: u64) -> Result<(), DriverError> {
        self.bind()?;
        let mut mapped = 0;
        let mut result = Ok(());
        while mapped < bytes && result.is_ok() {
            result = self.map_chunk(start + mapped);
            mapped += if result.is_ok() { CHUNK } else { 0 };
        }
        let access = sys::CUmemAccessDesc {
            location: self.location(),
            flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: all of it is mapped; the description lives through the call.
        let result = result.and_then(|()| said(unsafe { sys::cuMemSetAccess(start, bytes as usize, &access, 1) }));
        if result.is_err() && mapped > 0 {
            // The first error is the one to tell.
            let _ = self.unmap(start, mapped);
        }
        result
    }

    fn unmap(&self, start: Pointer, bytes: u64) -> Result<(), DriverError> {
        self.bind()?;
        let chunks = (0..bytes / CHUNK).map(|chunk| start + chunk * CHUNK);
        // As it was mapped: chunk by chunk.
        // SAFETY: each is mapped, and the device is done with it.
        let unmap = |chunk| said(unsafe { sys::cuMemUnmap(chunk, CHUNK as usize) });
        chunks.map(unmap).fold(Ok(()), Result::and)
    }
}
