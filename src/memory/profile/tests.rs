//! A profile in scenes: the order of its survey, what does not fit, what goes stale, what misses, what is restored.

use super::*;
use crate::memory::{Axis, ShapeKind};

fn axes() -> Axes {
    let axis = |min, max| Axis { min, max, splits: vec![] };
    Axes {
        kind: ShapeKind::Padded,
        batch: axis(1, 8),
        extent: axis(16, 64),
        step_tokens_max: 512,
        measured_tokens_min: 64,
    }
}

/// Steps of up to 32,768 tokens in rows of up to 512.
fn ragged_axes(measured_tokens_min: u32) -> Axes {
    let axis = |max| Axis { min: 1, max, splits: vec![] };
    let (batch, extent) = (axis(32_768), axis(512));
    Axes { kind: ShapeKind::Ragged, batch, extent, step_tokens_max: 32_768, measured_tokens_min }
}

fn shape(batch: u32, extent: u32) -> Shape {
    ShapeKind::Padded.at(batch, extent)
}

/// 100 KiB a token, and a time in which only the largest steps are saturated.
fn measure(shape: Shape) -> Measured {
    let tokens = shape.tokens();
    Measured { shape, peak: Bytes::kib(100) * tokens, time: Micros::new(1_000 + 10 * tokens) }
}

/// Runs every probe that fits; returns the shapes in order.
fn survey(profile: &mut Profile, fits: Bytes, measure: impl Fn(Shape) -> Measured) -> Vec<(u32, u32)> {
    let mut shapes = Vec::new();
    while let Some(probe) = profile.next_probe(fits) {
        assert_eq!(profile.next_probe(fits), Some(probe), "the same one until it is answered");
        shapes.push(probe.shape.position());
        profile.record(measure(probe.shape));
        assert!(shapes.len() < 200, "the survey does not end");
    }
    shapes
}

fn complete() -> Profile {
    let mut profile = Profile::new(axes(), Slack::CPU);
    survey(&mut profile, Bytes::MAX, measure);
    assert_eq!(profile.state(), ProfileState::Complete);
    profile
}

#[test]
fn the_survey_is_cheap_and_useful_first() {
    let mut profile = Profile::new(axes(), Slack::CPU);
    assert_eq!(profile.state(), ProfileState::Empty);
    let first = profile.next_probe(Bytes::MAX).unwrap();
    assert_eq!((first.shape, first.expected), (shape(1, 16), Micros::ZERO));
    assert_eq!(first.bound, Slack::CPU.constant, "nothing is known yet");
    let shapes = survey(&mut profile, Bytes::MAX, measure);
    // All rows, then the extents between, then batches by tokens: 2 x 32 before 4 x 23.
    let first: Vec<(u32, u32)> = shapes[..9].to_vec();
    assert_eq!(first, [(1, 16), (1, 32), (1, 64), (1, 23), (1, 45), (2, 16), (2, 23), (4, 16), (2, 32)]);
    assert_eq!(shapes.iter().filter(|&&place| place == (8, 64)).count(), 1);
    // The rest are held-out points, outside the grid.
    let held_out = profile.table().lines.iter().filter(|line| line.role == Role::HeldOut).count();
    assert_eq!(shapes.len(), 5 * 4 + held_out);
    assert_eq!(held_out, 4, "one in each cell");
}

#[test]
fn batches_end_where_a_doubling_gains_nothing() {
    let mut profile = Profile::new(axes(), Slack::CPU);
    // Saturated from the start: only as many tokens as the longest row has, and one doubling to see it.
    let saturated = |shape: Shape| Measured { time: Micros::new(100 * shape.tokens()), ..measure(shape) };
    survey(&mut profile, Bytes::MAX, saturated);
    let reach = |extent| profile.largest_batch(extent, Bytes::MAX, Micros::MAX).unwrap();
    assert_eq!([16, 23, 32, 45, 64].map(|extent| reach(extent).batch), [4, 4, 2, 2, 2]);
    assert_eq!(reach(64).bound, LargestBound::Envelope);
    assert_eq!(profile.knee(64), Some(1));
}

