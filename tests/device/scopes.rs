//! What is charged to whom.

use super::*;
use plimsoll::memory::{Outcome, Rungs};

#[test]
fn a_model_is_charged_its_weights_and_gives_them_back() {
    let bench = Bench::new();
    let model = ModelId::new(800_001);
    let loaded = bench.load(model, settings());
    // The tensor and a few hundred bytes of boxes around it.
    let beyond = loaded.resident.saturating_sub(Bytes::mib(8));
    assert!(loaded.resident >= Bytes::mib(8) && beyond < Bytes::kib(4), "{}", loaded.resident);
    assert!(loaded.peak >= loaded.resident);
    let gone = bench.unload(model);
    assert_eq!((gone.released, gone.left), (loaded.resident, Bytes::ZERO));
    assert!(gone.free.is_some());
    assert_eq!(bench.unload(model).released, Bytes::ZERO, "it is gone already");
}

#[test]
fn the_peak_of_a_step_is_what_it_held_at_once() {
    let bench = Bench::new();
    let model = ModelId::new(800_002);
    bench.load(model, settings());
    for (count, length) in [(1, 1), (4, 32), (8, 64), (1, 512)] {
        let workspace = Bytes::kib(16) * (u64::from(count) * length as u64);
        let ran = bench.run(serve(model, rows(count, length), workspace + Bytes::kib(64)));
        let beyond = ran.observed.peak.saturating_sub(workspace);
        assert!(ran.observed.peak >= workspace && beyond < Bytes::kib(8), "{count} x {length}: {}", ran.observed.peak);
        assert_eq!((ran.observed.outcome, ran.observed.rungs), (Outcome::Done, Rungs::default()));
        let answers: Vec<_> = ran.rows.into_iter().map(Result::unwrap).collect();
        assert_eq!(answers, (0..count).map(|row| expected(row, length)).collect::<Vec<_>>());
    }
    let counters = bench.statistics.counters()[&model];
    assert_eq!((counters.steps, counters.overruns), (4, 0));
    assert_eq!(counters.blocks_allocated, counters.blocks_freed, "a step leaves nothing behind");
}

#[test]
fn the_results_of_a_step_are_not_the_model_s_memory() {
    let bench = Bench::new();
    let model = ModelId::new(800_003);
    let loaded = bench.load(model, settings());
    let ran = bench.run(serve(model, rows(64, 4), Bytes::mib(8)));
    assert_eq!(ran.resident, loaded.resident, "the answers are alive here and belong to the server");
    drop(ran);
}

#[test]
fn what_threads_that_compute_allocate_is_the_step_s() {
    // 2 MiB on every thread of rayon's pool, held until all have theirs.
    struct Parallel;
    impl Model for Parallel {
        fn axes(&self) -> plimsoll::memory::Axes {
            DrillModel::new(settings(), &candle_core::Device::Cpu).unwrap().axes()
        }
        fn step(&mut self, batch: &Batch) -> Result<plimsoll::model::Output, plimsoll::model::Fault> {
            let held = rayon::broadcast(|_| vec![1u8; 2 << 20]);
            Ok(plimsoll::model::Output::Vectors(vec![vec![held.len() as f32]; batch.rows()]))
        }
    }
    let bench = Bench::new();
    let model = ModelId::new(800_004);
    let loader = |_: &candle_core::Device| Ok(Box::new(Parallel) as Box<dyn Model>);
    bench.send(Order::Load { model, ceiling: Bytes::MAX, loader: Box::new(loader) });
    let ran = bench.run(serve(model, rows(1, 1), Bytes::mib(512)));
    let threads = *ran.rows[0].as_ref().unwrap().first().unwrap() as u64;
    assert!(ran.observed.peak >= Bytes::mib(2) * threads, "{} with {threads} threads", ran.observed.peak);
}

#[test]
fn what_outlives_its_step_is_library_memory_of_its_model() {
    // Like matrices that are packed at their first use: made in the first step, kept from then on.
    struct Packs(Option<Vec<u8>>);
    impl Model for Packs {
        fn axes(&self) -> plimsoll::memory::Axes {
            DrillModel::new(settings(), &candle_core::Device::Cpu).unwrap().axes()
        }
        fn step(&mut self, batch: &Batch) -> Result<plimsoll::model::Output, plimsoll::model::Fault> {
            self.0.get_or_insert_with(|| vec![1; 3 << 20]);
            Ok(plimsoll::model::Output::Vectors(vec![vec![0.0]; batch.rows()]))
        }
    }
    let bench = Bench::new();
    let model = ModelId::new(800_005);
    let loader = |_: &candle_core::Device| Ok(Box::new(Packs(None)) as Box<dyn Model>);
    bench.send(Order::Load { model, ceiling: Bytes::MAX, loader: Box::new(loader) });
    let first = bench.run(serve(model, rows(1, 1), Bytes::mib(8)));
    assert!(first.observed.peak >= Bytes::mib(3));
    assert!(first.resident >= Bytes::mib(3), "it is resident from now on");
    let second = bench.run(serve(model, rows(1, 1), Bytes::mib(8)));
    assert!(second.observed.peak < Bytes::kib(64), "and not of the next step: {}", second.observed.peak);
    assert_eq!(second.resident, first.resident);
    let gone = bench.unload(model);
    assert!(gone.released >= Bytes::mib(3) && gone.left == Bytes::ZERO, "{gone:?}");
}

#[test]
fn measuring_throws_the_results_away() {
    let bench = Bench::new();
    let model = ModelId::new(800_006);
    bench.load(model, settings());
    let purpose = RunPurpose::Measure;
    let ran = bench.run(Run { purpose, ..serve(model, rows(4, 32), Bytes::mib(4)) });
    assert!(ran.rows.is_empty());
    assert!(ran.observed.peak >= Bytes::mib(2) && ran.observed.peak < Bytes::mib(2) + Bytes::kib(8));
    assert_eq!(bench.statistics.counters()[&model].steps, 1);
}
