//! One GPU, opened: its context, its allocator, and the proof that candle's memory comes from there.

use std::ffi::CStr;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::{CudaContext, DriverError as CudarcError, result, sys};

use super::driver::{LibCuda, Real, from_cudarc};
use super::fixed::FixedPart;
use super::interpose::{self, intercepted};
use super::nvml::Nvml;
use super::readings::Parts;
use crate::device::Kind;
use crate::device::pools::{
    Arenas, DriverError, FailingDriver, Failures, Memory, Mode, PoolDriver, PooledAllocator, Slot,
};

/// The allocator of a card.
pub(super) type CardAllocator = PooledAllocator<FailingDriver<Arenas<LibCuda>>>;

/// How a card is opened.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CardSettings {
    /// Which one, in the driver's order; `CUDA_VISIBLE_DEVICES` is the driver's to heed.
    pub ordinal: u32,
    /// Where memory comes from.
    pub mode: Mode,
    /// What fails on purpose.
    pub failures: Failures,
}

impl CardSettings {
    /// The card of this number as it is meant to be used.
    pub fn of(ordinal: u32) -> CardSettings {
        CardSettings { ordinal, mode: Mode::Pools, failures: Failures::Never }
    }
}

/// Why a GPU cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// There is no driver.
    #[error("libcuda.so.1 cannot be loaded: install NVIDIA's driver")]
    NoDriver,
    /// The driver refuses.
    #[error("{action}: {reason}")]
    Driver {
        /// What was tried.
        action: &'static str,
        /// What the driver said.
        reason: String,
    },
    /// There is no such card.
    #[error("there is no GPU {ordinal}: the driver shows {count} (CUDA_VISIBLE_DEVICES may hide some)")]
    NoSuchCard {
        /// The number that was asked for.
        ordinal: u32,
        /// Cards that there are.
        count: u32,
    },
    /// Another card, or the same with other settings, is in use.
    #[error("this process already uses GPU {ordinal}: a process has one, with one allocator")]
    Taken {
        /// Its number.
        ordinal: u32,
    },
    /// candle's allocations do not come to the allocator.
    #[error(
        "the allocator of this program is not in candle's way, so no budget could be kept: was it built with \
         plimsoll_no_interposer, or is another library preloaded that defines cuMemAllocAsync?"
    )]
    NotInterposed,
    /// What candle needs beside memory cannot be made.
    #[error("candle cannot use it: {reason}")]
    Candle {
        /// Its words.
        reason: String,
    },
}

impl Unusable {
    pub(super) fn driver(action: &'static str) -> impl Fn(CudarcError) -> Unusable {
        move |error| Unusable::Driver { action, reason: error.to_string() }
    }
}

/// A GPU that is open. It stays open as long as the process lives: so does what is interposed.
pub struct Card {
    settings: CardSettings,
    context: Arc<CudaContext>,
    allocator: &'static CardAllocator,
    name: String,
    capability: (i32, i32),
    fixed: FixedPart,
}

static OPEN: Mutex<Option<&'static Card>> = Mutex::new(None);