#[test]
fn batches_end_where_a_step_would_hold_up_the_others() {
    let reach = |step: u64| {
        let mut profile = Profile::new(axes(), Slack::CPU);
        // Each doubling pays, and no step takes less than `step`.
        let slow = |shape: Shape| Measured { time: Micros::millis(step + shape.tokens() / 64), ..measure(shape) };
        survey(&mut profile, Bytes::MAX, slow);
        [16, 64].map(|extent| profile.largest_batch(extent, Bytes::MAX, Micros::MAX).unwrap().batch)
    };
    assert_eq!(reach(60), [8, 8]);
    // Two rows of 64 would be likely to take 501 ms; as many tokens as the longest row has are measured all the same.
    assert_eq!(reach(250), [4, 1]);
}

#[test]
fn a_probe_is_the_worst_peak_and_the_best_time_of_its_runs_but_the_first() {
    let mut runs = ProbeRuns::default();
    let mut add = |extent, peak, time| runs.add(shape(1, extent), Bytes::mib(peak), Micros::millis(time));
    assert_eq!(add(16, 90, 1), None);
    assert_eq!(add(16, 10, 7), None);
    // Another shape starts over.
    assert_eq!(add(32, 80, 2), None);
    assert_eq!(add(32, 11, 9), None);
    let measured = Measured { shape: shape(1, 32), peak: Bytes::mib(12), time: Micros::millis(8) };
    assert_eq!(add(32, 12, 8), Some(measured));
    assert_eq!(add(32, 1, 1), None);
    assert_eq!(add(32, 2, 3), None);
    assert_eq!(add(32, 1, 4).map(|measured| measured.peak), Some(Bytes::mib(2)));
}

#[test]
fn what_the_configuration_asks_for_is_measured_whatever_it_gains() {
    let reach = |measured_tokens_min| {
        let mut profile = Profile::new(Axes { measured_tokens_min, ..axes() }, Slack::CPU);
        let saturated = |shape: Shape| Measured { time: Micros::new(100 * shape.tokens()), ..measure(shape) };
        survey(&mut profile, Bytes::MAX, saturated);
        assert_eq!(profile.knee(64), Some(1), "more is measured, not wanted");
        [16, 64].map(|extent| profile.largest_batch(extent, Bytes::MAX, Micros::MAX).unwrap().batch)
    };
    assert_eq!(reach(64), [4, 2]);
    assert_eq!(reach(256), [8, 4]);
    assert_eq!(reach(512), [8, 8]);
}

#[test]
fn shapes_outside_have_no_prediction() {
    let profile = complete();
    let check = |shape, known| assert_eq!(profile.predicted(shape).is_some(), known, "{shape}");
    check(shape(8, 64), true);
    check(shape(1, 1), true); // shorter than the shortest: costs no more
    check(shape(9, 16), false);
    check(shape(1, 65), false);
    check(shape(0, 16), false);
    check(shape(1, 0), false);
    check(Shape::Ragged { tokens: 16, longest: 16 }, false);
    assert_eq!(profile.largest_batch(65, Bytes::MAX, Micros::MAX), None);
    assert_eq!(profile.knee(65), None);
    assert_eq!(Profile::new(axes(), Slack::CPU).predicted(shape(1, 16)), None);
}

#[test]
fn a_finer_column_takes_nothing_away_while_it_is_short() {
    let mut profile = Profile::new(axes(), Slack::CPU);
    for (batch, extent) in [(1, 16), (2, 16), (4, 16), (1, 32), (2, 32), (4, 32), (8, 32), (1, 64)] {
        profile.record(measure(shape(batch, extent)));
    }
    let coarse = profile.predicted(shape(4, 20)).unwrap();
    // 23 lies between 16, which goes to 4, and 32, which goes to 8: it is used once it goes to 4.
    for batch in [1, 2] {
        profile.record(measure(shape(batch, 23)));
        assert_eq!(profile.predicted(shape(4, 20)), Some(coarse), "23 goes to {batch}");
        assert_eq!(profile.largest_batch(20, Bytes::MAX, Micros::MAX).unwrap().batch, 8);
    }
    profile.record(Measured { peak: Bytes::kib(100) * (4 * 23 - 10), ..measure(shape(4, 23)) });
    assert!(profile.predicted(shape(4, 20)).unwrap() < coarse, "23 goes to 4");
}

