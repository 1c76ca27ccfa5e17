//! A step that is run for its trace says which of its labels holds what.

use std::hint::black_box;

use super::*;
use plimsoll::device::trace::Trace;
use plimsoll::memory::{Axes, Outcome};
use plimsoll::model::{Fault, Output};
use plimsoll::ops::label::{layer, operation};

const MIB: usize = 1 << 20;

/// Memory that no compiler does away with.
fn block(mebibytes: usize) -> Vec<u8> {
    black_box(vec![1; mebibytes * MIB])
}

/// Holds 1 MiB from beginning to end, 2 MiB of an operation, 3 MiB of its layer; before that 5 MiB that are gone.
struct Labelled;

impl Model for Labelled {
    fn axes(&self) -> Axes {
        DrillModel::new(settings(), &candle_core::Device::Cpu).unwrap().axes()
    }

    fn step(&mut self, batch: &Batch) -> Result<Output, Fault> {
        let all = block(1);
        let sum = layer("layer", Some(0), || operation("early", &[5], || block(5).len()));
        let held = layer("layer", Some(1), || {
            let scores = operation("scores", &[2, MIB], || block(2));
            (scores, block(3))
        });
        // What threads allocate that compute for the step belongs to the same operation.
        let threads = layer("layer", Some(2), || operation("threads", &[], || rayon::broadcast(|_| block(1))));
        let sum = all.len() + held.0.len() + held.1.len() + sum + threads.len();
        Ok(Output::Vectors(vec![vec![sum as f32]; batch.rows()]))
    }
}

fn traced(bench: &Bench, model: ModelId) -> Ran {
    let loader = |_: &candle_core::Device| Ok(Box::new(Labelled) as Box<dyn Model>);
    bench.send(Order::Load { model, ceiling: Bytes::MAX, loader: Box::new(loader) });
    bench.run(Run { purpose: RunPurpose::Trace, ..serve(model, rows(1, 1), Bytes::mib(64)) })
}

#[test]
fn the_peak_is_told_by_label() {
    let bench = Bench::new();
    let ran = traced(&bench, ModelId::new(800_101));
    assert_eq!(ran.observed.outcome, Outcome::Done);
    let trace = Trace::of(&ran.recording.expect("the CPU records"));
    let all: Bytes = trace.holders.iter().map(|holder| holder.bytes).sum();
    assert_eq!(all, trace.peak, "the table sums up to the peak");
    // Threads may be recorded in another order than they are counted in.
    let off = trace.peak.get().abs_diff(ran.observed.peak.get());
    assert!(off < 64 << 10, "{} where {} were measured", trace.peak, ran.observed.peak);
    let of = |layer: &str, operation: &str| {
        let found =
            trace.holders.iter().find(|holder| (holder.layer.as_str(), &*holder.operation) == (layer, operation));
        found.map(|holder| (holder.bytes, holder.shape.as_str()))
    };
    let (scores, shape) = of("layer 1", "scores").expect("alive at the peak");
    assert!(scores >= Bytes::mib(2) && scores < Bytes::mib(2) + Bytes::kib(4), "{scores}");
    assert_eq!(shape, format!("2 x {MIB}"));
    assert!(of("layer 1", "(other)").expect("alive at the peak").0 >= Bytes::mib(3));
    assert!(of("(outside)", "(other)").expect("alive at the peak").0 >= Bytes::mib(1));
    assert!(of("layer 2", "threads").expect("alive at the peak").0 >= Bytes::mib(1), "of the compute threads");
    assert_eq!(of("layer 0", "early"), None, "it was gone by then");
    assert!(trace.timeline.iter().any(|moment| moment.live >= Bytes::mib(6)), "but it is in the timeline");
    assert_eq!(trace.timeline.iter().map(|moment| moment.live).max(), Some(trace.peak));
}

#[test]
fn other_steps_are_not_recorded() {
    let bench = Bench::new();
    let model = ModelId::new(800_102);
    assert!(traced(&bench, model).recording.is_some());
    assert!(bench.run(serve(model, rows(1, 1), Bytes::mib(64))).recording.is_none());
    let again = bench.run(Run { purpose: RunPurpose::Trace, ..serve(model, rows(1, 1), Bytes::mib(64)) });
    assert!(again.recording.expect("the CPU records").blocks() > 0);
}

#[test]
fn a_traced_step_that_fails_has_no_trace() {
    let bench = Bench::new();
    let model = ModelId::new(800_103);
    let drills = [(0, plimsoll::device::drill::Drill::Panic)].into();
    bench.load(model, DrillSettings { drills, ..settings() });
    let ran = bench.run(Run { purpose: RunPurpose::Trace, ..serve(model, rows(1, 1), Bytes::mib(64)) });
    assert_eq!((ran.observed.outcome, ran.recording), (Outcome::Faulted, None));
}
