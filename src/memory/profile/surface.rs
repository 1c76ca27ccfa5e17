//! A quantity over batch and extent, interpolated between measured points.
//!
//! What is measured (peak bytes, time) is a maximum of terms in B, B*S and B*S^2 with non-negative coefficients: it
//! grows along both axes and is convex along each. So linear interpolation along a column, and then between two
//! columns, is an upper bound; a point of a larger extent is one as well, only a looser one, and continues the columns
//! that are not measured as far. Where no point has both a larger batch and a larger extent there is no bound, and so no
//! value.

/// The measured part of one column: `(batch, value)`, batches increasing, values not falling. Never empty.
#[derive(Clone, Debug)]
struct Curve {
    extent: u32,
    knots: Vec<(u32, u64)>,
    /// No switch of the code path lies between the curve before this one and this one.
    joined: bool,
}

/// What is known of how a quantity changes from one extent to a larger one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Growth {
    /// It grows, or stays.
    #[default]
    Monotone,
    /// Nothing: the time of so many tokens in long rows may be less than in short ones, of which there are more. A column
    /// says nothing about the next, and between two of them the larger one counts.
    Unknown,
}

/// The surface. A larger batch never has a smaller value, whatever noise the points have, nor has a larger extent where
/// that is known.
#[derive(Clone, Debug, Default)]
pub(super) struct Surface {
    curves: Vec<Curve>,
    growth: Growth,
}

impl Surface {
    /// Builds it from columns `(extent, [(batch, value)])` in increasing order of extent, each not empty and in
    /// increasing order of batch. `switches` are the extents after which the code path changes.
    pub(super) fn build(
        columns: impl IntoIterator<Item = (u32, Vec<(u32, u64)>)>,
        switches: &[u32],
        growth: Growth,
    ) -> Surface {
        let mut curves: Vec<Curve> = Vec::new();
        // The largest value of all columns so far at each batch: what this column may not fall below.
        let mut floor: Vec<(u32, u64)> = Vec::new();
        for (extent, points) in columns {
            let joined = curves
                .last()
                .is_none_or(|before| !switches.iter().any(|&below| before.extent <= below && below < extent));
            let knots = raised(&points, &floor);
            if growth == Growth::Monotone {
                floor = upper(&knots, &floor);
            }
            curves.push(Curve { extent, knots, joined });
        }
        // From the largest extent down, so that what is continued is as far as any larger extent goes.
        for index in (1..curves.len()).rev() {
            let (smaller, larger) = curves.split_at_mut(index);
            continue_along(&mut smaller[index - 1].knots, &larger[0].knots);
        }
        Surface { curves, growth }
    }

    /// The value, rounded up; `None` beyond what is measured. A batch below the smallest measured one has its value.
    pub(super) fn at(&self, batch: u32, extent: u32) -> Option<u64> {
        let index = self.curves.partition_point(|curve| curve.extent < extent);
        let upper = self.curves.get(index)?;
        let above = value(&upper.knots, batch)?;
        if !upper.joined || upper.extent == extent {
            return Some(above);
        }
        let below = index.checked_sub(1).map(|index| &self.curves[index]);
        // Beyond its end a column still counts where the next one may have less: no batch is to be cheaper than a smaller.
        let of_lower = |lower: &Curve| match self.growth {
            Growth::Monotone => value(&lower.knots, batch),
            Growth::Unknown => value(&lower.knots, batch).or(Some(last(&lower.knots).1)),
        };
        match below.and_then(|lower| Some((lower.extent, of_lower(lower)?))) {
            Some((lower_extent, below)) => Some(blend((lower_extent, below), (upper.extent, above), extent)),
            // No smaller column goes that far: the larger extent bounds this one from above.
            None => Some(above),
        }
    }

    /// The largest batch that has a value at this extent.
    pub(super) fn reach(&self, extent: u32) -> Option<u32> {
        let upper = self.curves.iter().find(|curve| curve.extent >= extent)?;
        Some(last(&upper.knots).0)
    }

    /// The batches at which the surface bends at this extent, in increasing order, as far as it reaches.
    pub(super) fn bends(&self, extent: u32) -> Vec<u32> {
        let index = self.curves.partition_point(|curve| curve.extent < extent);
        let Some(upper) = self.curves.get(index) else { return Vec::new() };
        let reach = last(&upper.knots).0;
        let lower = index.checked_sub(1).filter(|_| upper.extent != extent).map(|index| &self.curves[index]);
        let both = lower.into_iter().chain([upper]).flat_map(|curve| curve.knots.iter().map(|knot| knot.0));
        let mut batches: Vec<u32> = both.filter(|&batch| batch <= reach).collect();
        batches.sort_unstable();
        batches.dedup();
        batches
    }

