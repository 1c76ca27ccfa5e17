//! What the engine tells about memory: the books, the readings, and what would fit.

use serde_json::{Value, json};

use crate::device::statistics::DeviceSnapshot;
use crate::memory::{LedgerSnapshot, ModelBooks, Reading};
use crate::units::{Bytes, ModelId};

/// The books of the device and the reading that goes with them.
#[derive(Clone, Debug, PartialEq)]
pub struct MemorySnapshot {
    /// What the device calls itself.
    pub device: String,
    /// The reading taken for this snapshot.
    pub reading: Reading,
    /// The books.
    pub ledger: LedgerSnapshot,
    /// What the device itself has counted, and its recent past; `None` if it did not say.
    pub usage: Option<DeviceSnapshot>,
}

impl MemorySnapshot {
    /// All of it as JSON; `name` turns ids into names.
    pub fn json(&self, name: impl Fn(ModelId) -> String) -> Value {
        let (reading, ledger) = (&self.reading, &self.ledger);
        let model = |books: &ModelBooks| {
            let held = self.usage.as_ref().and_then(|usage| usage.models.get(&books.model));
            json!({
                "model": name(books.model),
                "id": books.model.get(),
                "weights_bytes": books.weights.get(),
                "loading_bytes": books.loading.get(),
                "kv_bytes": books.kv.get(),
                "guaranteed_bytes": books.budget.guaranteed.get(),
                "limit_bytes": (books.budget.limit != Bytes::MAX).then_some(books.budget.limit.get()),
                "overage_bytes": books.overage.get(),
                "pinned": books.pinned,
                "headroom_bytes": books.headroom.bytes.get(),
                "headroom_bound": format!("{:?}", books.headroom.bound).to_lowercase(),
                "step_peak_bytes": books.step_peak.get(),
                "device": held,
            })
        };
        json!({
            "device": self.device,
            "at_us": reading.at.get(),
            "capacity_bytes": ledger.books.capacity.get(),
            "safety_bytes": ledger.books.safety.get(),
            "fixed_bytes": ledger.books.fixed.get(),
            "free_bytes": reading.free.get(),
            "total_bytes": reading.total.get(),
            "library_bytes": reading.library.get(),
            "workspace_reserved_bytes": reading.workspace_reserved.get(),
            "workspace_cached_bytes": reading.workspace_cached.get(),
            "leased_bytes": ledger.leased.get(),
            "headroom_bytes": ledger.headroom.get(),
            "models": ledger.models.iter().map(model).collect::<Vec<_>>(),
            "workspace": self.usage.as_ref().map(|usage| usage.workspace),
            "library": self.usage.as_ref().map(|usage| usage.library),
            "server_bytes": self.usage.as_ref().map(|usage| usage.server_bytes),
            "card": self.usage.as_ref().and_then(|usage| usage.card.as_ref()),
            // Of models by their id.
            "events": self.usage.as_ref().map(|usage| &usage.events),
        })
    }
}

/// Why nothing can be said about whether models fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A model's files cannot be read, so that its size is not known.
    #[error("'{name}' is broken, so its size is not known: {reason}")]
    Broken {
        /// The model.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A model that is not registered.
    #[error("no model {0} is registered")]
    Unknown(ModelId),
}
