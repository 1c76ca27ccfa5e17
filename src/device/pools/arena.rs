//! Where blocks lie in one pool of ours: a range of addresses that is kept for good, of which as much is memory as is
//! needed. Plain data: it never calls a driver.
//!
//! A block lies at the lowest address that is free. So where the blocks of a step lie depends on their sizes and order, and
//! on what is left of others, what the step before it had as memory is what it has, and it gets by with the memory that its
//! blocks lie in at the worst moment: what lies idle elsewhere becomes memory where it is missing. The smallest blocks lie
//! apart: models hold many of them for long, and one would keep a large block from its place.

use std::collections::BTreeMap;
use std::ops::Range;

/// What becomes memory, or ceases to be, at a time: a card's large pages.
pub(crate) const CHUNK: u64 = 2 << 20;

/// Smaller blocks lie apart. A step whose blocks are some smaller and some larger than this fits into a chunk or two
/// beside what it would need if they lay together; a granule is added to what a profile predicts.
const SMALL: u64 = 64 << 10;

/// How long that first part of the range is. What does not fit there lies with the others.
const APART: u64 = 1 << 30;

/// 2 MiB of addresses.
#[derive(Clone, Copy, Debug, Default)]
struct Chunk {
    mapped: bool,
    /// Blocks that lie in it, with a part of them at least.
    blocks: u32,
    /// The turn in which one was placed here last, and how many of that turn there are.
    turn: u64,
    counted: u32,
}

/// A block that lies somewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lying {
    start: u64,
    bytes: u64,
    /// The turn in which it was placed.
    turn: u64,
}

/// The state of one range. All positions are bytes from its start; blocks are multiples of 512 bytes.
///
/// Invariants: free ranges and blocks do not overlap and are the whole range together; two free ranges of one part never
/// touch; every chunk that a block lies in is mapped.
#[derive(Debug)]
pub(super) struct Arena {
    span: u64,
    /// Free ranges by their start: of what lies apart, and of the rest.
    free: [BTreeMap<u64, u64>; 2],
    /// As far as any was ever mapped.
    chunks: Vec<Chunk>,
    mapped: u64,
    /// Chunks that a block lies in.
    pinned: u64,
    used: u64,
    /// So many chunks may be mapped.
    limit: u64,
    turn: u64,
    /// Chunks in which blocks of this turn lie, and the most of them at once.
    held: u64,
    held_peak: u64,
    /// Chunks that are memory and in which a block was placed in this turn, and the most of them at once.
    reached: u64,
    reached_peak: u64,
}

/// Where a block could lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Its first byte.
    pub(super) start: u64,
    bytes: u64,
    /// What has to be mapped for it: whole chunks.
    pub(super) missing: Vec<Range<u64>>,
}

impl Place {
    fn missing_chunks(&self) -> u64 {
        self.missing.iter().map(|range| (range.end - range.start) / CHUNK).sum()
    }
}

impl Arena {
    /// A range of `span` bytes, a multiple of [`CHUNK`] and more than the part for what lies apart; nothing of it is memory.
    pub(super) fn new(span: u64) -> Arena {
        assert!(span > APART && span.is_multiple_of(CHUNK), "{span} bytes are no range for an arena");
        let free = [BTreeMap::from([(0, APART)]), BTreeMap::from([(APART, span - APART)])];
        Arena {
            span,
            free,
            chunks: Vec::new(),
            mapped: 0,
            pinned: 0,
            used: 0,
            limit: u64::MAX,
            // Chunks begin at 0: in none was a block placed in this one.
            turn: 1,
            held: 0,
            held_peak: 0,
            reached: 0,
            reached_peak: 0,
        }
    }

    /// All of its addresses.
    pub(super) fn span(&self) -> u64 {
        self.span
    }

    /// Bytes that are memory.
    pub(super) fn mapped(&self) -> u64 {
        self.mapped * CHUNK
    }

    /// Bytes of blocks.
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// Bytes that cannot be returned: of chunks that blocks lie in.
    pub(super) fn pinned(&self) -> u64 {
        self.pinned * CHUNK
    }

    /// Whether anything could be returned, were at most `keep` bytes to stay.
    pub(super) fn could_shrink(&self, keep: u64) -> bool {
        self.mapped() > keep && self.mapped > self.pinned
    }

    /// Begins a turn, in which no more than `limit` bytes become memory; what is memory already stays. It may be less.
    pub(super) fn begin_turn(&mut self, limit: u64) {
        self.limit = limit / CHUNK;
        self.turn += 1;
        (self.held, self.held_peak) = (0, 0);
        (self.reached, self.reached_peak) = (0, 0);
    }