    /// Pairs of neighbouring extents between which it interpolates.
    pub(super) fn cells(&self) -> impl Iterator<Item = (u32, u32)> {
        self.curves.windows(2).filter(|pair| pair[1].joined).map(|pair| (pair[0].extent, pair[1].extent))
    }
}

/// The points, each raised to the one before it and to the floor. Where the floor bends between two points, a knot is
/// added: else the curve could dip below the floor between its own knots.
fn raised(points: &[(u32, u64)], floor: &[(u32, u64)]) -> Vec<(u32, u64)> {
    let (first, reach) = (points[0].0, last(points).0);
    let bends = floor.iter().map(|knot| knot.0).filter(|batch| (first..=reach).contains(batch));
    let mut batches: Vec<u32> = points.iter().map(|point| point.0).chain(bends).collect();
    batches.sort_unstable();
    batches.dedup();
    let mut least = 0;
    let knot = |batch: u32| {
        let own = value(points, batch).expect("the batch is within the points");
        least = least.max(own).max(held(floor, batch));
        (batch, least)
    };
    batches.into_iter().map(knot).collect()
}

/// Continues a curve that ends before that of a larger extent with its knots. The line to the first of them is a bound
/// too: the curve itself is convex, begins where the line begins and ends below where it ends. Where a larger extent may
/// have less, the curve stays level instead of falling.
fn continue_along(knots: &mut Vec<(u32, u64)>, larger: &[(u32, u64)]) {
    let (reach, least) = last(knots);
    let further = larger.iter().filter(|knot| knot.0 > reach);
    knots.extend(further.map(|&(batch, value)| (batch, value.max(least))));
}

/// The larger of the curve and the floor at every bend of both, the shorter one continued level.
fn upper(knots: &[(u32, u64)], floor: &[(u32, u64)]) -> Vec<(u32, u64)> {
    let mut batches: Vec<u32> = knots.iter().chain(floor).map(|knot| knot.0).collect();
    batches.sort_unstable();
    batches.dedup();
    batches.into_iter().map(|batch| (batch, held(knots, batch).max(held(floor, batch)))).collect()
}

/// The value on the knots, continued level beyond their end; 0 without any, and before the first one.
fn held(knots: &[(u32, u64)], batch: u32) -> u64 {
    match knots {
        [first, ..] if batch >= first.0 => value(knots, batch).unwrap_or(last(knots).1),
        _ => 0,
    }
}

/// The value between knots; that of the first below it; `None` beyond the last.
fn value(knots: &[(u32, u64)], batch: u32) -> Option<u64> {
    let index = knots.partition_point(|knot| knot.0 < batch);
    let upper = *knots.get(index)?;
    match index.checked_sub(1) {
        Some(lower) => Some(blend(knots[lower], upper, batch)),
        None => Some(upper.1),
    }
}

/// The value at `x` on the line through two points, rounded up. Exact in integers, so that it is monotone.
fn blend((x0, y0): (u32, u64), (x1, y1): (u32, u64), x: u32) -> u64 {
    let (height, part, width) = (y1.saturating_sub(y0), x - x0, x1 - x0);
    // A step is chosen by some sixty of these, and dividing 128 bits takes several times as long.
    y0 + match height.checked_mul(u64::from(part)) {
        Some(rise) => rise.div_ceil(u64::from(width)),
        None => (u128::from(height) * u128::from(part)).div_ceil(u128::from(width)) as u64,
    }
}

