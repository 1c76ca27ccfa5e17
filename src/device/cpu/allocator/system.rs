//! The system's allocator below ours, and how much it may hold on to.

/// Sets glibc's allocator so that it keeps little beyond what is alive. Call it before threads are started: an arena
/// that exists stays. Elsewhere than on glibc it does nothing.
///
/// glibc left alone raises its threshold for separate mappings up to 32 MiB as blocks are freed, after which freed
/// weights and activations stay in its heap, fragmented; and it opens up to eight arenas a core. Together these held
/// 90 to 150 MiB above the live bytes of a server of BERT models.
pub fn tune_system_allocator() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        /// From here on a block is a mapping of its own and goes back to the system when it is freed. Setting it also
        /// ends its growth. Smaller means more system calls, larger more memory held.
        const MAPPING_FROM: libc::c_int = 256 << 10;
        /// Free memory at the top of the heap above which it is given back.
        const TOP_KEPT: libc::c_int = 8 << 20;
        /// Heaps that threads share. Each holds free memory of its own; fewer means more waiting for each other.
        const ARENAS: libc::c_int = 4;
        // SAFETY: plain settings; the call takes glibc's own locks. A refusal leaves the default.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPING_FROM);
            libc::mallopt(libc::M_TRIM_THRESHOLD, TOP_KEPT);
            libc::mallopt(libc::M_ARENA_MAX, ARENAS);
        }
    }
}

/// Gives whole free pages of the system's heaps back. It walks all heaps (about a millisecond for each 100 MiB), so it
/// is for unloading, not for steps.
pub fn return_free_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: no pointers are involved; glibc takes its own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}
