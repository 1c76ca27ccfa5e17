//! One model on a device of its own, with nobody else to serve.

use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use anyhow::{Context, anyhow, bail};

use crate::device::profile_store::ProfileFacts;
use crate::device::trace::Trace;
use crate::device::{self, Device, Loader, Need, OnShortfall, Order, Ran, Report, Run, RunPurpose, StartOptions};
use crate::memory::{Measured, Outcome, ProbeRuns, Shape, Slack, Terms};
use crate::model::{Batch, Blueprint};
use crate::units::{Bytes, ModelId, StepId};

const MODEL: ModelId = ModelId::new(0);

/// A loaded model whose steps are measured one by one.
pub(super) struct Session {
    blueprint: Blueprint,
    device: Box<dyn Device>,
    reports: Receiver<Report>,
    resident: Bytes,
    next_step: u64,
}

impl Session {
    /// Starts the device and loads the model. Probes should run whatever else is on the machine: a peak does not depend
    /// on it.
    pub(super) fn start(blueprint: Blueprint, options: StartOptions) -> anyhow::Result<Session> {
        let (sender, reports) = channel();
        let take_in = move |report| {
            // The session is gone: nobody wants to know.
            let _ = sender.send(report);
        };
        let device = device::start(options, Instant::now(), take_in)?;
        let blueprint = blueprint.for_device(device.form());
        let loaded = blueprint.clone();
        let loader = move |device: &candle_core::Device| loaded.load(device).map_err(Into::into);
        let loader: Box<dyn Loader> = Box::new(loader);
        device.send(Order::Load { model: MODEL, ceiling: Bytes::MAX, loader })?;
        match reports.recv()? {
            Report::Loaded { result, .. } => {
                let resident = result.map_err(|fault| anyhow!("{fault}"))?.resident;
                Ok(Session { blueprint, device, reports, resident, next_step: 0 })
            }
            other => bail!("the device answered a load with {other:?}"),
        }
    }

    pub(super) fn resident(&self) -> Bytes {
        self.resident
    }

    pub(super) fn device_name(&self) -> String {
        self.device.name()
    }

    pub(super) fn slack(&self) -> Slack {
        self.device.slack(self.blueprint().axes().kind)
    }

    pub(super) fn terms(&self) -> Terms {
        self.device.terms()
    }

    /// The model, for the session's device.
    pub(super) fn blueprint(&self) -> &Blueprint {
        &self.blueprint
    }

    pub(super) fn facts(&self) -> ProfileFacts {
        let card = self.blueprint.card();
        self.device.profile_facts(self.blueprint.content_key(), card.dtype.as_str(), card.length_max)
    }

    /// Runs steps of this shape as a probe is run.
    pub(super) fn measure(&mut self, shape: Shape) -> anyhow::Result<Measured> {
        let mut runs = ProbeRuns::default();
        loop {
            let observed = self.run(shape, RunPurpose::Measure)?.observed;
            if let Some(measured) = runs.add(shape, observed.peak, observed.time) {
                return Ok(measured);
            }
        }
    }

    /// Where the memory of a step of this shape goes, and its peak as it is measured.
    pub(super) fn trace(&mut self, shape: Shape) -> anyhow::Result<(Trace, Bytes)> {
        let ran = self.run(shape, RunPurpose::Trace)?;
        let recording = ran.recording.context("this device does not record what a step allocates")?;
        Ok((Trace::of(&recording), ran.observed.peak))
    }

    fn run(&mut self, shape: Shape, purpose: RunPurpose) -> anyhow::Result<Ran> {
        let step = StepId::new(self.next_step);
        self.next_step += 1;
        self.device.send(Order::Run(Run {
            step,
            model: MODEL,
            batch: Batch::made_up(shape),
            need: Need::WHATEVER,
            purpose,
            on_shortfall: OnShortfall::Ladder,
            evictable: Vec::new(),
        }))?;
        match self.reports.recv()? {
            Report::Ran(ran) if ran.observed.outcome == Outcome::Done => Ok(ran),
            Report::Ran(ran) => bail!("a step of {shape} failed: {:?}", ran.observed.outcome),
            other => bail!("the device answered a step with {other:?}"),
        }
    }
}
