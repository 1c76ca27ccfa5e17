//! What of the card is ours and in no book: the context, compiled modules, what libraries hold.

use std::sync::{Mutex, PoisonError};

use super::nvml::Nvml;

/// How the fixed part is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FixedSource {
    /// NVML says what this process has; what the books hold is taken off.
    Nvml,
    /// The fall of free memory while the card was opened: right if nobody else took or gave memory meanwhile.
    Estimated,
}

/// The fixed part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Fixed {
    /// Its bytes.
    pub bytes: u64,
    /// How they are known.
    pub source: FixedSource,
}

/// Keeps the fixed part. It grows while a card gets warm, since modules are compiled at their first use, and when
/// operations meet shapes for which they load other kernels; what comes on top beside that is not accounted for.
pub(super) struct FixedPart {
    nvml: Option<Nvml>,
    free_at_first: u64,
    last: Mutex<Fixed>,
}

impl FixedPart {
    /// `free_at_first` is what was free before the context was made, as well as that is known.
    pub(super) fn new(nvml: Option<Nvml>, free_at_first: u64) -> FixedPart {
        let last = Mutex::new(Fixed { bytes: 0, source: FixedSource::Estimated });
        FixedPart { nvml, free_at_first, last }
    }

    /// Measures it when the card has just been opened. `held` is what the books hold.
    pub(super) fn at_start(&self, free: u64, held: u64) {
        let estimate = self.free_at_first.saturating_sub(free).saturating_sub(held);
        self.set(Fixed { bytes: estimate, source: FixedSource::Estimated });
        self.again(held);
    }

    /// Measures it again where NVML can tell it from what others do.
    pub(super) fn again(&self, held: u64) {
        if let Some(used) = self.used() {
            self.set(Fixed { bytes: used.saturating_sub(held), source: FixedSource::Nvml });
        }
    }

    /// What NVML says this process has, all in all.
    pub(super) fn used(&self) -> Option<u64> {
        self.nvml.as_ref()?.used_by_this_process()
    }

    pub(super) fn get(&self) -> Fixed {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, fixed: Fixed) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = fixed;
    }
}
