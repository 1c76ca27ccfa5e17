//! The real driver: what the pools' policy needs of it.

use std::ffi::{CStr, c_int, c_void};
use std::mem;
use std::ptr;
use std::sync::{Arc, OnceLock};

use cudarc::driver::sys::{self, CUmemPool_attribute, CUmemPool_attribute_enum as Attribute, CUresult};
use cudarc::driver::{CudaContext, DriverError as CudarcError};

use crate::device::Kind;
use crate::device::pools::{DriverError, Memory, Pointer, PoolDriver, Request};

type AllocAsync = unsafe extern "C" fn(*mut Pointer, usize, sys::CUstream) -> u32;
type FreeAsync = unsafe extern "C" fn(Pointer, sys::CUstream) -> u32;
type Alloc = unsafe extern "C" fn(*mut Pointer, usize) -> u32;
type Free = unsafe extern "C" fn(Pointer) -> u32;

/// The functions that this program defines itself, as the driver's library has them. Called by their names they would
/// be ours.
#[derive(Clone, Copy)]
pub(super) struct Real {
    pub(super) alloc_async: AllocAsync,
    pub(super) free_async: FreeAsync,
    pub(super) alloc: Alloc,
    pub(super) free: Free,
}

impl Real {
    /// The driver's own functions; `None` without a driver, which a program that is linked with it does not start
    /// without.
    #[inline]
    pub(super) fn get() -> Option<&'static Real> {
        static REAL: OnceLock<Option<Real>> = OnceLock::new();
        REAL.get_or_init(Real::look_up).as_ref()
    }

    fn look_up() -> Option<Real> {
        // SAFETY: the name is a C string; loading the driver's library again only counts it up.
        let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return None;
        }
        let symbol = |name: &CStr| {
            // SAFETY: `library` is open and never closed; the name is a C string.
            let found = unsafe { libc::dlsym(library, name.as_ptr()) };
            (!found.is_null()).then_some(found)
        };
        let (alloc_async, free_async) = (symbol(c"cuMemAllocAsync")?, symbol(c"cuMemFreeAsync")?);
        let (alloc, free) = (symbol(c"cuMemAlloc_v2")?, symbol(c"cuMemFree_v2")?);
        // SAFETY: these are the functions of those names in the driver's library, whose signatures cuda.h gives as
        // here: an address is 64 bits, a result is an enum of 32.
        unsafe {
            Some(Real {
                alloc_async: mem::transmute::<*mut c_void, AllocAsync>(alloc_async),
                free_async: mem::transmute::<*mut c_void, FreeAsync>(free_async),
                alloc: mem::transmute::<*mut c_void, Alloc>(alloc),
                free: mem::transmute::<*mut c_void, Free>(free),
            })
        }
    }
}

/// A stream of the driver, as a number: it is only ever handed back. By default the one that has no name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamHandle(usize);

impl StreamHandle {
    /// The stream that the driver calls so.
    pub fn new(stream: sys::CUstream) -> StreamHandle {
        StreamHandle(stream as usize)
    }

    fn raw(self) -> sys::CUstream {
        self.0 as sys::CUstream
    }
}

/// A pool of the driver, as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolHandle(usize);

impl PoolHandle {
    fn raw(self) -> sys::CUmemoryPool {
        self.0 as sys::CUmemoryPool
    }
}

/// One GPU through `libcuda.so.1`.
pub struct LibCuda {
    context: Arc<CudaContext>,
    real: &'static Real,
}

impl LibCuda {
    /// The GPU of a context.
    pub(super) fn new(context: Arc<CudaContext>, real: &'static Real) -> LibCuda {
        LibCuda { context, real }
    }

    /// Its context.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// Allocates and frees as the driver does when nobody stands in between. For comparisons, and to take memory behind
    /// the books' back.
    ///
    /// # Errors
    /// The driver's.
    pub fn alloc_behind_the_books(&self, bytes: u64) -> Result<Pointer, DriverError> {
        self.alloc_plain(bytes, Kind::Library)
    }

    /// Frees what [`LibCuda::alloc_behind_the_books`] gave.
    ///
    /// # Errors
    /// The driver's.
    pub fn free_behind_the_books(&self, pointer: Pointer) -> Result<(), DriverError> {
        self.free_plain(pointer)
    }

    /// Memory of the driver's graphs, which is in no pool.
    pub(super) fn graph_memory(&self) -> u64 {
        let mut bytes = 0u64;
        // SAFETY: the attribute is a 64-bit number, and `bytes` outlives the call.
        let result = unsafe {
            sys::cuDeviceGetGraphMemAttribute(
                self.context.cu_device(),
                sys::CUgraphMem_attribute_enum::CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
                ptr::from_mut(&mut bytes).cast(),
            )
        };
        if result == CUresult::CUDA_SUCCESS { bytes } else { 0 }
    }

    /// Makes the context the calling thread's. cudarc's own way of doing so also reports errors of earlier drops, which
    /// are the device thread's to find.
    pub(super) fn bind(&self) -> Result<(), DriverError> {
        // SAFETY: the context lives as long as `self`.
        said(unsafe { sys::cuCtxSetCurrent(self.context.cu_ctx()) })
    }

    /// Memory of this device.
    pub(super) fn location(&self) -> sys::CUmemLocation {
        // SAFETY: a structure of numbers.
        let mut location: sys::CUmemLocation = unsafe { mem::zeroed() };
        location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        // The number of the device follows the type; newer bindings put it into a union, so it is written by its place.
        // SAFETY: a location is two 32-bit numbers in every version of cuda.h.
        unsafe { ptr::from_mut(&mut location).cast::<c_int>().add(1).write(self.context.cu_device()) };
        location
    }

