//! Whether the server lives, is ready, and which models serve.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::status::ModelState;

/// What health checks answer from. Published whenever it changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HealthView {
    /// All required models are ready, and the server is not draining.
    pub ready: bool,
    /// The server is going down.
    pub draining: bool,
    /// The device is lost; the process ends after its drain.
    pub poisoned: bool,
    /// Every model by name, in the order of registration, with its state.
    pub models: Vec<(String, ModelState)>,
    /// The required ones among them that are waited for.
    pub awaited: Vec<(String, ModelState)>,
}

impl HealthView {
    /// Whether the server is ready.
    ///
    /// # Errors
    /// Why not, for an operator.
    pub fn readiness(&self) -> Result<(), String> {
        match self {
            HealthView { ready: true, .. } => Ok(()),
            HealthView { poisoned: true, .. } => Err("the device is lost".to_owned()),
            HealthView { draining: true, .. } => Err("the server is draining".to_owned()),
            HealthView { awaited, .. } => {
                let awaited: Vec<_> =
                    awaited.iter().map(|(name, state)| format!("{name} is {}", state.as_str())).collect();
                Err(format!("a required model is not ready: {}", awaited.join(", ")))
            }
        }
    }

    /// Whether this model takes requests: it is ready and the server is not draining.
    pub fn serves(&self, name: &str) -> bool {
        !self.draining && self.models.iter().any(|(model, state)| model == name && *state == ModelState::Ready)
    }
}

/// Tells whether the engine's loop turns.
#[derive(Clone, Debug)]
pub struct Pulse {
    epoch: Instant,
    last_ms: Arc<AtomicU64>,
}

impl Pulse {
    /// The loop wakes at least this often.
    pub(super) const INTERVAL: Duration = Duration::from_millis(500);
    /// A loop that has not turned for so long is stuck: twenty missed wake-ups.
    const STUCK_AFTER: Duration = Duration::from_secs(10);

    pub(super) fn new() -> Pulse {
        Pulse { epoch: Instant::now(), last_ms: Arc::new(AtomicU64::new(0)) }
    }

    pub(super) fn beat(&self) {
        self.last_ms.store(self.epoch.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// Whether the engine's loop has turned lately.
    pub fn alive(&self) -> bool {
        let last = Duration::from_millis(self.last_ms.load(Ordering::Relaxed));
        self.epoch.elapsed().saturating_sub(last) < Pulse::STUCK_AFTER
    }
}
