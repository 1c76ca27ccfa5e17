//! Models and devices that fail on purpose, to exercise what comes after a failure: in tests of the engine, and
//! wherever the ladder has to be seen without filling a machine's memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use candle_core::{DType, Device, Tensor};

use super::trace::Recording;
use super::{Hardware, LoadFailure, Need, Resident, Shortfall, StepUse};
use crate::memory::{Axes, Axis, ShapeKind};
use crate::model::{Batch, Fault, Model, Output};
use crate::units::{Bytes, ModelId};

/// What a drilled step does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Drill {
    /// Returns an error.
    Error,
    /// Panics.
    Panic,
    /// Returns a NaN in this row.
    NotANumber {
        /// Index in the batch.
        row: usize,
    },
    /// Returns a row less than it got.
    LosesARow,
}

/// A model whose cost and results are known in advance, and which fails where it is told to.
///
/// A row's result is the sum of its ids, and its number of tokens. A step holds one tensor of
/// `bytes_per_token` for each padded token, from its start to its end.
pub struct DrillModel {
    weights: Tensor,
    settings: DrillSettings,
    steps: u64,
}

/// How a [`DrillModel`] behaves.
#[derive(Clone, Debug, Default)]
pub struct DrillSettings {
    /// Size of its weights; a multiple of 4.
    pub weights: Bytes,
    /// Workspace for each padded token; a multiple of 4.
    pub bytes_per_token: Bytes,
    /// Time for each padded token, spent computing nothing.
    pub time_per_token: Duration,
    /// Longest row.
    pub length_max: u32,
    /// Most padded tokens of a step.
    pub step_tokens_max: u32,
    /// What to do wrong, by the number of the call, which counts from 0 and includes replays.
    pub drills: BTreeMap<u64, Drill>,
}

impl DrillModel {
    /// Loads it.
    ///
    /// # Errors
    /// candle's, if the device has no room.
    pub fn new(settings: DrillSettings, device: &Device) -> candle_core::Result<DrillModel> {
        let weights = floats(settings.weights, device)?;
        Ok(DrillModel { weights, settings, steps: 0 })
    }
}

impl Model for DrillModel {
    fn axes(&self) -> Axes {
        let DrillSettings { length_max, step_tokens_max, .. } = self.settings;
        Axes {
            kind: ShapeKind::Padded,
            batch: Axis { min: 1, max: step_tokens_max, splits: Vec::new() },
            extent: Axis { min: 1, max: length_max, splits: Vec::new() },
            step_tokens_max,
            measured_tokens_min: length_max,
        }
    }

    fn step(&mut self, batch: &Batch) -> Result<Output, Fault> {
        let started = Instant::now();
        let Batch::Tokens(rows) = batch;
        let drill = self.settings.drills.get(&self.steps);
        self.steps += 1;
        let length = rows.iter().map(|row| row.ids.len()).max().unwrap_or(0);
        let tokens = (rows.len() * length) as u64;
        let workspace = floats(self.settings.bytes_per_token * tokens, self.weights.device())?;
        let mut vectors: Vec<Vec<f32>> =
            rows.iter().map(|row| vec![row.ids.iter().sum::<u32>() as f32, row.ids.len() as f32]).collect();
        match drill {
            Some(Drill::Error) => return Err(Fault::Model { message: "drilled error".to_owned() }),
            Some(Drill::Panic) => panic!("drilled panic"),
            Some(Drill::NotANumber { row }) => vectors[*row][0] = f32::NAN,
            Some(Drill::LosesARow) => drop(vectors.pop()),
            None => {}
        }
        let time = self.settings.time_per_token.saturating_mul(u32::try_from(tokens).unwrap_or(u32::MAX));
        while started.elapsed() < time {
            std::hint::spin_loop();
        }
        drop(workspace);
        Ok(Output::Vectors(vectors))
    }
}

fn floats(bytes: Bytes, device: &Device) -> candle_core::Result<Tensor> {
    Tensor::ones((bytes.get() / 4) as usize, DType::F32, device)
}

/// A device with less room than it has: steps that are predicted to need more than `room` are refused as a full device
/// refuses them, so that the ladder halves them until they fit; and so are loads with a lease above it.
pub struct Squeezed<H> {
    inner: H,
    room: Arc<AtomicU64>,
    /// How many steps are refused before there is room for everything.
    refusals: Arc<AtomicU64>,
}

impl<H> Squeezed<H> {
    /// Squeezes `inner`; `room` is in bytes. After as many refusals as `refusals` says there is room for everything. Both
    /// may be changed at any time from any thread.
    pub fn new(inner: H, room: Arc<AtomicU64>, refusals: Arc<AtomicU64>) -> Squeezed<H> {
        Squeezed { inner, room, refusals }
    }
}

impl<H: Hardware> Hardware for Squeezed<H> {
    type Account = H::Account;

    fn tensors(&self) -> &Device {
        self.inner.tensors()
    }

    fn load<R>(
        &mut self,
        model: ModelId,
        ceiling: Bytes,
        body: impl FnOnce(&Device) -> Result<R, Fault>,
    ) -> Result<(R, H::Account), LoadFailure> {
        let room = Bytes::new(self.room.load(Relaxed));
        if ceiling < Bytes::MAX && room < ceiling {
            return Err(LoadFailure::OutOfMemory(Shortfall { needed: ceiling, available: room }));
        }
        self.inner.load(model, ceiling, body)
    }

    fn resident(&self, account: &H::Account) -> Resident {
        self.inner.resident(account)
    }

    fn close(&mut self, account: H::Account) -> Bytes {
        self.inner.close(account)
    }

    fn step<R: Clone>(
        &mut self,
        model: ModelId,
        need: Need,
        body: impl FnOnce() -> Result<R, Fault>,
    ) -> Result<(Result<R, Fault>, StepUse), Shortfall> {
        if let Err(refusal) = need.check(Bytes::new(self.room.load(Relaxed)))
            && self.refusals.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok()
        {
            return Err(refusal);
        }
        self.inner.step(model, need, body)
    }

    fn record_next(&mut self) {
        self.inner.record_next();
    }

    fn recording(&mut self) -> Option<Recording> {
        self.inner.recording()
    }

    fn trim(&mut self, keep: Bytes) -> Bytes {
        self.inner.trim(keep)
    }

    fn settle(&mut self) {
        self.inner.settle();
    }

    fn free(&mut self) -> Option<Bytes> {
        self.inner.free()
    }

    fn check(&mut self) -> Result<(), Fault> {
        self.inner.check()
    }
}
