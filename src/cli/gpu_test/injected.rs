//! The whole device thread over a driver that fails on purpose: every row is answered, and rightly.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use anyhow::{anyhow, bail, ensure};
use candle_core::Device as Tensors;

use super::stage::Stage;
use crate::device::cuda::{CardSettings, CudaDevice};
use crate::device::drill::{DrillModel, DrillSettings};
use crate::device::pools::Failures;
use crate::device::{Executor, Loader, Need, OnShortfall, Order, Report, Run, RunPurpose};
use crate::memory::{Readings, Rungs};
use crate::model::{Batch, Model, TokenRow};
use crate::units::{Bytes, ModelId, StepId};

const STEPS: u64 = 1_000;
const ROWS: u32 = 8;
/// A row's workspace.
const ROW: Bytes = Bytes::mib(8);
/// The largest block that goes through where large ones fail: three rows and a bit.
pub(super) const LARGEST: u64 = 26 << 20;

pub(super) fn run(stage: &mut Stage) -> anyhow::Result<String> {
    let failures = stage.card().allocator().driver().failures();
    let settings = CardSettings { ordinal: stage.card().ordinal(), mode: stage.card().allocator().mode(), failures };
    let (sender, reports) = channel();
    let take_in = move |report| {
        // The check is over: nobody wants to know.
        let _ = sender.send(report);
    };
    let device = CudaDevice::start(settings, Readings::Off, Instant::now(), take_in)?;
    let model = ModelId::new(6);
    let mut rungs = Rungs::default();
    for step in 0..STEPS {
        // Loads and unloads are allocations too.
        if step % 50 == 0 {
            load(&device, &reports, model)?;
        }
        let run = Run {
            step: StepId::new(step),
            model,
            batch: batch(),
            need: Need { predicted: ROW * u64::from(ROWS), ..Need::WHATEVER },
            purpose: RunPurpose::Serve,
            on_shortfall: OnShortfall::Ladder,
            evictable: Vec::new(),
        };
        device.send(Order::Run(run))?;
        let Report::Ran(ran) = reports.recv()? else { bail!("a step was answered with something else") };
        for (row, answer) in ran.rows.iter().enumerate() {
            let right = vec![(row + 1) as f32, 1.0];
            ensure!(answer.as_ref() == Ok(&right), "step {step}, row {row}: {answer:?}");
        }
        rungs.trims += ran.observed.rungs.trims;
        rungs.halvings += ran.observed.rungs.halvings;
        if step % 50 == 49 {
            device.send(Order::Unload { model })?;
            let Report::Unloaded(_) = reports.recv()? else { bail!("an unload was answered with something else") };
        }
    }
    drop(device);
    let hits = stage.card().allocator().driver().hits();
    ensure!(hits.workspace > 0, "nothing failed: {hits:?}");
    if matches!(failures, Failures::Above { .. }) {
        ensure!(rungs.halvings as u64 >= STEPS, "{rungs:?}");
    }
    Ok(format!(
        "{} rows right; failed for weights {}, workspace {}, library {}; {} trims, {} halvings",
        STEPS * u64::from(ROWS),
        hits.weights,
        hits.workspace,
        hits.library,
        rungs.trims,
        rungs.halvings
    ))
}

fn load(device: &CudaDevice, reports: &Receiver<Report>, model: ModelId) -> anyhow::Result<()> {
    let settings = DrillSettings {
        weights: Bytes::mib(40),
        bytes_per_token: ROW,
        length_max: 16,
        step_tokens_max: 64,
        ..DrillSettings::default()
    };
    let loader = move |device: &Tensors| Ok(Box::new(DrillModel::new(settings, device)?) as Box<dyn Model>);
    let loader: Box<dyn Loader> = Box::new(loader);
    device.send(Order::Load { model, ceiling: Bytes::MAX, loader })?;
    match reports.recv()? {
        Report::Loaded { result, .. } => result.map(drop).map_err(|fault| anyhow!("{fault}")),
        other => bail!("a load was answered with {other:?}"),
    }
}

/// Rows of one token, whose id is the row's number from 1.
fn batch() -> Batch {
    Batch::Tokens((1..=ROWS).map(|id| Arc::new(TokenRow::new(vec![id], Vec::new()))).collect())
}
