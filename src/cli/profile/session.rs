//! One model on a device of its own, with nobody else to serve.

use std::num::NonZeroU32;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use anyhow::{Context, anyhow, bail};

use crate::device::profile_store::ProfileFacts;
use crate::device::{self, Device, Loader, Order, Report, Run, Runs, StartOptions};
use crate::memory::{Measured, Outcome, PROBE_RUNS, Shape, Slack};
use crate::model::{Batch, Blueprint};
use crate::units::{Bytes, ModelId, StepId};

const MODEL: ModelId = ModelId::new(0);

/// A loaded model whose steps are measured one by one.
pub(super) struct Session {
    device: Box<dyn Device>,
    reports: Receiver<Report>,
    resident: Bytes,
    next_step: u64,
}

impl Session {
    /// Starts the device and loads the model. Probes should run whatever else is on the machine: a peak does not depend
    /// on it.
    pub(super) fn start(blueprint: &Blueprint, options: StartOptions) -> anyhow::Result<Session> {
        let (sender, reports) = channel();
        let take_in = move |report| {
            // The session is gone: nobody wants to know.
            let _ = sender.send(report);
        };
        let device = device::start(options, Instant::now(), take_in)?;
        let blueprint = blueprint.clone();
        let loader = move |device: &candle_core::Device| blueprint.load(device).map_err(Into::into);
        let loader: Box<dyn Loader> = Box::new(loader);
        device.send(Order::Load { model: MODEL, loader })?;
        match reports.recv()? {
            Report::Loaded { result, .. } => {
                let resident = result.map_err(|fault| anyhow!("{fault}"))?.resident;
                Ok(Session { device, reports, resident, next_step: 0 })
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
        self.device.slack()
    }

    pub(super) fn facts(&self, blueprint: &Blueprint) -> ProfileFacts {
        let card = blueprint.card();
        self.device.profile_facts(blueprint.content_key(), card.dtype.as_str(), card.length_max)
    }

    /// Runs a step of this shape as a probe is run.
    pub(super) fn measure(&mut self, shape: Shape) -> anyhow::Result<Measured> {
        let step = StepId::new(self.next_step);
        self.next_step += 1;
        let kept = NonZeroU32::new(PROBE_RUNS - 1).context("a probe has more than one run")?;
        self.device.send(Order::Run(Run {
            step,
            model: MODEL,
            batch: Batch::made_up(shape),
            predicted: Bytes::ZERO,
            ceiling: Bytes::MAX,
            runs: Runs::Measure { discarded: 1, kept },
            evictable: Vec::new(),
        }))?;
        match self.reports.recv()? {
            Report::Ran(ran) if ran.observed.outcome == Outcome::Done => {
                Ok(Measured { shape, peak: ran.observed.peak, time: ran.observed.time })
            }
            Report::Ran(ran) => bail!("a step of {shape} failed: {:?}", ran.observed.outcome),
            other => bail!("the device answered a step with {other:?}"),
        }
    }
}