impl Card {
    /// Opens a card, or returns the one that is open if it is the same.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn open(settings: CardSettings) -> Result<&'static Card, Unusable> {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(card) = *open {
            let same = card.settings == settings;
            return if same { Ok(card) } else { Err(Unusable::Taken { ordinal: card.settings.ordinal }) };
        }
        let card = Card::first(settings)?;
        *open = Some(card);
        Ok(card)
    }

    fn first(settings: CardSettings) -> Result<&'static Card, Unusable> {
        let real = Real::get().ok_or(Unusable::NoDriver)?;
        result::init().map_err(Unusable::driver("the driver does not start"))?;
        let count = result::device::get_count().map_err(Unusable::driver("the driver does not count its GPUs"))?;
        let (ordinal, count) = (settings.ordinal, u32::try_from(count).unwrap_or(0));
        if ordinal >= count {
            return Err(Unusable::NoSuchCard { ordinal, count });
        }
        let nvml = bus_id(ordinal).and_then(|id| Nvml::open(CStr::from_bytes_until_nul(&id).ok()?));
        let free_at_first = nvml.as_ref().and_then(Nvml::free);
        let context = CudaContext::new(ordinal as usize).map_err(Unusable::driver("no context can be made"))?;
        // SAFETY: whatever uses this context uses one stream.
        unsafe { context.disable_event_tracking() };
        let name = context.name().map_err(Unusable::driver("the GPU does not say what it is"))?;
        let capability = context.compute_capability().map_err(Unusable::driver("the GPU does not say what it can"))?;
        let driver = LibCuda::new(context.clone(), real);
        let failed = |action| move |error: DriverError| Unusable::Driver { action, reason: error.to_string() };
        let memory = driver.memory().map_err(failed("the GPU does not say what is free"))?;
        let driver = FailingDriver::new(Arenas::new(driver), settings.failures);
        let allocator =
            PooledAllocator::new(driver, settings.mode).map_err(failed("no memory pool can be made on the GPU"))?;
        let allocator: &'static CardAllocator = Box::leak(Box::new(allocator));
        interpose::install(allocator);
        let fixed = FixedPart::new(nvml, free_at_first.unwrap_or(memory.free));
        let card = Card { settings, context, allocator, name, capability, fixed };
        card.test_itself()?;
        Ok(Box::leak(Box::new(card)))
    }

    /// Allocates as candle does, and looks whether it came from the allocator and went back there.
    fn test_itself(&self) -> Result<(), Unusable> {
        const BYTES: usize = 1 << 20;
        let (before, live) = (intercepted(), self.allocator.live(Slot::NOBODY));
        let stream = self.context.new_stream().map_err(Unusable::driver("no stream can be made"))?;
        let whole = loop {
            // SAFETY: nobody reads what is in it.
            match unsafe { stream.alloc::<u8>(BYTES) } {
                Ok(memory) => break memory,
                // A driver that fails on purpose does so here too.
                Err(error) if from_cudarc(error) == DriverError::OUT_OF_MEMORY && self.fails_on_purpose() => {}
                Err(error) => return Err(Unusable::driver("a MiB cannot be allocated")(error)),
            }
        };
        let (came, charged) = (intercepted() > before, self.allocator.live(Slot::NOBODY) == live + BYTES as u64);
        drop(whole);
        let went = self.allocator.live(Slot::NOBODY) == live;
        let _ = self.allocator.take_shortfall(Slot::NOBODY);
        stream.synchronize().map_err(Unusable::driver("the GPU does not work"))?;
        self.allocator.return_everything();
        if came && charged && went { Ok(()) } else { Err(Unusable::NotInterposed) }
    }

    fn fails_on_purpose(&self) -> bool {
        self.settings.failures != Failures::Never
    }

    /// Its number.
    pub fn ordinal(&self) -> u32 {
        self.settings.ordinal
    }

    /// What its maker calls it; of a part of a card the part.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its compute capability, such as (9, 0).
    pub fn capability(&self) -> (i32, i32) {
        self.capability
    }

    /// Its context.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// Its allocator.
    pub fn allocator(&self) -> &'static PooledAllocator<FailingDriver<Arenas<LibCuda>>> {
        self.allocator
    }

    /// Its driver, without anything that fails on purpose.
    pub fn driver(&self) -> &'static LibCuda {
        self.allocator.driver().inner().inner()
    }

    /// Whether pools are ranges of addresses of ours, which take 2 MiB at a time, and not the driver's.
    pub fn has_arenas(&self) -> bool {
        self.allocator.mode() == Mode::Pools && self.allocator.driver().inner().has_arenas()
    }

    /// Where memory comes from, in a word: the allocator's mode, or `arenas` for pools that are ours.
    pub fn memory_comes_from(&self) -> &'static str {
        match self.allocator.mode() {
            Mode::Pools if self.has_arenas() => "arenas",
            mode @ (Mode::Pools | Mode::Plain | Mode::Driver) => mode.as_str(),
        }
    }

    /// What the card says is free: 4 to 6 us.
    ///
    /// # Errors
    /// If it no longer says anything.
    pub fn memory(&self) -> Result<Memory, DriverError> {
        self.driver().memory()
    }

    /// What the books hold of the card, and the driver's graphs.
    fn held(&self) -> u64 {
        self.allocator.reserved().get() + self.driver().graph_memory()
    }

    /// Takes what is ours and in no book for fixed: when everything that stays has been made.
    pub(super) fn settle_fixed_at_start(&self) {
        if let Ok(memory) = self.memory() {
            self.fixed.at_start(memory.free, self.held());
        }
    }

    /// Takes it again, as long as modules are still being compiled.
    pub(super) fn settle_fixed(&self) {
        self.fixed.again(self.held());
    }

    /// Where every byte of the card is: the identity `total = free + ours + fixed + graphs + others`. Asks NVML, which
    /// takes milliseconds.
    ///
    /// # Errors
    /// If the card no longer says what is free.
    pub fn parts(&self) -> Result<Parts, DriverError> {
        let used = self.fixed.used().map(|used| i64::try_from(used).unwrap_or(i64::MAX));
        let known = self.held() + self.fixed.get().bytes;
        self.parts_beside(used.map(|used| used.saturating_sub_unsigned(known)))
    }

    /// The same with what is known already of unattributed bytes.
    pub(super) fn parts_beside(&self, unattributed: Option<i64>) -> Result<Parts, DriverError> {
        let Memory { free, total } = self.memory()?;
        let lines = self.allocator.pools();
        let pools = |kind: Kind| -> u64 {
            lines.iter().filter(|pool| pool.owner.kind == kind).map(|pool| pool.reserved.get()).sum()
        };
        let [weights, kv, workspace, library] = Kind::ALL.map(pools);
        let pooled = weights + kv + workspace + library;
        let held = self.allocator.reserved().get();
        let fixed = self.fixed.get();
        let graphs = self.driver().graph_memory();
        let known = free + held + fixed.bytes + graphs;
        Ok(Parts {
            total,
            free,
            weights,
            kv,
            workspace,
            library,
            unpooled: held.saturating_sub(pooled),
            fixed,
            graphs,
            others: total.saturating_sub(known),
            unattributed,
        })
    }
}

fn bus_id(ordinal: u32) -> Option<[u8; 32]> {
    let device = result::device::get(i32::try_from(ordinal).ok()?).ok()?;
    let mut id = [0u8; 32];
    // SAFETY: the buffer lives through the call and is as long as is said; a bus id has 13 characters.
    let said = unsafe { sys::cuDeviceGetPCIBusId(id.as_mut_ptr().cast(), id.len() as i32, device) };
    (said == sys::CUresult::CUDA_SUCCESS).then_some(id)
}