    fn attribute(&self, pool: PoolHandle, attribute: CUmemPool_attribute) -> u64 {
        let mut value = 0u64;
        // SAFETY: the attributes asked for here are 64-bit numbers; a pool's handle is valid until it is destroyed, which
        // only the books do.
        let result = unsafe { sys::cuMemPoolGetAttribute(pool.raw(), attribute, ptr::from_mut(&mut value).cast()) };
        if result == CUresult::CUDA_SUCCESS { value } else { 0 }
    }
}

pub(super) fn said(result: CUresult) -> Result<(), DriverError> {
    numbered(result as u32)
}

#[inline]
fn numbered(result: u32) -> Result<(), DriverError> {
    if result == 0 { Ok(()) } else { Err(DriverError(result)) }
}

/// The same error in the words of the pools.
pub(super) fn from_cudarc(error: CudarcError) -> DriverError {
    DriverError(error.0 as u32)
}

impl PoolDriver for LibCuda {
    type Pool = PoolHandle;
    type Stream = StreamHandle;

    fn has_pools(&self) -> bool {
        self.context.has_async_alloc()
    }

    fn create_pool(&self) -> Result<PoolHandle, DriverError> {
        self.bind()?;
        // SAFETY: a structure of numbers and pointers, for which zero is "the default", and all that are reserved have to
        // be zero.
        let mut properties: sys::CUmemPoolProps = unsafe { mem::zeroed() };
        properties.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location = self.location();
        let mut pool = ptr::null_mut();
        // SAFETY: both live through the call.
        said(unsafe { sys::cuMemPoolCreate(&mut pool, &properties) })?;
        let pool = PoolHandle(pool as usize);
        let set = |attribute, mut value: u64| {
            // SAFETY: the driver reads 64 bits for the threshold and 32 for the switches, of which the low ones come first.
            said(unsafe { sys::cuMemPoolSetAttribute(pool.raw(), attribute, ptr::from_mut(&mut value).cast()) })
        };
        let settings = [
            // The default returns everything at each synchronization, and takes it again at 2 ms for a GiB.
            (Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, u64::MAX),
            // There is one stream: nothing may be reused by guessing what another has done.
            (Attribute::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, 0),
            (Attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, 0),
            (Attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 0),
        ];
        for (attribute, value) in settings {
            if let Err(error) = set(attribute, value) {
                let _ = self.destroy_pool(pool);
                return Err(error);
            }
        }
        Ok(pool)
    }

    fn destroy_pool(&self, pool: PoolHandle) -> Result<(), DriverError> {
        self.bind()?;
        // SAFETY: the books forget a pool before they have it destroyed.
        said(unsafe { sys::cuMemPoolDestroy(pool.raw()) })
    }

    #[inline]
    fn alloc(&self, pool: Option<PoolHandle>, request: Request<StreamHandle>) -> Result<Pointer, DriverError> {
        let mut pointer = 0;
        let (bytes, stream) = (request.bytes as usize, request.stream.raw());
        // SAFETY: `pointer` lives through the call; the pool is one of the books'; the stream is the caller's, who has
        // to know that it exists.
        let result = unsafe {
            match pool {
                Some(pool) => sys::cuMemAllocFromPoolAsync(&mut pointer, bytes, pool.raw(), stream) as u32,
                None => (self.real.alloc_async)(&mut pointer, bytes, stream),
            }
        };
        numbered(result).map(|()| pointer)
    }

    #[inline]
    fn free(&self, pointer: Pointer, stream: StreamHandle) -> Result<(), DriverError> {
        // SAFETY: the books give a block back once.
        numbered(unsafe { (self.real.free_async)(pointer, stream.raw()) })
    }

    fn alloc_plain(&self, bytes: u64, _kind: Kind) -> Result<Pointer, DriverError> {
        self.bind()?;
        let mut pointer = 0;
        // SAFETY: `pointer` lives through the call.
        numbered(unsafe { (self.real.alloc)(&mut pointer, bytes as usize) }).map(|()| pointer)
    }

    fn free_plain(&self, pointer: Pointer) -> Result<(), DriverError> {
        self.bind()?;
        // SAFETY: the books give a block back once.
        numbered(unsafe { (self.real.free)(pointer) })
    }

    fn trim(&self, pool: PoolHandle, reserved: u64) -> Result<(), DriverError> {
        self.bind()?;
        // SAFETY: the pool is one of the books'.
        said(unsafe { sys::cuMemPoolTrimTo(pool.raw(), usize::try_from(reserved).unwrap_or(usize::MAX)) })
    }

    #[inline]
    fn reserved(&self, pool: PoolHandle) -> u64 {
        self.attribute(pool, Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
    }

    fn used(&self, pool: PoolHandle) -> u64 {
        self.attribute(pool, Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
    }

    fn synchronize(&self) -> Result<(), DriverError> {
        self.bind()?;
        // SAFETY: no arguments; the context is current.
        said(unsafe { sys::cuCtxSynchronize() })
    }

    fn memory(&self) -> Result<Memory, DriverError> {
        self.bind()?;
        let (mut free, mut total) = (0usize, 0usize);
        // SAFETY: both live through the call.
        said(unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok(Memory { free: free as u64, total: total as u64 })
    }
}
