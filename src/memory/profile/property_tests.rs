//! The whole profile against an oracle: a model whose true cost is a known function, surveyed to the end.

use proptest::prelude::*;

use super::grid::{first_batch, last_batch};
use super::*;
use crate::memory::{Axis, ShapeKind};

/// A true cost: a constant and the largest of terms in B, B*S and B*S^2, as memory is.
#[derive(Clone, Debug)]
struct Truth {
    constant: u64,
    by_batch: u64,
    by_token: u64,
    by_square: u64,
    /// Beyond this batch another code path costs this factor more.
    switch: Option<(u32, u64)>,
}

impl Truth {
    fn peak(&self, kind: ShapeKind, (batch, extent): (u32, u32)) -> Bytes {
        let (rows, length) = (u64::from(batch), u64::from(extent));
        // Where the batch counts tokens already, S appears once less.
        let (tokens, squares) = match kind {
            ShapeKind::Padded => (rows * length, rows * length * length),
            ShapeKind::Ragged | ShapeKind::Generate => (rows, rows * length),
        };
        let largest = (self.by_batch * rows).max(self.by_token * tokens).max(self.by_square * squares);
        let factor = self.switch.filter(|&(below, _)| batch > below).map_or(1, |(_, factor)| factor);
        Bytes::new(self.constant + largest * factor)
    }

    /// A launch cost and a cost of tokens and squares: throughput grows with the batch and levels off.
    fn time(&self, kind: ShapeKind, (batch, extent): (u32, u32)) -> Micros {
        let (tokens, extent) = (kind.at(batch, extent).tokens(), u64::from(extent));
        Micros::new(4_000 + tokens * 100 + tokens * extent / 20)
    }

    fn measure(&self, shape: Shape) -> Measured {
        let (kind, place) = (shape.kind(), shape.position());
        Measured { shape, peak: self.peak(kind, place), time: self.time(kind, place) }
    }
}

fn truth() -> impl Strategy<Value = Truth> {
    (0u64..200_000, 1u64..200_000, 1u64..20_000, 0u64..400).prop_map(|(constant, by_batch, by_token, by_square)| {
        Truth { constant, by_batch, by_token, by_square, switch: None }
    })
}

fn axes(kind: ShapeKind) -> Axes {
    let axis = |min, max| Axis { min, max, splits: vec![] };
    let batch = if kind == ShapeKind::Padded { axis(1, 256) } else { axis(1, 4096) };
    Axes { kind, batch, extent: axis(4, 512), step_tokens_max: 4096, measured_tokens_min: 512 }
}

fn kind() -> impl Strategy<Value = ShapeKind> {
    prop_oneof![Just(ShapeKind::Padded), Just(ShapeKind::Ragged), Just(ShapeKind::Generate)]
}

/// Runs every probe that fits until none is left; returns the shapes in order.
fn survey(profile: &mut Profile, fits: Bytes, measure: impl Fn(Shape) -> Measured) -> Vec<Shape> {
    let mut shapes = Vec::new();
    while let Some(probe) = profile.next_probe(fits) {
        shapes.push(probe.shape);
        profile.record(measure(probe.shape));
        assert!(shapes.len() < 400, "the survey does not end: {probe:?}");
    }
    shapes
}

fn surveyed(axes: Axes, truth: &Truth) -> Profile {
    let mut profile = Profile::new(axes, Slack::CPU);
    survey(&mut profile, Bytes::MAX, |shape| truth.measure(shape));
    profile
}

/// A sample of shapes that steps can have, and of some beyond the axes.
fn shapes(axes: &Axes) -> Vec<Shape> {
    let step = if axes.kind == ShapeKind::Padded { 3 } else { 41 };
    let mut shapes = Vec::new();
    for extent in (axes.extent.min..=axes.extent.max + 20).step_by(7) {
        let (first, last) = (first_batch(axes, extent), last_batch(axes, extent));
        shapes.extend((first..=last + 2 * step).step_by(step as usize).map(|batch| axes.kind.at(batch, extent)));
    }
    shapes
}

