//! What the checks play on: the card, and a device's thread in this one.

use std::path::PathBuf;

use anyhow::anyhow;
use candle_core::Device;

use super::cost::{self, StockCost};
use crate::device::cuda::{Card, CardSettings, Cuda, CudaAccount, CudaDevice};
use crate::device::{Hardware, Need, Shortfall, StepUse};
use crate::memory::Readings;
use crate::model::Fault;
use crate::units::{Bytes, ModelId};

/// The card as the device's thread has it.
pub(super) struct Stage {
    pub(super) hardware: Cuda,
    /// What the driver costs by itself: measured before the card was opened, since afterwards nobody gets past the books.
    pub(super) stock: StockCost,
    /// Folders of models beside the built-in ones.
    pub(super) folders: Vec<PathBuf>,
    /// The most cases of a check that goes over many.
    pub(super) cases_max: Option<usize>,
    card: &'static Card,
}

impl Stage {
    pub(super) fn open(settings: CardSettings, folders: Vec<PathBuf>) -> anyhow::Result<Stage> {
        let stock = cost::stock(settings.ordinal)?;
        let (card, tensors) = CudaDevice::open(settings)?;
        Ok(Stage { hardware: Cuda::new(card, tensors, Readings::Off), stock, folders, cases_max: None, card })
    }

    pub(super) fn card(&self) -> &'static Card {
        self.card
    }

    pub(super) fn tensors(&self) -> Device {
        self.hardware.tensors().clone()
    }

    /// Loads something under the books of a model.
    pub(super) fn load<R>(
        &mut self,
        model: ModelId,
        body: impl FnOnce(&Device) -> candle_core::Result<R>,
    ) -> anyhow::Result<(R, CudaAccount)> {
        let body = |device: &Device| body(device).map_err(Fault::from);
        self.hardware.load(model, Bytes::MAX, body).map_err(|failure| anyhow!("the load failed: {failure}"))
    }

    /// Runs a step of a loaded model under a ceiling.
    pub(super) fn step<R: Clone>(
        &mut self,
        model: ModelId,
        ceiling: Bytes,
        body: impl FnOnce() -> candle_core::Result<R>,
    ) -> Result<(Result<R, Fault>, StepUse), Shortfall> {
        let need = Need::up_to(ceiling);
        self.hardware.step(model, need, || body().map_err(Fault::from))
    }

    /// Like [`Stage::step`] without a ceiling, for what has to succeed.
    pub(super) fn must<R: Clone>(
        &mut self,
        model: ModelId,
        body: impl FnOnce() -> candle_core::Result<R>,
    ) -> anyhow::Result<(R, StepUse)> {
        let (result, used) = self
            .step(model, Bytes::MAX, body)
            .map_err(|short| anyhow!("{} were needed, {} could be had", short.needed, short.available))?;
        Ok((result.map_err(|fault| anyhow!("{fault}"))?, used))
    }
}

/// Bytes as MiB with one digit, for people.
pub(super) fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}
