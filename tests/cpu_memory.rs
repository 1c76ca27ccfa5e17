//! The CPU device against the kernel's own count: what the process really holds stays within the weights and the
//! ceiling of the step, and comes back after unloading. One test in a process of its own, since the count is the
//! process's.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{Device, Module, Result, Tensor};
use candle_nn::ops::softmax_last_dim;
use plimsoll::device::cpu::CpuDevice;
use plimsoll::device::{Executor, Loaded, Need, OnShortfall, Order, Ran, Released, Report, Run, RunPurpose};
use plimsoll::memory::{Axes, Axis, Outcome, Readings, ShapeKind};
use plimsoll::model::{Batch, Fault, Model, Output, TokenRow};
use plimsoll::units::{Bytes, ModelId, StepId};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

const HIDDEN: usize = 256;
const LAYERS: usize = 2;
const HEADS: usize = 4;

/// Whatever is above live bytes and the step's ceiling: heaps of the system's allocator, stacks, page rounding.
const CONSTANT: Bytes = Bytes::mib(48);

/// An encoder without meaning, with the allocations of one: random weights, f32 or Q8_0.
struct Encoder {
    embeddings: Tensor,
    layers: Vec<[QMatMul; 6]>,
}

impl Encoder {
    fn new(quantized: bool, device: &Device) -> Result<Encoder> {
        let matrix = |rows: usize, columns: usize| {
            let weight = Tensor::randn(0f32, 0.05, (rows, columns), device)?;
            match quantized {
                true => QMatMul::from_qtensor(QTensor::quantize(&weight, GgmlDType::Q8_0)?),
                false => Ok(QMatMul::Tensor(weight)),
            }
        };
        let square = || matrix(HIDDEN, HIDDEN);
        let (up, down) = (|| matrix(4 * HIDDEN, HIDDEN), || matrix(HIDDEN, 4 * HIDDEN));
        let layer = |_| Ok([square()?, square()?, square()?, square()?, up()?, down()?]);
        Ok(Encoder {
            embeddings: Tensor::randn(0f32, 1.0, (30_000, HIDDEN), device)?,
            layers: (0..LAYERS).map(layer).collect::<Result<_>>()?,
        })
    }

    fn forward(&self, rows: &[Arc<TokenRow>]) -> Result<Tensor> {
        let length = rows.iter().map(|row| row.ids.len()).max().unwrap_or(0);
        let padded = rows.iter().flat_map(|row| (0..length).map(|at| row.ids.get(at).copied().unwrap_or(0)));
        let ids = Tensor::from_vec(padded.collect::<Vec<u32>>(), (rows.len() * length,), self.embeddings.device())?;
        let mut hidden = self.embeddings.index_select(&ids, 0)?.reshape((rows.len(), length, HIDDEN))?;
        for [q, k, v, o, up, down] in &self.layers {
            let heads = |projection: &QMatMul| {
                let projected = projection.forward(&hidden)?.reshape((rows.len(), length, HEADS, HIDDEN / HEADS))?;
                projected.transpose(1, 2)?.contiguous()
            };
            let scores = (heads(q)?.matmul(&heads(k)?.t()?)? * 0.125)?;
            let mixed = softmax_last_dim(&scores)?.matmul(&heads(v)?)?;
            let mixed = mixed.transpose(1, 2)?.contiguous()?.reshape((rows.len(), length, HIDDEN))?;
            hidden = (&hidden + o.forward(&mixed)?)?;
            hidden = (&hidden + down.forward(&up.forward(&hidden)?.gelu_erf()?)?)?;
        }
        hidden.mean(1)
    }
}

impl Model for Encoder {
    fn axes(&self) -> Axes {
        let axis = |max| Axis { min: 1, max, splits: Vec::new() };
        Axes {
            kind: ShapeKind::Padded,
            batch: axis(64),
            extent: axis(256),
            step_tokens_max: 4096,
            measured_tokens_min: 256,
        }
    }

    fn step(&mut self, batch: &Batch) -> std::result::Result<Output, Fault> {
        let Batch::Tokens(rows) = batch;
        Ok(Output::Vectors(self.forward(rows)?.to_vec2()?))
    }
}

struct Bench {
    device: CpuDevice,
    reports: mpsc::Receiver<Report>,
}

impl Bench {
    fn send(&self, order: Order) -> Report {
        self.device.send(order).unwrap();
        self.reports.recv_timeout(Duration::from_secs(120)).unwrap()
    }

    fn load(&self, model: ModelId, quantized: bool) -> Loaded {
        let loader = move |device: &Device| Ok(Box::new(Encoder::new(quantized, device)?) as Box<dyn Model>);
        match self.send(Order::Load { model, ceiling: Bytes::MAX, loader: Box::new(loader) }) {
            Report::Loaded { result, .. } => result.unwrap(),
            other => panic!("{other:?}"),
        }
    }

