//! What the configuration means to the parts of a server: the device, the books, the engine, the services.

use std::path::Path;

use crate::admission::QueueLimits;
use crate::config::{self, ServerConfig};
use crate::device::pools::{Failures, Mode};
use crate::device::{Choice, OnShortfall, StartOptions};
use crate::engine::EngineSettings;
use crate::memory::{DeviceBooks, Reading, Readings, Terms, TrimPolicy};
use crate::scheduler::{Batching, Settings};
use crate::service::Limits;
use crate::units::{Bytes, Micros};

/// How the configured device is started.
pub fn start_options(config: &ServerConfig, live: Readings) -> StartOptions {
    let choice = match config.device {
        config::DeviceKind::Auto => Choice::Auto,
        config::DeviceKind::Cpu => Choice::Cpu,
        config::DeviceKind::Cuda(ordinal) => Choice::Cuda(ordinal),
    };
    let allocator = match config.allocator {
        config::Allocator::Pools => Mode::Pools,
        config::Allocator::Plain => Mode::Plain,
        config::Allocator::Driver => Mode::Driver,
    };
    let failures = match config.fail_allocations {
        config::FailAllocations::Never => Failures::Never,
        config::FailAllocations::Random { probability, seed } => Failures::Random { probability, seed },
        config::FailAllocations::Above(bytes) => Failures::Above { bytes: bytes.get() },
    };
    let reading_file = config.memory_reading_file.path().map(Path::to_owned);
    StartOptions { choice, live, allocator, failures, reading_file }
}

pub(super) fn readings(config: &ServerConfig) -> Readings {
    match config.readings {
        config::Readings::Live => Readings::Live,
        config::Readings::Off => Readings::Off,
    }
}

/// What models and their steps may have together on a device whose first reading this is.
pub fn available(config: &ServerConfig, reading: &Reading, terms: Terms) -> Bytes {
    books(config, readings(config), reading, terms).available()
}

/// The books of a device whose first reading this is.
pub(super) fn books(config: &ServerConfig, readings: Readings, reading: &Reading, terms: Terms) -> DeviceBooks {
    let safety = config.memory_safety.of(terms.usual_safety());
    // The budget is for models and their steps. The safety margin lies beside it, unless the budget is the whole device.
    let capacity = (config.memory_budget.of(reading.total, reading.free) + safety).min(reading.total);
    // Nothing is taken before the first model that would be inside the budget: the server's own memory, and on a GPU the
    // context and compiled modules, are outside it.
    DeviceBooks { capacity, safety, fixed: Bytes::ZERO, terms, readings }
}

pub(super) fn engine_settings(config: &ServerConfig) -> EngineSettings {
    EngineSettings {
        scheduler: Settings {
            batching: match config.batching {
                config::Batching::Profile => Batching::Profile,
                config::Batching::Fixed(rows) => Batching::Fixed(rows.get()),
            },
            overtaking_max: config.overtaking_max,
            survey_share: config.survey_share,
            denied_wait_max: match config.out_of_memory {
                config::OutOfMemory::Ladder => Settings::default().denied_wait_max,
                config::OutOfMemory::Refuse => Micros::ZERO,
            },
            ..Settings::default()
        },
        on_shortfall: match config.out_of_memory {
            config::OutOfMemory::Ladder => OnShortfall::Ladder,
            config::OutOfMemory::Refuse => OnShortfall::Refuse,
        },
        trim: TrimPolicy { window: config.idle_decay, ..TrimPolicy::default() },
        queue: QueueLimits {
            rows: u64::from(config.queue_rows_max),
            tokens: config.queue_tokens_max,
            host_bytes: config.queue_bytes_max,
        },
        request_rows_max: config.request_rows_max,
        load_timeout: config.load_timeout,
        minimum_residency: config.minimum_residency,
    }
}

pub(super) fn limits(config: &ServerConfig) -> Limits {
    Limits {
        message: config.message_bytes_max,
        request_rows: config.request_rows_max,
        streams: config.streams_max,
        // Whatever the queue may take may be tokenized for it. A small queue is the queue's own to refuse: it counts what
        // it refuses, and the tokenizer does not.
        tokenizer_rows: config.queue_rows_max.max(Limits::default().tokenizer_rows),
        tokenizer_bytes: config.queue_bytes_max,
        streams_held: config.message_bytes_max * 16,
        drain_bound: config.drain_timeout.into(),
        ..Limits::default()
    }
}