    /// The most that was held at once by blocks of this turn, in whole chunks: the least memory that its work can do with.
    pub(super) fn held(&self) -> u64 {
        self.held_peak * CHUNK
    }

    /// The most memory that this turn's blocks have come by, in whole chunks: with so much its work can be done again
    /// without anything becoming memory or ceasing to be.
    pub(super) fn reached(&self) -> u64 {
        self.reached_peak * CHUNK
    }

    /// Where a block of so many bytes could lie, whatever the limit is; `None` where the range has no room for it.
    fn find(&self, bytes: u64) -> Option<Place> {
        let fitting =
            |part: &BTreeMap<u64, u64>| part.iter().find(|(_, length)| **length >= bytes).map(|found| *found.0);
        let [apart, rest] = &self.free;
        let start = if bytes < SMALL { fitting(apart).or_else(|| fitting(rest)) } else { fitting(rest) }?;
        Some(Place { start, bytes, missing: self.missing(chunks_of(start, bytes)) })
    }

    /// Where a block of so many bytes is to lie: at the lowest place, unless something would have to be returned for it and
    /// another place is memory already. `None` where the range has no room for it.
    pub(super) fn choose(&self, bytes: u64) -> Option<Place> {
        let lowest = self.find(bytes)?;
        let is_free = self.in_the_way(&lowest) == Some(0);
        Some(if is_free { lowest } else { self.find_mapped(bytes).unwrap_or(lowest) })
    }

    /// The lowest place for so many bytes all of which is memory already, if there is one.
    fn find_mapped(&self, bytes: u64) -> Option<Place> {
        let free = self.free[usize::from(bytes >= SMALL)].iter();
        let start = free.filter(|(_, length)| **length >= bytes).find_map(|(&first, &length)| {
            let mut start = first;
            // Beyond what was ever mapped there is nothing to find.
            for index in chunks_of(first, length).take_while(|&index| index < self.chunks.len() as u64) {
                if !self.chunks[index as usize].mapped {
                    start = (index + 1) * CHUNK;
                } else if (index + 1) * CHUNK >= start + bytes {
                    return (start + bytes <= first + length).then_some(start);
                }
            }
            None
        })?;
        Some(Place { start, bytes, missing: Vec::new() })
    }

    /// How many bytes have to be returned before the place may become memory: 0 within the limit, and where all of it is
    /// memory already. `None` if so many cannot be returned.
    pub(super) fn in_the_way(&self, place: &Place) -> Option<u64> {
        let more = place.missing_chunks();
        let above = if more == 0 { 0 } else { (self.mapped + more).saturating_sub(self.limit) };
        // What lies idle in the place itself is of use.
        let own = chunks_of(place.start, place.bytes).filter(|&index| self.is_idle(index)).count() as u64;
        (above <= self.mapped - self.pinned - own).then_some(above * CHUNK)
    }

    /// Whether a chunk is memory that no block lies in.
    fn is_idle(&self, index: u64) -> bool {
        self.chunks.get(index as usize).is_some_and(|chunk| chunk.mapped && chunk.blocks == 0)
    }

