//! The whole profile against an oracle: a model whose true cost is a known function, surveyed to the end.

use proptest::prelude::*;

use super::grid::{first_batch, last_batch};
use super::*;
use crate::memory::{Axis, ShapeKind};

/// A true cost: the largest of terms in B, B*S and B*S^2, each with a constant, as memory is; time is their sum.
#[derive(Clone, Debug)]
struct Truth {
    constant: u64,
    by_batch: u64,
    by_token: u64,
    by_square: u64,
}

impl Truth {
    fn peak(&self, (batch, extent): (u32, u32)) -> Bytes {
        let (batch, extent) = (u64::from(batch), u64::from(extent));
        let terms = [self.by_batch * batch, self.by_token * batch * extent, self.by_square * batch * extent * extent];
        Bytes::new(self.constant + terms.into_iter().max().expect("there are three"))
    }

    /// A launch cost and a cost of tokens and squares: throughput grows with the batch and levels off.
    fn time(&self, (batch, extent): (u32, u32)) -> Micros {
        let (batch, extent) = (u64::from(batch), u64::from(extent));
        Micros::new(2_000 + batch * (extent * 100 + extent * extent / 20))
    }

    fn measure(&self, shape: Shape) -> Measured {
        let place = shape.position();
        Measured { shape, peak: self.peak(place), time: self.time(place) }
    }
}

fn truth() -> impl Strategy<Value = Truth> {
    (0u64..200_000, 1u64..200_000, 1u64..20_000, 0u64..400)
        .prop_map(|(constant, by_batch, by_token, by_square)| Truth { constant, by_batch, by_token, by_square })
}

fn axes() -> Axes {
    Axes {
        kind: ShapeKind::Padded,
        batch: Axis { min: 1, max: 256, splits: vec![] },
        extent: Axis { min: 4, max: 512, splits: vec![] },
        step_tokens_max: 16_384,
    }
}

/// Runs every probe that fits until none is left; returns how many.
fn survey(profile: &mut Profile, fits: Bytes, measure: impl Fn(Shape) -> Measured) -> usize {
    for count in 0..2_000 {
        let Some(probe) = profile.next_probe(fits) else { return count };
        profile.record(measure(probe.shape));
    }
    panic!("the survey does not end: {:?}", profile.next_probe(fits));
}

fn surveyed(truth: &Truth) -> Profile {
    let mut profile = Profile::new(axes(), Slack::CPU);
    survey(&mut profile, Bytes::MAX, |shape| truth.measure(shape));
    profile
}

/// Every shape of a coarse sample of the envelope, legal or not quite.
fn shapes() -> impl Iterator<Item = Shape> {
    let extents = (1..=520).step_by(7);
    extents.flat_map(|extent| (1..=260).step_by(3).map(move |batch| ShapeKind::Padded.at(batch, extent)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn predictions_are_never_below_the_truth(truth in truth()) {
        let profile = surveyed(&truth);
        prop_assert_eq!(profile.state(), ProfileState::Complete);
        let mut known = 0;
        for shape in shapes() {
            let Some(predicted) = profile.predicted(shape) else { continue };
            known += 1;
            prop_assert!(predicted >= truth.peak(shape.position()), "{}: {} < {}", shape, predicted, truth.peak(shape.position()));
        }
        prop_assert!(known > 100, "only {} shapes are known", known);
    }
}
