//! A cache of blocks for devices without memory pools.

use std::collections::BTreeMap;

use super::Pointer;

/// The driver hands out memory of its own in pages of 2 MiB.
const PAGE: u64 = 2 << 20;
const SMALL: u64 = 512;
const STEPS: u64 = 16;

/// The size that a block of `bytes` is given: sixteen to a doubling below a page, whole pages above, so that blocks of
/// nearly one size serve each other and at most a sixteenth (or a page) is lost.
pub(super) fn class_of(bytes: u64) -> u64 {
    if bytes <= SMALL {
        return SMALL;
    }
    if bytes > PAGE {
        return bytes.div_ceil(PAGE).saturating_mul(PAGE);
    }
    let below = 1 << (bytes - 1).ilog2();
    let step = (below / STEPS).max(SMALL);
    below + (bytes - below).div_ceil(step) * step
}

/// Blocks that wait for the next of their class.
#[derive(Debug, Default)]
pub(super) struct PlainCache {
    classes: BTreeMap<u64, Vec<Pointer>>,
    /// Bytes of all of them.
    pub(super) cached: u64,
}

impl PlainCache {
    pub(super) fn take(&mut self, class: u64) -> Option<Pointer> {
        let found = self.classes.get_mut(&class)?.pop()?;
        self.cached -= class;
        Some(found)
    }

    pub(super) fn put(&mut self, class: u64, pointer: Pointer) {
        self.classes.entry(class).or_default().push(pointer);
        self.cached += class;
    }

    /// Takes blocks out, the largest first, until at most `keep` bytes are left. The caller frees them.
    pub(super) fn shrink(&mut self, keep: u64) -> Vec<Pointer> {
        let mut out = Vec::new();
        while self.cached > keep {
            let Some(mut largest) = self.classes.last_entry() else { break };
            let class = *largest.key();
            match largest.get_mut().pop() {
                Some(pointer) => {
                    out.push(pointer);
                    self.cached -= class;
                }
                None => drop(largest.remove()),
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_holds_its_blocks_and_wastes_little() {
        let check = |bytes, class| assert_eq!(class_of(bytes), class, "{bytes}");
        check(1, 512);
        check(512, 512);
        check(513, 1024);
        check(16 << 10, 16 << 10);
        check((16 << 10) + 1, (16 << 10) + 1024);
        check(PAGE, PAGE);
        check(PAGE + 1, 2 * PAGE);
        let mut bytes = 1;
        while bytes < 1 << 40 {
            let class = class_of(bytes);
            assert!(class >= bytes && class_of(class) == class && class.is_multiple_of(SMALL), "{bytes}");
            assert!(class - bytes < (bytes / 16).max(if bytes > PAGE { PAGE } else { SMALL }), "{bytes} in {class}");
            bytes += 1 + bytes / 97;
        }
    }

    #[test]
    fn the_largest_blocks_go_first() {
        let mut cache = PlainCache::default();
        for (class, pointer) in [(512, 1), (1024, 2), (1024, 3), (4096, 4)] {
            cache.put(class, pointer);
        }
        assert_eq!(cache.take(2048), None);
        assert_eq!(cache.shrink(1536), [4, 3]);
        assert_eq!(cache.cached, 1536);
        assert_eq!(cache.take(1024), Some(2));
        assert_eq!(cache.shrink(0), [1]);
        assert_eq!((cache.cached, cache.shrink(0).len()), (0, 0));
    }
}