    fn run(&self, model: ModelId, (rows, length): (usize, usize), ceiling: Bytes) -> Ran {
        let row = Arc::new(TokenRow::new((0..length as u32).collect(), Vec::new()));
        let batch = Batch::Tokens(vec![row; rows]);
        let (need, evictable) = (Need::up_to(ceiling), Vec::new());
        let run = Run {
            step: StepId::new(0),
            model,
            batch,
            need,
            purpose: RunPurpose::Serve,
            on_shortfall: OnShortfall::Ladder,
            evictable,
        };
        match self.send(Order::Run(run)) {
            Report::Ran(ran) if ran.observed.outcome == Outcome::Done => ran,
            other => panic!("{other:?}"),
        }
    }

    fn unload(&self, model: ModelId) -> Released {
        match self.send(Order::Unload { model }) {
            Report::Unloaded(gone) => gone,
            other => panic!("{other:?}"),
        }
    }
}

/// Anonymous pages of this process, as the kernel counts them.
fn resident() -> Bytes {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    Bytes::kib(line.trim().strip_suffix(" kB").unwrap().parse().unwrap())
}

/// The result of `body`, and the largest `resident` while it ran, looked at every millisecond.
fn watch<R>(body: impl FnOnce() -> R) -> (R, Bytes) {
    let (largest, is_done) = (AtomicU64::new(0), AtomicBool::new(false));
    let result = thread::scope(|threads| {
        threads.spawn(|| {
            while !is_done.load(Relaxed) {
                largest.fetch_max(resident().get(), Relaxed);
                thread::sleep(Duration::from_millis(1));
            }
        });
        let result = body();
        is_done.store(true, Relaxed);
        result
    });
    (result, Bytes::new(largest.load(Relaxed)))
}

#[test]
fn the_process_stays_within_weights_and_ceiling() {
    let (out, reports) = mpsc::channel();
    let device = CpuDevice::start(Readings::Live, Instant::now(), move |report| drop(out.send(report))).unwrap();
    let bench = Bench { device, reports };
    // The first order is answered when the pools are up.
    bench.send(Order::Trim { keep: Bytes::ZERO });
    let idle = resident();

    let (plain, int8) = (ModelId::new(0), ModelId::new(1));
    let weights = bench.load(plain, false).resident + bench.load(int8, true).resident;

    // The same shape has the same peak, once what is packed at the first use is there.
    for model in [plain, int8] {
        bench.run(model, (16, 256), Bytes::MAX);
        let peaks: Vec<Bytes> = (0..4).map(|_| bench.run(model, (8, 100), Bytes::MAX).observed.peak).collect();
        let spread = peaks.iter().max().unwrap().saturating_sub(*peaks.iter().min().unwrap());
        assert!(spread <= Bytes::kib(64), "{model}: {peaks:?}");
    }
    let held = bench.run(plain, (1, 1), Bytes::MAX).resident + bench.run(int8, (1, 1), Bytes::MAX).resident;
    println!("idle {idle}, weights {weights}, with what the first steps left {held}");

    // Many shapes, each with its own peak as the ceiling, as a perfect prediction would set it.
    let mut random = SmallRng::seed_from_u64(5);
    let (mut worst, mut overhead) = (Bytes::ZERO, Bytes::ZERO);
    for _ in 0..24 {
        let length = random.random_range(4..=256);
        let shape = (random.random_range(1..=4096 / length), length);
        let model = [plain, int8][random.random_range(0..2)];
        let ceiling = bench.run(model, shape, Bytes::MAX).observed.peak;
        bench.send(Order::Trim { keep: ceiling });
        let (ran, largest) = watch(|| bench.run(model, shape, ceiling));
        assert!(ran.observed.peak <= ceiling + Bytes::kib(64), "{} of {ceiling}", ran.observed.peak);
        worst = worst.max(ceiling);
        overhead = overhead.max(largest.saturating_sub(idle + held + ceiling));
    }
    println!("largest peak {worst}; at most {overhead} above idle + held + ceiling");
    println!("{}", bench.device.snapshot().unwrap().render(|model| model.to_string()));
    assert!(worst > Bytes::mib(32), "the test means something only with steps of some size: {worst}");
    assert!(overhead <= CONSTANT, "{overhead} above what was allowed");

    let released: Bytes = [plain, int8].map(|model| bench.unload(model).released).into_iter().sum();
    // What a library allocated at its first use, which was in a load, stays for the next: some hundred bytes of a thread.
    assert!(released + Bytes::kib(64) >= weights, "{released} of {weights}");
    bench.send(Order::Trim { keep: Bytes::ZERO });
    let rest = resident().saturating_sub(idle);
    println!("{rest} above idle after unloading");
    assert!(rest <= CONSTANT, "{rest} stay after everything is unloaded");
}