fn last(knots: &[(u32, u64)]) -> (u32, u64) {
    *knots.last().expect("a curve is never empty")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two columns, at 10 and 20, over batches 1..=4.
    fn surface() -> Surface {
        Surface::build([(10, vec![(1, 10), (4, 40)]), (20, vec![(1, 30), (4, 120)])], &[], Growth::Monotone)
    }

    #[test]
    fn values_lie_between_the_corners_and_nowhere_else() {
        let check = |batch, extent, expected| assert_eq!(surface().at(batch, extent), expected, "{batch} x {extent}");
        check(1, 10, Some(10));
        check(4, 20, Some(120));
        check(2, 10, Some(20));
        check(2, 15, Some(40));
        check(1, 5, Some(10)); // a smaller extent costs no more
        check(5, 10, None);
        check(1, 21, None);
        check(5, 15, None);
        assert_eq!(Surface::default().at(1, 1), None);
        assert_eq!(Surface::default().reach(1), None);
    }

    #[test]
    fn large_values_are_blended_as_exactly_as_small_ones() {
        assert_eq!(blend((1, 7), (4, 8), 2), 8); // rounded up
        let most = u64::MAX - 5;
        assert_eq!(blend((0, 5), (3, most), 3), most);
        assert_eq!(blend((0, 0), (u32::MAX, most), 1), most.div_ceil(u64::from(u32::MAX)));
        assert_eq!(blend((0, 0), (2, most), 1), most / 2);
    }

    #[test]
    fn a_switch_of_extent_is_not_interpolated_across() {
        let columns = || [(10, vec![(1, 10)]), (20, vec![(1, 30)])];
        assert_eq!(Surface::build(columns(), &[15], Growth::Monotone).at(1, 12), Some(30));
        assert_eq!(Surface::build(columns(), &[10], Growth::Monotone).at(1, 12), Some(30));
        assert_eq!(Surface::build(columns(), &[20], Growth::Monotone).at(1, 15), Some(20));
        assert_eq!(Surface::build(columns(), &[9], Growth::Monotone).at(1, 15), Some(20));
    }

    #[test]
    fn a_column_that_ends_early_is_bounded_by_the_next() {
        let surface = Surface::build([(10, vec![(1, 10)]), (20, vec![(1, 30), (4, 120)])], &[], Growth::Monotone);
        assert_eq!(surface.at(4, 15), Some(120));
        assert_eq!(surface.at(4, 10), Some(120));
        assert_eq!(surface.at(2, 10), Some(47)); // on the line from (1, 10) to (4, 120)
        assert_eq!(surface.at(5, 10), None);
        assert_eq!(surface.reach(10), Some(4));
        assert_eq!(surface.reach(15), Some(4));
        assert_eq!(surface.bends(15), [1, 4]);
    }

    #[test]
    fn noise_never_makes_it_fall() {
        let noisy = [(10, vec![(1, 50), (2, 40), (8, 90)]), (20, vec![(1, 20), (8, 80)]), (30, vec![(1, 10), (4, 60)])];
        let surface = Surface::build(noisy, &[], Growth::Monotone);
        let all: Vec<(u32, u32, u64)> = (1..=30)
            .flat_map(|extent| (1..=8).map(move |batch| (batch, extent)))
            .filter_map(|(batch, extent)| Some((batch, extent, surface.at(batch, extent)?)))
            .collect();
        for &(batch, extent, value) in &all {
            for &(other_batch, other_extent, other) in &all {
                assert!(
                    batch > other_batch || extent > other_extent || value <= other,
                    "{batch} x {extent}: {value}, but {other_batch} x {other_extent}: {other}"
                );
            }
        }
    }

    #[test]
    fn a_column_says_nothing_about_a_larger_extent_where_growth_is_unknown() {
        let columns = || [(10, vec![(1, 50), (4, 200)]), (20, vec![(1, 30), (2, 20), (4, 80)])];
        let surface = Surface::build(columns(), &[], Growth::Unknown);
        assert_eq!((surface.at(4, 10), surface.at(4, 20)), (Some(200), Some(80)));
        assert_eq!(surface.at(2, 20), Some(30), "along the batch it never falls");
        assert_eq!(surface.at(4, 15), Some(200), "between two the larger one counts");
        assert_eq!(Surface::build(columns(), &[], Growth::Monotone).at(4, 20), Some(200));
    }

    #[test]
    fn a_column_that_ends_early_never_falls_to_the_next() {
        let columns = [(10, vec![(1, 50), (2, 200)]), (20, vec![(1, 30), (4, 80), (8, 300)])];
        let surface = Surface::build(columns, &[], Growth::Unknown);
        let found = [2, 4, 5, 8].map(|batch| surface.at(batch, 10));
        assert_eq!(found, [200, 200, 225, 300].map(Some), "behind a knot that is lower, too");
        assert_eq!(surface.at(4, 15), Some(200), "nor does what lies between two");
    }
}
