//! The ladder: shortfalls, from a trim to a refusal.

use std::sync::atomic::Ordering::Relaxed;

use super::*;
use plimsoll::device::drill::Drill;
use plimsoll::memory::{Outcome, Rungs};
use plimsoll::model::Fault;

#[test]
fn halving_cures_a_shortfall_and_keeps_the_rows_in_order() {
    let bench = Bench::new();
    let model = ModelId::new(820_001);
    bench.load(model, settings());
    // 13 rows of 64 KiB where 200 KiB fit: parts of 3 and 4 rows.
    bench.room.store(200 << 10, Relaxed);
    let ran = bench.run(serve(model, rows(13, 4), Bytes::kib(64) * 13));
    let answers: Vec<_> = ran.rows.into_iter().map(Result::unwrap).collect();
    assert_eq!(answers, (0..13).map(|row| expected(row, 4)).collect::<Vec<_>>());
    assert_eq!(ran.observed.outcome, Outcome::Done);
    assert!(ran.observed.rungs.halvings >= 3 && ran.observed.rungs.trims >= 1);
    assert_eq!(ran.observed.rungs.refusals, 0);
    // The peak is that of the largest part.
    assert!(ran.observed.peak >= Bytes::kib(64) && ran.observed.peak <= Bytes::kib(200) + Bytes::kib(8));
}

#[test]
fn a_row_that_fits_nowhere_is_refused_with_numbers() {
    let bench = Bench::new();
    let model = ModelId::new(820_002);
    bench.load(model, settings());
    bench.room.store(10, Relaxed);
    let ran = bench.run(serve(model, rows(2, 4), Bytes::kib(128)));
    let refusal = RowFailure::OutOfMemory(Shortfall { needed: Bytes::kib(64), available: Bytes::new(10) });
    assert_eq!(ran.rows, vec![Err(refusal); 2]);
    assert_eq!(ran.observed.outcome, Outcome::OutOfMemory);
    assert_eq!(ran.observed.rungs.refusals, 2);

    bench.room.store(u64::MAX, Relaxed);
    assert_eq!(bench.run(serve(model, rows(2, 4), Bytes::kib(128))).observed.rungs, Rungs::default());
}

#[test]
fn without_a_ladder_a_shortfall_is_the_whole_steps() {
    let bench = Bench::new();
    let model = ModelId::new(820_010);
    bench.load(model, settings());
    bench.room.store(200 << 10, Relaxed);
    let run = Run { on_shortfall: OnShortfall::Refuse, ..serve(model, rows(13, 4), Bytes::kib(64) * 13) };
    let ran = bench.run(run);
    let refused = |row: &Result<Vec<f32>, RowFailure>| matches!(row, Err(RowFailure::OutOfMemory(_)));
    assert_eq!((ran.rows.len(), ran.rows.iter().all(refused)), (13, true));
    assert_eq!(
        (ran.observed.outcome, ran.observed.rungs),
        (Outcome::OutOfMemory, Rungs { refusals: 1, ..Rungs::default() })
    );
}

#[test]
fn a_single_row_evicts_the_idle_models_it_may() {
    let bench = Bench::new();
    let (model, idle, kept) = (ModelId::new(820_003), ModelId::new(820_004), ModelId::new(820_005));
    for model in [model, idle, kept] {
        bench.load(model, settings());
    }
    bench.room.store(10, Relaxed);
    // The model itself and one that is not loaded are never victims.
    let evictable = vec![model, ModelId::new(820_006), idle];
    bench.thread.send(Order::Run(Run { evictable, ..serve(model, rows(1, 4), Bytes::kib(64)) })).unwrap();
    match bench.next() {
        Report::Evicted(gone) => assert!(gone.model == idle && gone.released >= Bytes::mib(8), "{gone:?}"),
        other => panic!("not evicted: {other:?}"),
    }
    match bench.next() {
        Report::Ran(ran) => {
            assert_eq!((ran.observed.rungs.evictions, ran.observed.rungs.refusals), (1, 1));
        }
        other => panic!("not run: {other:?}"),
    }
    bench.room.store(u64::MAX, Relaxed);
    assert_eq!(bench.run(serve(kept, rows(1, 1), Bytes::mib(1))).observed.outcome, Outcome::Done);
    assert_eq!(bench.run(serve(idle, rows(1, 1), Bytes::mib(1))).observed.outcome, Outcome::Faulted);
}

#[test]
fn a_measurement_that_is_refused_is_tried_again_as_it_is_and_then_ends() {
    let bench = Bench::new();
    let model = ModelId::new(820_007);
    bench.load(model, settings());
    let run = |refusals| {
        bench.room.store(10, Relaxed);
        bench.refusals.store(refusals, Relaxed);
        bench.run(Run { purpose: RunPurpose::Measure, ..serve(model, rows(4, 4), Bytes::kib(256)) }).observed
    };
    let trims = |trims| Rungs { trims, ..Rungs::default() };
    assert_eq!((run(3).outcome, run(3).rungs), (Outcome::Done, trims(3)));
    assert_eq!((run(4).outcome, run(4).rungs), (Outcome::OutOfMemory, trims(3)));
}

#[test]
fn a_measurement_above_its_ceiling_ends_at_once() {
    let bench = Bench::new();
    let model = ModelId::new(820_009);
    bench.load(model, settings());
    bench.room.store(10, Relaxed);
    let ceiling = Bytes::kib(200);
    let mut run = Run { purpose: RunPurpose::Measure, ..serve(model, rows(4, 4), Bytes::kib(256)) };
    run.need.ceiling = ceiling;
    let seen = bench.run(run).observed;
    assert_eq!((seen.outcome, seen.rungs), (Outcome::OutOfMemory, Rungs::default()));
}

#[test]
fn a_fault_in_a_part_names_the_row_of_the_step() {
    let bench = Bench::new();
    let model = ModelId::new(820_008);
    // A shortfall never reaches the model, so its second call is the second half.
    bench.load(model, DrillSettings { drills: [(1, Drill::NotANumber { row: 1 })].into(), ..settings() });
    bench.room.store(300 << 10, Relaxed);
    let ran = bench.run(serve(model, rows(8, 4), Bytes::kib(64) * 8));
    let fault = RowFailure::Fault(Fault::NotFinite { row: 5 });
    let failed: Vec<_> = (0..8).filter(|row| ran.rows[*row].is_err()).collect();
    assert_eq!((failed, &ran.rows[5]), (vec![5], &Err(fault)));
    assert_eq!(ran.observed.rungs, Rungs { trims: 1, halvings: 1, ..Rungs::default() });
}
