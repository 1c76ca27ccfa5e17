//! The driver's allocation functions, defined by this program: every tensor comes through here.
//!
//! candle's bindings are linked against `libcuda.so.1`; a definition in the program itself wins over a library's, in
//! every binary, test and bench that links this crate. Libraries that look the driver up by themselves (cuBLAS, the
//! runtime of CUDA) do not come here: what they take is fixed, or shows in the readings.
//!
//! With `--cfg plimsoll_no_interposer` the functions are left out. Such a program refuses to use a GPU, which is how
//! that refusal is tested.

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use super::card::CardAllocator;
use crate::device::pools::Slot;

/// The allocator of the card in use; null before there is one. Once set it is never freed.
static ALLOCATOR: AtomicPtr<CardAllocator> = AtomicPtr::new(ptr::null_mut());

/// Calls that came here for memory.
static INTERCEPTED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// To whom this thread's allocations are charged.
    static SCOPE: Cell<Slot> = const { Cell::new(Slot::NOBODY) };
}

/// Has everything that candle allocates from now on come from `allocator`.
pub(super) fn install(allocator: &'static CardAllocator) {
    #[cfg(not(plimsoll_no_interposer))]
    functions::keep();
    ALLOCATOR.store(ptr::from_ref(allocator).cast_mut(), Ordering::Release);
}

/// Allocations that have come through this program's own functions, for the self-test.
pub fn intercepted() -> u64 {
    INTERCEPTED.load(Ordering::Relaxed)
}

/// While it lives, the calling thread's allocations are charged to one slot.
#[must_use = "the scope ends when this is dropped"]
pub struct Scope {
    before: Slot,
}

impl Scope {
    /// Enters a scope; scopes nest.
    pub fn enter(slot: Slot) -> Scope {
        Scope { before: SCOPE.replace(slot) }
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        SCOPE.set(self.before);
    }
}

#[cfg(not(plimsoll_no_interposer))]
#[allow(non_snake_case, reason = "the names are the driver's")]
mod functions {
    use std::hint::black_box;

    use cudarc::driver::sys::CUstream;

    use super::super::driver::{Real, StreamHandle};
    use super::*;
    use crate::device::pools::{DriverError, Pointer};

    /// `CUDA_ERROR_NOT_INITIALIZED`: what the driver says when it is not there.
    const NOT_INITIALIZED: u32 = 3;

    /// Linkers leave out what nobody names.
    pub(super) fn keep() {
        black_box([cuMemAllocAsync as *const () as usize, cuMemFreeAsync as *const () as usize]);
        black_box([cuMemAlloc_v2 as *const () as usize, cuMemFree_v2 as *const () as usize]);
    }

    #[inline]
    fn allocator() -> Option<&'static CardAllocator> {
        // SAFETY: null, or what `install` put there, which is a reference that lives for ever.
        unsafe { ALLOCATOR.load(Ordering::Acquire).as_ref() }
    }

    /// Writes the address where the caller wants it, as the driver does.
    ///
    /// # Safety
    /// `out` is valid for a write, or null.
    #[inline]
    unsafe fn answer(out: *mut Pointer, result: Result<Pointer, DriverError>) -> u32 {
        match result {
            Ok(_) if out.is_null() => DriverError::INVALID_VALUE.0,
            Ok(pointer) => {
                // SAFETY: the caller's promise.
                unsafe { out.write(pointer) };
                0
            }
            Err(error) => error.0,
        }
    }

    /// # Safety
    /// As in cuda.h: `out` is valid for a write, `stream` exists.
    #[unsafe(no_mangle)]
    pub(super) unsafe extern "C" fn cuMemAllocAsync(out: *mut Pointer, bytes: usize, stream: CUstream) -> u32 {
        INTERCEPTED.fetch_add(1, Ordering::Relaxed);
        match allocator() {
            // SAFETY: the caller's promise.
            Some(allocator) => unsafe {
                answer(out, allocator.alloc(SCOPE.get(), bytes as u64, StreamHandle::new(stream)))
            },
            None => match Real::get() {
                // SAFETY: the caller's promise, handed on.
                Some(real) => unsafe { (real.alloc_async)(out, bytes, stream) },
                None => NOT_INITIALIZED,
            },
        }
    }

    /// # Safety
    /// As in cuda.h: `pointer` was allocated and is not used after the stream has come here.
    #[unsafe(no_mangle)]
    pub(super) unsafe extern "C" fn cuMemFreeAsync(pointer: Pointer, stream: CUstream) -> u32 {
        if allocator().is_some_and(|allocator| allocator.free(pointer, Some(StreamHandle::new(stream)))) {
            return 0;
        }
        match Real::get() {
            // SAFETY: the caller's promise, handed on: nobody here knows this address.
            Some(real) => unsafe { (real.free_async)(pointer, stream) },
            None => NOT_INITIALIZED,
        }
    }

    /// # Safety
    /// As in cuda.h: `out` is valid for a write.
    #[unsafe(no_mangle)]
    pub(super) unsafe extern "C" fn cuMemAlloc_v2(out: *mut Pointer, bytes: usize) -> u32 {
        INTERCEPTED.fetch_add(1, Ordering::Relaxed);
        match allocator() {
            // SAFETY: the caller's promise.
            Some(allocator) => unsafe { answer(out, allocator.alloc_unordered(SCOPE.get(), bytes as u64)) },
            None => match Real::get() {
                // SAFETY: the caller's promise, handed on.
                Some(real) => unsafe { (real.alloc)(out, bytes) },
                None => NOT_INITIALIZED,
            },
        }
    }

    /// # Safety
    /// As in cuda.h: `pointer` was allocated and is not used any more.
    #[unsafe(no_mangle)]
    pub(super) unsafe extern "C" fn cuMemFree_v2(pointer: Pointer) -> u32 {
        if allocator().is_some_and(|allocator| allocator.free(pointer, None)) {
            return 0;
        }
        match Real::get() {
            // SAFETY: the caller's promise, handed on: nobody here knows this address.
            Some(real) => unsafe { (real.free)(pointer) },
            None => NOT_INITIALIZED,
        }
    }
}
