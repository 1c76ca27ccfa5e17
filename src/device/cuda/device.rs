//! A GPU as the engine sees it.

use std::io;
use std::time::Instant;

use super::card::{Card, CardSettings, Unusable};
use super::context::Tensors;
use super::hardware::Cuda;
use super::readings::Parts;
use super::watch::Watch;
use crate::device::cpu::allocator;
use crate::device::pools::DriverError;
use crate::device::profile_store::ProfileFacts;
use crate::device::statistics::{CardUse, DeviceSnapshot, Statistics, Use, WorkspaceUse};
use crate::device::{Device, DeviceThread, Executor, Kind, Order, Patience, Report, Stopped};
use crate::memory::{Reading, Readings, ShapeKind, Slack, Terms};
use crate::model::DeviceForm;
use crate::units::{Bytes, Timestamp};

/// A GPU, with its thread running. Dropping it unloads every model and joins the thread.
pub struct CudaDevice {
    thread: DeviceThread,
    statistics: Statistics,
    card: &'static Card,
    watch: Watch,
}

impl CudaDevice {
    /// Starts the device. `reports` is called on its thread; `epoch` is the engine's start.
    ///
    /// # Errors
    /// If the card cannot be used, with what to do about it; if no thread can be started.
    pub fn start(
        settings: CardSettings,
        live: Readings,
        epoch: Instant,
        reports: impl FnMut(Report) + Send + 'static,
    ) -> io::Result<CudaDevice> {
        let (card, tensors) = CudaDevice::open(settings).map_err(io::Error::other)?;
        CudaDevice::on(card, tensors, live, epoch, reports)
    }

    /// Opens a card and makes candle's device on it: all that can fail before a thread is started.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn open(settings: CardSettings) -> Result<(&'static Card, Tensors), Unusable> {
        let card = Card::open(settings)?;
        let tensors = Tensors::new(card)?;
        Ok((card, tensors))
    }

    /// Starts the device on a card that is open.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn on(
        card: &'static Card,
        tensors: Tensors,
        live: Readings,
        epoch: Instant,
        reports: impl FnMut(Report) + Send + 'static,
    ) -> io::Result<CudaDevice> {
        let statistics = Statistics::new(epoch);
        let name = format!("device-cuda-{}", card.ordinal());
        let thread = DeviceThread::start(&name, move || Cuda::new(card, tensors, live), statistics.clone(), reports)?;
        Ok(CudaDevice { thread, statistics, card, watch: Watch::start(card)? })
    }

    /// The card.
    pub fn card(&self) -> &'static Card {
        self.card
    }
}

impl Executor for CudaDevice {
    fn send(&self, order: Order) -> Result<(), Stopped> {
        self.thread.send(order)
    }
}

impl Device for CudaDevice {
    /// `cuda:0 (NVIDIA H200, 9.0, arenas)`.
    fn name(&self) -> String {
        let (major, minor) = self.card.capability();
        let mode = self.card.memory_comes_from();
        format!("cuda:{} ({}, {major}.{minor}, {mode})", self.card.ordinal(), self.card.name())
    }

    fn form(&self) -> DeviceForm {
        DeviceForm::Cuda
    }

    fn reading(&self, now: Timestamp) -> io::Result<Reading> {
        let allocator = self.card.allocator();
        // First: what the device's thread takes meanwhile is then in neither number, and not in both.
        let workspace = allocator.workspace();
        let memory = self.card.memory().map_err(unread)?;
        // Once: what is set aside is what a step is told of. Some of it may be charged to a model as well by now; it counts
        // twice then, which is safe.
        let leftovers = allocator.leftovers();
        Ok(Reading {
            at: now,
            free: Bytes::new(memory.free),
            total: Bytes::new(memory.total),
            workspace_reserved: workspace.reserved,
            workspace_cached: workspace.cached,
            // What steps leave is nobody's to give away either.
            library: allocator.library() + leftovers,
            leftovers,
        })
    }

    fn snapshot(&self) -> io::Result<DeviceSnapshot> {
        let parts = self.card.parts_beside(self.watch.unattributed()).map_err(unread)?;
        let allocator = self.card.allocator();
        let workspace = allocator.workspace();
        let pools = allocator.snapshot();
        let mut models = self.statistics.models();
        let mut library = Use::default();
        for line in &pools.owners {
            let held = Use { live_bytes: line.live.get(), peak_bytes: line.peak.get(), blocks: line.blocks };
            match line.owner.model {
                // A model that never was this device's cannot be in its books, but its counters may come a moment later.
                Some(model) => *models.entry(model).or_default().of(line.owner.kind) = held,
                None if line.owner.kind == Kind::Library => library = held,
                None => {}
            }
        }
        let live: u64 = models.values().map(|held| held.workspace.live_bytes).sum();
        let used = workspace.reserved.get().saturating_sub(workspace.cached.get());
        let allocated: u64 = models.values().map(|held| held.counters.blocks_allocated).sum();
        Ok(DeviceSnapshot {
            device: self.name(),
            free_bytes: parts.free,
            total_bytes: parts.total,
            workspace: WorkspaceUse {
                reserved_bytes: workspace.reserved.get(),
                cached_bytes: workspace.cached.get(),
                cached_bytes_peak: pools.cached_peak.get(),
                hits: allocated.saturating_sub(pools.grows),
                grows: pools.grows,
                trims: pools.trims,
                fragmentation: if live == 0 { 1.0 } else { used.max(live) as f64 / live as f64 },
            },
            library,
            server_bytes: allocator_of_the_host(),
            models,
            events: self.statistics.events(),
            card: Some(CardUse::new(parts_lines(&parts), parts.unattributed, &pools, allocator.driver().hits())),
        })
    }

    fn slack(&self, steps: ShapeKind) -> Slack {
        match steps {
            // Only the framework's operations need padding here.
            ShapeKind::Padded => Slack::CUDA_FRAMEWORK,
            ShapeKind::Ragged | ShapeKind::Generate => Slack::CUDA,
        }
    }

    fn terms(&self) -> Terms {
        if self.card.has_arenas() { Terms::CUDA } else { Terms::CUDA_POOLS }
    }

    fn runs_ahead(&self) -> bool {
        true
    }

    fn patience(&self) -> Patience {
        Patience::of_a_card()
    }

    fn taken_by(&self, weights: Bytes) -> Bytes {
        // A tensor begins at a multiple of 512 bytes: a MiB is that for 4,000 of them. Small tensors lie apart from others.
        let granule = self.terms().granule;
        (weights + Bytes::mib(1)).round_up_to(granule) + if self.card.has_arenas() { granule } else { Bytes::ZERO }
    }

    fn profile_facts(&self, content: String, dtype: &str, length_max: u32) -> ProfileFacts {
        let mode = self.card.memory_comes_from();
        ProfileFacts::gpu(self.card.name(), self.card.capability(), mode, content, dtype, length_max)
    }
}

/// The parts under the names that metrics and tables use.
fn parts_lines(parts: &Parts) -> Vec<(&'static str, u64)> {
    vec![
        ("free", parts.free),
        ("weights", parts.weights),
        ("kv", parts.kv),
        ("workspace", parts.workspace),
        ("library", parts.library),
        ("unpooled", parts.unpooled),
        ("fixed", parts.fixed.bytes),
        ("graphs", parts.graphs),
        ("others", parts.others),
    ]
}

fn allocator_of_the_host() -> u64 {
    allocator::server_live().get()
}

fn unread(error: DriverError) -> io::Error {
    io::Error::other(format!("the GPU does not say what is free: {error}"))
}