#[test]
fn predictions_have_the_slack_on_them() {
    let profile = complete();
    let predicted = profile.predicted(shape(8, 64)).unwrap();
    assert_eq!(predicted, (Bytes::kib(100) * 512).scale(1.02) + Bytes::kib(64));
    assert_eq!(profile.time(shape(8, 64)), Some(Micros::new(6_120)));
}

#[test]
fn the_largest_batch_names_its_bound() {
    let profile = complete();
    let check = |fits, within, batch, bound| {
        let found = profile.largest_batch(64, fits, Micros::new(within));
        assert_eq!(found, Some(Largest { batch, bound }), "{fits} in {within} us");
    };
    let four = profile.predicted(shape(4, 64)).unwrap();
    check(Bytes::MAX, u64::MAX, 8, LargestBound::Envelope);
    check(four, u64::MAX, 4, LargestBound::Memory);
    check(four.saturating_sub(Bytes::new(1)), u64::MAX, 3, LargestBound::Memory);
    check(Bytes::MAX, 3_560, 4, LargestBound::Latency);
    check(Bytes::MAX, 3_559, 3, LargestBound::Latency);
    check(four, 3_560, 4, LargestBound::Memory); // both: the memory is named
    check(Bytes::ZERO, u64::MAX, 0, LargestBound::Memory);
    check(Bytes::MAX, 0, 0, LargestBound::Latency);
}

#[test]
fn a_probe_that_did_not_fit_waits_for_more_room() {
    let mut profile = Profile::new(axes(), Slack::CPU);
    profile.record(measure(shape(1, 16)));
    let probe = profile.next_probe(Bytes::mib(10)).unwrap();
    assert_eq!(probe.shape, shape(1, 32));
    // Its estimate fitted, the step did not.
    profile.defer_probe(probe.shape, Bytes::mib(10));
    assert_eq!(profile.table().unmeasured, [shape(1, 32)]);
    assert_ne!(profile.next_probe(Bytes::mib(10)).map(|probe| probe.shape), Some(shape(1, 32)));
    assert_eq!(profile.next_probe(Bytes::mib(11)).map(|probe| probe.shape), Some(shape(1, 32)));
    assert_eq!(profile.state(), ProfileState::Measuring);
    survey(&mut profile, Bytes::MAX, measure);
    assert_eq!((profile.state(), profile.table().unmeasured), (ProfileState::Complete, vec![]));
}

#[test]
fn a_probe_that_did_not_fit_is_tried_again_in_time() {
    let mut profile = Profile::new(axes(), Slack::CPU);
    profile.record(measure(shape(1, 16)));
    profile.defer_probe(shape(1, 32), Bytes::mib(10));
    profile.defer_probe(shape(1, 64), Bytes::MAX);
    profile.retry_deferred();
    assert_eq!(profile.next_probe(Bytes::mib(10)).map(|probe| probe.shape), Some(shape(1, 32)));
    let shapes = survey(&mut profile, Bytes::mib(10), measure);
    assert!(shapes.contains(&(1, 32)) && !shapes.contains(&(1, 64)), "{shapes:?}");
}

#[test]
fn a_probe_that_failed_otherwise_is_never_asked_for_again() {
    let mut profile = Profile::new(axes(), Slack::CPU);
    profile.record(measure(shape(1, 16)));
    profile.record(measure(shape(1, 32)));
    profile.defer_probe(shape(1, 64), Bytes::MAX);
    let shapes = survey(&mut profile, Bytes::MAX, measure);
    assert!(!shapes.contains(&(1, 64)) && shapes.contains(&(8, 32)), "{shapes:?}");
    assert_eq!(profile.predicted(shape(1, 64)), None);
    assert_eq!(profile.state(), ProfileState::Complete);
}

