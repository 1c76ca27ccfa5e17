//! The metrics of one device.

use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::metrics::family::Family;

use super::catalogue::{Catalogue, Counter, Gauge, Labels};
use crate::memory::Reading;
use crate::units::Bytes;

/// The part of a card that is nobody's to give back.
const FIXED: &str = "fixed";

const EVENTS: [&str; 3] = ["allocate", "free", "trim"];

/// The books of a device beside its reading.
#[derive(Clone, Copy, Debug)]
pub struct DeviceBytes {
    /// The budget: what models and their steps may have together.
    pub capacity: Bytes,
    /// Kept free beside it for the noise of the reading.
    pub safety: Bytes,
    /// Ceiling of the lease of the step now running; zero when none runs.
    pub leased: Bytes,
    /// The last reading.
    pub reading: Reading,
}

/// What the allocator of a device has done since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocatorCounts {
    /// Blocks handed out.
    pub allocations: u64,
    /// Blocks taken back.
    pub frees: u64,
    /// Times that cached memory was given back to the device.
    pub trims: u64,
}

/// The families of all devices' series.
#[derive(Debug)]
pub(super) struct Families {
    capacity: Family<Labels, Gauge>,
    safety: Family<Labels, Gauge>,
    fixed: Family<Labels, Gauge>,
    leased: Family<Labels, Gauge>,
    free: Family<Labels, Gauge>,
    total: Family<Labels, Gauge>,
    library: Family<Labels, Gauge>,
    workspace_reserved: Family<Labels, Gauge>,
    workspace_cached: Family<Labels, Gauge>,
    part: Family<Labels, Gauge>,
    unattributed: Family<Labels, Gauge>,
    allocator: Family<Labels, Counter>,
    watchdog: Family<Labels, Counter>,
}

impl Families {
    pub(super) fn register(to: &mut Catalogue) -> Families {
        const DEVICE: &[&str] = &["device"];
        Families {
            capacity: to.gauge(
                "device_capacity_bytes",
                DEVICE,
                "Budget (`memory_budget`): what models and their steps may have together; less where the margin would no \
                 longer fit beside it",
            ),
            safety: to.gauge(
                "device_safety_bytes",
                DEVICE,
                "Margin (`memory_safety`), kept free beside the budget for the noise of the reading",
            ),
            fixed: to.gauge(
                "device_fixed_bytes",
                DEVICE,
                "What a card's context, modules and libraries take, outside the budget; 0 on a CPU, where nothing of the \
                 kind is counted",
            ),
            leased: to.gauge("device_leased_bytes", DEVICE, "Ceiling of the lease of the step now running, else 0"),
            free: to.gauge("device_free_bytes", DEVICE, "Free memory by the device's own authority, last reading"),
            total: to.gauge("device_total_bytes", DEVICE, "All memory of the device, or of this process's share of it"),
            library: to.gauge("device_library_bytes", DEVICE, "Scratch of libraries, charged to no model"),
            workspace_reserved: to.gauge(
                "device_workspace_reserved_bytes",
                DEVICE,
                "Workspace that the allocator holds, live and cached; one for all models",
            ),
            workspace_cached: to.gauge(
                "device_workspace_cached_bytes",
                DEVICE,
                "The part of the reserved workspace that no tensor lives in",
            ),
            part: to.gauge(
                "device_part_bytes",
                &["device", "part"],
                "Where every byte of a card is: `free`, pools of `weights`, `kv`, `workspace` and `library`, \
                 `unpooled`, `fixed` (context, modules, libraries), \
                 `graphs`, `others`; together they are the card. None on a CPU",
            ),
            unattributed: to.gauge(
                "device_unattributed_bytes",
                DEVICE,
                "Memory of a card that the driver counts as this process's \
                 and that is in no book; no series where it does not say",
            ),
            allocator: to.counter(
                "allocator_events",
                &["device", "event"],
                "What the accounted allocator did: `allocate`, `free`, `trim` (cached memory given back)",
            ),
            watchdog: to.counter(
                "watchdog",
                DEVICE,
                "Times that runnable work got no step and the watchdog had to fail its head; a bug if not 0",
            ),
        }
    }