    /// Ranges of chunks that are not mapped.
    fn missing(&self, chunks: Range<u64>) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for index in chunks.filter(|&index| !self.chunks.get(index as usize).is_some_and(|chunk| chunk.mapped)) {
            let start = index * CHUNK;
            match ranges.last_mut() {
                Some(last) if last.end == start => last.end += CHUNK,
                _ => ranges.push(start..start + CHUNK),
            }
        }
        ranges
    }

    /// A range of whole chunks is memory now.
    pub(super) fn note_mapped(&mut self, range: Range<u64>) {
        let chunks = range.start / CHUNK..range.end / CHUNK;
        if self.chunks.len() < chunks.end as usize {
            self.chunks.resize(chunks.end as usize, Chunk::default());
        }
        for index in chunks {
            let chunk = &mut self.chunks[index as usize];
            assert!(!chunk.mapped, "a chunk is mapped once");
            chunk.mapped = true;
            self.mapped += 1;
        }
    }

    /// A block lies there: all of its place is memory.
    pub(super) fn enter(&mut self, place: &Place) -> Lying {
        let &Place { start, bytes, .. } = place;
        let part = &mut self.free[part_of(start)];
        let (&first, &length) = part.range(..=start).next_back().expect("the place was found free");
        part.remove(&first);
        if start > first {
            part.insert(first, start - first);
        }
        if first + length > start + bytes {
            part.insert(start + bytes, first + length - start - bytes);
        }
        for index in chunks_of(start, bytes) {
            let chunk = &mut self.chunks[index as usize];
            debug_assert!(chunk.mapped, "a block lies in memory");
            self.pinned += u64::from(chunk.blocks == 0);
            chunk.blocks += 1;
            if chunk.turn != self.turn {
                (chunk.turn, chunk.counted) = (self.turn, 0);
                self.reached += 1;
            }
            self.held += u64::from(chunk.counted == 0);
            chunk.counted += 1;
        }
        self.held_peak = self.held_peak.max(self.held);
        self.reached_peak = self.reached_peak.max(self.reached);
        self.used += bytes;
        Lying { start, bytes, turn: self.turn }
    }

    /// A block is gone.
    pub(super) fn leave(&mut self, lying: Lying) {
        let Lying { start, bytes, turn } = lying;
        for index in chunks_of(start, bytes) {
            let chunk = &mut self.chunks[index as usize];
            chunk.blocks -= 1;
            self.pinned -= u64::from(chunk.blocks == 0);
            if turn == self.turn {
                chunk.counted -= 1;
                self.held -= u64::from(chunk.counted == 0);
            }
        }
        self.used -= bytes;
        let part = &mut self.free[part_of(start)];
        let (mut first, mut length) = (start, bytes);
        if let Some((&before, &its)) = part.range(..start).next_back()
            && before + its == start
        {
            part.remove(&before);
            (first, length) = (before, length + its);
        }
        if let Some(its) = part.remove(&(start + bytes)) {
            length += its;
        }
        part.insert(first, length);
    }

    /// Takes chunks without blocks out, the highest first, until at most `keep` bytes are memory. The caller unmaps them:
    /// ranges of whole chunks.
    pub(super) fn shrink(&mut self, keep: u64) -> Vec<Range<u64>> {
        self.shrink_beside(0..0, keep)
    }

    /// The same for a place that is to become memory: its own chunks stay.
    pub(super) fn make_way(&mut self, place: &Place) -> Vec<Range<u64>> {
        let keep = self.mapped().saturating_sub(self.in_the_way(place).unwrap_or(0));
        self.shrink_beside(chunks_of(place.start, place.bytes), keep)
    }

    fn shrink_beside(&mut self, but: Range<u64>, keep: u64) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for (index, chunk) in self.chunks.iter_mut().enumerate().rev() {
            if self.mapped * CHUNK <= keep {
                break;
            }
            if chunk.mapped && chunk.blocks == 0 && !but.contains(&(index as u64)) {
                chunk.mapped = false;
                self.mapped -= 1;
                if chunk.turn == self.turn {
                    // What comes here next comes by it anew.
                    chunk.turn = 0;
                    self.reached -= 1;
                }
                let start = index as u64 * CHUNK;
                match ranges.last_mut() {
                    Some(last) if last.start == start + CHUNK => last.start = start,
                    _ => ranges.push(start..start + CHUNK),
                }
            }
        }
        ranges
    }

    /// Checks the invariants against all blocks.
    #[cfg(test)]
    fn check(&self, blocks: &[Lying]) {
        let places: Vec<_> = blocks.iter().map(|block| (block.start, block.bytes)).collect();
        let mut all: Vec<(u64, u64)> = self.free.iter().flatten().map(|(start, length)| (*start, *length)).collect();
        for part in &self.free {
            let free: Vec<_> = part.iter().collect();
            assert!(free.windows(2).all(|pair| pair[0].0 + pair[0].1 < *pair[1].0), "two free ranges touch");
        }
        all.extend(&places);
        all.sort_unstable();
        let mut end = 0;
        for (start, length) in all {
            assert_eq!(start, end, "a gap, or an overlap");
            end = start + length;
        }
        assert_eq!(end, self.span);
        let mut lying = vec![0; self.chunks.len()];
        let mut held = vec![false; self.chunks.len()];
        for block in blocks {
            for index in chunks_of(block.start, block.bytes) {
                lying[index as usize] += 1;
                held[index as usize] |= block.turn == self.turn;
            }
        }
        assert_eq!(self.held, held.iter().filter(|held| **held).count() as u64);
        assert!(self.held <= self.held_peak && self.held <= self.pinned);
        for (chunk, lying) in self.chunks.iter().zip(lying) {
            assert!(chunk.blocks == lying && (lying == 0 || chunk.mapped));
        }
        assert_eq!(self.mapped, self.chunks.iter().filter(|chunk| chunk.mapped).count() as u64);
        assert_eq!(self.pinned, self.chunks.iter().filter(|chunk| chunk.blocks > 0).count() as u64);
        assert_eq!(self.used, places.iter().map(|(_, bytes)| bytes).sum::<u64>());
    }
}