#[test]
fn too_little_room_for_anything_asks_for_nothing() {
    let mut profile = Profile::new(axes(), Slack::CPU);
    assert_eq!(profile.next_probe(Bytes::kib(63)), None);
    profile.record(measure(shape(1, 16)));
    assert_eq!(profile.next_probe(Bytes::mib(1)), None);
}

#[test]
fn results_of_one_shape_are_kept_at_their_worst_peak_and_best_time() {
    let mut profile = Profile::new(axes(), Slack::CPU);
    let result = |peak, time| Measured { shape: shape(1, 16), peak: Bytes::mib(peak), time: Micros::millis(time) };
    for measured in [result(10, 5), result(12, 7), result(11, 4)] {
        profile.record(measured);
    }
    let line = profile.table().lines[0];
    assert_eq!((line.peak, line.time), (Bytes::mib(12), Micros::millis(4)));
    // Not a place of the grid, and nobody asked.
    profile.record(measure(shape(3, 17)));
    profile.record(Measured { shape: Shape::Ragged { tokens: 1, longest: 16 }, ..measure(shape(1, 16)) });
    assert_eq!(profile.table().lines.len(), 1);
}

#[test]
fn a_stale_profile_serves_until_all_of_it_is_measured_again() {
    let mut profile = complete();
    let before = profile.predicted(shape(8, 64));
    profile.mark_stale();
    assert_eq!((profile.state(), profile.predicted(shape(8, 64))), (ProfileState::Stale, before));
    // The model needs half of what it did: the old peaks are replaced, not kept as the larger ones.
    let half = |shape: Shape| Measured { peak: measure(shape).peak.scale(0.5), ..measure(shape) };
    let shapes = survey(&mut profile, Bytes::MAX, half);
    assert_eq!(shapes.len(), 24);
    assert_eq!(profile.state(), ProfileState::Complete);
    assert_eq!(profile.predicted(shape(8, 64)), Some((Bytes::kib(50) * 512).scale(1.02) + Bytes::kib(64)));

    profile.mark_stale();
    profile.record(half(shape(1, 16)));
    profile.mark_stale();
    assert_ne!(profile.next_probe(Bytes::MAX).unwrap().shape, shape(1, 16), "it goes on where it was");

    let mut empty = Profile::new(axes(), Slack::CPU);
    empty.mark_stale();
    assert_eq!(empty.state(), ProfileState::Empty);
}

/// A cost that the grid does not expect: beyond 54 tokens another path needs three times as much.
fn switching(shape: Shape) -> Measured {
    let (_, extent) = shape.position();
    Measured { peak: measure(shape).peak * if extent >= 54 { 3 } else { 1 }, ..measure(shape) }
}

#[test]
fn a_cell_whose_middle_misses_is_split() {
    let mut profile = Profile::new(axes(), Slack::CPU);
    let shapes = survey(&mut profile, Bytes::MAX, switching);
    // The middle of 45 and 64, for one: three times 54 tokens, where the line between has about twice.
    assert!(shapes.contains(&(1, 54)) && shapes.contains(&(8, 54)), "{shapes:?}");
    for batch in 1..=8 {
        let (predicted, peak) = (profile.predicted(shape(batch, 54)).unwrap(), switching(shape(batch, 54)).peak);
        assert!(predicted >= peak && predicted <= peak.scale(1.03) + Bytes::kib(64), "{batch}: {predicted} for {peak}");
    }
    assert_eq!(profile.state(), ProfileState::Complete);
    // A split survives being stored.
    let restored = Profile::from_table(&profile.table(), &axes(), Slack::CPU).unwrap();
    assert_eq!(restored.predicted(shape(8, 54)), profile.predicted(shape(8, 54)));
    // And the number of splits is bounded, whatever the cost looks like.
    let mut wild = Profile::new(axes(), Slack::CPU);
    let factor = |(batch, extent): (u32, u32)| u64::from((batch * 7 + extent * 13) % 5 + 1);
    survey(&mut wild, Bytes::MAX, |shape| Measured {
        peak: measure(shape).peak * factor(shape.position()),
        ..measure(shape)
    });
    assert!(wild.columns.len() <= 5 + 4, "{} columns", wild.columns.len());
}

