//! The allocator itself.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::{self, NonNull};

use super::account::{self, AccountId};
use super::charge::{payer, shard};
use super::classes::{PAGE, REGION_MIN};
use super::header::{self, HEADER, Header, Source};
use super::{record, regions};

/// Where the block of a region begins: behind the header, at the start of a cache line.
const REGION_OFFSET: usize = 64;
const _: () = assert!(REGION_OFFSET >= HEADER && REGION_MIN > REGION_OFFSET);

/// The program's allocator: the system's, with an account for every block.
///
/// Declare it once: `#[global_allocator] static ALLOCATOR: AccountedAllocator = AccountedAllocator;`
pub struct AccountedAllocator;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fill {
    Any,
    Zero,
}

// SAFETY: `alloc` returns memory that is exclusively the caller's, of the layout's size and alignment, or null;
// `dealloc` returns it to where its header says it came from. Nothing here allocates through the global allocator,
// panics, or needs a thread-local that has a destructor; the two thread-locals are plain cells.
unsafe impl GlobalAlloc for AccountedAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        allocate(layout, Fill::Any)
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        allocate(layout, Fill::Zero)
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller says that `block` is from here and alive, so its header is.
        let header = unsafe { header::read(block) };
        record::freed(header.account, block);
        account::discharge(header.account, layout.size(), shard());
        match header.source {
            Source::Region => {
                // SAFETY: `allocate` put the block at this offset into the region.
                let start = unsafe { NonNull::new_unchecked(block.sub(REGION_OFFSET)) };
                // SAFETY: the header holds the region's size, and a block is freed once.
                unsafe { regions::give_back(start, header.pages as usize * PAGE, layout.size() + REGION_OFFSET) };
            }
            Source::System => {
                let offset = header::offset_of(layout);
                // The same sum as in `allocate`, which succeeded.
                let Some(padded) = header::padded(layout) else { return };
                // SAFETY: the pointer and the layout are those that `System` was asked with.
                unsafe { System.dealloc(block.sub(offset), padded) };
            }
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let Ok(wanted) = Layout::from_size_align(size, layout.align()) else { return ptr::null_mut() };
        // SAFETY: as in `dealloc`.
        let header = unsafe { header::read(block) };
        match header.source {
            // Grown or shrunk within its region, as long as it does not waste more than half of it.
            Source::Region => {
                let room = header.pages as usize * PAGE - REGION_OFFSET;
                if size <= room && size >= room / 2 {
                    account::adjust(header.account, layout.size(), size, shard());
                    regions::resized(layout.size(), size);
                    record::resized(header.account, block, block, size);
                    return block;
                }
            }
            // The system moves the header along with the block, which keeps its account: that of the thread that made
            // it. Only what would become a large block of a step goes to a region of its own.
            Source::System if size < REGION_MIN || !account::is_workspace(payer()) => {
                let offset = header::offset_of(layout);
                let (Some(from), Some(to)) = (header::padded(layout), header::padded(wanted)) else {
                    return ptr::null_mut();
                };
                // SAFETY: the pointer and layout `from` are the system's own; `to` is not empty and does not overflow.
                let memory = unsafe { System.realloc(block.sub(offset), from, to.size()) };
                if memory.is_null() {
                    return memory;
                }
                account::adjust(header.account, layout.size(), size, shard());
                // SAFETY: `to` has room for the offset and the block.
                let moved = unsafe { memory.add(offset) };
                record::resized(header.account, block, moved, size);
                return moved;
            }
            Source::System => {}
        }
        let moved = allocate(wanted, Fill::Any);
        if !moved.is_null() {
            // SAFETY: both blocks are alive, distinct, and at least as long as the smaller size; the old one is then
            // freed with the layout it has.
            unsafe {
                ptr::copy_nonoverlapping(block, moved, layout.size().min(size));
                self.dealloc(block, layout);
            }
        }
        moved
    }
}

fn allocate(layout: Layout, fill: Fill) -> *mut u8 {
    let account = payer();
    let block = if layout.size() >= REGION_MIN && layout.align() <= REGION_OFFSET && account::is_workspace(account) {
        from_region(layout, fill, account)
    } else {
        from_system(layout, fill, account)
    };
    if !block.is_null() {
        account::charge(account, layout.size(), shard());
        record::allocated(account, block, layout.size());
    }
    block
}

fn from_system(layout: Layout, fill: Fill, account: AccountId) -> *mut u8 {
    let Some(padded) = header::padded(layout) else { return ptr::null_mut() };
    // SAFETY: the padded layout is not empty: it has room for the header at least.
    let memory = unsafe {
        match fill {
            Fill::Any => System.alloc(padded),
            Fill::Zero => System.alloc_zeroed(padded),
        }
    };
    if memory.is_null() {
        return memory;
    }
    // SAFETY: the offset is at least the header's size and within the memory; both are multiples of 16.
    unsafe {
        let block = memory.add(header::offset_of(layout));
        header::write(block, Header::system(account));
        block
    }
}

fn from_region(layout: Layout, fill: Fill, account: AccountId) -> *mut u8 {
    let Some(bytes) = layout.size().checked_add(REGION_OFFSET) else { return ptr::null_mut() };
    let Some(region) = regions::take(bytes) else { return ptr::null_mut() };
    // At most 4 TiB of 4 KiB pages: fits.
    let pages = (region.bytes / PAGE) as u32;
    // SAFETY: the region has room for the offset and the block, and is the caller's alone. It is page-aligned, so the
    // block is aligned to 64. Filling is needed only where an earlier block has written.
    unsafe {
        let block = region.start.as_ptr().add(REGION_OFFSET);
        header::write(block, Header::region(account, pages));
        if fill == Fill::Zero && !region.is_zero {
            block.write_bytes(0, layout.size());
        }
        block
    }
}
