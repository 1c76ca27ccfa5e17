//! What is written before each block.

use std::alloc::Layout;

use super::account::AccountId;

/// Where a block's memory came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Source {
    /// The system's allocator.
    System,
    /// The cache of regions.
    Region,
}

/// 16 bytes right before the block's first byte.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(16))]
pub(super) struct Header {
    /// Who pays.
    pub(super) account: AccountId,
    /// Who takes it back.
    pub(super) source: Source,
    /// Pages of the region; 0 for the system's blocks.
    pub(super) pages: u32,
    /// Spare; keeps the size at 16 so that blocks stay aligned for vectors of 16 bytes.
    _spare: u64,
}

pub(super) const HEADER: usize = size_of::<Header>();
const _: () = assert!(HEADER == 16);

impl Header {
    pub(super) const fn system(account: AccountId) -> Header {
        Header { account, source: Source::System, pages: 0, _spare: 0 }
    }

    pub(super) const fn region(account: AccountId, pages: u32) -> Header {
        Header { account, source: Source::Region, pages, _spare: 0 }
    }
}

/// Bytes between the start of the memory and the block: room for the header, and a multiple of the alignment.
#[inline]
pub(super) const fn offset_of(layout: Layout) -> usize {
    if layout.align() > HEADER { layout.align() } else { HEADER }
}

/// The layout to ask the system for: the block and what is before it. `None` if that is more than a layout can say.
#[inline]
pub(super) fn padded(layout: Layout) -> Option<Layout> {
    let size = layout.size().checked_add(offset_of(layout))?;
    Layout::from_size_align(size, layout.align().max(HEADER)).ok()
}

/// Writes the header of the block at `block`.
///
/// # Safety
/// `block` is aligned to 16, and the 16 bytes before it belong to the same allocation and to nobody else.
#[inline]
pub(super) unsafe fn write(block: *mut u8, header: Header) {
    // SAFETY: in bounds and aligned by the caller's promise; a multiple of 16 minus 16 stays one.
    unsafe { block.sub(HEADER).cast::<Header>().write(header) }
}

/// Reads the header of the block at `block`.
///
/// # Safety
/// `block` came from [`write`] and is not freed.
#[inline]
pub(super) unsafe fn read(block: *const u8) -> Header {
    // SAFETY: `write` has put a valid header there.
    unsafe { block.sub(HEADER).cast::<Header>().read() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_block_stays_aligned_behind_its_header() {
        let check = |size, align, offset| {
            let layout = Layout::from_size_align(size, align).unwrap();
            assert_eq!(offset_of(layout), offset);
            let padded = padded(layout).unwrap();
            assert_eq!(padded.size(), size + offset);
            assert_eq!(offset % align, 0);
            assert_eq!(padded.align() % 16, 0);
        };
        check(1, 1, 16);
        check(100, 8, 16);
        check(100, 16, 16);
        check(100, 64, 64);
        check(5, 4096, 4096);
    }

    #[test]
    fn a_size_that_leaves_no_room_for_the_header_is_refused() {
        let largest = Layout::from_size_align(isize::MAX as usize - 15, 16).unwrap();
        assert!(padded(largest).is_none());
    }
}