/// What a device's noise makes of a result: up to a fifth more or less, the same for the same shape and seed.
fn noisy(measured: Measured, seed: u64) -> Measured {
    let (batch, extent) = measured.shape.position();
    let hash = (u64::from(batch) << 32 | u64::from(extent)).wrapping_add(seed).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let factor = |bits: u64| 0.8 + 0.4 * (bits % 1000) as f64 / 1000.0;
    Measured {
        shape: measured.shape,
        peak: measured.peak.scale(factor(hash >> 40)),
        time: measured.time.scale(factor(hash >> 20)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn predictions_are_never_below_the_truth(truth in truth(), kind in kind()) {
        let axes = axes(kind);
        let profile = surveyed(axes.clone(), &truth);
        prop_assert_eq!(profile.state(), ProfileState::Complete);
        let known: Vec<Shape> = shapes(&axes).into_iter().filter(|&shape| profile.predicted(shape).is_some()).collect();
        prop_assert!(known.len() > 100, "only {} shapes are known", known.len());
        for shape in known {
            let (predicted, peak) = (profile.predicted(shape).unwrap(), truth.peak(kind, shape.position()));
            prop_assert!(predicted >= peak, "{}: {} predicted, {} needed", shape, predicted, peak);
            let time = truth.time(kind, shape.position());
            prop_assert!(profile.time(shape).unwrap() >= time, "{}", shape);
        }
    }

    #[test]
    fn predictions_are_close_to_the_truth(truth in truth(), seed in 0u64..1000) {
        let profile = surveyed(axes(ShapeKind::Padded), &truth);
        // Log-uniform over batch and extent, by a fixed sequence that covers the square evenly.
        let (mut large, mut over) = (0, 0);
        for index in 0..400 {
            let part = |step: f64| (seed as f64 * 0.618 + f64::from(index) * step).fract();
            let extent = (4.0 * 128f64.powf(part(0.754_877_666))).round() as u32;
            let reach = profile.peaks.reach(extent).unwrap();
            let batch = f64::from(reach).powf(part(0.569_840_291)).round() as u32;
            let shape = ShapeKind::Padded.at(batch, extent);
            let (predicted, peak) = (profile.predicted(shape).unwrap(), truth.peak(ShapeKind::Padded, (batch, extent)));
            if peak >= Bytes::mib(1) {
                large += 1;
                over += u32::from(predicted > peak.scale(1.15));
            }
        }
        prop_assert!(over * 20 <= large, "{} of {} are more than 15 % over", over, large);
    }

    #[test]
    fn nothing_is_predicted_beyond_a_measured_corner(truth in truth(), kind in kind(), probes in 0usize..60) {
        let axes = axes(kind);
        let mut profile = Profile::new(axes.clone(), Slack::CPU);
        let mut measured: Vec<(u32, u32)> = Vec::new();
        for _ in 0..probes {
            let Some(probe) = profile.next_probe(Bytes::MAX) else { break };
            measured.push(probe.shape.position());
            profile.record(truth.measure(probe.shape));
        }
        for shape in shapes(&axes) {
            let (batch, extent) = shape.position();
            let covered = measured.iter().any(|&(other, longer)| other >= batch && longer >= extent);
            prop_assert!(covered || profile.predicted(shape).is_none(), "{} after {} probes", shape, measured.len());
            prop_assert_eq!(profile.predicted(shape).is_some(), profile.time(shape).is_some());
        }
    }

    #[test]
    fn predictions_are_monotone_whatever_the_noise(truth in truth(), kind in kind(), seed: u64, probes in 1usize..200) {
        let axes = axes(kind);
        let mut profile = Profile::new(axes.clone(), Slack::CPU);
        for _ in 0..probes {
            let Some(probe) = profile.next_probe(Bytes::MAX) else { break };
            profile.record(noisy(truth.measure(probe.shape), seed));
        }
        let known = |shape: Shape| Some((shape.position(), profile.predicted(shape)?, profile.time(shape)?));
        let known: Vec<_> = shapes(&axes).into_iter().filter_map(known).step_by(3).collect();
        for &((batch, extent), peak, time) in &known {
            for &((larger, longer), more, later) in &known {
                // So many tokens may take less time in longer rows, of which there are fewer.
                let times = kind == ShapeKind::Padded || extent == longer;
                prop_assert!(
                    batch > larger || extent > longer || (peak <= more && (!times || time <= later)),
                    "{} x {} costs more than {} x {}", batch, extent, larger, longer
                );
            }
        }
    }

    #[test]
    fn the_inverse_agrees_with_brute_force(
        truth in truth(), kind in kind(), seed: u64, extent in 1u32..520, fits in 0f64..1.2, within in 0f64..1.2,
    ) {
        let axes = axes(kind);
        let mut profile = Profile::new(axes.clone(), Slack::CPU);
        survey(&mut profile, Bytes::MAX, |shape| noisy(truth.measure(shape), seed));
        let corner = axes.kind.at(profile.peaks.reach(512).unwrap(), 512);
        let fits = profile.predicted(corner).unwrap().scale(fits * fits);
        let within = profile.time(corner).unwrap().scale(within * within);
        let found = profile.largest_batch(extent, fits, within);
        let first = first_batch(&axes, extent);
        let costs = |batch| {
            let shape = axes.kind.at(batch, extent);
            Some((profile.predicted(shape)?, profile.time(shape)?))
        };
        let Some(_) = costs(first) else {
            prop_assert_eq!(found, None);
            return Ok(());
        };
        let mut expected = Largest { batch: 0, bound: LargestBound::Envelope };
        for batch in first.. {
            match costs(batch) {
                Some((peak, time)) if peak <= fits && time <= within => expected.batch = batch,
                Some((peak, _)) if peak > fits => expected.bound = LargestBound::Memory,
                Some(_) => expected.bound = LargestBound::Latency,
                None => {}
            }
            if expected.batch != batch {
                break;
            }
        }
        prop_assert_eq!(found, Some(expected), "extent {}, {} in {}", extent, fits, within);
    }

    #[test]
    fn the_knee_agrees_with_brute_force(truth in truth(), seed: u64, extent in 1u32..520) {
        let mut profile = Profile::new(axes(ShapeKind::Padded), Slack::CPU);
        survey(&mut profile, Bytes::MAX, |shape| noisy(truth.measure(shape), seed));
        let throughput = |batch: u32| {
            let time = profile.time(ShapeKind::Padded.at(batch, extent))?;
            Some(f64::from(batch) / time.get() as f64)
        };
        let all: Vec<(u32, f64)> = (1..=256).map_while(|batch| Some((batch, throughput(batch)?))).collect();
        let best = all.iter().map(|&(_, value)| value).fold(0.0, f64::max);
        let expected = all.iter().find(|&&(_, value)| value >= 0.95 * best).map(|&(batch, _)| batch);
        prop_assert_eq!(profile.knee(extent), expected);
    }

    #[test]
    fn every_estimate_is_an_upper_one_and_every_row_is_served_early(truth in truth(), kind in kind()) {
        let axes = axes(kind);
        let mut profile = Profile::new(axes.clone(), Slack::CPU);
        let longest = axes.kind.at(first_batch(&axes, 512), 512);
        let mut count = 0;
        while let Some(probe) = profile.next_probe(Bytes::MAX) {
            let measured = truth.measure(probe.shape);
            prop_assert!(count == 0 || probe.bound >= measured.peak, "{:?} needs {}", probe, measured.peak);
            prop_assert!(count == 0 || probe.expected >= measured.time, "{:?} takes {}", probe, measured.time);
            profile.record(measured);
            count += 1;
            // 4, 8, 16, ... 512: eight probes, and any single row can be served.
            prop_assert_eq!(profile.predicted(longest).is_some(), count >= 8, "after {} probes", count);
        }
        prop_assert!(count <= 150, "{} probes are too many", count);
    }

    #[test]
    fn with_little_room_it_measures_little_and_goes_on_when_there_is_more(truth in truth(), part in 0f64..1.0) {
        let full = surveyed(axes(ShapeKind::Padded), &truth);
        let most = full.points.values().map(|point| point.peak).max().unwrap();
        let room = most.scale(part) + Slack::CPU.constant;
        let mut profile = Profile::new(axes(ShapeKind::Padded), Slack::CPU);
        while let Some(probe) = profile.next_probe(room) {
            prop_assert!(probe.bound <= room);
            profile.record(truth.measure(probe.shape));
        }
        survey(&mut profile, Bytes::MAX, |shape| truth.measure(shape));
        prop_assert_eq!(profile.state(), ProfileState::Complete);
        for shape in shapes(profile.axes()) {
            if let Some(predicted) = profile.predicted(shape) {
                prop_assert!(predicted >= truth.peak(ShapeKind::Padded, shape.position()));
            }
        }
    }

    #[test]
    fn announced_switches_are_respected(truth in truth(), below in 1u32..64, factor in 2u64..6) {
        let truth = Truth { switch: Some((below, factor)), ..truth };
        let mut axes = axes(ShapeKind::Padded);
        axes.batch.splits = vec![below];
        let profile = surveyed(axes.clone(), &truth);
        for shape in shapes(&axes) {
            let Some(predicted) = profile.predicted(shape) else { continue };
            prop_assert!(predicted >= truth.peak(ShapeKind::Padded, shape.position()), "{}", shape);
        }
        for extent in [4, 16, 128] {
            let Some(before) = profile.predicted(ShapeKind::Padded.at(below, extent)) else { continue };
            let peak = truth.peak(ShapeKind::Padded, (below, extent));
            prop_assert!(before <= peak.scale(1.02) + Slack::CPU.constant, "the lower side pays for the upper one");
        }
    }

    #[test]
    fn a_table_restores_the_profile(truth in truth(), kind in kind(), seed: u64, probes in 0usize..200) {
        let mut profile = Profile::new(axes(kind), Slack::CPU);
        for _ in 0..probes {
            let Some(probe) = profile.next_probe(Bytes::MAX) else { break };
            profile.record(noisy(truth.measure(probe.shape), seed));
        }
        let table = profile.table();
        let mut restored = Profile::from_table(&table, profile.axes(), Slack::CPU).unwrap();
        for shape in shapes(profile.axes()) {
            prop_assert_eq!(restored.predicted(shape), profile.predicted(shape), "{}", shape);
            prop_assert_eq!(restored.time(shape), profile.time(shape), "{}", shape);
        }
        prop_assert_eq!(&restored.table().lines, &table.lines);
        let state = profile.state();
        let again = survey(&mut restored, Bytes::MAX, |shape| noisy(truth.measure(shape), seed));
        if state == ProfileState::Complete {
            prop_assert_eq!(again.len(), 2, "two spot checks and nothing else: {:?}", again);
        }
        prop_assert_eq!(restored.state(), ProfileState::Complete);
    }
}
