//! Sizes of regions: 32 to a doubling, never finer than a page. Pure.

/// The system's page on every target that we build for; a larger real page only makes regions share one.
pub(super) const PAGE: usize = 4096;

/// Smallest block that gets a region of its own. Below, the system's allocator wastes less than the page rounding here.
pub(super) const REGION_MIN: usize = 64 << 10;

const MIN_LOG2: u32 = REGION_MIN.ilog2();
const MAX_LOG2: u32 = 42;
const PER_DOUBLING: usize = 32;

/// Number of classes: from [`REGION_MIN`] to 4 TiB.
pub(super) const CLASSES: usize = (MAX_LOG2 - MIN_LOG2) as usize * PER_DOUBLING + 1;

/// The smallest class that holds `bytes`: its index and the size of its regions. `None` beyond the largest.
pub(super) fn class_for(bytes: usize) -> Option<(usize, usize)> {
    let bytes = bytes.max(REGION_MIN);
    // The sizes of a doubling are (2^k, 2^(k+1)]: `bytes - 1` has the right k, and the step is 2^k / 32.
    let log2 = (bytes - 1).ilog2();
    if bytes == REGION_MIN {
        return Some((0, REGION_MIN));
    }
    if log2 >= MAX_LOG2 {
        return None;
    }
    let base = 1usize << log2;
    let step = (base / PER_DOUBLING).max(PAGE);
    let steps = (bytes - base).div_ceil(step);
    let index = (log2 - MIN_LOG2) as usize * PER_DOUBLING + steps;
    (index < CLASSES).then_some((index, base + steps * step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_grow_with_size_and_waste_at_most_a_thirty_second_or_a_page() {
        let mut last = (0, REGION_MIN);
        let mut bytes = 1;
        while bytes < 64 << 20 {
            let (index, size) = class_for(bytes).unwrap();
            assert!(size >= bytes && size % PAGE == 0);
            assert!(index >= last.0 && size >= last.1, "{bytes}");
            assert_eq!(index == last.0, size == last.1, "one size for each class: {bytes}");
            if bytes >= REGION_MIN {
                assert!(size - bytes < (bytes / 32).max(PAGE), "{bytes} in {size}");
            }
            assert_eq!(class_for(size), Some((index, size)), "a size is its own class");
            last = (index, size);
            bytes += 1 + bytes / 97;
        }
    }

    #[test]
    fn the_ends_are_the_smallest_region_and_four_tebibytes() {
        assert_eq!(class_for(1), Some((0, REGION_MIN)));
        assert_eq!(class_for(REGION_MIN), Some((0, REGION_MIN)));
        assert_eq!(class_for(REGION_MIN + 1), Some((1, REGION_MIN + PAGE)));
        assert_eq!(class_for(usize::MAX), None);
        assert_eq!(class_for((1 << 42) + 1), None);
    }
}