/// Which part a position is in.
fn part_of(start: u64) -> usize {
    usize::from(start >= APART)
}

/// The chunks that a block lies in.
fn chunks_of(start: u64, bytes: u64) -> Range<u64> {
    start / CHUNK..(start + bytes).div_ceil(CHUNK)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn put(arena: &mut Arena, bytes: u64) -> Option<Lying> {
        let place = arena.choose(bytes)?;
        arena.in_the_way(&place)?;
        arena.make_way(&place);
        place.missing.iter().for_each(|range| arena.note_mapped(range.clone()));
        Some(arena.enter(&place))
    }

    #[test]
    fn a_step_finds_the_memory_of_the_one_before_it() {
        let mut arena = Arena::new(4 << 30);
        for (first, second) in [(10, 20), (20, 10), (5, 25)] {
            arena.begin_turn(u64::MAX);
            let blocks = [first, second].map(|mib| put(&mut arena, mib * MIB).unwrap());
            assert_eq!((arena.mapped(), arena.held(), arena.used()), (30 * MIB, 30 * MIB, 30 * MIB));
            blocks.into_iter().for_each(|block| arena.leave(block));
            assert_eq!((arena.mapped(), arena.used()), (30 * MIB, 0));
            arena.check(&[]);
        }
    }

    #[test]
    fn a_small_block_that_is_left_is_in_nobodys_way() {
        let mut arena = Arena::new(4 << 30);
        arena.begin_turn(u64::MAX);
        let large = put(&mut arena, 16 * MIB).unwrap();
        let small = put(&mut arena, SMALL - 512).unwrap();
        assert_eq!(arena.held(), 18 * MIB);
        arena.leave(large);
        // A little more than before: it lies at the same place, not behind the result.
        arena.begin_turn(u64::MAX);
        let larger = put(&mut arena, 18 * MIB).unwrap();
        assert_eq!((larger.start, arena.held(), arena.mapped()), (large.start, 18 * MIB, 20 * MIB));
        arena.check(&[larger, small]);
    }

    #[test]
    fn what_lies_idle_is_not_held() {
        let mut arena = Arena::new(4 << 30);
        arena.begin_turn(42 * MIB);
        let [first, second] = [10, 20].map(|mib| put(&mut arena, mib * MIB).unwrap());
        arena.leave(first);
        // It does not fit where the first was, whose memory it gets.
        let third = put(&mut arena, 20 * MIB).unwrap();
        assert_eq!((arena.held(), arena.reached(), arena.mapped()), (40 * MIB, 42 * MIB, 42 * MIB));
        // Of an earlier turn, it counts no more, and neither does what leaves it.
        arena.begin_turn(42 * MIB);
        let fourth = put(&mut arena, 2 * MIB).unwrap();
        arena.leave(second);
        assert_eq!(arena.held(), 2 * MIB);
        arena.check(&[third, fourth]);
    }

    #[test]
    fn no_more_becomes_memory_than_the_limit() {
        let mut arena = Arena::new(4 << 30);
        arena.begin_turn(33 * MIB);
        let first = put(&mut arena, 20 * MIB).unwrap();
        assert_eq!(put(&mut arena, 13 * MIB), None, "33 MiB are 16 chunks");
        let second = put(&mut arena, 12 * MIB).unwrap();
        arena.leave(first);
        assert_eq!(put(&mut arena, 21 * MIB), None, "it would lie behind the second, and 20 MiB are too few to return");
        let again = put(&mut arena, 20 * MIB);
        assert_eq!(again, Some(first), "what is memory may be used");
        // Less than there is: nothing is added, and what is there is used.
        arena.leave(first);
        arena.begin_turn(8 * MIB);
        let again = put(&mut arena, 20 * MIB).unwrap();
        assert_eq!(again.start, first.start);
        arena.check(&[again, second]);
    }

    #[test]
    fn what_lies_idle_elsewhere_makes_way() {
        let mut arena = Arena::new(4 << 30);
        arena.begin_turn(40 * MIB);
        // 10 MiB of small blocks, 30 of a large one.
        let small: Vec<_> = (0..160).map(|_| put(&mut arena, SMALL - 512).unwrap()).collect();
        let large = put(&mut arena, 30 * MIB).unwrap();
        small.iter().for_each(|block| arena.leave(*block));
        arena.leave(large);
        // Now one of them and 38.
        let first = put(&mut arena, SMALL - 512).unwrap();
        let place = arena.find(38 * MIB).unwrap();
        assert_eq!((place.start, arena.in_the_way(&place)), (large.start, Some(8 * MIB)));
        let larger = put(&mut arena, 38 * MIB).unwrap();
        assert_eq!((larger.start, arena.mapped(), arena.held()), (large.start, 40 * MIB, 40 * MIB));
        arena.check(&[first, larger]);
        // What is missing cannot be made up by what is there of the place itself.
        arena.leave(larger);
        assert_eq!(put(&mut arena, 40 * MIB), None);
    }

    #[test]
    fn at_the_limit_a_place_is_taken_that_is_memory_already() {
        let mut arena = Arena::new(4 << 30);
        arena.begin_turn(u64::MAX);
        let [first, second, third, last] = [20, 4, 20, 4].map(|mib| put(&mut arena, mib * MIB).unwrap());
        arena.leave(first);
        let gone = first.start..first.start + 20 * MIB;
        assert_eq!(arena.shrink(0), [gone]);
        arena.leave(third);
        // The lowest place is the first one's, which is no memory any more; the third one's still is.
        arena.begin_turn(28 * MIB);
        assert_eq!(arena.find(16 * MIB).unwrap().start, first.start);
        let block = put(&mut arena, 16 * MIB).unwrap();
        assert_eq!((block.start, arena.mapped()), (third.start, 28 * MIB));
        arena.leave(block);
        // In the midst of a free range, too.
        arena.leave(second);
        let block = put(&mut arena, 24 * MIB).unwrap();
        assert_eq!((block.start, arena.mapped()), (second.start, 28 * MIB));
        arena.check(&[block, last]);
        // There is no place of 26 MiB that is memory, and 24 of it cannot be returned.
        assert_eq!((arena.find_mapped(26 * MIB), put(&mut arena, 26 * MIB)), (None, None));
    }

    #[test]
    fn what_is_returned_is_the_highest_without_blocks() {
        let mut arena = Arena::new(4 << 30);
        arena.begin_turn(u64::MAX);
        let blocks = [8, 6, 4].map(|mib| put(&mut arena, mib * MIB).unwrap());
        arena.leave(blocks[0]);
        arena.leave(blocks[2]);
        let base = blocks[0].start;
        assert_eq!(arena.shrink(12 * MIB), [base + 14 * MIB..base + 18 * MIB, base + 6 * MIB..base + 8 * MIB]);
        let rest = base..base + 6 * MIB;
        assert_eq!(arena.shrink(0), std::slice::from_ref(&rest), "all but what a block lies in");
        assert_eq!((arena.mapped(), arena.pinned(), arena.could_shrink(0)), (6 * MIB, 6 * MIB, false));
        arena.check(&blocks[1..2]);
        assert_eq!(arena.shrink(0), []);
    }

    #[test]
    fn more_than_there_are_addresses_for_has_no_place() {
        let mut arena = Arena::new(2 << 30);
        arena.begin_turn(u64::MAX);
        assert_eq!(arena.find((1 << 30) + 512), None);
        assert_eq!(arena.find(u64::MAX / CHUNK * CHUNK), None);
        let whole = put(&mut arena, 1 << 30).unwrap();
        assert_eq!(arena.find(SMALL), None);
        let small = put(&mut arena, SMALL - 512).unwrap();
        arena.check(&[small, whole]);
    }

    proptest! {
        #[test]
        fn blocks_never_overlap_and_always_lie_in_memory(
            actions in prop::collection::vec((0..10u8, 1..60_000u64, any::<prop::sample::Index>()), 1..300),
        ) {
            let mut arena = Arena::new(4 << 30);
            let mut blocks: Vec<Lying> = Vec::new();
            let mut limit = u64::MAX;
            for (action, size, index) in actions {
                match action {
                    0..6 => {
                        let before = arena.mapped();
                        blocks.extend(put(&mut arena, size * 512));
                        prop_assert!(arena.mapped() <= before.max(limit));
                    }
                    6..8 if !blocks.is_empty() => {
                        arena.leave(blocks.swap_remove(index.index(blocks.len())));
                    }
                    8 => {
                        let keep = size * 1024;
                        let before = arena.mapped();
                        let returned: u64 = arena.shrink(keep).iter().map(|range| range.end - range.start).sum();
                        prop_assert_eq!(arena.mapped() + returned, before);
                        let least: u64 = blocks.iter().map(|block| block.bytes + 2 * CHUNK).sum();
                        prop_assert!(arena.mapped() <= keep.max(least));
                    }
                    _ => {
                        limit = size * 2048;
                        arena.begin_turn(limit);
                    }
                }
                arena.check(&blocks);
            }
        }
    }
}
