//! The device's thread on the CPU: loads, steps, faults, the ladder, unloads.
//!
//! In a process of their own. The threads that compute are the process's and charge whatever step runs: where other
//! tests compute beside these, their bytes and their labels would be found in a step of these.

mod faults;
mod ladder;
mod queued;
mod scopes;
mod snapshot;
mod tracing;

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use plimsoll::device::cpu::Cpu;
use plimsoll::device::drill::{DrillModel, DrillSettings, Squeezed};
use plimsoll::device::statistics::Statistics;
use plimsoll::device::*;
use plimsoll::memory::Readings;
use plimsoll::model::{Batch, Model, TokenRow};
use plimsoll::units::{Bytes, ModelId, StepId};

/// A device and the reports that it has sent.
struct Bench {
    thread: DeviceThread,
    reports: mpsc::Receiver<Report>,
    statistics: Statistics,
    /// Room that steps have, in bytes.
    room: Arc<AtomicU64>,
    /// Steps that are refused for lack of room before there is some.
    refusals: Arc<AtomicU64>,
}

impl Bench {
    fn new() -> Bench {
        let (out, reports) = mpsc::channel();
        let room = Arc::new(AtomicU64::new(u64::MAX));
        let statistics = Statistics::new(Instant::now());
        let refusals = Arc::new(AtomicU64::new(u64::MAX));
        let squeezed = {
            let (room, refusals) = (room.clone(), refusals.clone());
            move || Squeezed::new(Cpu::new(Readings::Off), room, refusals)
        };
        let report = move |report| drop(out.send(report));
        let thread = DeviceThread::start("device-test", squeezed, statistics.clone(), report).unwrap();
        Bench { thread, reports, statistics, room, refusals }
    }

    fn send(&self, order: Order) -> Report {
        self.thread.send(order).unwrap();
        self.next()
    }

    fn next(&self) -> Report {
        self.reports.recv_timeout(Duration::from_secs(60)).expect("a report for every order")
    }

    fn load(&self, model: ModelId, settings: DrillSettings) -> Loaded {
        let loader =
            move |device: &candle_core::Device| Ok(Box::new(DrillModel::new(settings, device)?) as Box<dyn Model>);
        match self.send(Order::Load { model, ceiling: Bytes::MAX, loader: Box::new(loader) }) {
            Report::Loaded { model: loaded, result: Ok(facts) } if loaded == model => facts,
            other => panic!("not loaded: {other:?}"),
        }
    }

    fn unload(&self, model: ModelId) -> Released {
        match self.send(Order::Unload { model }) {
            Report::Unloaded(gone) => gone,
            other => panic!("not unloaded: {other:?}"),
        }
    }

    fn run(&self, run: Run) -> Ran {
        match self.send(Order::Run(run)) {
            Report::Ran(ran) => ran,
            other => panic!("not run: {other:?}"),
        }
    }
}

/// `count` rows of `length` tokens; row `i` has the ids `i + 1`.
fn rows(count: u32, length: usize) -> Batch {
    Batch::Tokens((1..=count).map(|id| Arc::new(TokenRow::new(vec![id; length], Vec::new()))).collect())
}

/// What a [`DrillModel`] answers for [`rows`].
fn expected(row: u32, length: usize) -> Vec<f32> {
    vec![(row + 1) as f32 * length as f32, length as f32]
}

fn serve(model: ModelId, batch: Batch, predicted: Bytes) -> Run {
    Run {
        step: StepId::new(7),
        model,
        batch,
        need: Need { predicted, ceiling: predicted, leftovers: Bytes::ZERO },
        purpose: RunPurpose::Serve,
        on_shortfall: OnShortfall::Ladder,
        evictable: Vec::new(),
    }
}

fn settings() -> DrillSettings {
    DrillSettings {
        weights: Bytes::mib(8),
        bytes_per_token: Bytes::kib(16),
        length_max: 512,
        step_tokens_max: 4096,
        ..DrillSettings::default()
    }
}