    pub(super) fn handles(&self, name: &str) -> DeviceMetrics {
        let labels = vec![("device", name.to_owned())];
        let event = |word: &str| vec![("device", name.to_owned()), ("event", word.to_owned())];
        DeviceMetrics {
            handles: Arc::new(Handles {
                capacity: self.capacity.get_or_create_owned(&labels),
                safety: self.safety.get_or_create_owned(&labels),
                fixed: self.fixed.get_or_create_owned(&labels),
                leased: self.leased.get_or_create_owned(&labels),
                free: self.free.get_or_create_owned(&labels),
                total: self.total.get_or_create_owned(&labels),
                library: self.library.get_or_create_owned(&labels),
                workspace_reserved: self.workspace_reserved.get_or_create_owned(&labels),
                workspace_cached: self.workspace_cached.get_or_create_owned(&labels),
                allocator: EVENTS.map(|word| self.allocator.get_or_create_owned(&event(word))),
                allocator_last: Mutex::default(),
                // Made when a card first says what it has: a CPU has no such series.
                part: self.part.clone(),
                unattributed: self.unattributed.clone(),
                name: name.to_owned(),
                watchdog: self.watchdog.get_or_create_owned(&labels),
            }),
        }
    }
}

/// Records what happens on one device. Cheap to clone; the clones record into the same series.
#[derive(Clone, Debug)]
pub struct DeviceMetrics {
    handles: Arc<Handles>,
}

#[derive(Debug)]
struct Handles {
    capacity: Gauge,
    safety: Gauge,
    fixed: Gauge,
    leased: Gauge,
    free: Gauge,
    total: Gauge,
    library: Gauge,
    workspace_reserved: Gauge,
    workspace_cached: Gauge,
    allocator: [Counter; EVENTS.len()],
    allocator_last: Mutex<AllocatorCounts>,
    part: Family<Labels, Gauge>,
    unattributed: Family<Labels, Gauge>,
    name: String,
    watchdog: Counter,
}

impl DeviceMetrics {
    /// The books and the reading now.
    pub fn bytes(&self, bytes: &DeviceBytes) {
        let to = &self.handles;
        let levels = [
            (&to.capacity, bytes.capacity),
            (&to.safety, bytes.safety),
            (&to.leased, bytes.leased),
            (&to.free, bytes.reading.free),
            (&to.total, bytes.reading.total),
            (&to.library, bytes.reading.library),
            (&to.workspace_reserved, bytes.reading.workspace_reserved),
            (&to.workspace_cached, bytes.reading.workspace_cached),
        ];
        for (gauge, level) in levels {
            gauge.set(level.as_f64());
        }
    }

    /// The allocator's counts since the start; what they have grown by since the last call is added.
    pub fn allocator(&self, now: AllocatorCounts) {
        let mut last = self.handles.allocator_last.lock().unwrap_or_else(PoisonError::into_inner);
        let grown = [
            now.allocations.saturating_sub(last.allocations),
            now.frees.saturating_sub(last.frees),
            now.trims.saturating_sub(last.trims),
        ];
        for (counter, count) in self.handles.allocator.iter().zip(grown) {
            counter.inc_by(count);
        }
        *last = now;
    }

    /// Where every byte of a card is, by the names of the parts, and what of it is unattributed, where that is known.
    pub fn card(&self, parts: impl IntoIterator<Item = (&'static str, u64)>, unattributed: Option<i64>) {
        let to = &self.handles;
        for (part, bytes) in parts {
            if part == FIXED {
                to.fixed.set(bytes as f64);
            }
            let labels = vec![("device", to.name.clone()), ("part", part.to_owned())];
            to.part.get_or_create_owned(&labels).set(bytes as f64);
        }
        if let Some(bytes) = unattributed {
            to.unattributed.get_or_create_owned(&vec![("device", to.name.clone())]).set(bytes as f64);
        }
    }

    /// Runnable work got no step and its head was failed.
    pub fn watchdog_fired(&self) {
        self.handles.watchdog.inc();
    }
}
