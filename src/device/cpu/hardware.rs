//! The CPU under the device's thread.

use std::mem;
use std::panic::{self, AssertUnwindSafe};
use std::path::PathBuf;

use super::allocator::{self, ResidentAccount, StepAccount, cache_balance, trim_cache};
use super::readings::SystemReadings;
use super::threads::mark_compute_threads;
use crate::device::trace::Recording;
use crate::device::{Hardware, Kind, LoadFailure, Need, Resident, Shortfall, StepUse};
use crate::memory::Readings;
use crate::model::Fault;
use crate::units::{Bytes, ModelId};

/// The CPU: tensors are ordinary memory, and so are the scopes of the accounted allocator.
pub struct Cpu {
    tensors: candle_core::Device,
    readings: Option<SystemReadings>,
    /// With `Live`, a step does not start while the machine cannot give what it is predicted to need: on the CPU this
    /// takes the place of an allocation that fails. With `Off`, a step that does not fit is the kernel's problem.
    live: Readings,
    record_next: bool,
    recording: Option<Recording>,
}

impl Cpu {
    /// Call it on the device's thread: it starts and marks the threads that compute.
    pub fn new(live: Readings) -> Cpu {
        Cpu::beside(None, live)
    }

    /// The same, with a file that bounds what is free: see [`SystemReadings::beside`].
    pub(super) fn beside(file: Option<PathBuf>, live: Readings) -> Cpu {
        mark_compute_threads();
        let readings =
            SystemReadings::beside(file).inspect_err(|error| tracing::warn!("free memory is unknown: {error}")).ok();
        Cpu { tensors: candle_core::Device::Cpu, readings, live, record_next: false, recording: None }
    }

    /// Bytes that a step could have: what is free, and what is cached for it.
    fn available(&mut self) -> Option<Bytes> {
        Some(self.free()? + Bytes::new(cache_balance().cached))
    }
}

impl Hardware for Cpu {
    type Account = ResidentAccount;

    fn tensors(&self) -> &candle_core::Device {
        &self.tensors
    }

    fn load<R>(
        &mut self,
        model: ModelId,
        // An allocation that fails ends the process: what a load takes is looked at afterwards.
        _ceiling: Bytes,
        body: impl FnOnce(&candle_core::Device) -> Result<R, Fault>,
    ) -> Result<(R, ResidentAccount), LoadFailure> {
        let full =
            || Fault::Model { message: "no account is free: too many models have left memory behind".to_owned() };
        let account = ResidentAccount::open(model).ok_or_else(full)?;
        let scope = account.enter();
        let result = body(&self.tensors);
        drop(scope);
        Ok((result?, account))
    }

    fn resident(&self, account: &ResidentAccount) -> Resident {
        let weights = account.balance();
        let library = allocator::live_of(account.model(), Kind::Library);
        Resident { weights: weights.live, weights_peak: weights.peak, library }
    }

    fn close(&mut self, account: ResidentAccount) -> Bytes {
        let left = self.resident(&account).total();
        drop(account);
        left
    }

    fn step<R: Clone>(
        &mut self,
        model: ModelId,
        need: Need,
        body: impl FnOnce() -> Result<R, Fault>,
    ) -> Result<(Result<R, Fault>, StepUse), Shortfall> {
        if self.live == Readings::Live
            && let Some(available) = self.available()
        {
            need.check(available)?;
        }
        let step = StepAccount::open(model, need.ceiling);
        self.recording = None;
        let inside = if mem::take(&mut self.record_next) {
            let (inside, recording) = step.recorded(body);
            self.recording = Some(recording);
            inside
        } else {
            let _scope = step.enter();
            body()
        };
        // What leaves the step is copied, so that it is the server's memory and not something left behind.
        let result = inside.clone();
        drop(inside);
        let balance = step.balance();
        let used = StepUse {
            peak: balance.peak,
            reach: balance.peak,
            left: balance.live,
            allocated: balance.allocated,
            freed: balance.freed,
            overrun: step.has_overrun(),
            retried: 0,
        };
        Ok((result, used))
    }

    fn record_next(&mut self) {
        self.record_next = true;
    }

    fn recording(&mut self) -> Option<Recording> {
        self.recording.take()
    }

    fn trim(&mut self, keep: Bytes) -> Bytes {
        trim_cache(keep)
    }

    fn settle(&mut self) {
        allocator::return_free_heap();
    }

    fn free(&mut self) -> Option<Bytes> {
        self.readings.as_mut()?.read().ok().map(|memory| memory.free)
    }

    fn check(&mut self) -> Result<(), Fault> {
        // A panic inside a quantized product poisons the lock of candle's pool, for good.
        panic::catch_unwind(AssertUnwindSafe(|| candle_core::utils::barrier_pool().execute(|_| ()))).map_err(|_| {
            Fault::DeviceLost { message: "candle's thread pool is poisoned by an earlier panic".to_owned() }
        })
    }
}
