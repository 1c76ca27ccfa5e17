//! Everything about a device at one moment, as JSON and as a table.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use super::{CardUse, Counters, PastEvent};
use crate::device::Kind;
use crate::units::{Bytes, ModelId};

/// What is held for one purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Use {
    /// Bytes alive, as asked for.
    pub live_bytes: u64,
    /// Most of them at once: since the load for weights, in the current step for workspace.
    pub peak_bytes: u64,
    /// Blocks alive.
    pub blocks: u64,
}

/// What one model holds and has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ModelUse {
    /// Parameters.
    pub weights: Use,
    /// A generator's cache.
    pub kv: Use,
    /// Activations of the step that runs now.
    pub workspace: Use,
    /// What its steps have left behind.
    pub library: Use,
    /// What it has done.
    pub counters: Counters,
}

impl ModelUse {
    /// The part that is for `kind`.
    pub fn of(&mut self, kind: Kind) -> &mut Use {
        match kind {
            Kind::Weights => &mut self.weights,
            Kind::Kv => &mut self.kv,
            Kind::Workspace => &mut self.workspace,
            Kind::Library => &mut self.library,
        }
    }
}

/// The workspace of the device: what steps share.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct WorkspaceUse {
    /// Bytes held from the system, live and cached.
    pub reserved_bytes: u64,
    /// The part that no block lives in.
    pub cached_bytes: u64,
    /// Largest `cached_bytes` so far.
    pub cached_bytes_peak: u64,
    /// Blocks served from the cache.
    pub hits: u64,
    /// Times that memory was taken from the system.
    pub grows: u64,
    /// Times that memory was returned to it.
    pub trims: u64,
    /// Reserved and live bytes as a ratio to the bytes that were asked for, in the large blocks alive now; 1 when
    /// none is.
    pub fragmentation: f64,
}

/// Everything about a device at one moment.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct DeviceSnapshot {
    /// Its name.
    pub device: String,
    /// What the system says is free.
    pub free_bytes: u64,
    /// All of it, or our share.
    pub total_bytes: u64,
    /// What steps share.
    pub workspace: WorkspaceUse,
    /// Scratch of libraries that belongs to no model.
    pub library: Use,
    /// What the server itself holds on the host: queues, tokenizers, runtime.
    pub server_bytes: u64,
    /// By model id.
    #[serde(serialize_with = "by_number")]
    pub models: BTreeMap<ModelId, ModelUse>,
    /// The recent past, the oldest first.
    pub events: Vec<PastEvent>,
    /// Where every byte is, for a device whose memory is only in part ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub card: Option<CardUse>,
}

fn by_number<S: serde::Serializer>(models: &BTreeMap<ModelId, ModelUse>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(models.iter().map(|(model, held)| (model.get(), held)))
}

impl DeviceSnapshot {
    /// A table for people; `name` turns ids into names.
    pub fn render(&self, name: impl Fn(ModelId) -> String) -> String {
        let mut text = String::new();
        // Writing into a string cannot fail.
        let _ = self.write_table(&mut text, name);
        text
    }

    fn write_table(&self, out: &mut String, name: impl Fn(ModelId) -> String) -> fmt::Result {
        let bytes = |count: u64| Bytes::new(count).to_string();
        writeln!(out, "{}: {} free of {}", self.device, bytes(self.free_bytes), bytes(self.total_bytes))?;
        let workspace = &self.workspace;
        writeln!(
            out,
            "workspace: {} reserved, {} of it cached; {} grows, {} hits, {} trims",
            bytes(workspace.reserved_bytes),
            bytes(workspace.cached_bytes),
            workspace.grows,
            workspace.hits,
            workspace.trims
        )?;
        writeln!(out, "library: {}   server: {}", bytes(self.library.live_bytes), bytes(self.server_bytes))?;
        writeln!(
            out,
            "{:<32} {:>10} {:>10} {:>10} {:>10} {:>8} {:>8} {:>7} {:>7}",
            "model", "weights", "library", "last peak", "max peak", "steps", "overruns", "ladder", "faulted"
        )?;
        for (model, held) in &self.models {
            let counters = &held.counters;
            writeln!(
                out,
                "{:<32} {:>10} {:>10} {:>10} {:>10} {:>8} {:>8} {:>7} {:>7}",
                name(*model),
                bytes(held.weights.live_bytes),
                bytes(held.library.live_bytes),
                bytes(counters.step_peak_bytes_last),
                bytes(counters.step_peak_bytes_max),
                counters.steps,
                counters.overruns,
                counters.trims + counters.halvings + counters.evictions + counters.refusals,
                counters.steps_faulted
            )?;
        }
        if let Some(card) = &self.card {
            card.write_table(out, &name)?;
        }
        for past in &self.events {
            writeln!(out, "{:>12.6} s  {:?}", past.at_us as f64 / 1e6, past.event)?;
        }
        Ok(())
    }
}
