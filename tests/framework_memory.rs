//! What a step on the framework's operations holds: the scores and their softmax, as the trace names them, and nothing
//! that depends on how much of a batch is padding. Run on the CPU; a CUDA device runs the same operations.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use plimsoll::config::{Dtype, ModelConfig, Source};
use plimsoll::device::cpu::CpuDevice;
use plimsoll::device::trace::{Holder, Trace};
use plimsoll::device::{Executor, Need, OnShortfall, Order, Ran, Report, Run, RunPurpose};
use plimsoll::memory::{Outcome, Readings};
use plimsoll::model::{Batch, Blueprint, DeviceForm, Kernels, ModelFiles, TokenRow};
use plimsoll::units::{Bytes, ModelId, StepId};

const MODEL: ModelId = ModelId::new(0);
const WIDTH: u64 = 192;
const HEADS: u64 = 3;

struct Bench {
    device: CpuDevice,
    reports: mpsc::Receiver<Report>,
}

impl Bench {
    /// The tiny embedder as a CUDA device would have it.
    fn new(dtype: Dtype) -> Bench {
        let config = ModelConfig { dtype, ..ModelConfig::new("tiny", Source::Embedded("tiny-embed".to_owned())) };
        let blueprint = Blueprint::new(&config, ModelFiles::embedded("tiny-embed").unwrap()).unwrap();
        let blueprint = blueprint.for_device(DeviceForm::Cuda).with_kernels(Kernels::Framework);
        let (out, reports) = mpsc::channel();
        let device = CpuDevice::start(Readings::Off, Instant::now(), move |report| drop(out.send(report))).unwrap();
        let bench = Bench { device, reports };
        let loader = move |device: &candle_core::Device| blueprint.load(device).map_err(Into::into);
        match bench.send(Order::Load { model: MODEL, ceiling: Bytes::MAX, loader: Box::new(loader) }) {
            Report::Loaded { result, .. } => drop(result.unwrap()),
            other => panic!("{other:?}"),
        }
        bench
    }

    fn send(&self, order: Order) -> Report {
        self.device.send(order).unwrap();
        self.reports.recv_timeout(Duration::from_secs(120)).unwrap()
    }

    fn trace(&self, lengths: &[u32]) -> Ran {
        let row = |length: &u32| Arc::new(TokenRow::new((0..*length).map(|at| 5 + at).collect(), Vec::new()));
        let batch = Batch::Tokens(lengths.iter().map(row).collect());
        let (step, evictable) = (StepId::new(0), Vec::new());
        let run = Run {
            step,
            model: MODEL,
            batch,
            need: Need::WHATEVER,
            purpose: RunPurpose::Trace,
            on_shortfall: OnShortfall::Ladder,
            evictable,
        };
        match self.send(Order::Run(run)) {
            Report::Ran(ran) if ran.observed.outcome == Outcome::Done => ran,
            other => panic!("{other:?}"),
        }
    }
}

fn find<'a>(trace: &'a Trace, operation: &str) -> Option<&'a Holder> {
    trace.holders.iter().find(|holder| holder.operation == operation)
}

/// In f32: the CPU's products in f16 take scratch of their own, which a card's do not.
#[test]
fn long_rows_hold_their_scores_and_little_else() {
    let bench = Bench::new(Dtype::F32);
    let (rows, length) = (4, 256);
    let trace = Trace::of(&bench.trace(&[length as u32; 4]).recording.expect("the CPU records"));
    let scores = 4 * rows * HEADS * length * length;
    for operation in ["scores", "softmax"] {
        let holder = find(&trace, operation).unwrap_or_else(|| panic!("{operation}: {:?}", trace.holders));
        assert!(holder.layer.starts_with("layer ") && holder.shape == "4 x 3 x 256 x 256", "{holder:?}");
        let over = holder.bytes.get().checked_sub(scores).expect("all scores");
        assert!(over < 4096, "{holder:?}: {scores} bytes of scores");
    }
    // Queries, keys and values by head; the hidden states; 8 values of the mask on both sides.
    let rest = 4 * rows * length * (3 * WIDTH + WIDTH + 2 * 8 * HEADS);
    let most = 2 * scores + rest + (128 << 10);
    assert!(trace.peak.get() <= most, "{} where {most} are needed: {:#?}", trace.peak, trace.holders);
}

/// The profile is measured without padding, and predicts for batches with any: they must cost the same.
#[test]
fn padding_changes_nothing() {
    let bench = Bench::new(Dtype::F16);
    let full = bench.trace(&[200; 5]).observed.peak;
    for lengths in [[200, 1, 1, 1, 1], [3, 200, 77, 199, 12]] {
        let padded = bench.trace(&lengths).observed.peak;
        assert!(full.get().abs_diff(padded.get()) < 16 << 10, "{lengths:?}: {padded} instead of {full}");
    }
}
