//! What to do about a shortfall: four rungs, the cheapest first.

use super::Rungs;

/// What the device's thread does next about a part of a step that ran out of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rung {
    /// Rung 1: synchronize, return cached workspace, run the same part again.
    TrimAndRetry,
    /// Rung 2: drop its tensors, halve the rows, run the first half and then the second. A generator's KV is rolled
    /// back first.
    Halve,
    /// Rung 3: evict the least recently used idle unpinned model, run the same part again.
    Evict,
    /// Rung 4: give the row up with numbers; the step's other parts go on. Whether it is tried again is the scheduler's to say.
    Refuse,
}

/// The policy of one step. It decides; the device's thread acts, and tells it of each shortfall and of each part that
/// went through.
///
/// Bounds: a part is retried once after a trim, then halved, so a step of `n` rows ends after at most `2n - 1` parts,
/// each with at most one trim, and as many evictions as there are models.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ladder {
    trimmed: bool,
    used: Rungs,
}

impl Ladder {
    /// At the foot.
    pub fn new() -> Ladder {
        Ladder::default()
    }

    /// The part now running, of `rows` rows, ran out of memory. `evictable`: an idle unpinned model is resident.
    pub fn shortfall(&mut self, rows: u32, evictable: Evictable) -> Rung {
        if !self.trimmed {
            self.trimmed = true;
            self.used.trims += 1;
            return Rung::TrimAndRetry;
        }
        // Whatever comes next is another attempt, with its own trim.
        self.trimmed = false;
        match (rows, evictable) {
            (2.., _) => {
                self.used.halvings += 1;
                Rung::Halve
            }
            (_, Evictable::Some) => {
                self.used.evictions += 1;
                // What was evicted is free: trimming again frees nothing more.
                self.trimmed = true;
                Rung::Evict
            }
            (_, Evictable::None) => {
                self.used.refusals += 1;
                Rung::Refuse
            }
        }
    }

    /// The part now running went through; the next one starts at the foot.
    pub fn part_done(&mut self) {
        self.trimmed = false;
    }

    /// The rungs used so far.
    pub fn used(&self) -> Rungs {
        self.used
    }
}

/// Whether there is a model that could be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Evictable {
    /// At least one idle unpinned model is resident.
    Some,
    /// None is.
    None,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_and_input_has_its_rung() {
        let check = |trimmed, rows, evictable, expected, trimmed_after| {
            let mut ladder = Ladder { trimmed, used: Rungs::default() };
            assert_eq!(ladder.shortfall(rows, evictable), expected, "{trimmed} {rows} {evictable:?}");
            assert_eq!(ladder.trimmed, trimmed_after, "{trimmed} {rows} {evictable:?}");
        };
        for rows in 0..=3 {
            for evictable in [Evictable::Some, Evictable::None] {
                check(false, rows, evictable, Rung::TrimAndRetry, true);
            }
        }
        for rows in [2, 3, u32::MAX] {
            check(true, rows, Evictable::Some, Rung::Halve, false);
            check(true, rows, Evictable::None, Rung::Halve, false);
        }
        for rows in [0, 1] {
            check(true, rows, Evictable::Some, Rung::Evict, true);
            check(true, rows, Evictable::None, Rung::Refuse, false);
        }
    }

    /// Runs a step of `rows` rows on a device that can run parts of up to `fits` rows once `evictions` models are gone.
    fn run(rows: u32, fits: u32, evictions: u32) -> (u32 /* answered */, Rungs) {
        let (mut ladder, mut left, mut parts, mut answered) = (Ladder::new(), evictions, vec![rows], 0);
        while let Some(part) = parts.pop() {
            if part <= fits && left == 0 {
                answered += part;
                ladder.part_done();
                continue;
            }
            match ladder.shortfall(part, if left > 0 { Evictable::Some } else { Evictable::None }) {
                Rung::TrimAndRetry => parts.push(part),
                Rung::Evict => {
                    left -= 1;
                    parts.push(part);
                }
                Rung::Halve => parts.extend([part / 2, part.div_ceil(2)]),
                Rung::Refuse => {}
            }
        }
        (answered, ladder.used())
    }

    #[test]
    fn a_step_ends_with_every_row_answered_or_refused() {
        for rows in 1..=33 {
            for fits in 0..=rows {
                for evictions in 0..=2 {
                    let (answered, used) = run(rows, fits, evictions);
                    assert_eq!(answered + used.refusals, rows, "{rows} rows, {fits} fit, {evictions} evictions");
                    assert_eq!(used.refusals, if fits == 0 { rows } else { 0 });
                    assert!(used.evictions == evictions && used.halvings < rows && used.trims < 2 * rows);
                }
            }
        }
    }

    #[test]
    fn a_part_that_went_through_gives_the_next_one_its_own_trim() {
        let mut ladder = Ladder::new();
        assert_eq!(ladder.shortfall(4, Evictable::None), Rung::TrimAndRetry);
        ladder.part_done();
        assert_eq!(ladder.shortfall(4, Evictable::None), Rung::TrimAndRetry);
        assert_eq!(ladder.shortfall(4, Evictable::None), Rung::Halve);
        assert_eq!(ladder.used(), Rungs { trims: 2, halvings: 1, evictions: 0, refusals: 0 });
    }

    #[test]
    fn what_fits_costs_nothing() {
        assert_eq!(run(32, 32, 0), (32, Rungs::default()));
        assert_eq!(run(32, 16, 0).1, Rungs { trims: 1, halvings: 1, evictions: 0, refusals: 0 });
    }
}