#[test]
fn a_model_of_images_has_a_single_column() {
    let axis = |min, max| Axis { min, max, splits: vec![] };
    let axes = Axes {
        kind: ShapeKind::Padded,
        batch: axis(1, 32),
        extent: axis(1, 1),
        step_tokens_max: 32,
        measured_tokens_min: 1,
    };
    // Beyond 20 images another path is taken, which a line from 16 to 32 does not show.
    let image = |shape: Shape| {
        let (batch, _) = shape.position();
        let peak = Bytes::mib(10) * u64::from(batch) * if batch > 20 { 2 } else { 1 };
        Measured { shape, peak, time: Micros::new(5_000 + 1_000 * u64::from(batch)) }
    };
    let mut profile = Profile::new(axes, Slack::CPU);
    let shapes = survey(&mut profile, Bytes::MAX, image);
    assert_eq!(shapes, [1, 2, 4, 8, 16, 32, 23].map(|batch| (batch, 1)));
    let predicted = profile.predicted(shape(23, 1)).unwrap();
    assert!(predicted >= Bytes::mib(460) && predicted <= Bytes::mib(470), "{predicted}");
    assert_eq!(profile.state(), ProfileState::Complete);
}

#[test]
fn a_restored_profile_serves_at_once_and_is_checked_at_two_points() {
    let table = complete().table();
    let restored = || Profile::from_table(&table, &axes(), Slack::CPU).unwrap();
    let mut same = restored();
    assert_eq!(same.predicted(shape(8, 64)), complete().predicted(shape(8, 64)));
    assert_eq!(same.state(), ProfileState::Measuring);
    assert_eq!(survey(&mut same, Bytes::MAX, measure), [(1, 16), (1, 32)]);
    assert_eq!(same.state(), ProfileState::Complete);

    let times = |factor| move |shape| Measured { peak: measure(shape).peak.scale(factor), ..measure(shape) };
    let mut other = restored();
    assert_eq!(survey(&mut other, Bytes::MAX, times(1.5)).len(), 24, "the spot check is the first of the new points");
    assert!(other.predicted(shape(8, 64)) > complete().predicted(shape(8, 64)));
    // A model that needs much less has slack that others could use.
    assert_eq!(survey(&mut restored(), Bytes::MAX, times(0.8)).len(), 24);
    assert_eq!(survey(&mut restored(), Bytes::MAX, times(0.9)).len(), 2, "within the accepted 15 %");
}

#[test]
fn a_table_of_something_else_is_refused() {
    let table = complete().table();
    let refused = |change: &dyn Fn(&mut Table)| {
        let mut table = table.clone();
        change(&mut table);
        Profile::from_table(&table, &axes(), Slack::CPU).err()
    };
    assert_eq!(refused(&|_| {}), None);
    assert_eq!(refused(&|table| table.axes.extent.max = 128), Some(TableError::OtherAxes));
    for bad in [shape(0, 16), shape(9, 16), shape(1, 15), shape(1, 65), Shape::Ragged { tokens: 16, longest: 16 }] {
        assert_eq!(refused(&|table| table.lines[0].shape = bad), Some(TableError::BadShape(bad)));
    }
    let (first, second) = (table.lines[0].shape, table.lines[1].shape);
    assert_eq!(refused(&|table| table.lines[0].shape = second), Some(TableError::Twice(second)));
    assert_eq!(refused(&|table| table.lines[0].peak = Bytes::ZERO), Some(TableError::NoMeasurement(first)));
    assert_eq!(refused(&|table| table.lines[0].time = Micros::ZERO), Some(TableError::NoMeasurement(first)));
    let held_out = table.lines.iter().position(|line| line.role == Role::HeldOut).unwrap();
    let twice = table.lines[held_out].shape;
    let check = refused(&|table: &mut Table| table.lines.push(table.lines[held_out]));
    assert_eq!(check, Some(TableError::Twice(twice)));
}

