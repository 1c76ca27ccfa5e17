//! The CPU device as the engine sees it.

use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use super::allocator::{self, Balance, accounts, cache_balance, tune_system_allocator};
use super::hardware::Cpu;
use super::readings::{SystemMemory, SystemReadings};
use super::threads::compute_threads;
use crate::device::profile_store::ProfileFacts;
use crate::device::statistics::{DeviceSnapshot, Statistics, Use, WorkspaceUse};
use crate::device::{Device, DeviceThread, Executor, Kind, Order, Report, Stopped};
use crate::memory::{Reading, Readings, ShapeKind, Slack, Terms};
use crate::model::DeviceForm;
use crate::units::{Bytes, ModelId, Timestamp};

/// The CPU, with its thread running. Dropping it unloads every model and joins the thread.
pub struct CpuDevice {
    thread: DeviceThread,
    statistics: Statistics,
    readings: Mutex<SystemReadings>,
}

impl CpuDevice {
    /// Starts the device. `reports` is called on its thread; `epoch` is the engine's start.
    ///
    /// # Errors
    /// If the thread cannot be started, or the machine does not say how much memory it has.
    pub fn start(
        live: Readings,
        epoch: Instant,
        reports: impl FnMut(Report) + Send + 'static,
    ) -> io::Result<CpuDevice> {
        CpuDevice::start_beside(None, live, epoch, reports)
    }

    /// The same, with a file that bounds what is free: see [`SystemReadings::beside`].
    ///
    /// # Errors
    /// As [`CpuDevice::start`]; if the file cannot be read.
    pub fn start_beside(
        file: Option<PathBuf>,
        live: Readings,
        epoch: Instant,
        reports: impl FnMut(Report) + Send + 'static,
    ) -> io::Result<CpuDevice> {
        tune_system_allocator();
        let mut readings = SystemReadings::beside(file.clone())?;
        readings.read()?;
        let statistics = Statistics::new(epoch);
        let thread = DeviceThread::start("device-cpu", move || Cpu::beside(file, live), statistics.clone(), reports)?;
        Ok(CpuDevice { thread, statistics, readings: Mutex::new(readings) })
    }

    /// What the machine and the allocator say now: about 20 us. Any thread may ask.
    ///
    /// # Errors
    /// If the machine no longer says how much memory it has.
    pub fn reading(&self, now: Timestamp) -> io::Result<Reading> {
        let SystemMemory { free, total } = self.readings.lock().unwrap_or_else(PoisonError::into_inner).read()?;
        let cache = cache_balance();
        Ok(Reading {
            at: now,
            free,
            total,
            workspace_reserved: cache.reserved(),
            workspace_cached: Bytes::new(cache.cached),
            library: library_of_nobody(),
            leftovers: Bytes::ZERO,
        })
    }

    /// `cpu (2 threads, AVX2 + FMA)`.
    pub fn name(&self) -> String {
        format!("cpu ({} threads, {})", compute_threads(), instruction_set())
    }

    /// Counters and recent events.
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// Everything at this moment.
    ///
    /// # Errors
    /// As [`CpuDevice::reading`].
    pub fn snapshot(&self) -> io::Result<DeviceSnapshot> {
        let reading = self.reading(Timestamp::START)?;
        let cache = cache_balance();
        let mut models = self.statistics.models();
        let mut library = Use::default();
        for charged in accounts() {
            // Accounts of models that this device never had are another device's, in tests.
            match charged.owner.model {
                Some(model) => {
                    if let Some(held) = models.get_mut(&model) {
                        add(held.of(charged.owner.kind), charged.balance);
                    }
                }
                None => add(&mut library, charged.balance),
            }
        }
        Ok(DeviceSnapshot {
            device: self.name(),
            free_bytes: reading.free.get(),
            total_bytes: reading.total.get(),
            workspace: WorkspaceUse {
                reserved_bytes: cache.reserved().get(),
                cached_bytes: cache.cached,
                cached_bytes_peak: cache.cached_peak,
                hits: cache.hits,
                grows: cache.maps,
                trims: cache.unmaps,
                fragmentation: if cache.asked == 0 { 1.0 } else { cache.live as f64 / cache.asked as f64 },
            },
            library,
            server_bytes: allocator::server_live().get(),
            models,
            events: self.statistics.events(),
            card: None,
        })
    }
}

impl Executor for CpuDevice {
    fn send(&self, order: Order) -> Result<(), Stopped> {
        self.thread.send(order)
    }
}

impl Device for CpuDevice {
    fn name(&self) -> String {
        CpuDevice::name(self)
    }

    fn form(&self) -> DeviceForm {
        DeviceForm::Cpu
    }

    fn reading(&self, now: Timestamp) -> io::Result<Reading> {
        CpuDevice::reading(self, now)
    }

    fn snapshot(&self) -> io::Result<DeviceSnapshot> {
        CpuDevice::snapshot(self)
    }

    fn slack(&self, _: ShapeKind) -> Slack {
        Slack::CPU
    }

    fn terms(&self) -> Terms {
        Terms::CPU
    }

    fn profile_facts(&self, content: String, dtype: &str, length_max: u32) -> ProfileFacts {
        ProfileFacts::cpu(content, dtype, length_max)
    }
}

/// The instruction set that the program was built for, which is the one that candle uses: part of a profile's key.
pub fn instruction_set() -> &'static str {
    if cfg!(target_feature = "avx512f") {
        "AVX-512"
    } else if cfg!(all(target_feature = "avx2", target_feature = "fma")) {
        "AVX2 + FMA"
    } else if cfg!(target_arch = "aarch64") {
        "NEON"
    } else {
        "baseline"
    }
}

fn library_of_nobody() -> Bytes {
    let is_nobodys = |kind, model: Option<ModelId>| kind == Kind::Library && model.is_none();
    accounts().filter(|held| is_nobodys(held.owner.kind, held.owner.model)).map(|held| held.balance.live).sum()
}

fn add(sum: &mut Use, balance: Balance) {
    sum.live_bytes += balance.live.get();
    sum.peak_bytes += balance.peak.get();
    sum.blocks += balance.allocated - balance.freed.min(balance.allocated);
}