#[test]
fn the_fastest_batch_is_not_the_largest_where_larger_ones_are_slower() {
    // In batches of 8 a row takes a tenth longer than in batches of 4.
    let time = |shape: Shape| {
        let (batch, extent) = shape.position();
        let each = if batch > 4 { 11 } else { 10 };
        Micros::new(u64::from(batch * extent) * each)
    };
    let mut profile = Profile::new(axes(), Slack::CPU);
    assert_eq!(profile.fastest(16), None);
    survey(&mut profile, Bytes::MAX, |shape| Measured { time: time(shape) + Micros::new(400), ..measure(shape) });
    assert_eq!((profile.fastest(64), profile.fastest(50)), (Some(4), Some(4)));
    assert_eq!(profile.fastest(10_000), None);
}

#[test]
fn a_ragged_profile_has_its_knee_where_throughput_flattens() {
    let mut profile = Profile::new(ragged_axes(512), Slack::CUDA);
    let measure = |shape: Shape| {
        let (tokens, longest) = shape.position();
        // A row costs as much as 20 tokens.
        let time = Micros::new(u64::from(1_000 + tokens + 20 * tokens / longest));
        Measured { shape, peak: Bytes::kib(12) * u64::from(tokens), time }
    };
    while let Some(probe) = profile.next_probe(Bytes::MAX) {
        profile.record(measure(probe.shape));
    }
    // tokens / (1,000 + tokens) is 95 % of what 16,384 have from 8,334 on, and 99 % from 13,770 on.
    let restored = Profile::from_table(&profile.table(), profile.axes(), Slack::CUDA).unwrap();
    for profile in [profile, restored] {
        let (knee, fastest) = (profile.knee(512).unwrap(), profile.fastest(512).unwrap());
        assert!((8_000..17_000).contains(&knee) && knee <= fastest && fastest >= 13_770, "{knee} {fastest}");
    }
}

#[test]
fn a_ragged_profile_has_one_fastest_batch_whatever_its_points_are_off_by() {
    let mut profile = Profile::new(ragged_axes(32_768), Slack::CUDA);
    // Beyond 8,192 tokens a token takes a tenth longer. Each measurement is off by up to 3 %, and short rows cost more.
    let time = |(tokens, longest): (u32, u32)| {
        let each = if tokens > 8_192 { 1.1 } else { 1.0 } * (1.0 + 1.0 / f64::from(longest));
        let off = 1.0 + 0.03 * f64::from(tokens * 31 + longest * 17).sin();
        Micros::new(((500.0 + f64::from(tokens) * each) * off) as u64)
    };
    while let Some(probe) = profile.next_probe(Bytes::MAX) {
        let peak = Bytes::kib(12) * probe.shape.tokens();
        profile.record(Measured { shape: probe.shape, peak, time: time(probe.shape.position()) });
    }
    let fastest: Vec<u32> = [1, 7, 64, 200, 512].iter().filter_map(|&extent| profile.fastest(extent)).collect();
    assert_eq!(fastest.len(), 5);
    assert!(fastest.iter().all(|batch| *batch == fastest[0] && (5_000..=8_192).contains(batch)), "{fastest:?}");
}

#[test]
fn the_fastest_ragged_batch_is_that_of_long_rows() {
    let mut profile = Profile::new(ragged_axes(32_768), Slack::CUDA);
    // A step of long rows has 0.5 ms to it whatever its size; one of short rows is best small: many rows take longer each.
    let time = |(tokens, longest): (u32, u32)| {
        let (tokens, rows) = (f64::from(tokens), f64::from(tokens) / f64::from(longest));
        let of_rows = if longest < 64 { rows * rows / 50.0 } else { 0.0 };
        Micros::new((500.0 + tokens + of_rows) as u64)
    };
    while let Some(probe) = profile.next_probe(Bytes::MAX) {
        let peak = Bytes::kib(12) * probe.shape.tokens();
        profile.record(Measured { shape: probe.shape, peak, time: time(probe.shape.position()) });
    }
    let fastest = profile.fastest(512).unwrap();
    // Were all columns counted alike, it would be 1,408.
    assert!(fastest >= 8_192, "{fastest}");
}
